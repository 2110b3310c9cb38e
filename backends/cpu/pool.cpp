// Max pooling over NHWC images, a run of channels at a time.
#include <cstring>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>

namespace halftone {

namespace {
/// The pixels of one window that lie inside the image.
struct Window {
  int64_t first_row, last_row, first_column, last_column;  // of the image, last exclusive
  int64_t top, left;                                       // of the window, maybe in the padding
  Window(const PoolGeometry& g, int64_t height, int64_t width, int64_t i, int64_t j)
      : top(i * g.stride[0] - g.padding[0]), left(j * g.stride[1] - g.padding[1]) {
    first_row = std::max<int64_t>(top, 0), last_row = std::min(top + g.kernel[0], height);
    first_column = std::max<int64_t>(left, 0), last_column = std::min(left + g.kernel[1], width);
  }
  int64_t place(const PoolGeometry& g, int64_t row, int64_t column) const {
    return (row - top) * g.kernel[1] + column - left;
  }
};
}  // namespace

void CpuBackend::max_pool(const Tensor& x, const PoolGeometry& g, Tensor& y, Tensor& argmax) {
  if (x.dtype() != f32 || argmax.dtype() != u8) return ReferenceBackend::max_pool(x, g, y, argmax);
  const simd::Kernels& k = simd_kernels();
  const int64_t channels = x.shape()[1], height = x.shape()[2], width = x.shape()[3];
  const int64_t rows = y.shape()[2], columns = y.shape()[3];
  const float* from = x.data<float>();
  cpu::parallel_tasks(x.shape()[0], [&](int64_t n) {
    const float* pixels[256];
    uint8_t places[256];
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        const Window window(g, height, width, i, j);
        int count = 0;
        for (int64_t r = window.first_row; r < window.last_row; ++r)
          for (int64_t c = window.first_column; c < window.last_column; ++c) {
            pixels[count] = from + ((n * height + r) * width + c) * channels;
            places[count++] = uint8_t(window.place(g, r, c));
          }
        const int64_t at = ((n * rows + i) * columns + j) * channels;
        k.max_of_pixels(pixels, places, count, channels, y.data<float>() + at,
                        argmax.data<uint8_t>() + at);
      }
  });
}

void CpuBackend::max_pool_backward(const Tensor& dy, const Tensor& argmax, const PoolGeometry& g,
                                   Tensor& dx) {
  const bool disjoint = g.stride[0] >= g.kernel[0] && g.stride[1] >= g.kernel[1];
  if (dy.dtype() != f32 || argmax.dtype() != u8 || !disjoint)
    return ReferenceBackend::max_pool_backward(dy, argmax, g, dx);
  const simd::Kernels& k = simd_kernels();
  const int64_t channels = dx.shape()[1], height = dx.shape()[2], width = dx.shape()[3];
  const int64_t rows = dy.shape()[2], columns = dy.shape()[3];
  const bool covered = g.stride == g.kernel && g.padding[0] == 0 && g.padding[1] == 0 &&
                       rows * g.kernel[0] == height && columns * g.kernel[1] == width;
  cpu::parallel_tasks(dx.shape()[0], [&](int64_t n) {
    float* image = dx.data<float>() + n * height * width * channels;
    if (!covered) std::memset(image, 0, std::size_t(height * width * channels) * sizeof(float));
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        const Window window(g, height, width, i, j);
        const int64_t at = ((n * rows + i) * columns + j) * channels;
        for (int64_t r = window.first_row; r < window.last_row; ++r)
          for (int64_t c = window.first_column; c < window.last_column; ++c)
            k.select_place(dy.data<float>() + at, argmax.data<uint8_t>() + at,
                           uint8_t(window.place(g, r, c)), channels,
                           image + (r * width + c) * channels);
      }
  });
}

}  // namespace halftone
