// CIFAR-10 batches are accepted exactly if the length is a number of records and every label is
// valid; then pixels and labels are those of the file. The five training files are links to the
// same bytes.
#include "fuzz.h"

#include <numeric>

#include <halftone/data/sets.h>

namespace halftone::fuzz {

// Four records, and five times two records, are far below these limits.
const Limits limits{.longest_input = 4 * 3073, .allocation_mib = 1, .resident_mib = 256};

namespace {
constexpr std::size_t pixels = 3072, record = 1 + pixels;

/// Made once: the file of the test split, and links to it as the other files.
const std::filesystem::path& test_file() {
  static const std::filesystem::path path = [] {
    const std::filesystem::path file = scratch_directory() / "test_batch.bin";
    for (int i = 1; i <= 5; ++i)
      std::filesystem::create_symlink(
          file, scratch_directory() / ("data_batch_" + std::to_string(i) + ".bin"));
    return file;
  }();
  return path;
}

std::optional<data::ByteImages> read(data::Split split, int64_t images_per_file) {
  return accepted<FormatError>("cifar10", [&] {
    return data::cifar10({.split = split,
                          .directory = scratch_directory().string(),
                          .mean = {0, 0, 0},
                          .std = {1, 1, 1},
                          .images_per_file = images_per_file});
  });
}

/// Requires every record of `bytes`, once or several times, in order.
void require_records(const data::ByteImages& images, std::string_view bytes, std::size_t times) {
  const std::size_t count = bytes.size() / record;
  require(images.size() == int64_t(times * count), "there are as many images as records");
  std::vector<int64_t> indices(times * count);
  std::iota(indices.begin(), indices.end(), 0);
  const data::Batch batch = images.batch(indices);
  require(batch.inputs.shape() == Shape{images.size(), 3, 32, 32}, "images are 3 x 32 x 32");
  const float* pixel = batch.inputs.data<float>();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::string_view one = bytes.substr(i % count * record, record);
    require(batch.targets.data<int64_t>()[i] == uint8_t(one[0]), "labels are the file's");
    for (std::size_t k = 1; k < record; ++k)
      require(*pixel++ == float(uint8_t(one[k])) / 255.0f, "pixels are the file's");
  }
}
}  // namespace

void check(std::string_view bytes) {
  write_file(test_file(), bytes);
  bool labels = true;
  for (std::size_t at = 0; at < bytes.size(); at += record) labels &= uint8_t(bytes[at]) <= 9;
  const bool whole = !bytes.empty() && bytes.size() % record == 0;

  const std::optional<data::ByteImages> test = read(data::Split::test, 0);
  require(peak_tensor_bytes() <= int64_t(bytes.size() + 8 * (bytes.size() / record)),
          "pixels take what they take in the file, and labels 8 bytes");
  require(test.has_value() == (whole && labels), "a file is read if all of its records are");
  const std::optional<data::ByteImages> train = read(data::Split::train, 2);
  require(train.has_value() == (bytes.size() == 2 * record && labels),
          "each file has the number of images that was asked for");
  if (test) require_records(*test, bytes, 1);
  if (train) require_records(*train, bytes, 5);
}

}  // namespace halftone::fuzz
