// Text for language models: UTF-8, tokenizers, windows of tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <halftone/data/data_loader.h>

namespace halftone::data {

// UTF-8, strictly (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.

struct CodePoint {
  char32_t value = 0;
  std::size_t length = 0;  // in bytes; 0: the bytes at this position are not UTF-8
};

/// Returns the character that begins at text[at]; at < text.size().
inline CodePoint code_point_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {char32_t(first), 1};
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() - at < length) return {};
  char32_t value = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3fu);
  }
  constexpr char32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < smallest[length] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000))
    return {};
  return {value, length};
}

inline void append_utf8(std::string& text, char32_t value) {
  if (value < 0x80) {
    text += char(value);
  } else if (value < 0x800) {
    text += char(0xc0 | value >> 6);
    text += char(0x80 | (value & 0x3f));
  } else if (value < 0x10000) {
    text += char(0xe0 | value >> 12);
    text += char(0x80 | (value >> 6 & 0x3f));
    text += char(0x80 | (value & 0x3f));
  } else {
    text += char(0xf0 | value >> 18);
    text += char(0x80 | (value >> 12 & 0x3f));
    text += char(0x80 | (value >> 6 & 0x3f));
    text += char(0x80 | (value & 0x3f));
  }
}

// Text to tokens and back. Tokens are i64 on [0, vocabulary_size()), as an embedding needs them.

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual int64_t vocabulary_size() const = 0;
  /// Returns the tokens of a text: decode(encode(text)) is text. Must be thread-safe.
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
  /// Throws UsageError for a character that the text lacked, with its name and position.
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

// Splits text into the words within which byte pairs are merged: GPT-2's regular expression
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// by hand, with the whole of Unicode 14 for \p{L}, \p{N} and \s.

/// Returns the first word of a text that is not empty. Words follow each other without gaps. A byte
/// that is not UTF-8 counts as one character other than a letter, number or space.
std::string_view first_word(std::string_view text);

// Byte-pair encoding as GPT-2 does it (Sennrich et al. 2016, arXiv:1508.07909; Radford et al.
// 2019): text is split into words, each word into bytes, and neighbors are merged in the order in
// which the merges were learned. Every string of bytes has an encoding, and decoding restores it.

class BytePairTokenizer final : public Tokenizer {
 public:
  /// Reads GPT-2's two files. vocab.json: one object from each token's text to its number, the
  /// numbers 0 to n - 1 once each. merges.txt: one merge per line, two tokens with a space between
  /// them, after an optional first line "#version". In both, printable characters represent bytes
  /// (GPT-2's table: a space is "Ġ"). Throws FormatError, which names the file and the line or
  /// token, for files that are above 64 MiB, are malformed or lack one of the 256 bytes, and for
  /// merges whose tokens the vocabulary does not have.
  BytePairTokenizer(const std::filesystem::path& vocabulary_json,
                    const std::filesystem::path& merges_text);

  int64_t vocabulary_size() const override { return int64_t(bytes_of_.size()); }
  /// Encodes like GPT-2's own encoder with all special tokens disallowed: "<|endoftext|>" in a text
  /// is text.
  std::vector<int64_t> encode(std::string_view text) const override;
  /// Returns the bytes of the tokens, which need not be whole characters of UTF-8.
  std::string decode(std::span<const int64_t> tokens) const override;

  /// Returns the number of the vocabulary's token with this text, such as "<|endoftext|>".
  std::optional<int64_t> token(std::string_view bytes) const;

 private:
  struct Merge {
    int32_t rank, merged;
  };
  void read_vocabulary(const std::filesystem::path& path);
  void read_merges(const std::filesystem::path& path);
  void merge_word(std::string_view word, std::vector<int64_t>& tokens) const;
  const Merge* merge_of(int32_t left, int32_t right) const;

  std::vector<std::string> bytes_of_;                  // of each token
  std::unordered_map<std::string, int32_t> token_of_;  // of bytes
  std::unordered_map<uint64_t, Merge> merges_;  // of a pair of tokens, left in the upper half
};

// The kind of a code point for regular expressions: \p{L}, \p{N} and \s. Used to split text into
// words.

bool is_letter(char32_t value);
bool is_number(char32_t value);
bool is_space(char32_t value);

}  // namespace halftone::data
