// read_image and write_png: good files against Pillow, round trips, and the messages.
#include <zlib.h>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "image_fixtures.h"

namespace halftone::test::image_test {

using data::Channels, data::read_image, data::write_png;

TEST_CASE("read_image decodes what Pillow decodes") {
  const nlohmann::json& decoded = expected_images().at("decoded");
  CHECK(decoded.size() == 12);
  for (const auto& [name, described] : decoded.items()) {
    CAPTURE(name);
    const Tensor image = read_image(image_fixture(name)), expected = image_of(described);
    CHECK(image.dtype() == u8);
    REQUIRE(image.shape() == expected.shape());
    const bool exact = name.ends_with(".png");
    // Other JPEG decoders round and upsample chroma differently: near the sharp edge of such a
    // small picture that is a few levels.
    CHECK(largest_difference(image, expected) <= (exact ? 0 : 16));
  }
}

TEST_CASE("read_image also gives gray images") {
  const Tensor grey = read_image(image_fixture("grey.png"), {.channels = Channels::gray}),
               rgb = read_image(image_fixture("grey.png")),
               mixed = read_image(image_fixture("rgb.png"), {.channels = Channels::gray});
  REQUIRE(grey.shape() == Shape{12, 17, 1});
  for (int64_t y : {0, 5, 11})
    for (int64_t x : {0, 8, 16}) {
      CHECK(grey.at({y, x, 0}) == rgb.at({y, x, 0}));
      CHECK(std::abs(grey.at({y, x, 0}) - mixed.at({y, x, 0})) <= 1);
    }
  const Tensor jpeg = read_image(image_fixture("half.jpg"), {.channels = Channels::gray});
  CHECK(jpeg.shape() == Shape{12, 17, 1});
}

TEST_CASE("write_png writes what read_image reads") {
  const TemporaryDirectory directory;
  const auto path = directory / "x.png";
  const Tensor image = image_of(expected_images().at("image"));
  write_png(path, image);
  CHECK(largest_difference(read_image(path), image) == 0);

  const Tensor grey = image_of(expected_images().at("grey"));
  write_png(path, grey);
  CHECK(largest_difference(read_image(path, {.channels = Channels::gray}), grey) == 0);
  write_png(path, views::reshaped(grey, {grey.size(0), grey.size(1)}));
  CHECK(largest_difference(read_image(path, {.channels = Channels::gray}), grey) == 0);

  // A part of a larger image: other strides, and an offset.
  const Tensor part = views::slice(views::slice(image, 0, 2, 5), 1, 3, 7);
  write_png(path, part);
  CHECK(largest_difference(read_image(path), views::contiguous(part)) == 0);
}

TEST_CASE("write_png explains what it cannot write") {
  const TemporaryDirectory directory;
  CHECK(
      contains(MESSAGE_OF(FormatError, write_png(directory / "no" / "x.png", zeros({2, 2, 3}, u8))),
               "[write_png] cannot write " + (directory / "no" / "x.png").string()));
  CHECK(MESSAGE_OF(DTypeError, write_png(directory / "x.png", zeros({2, 2, 3}))) ==
        "[write_png] not an image of bytes: it is [2, 2, 3] f32. Pass u8 [height, width, "
        "channels].");
  CHECK(MESSAGE_OF(ShapeError, write_png(directory / "x.png", zeros({2, 2, 2}, u8))) ==
        "[write_png] no PNG has 2 channels: the image is [2, 2, 2] u8. Pass 1, 3 or 4 channels, "
        "last.");
  CHECK(MESSAGE_OF(ShapeError, write_png(directory / "x.png", zeros({0, 2, 3}, u8))) ==
        "[write_png] not an image: it has 3 dimensions and 0 elements. Pass u8 [height, width, "
        "channels].");
  CHECK(contains(MESSAGE_OF(ShapeError, write_png(directory / "x.png", Tensor())),
                 "it is undefined"));
}

TEST_CASE("read_image names the file that it cannot read") {
  const TemporaryDirectory directory;
  const auto path = directory / "x.png";
  const std::string name = path.string();
  CHECK(MESSAGE_OF(FormatError, read_image(path)) ==
        "[read_image] no such file: " + name + ". Check the path.");
  write_file(path, "");
  CHECK(MESSAGE_OF(FormatError, read_image(path)) ==
        "[read_image] the file is empty: " + name + ". Fetch the file again.");
  write_file(path, "GIF89a and so on");
  CHECK(MESSAGE_OF(FormatError, read_image(path)) ==
        "[read_image] not an image: " + name +
            ": it is neither JPEG nor PNG. Pass a JPEG or PNG file, whatever its extension.");
  CHECK(MESSAGE_OF(FormatError, read_image(directory.path())) ==
        "[read_image] not a file: " + directory.path().string() +
            " is a directory. Name a regular file.");
  CHECK(contains(MESSAGE_OF(FormatError, read_image("/dev/zero")),
                 "/dev/zero is a device or a pipe"));
  CHECK(contains(MESSAGE_OF(FormatError, read_image(path / "below")), "x.png/below"));
  write_file(path, read_file(image_fixture("rgb.png")));
  CHECK(MESSAGE_OF(FormatError, read_image(path, {.max_file_bytes = 100})) ==
        "[read_image] the file is too large: " + name +
            " has more than 100 bytes. Raise the limit if it is meant to be so.");
  CHECK(MESSAGE_OF(FormatError, read_image(path, {.max_pixels = 203})) ==
        "[read_image] the image is too large: " + name +
            " promises 12 x 17 pixels, the limits are 203 in all and 65535 per side. Raise "
            "max_pixels if it is meant to be so.");
  CHECK(read_image(path, {.max_pixels = 204}).numel() == 612);
}

TEST_CASE("read_image detects the format by content, not by extension") {
  const TemporaryDirectory directory;
  write_file(directory / "png.jpg", read_file(image_fixture("rgb.png")));
  CHECK(largest_difference(read_image(directory / "png.jpg"),
                           read_image(image_fixture("rgb.png"))) == 0);
}

TEST_CASE("a truncated JPEG is an error unless the caller accepts it") {
  const TemporaryDirectory directory;
  const std::string whole = read_file(image_fixture("full.jpg"));
  write_file(directory / "x.jpg", whole.substr(0, whole.size() - 60));
  CHECK(MESSAGE_OF(FormatError, read_image(directory / "x.jpg")) ==
        "[read_image] truncated image: " + (directory / "x.jpg").string() +
            ": it ends before its end marker. Fetch the file again.");
  const Tensor image = read_image(directory / "x.jpg", {.accept_truncated = true}),
               expected = read_image(image_fixture("full.jpg"));
  REQUIRE(image.shape() == expected.shape());
  CHECK(image.at({0, 0, 0}) == expected.at({0, 0, 0}));   // the start is decoded
  write_file(directory / "y.jpg", whole.substr(0, 100));  // before any pixel
  CHECK(
      contains(MESSAGE_OF(FormatError, read_image(directory / "y.jpg", {.accept_truncated = true})),
               "truncated image"));
}

TEST_CASE("images are charged to the scope of the caller, and all memory is freed") {
  const MemoryReport before = memory_report();
  {
    const MemoryScope scope(MemoryUse::input);
    const Tensor image = read_image(image_fixture("rgb.png"));
    CHECK(memory_report().now_of(MemoryUse::input) - before.now_of(MemoryUse::input) ==
          12 * 17 * 3);
  }
  CHECK(memory_report().now == before.now);
}

}  // namespace halftone::test::image_test

// image_folder and ImageFiles: order and classes, transforms that do not depend on workers, broken
// files, messages.

namespace halftone::test::image_folder_test {

using namespace halftone::data;
namespace fs = std::filesystem;

namespace {
/// An image of one color.
void write_image(const fs::path& path, int level, int64_t height = 4, int64_t width = 4) {
  fs::create_directories(path.parent_path());
  write_png(path, full({height, width, 3}, level, u8));
}

Tensor bytes_as_they_are(const Tensor& image, Generator&) { return image; }

/// The first byte of each image of an epoch, and the labels.
std::vector<std::pair<int64_t, int64_t>> epoch_of(DataLoader& loader) {
  std::vector<std::pair<int64_t, int64_t>> samples;
  for (const auto& [images, labels] : loader)
    for (int64_t i = 0; i < labels.size(0); ++i)
      samples.emplace_back(int64_t(images.at({i, 0, 0, 0})), labels.data<int64_t>()[i]);
  return samples;
}

std::vector<int64_t> all_of(const Dataset& dataset) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < dataset.size(); ++i) indices.push_back(i);
  return indices;
}
}  // namespace

TEST_CASE("image_folder numbers classes by name and finds images at any depth") {
  const TemporaryDirectory root;
  write_image(root / "dog" / "b.png", 1);
  write_image(root / "dog" / "a.PNG", 2);
  write_image(root / "dog" / "more" / "0.png", 3);
  write_image(root / "Cat" / "z.png", 4);
  write_image(root / ".cache" / "x.png", 5);
  write_image(root / "dog" / ".thumbnails" / "x.png", 6);
  write_image(root / "dog" / "._a.png", 7);
  write_image(root / "top.png", 8);
  write_file(root / "dog" / "notes.txt", "not an image");
  fs::create_directories(root / "dog" / "folder.png");

  const ImageFiles dataset = image_folder(root.path(), {.transform = bytes_as_they_are});
  CHECK(dataset.class_names() == std::vector<std::string>{"Cat", "dog"});
  CHECK(dataset.size() == 4);
  const auto [images, labels] = dataset.batch(all_of(dataset));
  CHECK(images.shape() == Shape{4, 4, 4, 3});
  CHECK(labels.to_vector<int64_t>() == std::vector<int64_t>{0, 1, 1, 1});
  std::vector<int64_t> levels;
  for (int64_t i = 0; i < 4; ++i) levels.push_back(int64_t(images.at({i, 0, 0, 0})));
  CHECK(levels == std::vector<int64_t>{4, 2, 1, 3});

  fs::remove(root / "dog" / "folder.png");
  write_image(root / "dog" / "more" / "upper.PNG", 9);
  const ImageFiles some = image_folder(root.path() / "dog", {.extensions = {".PNG"}});
  CHECK(some.class_names() == std::vector<std::string>{"more"});
  CHECK(some.size() == 2);  // extensions in either case
}

TEST_CASE("without a transform image_folder gives floats on [0, 1]") {
  const TemporaryDirectory root;
  write_image(root / "a" / "x.png", 51, 2, 3);
  const ImageFiles dataset = image_folder(root.path());
  const Tensor images = dataset.batch(all_of(dataset)).inputs;
  CHECK(images.shape() == Shape{1, 3, 2, 3});
  CHECK(images.to_vector<float>() == std::vector<float>(18, 51.0f / 255.0f));
  CHECK(dataset.batch({}).targets.shape() == Shape{0});
}

TEST_CASE("random transforms give the same epoch with any number of workers") {
  const TemporaryDirectory root;
  for (int i = 0; i < 12; ++i) {
    const fs::path path = root / (i % 2 ? "a" : "b") / (std::to_string(i) + ".png");
    fs::create_directories(path.parent_path());
    write_file(path, read_file(image_fixture("rgb.png")));
  }
  const ImageFiles dataset = image_folder(
      root.path(),
      {.transform = Compose{{RandomResizedCrop{6}, RandomHorizontalFlip{},
                             ColorJitter{.brightness = 0.5, .contrast = 0.5, .saturation = 0.5},
                             Normalize{}}}});
  std::vector<std::vector<float>> epochs[3];
  const int workers[] = {0, 1, 4};
  for (int i = 0; i < 3; ++i) {
    DataLoader loader(dataset,
                      {.batch_size = 5, .shuffle = true, .workers = workers[i], .seed = 3});
    for (int epoch = 0; epoch < 2; ++epoch)
      for (const auto& [images, labels] : loader) epochs[i].push_back(images.to_vector<float>());
  }
  CHECK(epochs[0].size() == 6);
  CHECK(epochs[0] == epochs[1]);
  CHECK(epochs[0] == epochs[2]);
  CHECK(epochs[0][0] != epochs[0][3]);
}

TEST_CASE("a broken file is an error that names it, or is replaced") {
  const TemporaryDirectory root;
  for (int i = 0; i < 8; ++i)
    write_image(root / ("class" + std::to_string(i / 4)) / (std::to_string(i) + ".png"), i);
  write_file(root / "class0" / "3.png", "not an image");
  write_file(root / "class1" / "7.png", "");
  ImageFolderOptions options{.transform = bytes_as_they_are};
  {
    DataLoader loader(image_folder(root.path(), options), {.batch_size = 2});
    int64_t seen = 0;
    const std::string message =
        MESSAGE_OF(FormatError, for (const Batch& batch
                                     : loader) seen += batch.targets.size(0));
    CHECK(contains(message, "[read_image] not an image: " + (root / "class0" / "3.png").string()));
    CHECK(seen == 2);
  }
  options.broken = BrokenFiles::replace;
  for (const int workers : {0, 1, 4}) {
    const auto dataset = std::make_shared<const ImageFiles>(image_folder(root.path(), options));
    CHECK(dataset->broken_files().empty());
    DataLoader loader(dataset, {.batch_size = 2, .workers = workers});
    CHECK(epoch_of(loader) == std::vector<std::pair<int64_t, int64_t>>{
                                  {0, 0}, {1, 0}, {2, 0}, {4, 1}, {4, 1}, {5, 1}, {6, 1}, {0, 0}});
    const std::vector<std::string> broken{(root / "class0" / "3.png").string(),
                                          (root / "class1" / "7.png").string()};
    CHECK(dataset->broken_files() == broken);
    CHECK(dataset->find_broken_files() == broken);
  }
  for (int i = 0; i < 8; ++i)
    write_file(root / ("class" + std::to_string(i / 4)) / (std::to_string(i) + ".png"), "");
  const ImageFiles none = image_folder(root.path(), options);
  CHECK(MESSAGE_OF(FormatError, none.batch(all_of(none))) ==
        "[ImageFiles] none of the 8 files can be decoded, the first is " +
            (root / "class0" / "0.png").string() + ". Read one with read_image() to see why.");
}

TEST_CASE("images of a batch must agree in size") {
  const TemporaryDirectory root;
  write_image(root / "a" / "1.png", 1, 4, 4);
  write_image(root / "a" / "2.png", 2, 4, 5);
  const ImageFiles dataset = image_folder(root.path());
  CHECK(MESSAGE_OF(ShapeError, dataset.batch(all_of(dataset))) ==
        "[ImageFiles] samples of a batch differ: sample 0 is [3, 4, 4] f32, sample 1 is [3, 4, 5] "
        "f32. End the transform with one size for all, such as Resize and CenterCrop.");
  const ImageFiles nothing =
      image_folder(root.path(), {.transform = [](const Tensor&, Generator&) { return Tensor(); }});
  CHECK(contains(MESSAGE_OF(ShapeError, nothing.batch(all_of(nothing))),
                 "the transform gives nothing, or not on the CPU: sample 0"));
  CHECK(contains(message_of<UsageError>([&] {
                   const int64_t index = 2;
                   dataset.batch({&index, 1});
                 }),
                 "[Dataset] there is no sample 2: the dataset has 2"));
}

TEST_CASE("image_folder explains what is missing") {
  const TemporaryDirectory root;
  const std::string name = root.path().string();
  CHECK(MESSAGE_OF(FormatError, image_folder(root / "none")) ==
        "[image_folder] no directory " + name +
            "/none. Pass the directory that has one sub-directory per class.");
  CHECK(MESSAGE_OF(FormatError, image_folder(root.path())) ==
        "[image_folder] no classes in " + name +
            ": it has no sub-directories. Put the images of each class into one of its own.");
  fs::create_directories(root / "empty");
  CHECK(MESSAGE_OF(FormatError, image_folder(root.path())) ==
        "[image_folder] a class without images: " + name +
            "/empty has no file with one of the extensions. Remove it, or name them in "
            "ImageFolderOptions::extensions.");
  CHECK(MESSAGE_OF(UsageError, ImageFiles({{"x.png", 2}}, {"a", "b"})) ==
        "[ImageFiles] label out of range: x.png has label 2 of 2 classes. Number classes from 0.");
}

TEST_CASE("image_folder refuses a directory that is one level too high") {
  const TemporaryDirectory root;
  for (const char* part : {"train", "Test"})
    for (const char* shape : {"circle", "square"}) write_image(root / part / shape / "1.png", 1);
  CHECK(MESSAGE_OF(FormatError, image_folder(root.path())) ==
        "[image_folder] the classes in " + root.path().string() +
            " would be Test, train, which are parts of a dataset. Pass one of them, such as " +
            (root / "Test").string() + ".");
  CHECK(image_folder(root / "train").class_names() == std::vector<std::string>{"circle", "square"});
  write_image(root / "train" / "2.png", 1);  // images of a class that is called so
  CHECK(image_folder(root.path()).class_names() == std::vector<std::string>{"Test", "train"});
}

TEST_CASE("ImageFiles frees all memory") {
  const TemporaryDirectory root;
  write_image(root / "a" / "1.png", 1);
  const MemoryReport before = memory_report();
  {
    const ImageFiles dataset = image_folder(root.path());
    DataLoader loader(dataset, {.workers = 2});
    for (const Batch& batch : loader) CHECK(batch.inputs.storage()->use() == MemoryUse::input);
  }
  CHECK(memory_report().now == before.now);
}

}  // namespace halftone::test::image_folder_test

// Hostile files: every prefix, every flipped bit of a PNG, a sweep of random edits, sizes that
// exceed the memory, and the errors of stb_image 2.27 that images.cpp prevents. The sweeps
// find most under the sanitizers.

namespace halftone::test::image_hostile_test {
namespace {
std::span<const uint8_t> as_bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

/// The error message of decoding; empty for an image. Other exceptions pass through.
std::string message_for(const std::string& bytes, data::ImageOptions options = {}) {
  return MESSAGE_OF(FormatError, data::decode_image(as_bytes(bytes), "x", options));
}

std::string big32(uint32_t value) {
  return {char(value >> 24), char(value >> 16), char(value >> 8), char(value)};
}

std::string chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  return big32(uint32_t(data.size())) + body +
         big32(uint32_t(crc32(0, reinterpret_cast<const Bytef*>(body.data()), uInt(body.size()))));
}

/// `between`: chunks before the pixels.
std::string png(uint32_t width, uint32_t height, const std::string& stream, int depth = 8,
                int colour = 2, const std::string& between = "") {
  const std::string header =
      big32(width) + big32(height) + char(depth) + char(colour) + std::string(3, '\0');
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + between + chunk("IDAT", stream) +
         chunk("IEND", "");
}

std::string deflated(const std::string& plain) {
  std::string packed(compressBound(plain.size()), '\0');
  uLongf size = packed.size();
  compress2(reinterpret_cast<Bytef*>(packed.data()), &size,
            reinterpret_cast<const Bytef*>(plain.data()), plain.size(), 6);
  packed.resize(size);
  return packed;
}

std::string segment(int marker, const std::string& data) {
  return std::string("\xff") + char(marker) + char((data.size() + 2) >> 8) +
         char((data.size() + 2) & 255) + data;
}

const char* const all_files[] = {"rgb.png",  "grey.png", "palette.png",     "alpha.png",
                                 "deep.png", "full.jpg", "interlaced.png",  "half.jpg",
                                 "grey.jpg", "cmyk.jpg", "progressive.jpg", "restarts.jpg"};
}  // namespace

TEST_CASE("no prefix of an image is an image") {
  for (const char* name : all_files) {
    CAPTURE(name);
    const std::string whole = read_file(image_fixture(name));
    CHECK(message_for(whole).empty());
    int accepted = 0;
    for (std::size_t length = 0; length < whole.size(); ++length) {
      const std::string part = whole.substr(0, length);
      accepted += message_for(part).empty();
      message_for(part, {.accept_truncated = true});  // either result is allowed, a crash is not
    }
    CHECK(accepted == 0);
    CHECK(message_for(whole + "trailing bytes").empty());
  }
}

TEST_CASE("four channels without Adobe's marker are refused: their colors are unknown") {
  std::string bytes = read_file(image_fixture("cmyk.jpg"));
  REQUIRE(message_for(bytes).empty());
  const std::size_t at = bytes.find("Adobe");
  REQUIRE(at != std::string::npos);
  std::string other = bytes;
  other[at + 11] = 1;  // YCbCr, which has three channels
  CHECK(contains(message_for(other), "unknown colors"));
  bytes[at] = 'a';
  CHECK(contains(message_for(bytes),
                 " is a JPEG of four channels, and no marker of Adobe's says whether they are CMYK "
                 "or YCCK. Convert it to RGB with the program that wrote it."));
}

TEST_CASE("every flipped bit of a PNG is noticed") {
  for (const char* name : all_files) {
    const std::string whole = read_file(image_fixture(name));
    if (!std::string_view(name).ends_with(".png")) continue;
    CAPTURE(name);
    int accepted = 0;
    for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      std::string bytes = whole;
      bytes[bit / 8] = char(bytes[bit / 8] ^ (1 << bit % 8));
      accepted += message_for(bytes).empty();
    }
    CHECK(accepted == 0);
  }
}

TEST_CASE("a JPEG with flipped bits and other edits is an image or a FormatError") {
  const MemoryReport before = memory_report();
  std::mt19937 random(7);
  int refused = 0;
  for (const char* name : all_files) {
    const std::string whole = read_file(image_fixture(name));
    const bool jpeg = std::string_view(name).ends_with(".jpg");
    for (std::size_t bit = 0; jpeg && bit < 8 * whole.size(); bit += 1 + random() % 3) {
      std::string bytes = whole;
      bytes[bit / 8] = char(bytes[bit / 8] ^ (1 << bit % 8));
      refused += !message_for(bytes, {.max_pixels = 1 << 16}).empty();
    }
    for (int i = 0; i < 1000; ++i)
      refused += !message_for(mutated(whole, random), {.max_pixels = 1 << 16}).empty();
  }
  CHECK(refused > 1000);
  CHECK(memory_report().now == before.now);
}

TEST_CASE("damage in PNG data with correct checksums does no harm") {
  std::mt19937 random(11);
  const std::string rows(8 * (1 + 8 * 3), '\1');
  const std::string stream = deflated(rows);
  REQUIRE(message_for(png(8, 8, stream)).empty());
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string plain = rows;
    for (char& c : plain) c = char(random());  // filters out of range, random pixels
    const std::string bytes =
        random() % 2 ? mutated(stream, random) : deflated(mutated(plain, random));
    const int depths[] = {1, 2, 4, 8, 16}, colours[] = {0, 2, 3, 4, 6};
    refused += !message_for(png(1 + random() % 12, 1 + random() % 12, bytes, depths[random() % 5],
                                colours[random() % 5]))
                    .empty();
  }
  CHECK(refused > 1000);
}

TEST_CASE("sizes are refused before memory is allocated for them") {
  const std::string rows = deflated(std::string(100, '\0'));
  for (const auto& [width, height] : {std::pair{0x7fffffffu, 0x7fffffffu},
                                      {0xffffffffu, 1u},
                                      {65536u, 1u},
                                      {1u, 65536u},
                                      {60000u, 60000u}}) {
    const std::string message = message_for(png(width, height, rows));
    CHECK(contains(message, "the image is too large: x promises"));
  }
  CHECK(contains(message_for(png(0, 4, rows)), "its header gives a size of 0"));
  // Just inside of the limits, with a very small file.
  CHECK(contains(message_for(png(8000, 8000, rows)), "damaged image: x: "));

  std::string jpeg = read_file(image_fixture("full.jpg"));
  const std::size_t frame = jpeg.find("\xff\xc0");
  REQUIRE(frame != std::string::npos);
  for (std::size_t i = 0; i < 4; ++i) jpeg[frame + 5 + i] = '\xff';
  CHECK(contains(message_for(jpeg), "promises 65535 x 65535 pixels"));
  for (std::size_t i = 0; i < 4; ++i) jpeg[frame + 5 + i] = '\0';
  CHECK(contains(message_for(jpeg), "its frame header gives a size of 0"));
}

TEST_CASE("a compression bomb exceeds a limit that follows from its header") {
  const std::string bomb = png(4, 4, deflated(std::string(std::size_t(16) << 20, '\0')));
  CHECK(bomb.size() < 100000);
  CHECK(contains(message_for(bomb), "it needs more memory than an image of its size does"));
}

TEST_CASE("a Huffman table with more codes than stb_image can hold is refused") {
  const std::string jpeg = read_file(image_fixture("full.jpg"));
  const std::string counts = '\0' + std::string(15, '\0') + '\xff';
  const std::string too_many = '\x00' + std::string(14, '\0') + "\x10\xff";
  const std::string table = too_many + std::string(0x10f, '\1');
  const std::string start = jpeg.substr(0, 2), rest = jpeg.substr(2);
  CHECK(contains(message_for(start + segment(0xc4, table) + rest),
                 "damaged image: x: a Huffman table has 271 codes"));
  CHECK(contains(message_for(start + segment(0xc4, counts + "12") + rest),
                 "a Huffman table goes beyond its segment"));
}

TEST_CASE("a JPEG with endless tables or scans, or without the usual order, is refused") {
  const std::string jpeg = read_file(image_fixture("progressive.jpg"));
  const std::string start = jpeg.substr(0, 2), rest = jpeg.substr(2);
  std::string comments;
  for (int i = 0; i < 5000; ++i) comments += segment(0xfe, "");
  CHECK(contains(message_for(start + comments + rest), "more tables than any picture needs"));
  const std::size_t scan = jpeg.find("\xff\xda");
  const std::string scans = jpeg.substr(scan, jpeg.size() - 2 - scan);
  std::string many = jpeg.substr(0, scan);
  for (int i = 0; i < 40; ++i) many += scans;
  CHECK(contains(message_for(many + "\xff\xd9"), "it has more than 100 scans"));
  CHECK(contains(message_for(start + "\xff\xd9"), "marker 0xffd9 has no place"));
  CHECK(contains(message_for(start + jpeg.substr(scan)), "it has a scan before its frame header"));
  CHECK(contains(message_for(jpeg.substr(0, scan) + "\xff\xd9"), "it has no scan"));
  const std::size_t frame = jpeg.find("\xff\xc2");
  const std::string second = jpeg.substr(frame, 2 + 17 + 2);
  CHECK(contains(message_for(jpeg.substr(0, scan) + second + jpeg.substr(scan)), "second frame"));
}

TEST_CASE("tables that a JPEG never defines are not read from uninitialized memory") {
  const std::string jpeg = read_file(image_fixture("full.jpg"));
  std::string without;
  for (std::size_t at = 0; at < jpeg.size();) {  // the same file without Huffman tables
    const std::size_t table = jpeg.find("\xff\xc4", at);
    without += jpeg.substr(at, table - at);
    if (table == std::string::npos) break;
    at = table + 2 + (std::size_t(uint8_t(jpeg[table + 2])) << 8 | uint8_t(jpeg[table + 3]));
  }
  REQUIRE(without.size() < jpeg.size());
  std::vector<uint8_t> first;
  for (int i = 0; i < 3; ++i) {
    const std::string message = message_for(without);
    if (!message.empty()) continue;
    const Tensor image = data::decode_image(as_bytes(without), "x");
    const std::vector<uint8_t> bytes(image.data<uint8_t>(), image.data<uint8_t>() + image.numel());
    if (first.empty()) first = bytes;
    CHECK(bytes == first);
  }
}

TEST_CASE("a PNG must have its chunks in order") {
  const std::string good = png(2, 2, deflated(std::string(14, '\0')));
  const std::string start = good.substr(0, 8), header = good.substr(8, 25), rest = good.substr(33);
  CHECK(message_for(good).empty());
  CHECK(contains(message_for(start + rest), "its header is not its first chunk"));
  CHECK(contains(message_for(start + header + header + rest), "its header is not its first chunk"));
  CHECK(contains(message_for(start + header + chunk("IEND", "")), "it has no pixels"));
  CHECK(contains(message_for(start + chunk("IHDR", "short") + rest), "not 13 bytes long"));
  CHECK(contains(message_for(png(2, 2, "x", 3)), "there is no color type 2 with 3 bits"));
  CHECK(contains(message_for(png(2, 2, "x", 8, 5)), "there is no color type 5 with 8 bits"));
  CHECK(contains(message_for(good.substr(0, 40)), "truncated image: x: it ends before its last"));
}

TEST_CASE("a critical chunk of an unknown kind is refused in every position, others are skipped") {
  const std::string stream = deflated(std::string(14, '\0'));
  for (const char* type : {"JUNK", "A\x1b[m", "\xc0\x80zz"})
    CHECK(message_for(png(2, 2, stream, 8, 2, chunk("teXt", "skipped") + chunk(type, "data"))) ==
          "[read_image] damaged image: x: the chunk at byte 52 is of an unknown kind. Fetch the "
          "file again.");
  CHECK(message_for(png(2, 2, stream, 8, 2, chunk("teXt", "skipped"))).empty());
}

TEST_CASE("pixels beyond the end of a PNG's palette are black, in repeated reads") {
  const std::string row("\0\0\1\2\xff", 5), stream = deflated(row);  // filter, four pixels
  const std::string image = png(4, 1, stream, 8, 3, chunk("PLTE", "redGRN"));
  const std::vector<double> expected{'r', 'e', 'd', 'G', 'R', 'N', 0, 0, 0, 0, 0, 0};
  for (int i = 0; i < 3; ++i) {
    message_for(read_file(image_fixture("rgb.png")));  // other values where its tables will be
    CHECK(data::decode_image(as_bytes(image), "x").to_vector<double>() == expected);
  }
  for (const char* palette : {"", "re", "redG"}) {
    CAPTURE(std::string(palette));
    CHECK(contains(message_for(png(4, 1, stream, 8, 3, chunk("PLTE", palette))),
                   "[read_image] damaged image: x: "));
  }
}

}  // namespace halftone::test::image_hostile_test
