// Splits matrices for both ways of blocking a matrix product (gemm.cpp, bf16_gemm.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include <halftone/backends/cpu/isa.h>
#include <halftone/backends/reference/runs.h>

namespace halftone::cpu {

/// Returns the matrix that begins at row i and column j of x.
inline simd::Matrix part(const simd::Matrix& x, int64_t i, int64_t j) {
  const int64_t size = x.element == simd::Element::f32 ? 4 : 2;
  return {static_cast<const std::byte*>(x.data) + (i * x.row + j * x.column) * size, x.element,
          x.row, x.column};
}

/// Returns the size of pieces of `total`: at most about `most`, a multiple of `unit`, and equal, so
/// that the last piece is not a small remainder.
inline int64_t even_piece(int64_t total, int64_t most, int64_t unit) {
  const int64_t piece = reference::pieces_of(total, reference::pieces_of(total, most));
  return reference::pieces_of(piece, unit) * unit;
}

}  // namespace halftone::cpu
