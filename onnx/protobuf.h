// Writes messages in the wire format of Protocol Buffers. ONNX files need three kinds of fields:
// varints, 32-bit floats, and lengths followed by bytes. A reader is not needed.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace halftone::onnx {

/// A message, as bytes. Each function appends a field of the given number.
class Message {
 public:
  /// For int32, int64, enum and bool.
  Message& number(int field, int64_t value) {
    varint(uint64_t(field) << 3);
    varint(uint64_t(value));
    return *this;
  }
  /// For string and bytes.
  Message& text(int field, std::string_view bytes) {
    varint(uint64_t(field) << 3 | 2);
    varint(bytes.size());
    bytes_ += bytes;
    return *this;
  }
  Message& message(int field, const Message& inner) { return text(field, inner.bytes_); }
  /// For float: little-endian, as Protocol Buffers demand.
  Message& real(int field, float value) {
    varint(uint64_t(field) << 3 | 5);
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int i = 0; i < 4; ++i) bytes_ += char(bits >> (8 * i) & 0xff);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += char((value & 0x7f) | 0x80);
    bytes_ += char(value);
  }
  std::string bytes_;
};

}  // namespace halftone::onnx
