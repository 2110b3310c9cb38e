// Limits, messages and the conversion to and from tensors. images.cpp checks files, stb.cpp
// decodes.
#include <halftone/data/images/image.h>

#include <algorithm>
#include <string>
#include <vector>

#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>
#include <halftone/data/file_bytes.h>
#include <halftone/data/images/image_header.h>
#include <halftone/data/images/stb.h>

namespace halftone::data {

namespace {
std::span<const uint8_t> as_bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

void check_header(const ImageHeader& header, std::string_view name, const ImageOptions& options) {
  if (header.format == ImageFormat::unknown)
    fail<FormatError>("read_image", "not an image: ", name, ": ", header.problem,
                      ". Pass a JPEG or PNG file, whatever its extension.");
  // Before the problem: if a file promises too much, nothing else matters.
  constexpr int64_t largest_side = 65535;
  if (header.height > largest_side || header.width > largest_side ||
      header.height * header.width > options.max_pixels)
    fail<FormatError>("read_image", "the image is too large: ", name, " promises ", header.height,
                      " x ", header.width, " pixels, the limits are ", options.max_pixels,
                      " in all and ", largest_side,
                      " per side. Raise max_pixels if it is meant to be so.");
  if (header.truncated)
    fail<FormatError>("read_image", "truncated image: ", name, ": ", header.problem,
                      ". Fetch the file again.");
  if (!header.problem.empty())
    fail<FormatError>("read_image", "damaged image: ", name, ": ", header.problem,
                      ". Fetch the file again.");
}

/// The decoder would take the four channels of a JPEG for YCbCr and drop one.
void check_colors(const ImageHeader& header, std::string_view name) {
  const bool known = header.adobe_transform == 0 || header.adobe_transform == 2;
  if (header.format == ImageFormat::jpeg && header.bytes_per_pixel == 4 && !known)
    fail<FormatError>("read_image", "unknown colors: ", name,
                      " is a JPEG of four channels, and no marker of Adobe's says whether they are "
                      "CMYK or YCCK. Convert it to RGB with the program that wrote it.");
}

/// Returns the memory limit of decoding, in bytes. JPEG: planes and, if progressive, coefficients
/// of 2 bytes, padded to blocks. PNG: the stream, its inflated form (which doubles while it grows),
/// and up to three forms of the pixels.
int64_t memory_for(const ImageHeader& header, std::size_t file_bytes) {
  const int64_t padded = (header.height + 64) * (header.width + 64);
  return padded * (8 * header.bytes_per_pixel + 12) + 4 * int64_t(file_bytes) + (1 << 20);
}

/// Returns the PNG with its first palette extended by black to 256 entries. For pixels beyond the
/// palette stb_image returns leftover stack bytes. No checksum is updated: stb_image ignores them.
std::vector<uint8_t> with_whole_palette(std::span<const uint8_t> bytes, std::size_t at) {
  constexpr std::size_t whole = 3 * 256, before_data = 8;
  std::vector<uint8_t> result(bytes.begin(), bytes.end());
  const std::size_t length = std::size_t(bytes[at]) << 24 | std::size_t(bytes[at + 1]) << 16 |
                             std::size_t(bytes[at + 2]) << 8 | bytes[at + 3];
  if (length == 0 || length % 3 != 0 || length >= whole) return result;  // valid, or refused later
  result.insert(result.begin() + int64_t(at + before_data + length), whole - length, 0);
  result[at + 2] = whole >> 8, result[at + 3] = whole & 255;
  return result;
}
}  // namespace

Tensor decode_image(std::span<const uint8_t> bytes, std::string_view name,
                    const ImageOptions& options) {
  if (int64_t(bytes.size()) > std::min<int64_t>(options.max_file_bytes, int64_t(1) << 30))
    fail<FormatError>("read_image", "the file is too large: ", name, " has ", bytes.size(),
                      " bytes, the limit is ",
                      std::min<int64_t>(options.max_file_bytes, int64_t(1) << 30),
                      ". Raise max_file_bytes if it is meant to be so.");
  if (bytes.empty())
    fail<FormatError>("read_image", "the file is empty: ", name, ". Fetch the file again.");
  ImageHeader header = walk_image(bytes);
  std::vector<uint8_t> completed;
  if (header.truncated && options.accept_truncated && header.format == ImageFormat::jpeg) {
    completed.assign(bytes.begin(), bytes.end());
    completed.insert(completed.end(), {0xff, 0xd9});
    if (const ImageHeader again = walk_image(completed); again.problem.empty())
      header = again, bytes = completed;
  }
  check_header(header, name, options);
  check_colors(header, name);
  if (header.palette_at > 0)
    completed = with_whole_palette(bytes, header.palette_at), bytes = completed;

  const auto channels = int64_t(options.channels);
  const int64_t memory = memory_for(header, bytes.size());
  const DecodedBytes decoded = or_no_memory(
      "read_image", memory, [&] { return decode_with_stb(bytes, int(channels), memory); });
  if (!decoded.problem.empty())
    fail<FormatError>("read_image", "damaged image: ", name, ": ", decoded.problem,
                      ". Fetch the file again.");
  if (decoded.height != header.height || decoded.width != header.width)
    fail<FormatError>("read_image", "damaged image: ", name, " promises ", header.height, " x ",
                      header.width, " pixels and has ", decoded.height, " x ", decoded.width,
                      ". Fetch the file again.");
  Tensor image = empty({decoded.height, decoded.width, channels}, u8);
  std::ranges::copy(decoded.pixels, image.data<uint8_t>());
  return image;
}

Tensor read_image(const std::filesystem::path& path, const ImageOptions& options) {
  const std::string bytes = file_bytes("read_image", path, options.max_file_bytes);
  return decode_image(as_bytes(bytes), path.string(), options);
}

void check_image(std::string_view op, const Tensor& image) {
  if (!image.defined() || image.rank() != 3 || image.numel() == 0)
    fail<ShapeError>(op, "not an image: ",
                     image.defined()
                         ? "it has " + std::to_string(image.rank()) + " dimensions and " +
                               std::to_string(image.numel()) + " elements"
                         : std::string("it is undefined"),
                     ". Pass u8 [height, width, channels].");
  if (image.dtype() != u8)
    fail<DTypeError>(op, "not an image of bytes: it is ", described(image),
                     ". Pass u8 [height, width, channels].");
  if (image.device() != Device::cpu())
    fail<DeviceError>(op, "the image is on another device: ", described(image), " on ",
                      image.device(), ". Call to(Device::cpu()) first.");
}

void write_png(const std::filesystem::path& path, const Tensor& image) {
  Tensor x = image;
  if (x.defined() && x.rank() == 2) x = views::reshaped(x.detach(), {x.size(0), x.size(1), 1});
  check_image("write_png", x);
  const int64_t channels = x.size(2);
  if (channels == 2 || channels > 4)
    fail<ShapeError>("write_png", "no PNG has ", channels, " channels: the image is ",
                     described(image), ". Pass 1, 3 or 4 channels, last.");
  if (x.numel() >= int64_t(1) << 30)
    fail<ShapeError>("write_png", "the image is too large: ", described(image),
                     " has 2^30 bytes or more. Write it in parts.");
  x = views::contiguous(x.detach());
  const std::vector<uint8_t> bytes =
      encode_png_with_stb(x.data<uint8_t>(), int(x.size(0)), int(x.size(1)), int(channels));
  if (bytes.empty())
    fail<FormatError>("write_png", "cannot encode ", described(image), " for ", path.string(),
                      ". Is there enough memory?");
  files::replace("write_png", path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                 files::Durable::no);
}

}  // namespace halftone::data
