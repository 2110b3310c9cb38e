// Images as tensors of bytes, u8 [height, width, channels]: JPEG and PNG in, PNG out. Files are
// distrusted: the structure is checked by image_header.h before stb_image, which decodes, sees a
// byte, and what decoding may allocate is bounded by what the header says.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include <halftone/core/tensor.h>

namespace halftone::data {

enum class Channels : uint8_t { grey = 1, rgb = 3 };

struct ImageOptions {
  Channels channels = Channels::rgb;  // grey is spread over RGB, alpha is dropped
  int64_t max_file_bytes = int64_t(64) << 20;
  int64_t max_pixels = int64_t(1) << 26;  // height * width, taken from the header
  /// A JPEG without its end marker was cut off. By default that is an error; true decodes what is
  /// there and leaves the rest grey. A PNG that was cut off is an error either way.
  bool accept_truncated = false;
};

/// The image of a JPEG or PNG file, told apart by content, as u8 [height, width, channels]. EXIF
/// orientation is not applied. Throws FormatError, which names the file, for a file that is
/// missing, of another format, damaged, truncated or above a limit.
Tensor read_image(const std::filesystem::path& path, const ImageOptions& options = {});

/// The same from bytes in memory; `name` stands for the file in messages.
Tensor decode_image(std::span<const uint8_t> bytes, std::string_view name,
                    const ImageOptions& options = {});

/// Writes u8 [height, width, channels] with 1 (grey), 3 (RGB) or 4 (RGB and alpha) channels, or
/// u8 [height, width]. Throws ShapeError or DTypeError for another tensor, FormatError if the file
/// cannot be written.
void write_png(const std::filesystem::path& path, const Tensor& image);

/// Throws ShapeError or DTypeError in the name of `op` unless `image` is u8 [height, width,
/// channels] on the CPU with no size 0.
void check_image(std::string_view op, const Tensor& image);

}  // namespace halftone::data
