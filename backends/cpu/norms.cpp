// Norms, softmax and cross-entropy.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/reference/rows.h>
#include <halftone/core/math.h>

namespace halftone {

// Batch norm over the pixels of NHWC images, with residual and relu. Statistics read x once; the
// rest reads and writes each tensor once. Sums run in float within blocks that stay in a cache, and
// in double across blocks.

namespace {
constexpr int64_t block_elements = 8 * cpu::block_length;

/// A batch-norm input as [pixels, channels] in memory, and how the pixels are split.
struct Pixels {
  int64_t count, channels;
  int64_t block = std::max<int64_t>(1, block_elements / channels);  // pixels that stay in a cache
  int64_t group = cpu::group_of(count, channels);                   // pixels of a task
  int64_t groups = reference::pieces_of(count, group);
  explicit Pixels(const Tensor& x) : count(x.numel() / x.shape()[1]), channels(x.shape()[1]) {}

  /// Calls body(first pixel, last pixel) for all groups, in parallel.
  template <class Body> void each_group(const Body& body) const {
    cpu::parallel_pieces(count, group, body);
  }
  /// Calls body(first element, pixels) for the blocks of a group.
  template <class Body> void each_block(int64_t first, int64_t last, const Body& body) const {
    for (int64_t p = first; p < last; p += block) body(p * channels, std::min(block, last - p));
  }
};

/// Blocks of a tensor in the form that the kernels need. Floats: in place, or in a buffer (none for
/// undefined tensors and f32).
template <class Element> class Blocks {
 public:
  Blocks(const Tensor& x, const Pixels& pixels)
      : x_(x),
        channels_(pixels.channels),
        buffer_(x.defined() && x.dtype() != f32 ? pixels.block * pixels.channels : 0) {}
  const float* read(int64_t first, int64_t rows) {
    return x_.defined() ? cpu::floats(x_, first, 1, rows * channels_, buffer_.data()) : nullptr;
  }
  using Output = cpu::Output;
  /// Returns the destination of `rows` results; finish() rounds them.
  Output write(int64_t first, int64_t rows) {
    return {x_, first, 1, rows * channels_, buffer_.data()};
  }

 private:
  const Tensor& x_;
  int64_t channels_;
  cpu::Workspace<float> buffer_;
};
/// bf16, in place.
template <> class Blocks<uint16_t> {
 public:
  struct Output {
    uint16_t* at;
    uint16_t* data() const { return at; }
    void finish() const {}
  };
  Blocks(const Tensor& x, const Pixels&) : x_(x) {}
  const uint16_t* read(int64_t first, int64_t) const { return at(first); }
  Output write(int64_t first, int64_t) const { return {at(first)}; }

 private:
  uint16_t* at(int64_t first) const {
    return x_.defined() ? reinterpret_cast<uint16_t*>(x_.raw_data()) + first : nullptr;
  }
  const Tensor& x_;
};

/// Calls body with the kernels for bf16 if all images are bf16, otherwise with those for floats.
template <class Body, class... Images>
void with_kernels(const Body& body, const Images&... images) {
  const simd::Kernels& k = simd_kernels();
  if (((!images.defined() || images.dtype() == bf16) && ...)) body(k.bf16_channels);
  else body(k.channels);
}

/// Mean and sum of squared distances of `count` values per channel, merged as in Chan et al. 1979.
class Moments {
 public:
  explicit Moments(int64_t channels) : channels_(channels), values_(2 * channels) {
    std::fill_n(values_.data(), 2 * channels, 0.0);
  }
  void merge(double count, const double* means, const double* squares) {
    const double all = count_ + count, share = count / all, weight = count_ * share;
    double *mean = values_.data(), *square = mean + channels_;
    for (int64_t j = 0; j < channels_; ++j) {
      const double distance = means[j] - mean[j];
      mean[j] += distance * share;
      square[j] += squares[j] + distance * distance * weight;
    }
    count_ = all;
  }
  void merge(Moments& other) { merge(other.count_, other.mean(), other.square()); }
  const double* mean() { return values_.data(); }
  const double* square() { return values_.data() + channels_; }

 private:
  int64_t channels_;
  double count_ = 0;
  cpu::Workspace<double> values_;
};

/// Adds the moments of a group of pixels: for each block first the mean, then distances from it.
void add_group(const Tensor& x, const Pixels& pixels, int64_t first, int64_t last,
               Moments& moments) {
  const simd::Kernels& k = simd_kernels();
  const int64_t c = pixels.channels;
  Blocks<float> input(x, pixels);
  cpu::Workspace<float> mean(c);
  cpu::Workspace<double> sums(2 * c), block(2 * c);
  pixels.each_block(first, last, [&](int64_t at, int64_t rows) {
    const float* in = input.read(at, rows);
    k.add_rows(in, rows, c, c, mean.data());
    k.scale(1.0f / float(rows), mean.data(), c);
    std::fill_n(sums.data(), 2 * c, 0.0);
    k.channel_moments(in, mean.data(), rows, c, sums.data(), sums.data() + c);
    for (int64_t j = 0; j < c; ++j) {
      const double off = sums[j] / double(rows);  // the rounding error of the mean
      block[j] = double(mean[j]) + off;
      block[c + j] = sums[c + j] - off * off * double(rows);
    }
    moments.merge(double(rows), block.data(), block.data() + c);
  });
}
}  // namespace

void CpuBackend::batch_norm_statistics(const Tensor& x, Tensor& mean, Tensor& variance) {
  if (!cpu::is_f32_or_short(x) || x.numel() == 0)
    return ReferenceBackend::batch_norm_statistics(x, mean, variance);
  const Pixels pixels(x);
  std::vector<std::unique_ptr<Moments>> groups(std::size_t(pixels.groups));
  for (auto& group : groups) group = std::make_unique<Moments>(pixels.channels);
  pixels.each_group([&](int64_t first, int64_t last) {
    add_group(x, pixels, first, last, *groups[std::size_t(first / pixels.group)]);
  });
  for (std::size_t g = 1; g < groups.size(); ++g) groups[0]->merge(*groups[g]);
  for (int64_t j = 0; j < pixels.channels; ++j) {
    mean.data<float>()[j] = float(groups[0]->mean()[j]);
    variance.data<float>()[j] = float(groups[0]->square()[j] / double(pixels.count));
  }
}

void CpuBackend::batch_norm(const BatchNormCall& call) {
  if (!cpu::all_f32_or_short(call.x, call.residual, call.y, call.mean, call.variance) ||
      call.x.numel() == 0)
    return ReferenceBackend::batch_norm(call);
  const Pixels pixels(call.x);
  const int64_t c = pixels.channels;
  cpu::Workspace<float> affine(2 * c);  // y = (x - mean) scale + shift
  for (int64_t j = 0; j < c; ++j) {
    const double w = call.weight.defined() ? reference::load_one(call.weight, j) : 1.0;
    affine[j] = float(w / std::sqrt(double(call.variance.data<float>()[j]) + call.eps));
    affine[c + j] = call.bias.defined() ? float(reference::load_one(call.bias, j)) : 0.0f;
  }
  const auto compute = [&]<class E>(const simd::ChannelKernels<E>& k) {
    pixels.each_group([&](int64_t first, int64_t last) {
      Blocks<E> input(call.x, pixels), other(call.residual, pixels), result(call.y, pixels);
      pixels.each_block(first, last, [&](int64_t at, int64_t rows) {
        auto output = result.write(at, rows);
        k.affine(input.read(at, rows), call.mean.data<float>(), affine.data(), affine.data() + c,
                 other.read(at, rows), call.relu, output.data(), rows, c);
        output.finish();
      });
    });
  };
  with_kernels(compute, call.x, call.residual, call.y);
}

namespace {
/// Computes the sums over all pixels of g and of g (x - mean) per channel, [2, channels].
template <class E>
void gradient_sums(const simd::ChannelKernels<E>& k, const Tensor& x, const Tensor& dy,
                   const Tensor& relu_output, const Tensor& mean, const Pixels& pixels,
                   double* totals) {
  const int64_t c = pixels.channels;
  cpu::Workspace<double> sums(2 * pixels.groups * c);
  pixels.each_group([&](int64_t first, int64_t last) {
    double* to = sums.data() + first / pixels.group * 2 * c;
    std::fill_n(to, 2 * c, 0.0);
    Blocks<E> input(x, pixels), gradient(dy, pixels), result(relu_output, pixels);
    pixels.each_block(first, last, [&](int64_t at, int64_t rows) {
      k.sums(input.read(at, rows), gradient.read(at, rows), result.read(at, rows),
             mean.data<float>(), rows, c, to, to + c);
    });
  });
  std::fill_n(totals, 2 * c, 0.0);
  for (int64_t g = 0; g < pixels.groups; ++g)
    for (int64_t j = 0; j < 2 * c; ++j) totals[j] += sums[2 * g * c + j];
}
}  // namespace

// With g = dy where relu is positive (else 0): dresidual = g, and, in training,
//   dx = rstd weight (g - mean(g) - (x - mean) rstd^2 mean(g (x - mean)));
// in evaluation mode, mean and variance are constants and the means of g drop out.
void CpuBackend::batch_norm_backward(const BatchNormBackwardCall& call) {
  if (!cpu::all_f32_or_short(call.x, call.relu_output, call.dy, call.dx, call.dresidual, call.mean,
                             call.variance) ||
      call.x.numel() == 0)
    return ReferenceBackend::batch_norm_backward(call);
  const Pixels pixels(call.x);
  const int64_t c = pixels.channels;
  cpu::Workspace<double> sums(2 * c);
  cpu::Workspace<float> factors(3 * c);  // dx = a g + b (x - mean) + shift
  const auto add_up = [&](const auto& k) {
    gradient_sums(k, call.x, call.dy, call.relu_output, call.mean, pixels, sums.data());
  };
  with_kernels(add_up, call.x, call.dy, call.relu_output);
  for (int64_t j = 0; j < c; ++j) {
    const double rstd = 1 / std::sqrt(double(call.variance.data<float>()[j]) + call.eps),
                 m = double(pixels.count);
    const double a = rstd * (call.weight.defined() ? reference::load_one(call.weight, j) : 1.0);
    const double b = call.training ? -a * rstd * rstd * sums[c + j] / m : 0.0;
    factors[j] = float(a), factors[c + j] = float(b);
    factors[2 * c + j] = float(call.training ? -a * sums[j] / m : 0.0);
    if (call.dweight.defined()) reference::store_one(sums[c + j] * rstd, call.dweight, j);
    if (call.dbias.defined()) reference::store_one(sums[j], call.dbias, j);
  }
  if (!call.dx.defined() && !call.dresidual.defined()) return;
  const auto compute = [&]<class E>(const simd::ChannelKernels<E>& k) {
    pixels.each_group([&](int64_t first, int64_t last) {
      Blocks<E> input(call.x, pixels), gradient(call.dy, pixels), result(call.relu_output, pixels),
          input_gradient(call.dx, pixels), residual_gradient(call.dresidual, pixels);
      pixels.each_block(first, last, [&](int64_t at, int64_t rows) {
        std::optional<typename Blocks<E>::Output> to_x, to_residual;
        if (call.dx.defined()) to_x.emplace(input_gradient.write(at, rows));
        if (call.dresidual.defined()) to_residual.emplace(residual_gradient.write(at, rows));
        k.backward(input.read(at, rows), gradient.read(at, rows), result.read(at, rows),
                   call.mean.data<float>(), factors.data(), factors.data() + c,
                   factors.data() + 2 * c, to_x ? to_x->data() : nullptr,
                   to_residual ? to_residual->data() : nullptr, rows, c);
        if (to_x) to_x->finish();
        if (to_residual) to_residual->finish();
      });
    });
  };
  with_kernels(compute, call.x, call.dy, call.relu_output, call.dx, call.dresidual);
}

// Group norm of [n, c, spatial]: a group of channels of one image is contiguous in memory. Each
// block of a channel has its own sums, which are joined in double, in order: the number of threads
// has no effect.

namespace {

struct GroupSizes {
  int64_t images, channels, spatial, groups;

  GroupSizes(const Tensor& x, const Tensor& rstd)
      : images(x.size(0)), channels(x.size(1)), spatial(x.size(2)), groups(rstd.size(1)) {}
  int64_t per_group() const { return channels / groups; }
  int64_t length() const { return per_group() * spatial; }

  /// Calls body(group of an image), in parallel.
  template <class Body> void each_group(const Body& body) const {
    cpu::parallel_pieces(images * groups, cpu::group_of(images * groups, length()),
                         [&](int64_t begin, int64_t end) {
                           for (int64_t group = begin; group < end; ++group) body(group);
                         });
  }
};

/// Calls body(first, count) for the blocks of begin .. begin + n that fit a buffer.
template <class Body> void each_block(int64_t begin, int64_t n, const Body& body) {
  for (int64_t end = begin + n; begin < end; begin += cpu::block_length)
    body(begin, std::min(cpu::block_length, end - begin));
}

struct GroupMoments {
  double mean, variance;  // biased
};

/// Reads n neighbors once: computes the moments of blocks, joined as in Chan, Golub & LeVeque
/// (1979).
GroupMoments moments_of(const Tensor& x, int64_t begin, int64_t n) {
  double count = 0, mean = 0, squares = 0;
  alignas(64) float buffer[cpu::block_length];
  each_block(begin, n, [&](int64_t first, int64_t length) {
    float block_mean;
    double block_variance;
    simd_kernels().moments(cpu::floats(x, first, 1, length, buffer), length, &block_mean,
                           &block_variance);
    const double by = double(block_mean) - mean, share = double(length) / (count + double(length));
    squares += double(length) * block_variance + by * by * count * share;
    mean += by * share;
    count += double(length);
  });
  return {mean, squares / double(n)};
}

/// The sums of dy, and of dy (x - mean), for each channel of each image.
class ChannelSums {
 public:
  ChannelSums(const GroupSizes& sizes, const Tensor& x, const Tensor& mean, const Tensor& dy)
      : dy_(sizes.images * sizes.channels), product_(dy_.size()) {
    sizes.each_group([&](int64_t group) {
      const int64_t first = group * sizes.per_group();
      for (int64_t row = first; row < first + sizes.per_group(); ++row)
        add_row(x, dy, mean.data<float>()[group], row, sizes.spatial);
    });
  }
  double dy(int64_t row) { return dy_[row]; }
  double product(int64_t row) { return product_[row]; }

 private:
  void add_row(const Tensor& x, const Tensor& dy, float mean, int64_t row, int64_t spatial) {
    alignas(64) float in[cpu::block_length], g[cpu::block_length];
    dy_[row] = product_[row] = 0;
    each_block(row * spatial, spatial, [&](int64_t first, int64_t count) {
      double sum, product;
      simd_kernels().centred_sums(cpu::floats(x, first, 1, count, in), mean,
                                  cpu::floats(dy, first, 1, count, g), count, &sum, &product);
      dy_[row] += sum, product_[row] += product;
    });
  }
  cpu::Workspace<double> dy_, product_;
};

/// Returns whether powers and products of rstd with other numbers stay in f32's range.
bool is_ordinary(const Tensor& rstd) {
  const float* const values = rstd.data<float>();
  return std::all_of(values, values + rstd.numel(),
                     [](float scale) { return scale > 0x1p-40f && scale < 0x1p40f; });
}

double value_or(const float* x, int64_t i, double otherwise) {
  return x ? double(x[i]) : otherwise;
}

}  // namespace

void CpuBackend::group_norm(const NormCall& call) {
  if (!cpu::all_f32_or_short(call.x, call.weight, call.bias, call.y) || call.x.numel() == 0)
    return ReferenceBackend::group_norm(call);
  const GroupSizes sizes(call.x, call.rstd);
  const cpu::WholeInput w(call.weight), b(call.bias);
  sizes.each_group([&](int64_t group) {
    const GroupMoments moments = moments_of(call.x, group * sizes.length(), sizes.length());
    const double scale = 1 / std::sqrt(moments.variance + call.eps);
    call.mean.data<float>()[group] = float(moments.mean),
    call.rstd.data<float>()[group] = float(scale);
    alignas(64) float in[cpu::block_length], out[cpu::block_length];
    for (int64_t i = 0; i < sizes.per_group(); ++i) {
      const int64_t row = group * sizes.per_group() + i, channel = row % sizes.channels;
      const auto factor = float(scale * value_or(w.data(), channel, 1)),
                 shift = float(value_or(b.data(), channel, 0));
      each_block(row * sizes.spatial, sizes.spatial, [&](int64_t first, int64_t count) {
        cpu::Output output(call.y, first, 1, count, out);
        simd_kernels().affine(cpu::floats(call.x, first, 1, count, in), float(moments.mean), factor,
                              shift, output.data(), count);
        output.finish();
      });
    }
  });
}

void CpuBackend::group_norm_backward(const NormBackwardCall& call) {
  if (!cpu::all_f32_or_short(call.x, call.weight, call.dy, call.dx) || call.x.numel() == 0 ||
      !is_ordinary(call.rstd))
    return ReferenceBackend::group_norm_backward(call);
  const GroupSizes sizes(call.x, call.rstd);
  const cpu::WholeInput w(call.weight);
  const float *center = call.mean.data<float>(), *scale = call.rstd.data<float>();
  ChannelSums sums(sizes, call.x, call.mean, call.dy);
  // With z = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - z mean(g z)).
  if (call.dx.defined() && sizes.length() == 1) {
    fill(0, call.dx);  // one element is its own mean, and the rounding error would be multiplied by
                       // rstd
  } else if (call.dx.defined()) {
    sizes.each_group([&](int64_t group) {
      const int64_t first_row = group * sizes.per_group(), last_row = first_row + sizes.per_group();
      const double s = double(scale[group]), n = double(sizes.length());
      double mean_g = 0, mean_gz = 0;
      for (int64_t row = first_row; row < last_row; ++row) {
        const double factor = value_or(w.data(), row % sizes.channels, 1) / n;
        mean_g += factor * sums.dy(row), mean_gz += factor * s * sums.product(row);
      }
      alignas(64) float in[cpu::block_length], g[cpu::block_length], out[cpu::block_length];
      for (int64_t row = first_row; row < last_row; ++row) {
        const auto of_dy = float(s * value_or(w.data(), row % sizes.channels, 1)),
                   of_x = float(-s * s * mean_gz), shift = float(-s * mean_g);
        each_block(row * sizes.spatial, sizes.spatial, [&](int64_t first, int64_t count) {
          cpu::Output output(call.dx, first, 1, count, out);
          simd_kernels().affine_gradient(cpu::floats(call.x, first, 1, count, in), center[group],
                                         cpu::floats(call.dy, first, 1, count, g), of_dy, of_x,
                                         shift, output.data(), count);
          output.finish();
        });
      }
    });
  }
  for (int64_t channel = 0; channel < sizes.channels; ++channel) {
    double of_weight = 0, of_bias = 0;
    for (int64_t image = 0; image < sizes.images; ++image) {
      const int64_t row = image * sizes.channels + channel;
      of_weight += sums.product(row) * double(scale[row / sizes.per_group()]);
      of_bias += sums.dy(row);
    }
    if (call.dweight.defined()) reference::store_one(of_weight, call.dweight, channel);
    if (call.dbias.defined()) reference::store_one(of_bias, call.dbias, channel);
  }
}

// Layer and RMS normalization by rows. Statistics and the gradients of weights are accumulated in
// fixed groups of rows, so they do not depend on the number of threads.

namespace {
/// A sum of rows of n floats. At most eight rows are added up in float, so the error does not grow
/// with the number of rows.
class RowSum {
 public:
  RowSum(double* total, int64_t n) : total_(total), n_(n), recent_(n) {
    std::fill_n(total, n, 0.0), std::fill_n(recent_.data(), n, 0.0f);
  }
  float* recent() { return recent_.data(); }
  void row_added() {
    if (++rows_ % 8 == 0) join();
  }
  void join() {
    simd_kernels().join(recent_.data(), total_, n_);
    std::fill_n(recent_.data(), n_, 0.0f);
  }

 private:
  double* total_;
  int64_t n_, rows_ = 0;
  cpu::Workspace<float> recent_;
};

/// Computes into = the sum over groups of partial[group, n].
void add_groups(cpu::Workspace<double>& partial, int64_t groups, int64_t n, const Tensor& into) {
  if (!into.defined()) return;
  for (int64_t j = 0; j < n; ++j) {
    double total = 0;
    for (int64_t g = 0; g < groups; ++g) total += partial[g * n + j];
    reference::store_one(total, into, j);
  }
}
/// Returns the mean square of n numbers, rounded to float if it has one that is not subnormal.
double mean_square(const float* x, int64_t n) {
  const double mean = simd_kernels().sum_of_squares(x, n) / double(n);
  return mean >= double(FLT_MIN) && mean <= double(FLT_MAX) ? double(float(mean)) : mean;
}
}  // namespace

void CpuBackend::layer_norm(const NormCall& call) {
  if (!cpu::all_f32_or_short(call.x, call.weight, call.bias, call.y) || call.x.numel() == 0)
    return ReferenceBackend::layer_norm(call);
  const simd::Kernels& k = simd_kernels();
  const int64_t n = call.x.shape()[1], rows = call.x.shape()[0], group = cpu::group_of(rows, n);
  const cpu::WholeInput w(call.weight), b(call.bias);
  cpu::parallel_pieces(rows, group, [&](int64_t first, int64_t last) {
    cpu::Workspace<float> scratch(2 * n);
    for (int64_t row = first; row < last; ++row) {
      const float* in = cpu::floats(call.x, row * n, 1, n, scratch.data());
      float center = 0;
      double variance = 0;
      if (call.mean.defined()) k.moments(in, n, &center, &variance);
      else variance = mean_square(in, n);
      const auto scale = float(1 / std::sqrt(variance + call.eps));
      cpu::Output output(call.y, row * n, 1, n, scratch.data() + n);
      k.normalize(in, center, scale, w.data(), b.data(), output.data(), n);
      output.finish();
      if (call.mean.defined()) call.mean.data<float>()[row] = center;
      call.rstd.data<float>()[row] = scale;
    }
  });
}

/// The sum of a row is still in the cache when its norm reads it.
void CpuBackend::add_rms_norm(const AddNormCall& call) {
  if (!cpu::all_f32_or_short(call.a, call.b, call.weight, call.y) || call.y.numel() == 0)
    return ReferenceBackend::add_rms_norm(call);
  const simd::Kernels& k = simd_kernels();
  const FormulaCall add = call_of<BinaryFormulas>(formula::Add{});
  const int64_t n = call.y.shape()[1], rows = call.y.shape()[0];
  const bool wide = call.sum.dtype() == f32;
  const cpu::WholeInput w(call.weight);
  cpu::parallel_pieces(rows, cpu::group_of(rows, n), [&](int64_t first, int64_t last) {
    alignas(64) float left[cpu::block_length], right[cpu::block_length];
    cpu::Workspace<float> row_of_sum(wide ? 0 : n);
    for (int64_t row = first; row < last; ++row) {
      float* const in = wide ? call.sum.data<float>() + row * n : row_of_sum.data();
      for (int64_t j = 0; j < n; j += cpu::block_length) {
        const int64_t at = row * n + j, count = std::min(cpu::block_length, n - j);
        k.binary(add, cpu::floats(call.a, at, 1, count, left),
                 cpu::floats(call.b, at, 1, count, right), in + j, count);
        if (wide) continue;
        cpu::narrow(in + j, count, call.sum, at);  // the norm is that of the rounded sum
        cpu::widen(call.sum, at, count, in + j);
      }
      const auto scale = float(1 / std::sqrt(mean_square(in, n) + call.eps));
      cpu::Output output(call.y, row * n, 1, n, in);
      k.normalize(in, 0, scale, w.data(), nullptr, output.data(), n);
      output.finish();
      call.rstd.data<float>()[row] = scale;
    }
  });
}

void CpuBackend::layer_norm_backward(const NormBackwardCall& call) {
  if (!cpu::all_f32_or_short(call.x, call.weight, call.dy, call.dx) || call.x.numel() == 0)
    return ReferenceBackend::layer_norm_backward(call);
  const simd::Kernels& k = simd_kernels();
  const int64_t n = call.x.shape()[1], rows = call.x.shape()[0], group = cpu::group_of(rows, n);
  const int64_t groups = reference::pieces_of(rows, group);
  const cpu::WholeInput w(call.weight);
  cpu::Workspace<double> weight_sums(groups * n), bias_sums(groups * n);
  cpu::parallel_pieces(rows, group, [&](int64_t first, int64_t last) {
    cpu::Workspace<float> scratch(3 * n);
    const int64_t at = first / group * n;
    RowSum of_weight(weight_sums.data() + at, n), of_bias(bias_sums.data() + at, n);
    for (int64_t row = first; row < last; ++row) {
      const float* in = cpu::floats(call.x, row * n, 1, n, scratch.data());
      const float* g = cpu::floats(call.dy, row * n, 1, n, scratch.data() + n);
      const float center = call.mean.defined() ? call.mean.data<float>()[row] : 0.0f;
      std::optional<cpu::Output> output;
      if (call.dx.defined()) output.emplace(call.dx, row * n, 1, n, scratch.data() + 2 * n);
      k.norm_backward(in, center, call.rstd.data<float>()[row], call.mean.defined(), w.data(), g,
                      output ? output->data() : nullptr,
                      call.dweight.defined() ? of_weight.recent() : nullptr,
                      call.dbias.defined() ? of_bias.recent() : nullptr, n);
      if (call.dweight.defined()) of_weight.row_added();
      if (call.dbias.defined()) of_bias.row_added();
      if (output) output->finish();
    }
    if (call.dweight.defined()) of_weight.join();
    if (call.dbias.defined()) of_bias.join();
  });
  add_groups(weight_sums, groups, n, call.dweight);
  add_groups(bias_sums, groups, n, call.dbias);
}

// Softmax, log-sum-exp and cross-entropy, one row at a time. Rows of short floats are widened into
// a buffer of one row, so no f32 copy of the whole tensor exists.

namespace {
/// Calls body(first, last, scratch) for groups of rows, in parallel; scratch holds
/// `rows_of_scratch` rows of n floats.
template <class Body>
void for_row_groups(int64_t rows, int64_t n, int64_t rows_of_scratch, const Body& body) {
  const int64_t group = std::max<int64_t>(1, reference::grain_length / std::max<int64_t>(n, 1));
  cpu::parallel_pieces(rows, group, [&](int64_t first, int64_t last) {
    cpu::Workspace<float> scratch(rows_of_scratch * n);
    body(first, last, scratch.data());
  });
}

int64_t row_length(const Tensor& x) { return x.rank() == 0 ? 1 : x.shape()[x.rank() - 1]; }
int64_t row_count(const Tensor& x) { return x.numel() / std::max<int64_t>(row_length(x), 1); }
}  // namespace

void CpuBackend::softmax(const Tensor& x, bool logarithm, Tensor& y) {
  if (!cpu::all_f32_or_short(x, y) || x.numel() == 0)
    return ReferenceBackend::softmax(x, logarithm, y);
  const int64_t n = row_length(x);
  for_row_groups(row_count(x), n, 2,
                 [&, &k = simd_kernels()](int64_t first, int64_t last, float* scratch) {
                   for (int64_t row = first; row < last; ++row) {
                     cpu::Output output(y, row * n, 1, n, scratch + n);
                     k.softmax(cpu::floats(x, row * n, 1, n, scratch), n, logarithm, output.data());
                     output.finish();
                   }
                 });
}

void CpuBackend::softmax_backward(const Tensor& y, const Tensor& dy, bool logarithm, Tensor& dx) {
  if (!cpu::all_f32_or_short(y, dy, dx) || y.numel() == 0)
    return ReferenceBackend::softmax_backward(y, dy, logarithm, dx);
  const int64_t n = row_length(y);
  for_row_groups(row_count(y), n, 3,
                 [&, &k = simd_kernels()](int64_t first, int64_t last, float* scratch) {
                   for (int64_t row = first; row < last; ++row) {
                     cpu::Output output(dx, row * n, 1, n, scratch + 2 * n);
                     k.softmax_backward(cpu::floats(y, row * n, 1, n, scratch),
                                        cpu::floats(dy, row * n, 1, n, scratch + n), n, logarithm,
                                        output.data());
                     output.finish();
                   }
                 });
}

void CpuBackend::log_sum_exp(const Tensor& x, Tensor& y) {
  if (!cpu::all_f32_or_short(x, y) || x.numel() == 0) return ReferenceBackend::log_sum_exp(x, y);
  const int64_t n = row_length(x);
  for_row_groups(row_count(x), n, 1,
                 [&, &k = simd_kernels()](int64_t first, int64_t last, float* scratch) {
                   for (int64_t row = first; row < last; ++row) {
                     float shift;
                     const float sum = k.exp_sum(cpu::floats(x, row * n, 1, n, scratch), n, &shift);
                     reference::store_one(double(shift) + elementary::log(double(sum)), y, row);
                   }
                 });
}

namespace {
/// Returns whether this is the usual case of training, without class weights. Label smoothing also
/// needs the row's sum.
bool plain_targets(const Tensor& logits, const Tensor& class_weights) {
  return cpu::is_f32_or_short(logits) && !class_weights.defined() && logits.numel() > 0;
}
}  // namespace

void CpuBackend::cross_entropy(const Tensor& logits, const Tensor& targets,
                               const Tensor& class_weights, const CrossEntropySettings& settings,
                               Tensor& losses, Tensor& row_weights, Tensor& log_sum_exp) {
  const int64_t rows = logits.shape()[0], n = logits.shape()[1];
  const int64_t* target = targets.data<int64_t>();
  const auto valid = [&](int64_t t) { return t == settings.ignore_index || (t >= 0 && t < n); };
  // The reference names the first target that is out of range.
  if (!plain_targets(logits, class_weights) || !std::all_of(target, target + rows, valid))
    return ReferenceBackend::cross_entropy(logits, targets, class_weights, settings, losses,
                                           row_weights, log_sum_exp);
  const double smoothing = settings.label_smoothing;
  for_row_groups(rows, n, 2, [&, &k = simd_kernels()](int64_t first, int64_t last, float* scratch) {
    float* const below = scratch + n;
    for (int64_t row = first; row < last; ++row) {
      const float* x = cpu::floats(logits, row * n, 1, n, scratch);
      float shift;
      const float total = k.exp_sum(x, n, &shift);
      const float sum = float(reference::ExpTotal{shift, total}.or_nan().sum);
      const double log_sum = elementary::log(double(sum));
      const bool counts = target[row] != settings.ignore_index;
      double loss = counts ? double(shift) - double(x[target[row]]) + log_sum : 0.0;
      if (counts && smoothing != 0) {
        for (int64_t j = 0; j < n; ++j) below[j] = x[j] - shift;  // x's own sum would be rounded
        loss = (1 - smoothing) * loss + smoothing * (log_sum - k.sum(below, n) / double(n));
      }
      log_sum_exp.data<float>()[row] = shift, log_sum_exp.data<float>()[rows + row] = sum;
      losses.data<float>()[row] = float(loss);
      row_weights.data<float>()[row] = counts ? 1.0f : 0.0f;
    }
  });
}

void CpuBackend::cross_entropy_backward(const Tensor& logits, const Tensor& targets,
                                        const Tensor& class_weights,
                                        const CrossEntropySettings& settings,
                                        const Tensor& log_sum_exp, const Tensor& row_scale,
                                        Tensor& dlogits) {
  if (!plain_targets(logits, class_weights))
    return ReferenceBackend::cross_entropy_backward(logits, targets, class_weights, settings,
                                                    log_sum_exp, row_scale, dlogits);
  const int64_t rows = logits.shape()[0], n = logits.shape()[1], step = row_scale.strides()[0];
  const float even = float(settings.label_smoothing / double(n)),
              own = float(1 - settings.label_smoothing);
  for_row_groups(rows, n, 2, [&, &k = simd_kernels()](int64_t first, int64_t last, float* scratch) {
    for (int64_t row = first; row < last; ++row) {
      cpu::Output output(dlogits, row * n, 1, n, scratch + n);
      float* dx = output.data();
      const int64_t t = targets.data<int64_t>()[row];
      const float scale = row_scale.data<float>()[row * step];
      if (t == settings.ignore_index) {
        std::fill_n(dx, n, 0.0f);
      } else {
        k.exp_shifted(cpu::floats(logits, row * n, 1, n, scratch), log_sum_exp.data<float>()[row],
                      scale / log_sum_exp.data<float>()[rows + row], dx, n);
        dx[t] -= scale * own;
        if (even != 0)
          for (int64_t j = 0; j < n; ++j) dx[j] -= scale * even;
      }
      output.finish();
    }
  });
}

}  // namespace halftone
