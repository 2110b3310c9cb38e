// A line of a list is "Name CLASS-ID SPECIES BREED-ID"; lines that begin with # are comments.
#include <halftone/data/sets.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <utility>

#include <halftone/core/error.h>
#include <halftone/data/sets/directories.h>
#include <halftone/data/text/text.h>

namespace halftone::data {

namespace {
namespace fs = std::filesystem;
constexpr int classes = 37;
constexpr int64_t largest_list = int64_t(16) << 20;

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr std::string_view blanks = " \t\r";
  for (std::size_t at = 0; (at = line.find_first_not_of(blanks, at)) != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(blanks, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

std::optional<int> number_in(std::string_view word) {
  int number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

/// Turns "american_bulldog_12" into "American Bulldog"; nothing without a number at the end.
std::optional<std::string> class_name_of(std::string_view image) {
  const std::size_t last = image.rfind('_');
  if (last == std::string_view::npos || last == 0 || !number_in(image.substr(last + 1)))
    return std::nullopt;
  std::string name(image.substr(0, last));
  bool start = true;
  for (char& c : name) {
    if (c == '_') c = ' ';
    if (start && c >= 'a' && c <= 'z') c = char(c - 'a' + 'A');
    start = c == ' ';
  }
  return name;
}

struct List {
  std::vector<LabelledFile> files;
  std::vector<std::string> class_names = std::vector<std::string>(classes);
};

List read_list(const fs::path& path, const fs::path& images) {
  const std::string text = read_text(path, largest_list);
  List list;
  std::string_view left = text;
  for (int64_t line_number = 1; !left.empty(); ++line_number) {
    const std::string_view line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(line.size() + 1, left.size()));
    const std::vector<std::string_view> words = words_of(line);
    if (words.empty() || words[0].starts_with('#')) continue;

    const auto fail_line = [&](const auto&... what) {
      fail<FormatError>("oxford_pets", "wrong line: ", path.string(), ":", line_number, " ",
                        what...,
                        ". Lines are \"Name CLASS-ID SPECIES BREED-ID\"; fetch the file again.");
    };
    if (words.size() != 4) fail_line("has ", words.size(), " words");
    const std::string name(words[0]);
    if (name.find('/') != std::string::npos || name.find('\0') != std::string::npos)
      fail_line("names an image elsewhere");
    const std::optional<int> label = number_in(words[1]);
    if (!label || *label < 1 || *label > classes)
      fail_line("has the class ", shortened(words[1], 40), ", classes are 1 to ", classes);
    const std::optional<std::string> class_name = class_name_of(name);
    if (!class_name)
      fail_line("has the name ", shortened(name, 40), " without a breed and a number");
    std::string& known = list.class_names[std::size_t(*label - 1)];
    if (known.empty()) known = *class_name;
    if (known != *class_name)
      fail_line("calls class ", *label, " ", shortened(*class_name, 40), ", an earlier line ",
                shortened(known, 40));
    list.files.push_back({(images / (name + ".jpg")).string(), *label - 1});
  }
  if (list.files.empty())
    fail<FormatError>("oxford_pets", "no images in the list: ", path.string(),
                      " has no line with one. Fetch the file again.");
  for (std::size_t i = 0; i < list.class_names.size(); ++i)
    if (list.class_names[i].empty()) list.class_names[i] = "class " + std::to_string(i + 1);
  return list;
}
}  // namespace

ImageFiles oxford_pets(const OxfordPetsOptions& options) {
  const std::string name = options.split == Split::train ? "trainval.txt" : "test.txt";
  const std::vector<fs::path> directories =
      directories_to_search(options.directory, "oxford-iiit-pet");
  std::error_code ignored;
  for (const fs::path& directory : directories) {
    if (!fs::exists(directory / "annotations" / name, ignored)) continue;
    if (!fs::is_directory(directory / "images", ignored))
      fail<FormatError>("oxford_pets", "no directory images in ", directory.string(),
                        ". Unpack images.tar.gz next to annotations.");
    List list = read_list(directory / "annotations" / name, directory / "images");
    return {std::move(list.files),
            std::move(list.class_names),
            {.transform = options.transform, .image = options.image, .broken = options.broken}};
  }
  fail<FormatError>("oxford_pets", "no file annotations/", name, " in ", listed(directories),
                    ". Unpack images.tar.gz and annotations.tar.gz from "
                    "https://www.robots.ox.ac.uk/~vgg/data/pets/ there, or pass the directory.");
}

}  // namespace halftone::data
