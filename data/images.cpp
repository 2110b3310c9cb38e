// JPEG: ITU-T T.81, annex B. PNG: RFC 2083. The walk over a JPEG finds the same segments at the
// same positions as stb_image's parser, so that no table reaches the decoder unchecked.
#include <algorithm>
#include <array>
#include <cstring>

#include <zlib.h>

#include <halftone/data/images/image_header.h>

namespace halftone::data {

namespace {
/// Reads forward; beyond the end it returns zeros and sets `ended`.
struct Cursor {
  std::span<const uint8_t> bytes;
  std::size_t at = 0;
  bool ended = false;

  uint32_t byte() {
    if (at < bytes.size()) return bytes[at++];
    ended = true;
    return 0;
  }
  uint32_t big16() {
    const uint32_t high = byte();
    return high << 8 | byte();
  }
  uint32_t big32() {
    const uint32_t high = big16();
    return high << 16 | big16();
  }
  std::size_t left() const { return bytes.size() - at; }
};

std::string in_hex(uint32_t byte) {
  constexpr char digits[] = "0123456789abcdef";
  return {digits[byte >> 4 & 15], digits[byte & 15]};
}

// ---- JPEG

constexpr int most_scans = 100;       // a progressive file has about ten
constexpr int most_tables = 1 << 12;  // segments: each costs the decoder more than its bytes

/// Reads 0xff, any number of times, and a byte. Other bytes before the 0xff are padding.
uint32_t next_marker(Cursor& file, bool padding_allowed) {
  uint32_t byte = file.byte();
  while (padding_allowed && byte != 0xff && !file.ended) byte = file.byte();
  if (byte != 0xff) return 0;
  while (byte == 0xff && !file.ended) byte = file.byte();
  return byte;
}

/// Skips entropy-coded data, up to the marker that ends it: not a stuffed zero and not a restart.
uint32_t marker_after_scan(Cursor& file) {
  while (!file.ended) {
    const void* found =
        file.left() ? std::memchr(file.bytes.data() + file.at, 0xff, file.left()) : nullptr;
    file.at = found ? std::size_t(static_cast<const uint8_t*>(found) - file.bytes.data()) + 1
                    : file.bytes.size();
    uint32_t byte = file.byte();
    while (byte == 0xff) byte = file.byte();
    if (byte != 0 && (byte < 0xd0 || byte > 0xd7)) return byte;
  }
  return 0;
}

/// Checks the Huffman tables of one segment: a class, 16 counts, and as many values as the counts
/// add up to.
std::string huffman_problem(Cursor segment, int& tables) {
  while (segment.left() > 0) {
    segment.byte();
    uint32_t codes = 0;
    for (int length = 1; length <= 16; ++length) codes += segment.byte();
    if (segment.ended || codes > segment.left()) return "a Huffman table goes beyond its segment";
    if (codes > 256) return "a Huffman table has " + std::to_string(codes) + " codes";
    segment.at += codes;
    ++tables;
  }
  return {};
}

/// Reads precision, height, width, components.
std::string frame_problem(Cursor segment, ImageHeader& header) {
  segment.byte();
  header.height = segment.big16();
  header.width = segment.big16();
  header.bytes_per_pixel = segment.byte();
  if (segment.ended) return "its frame header is too short";
  if (header.height == 0 || header.width == 0) return "its frame header gives a size of 0";
  return {};
}

/// Reads how the colors of four channels are coded, where stb_image reads it.
void read_adobe(std::span<const uint8_t> segment, ImageHeader& header) {
  constexpr std::array<uint8_t, 6> name{'A', 'd', 'o', 'b', 'e', 0};
  if (segment.size() >= 12 && std::equal(name.begin(), name.end(), segment.begin()))
    header.adobe_transform = segment[11];
}

std::string jpeg_problem(Cursor& file, ImageHeader& header) {
  file.at = 2;
  int scans = 0, tables = 0;
  bool framed = false;
  uint32_t marker = next_marker(file, true);
  for (;;) {
    if (marker == 0xd9 && framed) return scans ? "" : "it has no scan";
    if (file.ended) return header.truncated = true, "it ends before its end marker";
    if (++tables > most_tables) return "it has more tables than any picture needs";
    const bool frame = marker >= 0xc0 && marker <= 0xc2;
    if (frame && framed) return "it has a second frame";
    const bool known = frame || marker == 0xc4 || marker == 0xda || marker == 0xdb ||
                       marker == 0xdc || marker == 0xdd || marker == 0xfe ||
                       (marker >= 0xe0 && marker <= 0xef);
    if (!known) return "marker 0xff" + in_hex(marker) + " has no place in it or is not supported";

    const std::size_t start = file.at, length = file.big16();
    if (length < 2) return "a segment has a length of " + std::to_string(length);
    if (file.ended || length > file.bytes.size() - start)
      return header.truncated = true, "it ends inside of a segment";
    const Cursor segment{file.bytes.subspan(start + 2, length - 2)};
    std::string problem;
    if (marker == 0xc4) problem = huffman_problem(segment, tables);
    if (frame) problem = frame_problem(segment, header), framed = true;
    if (marker == 0xee) read_adobe(segment.bytes, header);
    if (!problem.empty()) return problem;
    file.at = start + length;
    if (marker != 0xda) {
      marker = next_marker(file, !framed);
    } else {
      if (!framed) return "it has a scan before its frame header";
      if (++scans > most_scans) return "it has more than 100 scans";
      marker = marker_after_scan(file);
    }
  }
}

// ---- PNG

constexpr std::array<uint8_t, 8> png_signature{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

/// Reads width, height, bit depth, color type, compression, filter, interlacing.
std::string png_header_problem(Cursor data, ImageHeader& header) {
  if (data.left() != 13) return "its first chunk is not 13 bytes long";
  const uint32_t width = data.big32(), height = data.big32(), depth = data.byte(),
                 color = data.byte();
  if (width == 0 || height == 0) return "its header gives a size of 0";
  const bool depth_fits = depth == 8 || (depth == 16 && color != 3) ||
                          ((depth == 1 || depth == 2 || depth == 4) && color % 3 == 0);
  if (!depth_fits || color > 6 || color == 1 || color == 5)
    return "there is no color type " + std::to_string(color) + " with " + std::to_string(depth) +
           " bits";
  constexpr std::array<int, 7> samples{1, 0, 3, 1, 2, 0, 4};
  header.width = width, header.height = height;
  header.bytes_per_pixel = (samples[color] * int(depth) + 7) / 8;
  return {};
}

std::string png_problem(Cursor& file, ImageHeader& header) {
  file.at = png_signature.size();
  bool first = true, pixels = false;
  for (;;) {
    const uint32_t length = file.big32();
    const std::size_t start = file.at;
    const uint32_t type = file.big32();
    if (file.ended || file.left() < 4 || length > file.left() - 4)
      return header.truncated = true, "it ends before its last chunk";
    const Cursor data{file.bytes.subspan(file.at, length)};
    file.at += length;
    const uLong sum = crc32_z(0, file.bytes.data() + start, std::size_t(length) + 4);
    if (file.big32() != sum)
      return "the checksum of the chunk at byte " + std::to_string(start - 4) + " is wrong";
    constexpr uint32_t ihdr = 0x49484452, plte = 0x504c5445, idat = 0x49444154, iend = 0x49454e44;
    if (first != (type == ihdr)) return "its header is not its first chunk";
    // stb_image would put the type, any four bytes, into its message.
    const bool critical = (type & 1u << 29) == 0;
    if (critical && type != ihdr && type != plte && type != idat && type != iend)
      return "the chunk at byte " + std::to_string(start - 4) + " is of an unknown kind";
    if (first)
      if (std::string problem = png_header_problem(data, header); !problem.empty()) return problem;
    if (type == plte && header.palette_at == 0) header.palette_at = start - 4;
    if (type == idat) pixels = true;
    if (type == iend) return pixels ? "" : "it has no pixels";
    first = false;
  }
}
}  // namespace

ImageHeader walk_image(std::span<const uint8_t> bytes) {
  ImageHeader header;
  Cursor file{bytes};
  if (bytes.size() >= 3 && bytes[0] == 0xff && bytes[1] == 0xd8 && bytes[2] == 0xff) {
    header.format = ImageFormat::jpeg;
    header.problem = jpeg_problem(file, header);
  } else if (bytes.size() >= png_signature.size() &&
             std::equal(png_signature.begin(), png_signature.end(), bytes.begin())) {
    header.format = ImageFormat::png;
    header.problem = png_problem(file, header);
  } else {
    header.problem = "it is neither JPEG nor PNG";
  }
  return header;
}

}  // namespace halftone::data
