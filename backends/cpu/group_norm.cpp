// Group norm of [n, c, spatial]: a group of channels of one image is contiguous in memory. Each
// block of a channel has its own sums, which are joined in double, in order: the number of threads
// has no effect.
#include <algorithm>
#include <cmath>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/row_groups.h>

namespace halftone {

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

void CpuBackend::group_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                            Tensor& y, Tensor& mean, Tensor& rstd) {
  if (!cpu::all_f32_or_short(x, weight, bias, y) || x.numel() == 0)
    return ReferenceBackend::group_norm(x, weight, bias, eps, y, mean, rstd);
  const GroupSizes sizes(x, rstd);
  const cpu::WholeInput w(weight), b(bias);
  sizes.each_group([&](int64_t group) {
    const GroupMoments moments = moments_of(x, group * sizes.length(), sizes.length());
    const double scale = 1 / std::sqrt(moments.variance + eps);
    mean.data<float>()[group] = float(moments.mean), rstd.data<float>()[group] = float(scale);
    alignas(64) float in[cpu::block_length], out[cpu::block_length];
    for (int64_t i = 0; i < sizes.per_group(); ++i) {
      const int64_t row = group * sizes.per_group() + i, channel = row % sizes.channels;
      const auto factor = float(scale * value_or(w.data(), channel, 1)),
                 shift = float(value_or(b.data(), channel, 0));
      each_block(row * sizes.spatial, sizes.spatial, [&](int64_t first, int64_t count) {
        cpu::Output output(y, first, 1, count, out);
        simd_kernels().affine(cpu::floats(x, first, 1, count, in), float(moments.mean), factor,
                              shift, output.data(), count);
        output.finish();
      });
    }
  });
}

void CpuBackend::group_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& mean,
                                     const Tensor& rstd, const Tensor& dy, Tensor& dx,
                                     Tensor& dweight, Tensor& dbias) {
  if (!cpu::all_f32_or_short(x, weight, dy, dx) || x.numel() == 0 || !is_ordinary(rstd))
    return ReferenceBackend::group_norm_backward(x, weight, mean, rstd, dy, dx, dweight, dbias);
  const GroupSizes sizes(x, rstd);
  const cpu::WholeInput w(weight);
  const float *center = mean.data<float>(), *scale = rstd.data<float>();
  ChannelSums sums(sizes, x, mean, dy);
  // With z = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - z mean(g z)).
  if (dx.defined() && sizes.length() == 1) {
    fill(0, dx);  // one element is its own mean, and the rounding error would be multiplied by rstd
  } else if (dx.defined()) {
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
          cpu::Output output(dx, first, 1, count, out);
          simd_kernels().affine_gradient(cpu::floats(x, first, 1, count, in), center[group],
                                         cpu::floats(dy, first, 1, count, g), of_dy, of_x, shift,
                                         output.data(), count);
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
    if (dweight.defined()) reference::store_one(of_weight, dweight, channel);
    if (dbias.defined()) reference::store_one(of_bias, dbias, channel);
  }
}

}  // namespace halftone
