// Sums and maxima of contiguous floats. Each block of 4096 elements is summed in 4 x lanes partial
// sums of float, in two levels; these and the blocks in double: the error stays near that of a
// pairwise sum, whatever n is.
#include <halftone/backends/cpu/simd/local.h>

namespace halftone::simd::HALFTONE_ISA {

static constexpr int64_t block = 4096;

/// Equivalent to: float s = 0; for (i < n) s += term(x[i]);
template <bool Squared> static double block_sum(const float* x, int64_t n) {
  constexpr int64_t piece = 4 * lanes * 16;
  Vector sums[4]{};
  int64_t i = 0;
  while (i + 4 * lanes <= n) {
    const int64_t end = n - i < piece ? n : i + piece;
    Vector some[4]{};
    for (; i + 4 * lanes <= end; i += 4 * lanes)
      for (int k = 0; k < 4; ++k) {
        const Vector v = load(x + i + k * lanes);
        some[k] += Squared ? v * v : v;
      }
    for (int k = 0; k < 4; ++k) sums[k] += some[k];
  }
  const Vector folded = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double total = 0;
  for (int k = 0; k < lanes; ++k) total += double(folded[k]);
  for (; i < n; ++i) total += Squared ? double(x[i]) * double(x[i]) : double(x[i]);
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

/// y = the sums of `count` vectors side by side, some rows at a time, so that no chain of
/// additions is longer than short_chain and the number of such blocks.
template <int count>
static void add_vectors(const float* x, int64_t rows, int64_t row_stride, float* y) {
  Vector sums[count]{};
  for (int64_t i = 0; i < rows;) {
    Vector blocks[count]{};
    for (int64_t block = 0; block < short_chain && i < rows; ++block) {
      const int64_t end = rows - i < short_chain ? rows : i + short_chain;
      Vector some[count]{};
      for (; i < end; ++i)
        for (int k = 0; k < count; ++k) some[k] += load(x + i * row_stride + k * lanes);
      for (int k = 0; k < count; ++k) blocks[k] += some[k];
    }
    for (int k = 0; k < count; ++k) sums[k] += blocks[k];
  }
  for (int k = 0; k < count; ++k) store(y + k * lanes, sums[k]);
}

static void add_rows(const float* x, int64_t rows, int64_t row_stride, int64_t n, float* y) {
  int64_t j = 0;
  for (; j + 4 * lanes <= n; j += 4 * lanes) add_vectors<4>(x + j, rows, row_stride, y + j);
  for (; j + lanes <= n; j += lanes) add_vectors<1>(x + j, rows, row_stride, y + j);
  for (; j < n; ++j) {
    double total = 0;
    for (int64_t first = 0; first < rows; first += short_chain) {
      const int64_t end = rows - first < short_chain ? rows : first + short_chain;
      float some = 0;
      for (int64_t i = first; i < end; ++i) some += x[i * row_stride + j];
      total += double(some);
    }
    y[j] = float(total);
  }
}

void fill_reductions(Kernels& table) {
  table.sum = sum, table.sum_of_squares = sum_of_squares, table.max = max,
  table.add_rows = add_rows;
}

}  // namespace halftone::simd::HALFTONE_ISA
