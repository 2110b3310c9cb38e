// read_image and write_png: good files against Pillow, round trips, and the messages.
#include <doctest/doctest.h>

#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>
#include <halftone/data/images.h>

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
  CHECK(contains(message_of<FormatError>([&] {
                   write_png(directory / "no" / "x.png", zeros({2, 2, 3}, u8));
                 }),
                 "[write_png] cannot write " + (directory / "no" / "x.png").string()));
  CHECK(message_of<DTypeError>([&] {
          write_png(directory / "x.png", zeros({2, 2, 3}));
        }) ==
        "[write_png] not an image of bytes: it is [2, 2, 3] f32. Pass u8 [height, width, "
        "channels].");
  CHECK(message_of<ShapeError>([&] {
          write_png(directory / "x.png", zeros({2, 2, 2}, u8));
        }) ==
        "[write_png] no PNG has 2 channels: the image is [2, 2, 2] u8. Pass 1, 3 or 4 channels, "
        "last.");
  CHECK(message_of<ShapeError>([&] {
          write_png(directory / "x.png", zeros({0, 2, 3}, u8));
        }) ==
        "[write_png] not an image: it has 3 dimensions and 0 elements. Pass u8 [height, width, "
        "channels].");
  CHECK(contains(message_of<ShapeError>([&] { write_png(directory / "x.png", Tensor()); }),
                 "it is undefined"));
}

TEST_CASE("read_image names the file that it cannot read") {
  const TemporaryDirectory directory;
  const auto path = directory / "x.png";
  const std::string name = path.string();
  CHECK(message_of<FormatError>([&] { read_image(path); }) ==
        "[read_image] no such file: " + name + ". Check the path.");
  write_file(path, "");
  CHECK(message_of<FormatError>([&] { read_image(path); }) ==
        "[read_image] the file is empty: " + name + ". Fetch the file again.");
  write_file(path, "GIF89a and so on");
  CHECK(message_of<FormatError>([&] { read_image(path); }) ==
        "[read_image] not an image: " + name +
            ": it is neither JPEG nor PNG. Pass a JPEG or PNG file, whatever its extension.");
  CHECK(message_of<FormatError>([&] { read_image(directory.path()); }) ==
        "[read_image] not a file: " + directory.path().string() +
            " is a directory. Name a regular file.");
  CHECK(contains(message_of<FormatError>([] { read_image("/dev/zero"); }),
                 "/dev/zero is a device or a pipe"));
  CHECK(contains(message_of<FormatError>([&] { read_image(path / "below"); }), "x.png/below"));
  write_file(path, read_file(image_fixture("rgb.png")));
  CHECK(message_of<FormatError>([&] { read_image(path, {.max_file_bytes = 100}); }) ==
        "[read_image] the file is too large: " + name +
            " has more than 100 bytes. Raise the limit if it is meant to be so.");
  CHECK(message_of<FormatError>([&] { read_image(path, {.max_pixels = 203}); }) ==
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
  CHECK(message_of<FormatError>([&] { read_image(directory / "x.jpg"); }) ==
        "[read_image] truncated image: " + (directory / "x.jpg").string() +
            ": it ends before its end marker. Fetch the file again.");
  const Tensor image = read_image(directory / "x.jpg", {.accept_truncated = true}),
               expected = read_image(image_fixture("full.jpg"));
  REQUIRE(image.shape() == expected.shape());
  CHECK(image.at({0, 0, 0}) == expected.at({0, 0, 0}));   // the start is decoded
  write_file(directory / "y.jpg", whole.substr(0, 100));  // before any pixel
  CHECK(contains(
      message_of<FormatError>([&] { read_image(directory / "y.jpg", {.accept_truncated = true}); }),
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
