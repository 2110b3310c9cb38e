// Sums and maxima of contiguous floats. Each block of 4096 elements is summed in 4 x lanes partial
// sums of float, the blocks in double: the error stays near that of a pairwise sum, whatever n is.
#include <halftone/backends/cpu/simd/local.h>

namespace halftone::simd::HALFTONE_ISA {

static constexpr int64_t block = 4096;

/// Equivalent to: float s = 0; for (i < n) s += term(x[i]);
template <bool Squared> static float block_sum(const float* x, int64_t n) {
  Vector sums[4]{};
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes)
    for (int k = 0; k < 4; ++k) {
      const Vector v = load(x + i + k * lanes);
      sums[k] += Squared ? v * v : v;
    }
  const Vector folded = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float total = 0;
  for (int k = 0; k < lanes; ++k) total += folded[k];
  for (; i < n; ++i) total += Squared ? x[i] * x[i] : x[i];
  return total;
}

static double sum(const float* x, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; i += block)
    total += block_sum<false>(x + i, n - i < block ? n - i : block);
  return total;
}

static double sum_of_squares(const float* x, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; i += block)
    total += block_sum<true>(x + i, n - i < block ? n - i : block);
  return total;
}

static float max(const float* x, int64_t n) {
  float partial[lanes];
  bool nan = false;
  for (int k = 0; k < lanes; ++k) partial[k] = -__builtin_inff();
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (int k = 0; k < lanes; ++k) {
      partial[k] = x[i + k] > partial[k] ? x[i + k] : partial[k];
      nan |= x[i + k] != x[i + k];
    }
  float largest = -__builtin_inff();
  for (int k = 0; k < lanes; ++k) largest = partial[k] > largest ? partial[k] : largest;
  for (; i < n; ++i) {
    largest = x[i] > largest ? x[i] : largest;
    nan |= x[i] != x[i];
  }
  return nan ? __builtin_nanf("") : largest;
}

static void add_rows(const float* x, int64_t rows, int64_t row_stride, int64_t n, float* y) {
  constexpr int width = 4 * lanes;
  int64_t j = 0;
  for (; j + width <= n; j += width) {
    Vector sums[4]{};
    for (int64_t i = 0; i < rows; ++i)
      for (int k = 0; k < 4; ++k) sums[k] += load(x + i * row_stride + j + k * lanes);
    for (int k = 0; k < 4; ++k) store(y + j + k * lanes, sums[k]);
  }
  for (; j + lanes <= n; j += lanes) {
    Vector sum{};
    for (int64_t i = 0; i < rows; ++i) sum += load(x + i * row_stride + j);
    store(y + j, sum);
  }
  for (; j < n; ++j) {
    float total = 0;
    for (int64_t i = 0; i < rows; ++i) total += x[i * row_stride + j];
    y[j] = total;
  }
}

void fill_reductions(Kernels& table) {
  table.sum = sum, table.sum_of_squares = sum_of_squares, table.max = max,
  table.add_rows = add_rows;
}

}  // namespace halftone::simd::HALFTONE_ISA
