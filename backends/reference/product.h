// The only inner loop of matmul and convolution: a vector times a matrix, added to a vector, in
// double.
#pragma once

#include <cstdint>

namespace halftone::reference {

/// Computes c[j] += sum over p of a[p a_step] b[p b_step + j] for j < width. The inner loop runs
/// along contiguous memory.
inline void add_product(int64_t depth, int64_t width, const double* a, int64_t a_step,
                        const double* b, int64_t b_step, double* c) {
  int64_t p = 0;
  for (; p + 4 <= depth; p += 4) {  // four rows of b for one pass over c
    const double a0 = a[p * a_step], a1 = a[(p + 1) * a_step];
    const double a2 = a[(p + 2) * a_step], a3 = a[(p + 3) * a_step];
    const double *b0 = b + p * b_step, *b1 = b0 + b_step, *b2 = b1 + b_step, *b3 = b2 + b_step;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) c[j] += a0 * b0[j] + a1 * b1[j] + (a2 * b2[j] + a3 * b3[j]);
  }
  for (; p < depth; ++p) {
    const double factor = a[p * a_step];
    const double* const row = b + p * b_step;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) c[j] += factor * row[j];
  }
}

}  // namespace halftone::reference
