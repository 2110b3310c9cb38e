// The search order: the user's directory, the environment variable, the working directory, Debian.
#include <halftone/data/sets/directories.h>

#include <halftone/core/error.h>
#include <halftone/core/files.h>

namespace halftone::data {

namespace fs = std::filesystem;

std::vector<fs::path> directories_to_search(const std::string& given, std::string_view name) {
  files::require_path(name, given);
  if (!given.empty()) return {given};
  std::vector<fs::path> directories;
  if (const char* root = environment_variable("HALFTONE_DATA")) {
    std::error_code ignored;
    if (!fs::is_directory(root, ignored))
      fail<FormatError>("HALFTONE_DATA", "no directory ", root,
                        ". Name one that exists, or unset the variable.");
    directories.push_back(fs::path(root) / name);
  }
  directories.push_back(fs::path("./data") / name);
  directories.push_back(fs::path("/usr/share/datasets") / name);
  return directories;
}

std::string listed(const std::vector<fs::path>& directories) {
  std::string text;
  for (const fs::path& directory : directories) {
    if (!text.empty()) text += &directory == &directories.back() ? " or " : ", ";
    text += directory.string();
  }
  return text;
}

}  // namespace halftone::data
