// A number next to a tensor, in functions and operators that take both.
#pragma once

#include <concepts>
#include <utility>

#include <halftone/core/dtype.h>

namespace halftone {

/// A number that remembers whether it was written as a whole number. As in PyTorch, 2 keeps the
/// dtype of an integer tensor, and 2.0 makes it f32. Floating tensors keep their dtype. A whole
/// number is kept as an integer as well, because a double does not hold every one beyond 2^53.
struct Number {
  double value;
  int64_t integer;  // 0 unless whole
  bool whole;
  template <std::integral T>
  constexpr Number(T number) : value(double(number)), integer(int64_t(number)), whole(true) {
    if (!std::in_range<int64_t>(+number))
      fail<UsageError>("Number", "the value ", number,
                       " is larger than an i64 can be. Use a smaller one.");
  }
  template <std::floating_point T>
  constexpr Number(T number) : value(double(number)), integer(0), whole(false) {}

  /// Returns whether `value` is the number itself.
  constexpr bool in_double() const {
    constexpr int64_t most = int64_t(1) << 53;
    return !whole || (integer >= -most && integer <= most);
  }
  /// Returns the number as an element of a tensor.
  template <class T> constexpr T as() const {
    if constexpr (std::is_same_v<T, int64_t>)
      if (whole) return integer;
    return convert<T>(value);
  }
  /// Returns the opposite; that of the least integer is itself, modulo 2^64.
  constexpr Number operator-() const {
    Number result = *this;
    result.value = -value, result.integer = int64_t(-uint64_t(integer));
    return result;
  }
};

}  // namespace halftone
