// A whole page: what is around it and how it looks. No scripts, and nothing that is fetched.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace halftone::lab::html {

/// <p>; the text is plain.
std::string paragraph(std::string_view text);
/// Returns drawings side by side as far as there is room.
std::string figures(const std::vector<std::string>& drawings);
/// The page; the title is plain, the body markup. It follows the reader's light or dark scheme,
/// fits narrow windows, and can be printed.
std::string document(std::string_view title, std::string_view body);

}  // namespace halftone::lab::html
