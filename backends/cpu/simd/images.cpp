// Pooling and layout changes. Images are NHWC, so a window's pixels are runs of channels.
#include <halftone/backends/cpu/simd/local.h>

namespace halftone::simd::HALFTONE_ISA {

/// Computes y[c] = max over pixels of pixel[c], and argmax[c] = the position of the first maximum;
/// NaN wins.
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

using Shorts [[gnu::vector_size(vector_bytes)]] = int16_t;
using Places [[gnu::vector_size(vector_bytes / 2)]] = uint8_t;

/// Returns integers in the order of the short floats with these bits: both zeros are 0, and every
/// NaN is above infinity.
static Shorts ordered(Shorts bits, int16_t infinity) {
  const Shorts sign = bits >> 15, magnitude = bits & int16_t(0x7fff);
  return magnitude > infinity ? Shorts{} + int16_t(0x7fff) : (magnitude ^ sign) - sign;
}

/// Handles channels of all pixels of a window, at most one vector of them. Whole: exactly one
/// vector, so that the sizes of all copies are constants.
template <bool Whole>
static void max_of_shorts(const uint16_t* const* pixels, const uint8_t* places, int count,
                          int16_t infinity, int64_t at, std::size_t channels, uint16_t* y,
                          uint8_t* argmax) {
  const std::size_t bytes = Whole ? vector_bytes : 2 * channels;
  Shorts best{}, best_order{}, best_place{};
  for (int p = 0; p < count; ++p) {
    Shorts pixel{};
    __builtin_memcpy(&pixel, pixels[p] + at, bytes);
    const Shorts order = ordered(pixel, infinity);
    const Shorts larger = p == 0 ? Shorts{} == 0 : order > best_order;
    best = larger ? pixel : best;
    best_order = larger ? order : best_order;
    best_place = larger ? Shorts{} + int16_t(places[p]) : best_place;
  }
  const Places as_bytes = __builtin_convertvector(best_place, Places);
  __builtin_memcpy(y + at, &best, bytes);
  __builtin_memcpy(argmax + at, &as_bytes, bytes / 2);
}

static void max_of_short_pixels(const uint16_t* const* pixels, const uint8_t* places, int count,
                                uint16_t infinity, int64_t n, uint16_t* y, uint8_t* argmax) {
  constexpr int64_t width = vector_bytes / 2;
  const auto inf = int16_t(infinity);
  int64_t c = 0;
  for (; c + width <= n; c += width)
    max_of_shorts<true>(pixels, places, count, inf, c, std::size_t(width), y, argmax);
  if (c < n) max_of_shorts<false>(pixels, places, count, inf, c, std::size_t(n - c), y, argmax);
}

static void select_place(const float* dy, const uint8_t* argmax, uint8_t place, int64_t n,
                         float* dx) {
#pragma GCC ivdep
  for (int64_t c = 0; c < n; ++c) dx[c] = argmax[c] == place ? dy[c] : 0.0f;
}

static void select_short_place(const uint16_t* dy, const uint8_t* argmax, uint8_t place, int64_t n,
                               uint16_t* dx) {
  constexpr int64_t width = vector_bytes / 2;
  int64_t c = 0;
  for (; c + width <= n; c += width) {
    Shorts values;
    Places places;
    __builtin_memcpy(&values, dy + c, sizeof values);
    __builtin_memcpy(&places, argmax + c, sizeof places);
    values &= __builtin_convertvector(places, Shorts) == int16_t(place);
    __builtin_memcpy(dx + c, &values, sizeof values);
  }
  for (; c < n; ++c) dx[c] = argmax[c] == place ? dy[c] : uint16_t(0);
}

static void add_place(const float* dy, const uint8_t* argmax, uint8_t place, int64_t n, float* dx) {
#pragma GCC ivdep
  for (int64_t c = 0; c < n; ++c) dx[c] += argmax[c] == place ? dy[c] : 0.0f;
}

/// Transposes in tiles that stay in the first-level cache.
template <class T>
static void transpose(const T* x, int64_t x_stride, T* y, int64_t y_stride, int64_t rows,
                      int64_t columns) {
  constexpr int64_t tile = 16;
  for (int64_t i0 = 0; i0 < rows; i0 += tile)
    for (int64_t j0 = 0; j0 < columns; j0 += tile) {
      const int64_t j1 = j0 + tile < columns ? j0 + tile : columns;
      if (i0 + tile <= rows) {
        for (int64_t j = j0; j < j1; ++j)
#pragma GCC unroll 16
          for (int64_t i = 0; i < tile; ++i) y[j * y_stride + i0 + i] = x[(i0 + i) * x_stride + j];
        continue;
      }
      for (int64_t j = j0; j < j1; ++j)
        for (int64_t i = i0; i < rows; ++i) y[j * y_stride + i] = x[i * x_stride + j];
    }
}

void fill_images(Kernels& table) {
  table.max_of_pixels = max_of_pixels, table.max_of_short_pixels = max_of_short_pixels;
  table.select_place = select_place, table.select_short_place = select_short_place;
  table.add_place = add_place, table.transpose = transpose<float>;
  table.transpose_shorts = transpose<uint16_t>;
}

}  // namespace halftone::simd::HALFTONE_ISA
