// oxford_pets and cifar10: small files in the real layouts, every way in which they can be wrong,
// and transforms of images that are kept as bytes.
#include <doctest/doctest.h>

#include <halftone/data/data_loader.h>
#include <halftone/data/sets.h>

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
  std::string message() const {
    return message_of<FormatError>([&] { read(); });
  }
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
    CHECK(contains(message_of<FormatError>([&] {
                     dataset.batch({&second, 1});
                   }),
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
  CHECK(message_of<FormatError>([&] { oxford_pets({.directory = name}); }) ==
        "[oxford_pets] no file annotations/trainval.txt in " + name +
            ". Unpack images.tar.gz and annotations.tar.gz from "
            "https://www.robots.ox.ac.uk/~vgg/data/pets/ there, or pass the directory.");
  fs::create_directories(root / "annotations");
  write_file(root / "annotations" / "test.txt", "Abyssinian_1 1 1 1\n");
  CHECK(message_of<FormatError>([&] { oxford_pets({.split = Split::test, .directory = name}); }) ==
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
    return message_of<FormatError>([&] {
      cifar10({.split = Split::test, .directory = name, .images_per_file = images_per_file});
    });
  };
  CHECK(message_of<FormatError>([&] { cifar10({.directory = name}); }) ==
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
  CHECK(
      contains(message_of<FormatError>([&] { cifar10({.directory = name, .images_per_file = 2}); }),
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
  CHECK(contains(message_of<DTypeError>([&] { cifar10(options).batch(indices); }),
                 "[ByteImages] not an image of bytes: it is [3, 32, 32] f32"));
  options.transform = [](const Tensor&, Generator&) { return zeros({2, 2, 1}, u8); };
  CHECK(contains(message_of<ShapeError>([&] { cifar10(options).batch(indices); }),
                 "the transform changed the number of channels: sample 3 became [2, 2, 1] u8"));
}

}  // namespace halftone::test::labeled_sets_test
