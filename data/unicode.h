// Characters of text: UTF-8, the kinds that regular expressions know, and the normal form C.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

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

// The kind of a code point for regular expressions: \p{L}, \p{N} and \s. Used to split text into
// words.

bool is_letter(char32_t value);
bool is_number(char32_t value);
bool is_space(char32_t value);

// The normal form C: accents and letters as one character where there is one (UAX 15).

/// Returns the text in the form C. Bytes that are not UTF-8 stay.
std::string nfc(std::string_view text);

/// The one or two characters to which a character is canonically equivalent, by one step; second is
/// 0 if it is one. {0, 0}: none, or a syllable of Hangul, which nfc() takes apart by a formula.
struct CharacterParts {
  char32_t first = 0, second = 0;
};
CharacterParts canonical_parts(char32_t value);
/// Returns the character into which the form C composes two characters. 0: none, or a syllable of
/// Hangul, which nfc() composes by a formula.
char32_t canonical_composition(char32_t first, char32_t second);
/// Returns the class of a mark, by which the marks of a letter are ordered; 0: it is not a mark.
int combining_class(char32_t value);

}  // namespace halftone::data
