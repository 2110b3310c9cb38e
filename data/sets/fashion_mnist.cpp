// Finds, reads and cross-checks the two files of a split. The checks are on content (sizes, counts,
// labels), not on checksums: Debian compressed the files again, so they differ from upstream's
// bytes.
#include <halftone/data/sets/fashion_mnist.h>

#include <filesystem>
#include <optional>

#include <halftone/core/factory.h>
#include <halftone/data/sets/directories.h>
#include <halftone/data/sets/idx.h>

namespace halftone::data {

namespace {
namespace fs = std::filesystem;

std::optional<fs::path> file_in(const fs::path& directory, const std::string& name) {
  std::error_code ignored;
  for (const char* suffix : {".gz", ""})
    if (const fs::path path = directory / (name + suffix); fs::exists(path, ignored)) return path;
  return std::nullopt;
}

[[noreturn]] void fail_missing(const std::string& name, const std::vector<fs::path>& directories) {
  fail<FormatError>("fashion_mnist", "no file ", name, ".gz in ", listed(directories),
                    ". Install the Debian package dataset-fashion-mnist, or pass --data DIR.");
}

struct Files {
  fs::path images, labels;
};

/// Returns both files from one directory: the first that has the images.
Files find_files(Split split, const std::vector<fs::path>& directories) {
  const std::string prefix = split == Split::train ? "train" : "t10k";
  const std::string images_name = prefix + "-images-idx3-ubyte",
                    labels_name = prefix + "-labels-idx1-ubyte";
  for (const fs::path& directory : directories) {
    const std::optional<fs::path> images = file_in(directory, images_name);
    if (!images) continue;
    const std::optional<fs::path> labels = file_in(directory, labels_name);
    if (!labels) fail_missing(labels_name, {directory});
    return {*images, *labels};
  }
  fail_missing(images_name, directories);
}

void check_content(const Tensor& images, const Tensor& labels, const Files& files) {
  if (images.rank() != 3 || images.size(1) != 28 || images.size(2) != 28)
    fail<FormatError>("fashion_mnist", "wrong images: ", files.images.string(), " holds ",
                      described(images),
                      ", it must hold [n, 28, 28]. Check that this is the right file.");
  if (labels.rank() != 1 || labels.size(0) != images.size(0))
    fail<FormatError>("fashion_mnist",
                      "images and labels differ in number: ", files.images.string(), " holds ",
                      described(images), ", ", files.labels.string(), " holds ", described(labels),
                      ". Check that they belong together.");
  const uint8_t* label = labels.data<uint8_t>();
  for (int64_t i = 0; i < labels.size(0); ++i)
    if (label[i] >= 10)
      fail<FormatError>("fashion_mnist", "label out of range: ", files.labels.string(),
                        " gives sample ", i, " the label ", int(label[i]),
                        ", labels are 0 to 9. Check that this is the right file.");
}
}  // namespace

ByteImages fashion_mnist(const FashionMnistOptions& options) {
  const MemoryScope scope(MemoryUse::input);
  const Files files =
      find_files(options.split, directories_to_search(options.directory, "fashion-mnist"));
  const Tensor bytes = read_idx(files.images), byte_labels = read_idx(files.labels);
  check_content(bytes, byte_labels, files);

  const int64_t count = bytes.size(0);
  const Shape shape{count, 1, 28, 28};
  const Tensor labels = empty({count}, i64);
  for (int64_t i = 0; i < count; ++i) labels.data<int64_t>()[i] = byte_labels.data<uint8_t>()[i];
  return ByteImages(bytes.view_as(shape, contiguous_strides(shape), 0), labels,
                    {.mean = {options.mean},
                     .std = {options.std},
                     .class_names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                                     "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"},
                     .transform = options.transform});
}

}  // namespace halftone::data
