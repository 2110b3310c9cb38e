// Arithmetic on sizes that come from users: an overflow of 64 bits is detected, not undefined.
#pragma once

#include <cstdint>

namespace halftone {

/// An integer that remembers whether any operation that led to it overflowed.
struct Checked {
  int64_t value = 0;
  bool overflowed = false;

  // NOLINTNEXTLINE(google-explicit-constructor): so that formulas read as they do with int64_t
  Checked(int64_t number) : value(number) {}

  friend Checked operator+(Checked a, Checked b) {
    a.overflowed |= __builtin_add_overflow(a.value, b.value, &a.value) || b.overflowed;
    return a;
  }
  friend Checked operator-(Checked a, Checked b) {
    a.overflowed |= __builtin_sub_overflow(a.value, b.value, &a.value) || b.overflowed;
    return a;
  }
  friend Checked operator*(Checked a, Checked b) {
    a.overflowed |= __builtin_mul_overflow(a.value, b.value, &a.value) || b.overflowed;
    return a;
  }
};

}  // namespace halftone
