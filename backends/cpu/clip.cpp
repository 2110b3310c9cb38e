// The bound of a clip on several threads: sums of pieces, and counts of the first digit.
#include <halftone/core/formats/block_scale.h>

#include <algorithm>

#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>

namespace halftone {

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

/// Counts the values of the first digit, and then searches among the magnitudes that have the right
/// one.
float bound_by_quantile_of(double share, const float* x, int64_t count) {
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
