// Errors for names that do not exist, with the nearest known name.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace halftone {

/// Returns the end of such a message: "Did you mean "nearest"?", or "Known: a, b." if none is near.
std::string suggestion(std::string_view given, std::span<const std::string_view> known);
/// Throws UsageError: [where] there is no `kind` named "given". Did you mean "nearest"? If no name
/// is near, all known names are listed.
[[noreturn]] void fail_unknown_name(std::string_view where, std::string_view kind,
                                    std::string_view given,
                                    std::span<const std::string_view> known);

}  // namespace halftone
