// Text of a file from outside, as it may stand in a message.
#pragma once

#include <halftone/core/quoted.h>

namespace halftone::data {

/// In quotes, at most 40 bytes of it.
inline std::string shown(std::string_view text) { return in_quotes(text, 40); }

}  // namespace halftone::data
