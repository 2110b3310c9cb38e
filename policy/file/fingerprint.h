// FNV-1a, 64 bits (Fowler, Noll, Vo 1991): a hash of names that determine seeds, and of policies
// that logs name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace halftone::policy {

class Fingerprint {
 public:
  Fingerprint& add(std::string_view text) {
    for (const char c : text) value_ = (value_ ^ uint8_t(c)) * 0x100000001b3u;
    return *this;
  }
  uint64_t value() const { return value_; }
  /// Returns 16 hexadecimal digits.
  std::string text() const {
    std::string digits(16, '0');
    uint64_t rest = value_;
    for (std::size_t i = 16; i-- > 0; rest >>= 4) digits[i] = "0123456789abcdef"[rest & 15];
    return digits;
  }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace halftone::policy
