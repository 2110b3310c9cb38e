// Shared parts of the normalizations: x_hat = (x - mean) rstd with rstd = 1 / sqrt(variance + eps),
// and the gradient
//   dx = rstd (g - mean(g) - x_hat mean(g x_hat)),   g = dy weight
// in which mean() runs over the elements that were normalized together.
#pragma once

#include <halftone/backends/reference/row_blocks.h>

namespace halftone::reference {

struct Moments {
  double mean, variance;  // biased
};

/// Returns the moments of n neighboring elements, in two passes. Uncentered: mean 0 and the mean
/// square.
inline Moments moments_of(const Tensor& x, int64_t begin, int64_t n, bool centred) {
  double values[block_length], sum = 0, squares = 0;
  if (centred)
    each_block(n, [&](int64_t first, int64_t count) {
      load(x, begin + first, count, values);
      sum += sum_of(count, [&](int64_t i) { return values[i]; });
    });
  const double mean = centred ? sum / double(n) : 0.0;
  each_block(n, [&](int64_t first, int64_t count) {
    load(x, begin + first, count, values);
    squares += sum_of(count, [&](int64_t i) { return (values[i] - mean) * (values[i] - mean); });
  });
  return {mean, squares / double(n)};
}

/// The two means in the gradient.
struct GradientMeans {
  double g = 0, g_x_hat = 0;
};

inline void store_sums(const double* sums, int64_t count, const Tensor& y) {
  if (y.defined()) store(sums, count, y, 0);
}

}  // namespace halftone::reference
