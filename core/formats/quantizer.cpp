// Quantizers by name, their descriptions, and checks of their fields.
#include <halftone/core/formats/quantizer.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include <halftone/core/clip.h>
#include <halftone/core/error.h>
#include <halftone/core/own_quantizer.h>

namespace halftone {

namespace {

constexpr std::array<std::string_view, 4> rules{"floor", "ceil", "rceil", "even"};
constexpr std::array<std::string_view, 3> errors{"mse", "mae", "max"};

constexpr std::array<std::string_view, 9> ready_made{"mxfp8",      "mxfp8-e5m2", "mxfp6",
                                                     "mxfp6-e3m2", "mxfp4",      "mxint8",
                                                     "nvfp4",      "fp8_tensor", "fp8_block"};

Quantizer mx(const NumberFormat& grid) {
  return {.grid = grid, .scaling = Scaling::per_block(1, 32)};
}

ScaleKind kind_of(const NumberFormat& scales) {
  if (scales == formats::e8m0) return ScaleKind::power_of_two;
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

/// The largest block whose scale depends on its elements.
constexpr int64_t largest_measured_block = 1024;

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
  if (scaling.scale_format.significand_bits > 16 && scaling.scale_format != formats::f32)
    fail<UsageError>(op, "scales of blocks are ", described(scaling.scale_format),
                     ". Choose a format of at most 16 significand bits, or f32.");
  const bool is_short = kind_of(scaling.scale_format) == ScaleKind::on_grid;
  const auto only_short = [&](bool unusual, std::string_view what) {
    if (unusual && !is_short)
      fail<UsageError>(op, "scales of blocks are ", described(scaling.scale_format), ' ', what,
                       ". Only short ones, such as e4m3, need that.");
  };
  only_short(scaling.tensor_level, "under a scale of the tensor");
  only_short(scaling.row_level, "under a scale of the row");
  if (scaling.row_level && scaling.tensor_level)
    fail<UsageError>(op,
                     "scales of blocks are under a scale of the row, and under a scale of the "
                     "tensor as well. Leave one out.");
  if (scaling.row_level && scaling.rows != 1)
    fail<UsageError>(op, "scales of blocks are under a scale of the row, and blocks have ",
                     scaling.rows, " rows. Use blocks of one row.");
  only_short(scaling.scale_rounding != Rounding::nearest_even, "with a rounding of their own");
  only_short(scaling.corrected, "and corrected");
  if (scaling.scale_rounding != Rounding::nearest_even && scaling.scale_rounding != Rounding::up &&
      scaling.scale_rounding != Rounding::stochastic)
    fail<UsageError>(op, "scales of blocks are rounded ", name(scaling.scale_rounding),
                     ". Choose nearest_even, up or stochastic.");
  if (scaling.scale_max != 0 &&
      !(scaling.scale_max > 0 && scaling.scale_max <= scaling.scale_format.max))
    fail<UsageError>(op, "the largest scale of a block is put at ", scaling.scale_max,
                     ". It must be positive and at most ", scaling.scale_format.max, '.');
  if (scaling.scale_max != 0 && !scaling.tensor_level && !scaling.row_level)
    fail<UsageError>(
        op, "a place for the largest scale of a block needs a scale of the tensor or row.");
  if (!scaling.is_plain() && int64_t(scaling.rows) * scaling.columns > largest_measured_block)
    fail<UsageError>(op, "scales that depend on elements or random numbers are of blocks of ",
                     scaling.rows, " x ", scaling.columns, " numbers. They can have up to ",
                     largest_measured_block, '.');
}

void check_targets(std::string_view op, const Quantizer& quantizer) {
  const Scaling& scaling = quantizer.scaling;
  for (std::size_t i = 0; i < scaling.targets.size(); ++i) {
    const float target = scaling.targets[i];
    if (!(target >= 0) || target > 2 * quantizer.grid.max)
      fail<UsageError>(op, "a block puts its largest magnitude at ", target,
                       ". Choose positive numbers up to ", 2 * quantizer.grid.max,
                       ", twice the largest on the grid.");
    if (target != 0 && int64_t(i) >= scaling.target_count())
      fail<UsageError>(op, "the targets of a scale have a 0 before ", target, ". A 0 ends them.");
  }
}

void check_table(std::string_view op, const Quantizer& quantizer) {
  const std::vector<float>& table = quantizer.table;
  if (table.size() < 2 || table.size() > 256)
    fail<UsageError>(op, "a table has ", table.size(), " numbers. It must have 2 to 256.");
  for (std::size_t i = 0; i < table.size(); ++i)
    if (!std::isfinite(table[i]) || (i > 0 && !(table[i] > table[i - 1])))
      fail<UsageError>(op, "number ", i, " of a table is ", table[i],
                       ". Numbers must be finite, and no two may be the same f32 number.");
  if (quantizer.grid != Quantizer::of_table(table).grid)
    fail<UsageError>(op, "the grid does not describe its table. Use Quantizer::of_table().");
  if (quantizer.rounding == Rounding::to_odd)
    fail<UsageError>(op,
                     "a table is rounded to_odd. Its numbers have no significands: choose "
                     "another rounding.");
}

void check_average(std::string_view op, const Quantizer& quantizer) {
  if (quantizer.average == 0) return;
  if (!(quantizer.average > 0 && quantizer.average < 1))
    fail<UsageError>(op, "an average keeps the share ", quantizer.average,
                     " of itself in each step. Choose a number above 0 and below 1.");
  std::string_view other;
  if (quantizer.own) other = "a function of the program";
  if (quantizer.rounding != Rounding::nearest_even) other = "another rounding than nearest_even";
  if (quantizer.hadamard > 0) other = "a rotation";
  if (quantizer.clip.any()) other = "a clip";
  if (!quantizer.scaling.is_plain())
    other = "scales that choose a target, are corrected, or are not rounded to nearest";
  if (!other.empty())
    fail<UsageError>(op, "an average chooses the neighbor on the grid, and the quantizer has ",
                     other, " as well. Leave one out.");
}

}  // namespace

std::string_view name(ScaleRule rule) { return rules[std::size_t(rule)]; }

std::optional<ScaleRule> scale_rule_named(std::string_view wanted) {
  for (std::size_t i = 0; i < rules.size(); ++i)
    if (rules[i] == wanted) return ScaleRule(i);
  return std::nullopt;
}

std::string_view name(ScaleError error) { return errors[std::size_t(error)]; }

std::optional<ScaleError> scale_error_named(std::string_view wanted) {
  for (std::size_t i = 0; i < errors.size(); ++i)
    if (errors[i] == wanted) return ScaleError(i);
  return std::nullopt;
}

int32_t Scaling::target_count() const {
  return int32_t(std::ranges::find(targets, 0.0f) - targets.begin());
}

Quantizer Quantizer::of_table(std::vector<float> numbers) {
  std::ranges::sort(numbers);
  float largest = 0;
  for (const float number : numbers) largest = std::max(largest, std::abs(number));
  Quantizer quantizer;
  quantizer.grid.max = largest, quantizer.grid.infinity = false;
  quantizer.grid.bits = uint8_t(std::bit_width(std::max<std::size_t>(numbers.size(), 2) - 1));
  quantizer.table = std::move(numbers);
  return quantizer;
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
  if (quantizer.own) text << quantizer.own->name << " (" << quantizer.own->hash << ")";
  else if (quantizer.table.empty()) text << described(quantizer.grid);
  else text << "a table of " << quantizer.table.size() << " numbers";
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
    if (scaling.scale_rounding == Rounding::up) text << " rounded up";
    if (scaling.scale_rounding == Rounding::stochastic) text << " rounded stochastically";
    if (scaling.corrected) text << " and corrected";
    if (scaling.tensor_level) text << " under one of the tensor";
    if (scaling.row_level) text << " under one of the row";
    if (scaling.scale_max != 0) text << " (up to " << scaling.scale_max << ")";
    for (int32_t i = 0; i < scaling.target_count(); ++i)
      text << (i == 0 ? ", largest at " : " or ") << scaling.targets[std::size_t(i)];
    if (scaling.target_count() > 1) text << " (" << name(scaling.error) << ")";
  }
  if (quantizer.hadamard > 0) text << ", rotated by " << quantizer.hadamard;
  if (quantizer.hadamard > 0 && quantizer.draws_signs) text << " with new signs";
  if (quantizer.clip.rms) text << ", clipped at " << *quantizer.clip.rms << " root mean squares";
  if (quantizer.clip.quantile) text << ", clipped at the quantile " << *quantizer.clip.quantile;
  if (quantizer.average > 0) text << ", by an average (" << quantizer.average << ")";
  if (quantizer.rounding != Rounding::nearest_even) text << ", " << name(quantizer.rounding);
  if (quantizer.rounding == Rounding::stochastic && quantizer.random_bits != 32)
    text << " (" << quantizer.random_bits << " bits)";
  return text.str();
}

bool Quantizer::draws() const {
  return rounding == Rounding::stochastic || (hadamard > 0 && draws_signs) ||
         (scaling.per == Scaling::Per::block && scaling.scale_rounding == Rounding::stochastic) ||
         (own && own->draws);
}

bool Quantizer::exact_in(DType dtype) const {
  if (!table.empty() || own) return dtype == halftone::f32;
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
  if (own) return own->bits;
  if (scaling.per != Scaling::Per::block) return grid.bits;
  return grid.bits + double(scaling.scale_format.bits) / (double(scaling.rows) * scaling.columns);
}

void check_quantizer(std::string_view op, const Quantizer& quantizer) {
  if (quantizer.own) {
    check_own_quantizer(op, *quantizer.own);
    if (quantizer.grid != NumberFormat{} || !quantizer.table.empty() ||
        quantizer.rounding != Rounding::nearest_even || quantizer.scaling != Scaling{})
      fail<UsageError>(op, "the quantizer \"", quantizer.own->name,
                       "\" rounds by its own function, and has a format, a table, a rounding or a "
                       "scale as well. Leave those out.");
  }
  if (quantizer.table.empty()) check_format(op, quantizer.grid);
  else check_table(op, quantizer);
  if (quantizer.random_bits < 1 || quantizer.random_bits > 32)
    fail<UsageError>(op, "stochastic rounding has ", quantizer.random_bits,
                     " random bits. Choose 1 to 32.");
  if (quantizer.hadamard != 0 &&
      (!is_power_of_two(quantizer.hadamard) || quantizer.hadamard < 2 || quantizer.hadamard > 128))
    fail<UsageError>(op, "rotations are of ", quantizer.hadamard,
                     " numbers. Choose 2, 4, 8, 16, 32, 64 or 128, or 0 for none.");
  check_clip(op, quantizer.clip);
  check_average(op, quantizer);
  if (quantizer.clip.any() && quantizer.scaling.per == Scaling::Per::tensor &&
      quantizer.scaling.from_history)
    fail<UsageError>(op,
                     "numbers are clipped and the scale is from history, whose magnitudes are not "
                     "clipped. Take the scale from the tensor itself.");
  if (quantizer.scaling.per == Scaling::Per::tensor) check_tensor_scaling(op, quantizer.scaling);
  if (quantizer.scaling.per != Scaling::Per::block) return;
  check_block_scaling(op, quantizer.scaling);
  check_targets(op, quantizer);
  if (quantizer.scaling.corrected && quantizer.rounding == Rounding::stochastic)
    fail<UsageError>(op,
                     "scales are corrected for elements that are rounded stochastically. "
                     "Those are unbiased already: choose another rounding.");
}

QuantizeNumbers numbers_of(const Quantizer& quantizer) {
  const Scaling& scaling = quantizer.scaling;
  const bool scaled = scaling.per != Scaling::Per::none;
  QuantizeNumbers n;
  n.grid = grid_of(quantizer.grid, quantizer.rounding, scaled);
  n.scale_grid = grid_of(scaling.scale_format, scaling.scale_rounding, true);
  n.rounding = quantizer.rounding;
  n.random_mask = 0xffffffffu << (32 - quantizer.random_bits);
  n.wide = n.grid.is_wide();
  n.per = scaling.per;
  n.from_history = scaling.from_history, n.power_of_two = scaling.power_of_two;
  n.tensor_level = scaling.tensor_level || scaling.row_level, n.row_level = scaling.row_level;
  n.kind = kind_of(scaling.scale_format), n.rule = scaling.rule;
  n.max = quantizer.grid.max, n.inverse_max = 1 / n.max, n.scale_max = scaling.scale_format.max;
  n.least = scaling.least, n.margin = std::ldexp(1.0f, -scaling.margin);
  n.max_exponent = int32_t(magnitude_bits(n.max) >> 23) - 127;
  n.half_unit =
      quantizer.grid.significand_bits < 24 ? 1 << (23 - quantizer.grid.significand_bits) : 0;
  n.rows = scaling.rows, n.columns = scaling.columns;
  n.plain = scaling.per != Scaling::Per::block || scaling.is_plain();
  n.corrected = scaling.corrected, n.scale_rounding = scaling.scale_rounding;
  n.error = scaling.error, n.target_count = scaling.target_count();
  std::ranges::copy(scaling.targets, n.targets);
  n.base = n.target_count > 0 ? n.targets[0] : n.max;
  n.level_max = scaling.scale_max != 0 ? scaling.scale_max : n.scale_max;
  n.table = quantizer.table.data(), n.table_count = int32_t(quantizer.table.size());
  return n;
}

}  // namespace halftone
