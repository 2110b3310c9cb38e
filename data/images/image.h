// Images as tensors of bytes, u8 [height, width, channels]: reads JPEG and PNG, writes PNG. Files
// are not trusted: image_header.h checks the structure before stb_image, which decodes, sees a
// byte, and the header limits the memory that decoding may allocate.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

#include <halftone/core/tensor.h>

namespace halftone::data {

enum class Channels : uint8_t { gray = 1, rgb = 3 };

struct ImageOptions {
  Channels channels = Channels::rgb;  // gray is copied to RGB, alpha is dropped
  int64_t max_file_bytes = int64_t(64) << 20;
  int64_t max_pixels = int64_t(1) << 26;  // height * width, taken from the header
  /// A JPEG without its end marker was cut off. By default that is an error; true decodes the
  /// present part and leaves the rest gray. A PNG that was cut off is always an error.
  bool accept_truncated = false;
};

/// Returns the image of a JPEG or PNG file, recognized by content, as u8 [height, width, channels].
/// EXIF orientation is not applied. Throws FormatError, which names the file, for a file that is
/// missing, of another format, damaged, truncated, above a limit, or of colors that it does not
/// say.
Tensor read_image(const std::filesystem::path& path, const ImageOptions& options = {});

/// The same for bytes in memory; messages use `name` for the file.
Tensor decode_image(std::span<const uint8_t> bytes, std::string_view name,
                    const ImageOptions& options = {});

/// Writes u8 [height, width, channels] with 1 (gray), 3 (RGB) or 4 (RGB and alpha) channels, or
/// u8 [height, width]. Throws ShapeError or DTypeError for another tensor, FormatError if the file
/// cannot be written.
void write_png(const std::filesystem::path& path, const Tensor& image);

/// Throws ShapeError or DTypeError in the name of `op` unless `image` is u8 [height, width,
/// channels] on the CPU with no size 0.
void check_image(std::string_view op, const Tensor& image);

}  // namespace halftone::data
