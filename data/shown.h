// Text of a file from outside, as it may stand in a message.
#pragma once

#include <string>
#include <string_view>

namespace halftone::data {

/// In quotes, at most 40 bytes, and nothing that a terminal would obey: bytes that are not
/// printable ASCII are question marks.
inline std::string shown(std::string_view text) {
  std::string result = "\"";
  for (const char c : text.substr(0, 40)) result += c >= 0x20 && c < 0x7f ? c : '?';
  return result + (text.size() > 40 ? "...\"" : "\"");
}

}  // namespace halftone::data
