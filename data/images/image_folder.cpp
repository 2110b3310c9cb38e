// The order is part of the interface: sorting makes it independent of the file system.
#include <halftone/data/images/image_folder.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <halftone/core/error.h>
#include <halftone/core/files.h>

namespace halftone::data {

namespace {
namespace fs = std::filesystem;

[[noreturn]] void fail_walking(const fs::path& directory, const std::error_code& error) {
  fail<FormatError>("image_folder", "cannot list the directory: ", directory.string(), ": ",
                    error.message(), ". Check the path and its permissions.");
}

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return text;
}

std::vector<std::string> class_directories(const fs::path& root) {
  files::require_path("image_folder", root);
  std::error_code error;
  if (!fs::is_directory(root, error))
    fail<FormatError>("image_folder", "no directory ", root.string(),
                      ". Pass the directory that has one sub-directory per class.");
  std::vector<std::string> names;
  fs::directory_iterator entry(root, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored) && !hidden(*entry))
      names.push_back(entry->path().filename().string());
  }
  if (error) fail_walking(root, error);
  if (names.empty())
    fail<FormatError>(
        "image_folder", "no classes in ", root.string(),
        ": it has no sub-directories. Put the images of each class into one of its own.");
  std::ranges::sort(names);
  return names;
}

std::vector<fs::path> images_below(const fs::path& directory,
                                   const std::vector<std::string>& extensions) {
  std::vector<fs::path> images;
  std::error_code error;
  fs::recursive_directory_iterator entry(directory, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;
    if (hidden(*entry)) entry.disable_recursion_pending();
    else if (!entry->is_directory(ignored) &&
             std::ranges::find(extensions, lower(entry->path().extension().string())) !=
                 extensions.end())
      images.push_back(entry->path());
  }
  if (error) fail_walking(directory, error);
  std::ranges::sort(images, {}, [](const fs::path& path) {
    return std::pair(path.parent_path().string(), path.filename().string());
  });
  return images;
}
}  // namespace

namespace {
/// Refuses a directory whose classes would all be parts of a dataset: it is one level too high.
void refuse_parts(const fs::path& directory, const std::vector<std::string>& classes) {
  constexpr std::array<std::string_view, 9> parts{
      "train", "training", "val", "valid", "validation", "test", "testing", "eval", "dev"};
  for (const std::string& name : classes) {
    if (std::ranges::find(parts, lower(name)) == parts.end()) return;
    std::error_code error;
    bool any_directory = false;
    for (fs::directory_iterator entry(directory / name, error);
         !error && entry != fs::directory_iterator(); entry.increment(error)) {
      std::error_code ignored;
      if (hidden(*entry)) continue;
      if (!entry->is_directory(ignored)) return;
      any_directory = true;
    }
    if (error || !any_directory) return;
  }
  fail<FormatError>("image_folder", "the classes in ", directory.string(), " would be ",
                    listed(classes), ", which are parts of a dataset. Pass one of them, such as ",
                    printable((directory / classes.front()).string()), '.');
}
}  // namespace

ImageFiles image_folder(const fs::path& directory, const ImageFolderOptions& options) {
  std::vector<std::string> extensions;
  for (const std::string& extension : options.extensions) extensions.push_back(lower(extension));
  const std::vector<std::string> class_names = class_directories(directory);
  refuse_parts(directory, class_names);
  std::vector<LabelledFile> files;
  for (std::size_t label = 0; label < class_names.size(); ++label) {
    const fs::path of_class = directory / class_names[label];
    const std::vector<fs::path> images = images_below(of_class, extensions);
    if (images.empty())
      fail<FormatError>("image_folder", "a class without images: ", printable(of_class.string()),
                        " has no file with one of the extensions. Remove it, or name them in "
                        "ImageFolderOptions::extensions.");
    for (const fs::path& image : images) files.push_back({image.string(), int64_t(label)});
  }
  return {std::move(files),
          class_names,
          {.transform = options.transform, .image = options.image, .broken = options.broken}};
}

}  // namespace halftone::data
