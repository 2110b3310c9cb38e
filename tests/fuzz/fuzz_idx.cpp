// IDX files. A plain file is accepted exactly if its header describes its data; the same bytes
// compressed must give the same result. A tensor from a compressed file is at most as large as
// deflate can pack.
#include "fuzz.h"

#include <algorithm>

#include <zlib.h>

#include <halftone/data/sets.h>

namespace halftone::fuzz {

const Limits limits{.longest_input = 1024, .allocation_mib = 3, .resident_mib = 256};

namespace {
constexpr int64_t best_ratio = 1032;  // of deflate

std::optional<Tensor> read(std::string_view bytes) {
  const std::filesystem::path file = scratch_directory() / "idx";
  write_file(file, bytes);
  return accepted<FormatError>("read_idx", [&] { return data::read_idx(file); });
}

std::string little_endian(uint32_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += char(value >> 8 * i & 255);
  return text;
}

/// A gzip file with one stored block of fewer than 2^16 bytes.
std::string stored(std::string_view bytes) {
  const auto size = uint32_t(bytes.size());
  const uLong sum = crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  return std::string("\x1f\x8b\x08\0\0\0\0\0\0\xff\x01", 11) + little_endian(size, 2) +
         little_endian(~size, 2) + std::string(bytes) + little_endian(uint32_t(sum), 4) +
         little_endian(size, 4);
}

/// The shape of a plain file that must be accepted.
std::optional<Shape> expected_shape(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return int64_t(uint8_t(bytes[i])); };
  if (!bytes.starts_with(std::string_view("\0\0\x08", 3)) || bytes.size() < 4) return {};
  const auto rank = std::size_t(at(3));
  if (rank < 1 || rank > 4 || bytes.size() < 4 + 4 * rank) return {};
  Shape shape;
  int64_t total = 1;
  for (std::size_t i = 4; i < 4 + 4 * rank; i += 4) {
    shape.push_back(at(i) << 24 | at(i + 1) << 16 | at(i + 2) << 8 | at(i + 3));
    total *= std::max<int64_t>(shape[shape.rank() - 1], 1);
    if (total > int64_t(1) << 31) return {};
  }
  if (numel_of(shape) != int64_t(bytes.size() - 4 - 4 * rank)) return {};
  return shape;
}
}  // namespace

void check(std::string_view bytes) {
  const std::optional<Tensor> image = read(bytes);
  require(peak_tensor_bytes() <= best_ratio * int64_t(bytes.size()),
          "a tensor is not larger than its file can be");
  if (image) require(image->dtype() == u8 && image->is_contiguous(), "elements are bytes");
  if (bytes.starts_with("\x1f\x8b")) return;

  const std::optional<Shape> shape = expected_shape(bytes);
  require(image.has_value() == shape.has_value(), "a file is read if its header is true");
  const std::optional<Tensor> packed = read(stored(bytes));
  require(packed.has_value() == image.has_value(), "compression changes nothing");
  if (!image) return;
  require(image->shape() == *shape, "the shape is the header's");
  const std::string_view elements = bytes.substr(bytes.size() - std::size_t(image->bytes()));
  require(std::equal(elements.begin(), elements.end(),
                     reinterpret_cast<const char*>(image->raw_data())),
          "the elements are the file's");
  require(same(*packed, *image), "compression changes no element");
}

}  // namespace halftone::fuzz
