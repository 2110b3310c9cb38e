// Pooling and resizing of NHWC images.
#include <cstring>
#include <limits>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/image_axis.h>

namespace halftone {

// Max pooling over NHWC images, a run of channels at a time. Short floats are compared and copied
// as bits, which have the order of their values.

namespace {
/// The windows along both axes of an image.
struct Windows {
  SlidingWindows rows, columns;
  Windows(const Tensor& x, const Tensor& y, const PoolGeometry& g)
      : rows(x.shape()[2], y.shape()[2], g, 0), columns(x.shape()[3], y.shape()[3], g, 1) {}
  bool disjoint() const { return rows.stride >= rows.span && columns.stride >= columns.span; }
};

/// The pixels of one window inside the image: every dilation-th of both ranges.
struct Window {
  Range rows, columns;
  int64_t row_step, column_step;
  int64_t top, left;  // of the window, possibly in the padding
  Window(const Windows& windows, int64_t i, int64_t j)
      : rows(windows.rows.window(i)),
        columns(windows.columns.window(j)),
        row_step(windows.rows.dilation),
        column_step(windows.columns.dilation),
        top(i * windows.rows.stride - windows.rows.padding),
        left(j * windows.columns.stride - windows.columns.padding) {}
  int64_t place(const PoolGeometry& g, int64_t row, int64_t column) const {
    return (row - top) / row_step * g.kernel[1] + (column - left) / column_step;
  }
};

bool served(const Tensor& x, const Tensor& argmax) {
  return cpu::is_f32_or_short(x) && argmax.defined() && argmax.dtype() == u8;
}

/// T: float, or the bits of a short float.
template <class T> T* data_of(const Tensor& x) { return reinterpret_cast<T*>(x.raw_data()); }

template <class T>
void max_pool_as(const Tensor& x, const PoolGeometry& g, const Tensor& y, const Tensor& argmax) {
  const simd::Kernels& k = simd_kernels();
  const int64_t channels = x.shape()[1], height = x.shape()[2], width = x.shape()[3];
  const int64_t rows = y.shape()[2], columns = y.shape()[3];
  const Windows windows(x, y, g);
  const T lowest = std::is_same_v<T, float> ? T(-std::numeric_limits<float>::infinity())
                                            : T(x.dtype() == bf16 ? 0xff80 : 0xfc00);
  const T* from = data_of<T>(x);
  cpu::parallel_tasks(x.shape()[0] * rows, [&](int64_t task) {
    const int64_t n = task / rows, i = task % rows;
    const T* pixels[256];
    uint8_t places[256];
    for (int64_t j = 0; j < columns; ++j) {
      const Window window(windows, i, j);
      int count = 0;
      for (int64_t r = window.rows.begin; r < window.rows.end; r += window.row_step)
        for (int64_t c = window.columns.begin; c < window.columns.end; c += window.column_step) {
          pixels[count] = from + ((n * height + r) * width + c) * channels;
          places[count++] = uint8_t(window.place(g, r, c));
        }
      const int64_t at = (task * columns + j) * channels;
      T* to = data_of<T>(y) + at;
      uint8_t* to_place = argmax.data<uint8_t>() + at;
      if (count == 0) {  // dilation skips the whole image
        std::fill_n(to, channels, lowest), std::fill_n(to_place, channels, uint8_t(0));
        continue;
      }
      if constexpr (std::is_same_v<T, float>)
        k.max_of_pixels(pixels, places, count, channels, to, to_place);
      else
        k.max_of_short_pixels(pixels, places, count, x.dtype() == bf16 ? 0x7f80 : 0x7c00, channels,
                              to, to_place);
    }
  });
}

/// For windows that do not overlap: each input has one gradient, or none.
template <class T>
void disjoint_backward_as(const Tensor& dy, const Tensor& argmax, const PoolGeometry& g,
                          const Tensor& dx) {
  const simd::Kernels& k = simd_kernels();
  const int64_t channels = dx.shape()[1], height = dx.shape()[2], width = dx.shape()[3];
  const int64_t rows = dy.shape()[2], columns = dy.shape()[3];
  const Windows windows(dx, dy, g);
  const bool covered = windows.rows.span == g.stride[0] && windows.columns.span == g.stride[1] &&
                       g.stride == g.kernel && g.padding[0] == 0 && g.padding[1] == 0 &&
                       rows * g.kernel[0] == height && columns * g.kernel[1] == width;
  cpu::parallel_tasks(dx.shape()[0], [&](int64_t n) {
    T* image = data_of<T>(dx) + n * height * width * channels;
    if (!covered) std::memset(image, 0, std::size_t(height * width * channels) * sizeof(T));
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        const Window window(windows, i, j);
        const int64_t at = ((n * rows + i) * columns + j) * channels;
        for (int64_t r = window.rows.begin; r < window.rows.end; r += window.row_step)
          for (int64_t c = window.columns.begin; c < window.columns.end; c += window.column_step) {
            const uint8_t* from = argmax.data<uint8_t>() + at;
            const auto place = uint8_t(window.place(g, r, c));
            T* to = image + (r * width + c) * channels;
            if constexpr (std::is_same_v<T, float>)
              k.select_place(dy.data<float>() + at, from, place, channels, to);
            else k.select_short_place(data_of<T>(dy) + at, from, place, channels, to);
          }
      }
  });
}

/// For windows that overlap: rows of dx gather, in float, the gradients of all windows over them.
void overlapping_backward(const Tensor& dy, const Tensor& argmax, const PoolGeometry& g,
                          const Tensor& dx) {
  const simd::Kernels& k = simd_kernels();
  const int64_t channels = dx.shape()[1], height = dx.shape()[2], width = dx.shape()[3];
  const int64_t rows = dy.shape()[2], columns = dy.shape()[3];
  const Windows windows(dx, dy, g);
  const int64_t in_row = width * channels, out_row = columns * channels;
  constexpr int64_t rows_of_task = 8;
  cpu::parallel_pieces(dx.shape()[0] * height, rows_of_task, [&](int64_t begin, int64_t end) {
    cpu::Workspace<float> scratch(in_row + out_row);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t n = row / height, r = row % height;
      cpu::Output output(dx, row * in_row, 1, in_row, scratch.data() + out_row);
      std::fill_n(output.data(), in_row, 0.0f);
      const Range readers = windows.rows.readers(r);
      for (int64_t i = readers.begin; i < readers.end; ++i) {
        if (!windows.rows.reads(i, r)) continue;
        const int64_t at = (n * rows + i) * out_row;
        const float* from = cpu::floats(dy, at, 1, out_row, scratch.data());
        for (int64_t j = 0; j < columns; ++j) {
          const Window window(windows, i, j);
          for (int64_t c = window.columns.begin; c < window.columns.end; c += window.column_step)
            k.add_place(from + j * channels, argmax.data<uint8_t>() + at + j * channels,
                        uint8_t(window.place(g, r, c)), channels, output.data() + c * channels);
        }
      }
      output.finish();
    }
  });
}
}  // namespace

void CpuBackend::max_pool(const Tensor& x, const PoolGeometry& g, Tensor& y, Tensor& argmax) {
  if (!served(x, argmax)) return ReferenceBackend::max_pool(x, g, y, argmax);
  if (x.dtype() == f32) max_pool_as<float>(x, g, y, argmax);
  else max_pool_as<uint16_t>(x, g, y, argmax);
}

void CpuBackend::max_pool_backward(const Tensor& dy, const Tensor& argmax, const PoolGeometry& g,
                                   Tensor& dx) {
  if (!served(dy, argmax)) return ReferenceBackend::max_pool_backward(dy, argmax, g, dx);
  if (!Windows(dx, dy, g).disjoint()) overlapping_backward(dy, argmax, g, dx);
  else if (dy.dtype() == f32) disjoint_backward_as<float>(dy, argmax, g, dx);
  else disjoint_backward_as<uint16_t>(dy, argmax, g, dx);
}

// Average pooling over NHWC images: first adds up rows of pixels, in long vectors, then the pixels
// of each window within that one row. Backward does the same with the windows over each input.

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

// Resizing of NHWC images: first mixes rows of pixels, in long vectors, then the pixels within that
// one row. Backward does the same with the outputs next to each input.

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
