// Batch norm forward: statistics read x once; the rest reads and writes each tensor once, with the
// residual and relu in the same pass.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/norm.h>

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

void CudaBackend::batch_norm(const BatchNormCall& call) {
  if (call.x.numel() == 0) return;
  const PixelMatrix pixels(call.x);
  const DType dtype = common_dtype(call.x, call.residual, call.y), wide = dtype == f64 ? f64 : f32;
  const Tensor x = converted(*this, call.x, dtype),
               residual = converted(*this, call.residual, dtype);
  const Tensor mean = converted(*this, call.mean, wide),
               variance = converted(*this, call.variance, wide);
  const Tensor weight = readable_weight(*this, call.weight, dtype),
               bias = readable_weight(*this, call.bias, dtype);
  ConvertedResult result(*this, call.y, dtype);
  visit_floating(dtype, "batch_norm", [&]<class T>() {
    using C = compute_t<T>;
    const int64_t c = pixels.channels;
    const BatchNormParameters<T> p{mean.data<C>(), variance.data<C>(), RowVector<T>(weight, c),
                                   RowVector<T>(bias, c), C(call.eps)};
    visit_pack_size<T>(
        c,
        [&]<int size>() {
          const ColumnCut cut = walk_cut(context_, pixels, size);
          const int64_t walks = walks_of(cut, size);
          launch(context_, batch_norm_kernel<T, size>, {blocks_for(walks, 1), block_threads}, cut,
                 x.data<T>(), p, residual.defined() ? residual.data<T>() : nullptr, call.relu,
                 walks, result.tensor().data<T>());
        },
        x, residual, result.tensor());
  });
  result.finish();
}

// Batch norm backward. With g = dy where relu is positive (else 0): dresidual = g, and, in
// training,
//   dx = rstd weight (g - mean(g) - (x - mean) rstd^2 mean(g (x - mean)));
// in evaluation mode, mean and variance are constants and the means of g drop out.

namespace cuda {
namespace {

/// The inputs at one element. relu_output may be null.
template <class T> struct Incoming {
  const T *x, *dy, *relu_output;
  template <int size>
  __device__ __forceinline__ void load(int64_t element, compute_t<T> (&in)[size],
                                       compute_t<T> (&g)[size]) const {
    load_channels(x, element, in), load_channels(dy, element, g);
    if (!relu_output) return;
    compute_t<T> output[size];
    load_channels(relu_output, element, output);
#pragma unroll
    for (int i = 0; i < size; ++i)
      if (!(output[i] > compute_t<T>(0))) g[i] = 0;
  }
};

/// Terms of the sums of g (x - mean) and of g.
template <class T, int size> struct GradientTerms {
  Incoming<T> incoming;
  const compute_t<T>* mean;
  int64_t channels;

  struct Walker {
    Incoming<T> incoming;
    int64_t channel, channels;
    compute_t<T> mean[size];
    __device__ void operator()(int64_t pixel, ColumnSums<2, compute_t<T>>* sums) const {
      compute_t<T> in[size], g[size];
      incoming.load(pixel * channels + channel, in, g);
#pragma unroll
      for (int i = 0; i < size; ++i)
        sums[i].of[0] += g[i] * (in[i] - mean[i]), sums[i].of[1] += g[i];
    }
  };
  __device__ Walker at(int64_t channel) const {
    Walker walker{incoming, channel, channels, {}};
#pragma unroll
    for (int i = 0; i < size; ++i) walker.mean[i] = mean[channel + i];
    return walker;
  }
};

/// Turns a channel's sums into the gradients of weight and bias, and into the factors of dx =
/// factors[0] g + factors[1] (x - mean) + factors[2], each [channels].
template <class C> struct StoreFactors {
  const C* variance;
  Operand weight, dweight, dbias;
  double eps, pixels;
  bool training;
  C* factors;
  int64_t channels;

  __device__ void operator()(int64_t, int64_t channel, const ColumnSums<2, double>& total) const {
    const double rstd = 1 / math::sqrt(double(variance[channel]) + eps);
    const double a = rstd * (weight.data ? load_as<double>(weight, channel) : 1.0);
    factors[channel] = C(a);
    factors[channels + channel] = C(training ? -a * rstd * rstd * total.of[0] / pixels : 0.0);
    factors[2 * channels + channel] = C(training ? -a * total.of[1] / pixels : 0.0);
    if (dweight.data) store_as<double>(dweight, channel, total.of[0] * rstd);
    if (dbias.data) store_as<double>(dbias, channel, total.of[1]);
  }
};

template <class T, int size>
__global__ void __launch_bounds__(block_threads, 3)
    batch_norm_backward_kernel(ColumnCut cut, Incoming<T> incoming,
                               const compute_t<T>* __restrict__ means,
                               const compute_t<T>* __restrict__ factors, int64_t walks,
                               T* __restrict__ dx, T* __restrict__ dresidual) {
  using C = compute_t<T>;
  for (int64_t item = blockIdx.x; item < walks; item += gridDim.x) {
    const PixelWalk walk(cut, item, size);
    if (walk.begin >= walk.end) continue;
    C mean[size], a[size], b[size], shift[size];
#pragma unroll
    for (int i = 0; i < size; ++i) {
      const int64_t channel = walk.channel + i;
      mean[i] = means[channel], a[i] = factors[channel], b[i] = factors[cut.columns + channel];
      shift[i] = factors[2 * cut.columns + channel];
    }
#pragma unroll 2
    for (int64_t pixel = walk.begin; pixel < walk.end; pixel += walk.step) {
      const int64_t element = pixel * cut.columns + walk.channel;
      C in[size], g[size];
      incoming.load(element, in, g);
      if (dresidual) store_channels(dresidual, element, g);
      if (!dx) continue;
#pragma unroll
      for (int i = 0; i < size; ++i) g[i] = a[i] * g[i] + b[i] * (in[i] - mean[i]) + shift[i];
      store_channels(dx, element, g);
    }
  }
}

template <class T> T* data_or_null(const Tensor& x) { return x.defined() ? x.data<T>() : nullptr; }

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::batch_norm_backward(const BatchNormBackwardCall& call) {
  const PixelMatrix pixels(call.x);
  const DType dtype = common_dtype(call.x, call.relu_output, call.dy, call.dx, call.dresidual),
              wide = dtype == f64 ? f64 : f32;
  const Tensor x = converted(*this, call.x, dtype), dy = converted(*this, call.dy, dtype),
               output = converted(*this, call.relu_output, dtype);
  const Tensor mean = converted(*this, call.mean, wide),
               variance = converted(*this, call.variance, wide);
  ConvertedResult to_x(*this, call.dx, dtype), to_residual(*this, call.dresidual, dtype);
  const Tensor factors = scratch(context_, {3 * pixels.channels}, wide);
  const auto run = [&]<class T, int size>() {
    using C = compute_t<T>;
    const Incoming<T> incoming{x.data<T>(), dy.data<T>(), data_or_null<T>(output)};
    reduce_columns<size, ColumnSums<2, C>>(
        context_, pixels.count, pixels.channels,
        GradientTerms<T, size>{incoming, mean.data<C>(), pixels.channels},
        StoreFactors<C>{variance.data<C>(), Operand(call.weight), Operand(call.dweight),
                        Operand(call.dbias), call.eps, double(pixels.count), call.training,
                        factors.data<C>(), pixels.channels});
    if ((!call.dx.defined() && !call.dresidual.defined()) || x.numel() == 0) return;
    const ColumnCut cut = walk_cut(context_, pixels, size);
    const int64_t walks = walks_of(cut, size);
    launch(context_, batch_norm_backward_kernel<T, size>, {blocks_for(walks, 1), block_threads},
           cut, incoming, mean.data<C>(), factors.data<C>(), walks, data_or_null<T>(to_x.tensor()),
           data_or_null<T>(to_residual.tensor()));
  };
  visit_floating(dtype, "batch_norm", [&]<class T>() {
    visit_pack_size<T>(
        pixels.channels, [&]<int size>() { run.template operator()<T, size>(); }, x, dy, output,
        to_x.tensor(), to_residual.tensor());
  });
  to_x.finish(), to_residual.finish();
}

}  // namespace halftone
