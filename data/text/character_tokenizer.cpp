// A sorted set of code points, and its inverse.
#include <halftone/data/text/tokenizer.h>

#include <iomanip>
#include <set>
#include <sstream>

#include <halftone/core/error.h>
#include <halftone/core/memory.h>
#include <halftone/data/text/utf8.h>

namespace halftone::data {

namespace {
constexpr std::string_view characters_op = "CharacterTokenizer";

/// Returns "'x' (U+0078)".
std::string named(char32_t character) {
  std::string quoted;
  append_utf8(quoted, character);
  PlainText text;
  if (character >= 0x20 && character != 0x7f) text << '\'' << quoted << "' (";
  text << "U+" << std::hex << std::uppercase << std::setfill('0') << std::setw(4)
       << uint32_t(character);
  if (character >= 0x20 && character != 0x7f) text << ')';
  return text.str();
}
}  // namespace

CharacterTokenizer::CharacterTokenizer(std::string_view text) {
  or_no_memory(characters_op, int64_t(text.size()), [&] {
    std::set<char32_t> characters;
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint character = code_point_at(text, at);
      if (character.length == 0)
        fail<FormatError>(characters_op, "the text is not UTF-8: byte ", at,
                          " begins no character. Convert the text, or use BytePairTokenizer.");
      characters.insert(character.value);
      at += character.length;
    }
    characters_.assign(characters.begin(), characters.end());
    for (std::size_t i = 0; i < characters_.size(); ++i) token_of_[characters_[i]] = int64_t(i);
  });
}

std::vector<int64_t> CharacterTokenizer::encode(std::string_view text) const {
  return or_no_memory(characters_op, int64_t(text.size() * sizeof(int64_t)), [&] {
    std::vector<int64_t> tokens;
    tokens.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
      const CodePoint character = code_point_at(text, at);
      if (character.length == 0)
        fail<FormatError>(characters_op, "the text is not UTF-8: byte ", at,
                          " begins no character. Convert the text, or use BytePairTokenizer.");
      const auto found = token_of_.find(character.value);
      if (found == token_of_.end())
        fail<UsageError>(
            characters_op, "unknown character: ", named(character.value), " at byte ", at,
            " is none of the ", characters_.size(),
            " characters of the vocabulary. Build the vocabulary from all of the text.");
      tokens.push_back(found->second);
      at += character.length;
    }
    return tokens;
  });
}

std::string CharacterTokenizer::decode(std::span<const int64_t> tokens) const {
  return or_no_memory(characters_op, int64_t(tokens.size_bytes()), [&] {
    std::string text;
    for (const int64_t token : tokens) {
      if (token < 0 || token >= vocabulary_size())
        fail<UsageError>(characters_op, "there is no token ", token, ": the vocabulary has ",
                         vocabulary_size(), ". Pass tokens from 0 to vocabulary_size() - 1.");
      append_utf8(text, characters_[std::size_t(token)]);
    }
    return text;
  });
}

std::string CharacterTokenizer::vocabulary() const {
  std::string text;
  for (const char32_t character : characters_) append_utf8(text, character);
  return text;
}

}  // namespace halftone::data
