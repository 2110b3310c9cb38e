// Names of formats and roundings, and enumeration of the numbers of a grid.
#include <halftone/core/formats/number_format.h>

#include <array>
#include <cmath>

#include <halftone/core/error.h>
#include <halftone/core/formats/sums.h>

namespace halftone {

namespace {

constexpr std::array<NamedFormat, 11> all_named{{{"f32", formats::f32},
                                                 {"tf32", formats::tf32},
                                                 {"bf16", formats::bf16},
                                                 {"f16", formats::f16},
                                                 {"e5m2", formats::e5m2},
                                                 {"e4m3", formats::e4m3},
                                                 {"e3m2", formats::e3m2},
                                                 {"e2m3", formats::e2m3},
                                                 {"e2m1", formats::e2m1},
                                                 {"e8m0", formats::e8m0},
                                                 {"int8", formats::int8}}};

/// Removes the number (one or two digits) at the start of text and returns it; -1 if there is none.
int leading_number(std::string_view& text) {
  int value = -1;
  for (int digits = 0; digits < 2 && !text.empty() && text[0] >= '0' && text[0] <= '9'; ++digits) {
    value = (value < 0 ? 0 : 10 * value) + (text[0] - '0');
    text.remove_prefix(1);
  }
  return value;
}

std::optional<NumberFormat> parametric(std::string_view name) {
  if (const auto p3109 = P3109Format::named(name)) return p3109->grid();
  if (name.starts_with("int")) {
    name.remove_prefix(3);
    const int bits = leading_number(name);
    if (!name.empty() || bits < 3 || bits > 16) return std::nullopt;
    return NumberFormat::integer(bits);
  }
  const bool has_sign = !name.starts_with("u");
  if (!has_sign) name.remove_prefix(1);
  if (!name.starts_with("e")) return std::nullopt;
  name.remove_prefix(1);
  const int exponent = leading_number(name);
  if (!name.starts_with("m")) return std::nullopt;
  name.remove_prefix(1);
  const int fraction = leading_number(name);
  // With one bit of exponent, all spacings are equal.
  if (name.empty() && has_sign && exponent == 1 && fraction >= 1 && fraction <= 14)
    return NumberFormat::integer(fraction + 2);
  if (!name.empty() || exponent < 2 || exponent > 8 || fraction < 0 || fraction > 23)
    return std::nullopt;
  if (has_sign) return NumberFormat::ieee_like(exponent, fraction);
  if (exponent == 8 && fraction == 0) return formats::e8m0;
  if (exponent > 7 || fraction > 8) return std::nullopt;
  return NumberFormat::unsigned_float(exponent, fraction);
}

/// Returns how many numbers the grid has from 0 up to, but without, 2^min_exponent.
int64_t small_numbers(const NumberFormat& format) {
  return format.subnormals ? int64_t(1) << (format.significand_bits - 1) : 1;
}

}  // namespace

std::optional<P3109Format> P3109Format::named(std::string_view name) {
  P3109Format format;
  if (!name.starts_with("binary")) return std::nullopt;
  name.remove_prefix(6);
  format.bits = leading_number(name);
  if (!name.starts_with("p")) return std::nullopt;
  name.remove_prefix(1);
  format.precision = leading_number(name);
  if (name != "se" && name != "sf" && name != "ue" && name != "uf") return std::nullopt;
  format.has_sign = name[0] == 's', format.extended = name[1] == 'e';
  const bool valid =
      format.bits >= 3 && format.bits <= 16 && format.precision >= 1 && format.exponent_bits() >= 1;
  return valid ? std::optional(format) : std::nullopt;
}

std::string P3109Format::name() const {
  return "binary" + std::to_string(bits) + "p" + std::to_string(precision) +
         (has_sign ? "s" : "u") + (extended ? "e" : "f");
}

P3109Format::Value P3109Format::value(int code) const {
  using Kind = Value::Kind;
  const int half = 1 << (bits - 1);
  if (code == (has_sign ? half : 2 * half - 1)) return {.kind = Kind::nan};
  const int sign = has_sign && code > half ? -1 : 1, magnitude = code - (sign < 0 ? half : 0);
  if (magnitude > largest_code()) return {.kind = Kind::infinity, .significand = sign};
  const int trailing = magnitude & ((1 << (precision - 1)) - 1),
            field = magnitude >> (precision - 1);
  const int hidden = field > 0 ? 1 << (precision - 1) : 0;
  return {.significand = sign * (trailing + hidden),
          .exponent = (field > 0 ? field : 1) - bias() - precision + 1};
}

std::optional<NumberFormat> P3109Format::grid() const {
  if (exponent_bits() > 8) return std::nullopt;
  const Value largest = value(largest_code());
  return NumberFormat{.significand_bits = int16_t(precision),
                      .min_exponent = int16_t(1 - bias()),
                      .max = float(std::ldexp(largest.significand, largest.exponent)),
                      .infinity = extended,
                      .bits = uint8_t(bits),
                      .codes = has_sign ? Codes::p3109_signed : Codes::p3109_unsigned};
}

std::span<const NamedFormat> named_formats() { return all_named; }

std::optional<NumberFormat> number_format_named(std::string_view wanted) {
  for (const NamedFormat& known : all_named)
    if (known.name == wanted) return known.format;
  return parametric(wanted);
}

std::string described(const NumberFormat& format) {
  for (const NamedFormat& known : all_named)
    if (known.format == format) return std::string(known.name);
  PlainText text;
  if (format.codes != Codes::ieee) {
    const P3109Format p3109{.bits = format.bits,
                            .precision = format.significand_bits,
                            .has_sign = format.codes == Codes::p3109_signed,
                            .extended = format.infinity};
    if (P3109Format::named(p3109.name()) && p3109.grid() == format) return p3109.name();
  }
  for (int exponent = 2; exponent <= 8; ++exponent)
    for (int fraction = 0; fraction <= 23; ++fraction)
      if (NumberFormat::ieee_like(exponent, fraction) == format) {
        text << 'e' << exponent << 'm' << fraction;
        return text.str();
      }
  for (int exponent = 2; exponent <= 7; ++exponent)
    for (int fraction = 0; fraction <= 8; ++fraction)
      if (NumberFormat::unsigned_float(exponent, fraction) == format) {
        text << "ue" << exponent << 'm' << fraction;
        return text.str();
      }
  for (int bits = 3; bits <= 16; ++bits)
    if (NumberFormat::integer(bits) == format) {
      text << "int" << bits;
      return text.str();
    }
  text << "a grid of " << int(format.significand_bits) << " significand bits from 2^"
       << int(format.min_exponent) << " to " << format.max;
  return text.str();
}

void check_format(std::string_view op, const NumberFormat& format) {
  const int p = format.significand_bits, least = format.min_exponent;
  if (p < 1 || p > 24) fail<UsageError>(op, "a grid has ", p, " significand bits. Choose 1 to 24.");
  if (least < -127 || least > 127 || least - p + 1 < -149)
    fail<UsageError>(op, "a grid of ", p, " significand bits has the least exponent ", least,
                     ": its numbers must be floats. Choose one from -126 to 127.");
  if (!(format.max >= std::ldexp(1.0f, least)) || !std::isfinite(format.max))
    fail<UsageError>(op, "the largest number of a grid is ", format.max,
                     ". It must be finite and at least 2^", least, ".");
  if (round_to(format, format.max) != format.max)
    fail<UsageError>(op, "the largest number of a grid is ", format.max, ", which is not one of ",
                     p, " significand bits. Choose ",
                     round_to(format, format.max, Rounding::toward_zero), ".");
}

int64_t count_of_numbers(const NumberFormat& format) {
  int exponent = 0;
  const double significand = 2 * std::frexp(double(format.max), &exponent);  // on [1, 2)
  --exponent;
  const int p = format.significand_bits;
  const auto in_last = int64_t(std::ldexp(significand - 1, p - 1)) + 1;
  return small_numbers(format) + (int64_t(exponent - format.min_exponent) << (p - 1)) + in_last;
}

double number_at(const NumberFormat& format, int64_t i) {
  const int p = format.significand_bits;
  const int64_t small = small_numbers(format);
  if (i < small) return std::ldexp(double(i), format.min_exponent - p + 1);
  const int64_t in_binade = (i - small) & ((int64_t(1) << (p - 1)) - 1);
  const int64_t binade = (i - small) >> (p - 1);
  return std::ldexp(1 + std::ldexp(double(in_binade), 1 - p), int(format.min_exponent + binade));
}

// Accumulators of machines, and the fields of any.

namespace {

/// Steps of exact sums, cut to f32 or to 13 fraction bits.
constexpr Accumulator cut_to(int32_t products, int32_t fraction,
                             const NumberFormat& grid = formats::f32) {
  return {.grid = grid, .rounding = Rounding::toward_zero, .fused = products, .fraction = fraction};
}
constexpr NumberFormat e8m13 = NumberFormat::ieee_like(8, 13);
constexpr Accumulator with_scales(Accumulator unit, int32_t numbers, int32_t least_exponent) {
  unit.scaled = numbers, unit.least_exponent = least_exponent;
  return unit;
}
/// 64 products of e2m1. least_exponent: that of the scales.
constexpr Accumulator by_scales(int32_t numbers, int32_t least_exponent) {
  Accumulator unit = with_scales(cut_to(64, 35), numbers, least_exponent);
  unit.align = Align::scales;
  return unit;
}

// NVIDIA and CDNA 3: MMA-Sim at commit c785138, by architecture and instruction; the last two:
// Intel's manual (core/formats/sums.h).
constexpr std::array<NamedAccumulator, 18> machines{{
    {"v100-mma", "f16", cut_to(4, 23)},
    {"a100-mma", "f16, bf16", cut_to(8, 24)},
    {"a100-mma-tf32", "tf32", cut_to(4, 24)},
    {"l40-mma", "f16, bf16", cut_to(8, 24)},
    {"l40-mma-f8", "e4m3, e5m2", cut_to(16, 13, e8m13)},
    {"h100-mma", "f16, bf16", cut_to(16, 25)},
    {"h100-mma-tf32", "tf32", cut_to(8, 25)},
    {"h100-wgmma", "f16, bf16", cut_to(16, 25)},
    {"h100-wgmma-f8", "e4m3, e5m2", cut_to(32, 13, e8m13)},
    {"b200-tcgen05", "f16, bf16", cut_to(16, 25)},
    {"b200-tcgen05-tf32", "tf32", cut_to(8, 25)},
    {"b200-tcgen05-f8", "e4m3, e5m2", cut_to(32, 25)},
    {"b200-tcgen05-mxf8", "e4m3, blocks of 32", with_scales(cut_to(32, 25), 32, -6)},
    {"b200-tcgen05-mxf4", "e2m1, blocks of 32", by_scales(32, -127)},
    {"b200-tcgen05-nvf4", "e2m1, blocks of 16", by_scales(16, -6)},
    {"mi300-mfma", "f16, bf16", {.fused = 8, .align = Align::apart}},
    {"avx512-bf16", "bf16", {.fused = 2, .align = Align::in_order}},
    {"amx-bf16", "bf16", {.fused = 32, .align = Align::halves}},
}};

}  // namespace

std::span<const NamedAccumulator> named_accumulators() { return machines; }
const Accumulator* accumulator_named(std::string_view name) {
  for (const NamedAccumulator& machine : machines)
    if (machine.name == name) return &machine.accumulator;
  return nullptr;
}

void check_accumulator(std::string_view op, const Accumulator& accumulator) {
  check_format(op, accumulator.grid);
  const int fused = accumulator.fused;
  if (fused < 0 || fused > 64)
    fail<UsageError>(op, "a step of an accumulator adds ", fused,
                     " products. Choose 1 to 64, or 0 for one term after the other.");
  if (fused > 0 && accumulator.chunk % fused != 0)
    fail<UsageError>(op, "an accumulator adds up chunks of ", accumulator.chunk, " in steps of ",
                     fused, ". Choose a multiple.");
  const bool by_scales = accumulator.align == Align::scales;
  const int most = by_scales ? 38 : 40, least = by_scales ? -127 : -126;
  if (accumulator.fraction < 1 || accumulator.fraction > most)
    fail<UsageError>(op, "an accumulator keeps ", accumulator.fraction,
                     " fraction bits. Choose 1 to ", most, ".");
  if (accumulator.least_exponent < least || accumulator.least_exponent > 0)
    fail<UsageError>(op, "the least exponent of an accumulator's operands is ",
                     accumulator.least_exponent, ". Choose ", least, " to 0.");
  const int scaled = accumulator.scaled;
  if (scaled < 0 || scaled > 64 || (scaled > 0 && (fused == 0 || fused % scaled != 0)))
    fail<UsageError>(op, "a scale is for ", scaled, " numbers, and a step of an accumulator adds ",
                     fused, " products. Choose a number that divides the step's.");
  if (scaled > 0 && accumulator.align != Align::largest && !by_scales)
    fail<UsageError>(op, "an accumulator with \"", name(accumulator.align),
                     "\" has operands with scales. Use \"largest\" or \"scales\".");
  if (by_scales && (scaled == 0 || scaled % sums::exact_products != 0))
    fail<UsageError>(op, "a scale is for ", scaled, " numbers, and \"scales\" adds up ",
                     sums::exact_products, " products exactly. Choose a multiple.");
  const bool by_itself = accumulator.align == Align::in_order || accumulator.align == Align::halves;
  if (fused > 0 && by_itself &&
      (accumulator.grid != formats::f32 || accumulator.rounding != Rounding::nearest_even))
    fail<UsageError>(op, "an accumulator with \"", name(accumulator.align), "\" has the grid ",
                     described(accumulator.grid), ", ", name(accumulator.rounding),
                     ". It adds in f32, to nearest even.");
  if (accumulator.rounding == Rounding::stochastic)
    fail<UsageError>(op,
                     "an accumulator rounds stochastically. Choose another rounding: products "
                     "have no random numbers.");
  if (accumulator.chunk < 0)
    fail<UsageError>(op, "an accumulator adds up chunks of ", accumulator.chunk,
                     ". Choose 0 for one chunk, or more.");
}

}  // namespace halftone
