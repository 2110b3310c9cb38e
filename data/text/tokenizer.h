// Text to tokens and back. Tokens are i64 on [0, vocabulary_size()), as an embedding needs them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace halftone::data {

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

}  // namespace halftone::data
