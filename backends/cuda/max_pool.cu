// Max pooling of NHWC images. Backward gathers: each input adds up the gradients of the windows
// over it, so two threads never write to one place.
#include <algorithm>
#include <limits>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/images.h>
#include <halftone/backends/image_axis.h>

namespace halftone {

namespace cuda {
namespace {

/// Positions in windows, counted row by row with padding; i32 or u8, per channel.
struct Places {
  void* data;
  bool small;
  int64_t kernel_columns;

  Places(const Tensor& argmax, const PoolGeometry& g)
      : data(argmax.defined() ? argmax.raw_data() : nullptr),
        small(argmax.defined() && argmax.dtype() == u8),
        kernel_columns(g.kernel[1]) {}
  /// Loads the positions of a pack of `size` channels, 4 to 16 bytes at a time.
  template <int size> __device__ void load(int64_t pack, int (&places)[size]) const {
    small ? load_as<uint8_t, size>(pack, places) : load_as<int32_t, size>(pack, places);
  }
  template <int size> __device__ void store(int64_t pack, const int (&places)[size]) const {
    if (!data) return;
    small ? store_as<uint8_t, size>(pack, places) : store_as<int32_t, size>(pack, places);
  }
  /// Returns the position of input (iy, ix) in the window of output (oy, ox).
  __device__ int place(const SlidingWindows& rows, const SlidingWindows& columns, int64_t iy,
                       int64_t ix, int64_t oy, int64_t ox) const {
    const int64_t row = iy + rows.padding - oy * rows.stride;
    const int64_t column = ix + columns.padding - ox * columns.stride;
    // Without dilation, the usual case, there is nothing to divide.
    return int((rows.dilation == 1 ? row : row / rows.dilation) * kernel_columns +
               (columns.dilation == 1 ? column : column / columns.dilation));
  }

 private:
  template <class Index, int size>
  using Several = Pack<Index, std::min(size, int(16 / sizeof(Index)))>;
  template <class Index, int size>
  __device__ void load_as(int64_t pack, int (&places)[size]) const {
    using Word = Several<Index, size>;
    for (int c = 0; c < size; c += Word::size) {
      const Word word = static_cast<const Word*>(data)[(pack * size + c) / Word::size];
      for (int k = 0; k < Word::size; ++k) places[c + k] = int(word.values[k]);
    }
  }
  template <class Index, int size>
  __device__ void store_as(int64_t pack, const int (&places)[size]) const {
    using Word = Several<Index, size>;
    for (int c = 0; c < size; c += Word::size) {
      Word word;
      for (int k = 0; k < Word::size; ++k) word.values[k] = Index(places[c + k]);
      static_cast<Word*>(data)[(pack * size + c) / Word::size] = word;
    }
  }
};

/// The first of equal values is taken, and the first NaN.
template <class T, int size>
__global__ void max_pool_kernel(Pixels<const T, size> x, PackCount outputs, SlidingWindows rows,
                                SlidingWindows columns, Pixels<T, size> y, Places argmax) {
  using C = compute_t<T>;
  for (int64_t n = global_thread(); n < outputs.count; n += all_threads()) {
    const PackCount::Place at = outputs.at(n);
    const Range window_rows = rows.window(at.row), window_columns = columns.window(at.column);
    C best[size];
    int places[size];
    for (int c = 0; c < size; ++c) best[c] = -std::numeric_limits<C>::infinity(), places[c] = -1;
    for (int64_t iy = window_rows.begin; iy < window_rows.end; iy += rows.dilation)
      for (int64_t ix = window_columns.begin; ix < window_columns.end; ix += columns.dilation) {
        const int place = argmax.place(rows, columns, iy, ix, at.row, at.column);
        const auto values = x.load(x.number(at.image, iy, ix, at.pack));
        for (int c = 0; c < size; ++c) {
          const C value = widen(values.values[c]);
          const bool first_nan = value != value && best[c] == best[c];
          if (value > best[c] || first_nan || places[c] < 0) best[c] = value, places[c] = place;
        }
      }
    Pack<T, size> result;
    for (int c = 0; c < size; ++c) {
      result.values[c] = narrow<T>(best[c]);
      if (places[c] < 0) places[c] = 0;  // the window had only padding
    }
    y.store(n, result);
    argmax.store(n, places);
  }
}

template <class T, int size>
__global__ void max_pool_backward_kernel(Pixels<const T, size> dy, Places argmax, PackCount inputs,
                                         SlidingWindows rows, SlidingWindows columns,
                                         Pixels<T, size> dx) {
  using C = compute_t<T>;
  for (int64_t n = global_thread(); n < inputs.count; n += all_threads()) {
    const PackCount::Place at = inputs.at(n);
    const Range window_rows = rows.readers(at.row), window_columns = columns.readers(at.column);
    C sums[size] = {};
    for (int64_t oy = window_rows.begin; oy < window_rows.end; ++oy)
      for (int64_t ox = window_columns.begin; ox < window_columns.end; ++ox) {
        const bool dilated = rows.dilation != 1 || columns.dilation != 1;
        if (dilated && !(rows.reads(oy, at.row) && columns.reads(ox, at.column))) continue;
        const int place = argmax.place(rows, columns, at.row, at.column, oy, ox);
        const int64_t window = dy.number(at.image, oy, ox, at.pack);
        const auto values = dy.load(window);
        int places[size];
        argmax.load(window, places);
        for (int c = 0; c < size; ++c)
          if (places[c] == place) sums[c] += widen(values.values[c]);
      }
    Pack<T, size> result;
    for (int c = 0; c < size; ++c) result.values[c] = narrow<T>(sums[c]);
    dx.store(n, result);
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::max_pool(const Tensor& x, const PoolGeometry& g, Tensor& y, Tensor& argmax) {
  if (y.numel() == 0) return;
  const SlidingWindows rows(x.shape()[2], y.shape()[2], g, 0),
      columns(x.shape()[3], y.shape()[3], g, 1);
  visit_floating(x.dtype(), "max_pool", [&]<class T>() {
    const auto run = [&]<int size>() {
      const PackCount outputs(y, size);
      launch(context_, max_pool_kernel<T, size>, shape_for(context_, outputs.count),
             Pixels<const T, size>(x), outputs, rows, columns, Pixels<T, size>(y),
             Places(argmax, g));
    };
    visit_packs<pack_size<T>>(run, x, y, argmax.defined() ? argmax : y);
  });
}

void CudaBackend::max_pool_backward(const Tensor& dy, const Tensor& argmax, const PoolGeometry& g,
                                    Tensor& dx) {
  if (dx.numel() == 0) return;
  const SlidingWindows rows(dx.shape()[2], dy.shape()[2], g, 0),
      columns(dx.shape()[3], dy.shape()[3], g, 1);
  visit_floating(dx.dtype(), "max_pool_backward", [&]<class T>() {
    const auto run = [&]<int size>() {
      const PackCount inputs(dx, size);
      launch(context_, max_pool_backward_kernel<T, size>, shape_for(context_, inputs.count),
             Pixels<const T, size>(dy), Places(argmax, g), inputs, rows, columns,
             Pixels<T, size>(dx));
    };
    visit_packs<pack_size<T>>(run, dx, dy, argmax);
  });
}

}  // namespace halftone
