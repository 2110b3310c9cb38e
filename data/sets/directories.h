// Where a named dataset is looked for when the user names no directory.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace halftone::data {

/// The given directory if there is one; else $HALFTONE_DATA/name (if the variable is set), then
/// data/name here and /usr/share/datasets/name. Throws FormatError where the variable does not name
/// a directory.
std::vector<std::filesystem::path> directories_to_search(const std::string& given,
                                                         std::string_view name);
/// "a, b or c", for messages.
std::string listed(const std::vector<std::filesystem::path>& directories);

}  // namespace halftone::data
