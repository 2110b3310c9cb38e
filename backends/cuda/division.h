// Quotient and remainder by a number that is known before a kernel starts, as a multiplication, for
// kernels that split one index into several. Granlund & Montgomery 1994, "Division by invariant
// integers using multiplication".
#pragma once

#include <cstdint>
#include <limits>

#include <halftone/core/language.h>

namespace halftone::cuda {

/// Divides by 1 .. 2^31 - 1.
class Divisor {
 public:
  /// A value of 0, from a tensor without elements, counts as 1.
  explicit Divisor(int64_t value) : value_(value > 0 ? uint32_t(value) : 1) {
    while ((uint64_t(1) << shift_) < value_) ++shift_;
    const uint64_t excess = (uint64_t(1) << shift_) - value_;
    multiplier_ = uint32_t((excess << 32) / value_ + 1);
  }
  struct Parts {
    int64_t quotient;
    int remainder;
  };
  /// Divides a number from 0 to 2^31 - 1.
  HT_HD int quotient(int number) const {
    const uint32_t n = uint32_t(number);
    return int((uint32_t(uint64_t(n) * multiplier_ >> 32) + n) >> shift_);
  }
  /// Divides any number that is not negative.
  HT_HD Parts split(int64_t number) const {
    if (number > std::numeric_limits<int32_t>::max())
      return {number / value_, int(number % value_)};
    const int q = quotient(int(number));
    return {q, int(number) - q * int(value_)};
  }

 private:
  uint32_t value_, multiplier_ = 0, shift_ = 0;
};

}  // namespace halftone::cuda
