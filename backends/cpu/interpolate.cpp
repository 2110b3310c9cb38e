// Resizing of NHWC images: first mixes rows of pixels, in long vectors, then the pixels within that
// one row. Backward does the same with the outputs next to each input.
#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/image_rows.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/reference/resize_axis.h>

namespace halftone {

namespace {
using reference::ResizeAxis;

/// Computes to += weight x for n elements of a tensor; both buffers have n elements.
void add_weighted(const Tensor& x, int64_t offset, float weight, int64_t n, float* buffer,
                  float* to) {
  const simd::Kernels& k = simd_kernels();
  const float* values = cpu::floats(x, offset, 1, n, buffer);
  if (weight != 1) {
    if (values != buffer) std::copy_n(values, n, buffer);
    k.scale(weight, buffer, n);
    values = buffer;
  }
  k.accumulate(values, to, n);
}
}  // namespace

void CpuBackend::interpolate(const Tensor& x, const InterpolationGeometry& g, Tensor& y) {
  if (!cpu::all_f32_or_short(x, y)) return ReferenceBackend::interpolate(x, g, y);
  const simd::Kernels& k = simd_kernels();
  const ResizeAxis rows(x.size(2), y.size(2), g, 0), columns(x.size(3), y.size(3), g, 1);
  const int64_t channels = x.size(1);
  const int64_t in_row = columns.in * channels, out_row = columns.out * channels;
  cpu::each_image_row(
      x.size(0), rows.out, 2 * in_row + out_row, [&](int64_t image, int64_t oy, float* scratch) {
        float* const second = scratch + in_row;
        const Tap& row = rows.tap(oy);
        const auto row_of = [&](int64_t iy, float* buffer) {
          return cpu::floats(x, (image * rows.in + iy) * in_row, 1, in_row, buffer);
        };
        const float* mixed = row_of(row.first, scratch);
        if (row.weight != 0) {
          if (mixed != scratch) std::copy_n(mixed, in_row, scratch);
          k.lerp(row_of(row.second, second), float(row.weight), scratch, in_row);
          mixed = scratch;
        }
        cpu::Output output(y, (image * rows.out + oy) * out_row, 1, out_row, second + in_row);
        for (int64_t ox = 0; ox < columns.out; ++ox) {
          const Tap& column = columns.tap(ox);
          float* to = output.data() + ox * channels;
          std::copy_n(mixed + column.first * channels, channels, to);
          if (column.weight != 0)
            k.lerp(mixed + column.second * channels, float(column.weight), to, channels);
        }
        output.finish();
      });
}

void CpuBackend::interpolate_backward(const Tensor& dy, const InterpolationGeometry& g,
                                      Tensor& dx) {
  if (!cpu::all_f32_or_short(dy, dx)) return ReferenceBackend::interpolate_backward(dy, g, dx);
  const simd::Kernels& k = simd_kernels();
  const ResizeAxis rows(dx.size(2), dy.size(2), g, 0), columns(dx.size(3), dy.size(3), g, 1);
  const int64_t channels = dx.size(1);
  const int64_t in_row = columns.in * channels, out_row = columns.out * channels;
  cpu::each_image_row(
      dx.size(0), rows.in, 2 * out_row + channels + in_row,
      [&](int64_t image, int64_t iy, float* scratch) {
        float *const sums = scratch + out_row, *const pixel = sums + out_row;
        std::fill_n(sums, out_row, 0.0f);
        for (int64_t oy = rows.reader(iy).begin; oy < rows.reader(iy).end; ++oy)
          if (const double weight = rows.tap(oy).of(iy); weight != 0)
            add_weighted(dy, (image * rows.out + oy) * out_row, float(weight), out_row, scratch,
                         sums);
        cpu::Output output(dx, (image * rows.in + iy) * in_row, 1, in_row, pixel + channels);
        for (int64_t ix = 0; ix < columns.in; ++ix) {
          float* to = output.data() + ix * channels;
          std::fill_n(to, channels, 0.0f);
          for (int64_t ox = columns.reader(ix).begin; ox < columns.reader(ix).end; ++ox) {
            std::copy_n(sums + ox * channels, channels, pixel);
            k.scale(float(columns.tap(ox).of(ix)), pixel, channels);
            k.accumulate(pixel, to, channels);
          }
        }
        output.finish();
      });
}

}  // namespace halftone
