// Pooling and layout changes. Images are NHWC, so a window's pixels are runs of channels.
#include <halftone/backends/cpu/simd/local.h>

namespace halftone::simd::HALFTONE_ISA {

/// y[c] = max over pixels of pixel[c], argmax[c] the place of the first that attains it; NaN wins.
static void max_of_pixels(const float* const* pixels, const uint8_t* places, int count, int64_t n,
                          float* y, uint8_t* argmax) {
  const float* first = pixels[0];
  for (int64_t c = 0; c < n; ++c) y[c] = first[c], argmax[c] = places[0];
  for (int p = 1; p < count; ++p) {
    const float* pixel = pixels[p];
    const uint8_t place = places[p];
#pragma GCC ivdep
    for (int64_t c = 0; c < n; ++c) {
      const bool larger = pixel[c] > y[c] || (pixel[c] != pixel[c] && y[c] == y[c]);
      y[c] = larger ? pixel[c] : y[c];
      argmax[c] = larger ? place : argmax[c];
    }
  }
}

static void select_place(const float* dy, const uint8_t* argmax, uint8_t place, int64_t n,
                         float* dx) {
#pragma GCC ivdep
  for (int64_t c = 0; c < n; ++c) dx[c] = argmax[c] == place ? dy[c] : 0.0f;
}

/// In tiles that stay in the first-level cache.
static void transpose(const float* x, int64_t x_stride, float* y, int64_t y_stride, int64_t rows,
                      int64_t columns) {
  constexpr int64_t tile = 16;
  for (int64_t i0 = 0; i0 < rows; i0 += tile)
    for (int64_t j0 = 0; j0 < columns; j0 += tile) {
      const int64_t i1 = i0 + tile < rows ? i0 + tile : rows,
                    j1 = j0 + tile < columns ? j0 + tile : columns;
      for (int64_t j = j0; j < j1; ++j)
        for (int64_t i = i0; i < i1; ++i) y[j * y_stride + i] = x[i * x_stride + j];
    }
}

void fill_images(Kernels& table) {
  table.max_of_pixels = max_of_pixels, table.select_place = select_place,
  table.transpose = transpose;
}

}  // namespace halftone::simd::HALFTONE_ISA
