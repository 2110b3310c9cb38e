// A number next to a tensor, in functions and operators that take both.
#pragma once

#include <concepts>

namespace halftone {

/// A number that remembers whether it was written as a whole number. As in PyTorch, 2 keeps the
/// dtype of an integer tensor, and 2.0 makes it f32. Floating tensors keep their dtype.
struct Number {
  double value;
  bool whole;
  template <std::integral T> constexpr Number(T number) : value(double(number)), whole(true) {}
  template <std::floating_point T>
  constexpr Number(T number) : value(double(number)), whole(false) {}
};

}  // namespace halftone
