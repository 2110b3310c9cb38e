// Row kernels: softmax, log-sum-exp, the pieces of layer normalisation.
#include <halftone/backends/cpu/simd/local.h>

namespace halftone::simd::HALFTONE_ISA {

static constexpr int ways =
    2 * lanes;  // independent partial sums, so that loops vectorise without reassociation

/// Equivalent to: float s = 0; for (i < n) s += term(i);
template <class Term>
[[gnu::always_inline]] static inline float total(int64_t n, const Term& term) {
  float sums[ways]{};
  int64_t i = 0;
  for (; i + ways <= n; i += ways)
    for (int k = 0; k < ways; ++k) sums[k] += term(i + k);
  float rest = 0;
  for (; i < n; ++i) rest += term(i);
  for (int k = 0; k < ways; ++k) rest += sums[k];
  return rest;
}

static float largest(const float* x, int64_t n) {
  float best[ways];
  for (int k = 0; k < ways; ++k) best[k] = -__builtin_inff();
  int64_t i = 0;
  for (; i + ways <= n; i += ways)
    for (int k = 0; k < ways; ++k) best[k] = x[i + k] > best[k] ? x[i + k] : best[k];
  float result = -__builtin_inff();
  for (int k = 0; k < ways; ++k) result = best[k] > result ? best[k] : result;
  for (; i < n; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

static void softmax(const float* x, int64_t n, bool logarithm, float* y) {
  const float top = largest(x, n);
  if (logarithm) {
    const float shift = top + math::log(total(n, [=](int64_t i) { return math::exp(x[i] - top); }));
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] - shift;
    return;
  }
  for (int64_t i = 0; i < n; ++i) y[i] = math::exp(x[i] - top);
  const float inverse = 1.0f / total(n, [=](int64_t i) { return y[i]; });
  for (int64_t i = 0; i < n; ++i) y[i] *= inverse;
}

static void softmax_backward(const float* y, const float* dy, int64_t n, bool logarithm,
                             float* dx) {
  if (logarithm) {
    const float sum = total(n, [=](int64_t i) { return dy[i]; });
    for (int64_t i = 0; i < n; ++i) dx[i] = dy[i] - math::exp(y[i]) * sum;
  } else {
    const float sum = total(n, [=](int64_t i) { return dy[i] * y[i]; });
    for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - sum);
  }
}

static float log_sum_exp(const float* x, int64_t n) {
  const float top = largest(x, n);
  if (top - top !=
      0.0f) {  // infinite: all -inf gives -inf, any +inf gives +inf, NaN passes through the sum
    const float sum = total(n, [=](int64_t i) { return x[i]; });
    return sum != sum ? sum : top;
  }
  return top + math::log(total(n, [=](int64_t i) { return math::exp(x[i] - top); }));
}

static void exp_shifted(const float* x, float shift, float scale, float* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = scale * math::exp(x[i] - shift);
}

static float exp_scaled(const float* x, float factor, float shift, float* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = math::exp(factor * x[i] - shift);
  return total(n, [=](int64_t i) { return y[i]; });
}

static void softmax_gradient(const float* y, const float* dy, float mean, float scale, float* dx,
                             int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) dx[i] = scale * (y[i] * (dy[i] - mean));
}

static void moments(const float* x, int64_t n, float* mean, float* variance) {
  const float m = total(n, [=](int64_t i) { return x[i]; }) / float(n);
  *mean = m;
  *variance = total(n, [=](int64_t i) { return (x[i] - m) * (x[i] - m); }) / float(n);
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
// if centred.
static void norm_backward(const float* x, float mean, float rstd, bool centred, const float* weight,
                          const float* dy, float* dx, float* dweight, float* dbias, int64_t n) {
  if (dweight)
    for (int64_t i = 0; i < n; ++i) dweight[i] += dy[i] * ((x[i] - mean) * rstd);
  if (dbias)
    for (int64_t i = 0; i < n; ++i) dbias[i] += dy[i];
  if (!dx) return;
  const auto g = [=](int64_t i) { return weight ? dy[i] * weight[i] : dy[i]; };
  const float mean_g = centred ? total(n, g) / float(n) : 0.0f;
  const float mean_gz =
      total(n, [=](int64_t i) { return g(i) * ((x[i] - mean) * rstd); }) / float(n);
  for (int64_t i = 0; i < n; ++i) dx[i] = rstd * (g(i) - mean_g - (x[i] - mean) * rstd * mean_gz);
}

void fill_rows(Kernels& table) {
  table.softmax = softmax, table.softmax_backward = softmax_backward,
  table.log_sum_exp = log_sum_exp;
  table.exp_scaled = exp_scaled, table.softmax_gradient = softmax_gradient;
  table.exp_shifted = exp_shifted, table.moments = moments, table.normalize = normalize;
  table.norm_backward = norm_backward;
}

}  // namespace halftone::simd::HALFTONE_ISA
