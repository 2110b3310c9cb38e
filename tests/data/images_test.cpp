// Hostile files: every prefix, every flipped bit of a PNG, a sweep of random edits, sizes that
// exceed the memory, and the errors of stb_image 2.27 that images.cpp prevents. The sweeps
// find most under the sanitizers.
#include <zlib.h>

#include <doctest/doctest.h>

#include <halftone/core/memory.h>
#include <halftone/data/images.h>

#include "image_fixtures.h"

namespace halftone::test::image_hostile_test {
namespace {
std::span<const uint8_t> as_bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

/// The error message of decoding; empty for an image. Other exceptions pass through.
std::string message_for(const std::string& bytes, data::ImageOptions options = {}) {
  return message_of<FormatError>([&] { data::decode_image(as_bytes(bytes), "x", options); });
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
