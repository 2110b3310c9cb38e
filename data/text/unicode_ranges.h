// What kind of character a code point is, as regular expressions see it: \p{L}, \p{N} and \s. For
// splitting text into words (byte_pair_words.h).
#pragma once

namespace halftone::data {

bool is_letter(char32_t value);
bool is_number(char32_t value);
bool is_space(char32_t value);

}  // namespace halftone::data
