// Quantizers with the SIMD kernels: element by element, or band by band of blocks. Short floats
// pass through buffers of floats.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/backends/reference/rows.h>
#include <halftone/core/formats/block_scale.h>
#include <halftone/core/formats/quantizer.h>

namespace halftone {

namespace {

float scalar_or(const Tensor& x, float otherwise) {
  return x.defined() ? *x.data<float>() : otherwise;
}

/// Calls body(from, count, to, first) for blocks of row-major x and y, as floats.
template <class Body> void each_block(const Tensor& x, Tensor& y, const Body& body) {
  cpu::parallel_pieces(x.numel(), reference::grain_length, [&](int64_t begin, int64_t end) {
    alignas(64) float in[cpu::block_length], out[cpu::block_length];
    for (int64_t i = begin; i < end; i += cpu::block_length) {
      const int64_t count = std::min(cpu::block_length, end - i);
      cpu::Output output(y, i, 1, count, out);
      body(cpu::floats(x, i, 1, count, in), count, output.data(), i);
      output.finish();
    }
  });
}

void quantize_elements(const QuantizeNumbers& n, const Scale& scale, RandomKey key, const Tensor& x,
                       Tensor& y) {
  const simd::Kernels& k = simd_kernels();
  each_block(x, y, [&](const float* from, int64_t count, float* to, int64_t first) {
    k.quantize(n, scale, key, uint64_t(first), from, to, count);
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
  const QuantizeNumbers n = numbers_of(call.quantizer);
  const bool wide_inner = n.inner_levels > 0 && n.columns > simd::most_columns_of_inner;
  const bool apart = call.factor.defined();
  if (n.table_count > 0 || wide_inner ||
      (apart && (n.per == Scaling::Per::block || y.dtype() != f32)))
    return ReferenceBackend::quantize(x, call, y);
  if (n.per == Scaling::Per::block) return quantize_blocks(n, call, x, y);
  Scale scale;
  if (n.per == Scaling::Per::tensor)
    scale = scale_per_tensor(n.from_history ? scalar_or(call.scale, 1)
                                            : scale_of_tensor(n, scalar_or(call.amax, 0)));
  if (apart) *call.factor.data<float>() = std::exchange(scale.out, 1.0f);
  quantize_elements(n, scale, call.key, x, y);
}

void CpuBackend::rotate(const Tensor& x, const Rotation& rotation, Tensor& y) {
  if (x.numel() == 0) return;
  const bool whole_groups = x.size(-1) % rotation.size == 0;
  if (!whole_groups || !cpu::is_f32_or_short(x) || y.dtype() != x.dtype() || !x.is_contiguous() ||
      !y.is_contiguous())
    return ReferenceBackend::rotate(x, rotation, y);
  const RotationSigns signs = signs_of(rotation, rotation.key);
  uint32_t flips[Rotation::largest];
  for (int j = 0; j < Rotation::largest; ++j)
    flips[j] = (signs.half[j / 64] >> j % 64 & 1u) != 0 ? 0x80000000u : 0u;
  const simd::Kernels& k = simd_kernels();
  each_block(x, y, [&](const float* from, int64_t count, float* to, int64_t /*first*/) {
    k.rotate(from, count, rotation.size, flips, rotation.back, to);
  });
}

// The bound of a clip on several threads: sums of pieces, and counts of the first digit.

namespace {

float bound_by_rms_of(double multiple, const float* x, int64_t count) {
  const int64_t pieces = reference::pieces_of(count, squares_together);
  cpu::Workspace<double> squares(pieces);
  cpu::Workspace<int64_t> finite(pieces);
  cpu::parallel_pieces(count, squares_together,
                       [&, &k = simd_kernels()](int64_t begin, int64_t end) {
                         const int64_t piece = begin / squares_together;
                         squares[piece] = k.finite_squares(x + begin, end - begin, finite[piece]);
                       });
  int64_t numbers = 0;
  for (int64_t i = 0; i < pieces; ++i) numbers += finite[i];
  const double sum = summed_by_lanes(pieces, [&](int64_t i) { return squares[i]; });
  return bound_by_rms(multiple, sum, numbers);
}

constexpr MagnitudeDigit digit = magnitude_digits[0];
/// Neighbors are counted in different tables, so that equal ones do not wait for each other.
constexpr int64_t tables = 4;

/// Returns the quantile if only few numbers are above it: a sample gives a magnitude that is almost
/// certainly below, and the search is among those above that one. Without a value, it was not below
/// or too many are above.
std::optional<float> bound_in_tail(double share, const float* x, int64_t count) {
  constexpr int64_t samples = 4096, together = 32, length = 1 << 15, most_share = 16;
  if (share < 0.98 || count < 4 * length) return {};
  std::array<uint32_t, samples> sample;
  for (int64_t i = 0; i < samples; ++i) sample[i] = magnitude_bits(x[i * (count / samples)]);
  const auto below = sample.begin() + int64_t((1 - 2 * (1 - share)) * samples) - 1;
  std::nth_element(sample.begin(), below, sample.end());
  const auto least = int32_t(*below), infinite = 0x7f800000;
  if (least >= infinite) return {};

  const int64_t pieces = reference::pieces_of(count, length), most = length / most_share;
  cpu::Workspace<uint32_t> found(pieces * most);
  cpu::Workspace<int64_t> above(pieces), finite(pieces);
  cpu::parallel_pieces(count, length, [&](int64_t begin, int64_t end) {
    uint32_t* const to = found.data() + begin / length * most;
    int64_t kept = 0, numbers = 0;
    for (int64_t i = begin; i < end; i += together) {
      const int64_t stop = std::min(end, i + together);
      int32_t largest = 0, others = 0;
      for (int64_t j = i; j < stop; ++j) {
        const auto bits = int32_t(magnitude_bits(x[j]));
        largest = bits > largest ? bits : largest, others += bits >= infinite ? 1 : 0;
      }
      numbers += stop - i - others;
      if (largest < least) continue;
      for (int64_t j = i; j < stop; ++j)
        if (const auto bits = int32_t(magnitude_bits(x[j])); bits >= least && bits < infinite)
          if (++kept <= most) to[kept - 1] = uint32_t(bits);
    }
    above[begin / length] = kept, finite[begin / length] = numbers;
  });
  int64_t numbers = 0, all = 0;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    if (above[piece] > most) return {};
    std::copy_n(found.data() + piece * most, above[piece], found.data() + all);
    numbers += finite[piece], all += above[piece];
  }
  if (numbers == 0) return 0;
  const int64_t place = place_of_quantile(share, numbers) - (numbers - all);
  if (place < 1) return {};
  std::nth_element(found.data(), found.data() + place - 1, found.data() + all);
  return std::bit_cast<float>(found[place - 1]);
}

/// Counts the values of the first digit, and then searches among the magnitudes that have the right
/// one.
float bound_by_quantile_of(double share, const float* x, int64_t count) {
  if (const auto bound = bound_in_tail(share, x, count)) return *bound;
  constexpr int64_t most_pieces = 16, least_length = 1 << 15, values = most_digit_values;
  const int64_t length = std::max(least_length, reference::pieces_of(count, most_pieces));
  const int64_t pieces = reference::pieces_of(count, length);
  cpu::Workspace<uint32_t> counts(pieces * tables * values);
  cpu::parallel_pieces(count, length, [&](int64_t begin, int64_t end) {
    uint32_t* const own = counts.data() + begin / length * tables * values;
    std::fill_n(own, tables * values, 0u);
    for (int64_t i = begin; i < end; ++i)
      ++own[uint64_t(i) % tables * values + digit.of(magnitude_bits(x[i]))];
  });
  const auto in_piece = [&](int64_t piece, int64_t value) {
    int64_t sum = 0;
    for (int64_t i = 0; i < tables; ++i) sum += counts[(piece * tables + i) * values + value];
    return sum;
  };
  const auto in_all = [&](int64_t value) {
    int64_t sum = 0;
    for (int64_t piece = 0; piece < pieces; ++piece) sum += in_piece(piece, value);
    return sum;
  };
  int64_t numbers = 0;  // finite ones: the last values are those of infinity and NaN
  for (int64_t value = 0; value < digit.of(0x7f800000u); ++value) numbers += in_all(value);
  if (numbers == 0) return 0;
  int64_t place = place_of_quantile(share, numbers), sought = 0;
  for (int64_t some = in_all(0); some < place; some = in_all(++sought)) place -= some;

  cpu::Workspace<uint32_t> chosen(in_all(sought));
  cpu::parallel_pieces(count, length, [&](int64_t begin, int64_t end) {
    uint32_t* to = chosen.data();
    for (int64_t piece = 0; piece < begin / length; ++piece) to += in_piece(piece, sought);
    for (int64_t i = begin; i < end; ++i)
      if (const uint32_t bits = magnitude_bits(x[i]); digit.of(bits) == sought) *to++ = bits;
  });
  uint32_t* const at = chosen.data() + place - 1;
  std::nth_element(chosen.data(), at, chosen.data() + chosen.size());
  return std::bit_cast<float>(*at);
}

}  // namespace

void CpuBackend::clip_bound(const Tensor& x, const Clip& clip, Tensor& bound) {
  const float* const values = x.data<float>();
  if (clip.rms) *bound.data<float>() = bound_by_rms_of(*clip.rms, values, x.numel());
  else if (clip.quantile)
    *bound.data<float>() = bound_by_quantile_of(*clip.quantile, values, x.numel());
  else ReferenceBackend::clip_bound(x, clip, bound);
}

void CpuBackend::clip(const Tensor& x, const Tensor& bound, Tensor& y) {
  cpu::parallel_pieces(
      x.numel(), reference::grain_length,
      [&, &k = simd_kernels(), most = *bound.data<float>()](int64_t begin, int64_t end) {
        k.clip(x.data<float>() + begin, most, y.data<float>() + begin, end - begin);
      });
}

}  // namespace halftone
