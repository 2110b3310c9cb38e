// The files hold planes, as ByteImages does, so the reader only copies.
#include <halftone/data/sets/cifar10.h>

#include <algorithm>
#include <filesystem>

#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/data/file_bytes.h>
#include <halftone/data/sets/directories.h>

namespace halftone::data {

namespace {
namespace fs = std::filesystem;
constexpr int64_t pixel_bytes = 3 * 32 * 32, record_bytes = 1 + pixel_bytes;

std::vector<std::string> names_of(Split split) {
  if (split == Split::test) return {"test_batch.bin"};
  std::vector<std::string> names;
  for (int i = 1; i <= 5; ++i) names.push_back("data_batch_" + std::to_string(i) + ".bin");
  return names;
}

/// Returns the first directory that has the first file.
fs::path find_directory(const std::string& given, const std::string& name) {
  const std::vector<fs::path> directories = directories_to_search(given, "cifar10");
  std::error_code ignored;
  for (const fs::path& directory : directories)
    for (const fs::path& candidate : {directory, directory / "cifar-10-batches-bin"})
      if (fs::exists(candidate / name, ignored)) return candidate;
  fail<FormatError>("cifar10", "no file ", name, " in ", listed(directories),
                    ". Unpack cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/ "
                    "there, or pass the directory.");
}

/// Returns the bytes of one file, a whole number of records.
std::string read_records(const fs::path& path, int64_t images_per_file) {
  const int64_t limit = (images_per_file > 0 ? images_per_file : 100000) * record_bytes;
  std::string bytes = file_bytes("cifar10", path, limit);
  const auto length = int64_t(bytes.size());
  if (length == 0 || length % record_bytes != 0 || (images_per_file > 0 && length != limit))
    fail<FormatError>("cifar10", "wrong length: ", path.string(), " has ", length, " bytes, ",
                      images_per_file > 0 ? "not " : "no multiple of ",
                      images_per_file > 0 ? limit : record_bytes, ". Fetch the file again.");
  for (int64_t i = 0; i < length / record_bytes; ++i)
    if (const int label = uint8_t(bytes[std::size_t(i * record_bytes)]); label > 9)
      fail<FormatError>("cifar10", "label out of range: ", path.string(), " gives image ", i,
                        " the label ", label,
                        ", labels are 0 to 9. Check that this is the binary version.");
  return bytes;
}
}  // namespace

ByteImages cifar10(const Cifar10Options& options) {
  const MemoryScope scope(MemoryUse::input);
  const std::vector<std::string> names = names_of(options.split);
  const fs::path directory = find_directory(options.directory, names.front());
  std::vector<std::string> files;
  int64_t count = 0;
  for (const std::string& name : names) {
    files.push_back(read_records(directory / name, options.images_per_file));
    count += int64_t(files.back().size()) / record_bytes;
  }

  const Tensor images = empty({count, 3, 32, 32}, u8), labels = empty({count}, i64);
  uint8_t* pixel = images.data<uint8_t>();
  int64_t* label = labels.data<int64_t>();
  for (const std::string& file : files)
    for (std::size_t at = 0; at < file.size(); at += std::size_t(record_bytes)) {
      *label++ = uint8_t(file[at]);
      pixel =
          std::copy_n(reinterpret_cast<const uint8_t*>(file.data()) + at + 1, pixel_bytes, pixel);
    }
  return ByteImages(images, labels,
                    {.mean = options.mean,
                     .std = options.std,
                     .class_names = {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog",
                                     "horse", "ship", "truck"},
                     .transform = options.transform});
}

}  // namespace halftone::data
