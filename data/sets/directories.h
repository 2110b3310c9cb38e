// Directories in which a named dataset is searched if the user names no directory.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace halftone::data {

/// Returns the given directory if it is not empty; else $HALFTONE_DATA/name (if the variable is
/// set), then data/name here and /usr/share/datasets/name. Throws FormatError if the variable does
/// not name a directory.
std::vector<std::filesystem::path> directories_to_search(const std::string& given,
                                                         std::string_view name);
/// Returns "a, b or c", for messages.
std::string listed(const std::vector<std::filesystem::path>& directories);

}  // namespace halftone::data
