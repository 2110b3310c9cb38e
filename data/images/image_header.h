// Walks over the structure of a JPEG or PNG file from start to end without decoding. It finds
// sizes before anything is allocated, and damage that stb_image 2.27 does not detect. For JPEG:
// Huffman tables with more than 256 codes (written beyond their array), a missing end marker and
// endless scans. For PNG: chunk checksums, palettes that lack entries and unknown kinds of
// chunks.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace halftone::data {

enum class ImageFormat : uint8_t { unknown, jpeg, png };

struct ImageHeader {
  ImageFormat format = ImageFormat::unknown;
  int64_t height = 0, width = 0;  // 0 until the header is reached
  int64_t bytes_per_pixel = 0;    // for the samples in the file, rounded up
  bool truncated = false;         // the file ends before its end marker
  std::size_t palette_at = 0;     // start of the first palette's chunk of a PNG; 0: none
  int adobe_transform = -1;       // of a JPEG, from Adobe's marker; -1: there is none
  std::string problem{};          // the problem of the structure; empty: none
};

/// Never throws and never reads outside `bytes`. A truncated file also has a problem.
ImageHeader walk_image(std::span<const uint8_t> bytes);

}  // namespace halftone::data
