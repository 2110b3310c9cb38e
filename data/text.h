// Text for language models: files, tokenizers, windows of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <halftone/data/data_loader.h>
#include <halftone/data/unicode.h>

namespace halftone::data {

// Text to tokens and back. Tokens are i64 on [0, vocabulary_size()), as an embedding needs them.

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int64_t vocabulary_size() const = 0;
  /// Returns the tokens of a text: decode(encode(text)) is text, unless a tokenizer says what it
  /// changes. Must be thread-safe.
  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  /// Returns the text of tokens. Throws UsageError for a token outside of the vocabulary.
  virtual std::string decode(std::span<const int64_t> tokens) const = 0;

 protected:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = default;
  Tokenizer& operator=(const Tokenizer&) = default;
};

/// One token per character, that is, per code point of UTF-8.
class CharacterTokenizer final : public Tokenizer {
 public:
  /// Takes the characters of a text, numbered from 0 in the order of their code points: the same
  /// set of characters gives the same tokens. Throws FormatError for text that is not UTF-8.
  explicit CharacterTokenizer(std::string_view text);

  int64_t vocabulary_size() const override { return int64_t(characters_.size()); }
  /// Throws UsageError, with name and position, for a character that the constructor's text lacked,
  /// and FormatError for text that is not UTF-8.
  std::vector<int64_t> encode(std::string_view text) const override;
  std::string decode(std::span<const int64_t> tokens) const override;

  /// Returns all characters in token order; a tokenizer made of this text equals this one.
  std::string vocabulary() const;

 private:
  std::vector<char32_t> characters_;  // sorted
  std::unordered_map<char32_t, int64_t> token_of_;
};

// Text for language models: a file to a string, a string (through a Tokenizer) to tokens, tokens to
// windows whose targets are the next tokens.

/// Returns the text of a file, without a byte order mark at the start. Throws FormatError for a
/// file that is missing, has more than max_bytes or is not UTF-8: UTF-16 is named as such.
std::string read_text(const std::filesystem::path& path, int64_t max_bytes = int64_t(1) << 30);

/// Returns the tokens of a text, i64 [n].
Tensor tokenize(const Tokenizer& tokenizer, std::string_view text);

struct TextSplit {
  Tensor train, validation;  // i64 [n], views of the tokens that were passed
};
/// Splits tokens in two, without shuffling: the first part for training, the last
/// `validation_fraction` (rounded down) for validation. tokens: i64 [n]; fraction on [0, 1).
TextSplit split_text(const Tensor& tokens, double validation_fraction = 0.1);

struct TextDatasetOptions {
  int64_t context = 128;  // tokens of a window
  int64_t stride = 0;     // from one window to the next; 0: context, so that they do not overlap
};

class TextDataset final : public Dataset {
 public:
  /// tokens: i64 [n] with n > context, else ShapeError; not copied if row-major on the CPU.
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
