// Elementwise operations through the float kernels, for any strides and any mix of f32 and short
// floats. f64 goes to the reference, which computes in double.
#include <cstring>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/reference/cells.h>
#include <halftone/backends/reference/reference.h>
#include <halftone/backends/reference/rope.h>
#include <halftone/core/factory.h>

namespace halftone {

void CpuBackend::unary(FormulaCall f, const Tensor& x, Tensor& y) {
  if (!cpu::all_f32_or_short(x, y)) return ReferenceBackend::unary(f, x, y);
  cpu::staged(
      [f, &k = simd_kernels()](const float* a, float* out, int64_t n) { k.unary(f, a, out, n); }, y,
      x);
}

void CpuBackend::unary_backward(FormulaCall f, const Tensor& saved, const Tensor& dy, Tensor& dx) {
  if (!cpu::all_f32_or_short(saved, dy, dx))
    return ReferenceBackend::unary_backward(f, saved, dy, dx);
  cpu::staged([f, &k = simd_kernels()](const float* s, const float* g, float* out,
                                       int64_t n) { k.unary_backward(f, s, g, out, n); },
              dx, saved, dy);
}

void CpuBackend::binary(FormulaCall f, const Tensor& a, const Tensor& b, Tensor& y) {
  if (!cpu::all_f32_or_short(a, b, y)) return ReferenceBackend::binary(f, a, b, y);
  cpu::staged([f, &k = simd_kernels()](const float* l, const float* r, float* out,
                                       int64_t n) { k.binary(f, l, r, out, n); },
              y, a, b);
}

void CpuBackend::binary_backward(FormulaCall f, int input, const Tensor& a, const Tensor& b,
                                 const Tensor& dy, Tensor& dx) {
  if (!cpu::all_f32_or_short(a, b, dy, dx))
    return ReferenceBackend::binary_backward(f, input, a, b, dy, dx);
  const auto kernel = [f, input, &k = simd_kernels()](const float* l, const float* r,
                                                      const float* g, float* out, int64_t n) {
    k.binary_backward(f, input, l, r, g, out, n);
  };
  cpu::staged(kernel, dx, a, b, dy);
}

void CpuBackend::compare(FormulaCall f, const Tensor& a, const Tensor& b, Tensor& y) {
  if (!cpu::all_f32_or_short(a, b)) return ReferenceBackend::compare(f, a, b, y);
  const cpu::LoopNest<3> nest(y, a, b);
  nest.parallel_runs([&, &k = simd_kernels()](const auto& at, const auto& steps, int64_t count) {
    alignas(64) float left[cpu::block_length], right[cpu::block_length];
    bool results[cpu::block_length];
    const bool direct = steps[0] == 1;
    k.compare(f, cpu::floats(a, at[1], steps[1], count, left),
              cpu::floats(b, at[2], steps[2], count, right),
              direct ? y.data<bool>() + at[0] : results, count);
    if (!direct) reference::store(results, count, y, at[0], steps[0]);
  });
}

namespace {
/// Returns elements of x as contiguous neighbors, in place or in `buffer`. T only has the element's
/// size.
template <class T>
const T* neighbors(const Tensor& x, int64_t offset, int64_t step, int64_t count, T* buffer) {
  const T* const from = reinterpret_cast<const T*>(x.raw_data()) + offset;
  if (step == 1) return from;
  if (step == 0) std::fill_n(buffer, count, *from);
  else
    for (int64_t i = 0; i < count; ++i) buffer[i] = from[i * step];
  return buffer;
}

template <class T, class Kernel>
void select_as(const Kernel& kernel, const Tensor& condition, const Tensor& a, const Tensor& b,
               Tensor& y) {
  const cpu::LoopNest<4> nest(y, condition, a, b);
  nest.parallel_runs([&](const auto& at, const auto& steps, int64_t count) {
    alignas(64) T first[cpu::block_length], second[cpu::block_length], results[cpu::block_length];
    bool chosen[cpu::block_length];
    T* const to = reinterpret_cast<T*>(y.raw_data()) + at[0];
    const bool direct = steps[0] == 1;
    kernel(neighbors(condition, at[1], steps[1], count, chosen),
           neighbors(a, at[2], steps[2], count, first),
           neighbors(b, at[3], steps[3], count, second), direct ? to : results, count);
    for (int64_t i = 0; !direct && i < count; ++i) to[i * steps[0]] = results[i];
  });
}
}  // namespace

void CpuBackend::select(const Tensor& condition, const Tensor& a, const Tensor& b, Tensor& y) {
  const bool alike = a.dtype() == y.dtype() && b.dtype() == y.dtype();
  if (condition.dtype() != boolean || !alike || !cpu::is_f32_or_short(y))
    return ReferenceBackend::select(condition, a, b, y);
  const simd::Kernels& k = simd_kernels();
  if (y.dtype() == f32) select_as<uint32_t>(k.select_words, condition, a, b, y);
  else select_as<uint16_t>(k.select_halves, condition, a, b, y);
}

void CpuBackend::accumulate(const Tensor& x, Tensor& y) {
  binary(call_of<BinaryFormulas>(formula::Add{}), y, x, y);
  y.storage()->bump_version();
}

void CpuBackend::lerp(const Tensor& x, double weight, Tensor& y) {
  if (!cpu::all_f32_or_short(x, y)) return ReferenceBackend::lerp(x, weight, y);
  const auto kernel = [w = float(weight), &k = simd_kernels()](const float* to, const float* from,
                                                               float* out, int64_t n) {
    if (out != from) std::copy_n(from, n, out);
    k.lerp(to, w, out, n);
  };
  cpu::staged(kernel, y, x, y);
  y.storage()->bump_version();
}

// Copies: between dtypes through the float kernels, and between layouts as tiled transposes.

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

// Copies whole slices that a vector of indices selects; other gathers go to the reference.

namespace {
/// Returns whether all positions of a slice have the same index: an expanded vector, as
/// index_select makes it.
bool is_vector(const Tensor& index, int dim) {
  for (int d = 0; d < index.rank(); ++d)
    if (d != dim && index.shape()[d] != 1 && index.strides()[d] != 0) return false;
  return true;
}
}  // namespace

void CpuBackend::gather(const Tensor& x, int dim, const Tensor& index, Tensor& y) {
  if (y.numel() == 0 || x.dtype() != y.dtype() || !is_vector(index, dim))
    return ReferenceBackend::gather(x, dim, index, y);
  Shape slice = y.shape();
  slice[dim] = 1;
  const cpu::LoopNest<2> nest(slice, {y.strides(), x.strides()});
  constexpr int64_t worth_copying = 16;
  if (nest.inner_step(0) != 1 || nest.inner_step(1) != 1 || nest.inner_count() < worth_copying)
    return ReferenceBackend::gather(x, dim, index, y);
  const Tensor which =
      index.view_as({index.shape()[dim]}, Dims{index.strides()[dim]}, index.offset());
  reference::check_indices(which, x.shape()[dim]);
  const int64_t size = size_of(y.dtype()), from = x.strides()[dim] * size,
                to = y.strides()[dim] * size;
  cpu::parallel_pieces(
      which.numel(), std::max<int64_t>(1, reference::grain_length / nest.turns()),
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t picked = which.data<int64_t>()[i * which.strides()[0]];
          nest.runs(0, nest.turns(), [&](const auto& at, const auto&, int64_t count) {
            std::memcpy(y.raw_data() + i * to + at[0] * size,
                        x.raw_data() + picked * from + at[1] * size, std::size_t(count * size));
          });
        }
      });
}

// Dropout with the SIMD kernel; the mask equals the reference's, number for number.

void CpuBackend::dropout(const Tensor& x, double p, RandomKey key, Tensor& y) {
  if (!cpu::all_f32_or_short(x, y) || x.dtype() == f64 || p >= 1)
    return ReferenceBackend::dropout(x, p, key, y);
  const float scale = float(1 / (1 - p));
  cpu::parallel_pieces(
      x.numel(), reference::grain_length, [&, &k = simd_kernels()](int64_t begin, int64_t end) {
        alignas(64) float in[cpu::block_length], out[cpu::block_length];
        for (int64_t i = begin; i < end; i += cpu::block_length) {
          const int64_t n = std::min(cpu::block_length, end - i);
          cpu::Output output(y, i, 1, n, out);
          k.dropout(cpu::floats(x, i, 1, n, in), key.seed, 4 * key.offset + uint64_t(i), float(p),
                    scale, output.data(), n);
          output.finish();
        }
      });
}

// Recurrent cells and rotary positions in float, one row at a time; exponentials come from the SIMD
// kernels.

namespace {
struct Fast {
  using Number = float;
  const simd::Kernels& k = simd_kernels();
  void load(const Tensor& x, int64_t offset, int64_t count, float* values) const {
    cpu::widen(x, offset, count, values);
  }
  void store(const float* values, int64_t count, const Tensor& y, int64_t offset) const {
    cpu::narrow(values, count, y, offset);
  }
  void sigmoid(float* x, int64_t n) const {
    k.unary(call_of<UnaryFormulas>(formula::Sigmoid{}), x, x, n);
  }
  void tanh(float* x, int64_t n) const {
    k.unary(call_of<UnaryFormulas>(formula::Tanh{}), x, x, n);
  }
};
}  // namespace

void CpuBackend::rope(const Tensor& x, const RopeOptions& options, bool inverse, Tensor& y) {
  if (!cpu::is_f32_or_short(x)) return ReferenceBackend::rope(x, options, inverse, y);
  const int64_t e = x.size(3);
  reference::each_turned_row<float>(
      x, options, inverse, y, [&](int64_t from, int64_t to, const float* turn, float* rows) {
        cpu::Output row(y, to, 1, e, rows + e);
        reference::turn_row(options, turn, e, cpu::floats(x, from, 1, e, rows), row.data());
        row.finish();
      });
}

void CpuBackend::lstm_cell(const LstmCellCall& call) {
  if (!cpu::is_f32_or_short(call.x)) return ReferenceBackend::lstm_cell(call);
  reference::lstm_cell(Fast{}, call.x, call.recurrent, call.cell_before, call.gates, call.cell,
                       call.y);
}
void CpuBackend::lstm_cell_backward(const LstmCellBackwardCall& call) {
  if (!cpu::is_f32_or_short(call.gates)) return ReferenceBackend::lstm_cell_backward(call);
  reference::lstm_cell_backward(Fast{}, call.gates, call.cell_before, call.cell, call.dy,
                                call.dstate, call.dcell, call.dgates);
}
void CpuBackend::gru_cell(const Tensor& x, const Tensor& recurrent, const Tensor& state,
                          Tensor& gates, Tensor& y) {
  if (!cpu::is_f32_or_short(x)) return ReferenceBackend::gru_cell(x, recurrent, state, gates, y);
  reference::gru_cell(Fast{}, x, recurrent, state, gates, y);
}
void CpuBackend::gru_cell_backward(const GruCellBackwardCall& call) {
  if (!cpu::is_f32_or_short(call.gates)) return ReferenceBackend::gru_cell_backward(call);
  reference::gru_cell_backward(Fast{}, call.gates, call.state, call.dy, call.dstate, call.dx,
                               call.drecurrent);
}

}  // namespace halftone
