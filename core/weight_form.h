// How a trained weight outlives a short storage format. A bf16 parameter cannot hold an update
// below half a spacing (2^-9 of the weight), so something beside it must, or chance must decide:
//
//   form           companion           the weight is                 source
//   plain          -                   the parameter, nearest even
//   master         f32                 the companion                 Micikevicius et al. 2018
//   split          i16, lower half     both halves of the f32        Kalamkar et al. 2020 (IPEX)
//   split_rounded  i16, signed rest    the same, upper half rounded  TransformerEngine
//   kahan          the parameter's     parameter + companion         Zamirai et al. 2020
//   stochastic     -                   the parameter, right on       Gupta et al. 2015
//                                      average
//
// The functions here are the whole arithmetic of it; every backend's optimizers use them.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

#include <halftone/core/random.h>
#include <halftone/core/short_floats.h>

namespace halftone {

enum class WeightForm : uint8_t { plain, master, split, split_rounded, kahan, stochastic };
std::string_view name(WeightForm form);
/// The form of that name ("kahan"), if there is one.
std::optional<WeightForm> weight_form_named(std::string_view name);

/// An f32 in two halves: a bf16 that can be computed with, and what is missing from it.
struct SplitFloat {
  BFloat16 upper;
  int16_t lower;
};

/// Upper half cut off: forward sees the weight rounded towards zero.
HT_HD constexpr SplitFloat split(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return {BFloat16::from_bits(uint16_t(bits >> 16)), int16_t(bits & 0xffffu)};
}
HT_HD constexpr float join(SplitFloat s) {
  return std::bit_cast<float>(uint32_t(s.upper.bits) << 16 | uint16_t(s.lower));
}

/// Upper half rounded to nearest, ties away from zero; a negative rest says that it was rounded up.
/// NaN stays as it is only where its upper half is one: training has long failed by then.
HT_HD constexpr SplitFloat split_rounded(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return {BFloat16::from_bits(uint16_t((bits >> 16) + ((bits >> 15) & 1u))),
          int16_t(bits & 0xffffu)};
}
HT_HD constexpr float join_rounded(SplitFloat s) {
  const uint32_t upper = uint32_t(s.upper.bits) - (s.lower < 0 ? 1u : 0u);
  return std::bit_cast<float>(upper << 16 | uint16_t(s.lower));
}

/// Rounds away from zero with the probability that the dropped bits are of a spacing, else towards
/// it: the expected value is `value`. random: 16 uniform bits. Infinities and NaN stay.
HT_HD constexpr BFloat16 round_stochastically(float value, uint16_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7f800000u) == 0x7f800000u) return BFloat16(value);
  return BFloat16::from_bits(uint16_t((bits + random) >> 16));
}

/// The 16 random bits of element i under a key: half i % 2 of word i / 2.
HT_HD uint16_t random_half(RandomKey key, uint64_t i) {
  const uint32_t word = Philox::words(key.seed, key.offset + i / 8)[i / 2 % 4];
  return uint16_t(i % 2 ? word >> 16 : word);
}

}  // namespace halftone
