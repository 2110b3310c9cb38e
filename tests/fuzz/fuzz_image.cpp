// JPEG and PNG files. Gray and RGB, strict and accepting truncation: the same files are images, of
// the size in the header, and decoding twice gives the same. The image is written as a PNG and read
// again. The mutator corrects the checksums of a PNG, because otherwise the decoder is never
// reached.
#include "fuzz.h"

#include <algorithm>
#include <span>

#include <zlib.h>

#include <halftone/data/images.h>

namespace halftone::fuzz {

// images.cpp allows the decoder (1 + 64) * (1,024 + 64) * 76 bytes + 1 MiB + 4 files, in total.
const Limits limits{.longest_input = 4096, .allocation_mib = 7, .resident_mib = 256};

namespace {
using data::Channels, data::ImageOptions;
constexpr int64_t max_pixels = 1024;

std::optional<Tensor> decode(std::span<const uint8_t> bytes, Channels channels, bool truncated) {
  return accepted<FormatError>("read_image", [&] {
    return data::decode_image(
        bytes, "x",
        {.channels = channels, .max_pixels = max_pixels, .accept_truncated = truncated});
  });
}

/// For a complete file, strict reading makes no difference.
std::optional<Tensor> check_decoding(std::span<const uint8_t> bytes, Channels channels) {
  const std::optional<Tensor> strict = decode(bytes, channels, false);
  const std::optional<Tensor> tolerant = decode(bytes, channels, true);
  for (const std::optional<Tensor>& image : {strict, tolerant})
    if (image)
      require(image->dtype() == u8 && image->is_contiguous() && image->rank() == 3 &&
                  image->size(0) > 0 && image->size(1) > 0 &&
                  image->size(0) * image->size(1) <= max_pixels &&
                  image->size(2) == int64_t(channels),
              "an image has a size, within the limit, and the channels that were asked for");
  if (strict) {
    const data::ImageHeader header = data::walk_image(bytes);
    require(header.problem.empty() && strict->size(0) == header.height &&
                strict->size(1) == header.width,
            "the size is the header's");
    require(tolerant && same(*strict, *tolerant), "a complete file needs no tolerance");
  }
  return tolerant;
}

void check_writing(const Tensor& image) {
  const std::filesystem::path file = scratch_directory() / "image.png";
  data::write_png(file, image);
  const Tensor again = data::read_image(file, {.channels = Channels(image.size(2))});
  require(same(again, image), "writing and reading keeps every pixel");
}
}  // namespace

void check(std::string_view text) {
  const std::span bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  const std::optional<Tensor> rgb = check_decoding(bytes, Channels::rgb),
                              grey = check_decoding(bytes, Channels::gray);
  require(rgb.has_value() == grey.has_value(), "what is an image does not depend on the channels");
  require(peak_tensor_bytes() <= 6 * max_pixels, "tensors are images within the limit");
  if (!rgb) return;
  check_writing(*rgb);
  check_writing(*grey);
}

}  // namespace halftone::fuzz

extern "C" std::size_t LLVMFuzzerMutate(uint8_t* data, std::size_t size, std::size_t longest);

extern "C" std::size_t LLVMFuzzerCustomMutator(uint8_t* data, std::size_t size, std::size_t longest,
                                               unsigned seed) {
  size = LLVMFuzzerMutate(data, size, longest);
  if (seed % 8 == 0 || size < 8 || data[0] != 0x89) return size;
  // Length, type, data and checksum, big-endian, after a signature of 8 bytes.
  for (std::size_t at = 8; size - at >= 12;) {
    const uint64_t length =
        uint64_t(data[at]) << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3];
    if (length > size - at - 12) break;
    const uLong sum = crc32_z(0, data + at + 4, length + 4);
    at += 8 + length;
    for (int shift = 24; shift >= 0; shift -= 8) data[at++] = uint8_t(sum >> shift);
  }
  return size;
}
