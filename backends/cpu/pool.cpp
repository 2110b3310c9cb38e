// Max pooling over NHWC images, a run of channels at a time. Short floats are compared and copied
// as bits, which have the order of their values.
#include <cstring>
#include <limits>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/image_axis.h>

namespace halftone {

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

}  // namespace halftone
