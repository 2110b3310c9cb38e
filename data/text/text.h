// Text for language models: a file to a string, a string (through tokenizer.h) to tokens, tokens to
// windows whose targets are the next tokens.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include <halftone/data/dataset.h>
#include <halftone/data/text/tokenizer.h>

namespace halftone::data {

/// Returns the bytes of a file, without a byte order mark at the start. Throws FormatError for a
/// file that is missing or has more than max_bytes.
std::string read_text(const std::filesystem::path& path, int64_t max_bytes = int64_t(1) << 30);

/// Returns the tokens of a text, i64 [n].
Tensor tokenize(const Tokenizer& tokenizer, std::string_view text);

struct TextSplit {
  Tensor train, validation;  // i64 [n], views of the tokens that were split
};
/// Splits tokens: the first part for training, the last `validation_fraction` (rounded down) for
/// validation, as neighbors must not be on both sides. tokens: i64 [n]; fraction on [0, 1).
TextSplit split_text(const Tensor& tokens, double validation_fraction = 0.1);

struct TextDatasetOptions {
  int64_t context = 128;  // tokens of a window
  int64_t stride = 0;     // from one window to the next; 0: context, so that they do not overlap
};

class TextDataset final : public Dataset {
 public:
  /// tokens: i64 [n] with n > context, else ShapeError; shared if row-major on the CPU.
  explicit TextDataset(const Tensor& tokens, TextDatasetOptions options = {});

  /// Returns the number of whole windows, targets included: 1 + (n - 1 - context) / stride.
  int64_t size() const override;
  /// inputs: i64 [k, context], the tokens from i * stride on; targets: i64 [k, context], one token
  /// further on.
  Batch batch(std::span<const int64_t> indices) const override;

  const Tensor& tokens() const { return tokens_; }
  const TextDatasetOptions& options() const { return options_; }

 private:
  Tensor tokens_;
  TextDatasetOptions options_;
};

}  // namespace halftone::data
