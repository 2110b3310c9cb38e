// fashion_mnist: small files of the same form, the messages for wrong ones, and the real data if it
// is installed.
#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

#include <halftone/core/memory.h>
#include <halftone/data/sets.h>

#include "../support.h"

namespace halftone::test::fashion_mnist_test {

using data::ByteImages, data::fashion_mnist, data::Split;

namespace {
/// An IDX file of these sizes (each below 256), all bytes equal.
std::string idx(std::initializer_list<int> sizes, char value = 0) {
  std::string text{0, 0, 8, char(sizes.size())};
  std::size_t total = 1;
  for (const int size : sizes) {
    text += std::string(3, '\0') + char(size);
    total *= std::size_t(size);
  }
  return text + std::string(total, value);
}

std::string message_for(const std::string& images, const std::string& labels) {
  const TemporaryDirectory directory;
  write_file(directory / "t10k-images-idx3-ubyte", images);
  write_file(directory / "t10k-labels-idx1-ubyte", labels);
  return message_of<FormatError>(
      [&] { fashion_mnist({.split = Split::test, .directory = directory.path().string()}); });
}
}  // namespace

TEST_CASE("fashion_mnist reads the files of one directory") {
  const TemporaryDirectory directory;
  write_file(directory / "train-images-idx3-ubyte.gz", idx({3, 28, 28}, char(255)));
  write_file(directory / "train-labels-idx1-ubyte", idx({3}, 9));
  const MemoryReport before = memory_report();
  const ByteImages dataset =
      fashion_mnist({.directory = directory.path().string(), .mean = 0.5, .std = 0.5});
  // Bytes, not floats, and labels as i64.
  CHECK(memory_report().now_of(MemoryUse::input) - before.now_of(MemoryUse::input) ==
        3 * 28 * 28 + 3 * 8);
  CHECK(dataset.size() == 3);
  CHECK(dataset.class_names().size() == 10);
  CHECK(dataset.class_names()[9] == "Ankle boot");
  const std::vector<int64_t> indices{2};
  const auto [images, labels] = dataset.batch(indices);
  CHECK(images.shape() == Shape{1, 1, 28, 28});
  CHECK(images.to_vector<float>() == std::vector<float>(28 * 28, 1.0f));
  CHECK(labels.to_vector<int64_t>() == std::vector<int64_t>{9});
}

TEST_CASE("fashion_mnist says what to install") {
  const TemporaryDirectory directory;
  const std::string where = directory.path().string();
  CHECK(message_of<FormatError>([&] { fashion_mnist({.directory = where}); }) ==
        "[fashion_mnist] no file train-images-idx3-ubyte.gz in " + where +
            ". Install the Debian package dataset-fashion-mnist, or pass --data DIR.");
  write_file(directory / "t10k-images-idx3-ubyte", idx({1, 28, 28}));
  CHECK(message_of<FormatError>([&] {
          fashion_mnist({.split = Split::test, .directory = where});
        }) == "[fashion_mnist] no file t10k-labels-idx1-ubyte.gz in " + where +
                  ". Install the Debian package dataset-fashion-mnist, or pass --data DIR.");
}

TEST_CASE("fashion_mnist cross-checks its files") {
  CHECK(contains(message_for(idx({2, 27, 28}), idx({2})),
                 "holds [2, 27, 28] u8, it must hold [n, 28, 28]"));
  CHECK(contains(message_for(idx({2}), idx({2})), "wrong images"));
  CHECK(contains(message_for(idx({2, 28, 28}), idx({3})), "images and labels differ in number"));
  CHECK(contains(message_for(idx({2, 28, 28}), idx({2, 1})), "images and labels differ in number"));
  CHECK(contains(
      message_for(idx({2, 28, 28}), idx({2}, 10)),
      "gives sample 0 the label 10, labels are 0 to 9. Check that this is the right file."));
}

TEST_CASE("fashion_mnist finds the real data through HALFTONE_DATA or in Debian's folder") {
  ByteImages* loaded = nullptr;
  std::unique_ptr<ByteImages> dataset;
  try {
    dataset = std::make_unique<ByteImages>(fashion_mnist({.split = Split::test}));
    loaded = dataset.get();
  } catch (const FormatError& error) { MESSAGE("skipped: " << error.what()); }
  if (!loaded) return;
  REQUIRE(loaded->size() == 10000);
  std::vector<int64_t> all(10000);
  std::iota(all.begin(), all.end(), 0);
  const auto [images, labels] = loaded->batch(all);
  std::vector<int> per_class(10);
  for (const int64_t label : labels.to_vector<int64_t>()) ++per_class[std::size_t(label)];
  CHECK(per_class == std::vector<int>(10, 1000));
  double sum = 0, squares = 0;
  for (const float value : images.to_vector<float>())
    sum += value, squares += double(value) * value;
  const double n = double(images.numel()), mean = sum / n;
  CHECK(std::abs(mean) < 0.02);  // the constants are those of the training split
  CHECK(std::abs(std::sqrt(squares / n - mean * mean) - 1) < 0.02);
}

}  // namespace halftone::test::fashion_mnist_test
