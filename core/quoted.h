// Makes text from outside (names in files, cells, strings in a checkpoint) safe for messages and
// terminals. No other file decides which characters are shown and which are escaped.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace halftone {

/// Returns the text with everything escaped that a terminal would act on: control characters ("\n",
/// "\x1b",
/// "\u0085"), characters that turn the direction of writing ("\u202e"),
/// and bytes that are not UTF-8 ("\xff"). A backslash is not escaped, so a
/// second call changes nothing.
std::string printable(std::string_view text);

/// Returns the first `most` bytes of a text, cut between characters, with "..." if the text is
/// longer; printable.
std::string shortened(std::string_view text, std::size_t most);
/// Returns shortened(text, most) in quotes.
std::string in_quotes(std::string_view text, std::size_t most = 80);

/// Returns "a, b, c", each printable and shortened; after the first `most`: "and 89,980 more".
std::string listed(std::span<const std::string> names, std::size_t most = 20);

}  // namespace halftone
