// Batch norm forward: statistics read x once; the rest reads and writes each tensor once, with the
// residual and relu in the same pass.
#include <halftone/backends/cuda/batch_norm.h>
#include <halftone/backends/cuda/cuda_backend.h>

namespace halftone {

namespace cuda {
namespace {

template <class T, int size> struct MomentTerms {
  const T* x;
  int64_t channels;
  __device__ MomentTerms at(int64_t channel) const { return {x + channel, channels}; }
  __device__ void operator()(int64_t pixel, Moments<compute_t<T>>* moments) const {
    compute_t<T> values[size];
    load_channels(x, pixel * channels, values);
    const compute_t<T> share = compute_t<T>(1) / (moments[0].count + 1);  // the same for all
                                                                          // channels
#pragma unroll
    for (int i = 0; i < size; ++i) moments[i].add(values[i], share);
  }
};
struct StoreMoments {
  Operand mean, variance;
  __device__ void operator()(int64_t, int64_t channel, const Moments<double>& total) const {
    const bool any = total.count > 0;  // without pixels the mean is undefined
    store_as<double>(mean, channel, any ? total.mean : 0.0 / total.count);
    store_as<double>(variance, channel, total.squares / total.count);
  }
};

template <class T> struct BatchNormParameters {
  const compute_t<T>*mean, *variance;
  RowVector<T> weight, bias;
  compute_t<T> eps;
};

template <class T, int size>
__global__ void __launch_bounds__(block_threads, 3)
    batch_norm_kernel(ColumnCut cut, const T* __restrict__ x, BatchNormParameters<T> p,
                      const T* __restrict__ residual, bool relu, int64_t walks, T* __restrict__ y) {
  using C = compute_t<T>;
  for (int64_t item = blockIdx.x; item < walks; item += gridDim.x) {
    const PixelWalk walk(cut, item, size);
    if (walk.begin >= walk.end) continue;
    const Row<size> all_channels(0, cut.columns);
    C mean[size], scale[size], bias[size];
    p.weight.load(all_channels, walk.channel / size, C(1), scale);
    p.bias.load(all_channels, walk.channel / size, C(0), bias);
#pragma unroll
    for (int i = 0; i < size; ++i) {
      mean[i] = p.mean[walk.channel + i];
      scale[i] /= math::sqrt(p.variance[walk.channel + i] + p.eps);
    }
#pragma unroll 2
    for (int64_t pixel = walk.begin; pixel < walk.end; pixel += walk.step) {
      const int64_t element = pixel * cut.columns + walk.channel;
      C values[size], others[size] = {};
      load_channels(x, element, values);
      if (residual) load_channels(residual, element, others);
#pragma unroll
      for (int i = 0; i < size; ++i) {
        values[i] = (values[i] - mean[i]) * scale[i] + bias[i] + others[i];
        if (relu && values[i] < C(0)) values[i] = 0;
      }
      store_channels(y, element, values);
    }
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::batch_norm_statistics(const Tensor& x, Tensor& mean, Tensor& variance) {
  const PixelMatrix pixels(x);
  visit_floating(x.dtype(), "batch_norm", [&]<class T>() {
    visit_pack_size<T>(
        pixels.channels,
        [&]<int size>() {
          reduce_columns<size, Moments<compute_t<T>>>(
              context_, pixels.count, pixels.channels,
              MomentTerms<T, size>{x.data<T>(), pixels.channels},
              StoreMoments{Operand(mean), Operand(variance)});
        },
        x);
  });
}

void CudaBackend::batch_norm(const Tensor& x_in, const Tensor& mean_in, const Tensor& variance_in,
                             double eps, const Tensor& weight_in, const Tensor& bias_in,
                             const Tensor& residual_in, bool relu, Tensor& y) {
  if (x_in.numel() == 0) return;
  const PixelMatrix pixels(x_in);
  const DType dtype = common_dtype(x_in, residual_in, y), wide = dtype == f64 ? f64 : f32;
  const Tensor x = converted(*this, x_in, dtype), residual = converted(*this, residual_in, dtype);
  const Tensor mean = converted(*this, mean_in, wide),
               variance = converted(*this, variance_in, wide);
  const Tensor weight = readable_weight(*this, weight_in, dtype),
               bias = readable_weight(*this, bias_in, dtype);
  ConvertedResult result(*this, y, dtype);
  visit_floating(dtype, "batch_norm", [&]<class T>() {
    using C = compute_t<T>;
    const int64_t c = pixels.channels;
    const BatchNormParameters<T> p{mean.data<C>(), variance.data<C>(), RowVector<T>(weight, c),
                                   RowVector<T>(bias, c), C(eps)};
    visit_pack_size<T>(
        c,
        [&]<int size>() {
          const ColumnCut cut = walk_cut(context_, pixels, size);
          const int64_t walks = walks_of(cut, size);
          launch(context_, batch_norm_kernel<T, size>, {blocks_for(walks, 1), block_threads}, cut,
                 x.data<T>(), p, residual.defined() ? residual.data<T>() : nullptr, relu, walks,
                 result.tensor().data<T>());
        },
        x, residual, result.tensor());
  });
  result.finish();
}

}  // namespace halftone
