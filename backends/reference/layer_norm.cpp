// Layer norm and, without a mean, RMS norm, along rows (Ba et al. 2016; Zhang & Sennrich 2019):
//   y = (x - mean) rstd weight + bias
#include <halftone/backends/reference/reference.h>

#include <halftone/backends/reference/norm.h>

namespace halftone {

using namespace reference;

namespace {

double mean_of_row(const Tensor& mean, int64_t row) {
  return mean.defined() ? load_one(mean, row) : 0.0;
}

}  // namespace

void ReferenceBackend::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                                  double eps, Tensor& y, Tensor& mean, Tensor& rstd) {
  const int64_t rows = rstd.numel(), n = rows == 0 ? 0 : x.numel() / rows;
  each_row(rows, n, [&](int64_t row) {
    const Moments moments = moments_of(x, row * n, n, mean.defined());
    const double scale = 1 / std::sqrt(moments.variance + eps);
    if (mean.defined()) store_one(moments.mean, mean, row);
    store_one(scale, rstd, row);
    each_block(n, [&](int64_t first, int64_t count) {
      double values[block_length], w[block_length], b[block_length];
      load(x, row * n + first, count, values);
      load_or(1, weight, first, count, w);
      load_or(0, bias, first, count, b);
      for (int64_t i = 0; i < count; ++i)
        values[i] = (values[i] - moments.mean) * scale * w[i] + b[i];
      store(values, count, y, row * n + first);
    });
  });
}

namespace {

struct LayerNormGradient {
  const Tensor &x, &weight, &mean, &rstd, &dy;
  int64_t n;

  /// Computes g = dy weight and x_hat for a block of one row.
  void load_block(int64_t row, int64_t first, int64_t count, double* g, double* x_hat) const {
    const double center = mean_of_row(mean, row), scale = load_one(rstd, row);
    double w[block_length];
    load(x, row * n + first, count, x_hat);
    load(dy, row * n + first, count, g);
    load_or(1, weight, first, count, w);
    for (int64_t i = 0; i < count; ++i) x_hat[i] = (x_hat[i] - center) * scale, g[i] *= w[i];
  }

  void write_dx(int64_t row, const Tensor& dx) const {
    double g[block_length], x_hat[block_length];
    GradientMeans means;
    each_block(n, [&](int64_t first, int64_t count) {
      load_block(row, first, count, g, x_hat);
      means.g += sum_of(count, [&](int64_t i) { return g[i]; }) / double(n);
      means.g_x_hat += sum_of(count, [&](int64_t i) { return g[i] * x_hat[i]; }) / double(n);
    });
    if (!mean.defined()) means.g = 0;  // RMS norm subtracts nothing
    const double scale = load_one(rstd, row);
    each_block(n, [&](int64_t first, int64_t count) {
      load_block(row, first, count, g, x_hat);
      for (int64_t i = 0; i < count; ++i)
        g[i] = scale * (g[i] - means.g - x_hat[i] * means.g_x_hat);
      store(g, count, dx, row * n + first);
    });
  }
};

}  // namespace

void ReferenceBackend::layer_norm_backward(const Tensor& x, const Tensor& weight,
                                           const Tensor& mean, const Tensor& rstd, const Tensor& dy,
                                           Tensor& dx, Tensor& dweight, Tensor& dbias) {
  const int64_t rows = rstd.numel();
  const int64_t n = rows != 0 ? x.numel() / rows : x.size(-1);
  const LayerNormGradient gradient{x, weight, mean, rstd, dy, n};
  if (dx.defined()) each_row(rows, n, [&](int64_t row) { gradient.write_dx(row, dx); });
  if (!dweight.defined() && !dbias.defined()) return;

  Workspace<double> sums(2 * n);  // of dy x_hat, of dy
  const Tensor no_weight;
  const LayerNormGradient unweighted{x, no_weight, mean, rstd, dy, n};
  sum_over_rows({rows, n}, 2, sums.data(),
                [&](int64_t row, int64_t column, int64_t count, double* partial) {
                  double d[block_length], x_hat[block_length];
                  unweighted.load_block(row, column, count, d, x_hat);
                  for (int64_t i = 0; i < count; ++i)
                    partial[i] += d[i] * x_hat[i], partial[n + i] += d[i];
                });
  store_sums(sums.data(), n, dweight);
  store_sums(sums.data() + n, n, dbias);
}

}  // namespace halftone
