// Names of formats and roundings, and enumeration of the numbers of a grid.
#include <halftone/core/formats/number_format.h>

#include <array>
#include <cmath>

#include <halftone/core/error.h>

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

// Checks the fields of an accumulator.

void check_accumulator(std::string_view op, const Accumulator& accumulator) {
  check_format(op, accumulator.grid);
  if (accumulator.rounding == Rounding::stochastic)
    fail<UsageError>(op,
                     "an accumulator rounds stochastically. Choose another rounding: products "
                     "have no random numbers.");
  if (accumulator.chunk < 0)
    fail<UsageError>(op, "an accumulator adds up chunks of ", accumulator.chunk,
                     ". Choose 0 for one chunk, or more.");
}

}  // namespace halftone
