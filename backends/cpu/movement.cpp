// Copies: between dtypes through the float kernels, and between layouts as tiled transposes.
#include <cstring>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/core/factory.h>

namespace halftone {

namespace {
/// Copies as transposes if one dimension is contiguous in x and another in y: for matrices, and
/// NCHW to NHWC and back. From, To: float, or uint16_t for short floats. Returns false for other
/// patterns.
template <class From, class To, class Transpose>
bool copy_as_transposes(const Tensor& x, Tensor& y, const Transpose& transpose) {
  int across = -1, along = -1;  // x is contiguous across, y is contiguous along
  for (int d = 0; d < x.rank(); ++d) {
    if (x.shape()[d] == 1) continue;
    if (x.strides()[d] == 1) across = d;
    if (y.strides()[d] == 1) along = d;
  }
  if (across < 0 || along < 0 || across == along) return false;
  Shape outer = x.shape();
  int64_t rows = outer[along], columns = outer[across];
  const int64_t x_stride = x.strides()[along], y_stride = y.strides()[across];
  outer[along] = outer[across] = 1;
  // Merges dimensions that continue each other, such as the taps of a convolution's weights.
  for (int d = x.rank(); d-- > 0;) {
    const int64_t in_x = x.strides()[d], in_y = y.strides()[d], count = outer[d];
    if (in_x == columns && in_y == y_stride * columns) columns *= count, outer[d] = 1;
    else if (in_y == rows && in_x == x_stride * rows) rows *= count, outer[d] = 1;
  }
  if (rows * columns < 256) return false;
  const reference::LoopNest<2> nest(outer, {y.strides(), x.strides()});
  const auto* from = reinterpret_cast<const From*>(x.raw_data());
  auto* to = reinterpret_cast<To*>(y.raw_data());
  // Large matrices are cut into bands, so that all threads have work.
  const int64_t band =
      std::max<int64_t>(16, reference::grain_length / std::max<int64_t>(columns, 1) / 16 * 16);
  const int64_t bands = reference::pieces_of(rows, band),
                group = std::max<int64_t>(1, reference::grain_length / (rows * columns));
  cpu::parallel_pieces(
      nest.turns() * bands, bands > 1 ? 1 : group, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          const auto at = nest.at(task / bands);
          const int64_t first = task % bands * band, count = std::min(band, rows - first);
          transpose(from + at[1] + first * x_stride, x_stride, to + at[0] + first, y_stride, count,
                    columns);
        }
      });
  return true;
}

/// A transpose of floats that rounds to y's dtype, in pieces that stay in the first-level cache.
class RoundingTranspose {
 public:
  explicit RoundingTranspose(DType dtype)
      : narrow_(dtype == bf16 ? simd_kernels().narrow_bf16 : simd_kernels().narrow_f16) {}

  void operator()(const float* x, int64_t x_stride, uint16_t* y, int64_t y_stride, int64_t rows,
                  int64_t columns) const {
    constexpr int64_t width = 64, height = 128;
    alignas(64) float piece[width * height];
    for (int64_t j = 0; j < columns; j += width)
      for (int64_t i = 0; i < rows; i += height) {
        const int64_t across = std::min(width, columns - j), down = std::min(height, rows - i);
        simd_kernels().transpose(x + i * x_stride + j, x_stride, piece, height, down, across);
        for (int64_t c = 0; c < across; ++c)
          narrow_(piece + c * height, y + (j + c) * y_stride + i, down);
      }
  }

 private:
  void (*narrow_)(const float*, uint16_t*, int64_t);
};
}  // namespace

void CpuBackend::copy(const Tensor& x, Tensor& y) {
  if (x.dtype() == y.dtype() && x.strides() == y.strides() && x.is_dense()) {
    const int64_t size = size_of(x.dtype());
    cpu::parallel_pieces(x.numel(), 4 * reference::grain_length, [&](int64_t begin, int64_t end) {
      std::memcpy(y.raw_data() + begin * size, x.raw_data() + begin * size,
                  std::size_t((end - begin) * size));
    });
    return;
  }
  if (!cpu::all_f32_or_short(x, y)) return ReferenceBackend::copy(x, y);
  const simd::Kernels& k = simd_kernels();
  if (x.dtype() == y.dtype() &&
      (x.dtype() == f32 ? copy_as_transposes<float, float>(x, y, k.transpose)
                        : copy_as_transposes<uint16_t, uint16_t>(x, y, k.transpose_shorts)))
    return;
  if (x.dtype() == f32 && y.dtype() != f32 &&
      copy_as_transposes<float, uint16_t>(x, y, RoundingTranspose(y.dtype())))
    return;
  if ((x.dtype() == f32 || y.dtype() == f32) && x.strides() == y.strides() && x.is_dense()) {
    cpu::parallel_pieces(x.numel(), reference::grain_length, [&](int64_t begin, int64_t end) {
      if (y.dtype() == f32) cpu::widen(x, begin, end - begin, y.data<float>() + begin);
      else cpu::narrow(x.data<float>() + begin, end - begin, y, begin);
    });
    return;
  }
  cpu::staged([](const float* from, float* to,
                 int64_t n) { std::memmove(to, from, std::size_t(n) * sizeof(float)); },
              y, x);
}

}  // namespace halftone
