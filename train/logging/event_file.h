// Writes TensorBoard's event files without a library. A file is a sequence of TFRecords, each
//   u64 length | u32 masked CRC of the length | bytes | u32 masked CRC of the bytes
// (little endian; tensorflow/core/lib/io/record_writer.h; the CRC is Castagnoli's, RFC 3720, B.4),
// whose bytes are Event messages (tensorflow/core/util/event.proto, framework/summary.proto) in the
// wire format of protocol buffers (protobuf.dev/programming-guides/encoding).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace halftone::train::event_file {

namespace detail {
constexpr std::array<uint32_t, 256> crc_table = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit)
      remainder = remainder >> 1 ^ (remainder & 1 ? 0x82f63b78u : 0u);
    table[byte] = remainder;
  }
  return table;
}();

template <class Word> void append_little_endian(std::string& to, Word word) {
  for (std::size_t i = 0; i < sizeof word; ++i) to += char(word >> (8 * i) & 0xff);
}
}  // namespace detail

/// CRC-32C of the bytes.
constexpr uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes)
    crc = crc >> 8 ^ detail::crc_table[(crc ^ static_cast<unsigned char>(c)) & 0xff];
  return ~crc;
}
/// Returns the CRC as TFRecords store it: masked, so that a CRC over stored CRCs stays useful.
constexpr uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

// --- protocol buffers: a key is (field number << 3 | wire type)

inline void append_varint(std::string& to, uint64_t value) {
  for (; value >= 0x80; value >>= 7) to += char(value | 0x80);
  to += char(value);
}
inline void append_integer(std::string& to, int field, int64_t value) {
  append_varint(to, uint64_t(field) << 3);
  append_varint(to, uint64_t(value));
}
inline void append_double(std::string& to, int field, double value) {
  append_varint(to, uint64_t(field) << 3 | 1);
  detail::append_little_endian(to, std::bit_cast<uint64_t>(value));
}
inline void append_float(std::string& to, int field, float value) {
  append_varint(to, uint64_t(field) << 3 | 5);
  detail::append_little_endian(to, std::bit_cast<uint32_t>(value));
}
/// Appends a string or a nested message.
inline void append_bytes(std::string& to, int field, std::string_view bytes) {
  append_varint(to, uint64_t(field) << 3 | 2);
  append_varint(to, bytes.size());
  to += bytes;
}

/// Returns a TFRecord with the bytes.
inline std::string framed(std::string_view bytes) {
  std::string record;
  detail::append_little_endian(record, uint64_t(bytes.size()));
  detail::append_little_endian(record, masked_crc(record));
  record += bytes;
  detail::append_little_endian(record, masked_crc(bytes));
  return record;
}

}  // namespace halftone::train::event_file
