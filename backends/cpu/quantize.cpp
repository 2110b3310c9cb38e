// Quantizers with the SIMD kernels: element by element, or band by band of blocks. Short floats
// pass through buffers of floats.
#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/reference/block_scales.h>
#include <halftone/core/formats/quantizer.h>

namespace halftone {

namespace {

float scalar_or(const Tensor& x, float otherwise) {
  return x.defined() ? *x.data<float>() : otherwise;
}

void quantize_elements(const QuantizeNumbers& n, const Scale& scale, RandomKey key, const Tensor& x,
                       Tensor& y) {
  cpu::parallel_pieces(x.numel(), reference::grain_length,
                       [&, &k = simd_kernels()](int64_t begin, int64_t end) {
                         alignas(64) float in[cpu::block_length], out[cpu::block_length];
                         for (int64_t i = begin; i < end; i += cpu::block_length) {
                           const int64_t count = std::min(cpu::block_length, end - i);
                           cpu::Output output(y, i, 1, count, out);
                           k.quantize(n, scale, key, uint64_t(i), cpu::floats(x, i, 1, count, in),
                                      output.data(), count);
                           output.finish();
                         }
                       });
}

/// Quantizes some columns of one band. `buffer`: room for its floats, null if x and y are floats.
void quantize_band(const QuantizeNumbers& n, const QuantizeCall& call, const Tensor& x,
                   simd::BlockBand band, float* buffer, const Tensor& y) {
  const simd::Kernels& k = simd_kernels();
  const auto first = int64_t(band.first);
  const float amax_tensor = amax_above(n, reference::floats_of(call.amax), first / x.size(-1));
  if (!buffer)
    return k.quantize_blocks(n, amax_tensor, call.key, band, x.data<float>() + first,
                             y.data<float>() + first);
  band.row_step = band.columns;
  for (int64_t i = 0; i < band.rows; ++i)
    cpu::widen(x, first + i * band.number_step, band.columns, buffer + i * band.columns);
  k.quantize_blocks(n, amax_tensor, call.key, band, buffer, buffer);
  for (int64_t i = 0; i < band.rows; ++i)
    cpu::narrow(buffer + i * band.columns, band.columns, y, first + i * band.number_step);
}

void quantize_blocks(const QuantizeNumbers& n, const QuantizeCall& call, const Tensor& x,
                     Tensor& y) {
  const int64_t columns = x.size(-1), rows = x.numel() / columns;
  // Wide bands are cut between blocks, narrow ones grouped, until a task is large enough for a
  // thread.
  const int64_t block = int64_t(n.rows) * n.columns;
  const int64_t together = std::max<int64_t>(1, reference::grain_length / block) * n.columns;
  const int64_t width = std::min(columns, together);
  const int64_t across = reference::pieces_of(columns, width);
  const int64_t tasks = reference::pieces_of(rows, n.rows) * across;
  const bool direct = x.dtype() == f32 && y.dtype() == f32;
  cpu::parallel_pieces(tasks, std::max<int64_t>(1, reference::grain_length / (n.rows * width)),
                       [&](int64_t begin, int64_t end) {
                         cpu::Workspace<float> buffer(direct ? 0 : n.rows * width);
                         for (int64_t task = begin; task < end; ++task) {
                           const int64_t row = task / across * n.rows,
                                         column = task % across * width;
                           const simd::BlockBand band{.rows = std::min<int64_t>(n.rows, rows - row),
                                                      .columns = std::min(width, columns - column),
                                                      .row_step = columns,
                                                      .number_step = columns,
                                                      .first = uint64_t(row * columns + column)};
                           quantize_band(n, call, x, band, direct ? nullptr : buffer.data(), y);
                         }
                       });
}

}  // namespace

void CpuBackend::largest_magnitude(const Tensor& x, Tensor& amax) {
  if (!cpu::is_f32_or_short(x)) return ReferenceBackend::largest_magnitude(x, amax);
  const cpu::LoopNest<1> nest(x);
  const int64_t grain = reference::grain_length;
  cpu::Workspace<uint32_t> pieces(reference::pieces_of(nest.turns(), grain));
  cpu::parallel_pieces(nest.turns(), grain, [&, &k = simd_kernels()](int64_t begin, int64_t end) {
    uint32_t largest = 0;
    nest.runs(begin, end, [&](const auto& offset, const auto& step, int64_t count) {
      alignas(64) float buffer[cpu::block_length];
      const float* const values = cpu::floats(x, offset[0], step[0], count, buffer);
      largest = std::max(largest, k.largest_magnitude(values, count));
    });
    pieces[begin / grain] = largest;
  });
  uint32_t largest = magnitude_bits(*amax.data<float>());
  for (int64_t i = 0; i < pieces.size(); ++i) largest = std::max(largest, pieces[i]);
  *amax.data<float>() = std::bit_cast<float>(largest > 0x7f800000u ? nan_magnitude : largest);
  amax.storage()->bump_version();
}

void CpuBackend::quantize(const Tensor& x, const QuantizeCall& call, Tensor& y) {
  if (x.numel() == 0 || scalar_or(call.skip, 0) != 0) return;
  if (!call.quantizer.table.empty()) return ReferenceBackend::quantize(x, call, y);
  const QuantizeNumbers n = numbers_of(call.quantizer);
  if (n.per == Scaling::Per::block) return quantize_blocks(n, call, x, y);
  Scale scale;
  if (n.per == Scaling::Per::tensor)
    scale = scale_per_tensor(n.from_history ? scalar_or(call.scale, 1)
                                            : scale_of_tensor(n, scalar_or(call.amax, 0)));
  quantize_elements(n, scale, call.key, x, y);
}

}  // namespace halftone
