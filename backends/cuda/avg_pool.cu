// Average pooling of NHWC images, with sliding or adaptive windows. Backward gathers: each input
// adds up the gradients of the windows over it, so two threads never write to one place.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/images.h>
#include <halftone/backends/image_axis.h>

namespace halftone {

namespace cuda {
namespace {

/// Windows along both axes, and the divisor of their sums: `divisor`, or (0) the number of
/// positions inside the image.
template <class Windows> struct Average {
  Windows rows, columns;
  int64_t divisor;
  __device__ int64_t divisor_of(int64_t oy, int64_t ox) const {
    return divisor > 0 ? divisor : rows.window(oy).length() * columns.window(ox).length();
  }
};

template <class T, int size, class Windows>
__global__ void average_kernel(Pixels<const T, size> x, PackCount outputs, Average<Windows> average,
                               Pixels<T, size> y) {
  using C = compute_t<T>;
  for (int64_t n = global_thread(); n < outputs.count; n += all_threads()) {
    const PackCount::Place at = outputs.at(n);
    const Range above = average.rows.window(at.row), beside = average.columns.window(at.column);
    C sums[size] = {};
    for (int64_t iy = above.begin; iy < above.end; ++iy)
      for (int64_t ix = beside.begin; ix < beside.end; ++ix) {
        const auto values = x.load(x.number(at.image, iy, ix, at.pack));
        for (int c = 0; c < size; ++c) sums[c] += widen(values.values[c]);
      }
    const C divisor = C(average.divisor_of(at.row, at.column));
    for (C& sum : sums) sum /= divisor;
    y.store_narrow(n, sums);
  }
}

template <class T, int size, class Windows>
__global__ void spread_kernel(Pixels<const T, size> dy, PackCount inputs, Average<Windows> average,
                              Pixels<T, size> dx) {
  using C = compute_t<T>;
  for (int64_t n = global_thread(); n < inputs.count; n += all_threads()) {
    const PackCount::Place at = inputs.at(n);
    const Range above = average.rows.readers(at.row), beside = average.columns.readers(at.column);
    C sums[size] = {};
    for (int64_t oy = above.begin; oy < above.end; ++oy)
      for (int64_t ox = beside.begin; ox < beside.end; ++ox) {
        const auto values = dy.load(dy.number(at.image, oy, ox, at.pack));
        const C divisor = C(average.divisor_of(oy, ox));
        for (int c = 0; c < size; ++c) sums[c] += widen(values.values[c]) / divisor;
      }
    dx.store_narrow(n, sums);
  }
}

template <class Windows>
void pool(const Context& context, const Tensor& x, const Average<Windows>& average, Tensor& y) {
  if (y.numel() == 0) return;
  visit_floating(x.dtype(), "avg_pool", [&]<class T>() {
    const auto run = [&]<int size>() {
      const PackCount outputs(y, size);
      launch(context, average_kernel<T, size, Windows>, shape_for(context, outputs.count),
             Pixels<const T, size>(x), outputs, average, Pixels<T, size>(y));
    };
    visit_packs<pack_size<T>>(run, x, y);
  });
}

template <class Windows>
void spread(const Context& context, const Tensor& dy, const Average<Windows>& average, Tensor& dx) {
  if (dx.numel() == 0) return;
  visit_floating(dx.dtype(), "avg_pool_backward", [&]<class T>() {
    const auto run = [&]<int size>() {
      const PackCount inputs(dx, size);
      launch(context, spread_kernel<T, size, Windows>, shape_for(context, inputs.count),
             Pixels<const T, size>(dy), inputs, average, Pixels<T, size>(dx));
    };
    visit_packs<pack_size<T>>(run, dx, dy);
  });
}

Average<SlidingWindows> sliding(const Tensor& x, const Tensor& y, const PoolGeometry& g) {
  return {SlidingWindows(x.shape()[2], y.shape()[2], g, 0),
          SlidingWindows(x.shape()[3], y.shape()[3], g, 1),
          g.count_padding ? g.kernel[0] * g.kernel[1] : 0};
}
Average<AdaptiveWindows> adaptive(const Tensor& x, const Tensor& y) {
  return {{x.shape()[2], y.shape()[2]}, {x.shape()[3], y.shape()[3]}, 0};
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::avg_pool(const Tensor& x, const PoolGeometry& g, Tensor& y) {
  pool(context_, x, sliding(x, y, g), y);
}
void CudaBackend::avg_pool_backward(const Tensor& dy, const PoolGeometry& g, Tensor& dx) {
  spread(context_, dy, sliding(dx, dy, g), dx);
}
void CudaBackend::adaptive_avg_pool(const Tensor& x, Tensor& y) {
  pool(context_, x, adaptive(x, y), y);
}
void CudaBackend::adaptive_avg_pool_backward(const Tensor& dy, Tensor& dx) {
  spread(context_, dy, adaptive(dx, dy), dx);
}

}  // namespace halftone
