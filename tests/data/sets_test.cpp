// oxford_pets and cifar10: small files in the real layouts, every way in which they can be wrong,
// and transforms of images that are kept as bytes.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>

#include <zlib.h>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "../support.h"
#include "image_fixtures.h"

namespace halftone::test::labeled_sets_test {

using namespace halftone::data;
namespace fs = std::filesystem;

namespace {
class Pets {
 public:
  explicit Pets(std::string_view list) {
    fs::create_directories(root_ / "images");
    fs::create_directories(root_ / "annotations");
    write_file(root_ / "annotations" / "trainval.txt", list);
  }
  ImageFiles read() const { return oxford_pets({.directory = root_.path().string()}); }
  std::string message() const { return MESSAGE_OF(FormatError, read()); }
  const fs::path& path() const { return root_.path(); }

 private:
  TemporaryDirectory root_;
};

/// Records whose pixels are all `pixel`.
std::string records(const std::vector<int>& labels, char pixel = 7) {
  std::string bytes;
  for (const int label : labels) bytes += char(label) + std::string(3072, pixel);
  return bytes;
}

void write_cifar(const fs::path& directory, const std::vector<int>& labels) {
  fs::create_directories(directory);
  for (int i = 1; i <= 5; ++i)
    write_file(directory / ("data_batch_" + std::to_string(i) + ".bin"), records(labels, char(i)));
  write_file(directory / "test_batch.bin", records({9}));
}
}  // namespace

TEST_CASE("oxford_pets reads the published lists, also with a byte order mark and CRLF") {
  const std::string plain =
      "#Image CLASS-ID SPECIES BREED ID\nAbyssinian_100 1 1 1\namerican_bulldog_5 2 2 1\n"
      "\nAbyssinian_7 1 1 1\nyorkshire_terrier_9 37 2 25";
  std::string windows = "\xef\xbb\xbf";
  for (const char c : plain) windows += c == '\n' ? std::string("\r\n") : std::string(1, c);
  for (const std::string& list : {plain, windows}) {
    const Pets pets(list);
    const ImageFiles dataset = pets.read();
    REQUIRE(dataset.size() == 4);
    CHECK(dataset.class_names().size() == 37);
    CHECK(dataset.class_names()[0] == "Abyssinian");
    CHECK(dataset.class_names()[1] == "American Bulldog");
    CHECK(dataset.class_names()[36] == "Yorkshire Terrier");
    CHECK(dataset.class_names()[2] == "class 3");
    CHECK(dataset.files()[1].path == (pets.path() / "images" / "american_bulldog_5.jpg").string());
    CHECK(dataset.files()[1].label == 1);
    CHECK(dataset.files()[3].label == 36);
    write_file(pets.path() / "images" / "Abyssinian_100.jpg", read_file(image_fixture("half.jpg")));
    const int64_t first = 0, second = 1;
    CHECK(dataset.batch({&first, 1}).inputs.shape() == Shape{1, 3, 12, 17});
    CHECK(contains(MESSAGE_OF(FormatError, dataset.batch({&second, 1})),
                   "no such file: " + dataset.files()[1].path));
  }
}

TEST_CASE("oxford_pets names the line that it cannot read") {
  const auto message_for = [](const std::string& line) {
    return Pets("# comment\n" + line + "\n").message();
  };
  const Pets pets("# comment\nAbyssinian_1 1 1\n");
  CHECK(pets.message() ==
        "[oxford_pets] wrong line: " + (pets.path() / "annotations" / "trainval.txt").string() +
            ":2 has 3 words. Lines are \"Name CLASS-ID SPECIES BREED-ID\"; fetch "
            "the file again.");
  CHECK(contains(message_for("Abyssinian_1 0 1 1"), ":2 has the class 0, classes are 1 to 37"));
  CHECK(contains(message_for("Abyssinian_1 38 1 1"), "has the class 38"));
  CHECK(contains(message_for("Abyssinian_1 -1 1 1"), "has the class -1"));
  CHECK(contains(message_for("Abyssinian_1 1x 1 1"), "has the class 1x"));
  CHECK(contains(message_for("Abyssinian_1 99999999999999999999 1 1"), "has the class 9999"));
  CHECK(contains(message_for("../../etc/passwd_1 1 1 1"), "names an image elsewhere"));
  CHECK(contains(message_for("Abyssinian 1 1 1"), "without a breed and a number"));
  CHECK(contains(message_for("_1 1 1 1"), "without a breed and a number"));
  CHECK(contains(message_for("Abyssinian_1 1 1 1\nBengal_1 1 1 1"),
                 ":3 calls class 1 Bengal, an earlier line Abyssinian"));
  CHECK(contains(message_for(""), "no images in the list"));
  CHECK(contains(message_for(std::string(1000, '\0')), "has 1 words"));
}

TEST_CASE("oxford_pets survives random damage of its list") {
  std::string list;
  for (int i = 1; i <= 37; ++i)
    list += "breed" + std::to_string(i) + "_1 " + std::to_string(i) + " 1 1\n";
  std::mt19937 random(3);
  const Pets pets(list);
  int refused = 0;
  for (int i = 0; i < 100; ++i) {
    write_file(pets.path() / "annotations" / "trainval.txt", mutated(list, random));
    refused += !pets.message().empty();
  }
  CHECK(refused > 10);
}

TEST_CASE("oxford_pets says what to unpack") {
  const TemporaryDirectory root;
  const std::string name = root.path().string();
  CHECK(MESSAGE_OF(FormatError, oxford_pets({.directory = name})) ==
        "[oxford_pets] no file annotations/trainval.txt in " + name +
            ". Unpack images.tar.gz and annotations.tar.gz from "
            "https://www.robots.ox.ac.uk/~vgg/data/pets/ there, or pass the directory.");
  fs::create_directories(root / "annotations");
  write_file(root / "annotations" / "test.txt", "Abyssinian_1 1 1 1\n");
  CHECK(MESSAGE_OF(FormatError, oxford_pets({.split = Split::test, .directory = name})) ==
        "[oxford_pets] no directory images in " + name +
            ". Unpack images.tar.gz next to annotations.");
}

TEST_CASE("cifar10 reads five files, or one") {
  const TemporaryDirectory root;
  write_cifar(root / "cifar-10-batches-bin", {0, 3, 9});
  const ByteImages dataset = cifar10({.directory = root.path().string(), .images_per_file = 3});
  CHECK(dataset.size() == 15);
  CHECK(dataset.images().shape() == Shape{15, 3, 32, 32});
  CHECK(dataset.class_names()[9] == "truck");
  const int64_t last = 14;
  CHECK(dataset.labels().data<int64_t>()[last] == 9);
  CHECK(dataset.images().data<uint8_t>()[last * 3072] == 5);
  const Tensor x = dataset.batch({&last, 1}).inputs;
  CHECK(x.at({0, 2, 31, 31}) == (5 / 255.0f - 0.4465f) / 0.2616f);
  CHECK(cifar10({.split = Split::test, .directory = root.path().string(), .images_per_file = 0})
            .size() == 1);
}

TEST_CASE("cifar10 checks every length and label") {
  const TemporaryDirectory root;
  const std::string name = root.path().string();
  const auto message_for = [&](const std::string& bytes, int64_t images_per_file = 2) {
    write_file(root / "test_batch.bin", bytes);
    return MESSAGE_OF(
        FormatError,
        cifar10({.split = Split::test, .directory = name, .images_per_file = images_per_file}));
  };
  CHECK(MESSAGE_OF(FormatError, cifar10({.directory = name})) ==
        "[cifar10] no file data_batch_1.bin in " + name +
            ". Unpack cifar-10-binary.tar.gz from https://www.cs.toronto.edu/~kriz/ there, or pass "
            "the directory.");
  CHECK(message_for(records({1, 2})).empty());
  CHECK(message_for(records({1})) == "[cifar10] wrong length: " + name +
                                         "/test_batch.bin has 3073 bytes, not 6146. Fetch the file "
                                         "again.");
  CHECK(contains(message_for(records({1, 2, 3})), "too large"));
  CHECK(contains(message_for(""), "has 0 bytes"));
  CHECK(contains(message_for("", 0), "has 0 bytes, no multiple of 3073"));
  CHECK(contains(message_for(records({1}) + "x", 0), "has 3074 bytes, no multiple of 3073"));
  CHECK(message_for(records({1, 10})) ==
        "[cifar10] label out of range: " + name +
            "/test_batch.bin gives image 1 the label 10, labels are 0 to 9. Check that this is the "
            "binary version.");
  CHECK(contains(message_for(records({-1, 1})), "the label 255"));
  write_cifar(root.path(), {1, 2});
  fs::remove(root / "data_batch_4.bin");
  CHECK(contains(MESSAGE_OF(FormatError, cifar10({.directory = name, .images_per_file = 2})),
                 "[cifar10] no such file: " + name + "/data_batch_4.bin"));
}

TEST_CASE("images kept as bytes can be transformed before they are normalized") {
  const TemporaryDirectory root;
  write_cifar(root.path(), {0, 1, 2, 3});
  Cifar10Options options{
      .directory = root.path().string(),
      .mean = {0, 0, 0},
      .std = {1, 1, 1},
      .transform = Compose{{RandomCrop{.size = 32, .padding = 4}, RandomHorizontalFlip{}}},
      .images_per_file = 4};
  const ByteImages dataset = cifar10(options);
  std::vector<std::vector<float>> plain, threaded;
  for (const int workers : {0, 3})
    for (int epoch = 0; epoch < 2; ++epoch) {
      DataLoader loader(dataset, {.batch_size = 6, .workers = workers, .seed = 1});
      loader.set_epoch(epoch);
      for (const auto& [x, y] : loader) {
        CHECK(x.size(1) == 3);
        (workers ? threaded : plain).push_back(x.to_vector<float>());
      }
    }
  CHECK(plain == threaded);
  CHECK(plain[0] != plain[4]);

  // A transform that does nothing changes nothing.
  options.transform = [](const Tensor& image, Generator&) { return image; };
  const std::vector<int64_t> indices{3, 0, 7};
  const Tensor same = cifar10(options).batch(indices).inputs;
  options.transform = {};
  CHECK(same.to_vector<float>() == cifar10(options).batch(indices).inputs.to_vector<float>());

  options.transform = Normalize{};
  CHECK(contains(MESSAGE_OF(DTypeError, cifar10(options).batch(indices)),
                 "[ByteImages] not an image of bytes: it is [3, 32, 32] f32"));
  options.transform = [](const Tensor&, Generator&) { return zeros({2, 2, 1}, u8); };
  CHECK(contains(MESSAGE_OF(ShapeError, cifar10(options).batch(indices)),
                 "the transform changed the number of channels: sample 3 became [2, 2, 1] u8"));
}

}  // namespace halftone::test::labeled_sets_test

// fashion_mnist: small files of the same form, the messages for wrong ones, and the real data if it
// is installed.

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
  return MESSAGE_OF(FormatError,
                    fashion_mnist({.split = Split::test, .directory = directory.path().string()}));
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
  CHECK(MESSAGE_OF(FormatError, fashion_mnist({.directory = where})) ==
        "[fashion_mnist] no file train-images-idx3-ubyte.gz in " + where +
            ". Install the Debian package dataset-fashion-mnist, or pass --data DIR.");
  write_file(directory / "t10k-images-idx3-ubyte", idx({1, 28, 28}));
  CHECK(MESSAGE_OF(FormatError, fashion_mnist({.split = Split::test, .directory = where})) ==
        "[fashion_mnist] no file t10k-labels-idx1-ubyte.gz in " + where +
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

// read_idx: good files, and every way in which a file can be wrong.

namespace halftone::test::idx_test {

using data::read_idx;

namespace {
std::string bytes_of(std::initializer_list<int> values) {
  std::string text;
  for (const int value : values) text += char(value);
  return text;
}

/// A matrix [2, 3] of 1 to 6.
std::string valid_file() {
  return bytes_of({0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6});
}

void write_gzip(const std::filesystem::path& path, const std::string& bytes) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, bytes.data(), unsigned(bytes.size()));
  gzclose(file);
}

/// The error message for a file of these bytes.
std::string message_for(const std::string& bytes) {
  const TemporaryDirectory directory;
  write_file(directory / "x.idx", bytes);
  return MESSAGE_OF(FormatError, read_idx(directory / "x.idx"));
}
}  // namespace

TEST_CASE("read_idx reads plain and compressed files") {
  const TemporaryDirectory directory;
  write_file(directory / "plain", valid_file());
  write_gzip(directory / "packed.gz", valid_file());
  for (const char* name : {"plain", "packed.gz"}) {
    const Tensor x = read_idx(directory / name);
    CHECK(x.dtype() == u8);
    CHECK(x.shape() == Shape{2, 3});
    CHECK(x.to_vector<int64_t>() == std::vector<int64_t>{1, 2, 3, 4, 5, 6});
  }
}

TEST_CASE("read_idx reads files longer than its chunks, and empty tensors") {
  const TemporaryDirectory directory;
  std::string large = bytes_of({0, 0, 8, 1, 0, 0x2f, 0xff, 0xff});  // 3 MiB - 1
  for (int i = 0; i < 0x2fffff; ++i) large += char(i * 7);
  write_gzip(directory / "large.gz", large);
  const Tensor x = read_idx(directory / "large.gz");
  REQUIRE(x.numel() == 0x2fffff);
  CHECK(std::equal(large.begin() + 8, large.end(), reinterpret_cast<const char*>(x.raw_data())));

  write_file(directory / "none", bytes_of({0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 28}));
  CHECK(read_idx(directory / "none").shape() == Shape{0, 28, 28});
}

TEST_CASE("read_idx explains what is wrong with a file") {
  const TemporaryDirectory directory;
  const std::string missing = (directory / "missing").string();
  CHECK(MESSAGE_OF(FormatError, read_idx(missing)) ==
        "[read_idx] no such file: " + missing + ". Check the path.");
  CHECK(contains(MESSAGE_OF(FormatError, read_idx(directory.path())),
                 "Is a directory. Check the path."));
  write_file(directory / "file", "x");
  CHECK(
      contains(MESSAGE_OF(FormatError, read_idx(directory / "file" / "under")), "Not a directory"));

  CHECK(contains(message_for(""), "[read_idx] the file is empty: "));
  CHECK(contains(message_for(bytes_of({0, 0, 8})),
                 "starts with 00 00 08; it must start with 00 00 08 and a rank"));
  CHECK(contains(message_for("GIF89a..."), "not an IDX file of bytes: "));
  CHECK(contains(message_for(bytes_of({1, 0, 8, 1, 0, 0, 0, 0})), "starts with 01 00 08 01"));
  CHECK(contains(message_for(bytes_of({0, 0, 13, 1, 0, 0, 0, 0})), "starts with 00 00 0d 01"));
  CHECK(contains(message_for(bytes_of({0, 0, 8, 0, 7})), "starts with 00 00 08 00"));
  CHECK(contains(message_for(bytes_of({0, 0, 8, 5, 0, 0, 0, 1})), "starts with 00 00 08 05"));
  CHECK(contains(message_for(bytes_of({0, 0, 8, 2, 0, 0, 0, 2, 0})),
                 "holds 5 of the 8 bytes of its sizes"));
  CHECK(contains(message_for(valid_file().substr(0, 16)),
                 "holds 4 of the 6 bytes that its header promises, [2, 3]. Fetch the file again."));
  CHECK(contains(
      message_for(valid_file() + "x"),
      "goes on after the 6 bytes that its header promises, [2, 3]. Fetch the file again."));
}

TEST_CASE("read_idx does not rely on the sizes in a header") {
  const std::string half = bytes_of({0x7f, 0xff, 0xff, 0xff}),
                    full = bytes_of({0xff, 0xff, 0xff, 0xff});
  const std::string two_gib = bytes_of({0, 0, 8, 1}) + half;
  CHECK(contains(message_for(two_gib + std::string(32, 'x')),
                 "of 40 bytes, cannot hold the 2147483647 bytes"));
  CHECK(contains(message_for(bytes_of({0, 0, 8, 1}) + full),
                 "promises [4294967295] bytes, the limit is 2147483648"));
  CHECK(contains(message_for(bytes_of({0, 0, 8, 4}) + full + full + full + full), "too large: "));
  CHECK(contains(message_for(bytes_of({0, 0, 8, 4, 0, 0, 0, 0}) + full + full + full),
                 "too large: "));
}

TEST_CASE("read_idx notices damaged gzip files") {
  const TemporaryDirectory directory;
  write_gzip(directory / "good.gz", valid_file());
  const std::string good = read_file(directory / "good.gz");

  CHECK(contains(message_for(good.substr(0, good.size() - 5)), "[read_idx] damaged gzip file: "));
  CHECK(contains(message_for(good.substr(0, 12)), "unexpected end of file. Fetch the file again."));
  std::string wrong_checksum = good;
  wrong_checksum[good.size() - 8] ^= 1;
  CHECK(contains(message_for(wrong_checksum), "incorrect data check. Fetch the file again."));
  std::string wrong_length = good;
  wrong_length[good.size() - 1] ^= 1;
  CHECK(contains(message_for(wrong_length), "incorrect length check. Fetch the file again."));
  std::string wrong_method = good;
  wrong_method[2] = 1;
  CHECK(contains(message_for(wrong_method), "[read_idx] "));
}

TEST_CASE("read_idx survives random damage") {
  const TemporaryDirectory directory;
  write_gzip(directory / "good.gz", valid_file());
  std::mt19937 random(1);
  int read = 0, refused = 0;
  for (const std::string& good : {valid_file(), read_file(directory / "good.gz")}) {
    for (int i = 0; i < 300; ++i) {
      write_file(directory / "fuzzed", mutated(good, random));
      try {
        (void)read_idx(directory / "fuzzed").to_vector<int64_t>();
        ++read;
      } catch (const Error&) { ++refused; }
    }
  }
  CHECK(read + refused == 600);
  CHECK(refused > 300);
}

}  // namespace halftone::test::idx_test

// Tables: valid files, refusals with their line, columns as tensors; subsets and
// splits.

namespace halftone::test::csv_test {

using data::CsvTable, data::csv_from_text, data::read_csv;

namespace {

namespace fs = std::filesystem;
using Values = std::vector<double>;
Values values(const Tensor& x) { return x.to_vector<double>(); }

TEST_CASE("a table: names, numbers, classes") {
  const TemporaryDirectory directory;
  std::ofstream(directory / "t.csv")
      << "size,color,price\r\n1.5, red ,10\n-2e1,blue,+3.25\n\n0.5, red ,.5";
  const CsvTable table = read_csv(directory / "t.csv");
  CHECK(table.rows() == 3);
  CHECK(table.columns() == std::vector<std::string>{"size", "color", "price"});
  const Tensor x = table.numbers({"price", "size"});
  CHECK(x.shape() == Shape{3, 2});
  CHECK(x.dtype() == f32);
  CHECK(values(x) == Values{10, 1.5, 3.25, -20, 0.5, 0.5});
  CHECK(table.column("size", f64).shape() == Shape{3});
  const data::Classes classes = table.classes("color");
  CHECK(values(classes.numbers) == Values{0, 1, 0});
  CHECK(classes.names == std::vector<std::string>{" red ", "blue"});
  CHECK(table.columns_without({"color"}) == std::vector<std::string>{"size", "price"});
  CHECK(table.cell(1, "color") == "blue");
}

TEST_CASE("quotes, separators, marks, no header") {
  const CsvTable table =
      csv_from_text("\xef\xbb\xbf\"a \"\"b\"\"\";\"c;\nd\"\r\n1;\"x\r\ny\"\n", {.separator = ';'});
  CHECK(table.columns() == std::vector<std::string>{"a \"b\"", "c;\nd"});
  CHECK(table.cell(0, "c;\nd") == "x\r\ny");
  const CsvTable bare = csv_from_text("1,2\n3,4", {.header = false});
  CHECK(values(bare.numbers({"0", "1"})) == Values{1, 2, 3, 4});
  CHECK(csv_from_text("").rows() == 0);
  CHECK(csv_from_text("a,b\n").rows() == 0);
  CHECK(csv_from_text("a,b\n").numbers({"a", "b"}).shape() == Shape{0, 2});
}

TEST_CASE("invalid tables, with the line of the error") {
  const auto message = [](std::string_view text) {
    return MESSAGE_OF(FormatError, csv_from_text(text));
  };
  CHECK(message("a,b\n1,2\n3\n") ==
        "[csv] the text, line 3: it has 1 cells, the first has 2. Every line must have as many.");
  CHECK(message("a,a\n") == "[csv] the text: two columns are called \"a\". Rename one.");
  CHECK(message("a\n\"1\n2") == "[csv] the text, line 2: a quote is never closed. Close it.");
  CHECK(message("a\n1\"2") ==
        "[csv] the text, line 2: a quote inside a cell that does not begin with one. Quote the "
        "whole cell, "
        "and write \"\" for a quote in it.");
  CHECK(message("a\n\"1\"2") ==
        "[csv] the text, line 2: text after a closing quote. Write \"\" for a quote in a cell.");
  const CsvTable table = csv_from_text("a,b\n\n1,x\n,2\n");
  CHECK(MESSAGE_OF(FormatError, table.column("b")) ==
        "[csv] the text, line 3, column \"b\": \"x\" is not a number. Fix the file, or read the "
        "column as "
        "classes.");
  CHECK(MESSAGE_OF(FormatError, table.column("a")).starts_with("[csv] the text, line 4"));
  CHECK(MESSAGE_OF(UsageError, table.column("c")) ==
        "[csv] there is no column \"c\" in the text. Its columns are: \"a\", \"b\".");
  CHECK_THROWS_AS(table.cell(2, "a"), UsageError);
  CHECK_THROWS_AS(csv_from_text("a", {.separator = '"'}), UsageError);
  const TemporaryDirectory directory;
  CHECK_THROWS_AS(read_csv(directory / "none.csv"), FormatError);
  CHECK_THROWS_AS(read_csv(directory / "."), FormatError);
}

TEST_CASE("numbers are rounded once, to the dtype asked for") {
  // Just above the middle of two floats; as a double it is the middle, which rounds down.
  const CsvTable table = csv_from_text("x\n1.00000005960464477540\n1e-60\n-1e-400\n+16777217\n");
  const Tensor x = table.column("x");
  CHECK(x.at({0}) == 1 + 0x1p-23);
  CHECK(x.at({1}) == 0);
  CHECK(x.at({2}) == 0);
  CHECK(x.at({3}) == 16777216);
  CHECK(table.column("x", f64).at({1}) == 1e-60);
  CHECK(csv_from_text("n\n9007199254740993\n3.0\n").column("n", i64).to_vector<int64_t>() ==
        std::vector<int64_t>{9007199254740993, 3});
  const auto refused = [](const char* text, DType dtype) {
    return MESSAGE_OF(FormatError, csv_from_text(text).column("x", dtype));
  };
  CHECK(refused("x\n1\n1e39\n", f32) ==
        "[csv] the text, line 3, column \"x\": \"1e39\" cannot be a number in f32. Read the column "
        "in a wider dtype, or fix the file.");
  CHECK(refused("x\n1e39\n", f64).empty());
  for (const auto& [text, dtype] : {std::pair("x\n1e400\n", f64),
                                    {"x\n-1e400\n", f32},
                                    {"x\n1e5\n", f16},
                                    {"x\n1e39\n", bf16},
                                    {"x\n1.5\n", i64},
                                    {"x\n9223372036854775808\n", i64},
                                    {"x\n256\n", u8},
                                    {"x\nnan\n", i64}})
    CHECK(contains(refused(text, dtype), "cannot be a number in"));
  CHECK(contains(refused("x\n1e39x\n", f32), "is not a number"));
}

TEST_CASE("missing values, decimal commas and thousands") {
  const auto column = [](const char* text, const data::CsvOptions& options, DType dtype = f64) {
    return values(csv_from_text(text, options).column("x", dtype));
  };
  const Values some = column("x,y\n1,2\nNA,2\n,2\n NA ,3\n", {.missing = {"NA", ""}});
  CHECK(some[0] == 1);
  for (const std::size_t i : {1u, 2u, 3u}) CHECK(std::isnan(some[i]));
  CHECK(MESSAGE_OF(FormatError, column("x\n1\nNA\n", {.missing = {"NA"}}, i64)) ==
        "[csv] the text, line 3, column \"x\": \"NA\" is a missing value, which no integer can be. "
        "Read the column as f32, or fill the cell.");
  CHECK_THROWS_AS(column("x\nNA\n", {}), FormatError);
  const data::CsvOptions german{.separator = ';', .decimal_comma = true, .thousands = '.'};
  CHECK(column("x;y\n1,5;2\n-1.234.567,25;0\n1e3;0\n12.345;0\n,5;0\n", german) ==
        Values{1.5, -1234567.25, 1000, 12345, 0.5});
  CHECK(column("x\n\"1,234.5\"\n+1\n", {.thousands = ','}) == Values{1234.5, 1});
  CHECK(column("x\n\"1,234\"\n", {.thousands = ','}, i64) == Values{1234});
  CHECK(column("x\n\"0,5\"\n", {.decimal_comma = true}) == Values{0.5});
  for (const char* wrong : {"1.5", "1.2345", "1234.567", "1..234", ".123", "1,5,5", "1.234.56", "x",
                            "", "+-1", "1,234.567"}) {
    CAPTURE(wrong);
    const std::string text = std::string("x;y\n") + wrong + ";0\n";
    CHECK_THROWS_AS(column(text.c_str(), german), FormatError);
  }
  CHECK_THROWS_AS(column("x\n1.5\n", {.decimal_comma = true}), FormatError);
  CHECK_THROWS_AS(column("x\n", {.thousands = '.'}), UsageError);
  CHECK_THROWS_AS(column("x\n", {.decimal_comma = true, .thousands = ','}), UsageError);
  CHECK_THROWS_AS(column("x\n", {.thousands = '1'}), UsageError);
}

TEST_CASE("a table in UTF-16 is called that, and errors name the file") {
  const TemporaryDirectory directory;
  const fs::path path = directory / "t.csv";
  for (const std::string& text : {std::string("\xff\xfe"
                                              "a\0\n\0",
                                              6),
                                  std::string("\xfe\xff\0a\0\n", 6)}) {
    write_file(path, text);
    CHECK(MESSAGE_OF(FormatError, read_csv(path)) ==
          "[csv] " + path.string() + " is UTF-16. Save it as UTF-8.");
  }
  write_file(path, "a,b\n1\n");
  CHECK(contains(MESSAGE_OF(FormatError, read_csv(path)), path.string() + ", line 2: it has 1"));
}

TEST_CASE("another table's classes give equal texts equal numbers") {
  const data::Classes train = csv_from_text("pet\ncat\ndog\neel\n").classes("pet");
  const CsvTable test = csv_from_text("pet\ndog\neel\n");
  const data::Classes classes = test.classes("pet", train.names);
  CHECK(values(classes.numbers) == Values{1, 2});
  CHECK(classes.names == train.names);
  CHECK(MESSAGE_OF(FormatError, test.classes("pet", {"cat", "dog"})) ==
        "[csv] the text, line 3, column \"pet\": \"eel\" is none of the 2 classes given. Pass the "
        "names of a table that has them all.");
  CHECK_THROWS_AS(test.classes("pet", {"dog", "eel", "dog"}), UsageError);
}

TEST_CASE("a batch of several tensors; subsets and splits") {
  const data::TensorDataset three(
      {from({0.0, 1, 2, 3, 4}), from({10.0, 11, 12, 13, 14}), from({5.0, 6, 7, 8, 9})});
  data::DataLoader loader(three, {.batch_size = 2, .drop_last = true});
  for (const data::Batch& batch : loader) {
    const auto& [inputs, targets] = batch;
    REQUIRE(batch.more.size() == 1);
    CHECK(values(batch.more[0])[0] == values(inputs)[0] + 10);
    CHECK(values(targets)[0] == values(inputs)[0] + 5);
  }
  for (auto [inputs, targets] : loader) CHECK(inputs.shape() == targets.shape());
  CHECK(data::Batch::of({ones({1})}).targets.defined() == false);
  CHECK_THROWS_AS(data::Batch::of({}), UsageError);
  CHECK_THROWS_AS(data::TensorDataset({ones({2}), ones({3}), ones({2})}), ShapeError);

  const data::Subset subset(three, {4, 0});
  const std::vector<int64_t> both{0, 1};
  CHECK(values(subset.batch(both).inputs) == Values{4, 0});
  CHECK_THROWS_AS(data::Subset(three, {5}), UsageError);
  const std::vector<int64_t> third{2};
  CHECK_THROWS_AS(subset.batch(third), UsageError);
  const auto [first, rest] = data::random_split(three, 0.6, 3);
  CHECK(first.size() == 3);
  CHECK(rest.size() == 2);
  std::vector<int64_t> all{0, 1, 2};
  Values seen = values(first.batch(all).inputs);
  all.pop_back();
  for (const double v : values(rest.batch(all).inputs)) seen.push_back(v);
  std::ranges::sort(seen);
  CHECK(seen == Values{0, 1, 2, 3, 4});
  CHECK_THROWS_AS(data::random_split(three, 1.5), UsageError);

  const auto [numbers, others] = data::random_split(5, 0.6, 3);
  CHECK(values(data::Subset(three, numbers).batch(all).inputs) == values(first.batch(all).inputs));
  CHECK(others.size() == 2);
  CHECK_THROWS_AS(data::random_split(-1, 0.5), UsageError);
}

}  // namespace

}  // namespace halftone::test::csv_test
