// Batch norm over [rows, n channels], with the usual operations on its result: the residual and
// relu. One pass over memory each; which outputs are wanted is decided outside the loops.
#include <halftone/backends/cpu/simd/local.h>
#include <halftone/core/dtype.h>

namespace halftone::simd::HALFTONE_ISA {

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

}  // namespace halftone::simd::HALFTONE_ISA
