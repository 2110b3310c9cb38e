// Wraps stb_image and stb_image_write in two functions; no other file uses these libraries.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace halftone::data {

struct DecodedBytes {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> pixels{};  // [height, width, channels]
  std::string problem{};          // the reason for missing pixels; empty: success
};

/// Decodes JPEG or PNG bytes in which walk_image() found no problem. `memory_limit` bounds, in
/// bytes, all that the decoder holds at once.
DecodedBytes decode_with_stb(std::span<const uint8_t> bytes, int channels, int64_t memory_limit);

/// Returns a PNG file of [height, width, channels], below 2^30 bytes. Empty if memory ran out.
std::vector<uint8_t> encode_png_with_stb(const uint8_t* pixels, int height, int width,
                                         int channels);

}  // namespace halftone::data
