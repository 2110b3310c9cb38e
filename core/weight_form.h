// How a trained weight survives a short storage format. A bf16 parameter cannot hold an update
// below half a spacing (2^-9 of the weight), so a second tensor or chance must help:
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
// Each is one struct here: the facts, and the arithmetic of one element, which every backend's
// updates use. To add one: a struct, its places in WeightForm and WeightForms, and a strategy.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

#include <halftone/core/dtype.h>
#include <halftone/core/language.h>
#include <halftone/core/random.h>
#include <halftone/core/short_floats.h>

namespace halftone {

enum class WeightForm : uint8_t { plain, master, split, split_rounded, kahan, stochastic };

/// The stored parts of a weight, as numbers of the dtypes that store them (i16: whole numbers).
template <class T> struct KeptWeight { T parameter, companion; };

/// Rounds away from zero with a probability equal to the dropped part of a spacing, else towards
/// zero: the expected value is `value`. random: 16 uniform bits. Infinities and NaN stay.
HT_HD constexpr BFloat16 round_stochastically(float value, uint16_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  return BFloat16::from_bits(finite ? uint16_t((bits + random) >> 16) : BFloat16::round(value));
}

/// Returns the 16 random bits of element i under a key: half i % 2 of word i / 2.
HT_HD uint16_t random_half(RandomKey key, uint64_t i) {
  const uint32_t word = Philox::words(key.seed, key.offset + i / 8)[i / 2 % 4];
  return uint16_t(i % 2 ? word >> 16 : word);
}

/// The tensor that holds the weight itself, if one does: then nothing needs decoding.
enum class WeightLies : uint8_t { in_parameter, in_companion, in_both };

// A form has
//   name, companion   the entry of a state dictionary; "" if it has none
//   lies              which tensor holds the weight
//   companion_dtype   for a parameter of a dtype; undefined without one
//   only_bf16         parameters of other dtypes cannot be kept
//   uses_random, uses_rounded   other arguments that encode() reads
//   decode(parameter, companion)         the weight
//   encode(weight, rounded, random)      its stored parts; rounded: the weight rounded to the
//                                        parameter's dtype, random: 16 uniform bits
// T is float, or double for f64 parameters.
namespace form {

struct Plain {
  static constexpr std::string_view name = "plain", companion = "";
  static constexpr WeightLies lies = WeightLies::in_parameter;
  static constexpr bool only_bf16 = false, uses_random = false, uses_rounded = false;
  static constexpr DType companion_dtype(DType) { return f32; }
  template <class T> HT_HD static T decode(T parameter, T /*companion*/) { return parameter; }
  template <class T> HT_HD static KeptWeight<T> encode(T, T rounded, uint16_t) {
    return {rounded, 0};
  }
};

struct Master {
  static constexpr std::string_view name = "master", companion = "master";
  static constexpr WeightLies lies = WeightLies::in_companion;
  static constexpr bool only_bf16 = false, uses_random = false, uses_rounded = false;
  static constexpr DType companion_dtype(DType) { return f32; }
  template <class T> HT_HD static T decode(T /*parameter*/, T companion) { return companion; }
  template <class T> HT_HD static KeptWeight<T> encode(T weight, T rounded, uint16_t) {
    return {rounded, weight};
  }
};

/// The upper half is cut off: forward sees the weight rounded towards zero.
struct Split {
  static constexpr std::string_view name = "split", companion = "remainder";
  static constexpr WeightLies lies = WeightLies::in_both;
  static constexpr bool only_bf16 = true, uses_random = false, uses_rounded = false;
  static constexpr DType companion_dtype(DType) { return i16; }
  template <class T> HT_HD static T decode(T parameter, T companion) {
    const auto lower = uint32_t(int32_t(companion)) & 0xffffu;
    return T(std::bit_cast<float>(std::bit_cast<uint32_t>(float(parameter)) | lower));
  }
  template <class T> HT_HD static KeptWeight<T> encode(T weight, T, uint16_t) {
    const uint32_t bits = std::bit_cast<uint32_t>(float(weight));
    return {T(std::bit_cast<float>(bits & 0xffff0000u)), T(int16_t(bits & 0xffffu))};
  }
};

/// The upper half is rounded to nearest, ties away from zero; a negative rest means that it was
/// rounded up. NaN stays NaN only if its upper half is NaN: training has failed long before that.
struct SplitRounded {
  static constexpr std::string_view name = "split_rounded", companion = "remainder_rounded";
  static constexpr WeightLies lies = WeightLies::in_both;
  static constexpr bool only_bf16 = true, uses_random = false, uses_rounded = false;
  static constexpr DType companion_dtype(DType) { return i16; }
  template <class T> HT_HD static T decode(T parameter, T companion) {
    const int32_t rest = int32_t(companion);
    const uint32_t upper = std::bit_cast<uint32_t>(float(parameter)) - (rest < 0 ? 0x10000u : 0u);
    return T(std::bit_cast<float>(upper | (uint32_t(rest) & 0xffffu)));
  }
  template <class T> HT_HD static KeptWeight<T> encode(T weight, T, uint16_t) {
    const uint32_t bits = std::bit_cast<uint32_t>(float(weight));
    const uint32_t upper = (bits + ((bits & 0x8000u) << 1)) & 0xffff0000u;
    return {T(std::bit_cast<float>(upper)), T(int16_t(bits & 0xffffu))};
  }
};

/// The companion is the part that the parameter lacks, in the parameter's own dtype.
struct Kahan {
  static constexpr std::string_view name = "kahan", companion = "compensation";
  static constexpr WeightLies lies = WeightLies::in_both;
  static constexpr bool only_bf16 = false, uses_random = false, uses_rounded = true;
  static constexpr DType companion_dtype(DType parameter) { return parameter; }
  template <class T> HT_HD static T decode(T parameter, T companion) {
    return parameter + companion;
  }
  template <class T> HT_HD static KeptWeight<T> encode(T weight, T rounded, uint16_t) {
    return {rounded, weight - rounded};
  }
};

struct Stochastic {
  static constexpr std::string_view name = "stochastic", companion = "";
  static constexpr WeightLies lies = WeightLies::in_parameter;
  static constexpr bool only_bf16 = true, uses_random = true, uses_rounded = false;
  static constexpr DType companion_dtype(DType) { return f32; }
  template <class T> HT_HD static T decode(T parameter, T /*companion*/) { return parameter; }
  template <class T> HT_HD static KeptWeight<T> encode(T weight, T, uint16_t random) {
    return {T(float(round_stochastically(float(weight), random))), 0};
  }
};

}  // namespace form

/// In the order of WeightForm.
using WeightForms = TypeList<form::Plain, form::Master, form::Split, form::SplitRounded,
                             form::Kahan, form::Stochastic>;
static_assert(WeightForms::size == std::size_t(WeightForm::stochastic) + 1);

/// The facts of a form, for code that runs once for each parameter.
struct WeightFormFacts {
  std::string_view name, companion;
  WeightLies lies = WeightLies::in_parameter;
  bool only_bf16 = false, uses_random = false, uses_rounded = false;
  DType (*companion_dtype)(DType parameter) = nullptr;
  bool has_companion() const { return !companion.empty(); }
};
const WeightFormFacts& facts(WeightForm form);
std::string_view name(WeightForm form);
/// Returns the form of that name ("kahan"), if it exists.
std::optional<WeightForm> weight_form_named(std::string_view name);

}  // namespace halftone
