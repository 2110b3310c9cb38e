// Norms, softmax and cross-entropy.
#include <halftone/backends/reference/reference.h>
#include <halftone/backends/reference/rows.h>
#include <halftone/core/math.h>

namespace halftone {

// Batch norm over the pixels of NHWC images, or the rows of [n, c]: channels are the columns of one
// matrix, and each is normalized by its moments over all rows (Ioffe & Szegedy 2015).

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

void ReferenceBackend::batch_norm(const BatchNormCall& call) {
  const Matrix size = pixels_of(call.x);
  Channels channels(size.columns, call.mean, call.variance, call.eps, call.weight);
  Workspace<double> shift(size.columns);
  load_or(0, call.bias, 0, size.columns, shift.data());
  each_row(size.rows, size.columns, [&](int64_t row) {
    each_block(size.columns, [&](int64_t first, int64_t count) {
      double values[block_length], others[block_length];
      load(call.x, row * size.columns + first, count, values);
      load(call.residual, row * size.columns + first, count, others);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t c = first + i;
        const double x_hat = (values[i] - channels.mean[c]) * channels.rstd[c];
        values[i] = x_hat * channels.weight[c] + shift[c] + others[i];
        if (call.relu && values[i] < 0) values[i] = 0;
      }
      store(values, count, call.y, row * size.columns + first);
    });
  });
}

void ReferenceBackend::batch_norm_backward(const BatchNormBackwardCall& call) {
  const Matrix size = pixels_of(call.x);
  Channels channels(size.columns, call.mean, call.variance, call.eps, call.weight);
  const auto load_block = [&](int64_t row, int64_t first, int64_t count, double* d, double* x_hat) {
    load(call.x, row * size.columns + first, count, x_hat);
    load(call.dy, row * size.columns + first, count, d);
    if (call.relu_output.defined()) {
      double output[block_length];
      load(call.relu_output, row * size.columns + first, count, output);
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
  store_sums(sums.data(), size.columns, call.dweight);
  store_sums(sums.data() + size.columns, size.columns, call.dbias);
  if (!call.dx.defined() && !call.dresidual.defined()) return;

  // In evaluation mode, mean and variance are constants, so dx = weight rstd dy.
  const double share = call.training ? 1 / double(size.rows) : 0.0;
  each_row(size.rows, size.columns, [&](int64_t row) {
    each_block(size.columns, [&](int64_t first, int64_t count) {
      double d[block_length], x_hat[block_length];
      load_block(row, first, count, d, x_hat);
      if (call.dresidual.defined()) store(d, count, call.dresidual, row * size.columns + first);
      for (int64_t i = 0; call.dx.defined() && i < count; ++i) {
        const int64_t c = first + i;
        const double mean_d_x_hat = sums[c] * share, mean_d = sums[size.columns + c] * share;
        d[i] = channels.weight[c] * channels.rstd[c] * (d[i] - mean_d - x_hat[i] * mean_d_x_hat);
      }
      if (call.dx.defined()) store(d, count, call.dx, row * size.columns + first);
    });
  });
}

// Group norm over contiguous [n, c, spatial]: each group of channels of each image is contiguous in
// memory and is normalized by its own moments; weight and bias belong to channels (Wu & He 2018).

using namespace reference;

namespace {

struct GroupSizes {
  int64_t images, channels, spatial, groups;

  GroupSizes(const Tensor& x, const Tensor& rstd)
      : images(x.size(0)), channels(x.size(1)), spatial(x.size(2)), groups(rstd.size(1)) {}
  int64_t per_group() const { return channels / groups; }
  int64_t group_length() const { return per_group() * spatial; }
  /// Calls body(channel, begin, count) for blocks of one image's group, each within one channel.
  template <class Body> void each_block_of(int64_t image_group, const Body& body) const {
    const int64_t first_channel = image_group % groups * per_group();
    for (int64_t c = 0; c < per_group(); ++c)
      each_block(spatial, [&](int64_t first, int64_t count) {
        body(first_channel + c, (image_group * per_group() + c) * spatial + first, count);
      });
  }
};

double channel_value(const Tensor& x, int64_t channel, double otherwise) {
  return x.defined() ? load_one(x, channel) : otherwise;
}

}  // namespace

void ReferenceBackend::group_norm(const NormCall& call) {
  const GroupSizes s(call.x, call.rstd);
  each_row(s.images * s.groups, s.group_length(), [&](int64_t group) {
    const Moments moments = moments_of(call.x, group * s.group_length(), s.group_length(), true);
    const double scale = 1 / std::sqrt(moments.variance + call.eps);
    store_one(moments.mean, call.mean, group);
    store_one(scale, call.rstd, group);
    s.each_block_of(group, [&](int64_t channel, int64_t begin, int64_t count) {
      const double w = channel_value(call.weight, channel, 1),
                   b = channel_value(call.bias, channel, 0);
      double values[block_length];
      load(call.x, begin, count, values);
      for (int64_t i = 0; i < count; ++i) values[i] = (values[i] - moments.mean) * scale * w + b;
      store(values, count, call.y, begin);
    });
  });
}

namespace {

struct GroupNormGradient {
  const Tensor &x, &weight, &mean, &rstd, &dy;
  GroupSizes s;

  void load_block(int64_t group, int64_t begin, int64_t count, double* d, double* x_hat) const {
    const double center = load_one(mean, group), scale = load_one(rstd, group);
    load(x, begin, count, x_hat);
    load(dy, begin, count, d);
    for (int64_t i = 0; i < count; ++i) x_hat[i] = (x_hat[i] - center) * scale;
  }

  void write_dx(int64_t group, const Tensor& dx) const {
    double d[block_length], x_hat[block_length];
    GradientMeans means;
    const auto n = double(s.group_length());
    s.each_block_of(group, [&](int64_t channel, int64_t begin, int64_t count) {
      const double w = channel_value(weight, channel, 1);
      load_block(group, begin, count, d, x_hat);
      means.g += w / n * sum_of(count, [&](int64_t i) { return d[i]; });
      means.g_x_hat += w / n * sum_of(count, [&](int64_t i) { return d[i] * x_hat[i]; });
    });
    const double scale = load_one(rstd, group);
    s.each_block_of(group, [&](int64_t channel, int64_t begin, int64_t count) {
      const double w = channel_value(weight, channel, 1);
      load_block(group, begin, count, d, x_hat);
      for (int64_t i = 0; i < count; ++i)
        d[i] = scale * (w * d[i] - means.g - x_hat[i] * means.g_x_hat);
      store(d, count, dx, begin);
    });
  }

  /// Writes the gradients of one channel, summed over images and positions.
  void write_weight_gradients(int64_t channel, const Tensor& dweight, const Tensor& dbias) const {
    double d[block_length], x_hat[block_length];
    CompensatedSum sum, sum_x_hat;
    for (int64_t image = 0; image < s.images; ++image)
      each_block(s.spatial, [&](int64_t first, int64_t count) {
        const int64_t begin = (image * s.channels + channel) * s.spatial + first;
        load_block(image * s.groups + channel / s.per_group(), begin, count, d, x_hat);
        for (int64_t i = 0; i < count; ++i) sum.add(d[i]), sum_x_hat.add(d[i] * x_hat[i]);
      });
    if (dweight.defined()) store_one(sum_x_hat.value(), dweight, channel);
    if (dbias.defined()) store_one(sum.value(), dbias, channel);
  }
};

}  // namespace

void ReferenceBackend::group_norm_backward(const NormBackwardCall& call) {
  const GroupNormGradient gradient{call.x,    call.weight, call.mean,
                                   call.rstd, call.dy,     GroupSizes(call.x, call.rstd)};
  const GroupSizes& s = gradient.s;
  if (call.dx.defined())
    each_row(s.images * s.groups, s.group_length(),
             [&](int64_t group) { gradient.write_dx(group, call.dx); });
  if (!call.dweight.defined() && !call.dbias.defined()) return;
  parallel_tasks(s.channels, [&](int64_t channel) {
    gradient.write_weight_gradients(channel, call.dweight, call.dbias);
  });
}

// Layer norm and, without a mean, RMS norm, along rows (Ba et al. 2016; Zhang & Sennrich 2019):
//   y = (x - mean) rstd weight + bias

using namespace reference;

namespace {

double mean_of_row(const Tensor& mean, int64_t row) {
  return mean.defined() ? load_one(mean, row) : 0.0;
}

}  // namespace

void ReferenceBackend::layer_norm(const NormCall& call) {
  const int64_t rows = call.rstd.numel(), n = rows == 0 ? 0 : call.x.numel() / rows;
  each_row(rows, n, [&](int64_t row) {
    const Moments moments = moments_of(call.x, row * n, n, call.mean.defined());
    const double scale = 1 / std::sqrt(moments.variance + call.eps);
    if (call.mean.defined()) store_one(moments.mean, call.mean, row);
    store_one(scale, call.rstd, row);
    each_block(n, [&](int64_t first, int64_t count) {
      double values[block_length], w[block_length], b[block_length];
      load(call.x, row * n + first, count, values);
      load_or(1, call.weight, first, count, w);
      load_or(0, call.bias, first, count, b);
      for (int64_t i = 0; i < count; ++i)
        values[i] = (values[i] - moments.mean) * scale * w[i] + b[i];
      store(values, count, call.y, row * n + first);
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

void ReferenceBackend::add_rms_norm(const AddNormCall& call) {
  Tensor no_mean;
  binary(call_of<BinaryFormulas>(formula::Add{}), call.a, call.b, call.sum);
  layer_norm({.x = call.sum,
              .weight = call.weight,
              .bias = {},
              .eps = call.eps,
              .y = call.y,
              .mean = no_mean,
              .rstd = call.rstd});
}

void ReferenceBackend::layer_norm_backward(const NormBackwardCall& call) {
  const int64_t rows = call.rstd.numel();
  const int64_t n = rows != 0 ? call.x.numel() / rows : call.x.size(-1);
  const LayerNormGradient gradient{call.x, call.weight, call.mean, call.rstd, call.dy, n};
  if (call.dx.defined()) each_row(rows, n, [&](int64_t row) { gradient.write_dx(row, call.dx); });
  if (!call.dweight.defined() && !call.dbias.defined()) return;

  Workspace<double> sums(2 * n);  // of dy x_hat, of dy
  const Tensor no_weight;
  const LayerNormGradient unweighted{call.x, no_weight, call.mean, call.rstd, call.dy, n};
  sum_over_rows({rows, n}, 2, sums.data(),
                [&](int64_t row, int64_t column, int64_t count, double* partial) {
                  double d[block_length], x_hat[block_length];
                  unweighted.load_block(row, column, count, d, x_hat);
                  for (int64_t i = 0; i < count; ++i)
                    partial[i] += d[i] * x_hat[i], partial[n + i] += d[i];
                });
  store_sums(sums.data(), n, call.dweight);
  store_sums(sums.data() + n, n, call.dbias);
}

// Softmax, its logarithm and log(sum(exp)) along rows: y = exp(x - log(sum(exp(x)))). Rows of any
// length are read twice and never copied.

using namespace reference;

namespace {

ExpTotal total_of_row(const Tensor& x, int64_t begin, int64_t n) {
  ExpSum sum;
  each_block(n, [&](int64_t first, int64_t count) {
    double values[block_length];
    load(x, begin + first, count, values);
    sum.add(values, count);
  });
  return sum.total();
}

}  // namespace

void ReferenceBackend::softmax(const Tensor& x, bool logarithm, Tensor& y) {
  const Matrix size = rows_of(x);
  each_row(size.rows, size.columns, [&](int64_t row) {
    const int64_t begin = row * size.columns;
    const ExpTotal total = total_of_row(x, begin, size.columns).or_nan();
    const double sum = total.sum, log_sum = total.log_sum();
    each_block(size.columns, [&](int64_t first, int64_t count) {
      double values[block_length];
      load(x, begin + first, count, values);
      for (int64_t i = 0; i < count; ++i) {
        const double below = values[i] - total.shift;
        values[i] = logarithm ? below - log_sum : elementary::exp(below) / sum;
      }
      store(values, count, y, begin + first);
    });
  });
}

/// softmax: dx = y (dy - sum(y dy)); its logarithm: dx = dy - exp(y) sum(dy).
void ReferenceBackend::softmax_backward(const Tensor& y, const Tensor& dy, bool logarithm,
                                        Tensor& dx) {
  const Matrix size = rows_of(y);
  each_row(size.rows, size.columns, [&](int64_t row) {
    const int64_t begin = row * size.columns;
    double out[block_length], gradient[block_length], sum = 0;
    each_block(size.columns, [&](int64_t first, int64_t count) {
      load(y, begin + first, count, out);
      load(dy, begin + first, count, gradient);
      sum +=
          sum_of(count, [&](int64_t i) { return logarithm ? gradient[i] : out[i] * gradient[i]; });
    });
    each_block(size.columns, [&](int64_t first, int64_t count) {
      load(y, begin + first, count, out);
      load(dy, begin + first, count, gradient);
      for (int64_t i = 0; i < count; ++i)
        out[i] =
            logarithm ? gradient[i] - elementary::exp(out[i]) * sum : out[i] * (gradient[i] - sum);
      store(out, count, dx, begin + first);
    });
  });
}

void ReferenceBackend::log_sum_exp(const Tensor& x, Tensor& y) {
  const int64_t rows = y.numel(), n = rows == 0 ? 0 : x.numel() / rows;
  each_row(rows, n, [&](int64_t row) { store_one(total_of_row(x, row * n, n).value(), y, row); });
}

// Cross-entropy from logits, like torch.nn.functional.cross_entropy with class indices. It works
// one row at a time in the logits' own dtype, without a copy. With s = label smoothing, C classes
// and weights w (1 if absent):
//   losses[i] = (1 - s) w[t] (L - x[t]) + s / C * sum over c of w[c] (L - x[c])
// where L = log(sum(exp(x))).

using namespace reference;

namespace {

int64_t target_of(const Tensor& targets, int64_t row) {
  int64_t target;
  load(targets, targets.rank() == 0 ? 0 : row * targets.strides()[0], 1, &target);
  return target;
}

/// Checks before the rows run in parallel, because the parallel loop must not throw.
void check_targets(const Tensor& targets, int64_t classes, int64_t ignore_index) {
  for (int64_t row = 0; row < targets.numel(); ++row) {
    const int64_t target = target_of(targets, row);
    if (target != ignore_index && (target < 0 || target >= classes))
      fail<UsageError>("cross_entropy", "target ", target, " at row ", row, " is out of range for ",
                       classes, " classes. Targets must be from 0 to ", classes - 1,
                       ", or ignore_index, which is ", ignore_index, ".");
  }
}

double weight_of(const Tensor& class_weights, int64_t target) {
  return class_weights.defined() ? load_one(class_weights, target) : 1.0;
}

double total_weight(const Tensor& class_weights, int64_t classes) {
  if (!class_weights.defined()) return double(classes);
  double total = 0;
  for (int64_t c = 0; c < classes; ++c) total += load_one(class_weights, c);
  return total;
}

}  // namespace

void ReferenceBackend::cross_entropy(const Tensor& logits, const Tensor& targets,
                                     const Tensor& class_weights,
                                     const CrossEntropySettings& settings, Tensor& losses,
                                     Tensor& row_weights, Tensor& log_sum_exp) {
  const int64_t rows = targets.numel(), classes = logits.size(-1);
  check_targets(targets, classes, settings.ignore_index);
  const double smoothing = settings.label_smoothing;
  const double all_weights = total_weight(class_weights, classes);
  each_row(rows, classes, [&](int64_t row) {
    ExpSum sum;
    // Sums w[c] (x[c] - origin): smaller numbers than w[c] x[c] if the logits have an offset.
    const double first_logit = classes > 0 ? load_one(logits, row * classes) : 0.0;
    const double origin = std::isfinite(first_logit) ? first_logit : 0.0;
    double weighted = 0;
    each_block(classes, [&](int64_t first, int64_t count) {
      double x[block_length], w[block_length];
      load(logits, row * classes + first, count, x);
      sum.add(x, count);
      if (smoothing == 0) return;
      load_or(1, class_weights, first, count, w);
      for (int64_t i = 0; i < count; ++i) weighted += w[i] * (x[i] - origin);
    });
    const ExpTotal total = sum.total().or_nan();
    const int64_t target = target_of(targets, row);
    double loss = 0, weight = 0;
    if (target != settings.ignore_index) {
      const double logit = load_one(logits, row * classes + target);
      weight = weight_of(class_weights, target);
      loss = (1 - smoothing) * weight * (total.shift - logit + total.log_sum());
      if (smoothing != 0)
        loss += smoothing / double(classes) *
                (all_weights * (total.shift - origin + total.log_sum()) - weighted);
    }
    store_one(loss, losses, row);
    store_one(weight, row_weights, row);
    store_one(total.shift, log_sum_exp, row);
    store_one(total.sum, log_sum_exp, rows + row);
  });
}

/// dx[j] = row_scale ((1 - s) w[t] (p[j] - [j == t]) + s / C (p[j] sum(w) - w[j])),   p = exp(x -
/// L)
void ReferenceBackend::cross_entropy_backward(const Tensor& logits, const Tensor& targets,
                                              const Tensor& class_weights,
                                              const CrossEntropySettings& settings,
                                              const Tensor& log_sum_exp, const Tensor& row_scale,
                                              Tensor& dlogits) {
  const int64_t rows = targets.numel(), classes = logits.size(-1);
  const double smoothing = settings.label_smoothing, share = smoothing / double(classes);
  const double all_weights = total_weight(class_weights, classes);
  const int64_t scale_step = row_scale.numel() == 1 ? 0 : row_scale.strides()[0];
  each_row(rows, classes, [&](int64_t row) {
    const int64_t target = target_of(targets, row);
    const bool ignored = target == settings.ignore_index;
    const double scale = load_one(row_scale, row * scale_step);
    const double shift = load_one(log_sum_exp, row), sum = load_one(log_sum_exp, rows + row);
    const double hard = ignored ? 0 : (1 - smoothing) * weight_of(class_weights, target);
    each_block(classes, [&](int64_t first, int64_t count) {
      double x[block_length], w[block_length];
      load(logits, row * classes + first, count, x);
      load_or(1, class_weights, first, count, w);
      for (int64_t i = 0; i < count; ++i) {
        const double p = elementary::exp(x[i] - shift) / sum;
        const double is_target = first + i == target ? 1 : 0;
        const double d = hard * (p - is_target) + share * (p * all_weights - w[i]);
        x[i] = ignored ? 0 : scale * d;  // not d * 0: an ignored row may contain NaN
      }
      store(x, count, dlogits, row * classes + first);
    });
  });
}

}  // namespace halftone
