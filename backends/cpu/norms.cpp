// Batch norm over the pixels of NHWC images, with residual and relu. Statistics read x once; the
// rest reads and writes each tensor once. Sums run in float within blocks that stay in a cache, and
// in double across blocks.
#include <cmath>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/row_groups.h>

namespace halftone {

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

void CpuBackend::batch_norm(const Tensor& x, const Tensor& mean, const Tensor& variance, double eps,
                            const Tensor& weight, const Tensor& bias, const Tensor& residual,
                            bool relu, Tensor& y) {
  if (!cpu::all_f32_or_short(x, residual, y, mean, variance) || x.numel() == 0)
    return ReferenceBackend::batch_norm(x, mean, variance, eps, weight, bias, residual, relu, y);
  const Pixels pixels(x);
  const int64_t c = pixels.channels;
  cpu::Workspace<float> affine(2 * c);  // y = (x - mean) scale + shift
  for (int64_t j = 0; j < c; ++j) {
    const double w = weight.defined() ? reference::load_one(weight, j) : 1.0;
    affine[j] = float(w / std::sqrt(double(variance.data<float>()[j]) + eps));
    affine[c + j] = bias.defined() ? float(reference::load_one(bias, j)) : 0.0f;
  }
  const auto compute = [&]<class E>(const simd::ChannelKernels<E>& k) {
    pixels.each_group([&](int64_t first, int64_t last) {
      Blocks<E> input(x, pixels), other(residual, pixels), result(y, pixels);
      pixels.each_block(first, last, [&](int64_t at, int64_t rows) {
        auto output = result.write(at, rows);
        k.affine(input.read(at, rows), mean.data<float>(), affine.data(), affine.data() + c,
                 other.read(at, rows), relu, output.data(), rows, c);
        output.finish();
      });
    });
  };
  with_kernels(compute, x, residual, y);
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
void CpuBackend::batch_norm_backward(const Tensor& x, const Tensor& mean, const Tensor& variance,
                                     double eps, const Tensor& weight, const Tensor& relu_output,
                                     const Tensor& dy, bool training, Tensor& dx, Tensor& dweight,
                                     Tensor& dbias, Tensor& dresidual) {
  if (!cpu::all_f32_or_short(x, relu_output, dy, dx, dresidual, mean, variance) || x.numel() == 0)
    return ReferenceBackend::batch_norm_backward(x, mean, variance, eps, weight, relu_output, dy,
                                                 training, dx, dweight, dbias, dresidual);
  const Pixels pixels(x);
  const int64_t c = pixels.channels;
  cpu::Workspace<double> sums(2 * c);
  cpu::Workspace<float> factors(3 * c);  // dx = a g + b (x - mean) + shift
  const auto add_up = [&](const auto& k) {
    gradient_sums(k, x, dy, relu_output, mean, pixels, sums.data());
  };
  with_kernels(add_up, x, dy, relu_output);
  for (int64_t j = 0; j < c; ++j) {
    const double rstd = 1 / std::sqrt(double(variance.data<float>()[j]) + eps),
                 m = double(pixels.count);
    const double a = rstd * (weight.defined() ? reference::load_one(weight, j) : 1.0);
    const double b = training ? -a * rstd * rstd * sums[c + j] / m : 0.0;
    factors[j] = float(a), factors[c + j] = float(b);
    factors[2 * c + j] = float(training ? -a * sums[j] / m : 0.0);
    if (dweight.defined()) reference::store_one(sums[c + j] * rstd, dweight, j);
    if (dbias.defined()) reference::store_one(sums[j], dbias, j);
  }
  if (!dx.defined() && !dresidual.defined()) return;
  const auto compute = [&]<class E>(const simd::ChannelKernels<E>& k) {
    pixels.each_group([&](int64_t first, int64_t last) {
      Blocks<E> input(x, pixels), gradient(dy, pixels), result(relu_output, pixels),
          input_gradient(dx, pixels), residual_gradient(dresidual, pixels);
      pixels.each_block(first, last, [&](int64_t at, int64_t rows) {
        std::optional<typename Blocks<E>::Output> to_x, to_residual;
        if (dx.defined()) to_x.emplace(input_gradient.write(at, rows));
        if (dresidual.defined()) to_residual.emplace(residual_gradient.write(at, rows));
        k.backward(input.read(at, rows), gradient.read(at, rows), result.read(at, rows),
                   mean.data<float>(), factors.data(), factors.data() + c, factors.data() + 2 * c,
                   to_x ? to_x->data() : nullptr, to_residual ? to_residual->data() : nullptr, rows,
                   c);
        if (to_x) to_x->finish();
        if (to_residual) to_residual->finish();
      });
    });
  };
  with_kernels(compute, x, dy, relu_output, dx, dresidual);
}

}  // namespace halftone
