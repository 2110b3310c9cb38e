// Resizing of NHWC images: each output is a mean of four inputs (one for `nearest`) with a weight
// along each axis. Tables of both axes are computed first, in double. Backward gathers: each input
// adds up the gradients of the outputs that read it, so two threads never write to one place.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/images.h>
#include <halftone/backends/image_axis.h>

namespace halftone {

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
