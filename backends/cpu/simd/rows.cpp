// Row kernels: softmax, log-sum-exp, the parts of layer and group normalization.
#include <halftone/backends/cpu/simd/local.h>
#include <halftone/core/dtype.h>

namespace halftone::simd::HALFTONE_ISA {

static constexpr int ways =
    2 * lanes;  // independent partial sums, so that loops vectorize without reassociation

/// Number of terms that are summed together in float. The rest is added in double, so the error
/// does not grow with n.
static constexpr int64_t short_sum = 32 * ways;

template <class Term>
[[gnu::always_inline]] static inline double total_of(int64_t i, int64_t end, const Term& term) {
  float sums[ways]{};
  for (; i + ways <= end; i += ways)
    for (int k = 0; k < ways; ++k) sums[k] += term(i + k);
  for (; i + lanes <= end; i += lanes)
    for (int k = 0; k < lanes; ++k) sums[k] += term(i + k);
  double rest = 0;
  for (; i < end; ++i) rest += double(term(i));
  return rest + sum_of_lanes(load(sums) + load(sums + lanes));
}

/// Equivalent to: double s = 0; for (i < n) s += term(i);
template <class Term>
[[gnu::always_inline]] static inline double total(int64_t n, const Term& term) {
  if (n <= short_sum) return total_of(0, n, term);
  double result = 0;
  for (int64_t i = 0; i < n; i += short_sum)
    result += total_of(i, n - i > short_sum ? i + short_sum : n, term);
  return result;
}

static float largest(const float* x, int64_t n) {
  Vector best[2];
  for (Vector& some : best) some = -__builtin_inff() - Vector{};
  const auto larger = [](Vector a, Vector b) { return b > a ? b : a; };
  int64_t i = 0;
  for (; i + ways <= n; i += ways)
    for (int k = 0; k < 2; ++k) best[k] = larger(best[k], load(x + i + k * lanes));
  float result = over_lanes(larger(best[0], best[1]), larger);
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

static void softmax(const float* x, int64_t n, bool logarithm, float* y) {
  const float top = largest(x, n);
  if (logarithm) {
    const float log_sum =
        math::log(float(total(n, [=](int64_t i) { return math::exp_below(x[i] - top); })));
    // Not x - (top + log_sum): rounding that sum would lose digits of log_sum if top is larger.
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - top) - log_sum;
    return;
  }
  for (int64_t i = 0; i < n; ++i) y[i] = math::exp(x[i] - top);
  const auto inverse = float(1 / total(n, [=](int64_t i) { return y[i]; }));
  for (int64_t i = 0; i < n; ++i) y[i] *= inverse;
}

static void softmax_backward(const float* y, const float* dy, int64_t n, bool logarithm,
                             float* dx) {
  if (logarithm) {
    const auto sum = float(total(n, [=](int64_t i) { return dy[i]; }));
    for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] - math::exp(y[i]) * sum;
  } else {
    const auto sum = float(total(n, [=](int64_t i) { return dy[i] * y[i]; }));
    for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - sum);
  }
}

static float exp_sum(const float* x, int64_t n, float* shift) {
  const float top = largest(x, n);
  // Infinite values are not subtracted: exp(inf) and exp(-inf) are correct without it.
  const float by = top - top == 0.0f ? top : 0.0f;
  *shift = by;
  return float(total(n, [=](int64_t i) { return math::exp(x[i] - by); }));
}

static float dot(const float* a, const float* b, int64_t n) {
  return float(total(n, [=](int64_t i) { return a[i] * b[i]; }));
}

static void exp_shifted(const float* x, float shift, float scale, float* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = scale * math::exp(x[i] - shift);
}

/// Returns total() of numbers in memory; for a few vectors, without its loop over remainders.
static double sum_of(const float* x, int64_t n) {
  if (n > short_sum || n % lanes != 0) return total(n, [=](int64_t i) { return x[i]; });
  Vector sums[2]{};
  for (int64_t i = 0; i < n; i += lanes) sums[i / lanes % 2] += load(x + i);
  return sum_of_lanes(sums[0] + sums[1]);
}

static float exp_scaled(const float* x, float factor, float shift, float scale, float* y,
                        int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = scale * math::exp_below(factor * x[i] - shift);
  return float(sum_of(y, n));
}

static void softmax_gradient(const float* y, const float* dy, float mean, float scale, float* dx,
                             int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) dx[i] = scale * (y[i] * (dy[i] - mean));
}

static void moments(const float* x, int64_t n, float* mean, double* variance) {
  const auto m = float(total(n, [=](int64_t i) { return x[i]; }) / double(n));
  const auto v = float(total(n, [=](int64_t i) { return (x[i] - m) * (x[i] - m); }) / double(n));
  *mean = m, *variance = double(v);
  if (v >= 0x1p-80f && v <= 0x1p127f) return;
  // The sum or the squares exceed f32 or lose digits in it, although the numbers do not.
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(x[i]);
  const auto wide = float(sum / double(n));
  for (int64_t i = 0; i < n; ++i)
    squares += (double(x[i]) - double(wide)) * (double(x[i]) - double(wide));
  *mean = wide, *variance = squares / double(n);
}

static void normalize(const float* x, float mean, float rstd, const float* weight,
                      const float* bias, float* y, int64_t n) {
  if (weight && bias) {
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * rstd * weight[i] + bias[i];
  } else if (weight) {
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * rstd * weight[i];
  } else {
    for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * rstd + (bias ? bias[i] : 0.0f);
  }
}

// With z = (x - mean) rstd and g = dy weight:  dx = rstd (g - [mean(g)] - z mean(g z)), the bracket
// if centered. Reads a row twice: for the sums with weight's and bias's gradients, and for dx.
template <bool weighted>
static void norm_gradient(const float* x, float mean, float rstd, bool centred, const float* weight,
                          const float* dy, float* dx, float* dweight, float* dbias, int64_t n) {
  const Vector means = mean - Vector{}, scales = rstd - Vector{};
  double sum_g = 0, sum_gz = 0;
  int64_t i = 0;
  while (i + lanes <= n) {
    const int64_t end = n - i < short_sum ? n : i + short_sum;
    Vector of_g{}, of_gz{};
    for (; i + lanes <= end; i += lanes) {
      const Vector d = load(dy + i), z = (load(x + i) - means) * scales;
      if (dweight) store(dweight + i, load(dweight + i) + d * z);
      if (dbias) store(dbias + i, load(dbias + i) + d);
      const Vector g = weighted ? d * load(weight + i) : d;
      of_g += g, of_gz += g * z;
    }
    sum_g += sum_of_lanes(of_g), sum_gz += sum_of_lanes(of_gz);
  }
  for (; i < n; ++i) {
    const float z = (x[i] - mean) * rstd, g = weighted ? dy[i] * weight[i] : dy[i];
    if (dweight) dweight[i] += dy[i] * z;
    if (dbias) dbias[i] += dy[i];
    sum_g += double(g), sum_gz += double(g * z);
  }
  if (!dx) return;
  const float mean_g = centred ? float(sum_g / double(n)) : 0.0f,
              mean_gz = float(sum_gz / double(n));
#pragma GCC ivdep
  for (int64_t j = 0; j < n; ++j) {
    const float g = weighted ? dy[j] * weight[j] : dy[j];
    dx[j] = rstd * (g - mean_g - (x[j] - mean) * rstd * mean_gz);
  }
}
static void norm_backward(const float* x, float mean, float rstd, bool centred, const float* weight,
                          const float* dy, float* dx, float* dweight, float* dbias, int64_t n) {
  if (weight) norm_gradient<true>(x, mean, rstd, centred, weight, dy, dx, dweight, dbias, n);
  else norm_gradient<false>(x, mean, rstd, centred, weight, dy, dx, dweight, dbias, n);
  // One element is its own mean: g - mean(g) would be a rounding error times a large rstd.
  if (n == 1 && centred && dx) dx[0] = 0;
}

static void affine(const float* x, float mean, float scale, float shift, float* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * scale + shift;
}

static void centred_sums(const float* x, float mean, const float* dy, int64_t n, double* sum,
                         double* product) {
  *sum = total(n, [=](int64_t i) { return dy[i]; });
  *product = total(n, [=](int64_t i) { return dy[i] * (x[i] - mean); });
}

static void affine_gradient(const float* x, float mean, const float* dy, float a, float b, float c,
                            float* dx, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) dx[i] = a * dy[i] + (b * (x[i] - mean) + c);
}

void fill_rows(Kernels& table) {
  table.softmax = softmax, table.softmax_backward = softmax_backward, table.exp_sum = exp_sum,
  table.dot = dot;
  table.exp_scaled = exp_scaled, table.softmax_gradient = softmax_gradient;
  table.exp_shifted = exp_shifted, table.moments = moments, table.normalize = normalize;
  table.norm_backward = norm_backward;
  table.affine = affine, table.centred_sums = centred_sums;
  table.affine_gradient = affine_gradient;
}

// Batch norm over [rows, n channels], with the usual operations on its result: the residual and
// relu. One pass over memory each; which outputs are wanted is decided outside the loops.

[[gnu::always_inline]] static inline float value(float x) { return x; }
[[gnu::always_inline]] static inline float value(uint16_t bf16) {
  return __builtin_bit_cast(float, uint32_t(bf16) << 16);
}
[[gnu::always_inline]] static inline void put(float x, float* to) { *to = x; }
[[gnu::always_inline]] static inline void put(float x, uint16_t* to) { *to = BFloat16::round(x); }

template <bool adds, bool relu, class E>
static void affine(const E* x, const float* mean, const float* scale, const float* shift,
                   const E* residual, E* y, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      float result = (value(x[i]) - mean[i]) * scale[i] + shift[i];
      if constexpr (adds) result += value(residual[i]);
      if constexpr (relu) result = result < 0.0f ? 0.0f : result;
      put(result, y + i);
    }
    if constexpr (adds) residual += n;
  }
}

template <class E>
static void channel_affine(const E* x, const float* mean, const float* scale, const float* shift,
                           const E* residual, bool relu, E* y, int64_t rows, int64_t n) {
  if (residual) {
    if (relu) affine<true, true>(x, mean, scale, shift, residual, y, rows, n);
    else affine<true, false>(x, mean, scale, shift, residual, y, rows, n);
  } else {
    if (relu) affine<false, true>(x, mean, scale, shift, residual, y, rows, n);
    else affine<false, false>(x, mean, scale, shift, residual, y, rows, n);
  }
}

static inline Vector load(const uint16_t* bf16) {
  using Shorts [[gnu::vector_size(vector_bytes / 2)]] = uint16_t;
  using Words [[gnu::vector_size(vector_bytes)]] = uint32_t;
  Shorts shorts;
  __builtin_memcpy(&shorts, bf16, sizeof shorts);
  return (Vector)(__builtin_convertvector(shorts, Words) << 16);
}
/// V: a vector of neighbors, or a single one as double.
template <class V, class E> static inline V at(const E* x) {
  if constexpr (sizeof(V) == sizeof(double)) return double(value(*x));
  else return load(x);
}

static inline void join(double x, double* totals) { *totals += x; }
static inline void join(Vector x, double* totals) {
  float values[lanes];
  store(values, x);
  for (int i = 0; i < lanes; ++i) totals[i] += double(values[i]);
}

/// Computes first += the sum of a over some rows, second += that of b. add(row, column, a, b) adds
/// the terms of `count` times as many neighboring channels as a V has. Even and odd rows have
/// separate sums: the chains of additions are half as long and do not wait for each other.
template <class V, int count, class Add>
[[gnu::always_inline]] static inline void add_two(int64_t begin, int64_t end, int64_t column,
                                                  const Add& add, double* first, double* second) {
  constexpr int64_t width = count == 1 ? 1 : lanes;
  V a[2][count]{}, b[2][count]{};
  int64_t r = begin;
  for (; r + 2 <= end; r += 2)
    for (int k = 0; k < count; ++k) {
      add(r, column + k * width, a[0][k], b[0][k]);
      add(r + 1, column + k * width, a[1][k], b[1][k]);
    }
  for (int k = 0; k < count; ++k) {
    if (r < end) add(r, column + k * width, a[0][k], b[0][k]);
    join(a[0][k] + a[1][k], first + column + k * width);
    join(b[0][k] + b[1][k], second + column + k * width);
  }
}
template <class Add>
[[gnu::always_inline]] static inline void add_two_to_all(int64_t rows, int64_t n, const Add& add,
                                                         double* first, double* second) {
  constexpr int count = lanes == 16 ? 4 : 2;  // as many as there are registers
  for (int64_t r = 0; r < rows; r += short_chain) {
    const int64_t end = rows - r < short_chain ? rows : r + short_chain;
    int64_t i = 0;
    for (; i + count * lanes <= n; i += count * lanes)
      add_two<Vector, count>(r, end, i, add, first, second);
    for (; i + lanes <= n; i += lanes) add_two<Vector, 1>(r, end, i, add, first, second);
    for (; i < n; ++i) add_two<double, 1>(r, end, i, add, first, second);
  }
}

static void channel_moments(const float* x, const float* mean, int64_t rows, int64_t n,
                            double* sum_d, double* sum_d2) {
  const auto add = [=]<class V>(int64_t r, int64_t i, V& sum, V& squares) {
    const V d = at<V>(x + r * n + i) - at<V>(mean + i);
    sum += d, squares += d * d;
  };
  add_two_to_all(rows, n, add, sum_d, sum_d2);
}

template <bool relu, class E>
static void sums(const E* x, const E* dy, const E* output, const float* mean, int64_t rows,
                 int64_t n, double* sum_g, double* sum_gd) {
  const auto add = [=]<class V>(int64_t r, int64_t i, V& sum, V& products) {
    V g = at<V>(dy + r * n + i);
    if constexpr (relu) g = at<V>(output + r * n + i) > V{} ? g : V{};
    sum += g, products += g * (at<V>(x + r * n + i) - at<V>(mean + i));
  };
  add_two_to_all(rows, n, add, sum_g, sum_gd);
}

template <class E>
static void channel_sums(const E* x, const E* dy, const E* relu_output, const float* mean,
                         int64_t rows, int64_t n, double* sum_g, double* sum_gd) {
  if (relu_output) sums<true>(x, dy, relu_output, mean, rows, n, sum_g, sum_gd);
  else sums<false>(x, dy, relu_output, mean, rows, n, sum_g, sum_gd);
}

template <bool relu, bool writes_dx, bool writes_dresidual, class E>
static void gradients(const E* x, const E* dy, const E* output, const float* mean, const float* a,
                      const float* b, const float* c, E* dx, E* dresidual, int64_t rows,
                      int64_t n) {
  for (int64_t r = 0; r < rows; ++r, x += n, dy += n) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      float g = value(dy[i]);
      if constexpr (relu) g = value(output[i]) > 0.0f ? g : 0.0f;
      if constexpr (writes_dresidual) put(g, dresidual + i);
      if constexpr (writes_dx) put(a[i] * g + b[i] * (value(x[i]) - mean[i]) + c[i], dx + i);
    }
    if constexpr (relu) output += n;
    if constexpr (writes_dresidual) dresidual += n;
    if constexpr (writes_dx) dx += n;
  }
}

template <bool relu, class E>
static void wanted_gradients(const E* x, const E* dy, const E* output, const float* mean,
                             const float* a, const float* b, const float* c, E* dx, E* dresidual,
                             int64_t rows, int64_t n) {
  if (!dx) gradients<relu, false, true>(x, dy, output, mean, a, b, c, dx, dresidual, rows, n);
  else if (!dresidual)
    gradients<relu, true, false>(x, dy, output, mean, a, b, c, dx, dresidual, rows, n);
  else gradients<relu, true, true>(x, dy, output, mean, a, b, c, dx, dresidual, rows, n);
}

template <class E>
static void channel_backward(const E* x, const E* dy, const E* relu_output, const float* mean,
                             const float* a, const float* b, const float* c, E* dx, E* dresidual,
                             int64_t rows, int64_t n) {
  if (relu_output)
    wanted_gradients<true>(x, dy, relu_output, mean, a, b, c, dx, dresidual, rows, n);
  else wanted_gradients<false>(x, dy, relu_output, mean, a, b, c, dx, dresidual, rows, n);
}

void fill_channels(Kernels& table) {
  table.channels = {channel_affine<float>, channel_sums<float>, channel_backward<float>};
  table.bf16_channels = {channel_affine<uint16_t>, channel_sums<uint16_t>,
                         channel_backward<uint16_t>};
  table.channel_moments = channel_moments;
}

// Sums and extremes of contiguous floats. Each block of 4096 elements is summed in 4 x lanes
// partial sums in float, in two levels; these and the blocks are added in double. The error stays
// near that of a pairwise sum for every n.

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
