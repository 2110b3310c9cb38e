// Splits text into the words within which byte pairs are merged: GPT-2's regular expression
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// by hand, with the whole of Unicode 14 for \p{L}, \p{N} and \s.
#pragma once

#include <string_view>

namespace halftone::data {

/// Returns the first word of a text that is not empty. Words follow each other without gaps. A byte
/// that is not UTF-8 counts as one character other than a letter, number or space.
std::string_view first_word(std::string_view text);

}  // namespace halftone::data
