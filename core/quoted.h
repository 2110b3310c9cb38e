// Text from outside (names in files, cells, what a checkpoint says), as it may stand in a message
// and on a terminal: the one place that decides what is shown and what is spelled.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace halftone {

/// The same text, but what a terminal would obey is spelled: control characters ("\n", "\x1b",
/// "\u0085"), characters that turn the direction of writing ("\u202e"),
/// and bytes that are not UTF-8 ("\xff"). A backslash stays as it is, so that printing twice is
/// printing once.
std::string printable(std::string_view text);

/// The beginning of a text, at most so many bytes of it and no half of a character, with "..."
/// where something was left out; printable.
std::string shortened(std::string_view text, std::size_t most);
/// The same in quotes.
std::string in_quotes(std::string_view text, std::size_t most = 80);

/// "a, b, c", each of them printable and shortened; of many the first `most`, "and 89,980 more".
std::string listed(std::span<const std::string> names, std::size_t most = 20);

}  // namespace halftone
