// A number next to a tensor, in functions and operators of both.
#pragma once

#include <concepts>

namespace halftone {

/// Remembers whether it was written as a whole number: as in PyTorch, 2 leaves a tensor of integers
/// integers, and 2.0 makes it f32. Floating tensors keep their dtype.
struct Number {
  double value;
  bool whole;
  template <std::integral T> constexpr Number(T number) : value(double(number)), whole(true) {}
  template <std::floating_point T>
  constexpr Number(T number) : value(double(number)), whole(false) {}
};

}  // namespace halftone
