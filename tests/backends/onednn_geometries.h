// Calls the oneDNN primitives of the CPU backend directly on random geometries, and compares them
// with the reference to the bit. Inputs are small integers, so that every order of a sum gives the
// same f32, which is rounded once. The memory between and around their elements is NaN, which shows
// in a result if a primitive uses it.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>

#include <halftone/core/dtype.h>

namespace halftone::test {

enum class Primitive { conv, conv_backward_data, conv_backward_weights, matmul };
std::span<const std::string_view> primitive_names();

struct Comparison {
  bool served = false;       // oneDNN did the work
  std::string difference{};  // the geometry, and the first element that differs; empty: none
};

/// Draws a geometry and compares one call. `dtype` is that of the inputs, f32 or bf16.
Comparison compare_onednn(Primitive primitive, DType dtype, std::mt19937& random);

}  // namespace halftone::test
