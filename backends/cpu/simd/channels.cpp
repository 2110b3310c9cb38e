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

static void channel_moments(const float* x, const float* mean, int64_t rows, int64_t n,
                            float* sum_d, float* sum_d2) {
  for (int64_t r = 0; r < rows; ++r, x += n)
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      const float d = x[i] - mean[i];
      sum_d[i] += d, sum_d2[i] += d * d;
    }
}

template <bool relu>
static void sums(const float* x, const float* dy, const float* output, const float* mean,
                 int64_t rows, int64_t n, float* sum_g, float* sum_gd) {
  for (int64_t r = 0; r < rows; ++r, x += n, dy += n) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) {
      float g = dy[i];
      if constexpr (relu) g = output[i] > 0.0f ? g : 0.0f;
      sum_g[i] += g, sum_gd[i] += g * (x[i] - mean[i]);
    }
    if constexpr (relu) output += n;
  }
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
