// Quantizers by name, their descriptions, and checks of their fields.
#include <halftone/core/quantizer.h>

#include <array>
#include <cmath>

#include <halftone/core/error.h>

namespace halftone {

namespace {

constexpr std::array<std::string_view, 4> rules{"floor", "ceil", "rceil", "even"};

constexpr std::array<std::string_view, 9> ready_made{"mxfp8",      "mxfp8-e5m2", "mxfp6",
                                                     "mxfp6-e3m2", "mxfp4",      "mxint8",
                                                     "nvfp4",      "fp8_tensor", "fp8_block"};

Quantizer mx(const NumberFormat& grid) {
  return {.grid = grid, .scaling = Scaling::per_block(1, 32)};
}

ScaleKind kind_of(const NumberFormat& scales) {
  if (scales.significand_bits == 1) return ScaleKind::power_of_two;
  return scales.significand_bits == 24 ? ScaleKind::f32 : ScaleKind::on_grid;
}

bool scales_are_powers_of_two(const Scaling& scaling) {
  switch (scaling.per) {
    case Scaling::Per::none: return true;
    case Scaling::Per::tensor: return scaling.power_of_two;
    case Scaling::Per::block: return kind_of(scaling.scale_format) == ScaleKind::power_of_two;
  }
  return false;
}

bool is_power_of_two(int32_t n) { return n > 0 && (n & (n - 1)) == 0; }

void check_tensor_scaling(std::string_view op, const Scaling& scaling) {
  if (scaling.history < 1)
    fail<UsageError>(op, "a history has ", scaling.history, " steps. It must have at least 1.");
  if (scaling.margin < 0 || scaling.margin > 100)
    fail<UsageError>(op, "a margin is ", scaling.margin, ". It must be from 0 to 100.");
  if (!(scaling.least >= 0) || !std::isfinite(scaling.least))
    fail<UsageError>(op, "the least largest magnitude is ", scaling.least,
                     ". It must be finite and not negative.");
}

void check_block_scaling(std::string_view op, const Scaling& scaling) {
  if (scaling.rows < 1 || scaling.columns < 1)
    fail<UsageError>(op, "blocks are of ", scaling.rows, " x ", scaling.columns,
                     " numbers. Both must be at least 1.");
  check_format(op, scaling.scale_format);
  if (scaling.tensor_level && kind_of(scaling.scale_format) != ScaleKind::on_grid)
    fail<UsageError>(op, "scales of blocks are ", described(scaling.scale_format),
                     " under a scale of the tensor. Only short ones, such as e4m3, need that.");
}

}  // namespace

std::string_view name(ScaleRule rule) { return rules[std::size_t(rule)]; }

std::optional<ScaleRule> scale_rule_named(std::string_view wanted) {
  for (std::size_t i = 0; i < rules.size(); ++i)
    if (rules[i] == wanted) return ScaleRule(i);
  return std::nullopt;
}

std::span<const std::string_view> ready_made_quantizers() { return ready_made; }

std::optional<Quantizer> quantizer_named(std::string_view wanted) {
  if (wanted == "mxfp8") return mx(formats::e4m3);
  if (wanted == "mxfp8-e5m2") return mx(formats::e5m2);
  if (wanted == "mxfp6") return mx(formats::e2m3);
  if (wanted == "mxfp6-e3m2") return mx(formats::e3m2);
  if (wanted == "mxfp4") return mx(formats::e2m1);
  if (wanted == "mxint8") return mx(formats::int8);
  if (wanted == "nvfp4") {
    Quantizer nvfp4{.grid = formats::e2m1, .scaling = Scaling::per_block(1, 16, formats::e4m3)};
    nvfp4.scaling.tensor_level = true;
    return nvfp4;
  }
  if (wanted == "fp8_tensor")
    return Quantizer{.grid = formats::e4m3, .scaling = Scaling::per_tensor()};
  if (wanted == "fp8_block")
    return Quantizer{.grid = formats::e4m3, .scaling = Scaling::per_block(1, 128, formats::f32)};
  if (const auto grid = number_format_named(wanted)) return Quantizer{.grid = *grid};
  return std::nullopt;
}

std::string described(const Quantizer& quantizer) {
  const Scaling& scaling = quantizer.scaling;
  PlainText text;
  text << described(quantizer.grid);
  if (scaling.per == Scaling::Per::tensor) {
    text << ", scaled per tensor";
    if (scaling.from_history)
      text << " from the " << (scaling.latest ? "last" : "largest") << " of " << scaling.history
           << " steps";
    if (scaling.power_of_two) text << ", powers of two";
    if (scaling.margin != 0) text << ", margin " << scaling.margin;
  } else if (scaling.per == Scaling::Per::block) {
    text << ", blocks of " << scaling.rows << "x" << scaling.columns << " with "
         << described(scaling.scale_format) << " scales";
    if (kind_of(scaling.scale_format) == ScaleKind::power_of_two)
      text << " (" << name(scaling.rule) << ")";
    if (scaling.tensor_level) text << " under one of the tensor";
  }
  if (quantizer.hadamard > 0) text << ", rotated by " << quantizer.hadamard;
  if (quantizer.rounding != Rounding::nearest_even) text << ", " << name(quantizer.rounding);
  if (quantizer.rounding == Rounding::stochastic && quantizer.random_bits != 32)
    text << " (" << quantizer.random_bits << " bits)";
  return text.str();
}

bool Quantizer::exact_in(DType dtype) const {
  switch (dtype) {
    case halftone::f32: return true;
    // A product with a power of two keeps the significand, and bf16 has the exponents of floats.
    case halftone::bf16:
      return grid.significand_bits <= 8 && hadamard == 0 && scales_are_powers_of_two(scaling);
    case halftone::f16:
      return grid.significand_bits <= 11 && grid.max <= formats::f16.max && hadamard == 0 &&
             scaling.per == Scaling::Per::none;
    default: return false;
  }
}

double Quantizer::bits_per_element() const {
  if (scaling.per != Scaling::Per::block) return grid.bits;
  return grid.bits + double(scaling.scale_format.bits) / (double(scaling.rows) * scaling.columns);
}

void check_quantizer(std::string_view op, const Quantizer& quantizer) {
  check_format(op, quantizer.grid);
  if (quantizer.random_bits < 1 || quantizer.random_bits > 32)
    fail<UsageError>(op, "stochastic rounding has ", quantizer.random_bits,
                     " random bits. Choose 1 to 32.");
  if (quantizer.hadamard != 0 &&
      (!is_power_of_two(quantizer.hadamard) || quantizer.hadamard < 2 || quantizer.hadamard > 64))
    fail<UsageError>(op, "rotations are of ", quantizer.hadamard,
                     " numbers. Choose 2, 4, 8, 16, 32 or 64, or 0 for none.");
  if (quantizer.scaling.per == Scaling::Per::tensor) check_tensor_scaling(op, quantizer.scaling);
  if (quantizer.scaling.per == Scaling::Per::block) check_block_scaling(op, quantizer.scaling);
}

QuantizeNumbers numbers_of(const Quantizer& quantizer) {
  const Scaling& scaling = quantizer.scaling;
  const bool scaled = scaling.per != Scaling::Per::none;
  QuantizeNumbers n;
  n.grid = grid_of(quantizer.grid, quantizer.rounding, scaled);
  n.scale_grid = grid_of(scaling.scale_format, Rounding::nearest_even, true);
  n.rounding = quantizer.rounding;
  n.random_mask = 0xffffffffu << (32 - quantizer.random_bits);
  n.wide = n.grid.is_wide();
  n.per = scaling.per;
  n.from_history = scaling.from_history, n.power_of_two = scaling.power_of_two;
  n.tensor_level = scaling.tensor_level;
  n.kind = kind_of(scaling.scale_format), n.rule = scaling.rule;
  n.max = quantizer.grid.max, n.inverse_max = 1 / n.max, n.scale_max = scaling.scale_format.max;
  n.least = scaling.least, n.margin = std::ldexp(1.0f, -scaling.margin);
  n.max_exponent = int32_t(magnitude_bits(n.max) >> 23) - 127;
  n.half_unit =
      quantizer.grid.significand_bits < 24 ? 1 << (23 - quantizer.grid.significand_bits) : 0;
  n.rows = scaling.rows, n.columns = scaling.columns;
  return n;
}

}  // namespace halftone
