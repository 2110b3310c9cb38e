// Pooling and resizing of NHWC images.
#include <algorithm>
#include <limits>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/images.h>
#include <halftone/backends/image_axis.h>

namespace halftone {

// Max pooling of NHWC images. Backward gathers: each input adds up the gradients of the windows
// over it, so two threads never write to one place.

namespace cuda {
namespace {

/// Positions in windows, counted row by row with padding; i32 or u8, per channel.
struct ArgmaxPlaces {
  void* data;
  bool small;
  int64_t kernel_columns;

  ArgmaxPlaces(const Tensor& argmax, const PoolGeometry& g)
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
                                SlidingWindows columns, Pixels<T, size> y, ArgmaxPlaces argmax) {
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
__global__ void max_pool_backward_kernel(Pixels<const T, size> dy, ArgmaxPlaces argmax,
                                         PackCount inputs, SlidingWindows rows,
                                         SlidingWindows columns, Pixels<T, size> dx) {
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
             ArgmaxPlaces(argmax, g));
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
             Pixels<const T, size>(dy), ArgmaxPlaces(argmax, g), inputs, rows, columns,
             Pixels<T, size>(dx));
    };
    visit_packs<pack_size<T>>(run, dx, dy, argmax);
  });
}

// Average pooling of NHWC images, with sliding or adaptive windows. Backward gathers: each input
// adds up the gradients of the windows over it, so two threads never write to one place.

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

// Resizing of NHWC images: each output is a mean of four inputs (one for `nearest`) with a weight
// along each axis. Tables of both axes are computed first, in double. Backward gathers: each input
// adds up the gradients of the outputs that read it, so two threads never write to one place.

namespace cuda {
namespace {

/// Returns the first of `count` outputs for which `reached` is true; it must stay true after that.
template <class Reached> __device__ int64_t first_output(int64_t count, const Reached& reached) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (reached(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/// taps [out]; readers [in]: the outputs that may read an input.
__global__ void axis_kernel(ResizeTaps axis, Tap* taps, Range* readers) {
  for (int64_t o = global_thread(); o < axis.out; o += all_threads()) taps[o] = axis.tap(o);
  for (int64_t i = global_thread(); i < axis.in; i += all_threads())
    readers[i] = {first_output(axis.out, [&](int64_t o) { return axis.tap(o).second >= i; }),
                  first_output(axis.out, [&](int64_t o) { return axis.tap(o).first > i; })};
}

/// One axis, as numbers in memory.
class AxisTable {
 public:
  struct View {
    const Tap* taps;
    const Range* readers;
  };
  AxisTable(const Context& context, const ResizeTaps& axis)
      : memory_(scratch(context, {axis.out * bytes_of<Tap> + axis.in * bytes_of<Range>}, u8)) {
    Tap* const taps = reinterpret_cast<Tap*>(memory_.raw_data());
    Range* const readers = reinterpret_cast<Range*>(memory_.raw_data() + axis.out * bytes_of<Tap>);
    launch(context, axis_kernel, shape_for(context, std::max(axis.in, axis.out)), axis, taps,
           readers);
    view_ = {taps, readers};
  }
  const View& view() const { return view_; }

 private:
  template <class T> static constexpr int64_t bytes_of = int64_t(sizeof(T));
  Tensor memory_;
  View view_;
};

template <class From, class To, int size>
__global__ void interpolate_kernel(Pixels<const From, size> x, PackCount outputs,
                                   AxisTable::View rows, AxisTable::View columns,
                                   Pixels<To, size> y) {
  using C = compute_t<From>;
  for (int64_t n = global_thread(); n < outputs.count; n += all_threads()) {
    const PackCount::Place at = outputs.at(n);
    const Tap row = rows.taps[at.row], column = columns.taps[at.column];
    C sums[size] = {};
    for (int corner = 0; corner < 4; ++corner) {
      const bool below = corner >= 2, right = corner % 2 == 1;
      const C weight =
          C((below ? row.weight : 1 - row.weight) * (right ? column.weight : 1 - column.weight));
      if (weight == 0) continue;
      const auto values = x.load(x.number(at.image, below ? row.second : row.first,
                                          right ? column.second : column.first, at.pack));
      for (int c = 0; c < size; ++c) sums[c] += weight * widen(values.values[c]);
    }
    y.store_narrow(n, sums);
  }
}

template <class From, class To, int size>
__global__ void interpolate_backward_kernel(Pixels<const From, size> dy, PackCount inputs,
                                            AxisTable::View rows, AxisTable::View columns,
                                            Pixels<To, size> dx) {
  using C = compute_t<From>;
  for (int64_t n = global_thread(); n < inputs.count; n += all_threads()) {
    const PackCount::Place at = inputs.at(n);
    const Range above = rows.readers[at.row], beside = columns.readers[at.column];
    C sums[size] = {};
    for (int64_t oy = above.begin; oy < above.end; ++oy)
      for (int64_t ox = beside.begin; ox < beside.end; ++ox) {
        const C weight = C(rows.taps[oy].of(at.row) * columns.taps[ox].of(at.column));
        if (weight == 0) continue;
        const auto values = dy.load(dy.number(at.image, oy, ox, at.pack));
        for (int c = 0; c < size; ++c) sums[c] += weight * widen(values.values[c]);
      }
    dx.store_narrow(n, sums);
  }
}

/// Channels that a thread takes, of both dtypes.
template <class T> inline constexpr int pack_of = sizeof(T) == 8 ? 2 : 4;

/// Calls run.operator()<From, To>() if both are one dtype, or one is f32 and the other shorter.
template <class Run> bool visit_pair(DType from, DType to, const Run& run) {
  bool done = false;
  visit_floating(from, "interpolate", [&]<class From>() {
    visit_floating(to, "interpolate", [&]<class To>() {
      constexpr bool widening = std::is_same_v<compute_t<From>, To>,
                     narrowing = std::is_same_v<From, compute_t<To>>;
      if constexpr (std::is_same_v<From, To> || widening || narrowing)
        run.template operator()<From, To>(), done = true;
    });
  });
  return done;
}

/// Returns scratch memory with the layout of x: rare pairs of dtypes are converted to one that
/// holds both.
Tensor like(const Context& context, const Tensor& x, DType dtype) {
  return scratch(context, x.shape(), dtype).view_as(x.shape(), x.strides(), 0);
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::interpolate(const Tensor& x, const InterpolationGeometry& g, Tensor& y) {
  if (y.numel() == 0) return;
  const AxisTable rows(context_, {x.shape()[2], y.shape()[2], g, 0}),
      columns(context_, {x.shape()[3], y.shape()[3], g, 1});
  const bool done = visit_pair(x.dtype(), y.dtype(), [&]<class From, class To>() {
    const auto run = [&]<int size>() {
      const PackCount outputs(y, size);
      launch(context_, interpolate_kernel<From, To, size>, shape_for(context_, outputs.count),
             Pixels<const From, size>(x), outputs, rows.view(), columns.view(),
             Pixels<To, size>(y));
    };
    visit_packs<pack_of<From>>(run, x, y);
  });
  if (done) return;
  const DType both = promote(x.dtype(), y.dtype());
  Tensor from = like(context_, x, both), to = like(context_, y, both);
  copy(x, from);
  interpolate(from, g, to);
  copy(to, y);
}

void CudaBackend::interpolate_backward(const Tensor& dy, const InterpolationGeometry& g,
                                       Tensor& dx) {
  if (dx.numel() == 0) return;
  const AxisTable rows(context_, {dx.shape()[2], dy.shape()[2], g, 0}),
      columns(context_, {dx.shape()[3], dy.shape()[3], g, 1});
  const bool done = visit_pair(dy.dtype(), dx.dtype(), [&]<class From, class To>() {
    const auto run = [&]<int size>() {
      const PackCount inputs(dx, size);
      launch(context_, interpolate_backward_kernel<From, To, size>,
             shape_for(context_, inputs.count), Pixels<const From, size>(dy), inputs, rows.view(),
             columns.view(), Pixels<To, size>(dx));
    };
    visit_packs<pack_of<From>>(run, dx, dy);
  });
  if (done) return;
  const DType both = promote(dy.dtype(), dx.dtype());
  Tensor from = like(context_, dy, both), to = like(context_, dx, both);
  copy(dy, from);
  interpolate_backward(from, g, to);
  copy(to, dx);
}

}  // namespace halftone
