// Sums and extremes of contiguous floats. Each block of 4096 elements is summed in 4 x lanes
// partial sums in float, in two levels; these and the blocks are added in double. The error stays
// near that of a pairwise sum for every n.
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
  double total = sum_of_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < n; ++i) total += Squared ? double(x[i]) * double(x[i]) : double(x[i]);
  return total;
}

static double sum(const float* x, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; i += block)
    total += block_sum<false>(x + i, n - i < block ? n - i : block);
  return total;
}

static double sum_of_wide_squares(const float* x, int64_t n) {
  double sums[4 * lanes]{};
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes)
    for (int k = 0; k < 4 * lanes; ++k) sums[k] += double(x[i + k]) * double(x[i + k]);
  double total = 0;
  for (const double some : sums) total += some;
  for (; i < n; ++i) total += double(x[i]) * double(x[i]);
  return total;
}

/// Squares a block in float, and again in double if float does not hold the squares: their sum is
/// then infinite, or so small that squares lost digits below the smallest float.
static double sum_of_squares(const float* x, int64_t n) {
  constexpr double least = 0x1p-80, most = 0x1p127;
  double total = 0;
  for (int64_t i = 0; i < n; i += block) {
    const int64_t count = n - i < block ? n - i : block;
    const double sum = block_sum<true>(x + i, count);
    total += sum >= least && sum <= most ? sum : sum_of_wide_squares(x + i, count);
  }
  return total;
}

/// Returns the larger (smaller) of two, or NaN if either is NaN.
template <bool Largest, class V> static inline V extreme_of(V a, V b) {
  const V other = Largest ? (b > a ? b : a) : (b < a ? b : a);
  return b != b ? b : (a != a ? a : other);
}

template <bool Largest>
static constexpr float worst = Largest ? -__builtin_inff() : __builtin_inff();

template <bool Largest> static float extreme(const float* x, int64_t n) {
  Vector best[4], wrong[4]{};  // wrong: NaN if one was seen
  for (Vector& some : best) some = worst<Largest> - Vector{};
  const auto see = [&](int k, Vector v) __attribute__((always_inline)) {
    best[k] = Largest ? (v > best[k] ? v : best[k]) : (v < best[k] ? v : best[k]);
    wrong[k] = v != v ? v : wrong[k];
  };
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes)
    for (int k = 0; k < 4; ++k) see(k, load(x + i + k * lanes));
  for (; i + lanes <= n; i += lanes) see(0, load(x + i));
  if (i < n) {  // some numbers may be read twice
    Vector last = worst<Largest> - Vector{};
    if (n >= lanes) last = load(x + n - lanes);
    else __builtin_memcpy(&last, x, std::size_t(n) * sizeof(float));
    see(1, last);
  }
  const auto further = [](Vector a, Vector b) {
    return Largest ? (a > b ? a : b) : (a < b ? a : b);
  };
  const float result =
      over_lanes(further(further(best[0], best[1]), further(best[2], best[3])), further);
  // Zeros, or NaN if one was seen.
  const float nan = over_lanes((wrong[0] + wrong[1]) + (wrong[2] + wrong[3]),
                               [](Vector a, Vector b) { return a + b; });
  return nan != nan ? nan : result;
}

template <bool Largest>
static void extreme_rows(const float* x, int64_t rows, int64_t row_stride, int64_t n, float* y) {
  for (int64_t i = 0; i < rows; ++i, x += row_stride) {
    int64_t j = 0;
    for (; j + lanes <= n; j += lanes) store(y + j, extreme_of<Largest>(load(y + j), load(x + j)));
    for (; j < n; ++j) y[j] = extreme_of<Largest>(y[j], x[j]);
  }
}

/// Computes y = the sums of `count` vectors side by side: eight rows at a time in a tree, and their
/// sums in double. It needs as many additions as a chain, with the error of only three.
template <int count>
static void add_vectors(const float* x, int64_t rows, int64_t row_stride, float* y) {
  double totals[count * lanes]{};
  const auto take_in = [&](const Vector(&some)[count]) {
    float values[count * lanes];
    __builtin_memcpy(values, &some, sizeof values);
    for (int i = 0; i < count * lanes; ++i) totals[i] += double(values[i]);
  };
  int64_t i = 0;
  for (; i + 8 <= rows; i += 8) {
    Vector some[count];
    for (int k = 0; k < count; ++k) {
      const float* from = x + i * row_stride + k * lanes;
      const auto pair = [=](int64_t r) {
        return load(from + r * row_stride) + load(from + (r + 1) * row_stride);
      };
      some[k] = (pair(0) + pair(2)) + (pair(4) + pair(6));
    }
    take_in(some);
  }
  if (i < rows) {
    Vector some[count]{};
    for (; i < rows; ++i)
      for (int k = 0; k < count; ++k) some[k] += load(x + i * row_stride + k * lanes);
    take_in(some);
  }
  for (int j = 0; j < count * lanes; ++j) y[j] = float(totals[j]);
}

static void add_rows(const float* x, int64_t rows, int64_t row_stride, int64_t n, float* y) {
  int64_t j = 0;
  for (; j + 4 * lanes <= n; j += 4 * lanes) add_vectors<4>(x + j, rows, row_stride, y + j);
  for (; j + lanes <= n; j += lanes) add_vectors<1>(x + j, rows, row_stride, y + j);
  for (; j < n; ++j) {
    double totals[4]{};  // independent, so that additions do not wait for each other
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4)
      for (int k = 0; k < 4; ++k) totals[k] += double(x[(i + k) * row_stride + j]);
    for (; i < rows; ++i) totals[0] += double(x[i * row_stride + j]);
    y[j] = float((totals[0] + totals[1]) + (totals[2] + totals[3]));
  }
}

/// Computes totals += x.
static void join(const float* x, double* totals, int64_t n) {
  for (int64_t i = 0; i < n; ++i) totals[i] += double(x[i]);
}

void fill_reductions(Kernels& table) {
  table.sum = sum, table.sum_of_squares = sum_of_squares;
  table.sum_of_wide_squares = sum_of_wide_squares, table.max = extreme<true>,
  table.min = extreme<false>, table.max_rows = extreme_rows<true>;
  table.min_rows = extreme_rows<false>;
  table.add_rows = add_rows, table.join = join;
}

}  // namespace halftone::simd::HALFTONE_ISA
