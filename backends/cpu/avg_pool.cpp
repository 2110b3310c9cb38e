// Average pooling over NHWC images: first adds up rows of pixels, in long vectors, then the pixels
// of each window within that one row. Backward does the same with the windows over each input.
#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/image_rows.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/reference/pool_axis.h>

namespace halftone {

namespace {
using reference::PoolAxis;

/// The divisor of a window along an axis: its positions inside the image, or `whole`.
class Weights {
 public:
  Weights(const PoolAxis& axis, int64_t whole) : axis_(axis), whole_(whole) {}
  float of(int64_t window) const {
    return 1.0f / float(whole_ ? whole_ : axis_.window(window).length());
  }

 private:
  const PoolAxis& axis_;
  int64_t whole_;
};

/// Sizes of a pooling between images x and y. `whole`: the divisor along each axis, or 0 for the
/// number of positions inside the image.
struct Pooling {
  int64_t images, channels;
  PoolAxis rows, columns;
  std::array<int64_t, 2> whole;
};

Pooling sliding(const Tensor& x, const Tensor& y, const PoolGeometry& g) {
  return {x.size(0), x.size(1), reference::sliding_axis(x.size(2), y.size(2), g, 0),
          reference::sliding_axis(x.size(3), y.size(3), g, 1),
          g.count_padding ? g.kernel : std::array<int64_t, 2>{0, 0}};
}
Pooling adaptive(const Tensor& x, const Tensor& y) {
  return {x.size(0),
          x.size(1),
          reference::adaptive_axis(x.size(2), y.size(2)),
          reference::adaptive_axis(x.size(3), y.size(3)),
          {0, 0}};
}

/// Computes to = the sum of the rows in `range` of an image of x, n elements each, counted from row
/// `first`; each row times weight(row).
template <class Weight>
void add_image_rows(const Tensor& x, int64_t first, Range range, int64_t n, const Weight& weight,
                    float* scratch, float* to) {
  const simd::Kernels& k = simd_kernels();
  std::fill_n(to, n, 0.0f);
  for (int64_t row = range.begin; row < range.end; ++row) {
    const float* values = cpu::floats(x, (first + row) * n, 1, n, scratch);
    if (const float w = weight(row); w != 1.0f) {
      if (values != scratch) std::copy_n(values, n, scratch);
      k.scale(w, scratch, n);
      values = scratch;
    }
    k.accumulate(values, to, n);
  }
}

void average(const Pooling& p, const Tensor& x, const Tensor& y) {
  const simd::Kernels& k = simd_kernels();
  const Weights row_weights(p.rows, p.whole[0]), column_weights(p.columns, p.whole[1]);
  const int64_t in_row = p.columns.in * p.channels, out_row = p.columns.out * p.channels;
  cpu::each_image_row(
      p.images, p.rows.out, 2 * in_row + out_row, [&](int64_t image, int64_t oy, float* scratch) {
        float* const sums = scratch + in_row;
        add_image_rows(
            x, image * p.rows.in, p.rows.window(oy), in_row, [](int64_t) { return 1.0f; }, scratch,
            sums);
        cpu::Output output(y, (image * p.rows.out + oy) * out_row, 1, out_row, sums + in_row);
        for (int64_t ox = 0; ox < p.columns.out; ++ox) {
          const Range window = p.columns.window(ox);
          float* to = output.data() + ox * p.channels;
          k.add_rows(sums + window.begin * p.channels, window.length(), p.channels, p.channels, to);
          k.scale(row_weights.of(oy) * column_weights.of(ox), to, p.channels);
        }
        output.finish();
      });
}

void spread(const Pooling& p, const Tensor& dy, const Tensor& dx) {
  const simd::Kernels& k = simd_kernels();
  const Weights row_weights(p.rows, p.whole[0]), column_weights(p.columns, p.whole[1]);
  const int64_t in_row = p.columns.in * p.channels, out_row = p.columns.out * p.channels;
  cpu::each_image_row(
      p.images, p.rows.in, 2 * out_row + in_row, [&](int64_t image, int64_t iy, float* scratch) {
        float* const sums = scratch + out_row;
        add_image_rows(
            dy, image * p.rows.out, p.rows.reader(iy), out_row,
            [&](int64_t oy) { return row_weights.of(oy); }, scratch, sums);
        for (int64_t ox = 0; ox < p.columns.out; ++ox)
          k.scale(column_weights.of(ox), sums + ox * p.channels, p.channels);
        cpu::Output output(dx, (image * p.rows.in + iy) * in_row, 1, in_row, sums + out_row);
        for (int64_t ix = 0; ix < p.columns.in; ++ix) {
          const Range readers = p.columns.reader(ix);
          k.add_rows(sums + readers.begin * p.channels, readers.length(), p.channels, p.channels,
                     output.data() + ix * p.channels);
        }
        output.finish();
      });
}
}  // namespace

void CpuBackend::avg_pool(const Tensor& x, const PoolGeometry& g, Tensor& y) {
  if (!cpu::all_f32_or_short(x, y)) return ReferenceBackend::avg_pool(x, g, y);
  average(sliding(x, y, g), x, y);
}
void CpuBackend::avg_pool_backward(const Tensor& dy, const PoolGeometry& g, Tensor& dx) {
  if (!cpu::all_f32_or_short(dy, dx)) return ReferenceBackend::avg_pool_backward(dy, g, dx);
  spread(sliding(dx, dy, g), dy, dx);
}
void CpuBackend::adaptive_avg_pool(const Tensor& x, Tensor& y) {
  if (!cpu::all_f32_or_short(x, y)) return ReferenceBackend::adaptive_avg_pool(x, y);
  average(adaptive(x, y), x, y);
}
void CpuBackend::adaptive_avg_pool_backward(const Tensor& dy, Tensor& dx) {
  if (!cpu::all_f32_or_short(dy, dx)) return ReferenceBackend::adaptive_avg_pool_backward(dy, dx);
  spread(adaptive(dx, dy), dy, dx);
}

}  // namespace halftone
