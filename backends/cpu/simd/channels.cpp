// Batch norm over [rows, n channels], with what models do to its result: the residual and relu. One
// pass over memory each; what is asked for is decided outside the loops.
#include <halftone/backends/cpu/simd/local.h>

namespace halftone::simd::HALFTONE_ISA {

template <bool adds, bool relu>
static void affine(const float* x, const float* scale, const float* shift, const float* residual,
                   float* y, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      float value = x[i] * scale[i] + shift[i];
      if constexpr (adds) value += residual[i];
      if constexpr (relu) value = value < 0.0f ? 0.0f : value;
      y[i] = value;
    }
    if constexpr (adds) residual += n;
  }
}

static void channel_affine(const float* x, const float* scale, const float* shift,
                           const float* residual, bool relu, float* y, int64_t rows, int64_t n) {
  if (residual) {
    if (relu) affine<true, true>(x, scale, shift, residual, y, rows, n);
    else affine<true, false>(x, scale, shift, residual, y, rows, n);
  } else {
    if (relu) affine<false, true>(x, scale, shift, residual, y, rows, n);
    else affine<false, false>(x, scale, shift, residual, y, rows, n);
  }
}

template <class V> static inline V at(const float* x) {
  if constexpr (sizeof(V) == sizeof(float)) return *x;
  else return load(x);
}

/// first += the sum over rows of a, second += that of b, where add(row, column, a, b) adds the
/// terms of `count` times as many neighbouring channels as a V has. Sums stay in registers, and no
/// chain of additions is longer than short_chain: rows join in blocks, these in larger ones.
template <class V, int count, class Add>
[[gnu::always_inline]] static inline void add_two(int64_t rows, int64_t column, const Add& add,
                                                  float* first, float* second) {
  constexpr int64_t width = sizeof(V) / sizeof(float);
  V sums_a[count]{}, sums_b[count]{};
  for (int64_t r = 0; r < rows;) {
    V blocks_a[count]{}, blocks_b[count]{};
    for (int64_t block = 0; block < short_chain && r < rows; ++block) {
      const int64_t end = rows - r < short_chain ? rows : r + short_chain;
      V a[count]{}, b[count]{};
      for (; r < end; ++r)
        for (int k = 0; k < count; ++k) add(r, column + k * width, a[k], b[k]);
      for (int k = 0; k < count; ++k) blocks_a[k] += a[k], blocks_b[k] += b[k];
    }
    for (int k = 0; k < count; ++k) sums_a[k] += blocks_a[k], sums_b[k] += blocks_b[k];
  }
  for (int k = 0; k < count; ++k) {
    float *to_a = first + column + k * width, *to_b = second + column + k * width;
    const V all_a = at<V>(to_a) + sums_a[k], all_b = at<V>(to_b) + sums_b[k];
    __builtin_memcpy(to_a, &all_a, sizeof(V)), __builtin_memcpy(to_b, &all_b, sizeof(V));
  }
}
template <class Add>
[[gnu::always_inline]] static inline void add_two_to_all(int64_t rows, int64_t n, const Add& add,
                                                         float* first, float* second) {
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) add_two<Vector, 4>(rows, i, add, first, second);
  for (; i + lanes <= n; i += lanes) add_two<Vector, 1>(rows, i, add, first, second);
  for (; i < n; ++i) add_two<float, 1>(rows, i, add, first, second);
}

static void channel_moments(const float* x, const float* mean, int64_t rows, int64_t n,
                            float* sum_d, float* sum_d2) {
  const auto add = [=]<class V>(int64_t r, int64_t i, V& sum, V& squares) {
    const V d = at<V>(x + r * n + i) - at<V>(mean + i);
    sum += d, squares += d * d;
  };
  add_two_to_all(rows, n, add, sum_d, sum_d2);
}

template <bool relu>
static void sums(const float* x, const float* dy, const float* output, const float* mean,
                 int64_t rows, int64_t n, float* sum_g, float* sum_gd) {
  const auto add = [=]<class V>(int64_t r, int64_t i, V& sum, V& products) {
    V g = at<V>(dy + r * n + i);
    if constexpr (relu) g = at<V>(output + r * n + i) > V{} ? g : V{};
    sum += g, products += g * (at<V>(x + r * n + i) - at<V>(mean + i));
  };
  add_two_to_all(rows, n, add, sum_g, sum_gd);
}

static void channel_sums(const float* x, const float* dy, const float* relu_output,
                         const float* mean, int64_t rows, int64_t n, float* sum_g, float* sum_gd) {
  if (relu_output) sums<true>(x, dy, relu_output, mean, rows, n, sum_g, sum_gd);
  else sums<false>(x, dy, relu_output, mean, rows, n, sum_g, sum_gd);
}

template <bool relu, bool writes_dx, bool writes_dresidual>
static void gradients(const float* x, const float* dy, const float* output, const float* a,
                      const float* b, const float* c, float* dx, float* dresidual, int64_t rows,
                      int64_t n) {
  for (int64_t r = 0; r < rows; ++r, x += n, dy += n) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      float g = dy[i];
      if constexpr (relu) g = output[i] > 0.0f ? g : 0.0f;
      if constexpr (writes_dresidual) dresidual[i] = g;
      if constexpr (writes_dx) dx[i] = a[i] * g + b[i] * x[i] + c[i];
    }
    if constexpr (relu) output += n;
    if constexpr (writes_dresidual) dresidual += n;
    if constexpr (writes_dx) dx += n;
  }
}

template <bool relu>
static void wanted_gradients(const float* x, const float* dy, const float* output, const float* a,
                             const float* b, const float* c, float* dx, float* dresidual,
                             int64_t rows, int64_t n) {
  if (!dx) gradients<relu, false, true>(x, dy, output, a, b, c, dx, dresidual, rows, n);
  else if (!dresidual) gradients<relu, true, false>(x, dy, output, a, b, c, dx, dresidual, rows, n);
  else gradients<relu, true, true>(x, dy, output, a, b, c, dx, dresidual, rows, n);
}

static void channel_backward(const float* x, const float* dy, const float* relu_output,
                             const float* a, const float* b, const float* c, float* dx,
                             float* dresidual, int64_t rows, int64_t n) {
  if (relu_output) wanted_gradients<true>(x, dy, relu_output, a, b, c, dx, dresidual, rows, n);
  else wanted_gradients<false>(x, dy, relu_output, a, b, c, dx, dresidual, rows, n);
}

void fill_channels(Kernels& table) {
  table.channel_affine = channel_affine, table.channel_moments = channel_moments;
  table.channel_sums = channel_sums, table.channel_backward = channel_backward;
}

}  // namespace halftone::simd::HALFTONE_ISA
