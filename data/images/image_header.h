// The structure of a JPEG or PNG file, walked from end to end without decoding: sizes before
// anything is allocated, and the damage that stb_image 2.27 does not look for. Of JPEG these are
// Huffman tables with more than 256 codes (written beyond their array), a missing end marker and
// endless scans; of PNG the checksums of chunks, palettes that lack entries and unknown
// kinds of chunks.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace halftone::data {

enum class ImageFormat : uint8_t { unknown, jpeg, png };

struct ImageHeader {
  ImageFormat format = ImageFormat::unknown;
  int64_t height = 0, width = 0;  // 0 until the header was reached
  int64_t bytes_per_pixel = 0;    // of the samples in the file, rounded up
  bool truncated = false;         // the file ends before its end marker
  std::size_t palette_at = 0;     // where the first palette's chunk of a PNG begins; 0: none
  std::string problem{};          // what is wrong with the structure; empty: nothing
};

/// Never throws and never reads outside `bytes`. A truncated file has a problem too.
ImageHeader walk_image(std::span<const uint8_t> bytes);

}  // namespace halftone::data
