// Grids of numbers: the numbers that a binary floating-point format can hold, as data, and the one
// definition of how a float is rounded to such a grid. Every backend, every instruction set and
// every quantizer calls round_finite() below, so they agree to the bit. Exponents are read from
// bits, never from a logarithm.
//
// A format here is emulated: memory stores its numbers as f32 (or in a short dtype that holds
// them), see core/formats/quantizer.h. The storage dtypes are in core/dtype.h.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <halftone/core/language.h>
#include <halftone/core/words.h>

namespace halftone {

/// Decides which of its two neighbors on the grid a number becomes.
enum class Rounding : uint8_t {
  nearest_even,  // ties to the even significand
  nearest_away,  // ties to the larger magnitude
  toward_zero,
  up,      // toward +infinity
  down,    // toward -infinity
  to_odd,  // inexact: the odd significand; a second rounding then errs no more than a single one
  stochastic,     // the farther neighbor, with a probability that makes the expected value
                  // exact
  max_magnitude,  // away from zero
};
inline constexpr int rounding_count = 8;
template <>
inline constexpr std::array<std::string_view, rounding_count> words_of<Rounding>{
    "nearest_even", "nearest_away", "toward_zero", "up",
    "down",         "to_odd",       "stochastic",  "max_magnitude"};

/// Decides what becomes of numbers beyond the largest one; the saturation modes of IEEE P3109.
enum class Saturation : uint8_t {
  none,       // as IEEE 754: infinity, if the format has one and the rounding does not point inward
  finite,     // infinity and numbers beyond the largest become the largest
  propagate,  // finite numbers become the largest; infinity stays, if the format has one
};
template <>
inline constexpr std::array<std::string_view, 3> words_of<Saturation>{"infinity", "saturate",
                                                                      "propagate"};

/// The standard that a format's codes follow, where rounding depends on it. In IEEE P3109's formats
/// zero has no sign, and with one significand bit ties go to the number whose exponent has an even
/// code. p3109_unsigned turns numbers below 0 into 0, or, with Saturation::none, into NaN.
enum class Codes : uint8_t { ieee, p3109_signed, p3109_unsigned };

/// A grid of binary floating-point numbers: significands of `significand_bits` (hidden bit
/// included), exponents from min_exponent to that of `max`, equal spacing below 2^min_exponent.
/// Fields as in CPFloat's formats (Fasi & Mikaitis 2023); fixed point is a grid with one exponent.
struct NumberFormat {
  int16_t significand_bits = 24, min_exponent = -126;
  float max = std::numeric_limits<float>::max();
  /// false: the grid has no numbers between 0 and 2^min_exponent
  bool subnormals = true;
  /// numbers that round beyond `max` become infinite; false: they saturate
  bool infinity = true;
  /// bits of one number in a native encoding, for reports of bytes
  uint8_t bits = 32;
  Codes codes = Codes::ieee;

  /// Returns a format of 1 sign bit and the given bits; the top exponent holds infinity and NaN.
  static constexpr NumberFormat ieee_like(int exponent_bits, int fraction_bits);
  /// Returns a format without a sign bit, for scales; all codes are numbers but the highest one.
  /// Its grid here has both signs, as every grid. 2 <= exponent_bits <= 7.
  static constexpr NumberFormat unsigned_float(int exponent_bits, int fraction_bits);
  /// Returns a format of sign and magnitude, `integer_bits` in all, scaled so that 1 is the second
  /// highest bit: the largest number of MX's INT8 is 127 / 64.
  static constexpr NumberFormat integer(int integer_bits);
  bool operator==(const NumberFormat&) const = default;
};

constexpr NumberFormat NumberFormat::ieee_like(int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t largest =
      (uint32_t(bias + 127) << 23) | (0x7fffffu << (23 - fraction_bits) & 0x7fffffu);
  return {.significand_bits = int16_t(fraction_bits + 1),
          .min_exponent = int16_t(1 - bias),
          .max = std::bit_cast<float>(largest),
          .bits = uint8_t(1 + exponent_bits + fraction_bits)};
}

constexpr NumberFormat NumberFormat::unsigned_float(int exponent_bits, int fraction_bits) {
  NumberFormat format = ieee_like(exponent_bits, fraction_bits);
  // One exponent more than IEEE 754's, whose last number is NaN: the fraction 1...10, or, without a
  // fraction, nothing.
  const uint32_t last = uint32_t((1 << (exponent_bits - 1)) + 127 - (fraction_bits == 0)) << 23;
  const uint32_t all = 0x7fffffu << (23 - fraction_bits) & 0x7fffffu;
  const uint32_t fraction = fraction_bits == 0 ? 0 : all & ~(1u << (23 - fraction_bits));
  format.max = std::bit_cast<float>(last | fraction), format.infinity = false;
  format.bits = uint8_t(exponent_bits + fraction_bits);
  return format;
}

constexpr NumberFormat NumberFormat::integer(int integer_bits) {
  const float largest = float((1 << (integer_bits - 1)) - 1);
  return {.significand_bits = int16_t(integer_bits - 1),
          .min_exponent = 0,
          .max = largest / float(1 << (integer_bits - 2)),
          .infinity = false,
          .bits = uint8_t(integer_bits)};
}

/// The named formats. e4m3, e3m2, e2m3, e2m1, e8m0, int8: OCP 8-bit floating point 1.0 and
/// Microscaling 1.0. e8m0 is meant for scales; its grid here has 0 and both signs, as every grid
/// does.
namespace formats {
/// Returns a format with 1 sign bit and the given bits, in which all codes up to `max` are numbers.
constexpr NumberFormat ocp(int exponent_bits, int fraction_bits, float max) {
  NumberFormat format = NumberFormat::ieee_like(exponent_bits, fraction_bits);
  format.max = max, format.infinity = false;
  return format;
}
inline constexpr NumberFormat f32 = NumberFormat::ieee_like(8, 23);
inline constexpr NumberFormat tf32 = NumberFormat::ieee_like(8, 10);
inline constexpr NumberFormat bf16 = NumberFormat::ieee_like(8, 7);
inline constexpr NumberFormat f16 = NumberFormat::ieee_like(5, 10);
inline constexpr NumberFormat e5m2 = NumberFormat::ieee_like(5, 2);
inline constexpr NumberFormat e4m3 = ocp(4, 3, 448);
inline constexpr NumberFormat e3m2 = ocp(3, 2, 28);
inline constexpr NumberFormat e2m3 = ocp(2, 3, 7.5f);
inline constexpr NumberFormat e2m1 = ocp(2, 1, 6);
inline constexpr NumberFormat e8m0{.significand_bits = 1,
                                   .min_exponent = -127,
                                   .max = 0x1p127f,
                                   .subnormals = false,
                                   .infinity = false,
                                   .bits = 8};
inline constexpr NumberFormat int8 = NumberFormat::integer(8);
}  // namespace formats

/// A format of IEEE P3109 (interim report 4.0, 2026): binary<K>p<P><s|u><e|f>, of K bits, with a
/// precision of P bits (the hidden one included), signed or not, extended (with infinities) or
/// finite. Its exponent has a bias of half its codes.
struct P3109Format {
  int bits = 8, precision = 4;  // 3 to 16; 1 to bits, with a sign to bits - 1
  bool has_sign = true, extended = true;

  static std::optional<P3109Format> named(std::string_view name);
  std::string name() const;
  int exponent_bits() const { return bits - precision + (has_sign ? 0 : 1); }
  int bias() const { return 1 << (exponent_bits() - 1); }
  /// the code of the largest finite number
  int largest_code() const {
    return (1 << (has_sign ? bits - 1 : bits)) - 1 - extended - !has_sign;
  }
  /// The number of a code is significand * 2^exponent: exact, although no float may hold it.
  struct Value {
    enum class Kind : uint8_t { number, infinity, nan } kind = Kind::number;
    int significand = 0, exponent = 0;  // of infinity: 1 or -1
  };
  /// code: below 2^bits.
  Value value(int code) const;
  /// Returns the grid, or none if its numbers are not f32 numbers: exponents of more than 8 bits.
  std::optional<NumberFormat> grid() const;
};

struct NamedFormat {
  std::string_view name;
  NumberFormat format;
};
/// Returns f32 tf32 bf16 f16 e5m2 e4m3 e3m2 e2m3 e2m1 e8m0 int8.
std::span<const NamedFormat> named_formats();
/// Returns the format of that name: one of named_formats(), or "eXmY" (ieee_like, 2 <= X <= 8, 0 <=
/// Y <= 23), or "ueXmY" (unsigned_float, 2 <= X <= 7, 0 <= Y <= 8; ue8m0 is e8m0), or "intN" (3 <=
/// N <= 16), or a P3109Format whose numbers are floats. The small named formats are OCP's: most
/// have no infinity, unlike ieee_like.
std::optional<NumberFormat> number_format_named(std::string_view name);
/// Returns the format's name, if it has one; else its fields.
std::string described(const NumberFormat& format);
/// Throws UsageError in the name of `op` unless all numbers of the grid are floats and `max` is one
/// of them and finite.
void check_format(std::string_view op, const NumberFormat& format);

/// count_of_numbers() returns how many numbers the grid has from 0 to max; number_at() returns
/// number i of them in order of size, which is also the order of the codes without their sign.
int64_t count_of_numbers(const NumberFormat& format);
double number_at(const NumberFormat& format, int64_t i);

// --- rounding

/// A format in the form that inner loops need, with the results beyond its largest number.
struct Grid {
  int32_t drop = 0;            // bits that the 24-bit significand of a normal number loses
  int32_t subnormal_drop = 0;  // the same at 2^min_exponent, for smaller numbers
  int32_t least_field = 1;     // min_exponent as a float's exponent field
  float max = std::numeric_limits<float>::max();
  float above = 0, below = 0;  // the magnitude of a number rounded beyond max, by sign
  float infinite = 0;          // the magnitude of a rounded infinity
  // The rest is read by the slower path only.
  uint32_t by_code = 0;  // 1: one significand bit, and the exponent's code is even or odd
  // 0 or 1, in words, so that copies have no padding.
  uint32_t plain_zero = 0;  // zero has no sign
  uint32_t no_sign = 0;     // numbers below 0 become `negative`, -infinity `infinite_below`
  uint32_t sticky = 0;      // stochastic: bits that are cut off below 2^-31 still count as more
  float negative = 0, infinite_below = 0;
  /// Returns whether the grid needs the slower path: some numbers are so small that floats hold
  /// them as subnormals, so large that 2^drop times them overflows, or as fine as floats; or signs
  /// or ties differ from IEEE 754's.
  HT_HD constexpr bool is_wide() const {
    const auto greatest_field = int32_t(std::bit_cast<uint32_t>(max) >> 23);
    return least_field - 23 + drop < 1 || greatest_field + 1 + drop > 254 ||
           least_field + subnormal_drop > 254 || drop == 0 || (plain_zero | sticky) != 0;
  }
};

constexpr Grid grid_of(const NumberFormat& format, Rounding rounding,
                       Saturation saturation = Saturation::none) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const bool overflows = saturation == Saturation::none;
  const float beyond = format.infinity && overflows ? infinity : format.max;
  // As IEEE 754: directed roundings that point inward stop at the largest number, which is odd. In
  // P3109's signed formats it is even, so that infinity is odd.
  const bool inward = rounding == Rounding::toward_zero ||
                      (rounding == Rounding::to_odd && format.codes != Codes::p3109_signed);
  const bool toward_0_from_below = rounding == Rounding::toward_zero || rounding == Rounding::up;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  return {.drop = 24 - format.significand_bits,
          .subnormal_drop = format.subnormals ? 24 - format.significand_bits : 23,
          .least_field = format.min_exponent + 127,
          .max = format.max,
          .above = inward || rounding == Rounding::down ? format.max : beyond,
          .below = inward || rounding == Rounding::up ? format.max : beyond,
          .infinite = format.infinity && saturation != Saturation::finite ? infinity : format.max,
          .by_code = format.codes != Codes::ieee && format.significand_bits == 1,
          .plain_zero = format.codes != Codes::ieee,
          .no_sign = format.codes == Codes::p3109_unsigned,
          .negative = overflows && !toward_0_from_below ? nan : 0,
          .infinite_below = overflows ? nan : 0};
}

namespace detail {
/// Returns c ? a : b, by masks: compilers would branch around the arithmetic that computes a or b,
/// which prevents vector instructions.
HT_HD constexpr uint32_t choose(bool c, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - uint32_t(c);
  return (a & mask) | (b & ~mask);
}
HT_HD constexpr float choose(bool c, float a, float b) {
  return std::bit_cast<float>(choose(c, std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b)));
}
HT_HD constexpr float with_sign_of(uint32_t bits, float magnitude) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | (bits & 0x80000000u));
}
/// Returns the magnitude, a number of the grid, with the sign of `bits`; on a grid with one zero, a
/// zero gets none. On a grid without signs, a number below 0 becomes `without`.
template <bool wide>
HT_HD constexpr float signed_on(const Grid& grid, uint32_t bits, float magnitude, float without) {
  if (!wide) return with_sign_of(bits, magnitude);
  const bool keeps = !(grid.plain_zero != 0 && std::bit_cast<uint32_t>(magnitude) == 0);
  const uint32_t sign = choose(keeps, bits & 0x80000000u, 0u);
  return choose(grid.no_sign != 0 && sign != 0, without, with_sign_of(sign, magnitude));
}
}  // namespace detail

/// Rounds as round_finite(), to nearest even and on a grid that is not wide. It adds and subtracts
/// a power of two whose neighbors are as far apart as the grid's are at x, so the addition rounds.
HT_HD constexpr float round_by_addition(const Grid& grid, float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto most = int32_t(std::bit_cast<uint32_t>(2 * grid.max));  // certainly beyond max
  const auto given = int32_t(bits & 0x7fffffffu), magnitude = given < most ? given : most;
  const int32_t field = magnitude >> 23;
  const int32_t spacing =
      field < grid.least_field ? grid.least_field + grid.subnormal_drop : field + grid.drop;
  const float power = std::bit_cast<float>(uint32_t(spacing) << 23);
  const float value = (std::bit_cast<float>(magnitude) + power) - power;
  const float beyond = detail::choose(bits >> 31 != 0, grid.below, grid.above);
  return detail::with_sign_of(bits, detail::choose(value > grid.max, beyond, value));
}

/// Rounds a finite x to the grid. random: 32 uniform bits, read by stochastic rounding only. wide:
/// the value of grid.is_wide(), for loops that know it. The float's significand s (24 bits) means
/// s * 2^(field - 150). The grid keeps all but its last `lost` bits; the number added before they
/// are cut off does the rounding. Infinity, which a scaled x may have become, counts as beyond
/// max.
template <Rounding rounding, bool wide>
HT_HD constexpr float round_finite(const Grid& grid, float x, uint32_t random) {
  if constexpr (rounding == Rounding::nearest_even && !wide) return round_by_addition(grid, x);
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const uint32_t if_negative = 0u - (bits >> 31);  // all ones, or all zeros
  uint32_t significand =
      (magnitude & 0x7fffffu) | detail::choose(magnitude >= 0x800000u, 0x800000u, 0u);
  int32_t field = int32_t(detail::choose(magnitude >= 0x800000u, magnitude >> 23, 1u));
  if (wide) {  // numbers below 2^-126 may be normal on the grid, so x is normalized
    const uint32_t rest = magnitude & 0x7fffffu;
    const uint32_t as_float = std::bit_cast<uint32_t>(float(int32_t(rest)));
    const bool subnormal = magnitude < 0x800000u && rest != 0;
    field = int32_t(detail::choose(subnormal, (as_float >> 23) - 149u, uint32_t(field)));
    significand = detail::choose(subnormal, (as_float & 0x7fffffu) | 0x800000u, significand);
  }
  const int32_t missing = grid.least_field > field ? grid.least_field - field : 0;
  const int32_t lost = (missing > 0 ? grid.subnormal_drop : grid.drop) + missing;
  const int32_t cut = lost < 31 ? lost : 31;
  const uint32_t mask = (1u << cut) - 1;
  uint32_t odd = significand >> cut & 1u;
  if (wide) odd &= ~grid.by_code | uint32_t(field - grid.least_field + 1);

  uint32_t kept;
  if constexpr (rounding == Rounding::nearest_even)
    kept = (significand + (mask >> 1) + (odd & mask)) >> cut;
  else if constexpr (rounding == Rounding::nearest_away)
    kept = (significand + (mask >> 1) + (mask & 1u)) >> cut;
  else if constexpr (rounding == Rounding::toward_zero) kept = significand >> cut;
  else if constexpr (rounding == Rounding::up) kept = (significand + (mask & ~if_negative)) >> cut;
  else if constexpr (rounding == Rounding::down) kept = (significand + (mask & if_negative)) >> cut;
  else if constexpr (rounding == Rounding::to_odd)
    kept = (significand >> cut) + (uint32_t((significand & mask) != 0) & ~odd);
  else if constexpr (rounding == Rounding::max_magnitude) kept = (significand + mask) >> cut;
  else {
    // Far below the grid the probability is less than one bit of the random number at 31 bits.
    const int32_t deeper = lost - cut < 31 ? lost - cut : 31;
    uint32_t share = significand >> deeper;
    if (wide) share |= uint32_t(grid.sticky != 0 && share << deeper != significand);
    kept = (share + (random >> 1 >> (31 - cut))) >> cut;
  }

  const int32_t unit_field = field - 23 + lost;
  uint32_t unit = uint32_t(unit_field) << 23;
  if (wide)  // 2^-149 is 1u
    unit = detail::choose(unit_field > 0, unit, 1u << ((unit_field + 22) & 31));
  const float value = float(int32_t(kept)) * std::bit_cast<float>(unit);
  const float beyond = detail::choose(if_negative != 0, grid.below, grid.above);
  return detail::signed_on<wide>(grid, bits, detail::choose(value > grid.max, beyond, value),
                                 grid.negative);
}

/// Rounds any x: NaN stays NaN, even if the format has none, so that a broken run is visible;
/// infinity becomes grid.infinite.
template <Rounding rounding, bool wide>
HT_HD constexpr float round_on(const Grid& grid, float x, uint32_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7fffffffu;
  const float finite = round_finite<rounding, wide>(grid, x, random);
  const float infinite = detail::signed_on<wide>(grid, bits, grid.infinite, grid.infinite_below);
  const float number = detail::choose(magnitude == 0x7f800000u, infinite, finite);
  return detail::choose(magnitude > 0x7f800000u, x, number);
}

/// Calls function.operator()<rounding>() for a rounding that is known at run time.
template <class Function>
HT_HD constexpr decltype(auto) visit_rounding(Rounding rounding, Function&& function) {
  switch (rounding) {
    case Rounding::nearest_even: break;
    case Rounding::nearest_away: return function.template operator()<Rounding::nearest_away>();
    case Rounding::toward_zero: return function.template operator()<Rounding::toward_zero>();
    case Rounding::up: return function.template operator()<Rounding::up>();
    case Rounding::down: return function.template operator()<Rounding::down>();
    case Rounding::to_odd: return function.template operator()<Rounding::to_odd>();
    case Rounding::stochastic: return function.template operator()<Rounding::stochastic>();
    case Rounding::max_magnitude: return function.template operator()<Rounding::max_magnitude>();
  }
  return function.template operator()<Rounding::nearest_even>();
}

/// Rounds x to the grid of a format, for one number at a time.
HT_HD constexpr float round_to(const NumberFormat& format, float x,
                               Rounding rounding = Rounding::nearest_even, uint32_t random = 0,
                               Saturation saturation = Saturation::none) {
  const Grid grid = grid_of(format, rounding, saturation);
  return visit_rounding(rounding, [&]<Rounding r>() { return round_on<r, true>(grid, x, random); });
}

// Models of the accumulator in which a product adds up its terms: after each term the sum is
// rounded to a grid, or the terms are added up as a tensor core adds them (core/formats/sums.h).

/// How a step of several products adds them to the sum.
enum class Align : uint8_t {
  largest,  // exact products and the sum lose what is below `fraction` bits of the largest exponent
            // among them, and are added exactly: NVIDIA
  apart,    // the same for the products alone, to 24 bits; their sum, to 31 bits, and the sum so
            // far, to 24, are then aligned and floored: CDNA 3
  in_order,  // one fused multiply-add after the other, subnormals are 0: AVX512-BF16
  halves,  // even and odd products apart, each in order from 0; then the sum of both is added: AMX
  scales,  // as `largest`, but 16 products add up exactly first, and the exponents are those of
           // their scales: NVIDIA's e2m1
};
template <>
inline constexpr std::array<std::string_view, 5> words_of<Align>{"largest", "apart", "in_order",
                                                                 "halves", "scales"};

/// Describes how sums are rounded. Within a chunk sum = on(sum + a_k b_k), in order of k, where
/// on() rounds to `grid`; the product and the sum inside are floats rounded to nearest. With
/// `fused`, on() rounds the exact sum of a step. Chunks are added up in f32, in order. The bias is
/// added last, and the total is rounded once to the dtype of the result.
struct Accumulator {
  NumberFormat grid{};
  Rounding rounding = Rounding::nearest_even;
  int32_t chunk = 0;  // 0: all of k is one chunk
  int32_t fused = 0;  // products of a step, up to 64; 0: one term after the other
  Align align = Align::largest;
  int32_t fraction = 25;          // of Align::largest, up to 40, and of Align::scales, up to 38
  int32_t least_exponent = -126;  // of operands (of Align::scales: their scales): smaller ones are
                                  // subnormal
  int32_t scaled = 0;  // the numbers of an operand that share a scale (F8Operand); 0: none do
  bool operator==(const Accumulator&) const = default;
};

/// An accumulator of a real machine, by its name and the operands for which it was measured.
struct NamedAccumulator {
  std::string_view name, operands;
  Accumulator accumulator;
};
/// Returns the accumulators of all known machines; core/formats/sums.h has their sources.
std::span<const NamedAccumulator> named_accumulators();
/// Returns the one of that name, or null.
const Accumulator* accumulator_named(std::string_view name);

/// Throws UsageError naming `op` for an invalid grid, stochastic rounding, a field out of range, a
/// chunk that `fused` does not divide, Align::in_order or halves without f32 and nearest_even, and
/// a field `scaled` that does not fit the others.
void check_accumulator(std::string_view op, const Accumulator& accumulator);

#if defined(__CUDA_ARCH__)
/// Return a * b and a + b, each rounded: never fused into one operation.
HT_HD float rounded_product(float a, float b) { return __fmul_rn(a, b); }
HT_HD double rounded_product(double a, double b) { return __dmul_rn(a, b); }
HT_HD float rounded_sum(float a, float b) { return __fadd_rn(a, b); }
#else
HT_HD constexpr float rounded_product(float a, float b) { return a * b; }
HT_HD constexpr double rounded_product(double a, double b) { return a * b; }
HT_HD constexpr float rounded_sum(float a, float b) { return a + b; }
#endif

}  // namespace halftone
