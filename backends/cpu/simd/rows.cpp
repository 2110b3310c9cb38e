// Row kernels: softmax, log-sum-exp, the parts of layer and group normalization.
#include <halftone/backends/cpu/simd/local.h>

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

}  // namespace halftone::simd::HALFTONE_ISA
