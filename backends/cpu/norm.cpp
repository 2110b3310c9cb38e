// Layer, RMS and batch normalisation by rows. Statistics and the gradients of weights are
// accumulated in fixed groups of rows, so they do not depend on the number of threads.
#include <cmath>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/core/views.h>

namespace halftone {

namespace {
/// Rows per task: a fixed number, so that sums over groups come out the same for any number of
/// threads.
int64_t group_of(int64_t rows, int64_t n) {
  const int64_t by_size = std::max<int64_t>(1, reference::grain_length / std::max<int64_t>(n, 1));
  return std::max(by_size, (rows + 63) / 64);
}

/// into = sum over groups of partial[group, n]
void add_groups(cpu::Workspace<float>& partial, int64_t groups, int64_t n, const Tensor& into) {
  if (!into.defined()) return;
  for (int64_t j = 0; j < n; ++j) {
    double total = 0;
    for (int64_t g = 0; g < groups; ++g) total += double(partial[g * n + j]);
    reference::store_one(total, into, j);
  }
}
}  // namespace

void CpuBackend::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                            Tensor& y, Tensor& mean, Tensor& rstd) {
  if (!cpu::all_f32_or_short(x, weight, bias, y) || x.numel() == 0)
    return ReferenceBackend::layer_norm(x, weight, bias, eps, y, mean, rstd);
  const simd::Kernels& k = simd_kernels();
  const int64_t n = x.shape()[1], rows = x.shape()[0], group = group_of(rows, n);
  const cpu::WholeInput w(weight), b(bias);
  cpu::parallel_pieces(rows, group, [&](int64_t first, int64_t last) {
    cpu::Workspace<float> scratch(2 * n);
    for (int64_t row = first; row < last; ++row) {
      const float* in = cpu::floats(x, row * n, 1, n, scratch.data());
      float centre = 0, variance = 0;
      if (mean.defined()) k.moments(in, n, &centre, &variance);
      else variance = float(k.sum_of_squares(in, n) / double(n));
      const float scale = 1.0f / std::sqrt(variance + float(eps));
      cpu::Output output(y, row * n, 1, n, scratch.data() + n);
      k.normalize(in, centre, scale, w.data(), b.data(), output.data(), n);
      output.finish();
      if (mean.defined()) mean.data<float>()[row] = centre;
      rstd.data<float>()[row] = scale;
    }
  });
}

void CpuBackend::layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& mean,
                                     const Tensor& rstd, const Tensor& dy, Tensor& dx,
                                     Tensor& dweight, Tensor& dbias) {
  if (!cpu::all_f32_or_short(x, weight, dy, dx) || x.numel() == 0)
    return ReferenceBackend::layer_norm_backward(x, weight, mean, rstd, dy, dx, dweight, dbias);
  const simd::Kernels& k = simd_kernels();
  const int64_t n = x.shape()[1], rows = x.shape()[0], group = group_of(rows, n);
  const int64_t groups = reference::pieces_of(rows, group);
  const cpu::WholeInput w(weight);
  cpu::Workspace<float> weight_sums(groups * n), bias_sums(groups * n);
  std::fill_n(weight_sums.data(), groups * n, 0.0f);
  std::fill_n(bias_sums.data(), groups * n, 0.0f);
  cpu::parallel_pieces(rows, group, [&](int64_t first, int64_t last) {
    cpu::Workspace<float> scratch(3 * n);
    const int64_t at = first / group * n;
    for (int64_t row = first; row < last; ++row) {
      const float* in = cpu::floats(x, row * n, 1, n, scratch.data());
      const float* g = cpu::floats(dy, row * n, 1, n, scratch.data() + n);
      const float centre = mean.defined() ? mean.data<float>()[row] : 0.0f;
      std::optional<cpu::Output> output;
      if (dx.defined()) output.emplace(dx, row * n, 1, n, scratch.data() + 2 * n);
      k.norm_backward(in, centre, rstd.data<float>()[row], mean.defined(), w.data(), g,
                      output ? output->data() : nullptr,
                      dweight.defined() ? weight_sums.data() + at : nullptr,
                      dbias.defined() ? bias_sums.data() + at : nullptr, n);
      if (output) output->finish();
    }
  });
  add_groups(weight_sums, groups, n, dweight);
  add_groups(bias_sums, groups, n, dbias);
}

namespace {
/// A batch-norm input as [pixels, channels] in memory.
struct Pixels {
  int64_t count, channels;
  explicit Pixels(const Tensor& x)
      : count(x.numel() / std::max<int64_t>(x.shape()[1], 1)), channels(x.shape()[1]) {}
};

/// Sums over all pixels of (dy, dy (x - mean)), or of (x - mean, (x - mean)^2) where dy is
/// undefined.
void sum_channels(const Tensor& x, const Tensor& dy, const float* mean, double* first_sum,
                  double* second_sum) {
  const simd::Kernels& k = simd_kernels();
  const Pixels pixels(x);
  const int64_t c = pixels.channels, group = group_of(pixels.count, c),
                groups = reference::pieces_of(pixels.count, group);
  // In float within a block of pixels, in double across blocks.
  const int64_t block = std::max<int64_t>(32, cpu::block_length / c);
  cpu::Workspace<double> sums(2 * groups * c);
  cpu::parallel_pieces(pixels.count, group, [&](int64_t first, int64_t last) {
    double* to = sums.data() + first / group * 2 * c;
    std::fill_n(to, 2 * c, 0.0);
    cpu::Workspace<float> scratch(2 * block * c), partial(2 * c);
    for (int64_t p = first; p < last; p += block) {
      const int64_t rows = std::min(block, last - p), n = rows * c;
      const float* in = cpu::floats(x, p * c, 1, n, scratch.data());
      const float* g =
          dy.defined() ? cpu::floats(dy, p * c, 1, n, scratch.data() + block * c) : nullptr;
      std::fill_n(partial.data(), 2 * c, 0.0f);
      k.channel_sums(in, g, mean, rows, c, partial.data(), partial.data() + c);
      for (int64_t j = 0; j < 2 * c; ++j) to[j] += double(partial[j]);
    }
  });
  for (int64_t j = 0; j < c; ++j) {
    first_sum[j] = second_sum[j] = 0;
    for (int64_t g = 0; g < groups; ++g)
      first_sum[j] += sums[2 * g * c + j], second_sum[j] += sums[(2 * g + 1) * c + j];
  }
}

/// Calls body(begin, count) in elements for blocks of whole pixels, in parallel.
template <class Body> void for_pixel_blocks(const Pixels& pixels, const Body& body) {
  const int64_t c = pixels.channels;
  cpu::parallel_pieces(pixels.count, std::max<int64_t>(1, reference::grain_length / c),
                       [&](int64_t first, int64_t last) {
                         for (int64_t p = first; p < last; ++p) body(p * c, c);
                       });
}
}  // namespace

// Shifted by the first pixel, sums of squares lose nothing to cancellation: variance = E[d^2] -
// E[d]^2.
void CpuBackend::batch_norm_statistics(const Tensor& x, Tensor& mean, Tensor& variance) {
  if (!cpu::is_f32_or_short(x) || x.numel() == 0)
    return ReferenceBackend::batch_norm_statistics(x, mean, variance);
  const Pixels pixels(x);
  const int64_t c = pixels.channels;
  cpu::Workspace<float> shift(c);
  cpu::Workspace<double> sums(2 * c);
  const float* first = cpu::floats(x, 0, 1, c, shift.data());
  if (first != shift.data()) std::copy_n(first, c, shift.data());
  // A first pass finds the mean, a second the variance around it.
  sum_channels(x, {}, shift.data(), sums.data(), sums.data() + c);
  for (int64_t j = 0; j < c; ++j) {
    shift[j] = float(double(shift[j]) + sums[j] / double(pixels.count));
    mean.data<float>()[j] = shift[j];
  }
  sum_channels(x, {}, shift.data(), sums.data(), sums.data() + c);
  for (int64_t j = 0; j < c; ++j) {
    const double off = sums[j] / double(pixels.count);
    variance.data<float>()[j] = float(sums[c + j] / double(pixels.count) - off * off);
  }
}

void CpuBackend::batch_norm(const Tensor& x, const Tensor& mean, const Tensor& variance, double eps,
                            const Tensor& weight, const Tensor& bias, Tensor& y) {
  if (!cpu::all_f32_or_short(x, y, mean, variance) || x.numel() == 0)
    return ReferenceBackend::batch_norm(x, mean, variance, eps, weight, bias, y);
  const Pixels pixels(x);
  const int64_t c = pixels.channels;
  cpu::Workspace<float> affine(2 * c);  // y = x scale + shift
  for (int64_t j = 0; j < c; ++j) {
    const double w = weight.defined() ? reference::load_one(weight, j) : 1.0;
    const double scale = w / std::sqrt(double(variance.data<float>()[j]) + eps);
    affine[j] = float(scale);
    affine[c + j] = float((bias.defined() ? reference::load_one(bias, j) : 0.0) -
                          scale * double(mean.data<float>()[j]));
  }
  for_pixel_blocks(pixels, [&, &k = simd_kernels()](int64_t begin, int64_t n) {
    alignas(64) float in[4096], out[4096];
    for (int64_t j = 0; j < n; j += 4096) {
      const int64_t count = std::min<int64_t>(4096, n - j);
      cpu::Output output(y, begin + j, 1, count, out);
      k.channel_affine(cpu::floats(x, begin + j, 1, count, in), affine.data() + j,
                       affine.data() + c + j, output.data(), count);
      output.finish();
    }
  });
}

// With g = dy weight rstd:  dx = g, in training minus the parts along 1 and along x - mean:
//   dx = rstd weight (dy - mean(dy) - (x - mean) rstd^2 mean(dy (x - mean)))
void CpuBackend::batch_norm_backward(const Tensor& x, const Tensor& mean, const Tensor& variance,
                                     double eps, const Tensor& weight, const Tensor& dy,
                                     bool training, Tensor& dx, Tensor& dweight, Tensor& dbias) {
  if (!cpu::all_f32_or_short(x, dy, dx, mean, variance) || x.numel() == 0)
    return ReferenceBackend::batch_norm_backward(x, mean, variance, eps, weight, dy, training, dx,
                                                 dweight, dbias);
  const Pixels pixels(x);
  const int64_t c = pixels.channels;
  cpu::Workspace<double> sums(2 * c);
  cpu::Workspace<float> factors(3 * c);  // dx = a dy + b x + shift
  sum_channels(x, dy, mean.data<float>(), sums.data(), sums.data() + c);
  for (int64_t j = 0; j < c; ++j) {
    const double rstd = 1 / std::sqrt(double(variance.data<float>()[j]) + eps),
                 m = double(pixels.count);
    const double a = rstd * (weight.defined() ? reference::load_one(weight, j) : 1.0);
    const double b = training ? -a * rstd * rstd * sums[c + j] / m : 0.0;
    factors[j] = float(a), factors[c + j] = float(b);
    factors[2 * c + j] =
        float(training ? -a * sums[j] / m - b * double(mean.data<float>()[j]) : 0.0);
    if (dweight.defined()) reference::store_one(sums[c + j] * rstd, dweight, j);
    if (dbias.defined()) reference::store_one(sums[j], dbias, j);
  }
  if (!dx.defined()) return;
  for_pixel_blocks(pixels, [&, &k = simd_kernels()](int64_t begin, int64_t n) {
    alignas(64) float in[2048], g[2048], out[2048];
    for (int64_t j = 0; j < n; j += 2048) {
      const int64_t count = std::min<int64_t>(2048, n - j);
      cpu::Output output(dx, begin + j, 1, count, out);
      k.channel_backward(cpu::floats(x, begin + j, 1, count, in),
                         cpu::floats(dy, begin + j, 1, count, g), factors.data() + j,
                         factors.data() + c + j, factors.data() + 2 * c + j, output.data(), count);
      output.finish();
    }
  });
}

}  // namespace halftone
