// The kind of a code point for regular expressions: \p{L}, \p{N} and \s. Used to split text into
// words (text.h).
#pragma once

namespace halftone::data {

bool is_letter(char32_t value);
bool is_number(char32_t value);
bool is_space(char32_t value);

}  // namespace halftone::data
