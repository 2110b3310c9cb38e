// Errors for names that do not exist, with the nearest one that does.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace halftone {

/// The end of such a message: "Did you mean "nearest"?", or, if nothing is near, "Known: a, b.".
std::string suggestion(std::string_view given, std::span<const std::string_view> known);
/// Throws UsageError: [where] there is no `kind` named "given". Did you mean "nearest"? If nothing
/// is near, all known names are listed.
[[noreturn]] void fail_unknown_name(std::string_view where, std::string_view kind,
                                    std::string_view given,
                                    std::span<const std::string_view> known);

}  // namespace halftone
