// Batch norm over the pixels of NHWC images, or the rows of [n, c]: channels are the columns of one
// matrix, and each is normalized by its moments over all rows (Ioffe & Szegedy 2015).
#include <halftone/backends/reference/norm.h>
#include <halftone/backends/reference/reference.h>

namespace halftone {

using namespace reference;

void ReferenceBackend::batch_norm_statistics(const Tensor& x, Tensor& mean, Tensor& variance) {
  const Matrix size = pixels_of(x);
  const int64_t channels = size.columns;
  Workspace<double> means(channels), variances(channels);
  const auto load_row = [&](int64_t row, int64_t column, int64_t count, double* values) {
    load(x, row * channels + column, count, values);
  };
  sum_over_rows(size, 1, means.data(),
                [&](int64_t row, int64_t column, int64_t count, double* partial) {
                  double values[block_length];
                  load_row(row, column, count, values);
                  for (int64_t i = 0; i < count; ++i) partial[i] += values[i];
                });
  for (int64_t c = 0; c < channels; ++c) means[c] /= double(size.rows);
  sum_over_rows(size, 1, variances.data(),
                [&](int64_t row, int64_t column, int64_t count, double* partial) {
                  double values[block_length];
                  load_row(row, column, count, values);
                  for (int64_t i = 0; i < count; ++i) {
                    const double distance = values[i] - means[column + i];
                    partial[i] += distance * distance;
                  }
                });
  for (int64_t c = 0; c < channels; ++c) variances[c] /= double(size.rows);
  store(means.data(), channels, mean, 0);
  store(variances.data(), channels, variance, 0);
}

namespace {

/// mean, rstd and weight of every channel, widened once.
struct Channels {
  Workspace<double> mean, rstd, weight;

  Channels(int64_t count, const Tensor& mean_in, const Tensor& variance, double eps,
           const Tensor& weight_in)
      : mean(count), rstd(count), weight(count) {
    load(mean_in, 0, count, mean.data());
    load(variance, 0, count, rstd.data());
    load_or(1, weight_in, 0, count, weight.data());
    for (int64_t c = 0; c < count; ++c) rstd[c] = 1 / std::sqrt(rstd[c] + eps);
  }
};

}  // namespace

void ReferenceBackend::batch_norm(const Tensor& x, const Tensor& mean, const Tensor& variance,
                                  double eps, const Tensor& weight, const Tensor& bias,
                                  const Tensor& residual, bool relu, Tensor& y) {
  const Matrix size = pixels_of(x);
  Channels channels(size.columns, mean, variance, eps, weight);
  Workspace<double> shift(size.columns);
  load_or(0, bias, 0, size.columns, shift.data());
  each_row(size.rows, size.columns, [&](int64_t row) {
    each_block(size.columns, [&](int64_t first, int64_t count) {
      double values[block_length], others[block_length];
      load(x, row * size.columns + first, count, values);
      load(residual, row * size.columns + first, count, others);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t c = first + i;
        const double x_hat = (values[i] - channels.mean[c]) * channels.rstd[c];
        values[i] = x_hat * channels.weight[c] + shift[c] + others[i];
        if (relu && values[i] < 0) values[i] = 0;
      }
      store(values, count, y, row * size.columns + first);
    });
  });
}

void ReferenceBackend::batch_norm_backward(const Tensor& x, const Tensor& mean,
                                           const Tensor& variance, double eps, const Tensor& weight,
                                           const Tensor& relu_output, const Tensor& dy,
                                           bool training, Tensor& dx, Tensor& dweight,
                                           Tensor& dbias, Tensor& dresidual) {
  const Matrix size = pixels_of(x);
  Channels channels(size.columns, mean, variance, eps, weight);
  const auto load_block = [&](int64_t row, int64_t first, int64_t count, double* d, double* x_hat) {
    load(x, row * size.columns + first, count, x_hat);
    load(dy, row * size.columns + first, count, d);
    if (relu_output.defined()) {
      double output[block_length];
      load(relu_output, row * size.columns + first, count, output);
      for (int64_t i = 0; i < count; ++i)
        if (!(output[i] > 0)) d[i] = 0;
    }
    for (int64_t i = 0; i < count; ++i)
      x_hat[i] = (x_hat[i] - channels.mean[first + i]) * channels.rstd[first + i];
  };

  Workspace<double> sums(2 * size.columns);  // of dy x_hat, of dy
  sum_over_rows(size, 2, sums.data(),
                [&](int64_t row, int64_t column, int64_t count, double* partial) {
                  double d[block_length], x_hat[block_length];
                  load_block(row, column, count, d, x_hat);
                  for (int64_t i = 0; i < count; ++i)
                    partial[i] += d[i] * x_hat[i], partial[size.columns + i] += d[i];
                });
  store_sums(sums.data(), size.columns, dweight);
  store_sums(sums.data() + size.columns, size.columns, dbias);
  if (!dx.defined() && !dresidual.defined()) return;

  // In evaluation mode, mean and variance are constants, so dx = weight rstd dy.
  const double share = training ? 1 / double(size.rows) : 0.0;
  each_row(size.rows, size.columns, [&](int64_t row) {
    each_block(size.columns, [&](int64_t first, int64_t count) {
      double d[block_length], x_hat[block_length];
      load_block(row, first, count, d, x_hat);
      if (dresidual.defined()) store(d, count, dresidual, row * size.columns + first);
      for (int64_t i = 0; dx.defined() && i < count; ++i) {
        const int64_t c = first + i;
        const double mean_d_x_hat = sums[c] * share, mean_d = sums[size.columns + c] * share;
        d[i] = channels.weight[c] * channels.rstd[c] * (d[i] - mean_d - x_hat[i] * mean_d_x_hat);
      }
      if (dx.defined()) store(d, count, dx, row * size.columns + first);
    });
  });
}

}  // namespace halftone
