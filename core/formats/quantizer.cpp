// Quantizers by name, their descriptions, and checks of their fields.
#include <halftone/core/formats/quantizer.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/block_scale.h>
#include <halftone/core/formulas.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>

namespace halftone {

namespace {

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

void check_inner(std::string_view op, const Quantizer& quantizer) {
  const Scaling& scaling = quantizer.scaling;
  const auto& [outer, inner] = scaling.inner;
  if (outer == InnerScale{} && inner == InnerScale{}) return;
  int32_t above = scaling.columns;
  for (const InnerScale& level : scaling.inner) {
    if (level.columns == 0 && &level == &inner) break;
    if (level.columns < 1 || level.columns >= above || above % level.columns != 0)
      fail<UsageError>(op, "sub-blocks are of ", level.columns, " numbers inside of ", above,
                       ". Choose a smaller number that divides it.");
    if (level.bits < 1 || level.bits > 3)
      fail<UsageError>(op, "scales of sub-blocks are powers of two of ", level.bits,
                       " bits. Choose 1, 2 or 3.");
    above = level.columns;
  }
  if (!scaling.is_plain() || !quantizer.choice.grids.empty())
    fail<UsageError>(op,
                     "a block has sub-blocks, and a choice, a correction or a rounding of its "
                     "scale as well. Leave one out.");
  if (!std::isfinite(std::ldexp(quantizer.grid.max, outer.most() + inner.most())))
    fail<UsageError>(op, "the largest number of the grid, ", quantizer.grid.max,
                     ", times the largest scales of sub-blocks is above f32's range. Leave them "
                     "out: such a format needs no scale.");
}

void check_learned(std::string_view op, const Quantizer& quantizer) {
  const Scaling& scaling = quantizer.scaling;
  const bool per_tensor = scaling.per == Scaling::Per::tensor;
  if (per_tensor && scaling.row_level && !scaling.learned)
    fail<UsageError>(
        op,
        "a scale per row is a number that is learned. Let it be learned, or use blocks "
        "of one row.");
  if (!scaling.learned) return;
  std::string_view other;
  if (!per_tensor) other = "blocks";
  if (scaling.from_history) other = "a history";
  if (scaling.power_of_two || scaling.margin != 0 || scaling.least != 0 || scaling.tensor_level)
    other = "a rule for the largest magnitude";
  if (quantizer.rounding == Rounding::stochastic) other = "stochastic rounding";
  if (quantizer.hadamard > 0) other = "a rotation";
  if (quantizer.clip.any()) other = "a clip";
  if (quantizer.average > 0) other = "an average";
  if (quantizer.own) other = "a function of the program";
  if (!quantizer.table.empty()) other = "a table";
  if (!other.empty())
    fail<UsageError>(op, "a scale is learned, and the quantizer has ", other,
                     " as well. Leave one out.");
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

void check_choice(std::string_view op, const Quantizer& quantizer) {
  const std::vector<NumberFormat>& grids = quantizer.choice.grids;
  if (grids.size() < 2 || grids.size() > 8)
    fail<UsageError>(op, "a block chooses among ", grids.size(), " grids. Give 2 to 8.");
  for (std::size_t i = 0; i < grids.size(); ++i) {
    check_format(op, grids[i]);
    if (std::ranges::find(grids.begin(), grids.begin() + std::ptrdiff_t(i), grids[i]) !=
        grids.begin() + std::ptrdiff_t(i))
      fail<UsageError>(op, "a block chooses among grids of which two are ", described(grids[i]),
                       ". Leave one out.");
  }
  if (quantizer.grid != grids[0] || !quantizer.table.empty() || quantizer.own)
    fail<UsageError>(op,
                     "a choice of grids replaces the grid, whose value is the first of them, "
                     "tables and functions.");
  if (quantizer.scaling.per != Scaling::Per::block)
    fail<UsageError>(op,
                     "grids are chosen for each block, and the quantizer has no blocks. Give it "
                     "a scale per block.");
  if (quantizer.scaling.target_count() > 0 || quantizer.average > 0)
    fail<UsageError>(op,
                     "a block chooses its grid, and its scale or neighbors as well. Leave one "
                     "out.");
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
  else if (!quantizer.choice.grids.empty())
    for (std::size_t i = 0; i < quantizer.choice.grids.size(); ++i)
      text << (i == 0 ? "" : " or ") << described(quantizer.choice.grids[i]);
  else if (quantizer.table.empty()) text << described(quantizer.grid);
  else text << "a table of " << quantizer.table.size() << " numbers";
  if (scaling.per == Scaling::Per::tensor) {
    text << (scaling.row_level ? ", scaled per row" : ", scaled per tensor");
    if (scaling.learned) text << " by learned numbers";
    if (scaling.from_history)
      text << " from the " << (scaling.latest ? "last" : "largest") << " of " << scaling.history
           << " steps";
    if (scaling.power_of_two) text << ", powers of two";
    if (scaling.margin != 0) text << ", margin " << scaling.margin;
  } else if (scaling.per == Scaling::Per::block) {
    if (scaling.rows == 1 && scaling.columns == Scaling::whole_row) text << ", rows with ";
    else text << ", blocks of " << scaling.rows << "x" << scaling.columns << " with ";
    text << described(scaling.scale_format) << " scales";
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
    for (const InnerScale& level : scaling.inner)
      if (level.columns > 0)
        text << ", sub-blocks of 1x" << level.columns << " with e" << level.bits << "m0 scales";
  }
  if (!quantizer.choice.grids.empty()) text << ", the grid by " << name(quantizer.choice.by);
  if (quantizer.hadamard > 0) text << ", rotated by " << quantizer.hadamard;
  if (quantizer.hadamard > 0 && quantizer.draws_signs) text << " with new signs";
  if (quantizer.clip.rms) text << ", clipped at " << *quantizer.clip.rms << " root mean squares";
  if (quantizer.clip.quantile) text << ", clipped at the quantile " << *quantizer.clip.quantile;
  if (quantizer.average > 0) text << ", by an average (" << quantizer.average << ")";
  if (quantizer.rounding != Rounding::nearest_even) text << ", " << name(quantizer.rounding);
  if (quantizer.rounding == Rounding::stochastic && quantizer.random.bits != 32)
    text << " (" << quantizer.random.bits << " bits)";
  if (quantizer.random.variant != StochasticVariant::a)
    text << ", variant " << name(quantizer.random.variant);
  if (quantizer.saturation) text << ", beyond the largest: " << name(*quantizer.saturation);
  return text.str();
}

bool Quantizer::draws() const {
  return rounding == Rounding::stochastic || (hadamard > 0 && draws_signs) ||
         (scaling.per == Scaling::Per::block && scaling.scale_rounding == Rounding::stochastic) ||
         (own && own->draws);
}

bool Quantizer::exact_in(DType dtype) const {
  if (!table.empty() || own) return dtype == halftone::f32;
  if (!choice.grids.empty()) {
    Quantizer one = *this;
    one.choice = {};
    return std::ranges::all_of(choice.grids, [&](const NumberFormat& format) {
      one.grid = format;
      return one.exact_in(dtype);
    });
  }
  const int least = grid.min_exponent - grid.significand_bits + 1;  // all are multiples of 2^least
  switch (dtype) {
    case halftone::f32: return true;
    // A product with a power of two keeps the significand, and bf16 has the exponents of floats.
    case halftone::bf16:
      return grid.significand_bits <= 8 && least >= -133 && hadamard == 0 &&
             scales_are_powers_of_two(scaling);
    case halftone::f16:
      return grid.significand_bits <= 11 && least >= -24 && grid.max <= formats::f16.max &&
             hadamard == 0 && scaling.per == Scaling::Per::none;
    default: return false;
  }
}

double Quantizer::bits_per_element() const {
  if (own) return own->bits;
  if (scaling.per != Scaling::Per::block) return grid.bits;
  int bits = grid.bits, chosen = 0;
  for (const NumberFormat& format : choice.grids) bits = std::max(bits, int(format.bits));
  if (!choice.grids.empty()) chosen = std::bit_width(choice.grids.size() - 1);
  double inner = 0;
  for (const InnerScale& level : scaling.inner)
    if (level.columns > 0) inner += double(level.bits) / level.columns;
  return bits + inner +
         double(scaling.scale_format.bits + chosen) / (double(scaling.rows) * scaling.columns);
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
  if (quantizer.saturation && (quantizer.own || !quantizer.table.empty()))
    fail<UsageError>(op, "numbers beyond a ", quantizer.own ? "function" : "table",
                     " are to become ", name(*quantizer.saturation),
                     ". Only a format has an infinity: leave it out.");
  if (!quantizer.choice.grids.empty()) check_choice(op, quantizer);
  if (quantizer.table.empty()) check_format(op, quantizer.grid);
  else check_table(op, quantizer);
  if (quantizer.random.variant != StochasticVariant::a && quantizer.random.bits > 24)
    fail<UsageError>(op, "stochastic rounding of variant ", name(quantizer.random.variant), " has ",
                     quantizer.random.bits, " random bits. It can have up to 24.");
  if (quantizer.random.bits < 1 || quantizer.random.bits > 32)
    fail<UsageError>(op, "stochastic rounding has ", quantizer.random.bits,
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
  check_learned(op, quantizer);
  if (quantizer.scaling.per == Scaling::Per::tensor) check_tensor_scaling(op, quantizer.scaling);
  if (quantizer.scaling.per != Scaling::Per::block) return;
  check_block_scaling(op, quantizer.scaling);
  check_inner(op, quantizer);
  check_targets(op, quantizer);
  if (quantizer.scaling.corrected && quantizer.rounding == Rounding::stochastic)
    fail<UsageError>(op,
                     "scales are corrected for elements that are rounded stochastically. "
                     "Those are unbiased already: choose another rounding.");
}

/// Sets the levels of sub-blocks, and puts the largest number of a block at that of the grid times
/// their largest scales.
static void set_inner(QuantizeNumbers& n, const Scaling& scaling) {
  int32_t below = 0;
  for (int level = int(scaling.inner.size()) - 1; level >= 0; --level) {
    const InnerScale& inner = scaling.inner[std::size_t(level)];
    if (inner.columns == 0) continue;
    n.inner_levels = std::max(n.inner_levels, level + 1);
    n.inner_columns[level] = inner.columns, n.inner_most[level] = inner.most();
    n.inner_binade[level] = n.max_exponent + below;
    below += inner.most();
  }
  n.max = std::ldexp(n.max, below), n.max_exponent += below;
}

QuantizeNumbers numbers_of(const Quantizer& quantizer) {
  const Scaling& scaling = quantizer.scaling;
  const bool scaled = scaling.per != Scaling::Per::none;
  QuantizeNumbers n;
  const Saturation saturation = scaled ? Saturation::propagate : Saturation::none;
  n.grid = grid_of(quantizer.grid, quantizer.rounding, quantizer.saturation.value_or(saturation));
  n.scale_grid = grid_of(scaling.scale_format, scaling.scale_rounding, Saturation::propagate);
  n.rounding = quantizer.rounding;
  n.random_bits.kept = 0xffffffffu << (32 - quantizer.random.bits);
  if (quantizer.random.variant != StochasticVariant::a)
    n.random_bits.half = 1u << (31 - quantizer.random.bits);
  if (quantizer.random.variant == StochasticVariant::c)
    n.random_bits.odd = 1u << (32 - quantizer.random.bits), n.grid.sticky = 1;
  n.wide = n.grid.is_wide();
  n.per = scaling.per;
  n.from_history = scaling.from_history, n.power_of_two = scaling.power_of_two;
  n.tensor_level = scaling.tensor_level || scaling.row_level, n.row_level = scaling.row_level;
  n.kind = kind_of(scaling.scale_format), n.rule = scaling.rule;
  n.max = quantizer.grid.max, n.scale_max = scaling.scale_format.max;
  n.least = scaling.least, n.margin = std::ldexp(1.0f, -scaling.margin);
  n.max_exponent = int32_t(magnitude_bits(n.max) >> 23) - 127;
  if (scaling.per == Scaling::Per::block) set_inner(n, scaling);
  n.inverse_max = 1 / n.max;
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
  if (scaling.learned) {  // whole rows, in pieces of 128, whose divisor is given
    n.per = Scaling::Per::block, n.kind = ScaleKind::f32, n.given = true;
    n.rows = 1, n.columns = 128, n.plain = true, n.tensor_level = false;
  }
  return n;
}

// Blocks one after the other, on the host.

void round_blocks(const OwnQuantizer& quantizer, std::span<const float> x, int64_t row_length,
                  RandomKey key, std::span<float> y) {
  const auto length = std::size_t(row_length);
  const std::size_t block = quantizer.columns > 0 ? std::size_t(quantizer.columns) : length;
  std::vector<uint32_t> words;
  for (std::size_t row = 0; row < x.size(); row += length)
    for (std::size_t begin = row; begin < row + length; begin += block) {
      const std::size_t count = std::min(block, row + length - begin);
      if (quantizer.draws) {
        words.clear();
        for (uint64_t i = begin; i < begin + count; ++i)
          words.push_back(Philox::words(key.seed, key.offset + i / 4)[i % 4]);
      }
      quantizer.round(x.subspan(begin, count), words, y.subspan(begin, count));
    }
}

void check_own_quantizer(std::string_view op, const OwnQuantizer& quantizer) {
  if (quantizer.name.empty() || quantizer.hash.empty() || !quantizer.round)
    fail<UsageError>(op, "a quantizer has the name \"", quantizer.name, "\", the hash \"",
                     quantizer.hash, "\" and ", quantizer.round ? "a" : "no",
                     " function. All three are required.");
  if (!(quantizer.bits > 0 && quantizer.bits <= 64) || quantizer.columns < 0)
    fail<UsageError>(op, "the quantizer \"", quantizer.name, "\" has ", quantizer.bits,
                     " bits per number and blocks of ", quantizer.columns,
                     " numbers. Use more than 0 and at most 64 bits, and at least 0 numbers.");
}

// The steps of a quantizer as calls of a backend.

namespace {

/// Returns whether one kernel, after those for the largest magnitude, computes the quantizer on
/// every device.
bool one_kernel(const Quantizer& quantizer) {
  return quantizer.hadamard == 0 && !quantizer.clip.any() && !quantizer.own &&
         quantizer.average == 0 && quantizer.table.empty() && quantizer.choice.grids.empty();
}

/// Returns true if neither blocks, random numbers nor sums count elements: then any dense order
/// will do.
bool any_order(const Quantizer& quantizer) {
  return one_kernel(quantizer) && quantizer.scaling.per != Scaling::Per::block &&
         !quantizer.scaling.row_level && !quantizer.draws();
}

/// Returns the largest magnitude of each row. x: row-major.
Tensor largest_of_rows(const Tensor& x) {
  Tensor magnitudes = empty({x.numel() / x.size(-1), x.size(-1)}, f32, x.device());
  Tensor largest = empty({magnitudes.size(0), 1}, f32, x.device());
  Backend& backend = backend_for(x);
  backend.copy(views::reshaped(x, magnitudes.shape()), magnitudes);
  backend.unary(call_of<UnaryFormulas>(formula::Abs{}), magnitudes, magnitudes);
  backend.reduce(Reduction::max, magnitudes, largest);
  return largest;
}

/// Returns QuantizeCall::amax for x.
Tensor amax_of(const Quantizer& quantizer, const Tensor& x) {
  const MemoryScope scope(MemoryUse::workspace);
  if (quantizer.scaling.learned) return first_scale(quantizer, x);
  if (quantizer.scaling.row_level) return largest_of_rows(x);
  Tensor amax = zeros({}, f32, x.device());
  backend_for(x).largest_magnitude(x, amax);
  return amax;
}

Rotation rotation_of(const QuantizeCall& call) {
  return {.size = call.quantizer.hadamard,
          .signs = call.quantizer.hadamard_signs,
          .draws = call.quantizer.draws_signs,
          .key = call.key,
          .key_stride = call.key_stride};
}

/// Limits x by the bound of the clip. x, y: f32, row-major; they may be the same.
void apply(const Clip& clip, const Tensor& x, Tensor& y) {
  Backend& backend = backend_for(x);
  Tensor bound = empty({}, f32, x.device());
  backend.clip_bound(x, clip, bound);
  backend.clip(x, bound, y);
}

/// Rounds x to each grid of a choice, and copies each block from the one with the least error.
void quantize_by_choice(const Tensor& x, const QuantizeCall& call, Tensor& y) {
  Backend& backend = backend_for(x);
  Quantizer one = call.quantizer;
  one.choice = {};
  const bool draws = one.rounding == Rounding::stochastic;
  std::vector<Tensor> results, measured;
  for (const NumberFormat& format : call.quantizer.choice.grids) {
    one.grid = format;
    const auto rounded = [&](Rounding rounding) {
      Quantizer quantizer = one;
      quantizer.rounding = rounding;
      Tensor result = empty(x.shape(), f32, x.device());
      backend.quantize(x,
                       {.quantizer = quantizer,
                        .amax = call.amax,
                        .key = call.key,
                        .key_stride = call.key_stride},
                       result);
      return result;
    };
    results.push_back(rounded(one.rounding));
    measured.push_back(draws ? rounded(Rounding::nearest_even) : results.back());
  }
  backend.choose_blocks(call.quantizer, x, measured, results, y);
}

/// The same as run() for a quantizer with a clip, a choice of grids or, on the host, a function of
/// the program: in f32, as a bound need not be a number of a short dtype. Results are exact in the
/// dtype of `to`.
void run_in_f32(const Tensor& from, const QuantizeCall& call, Tensor& to) {
  const MemoryScope scope(MemoryUse::workspace);
  Backend& backend = backend_for(from);
  const Quantizer& quantizer = call.quantizer;
  Rotation rotation = rotation_of(call);
  const auto made = [&] { return empty(from.shape(), f32, from.device()); };
  Tensor whole = from;  // before the clip
  if (from.dtype() != f32) whole = made(), backend.copy(from, whole);
  if (rotation.size > 0) {
    const Tensor x = whole;
    if (whole.storage() == from.storage()) whole = made();
    backend.rotate(x, rotation, whole);
  }
  // A survey reads the numbers before and after the clip, and the results.
  const bool chooses = !quantizer.choice.grids.empty();
  const bool surveyed = call.survey.defined(), direct = to.dtype() == f32 && !surveyed;
  Tensor x = whole, y = direct ? to : made();
  if (quantizer.clip.any()) x = surveyed ? made() : y, apply(quantizer.clip, whole, x);
  // The survey of a choice counts no saturation: it would need the grid of each block.
  static const Quantizer any_grid;
  QuantizeCall own{.quantizer = quantizer,
                   .key = call.key,
                   .key_stride = call.key_stride,
                   .unclipped = quantizer.clip.any() ? whole : Tensor()};
  if (quantizer.needs_amax()) own.amax = amax_of(quantizer, x);
  const auto count = std::size_t(x.numel());
  if (quantizer.own)
    round_blocks(*quantizer.own, {x.data<float>(), count}, x.size(-1), call.key,
                 {y.data<float>(), count});
  else if (!quantizer.choice.grids.empty()) quantize_by_choice(x, own, y);
  else backend.quantize(x, own, y);
  if (surveyed) {
    Tensor row = call.survey;
    const QuantizeCall plain{.quantizer = any_grid, .unclipped = own.unclipped};
    backend.survey(x, y, chooses ? &plain : &own, row);
  }
  rotation.back = true;
  if (rotation.size > 0) backend.rotate(y, rotation, y);
  if (!direct) backend.copy(y, to);
}

void run(const Tensor& from, const QuantizeCall& call, Tensor& to);

/// Rounds down, and up, and takes the result that is nearer to the average. The operations are
/// exact or rounded once, so the bits are the same everywhere.
void run_by_average(const Tensor& from, const QuantizeCall& call, Tensor& to) {
  const MemoryScope scope(MemoryUse::workspace);
  Backend& backend = backend_for(from);
  const auto made = [&](DType dtype) { return empty(from.shape(), dtype, from.device()); };
  Tensor x = made(f32), down = made(f32), up = made(f32), sum = made(f32), twice = made(f32);
  backend.copy(from, x);
  Quantizer quantizer = call.quantizer;
  quantizer.average = 0;
  QuantizeCall whole{.quantizer = quantizer, .amax = call.amax, .scale = call.scale};
  if (quantizer.needs_amax() && !whole.amax.defined()) whole.amax = amax_of(quantizer, x);
  quantizer.rounding = Rounding::down, run(x, whole, down);
  quantizer.rounding = Rounding::up, run(x, whole, up);
  // The average is beyond the middle if twice the average is beyond the sum of the neighbors.
  const Tensor& average = call.average.defined() ? call.average : x;
  const auto add = call_of<BinaryFormulas>(formula::Add{});
  backend.binary(add, down, up, sum), backend.binary(add, average, average, twice);
  const auto greater = call_of<CompareFormulas>(formula::Greater{});
  const auto at_least = call_of<CompareFormulas>(formula::GreaterEqual{});
  Tensor above = made(boolean), not_below = made(boolean), positive = made(boolean);
  backend.compare(greater, twice, sum, above), backend.compare(at_least, twice, sum, not_below);
  backend.compare(greater, x, views::expand(zeros({}, f32, x.device()), x.shape()), positive);
  Tensor of_positive = made(f32), of_negative = made(f32);
  backend.select(not_below, up, down, of_positive), backend.select(above, up, down, of_negative);
  Tensor& y = sum;
  backend.select(positive, of_positive, of_negative, y);
  if (call.survey.defined()) {
    Tensor row = call.survey;
    backend.survey(x, y, &whole, row);
  }
  backend.copy(y, to);
}

/// The same as run() on the host, for tensors of other devices.
void run_on_host(const Tensor& from, const QuantizeCall& call, Tensor& to) {
  if (recording_step())
    fail<UsageError>(
        "quantize", "the host computes this quantizer (", described(call.quantizer),
        "), which a captured step cannot do. Run the step uncaptured, or leave tables and "
        "quantizers of the program out.");
  const auto here = [](const Tensor& x) { return x.defined() ? x.to(Device::cpu()) : x; };
  const Tensor x = here(from);
  Tensor y = empty(x.shape(), x.dtype());
  const QuantizeCall own{.quantizer = call.quantizer,
                         .amax = here(call.amax),
                         .scale = here(call.scale),
                         .average = here(call.average),
                         .survey = here(call.survey),
                         .key = call.key};
  run(x, own, y);
  if (call.survey.defined()) copy_into(call.survey, own.survey);
  backend_for(to).copy(y.to(to.device()), to);
}

/// from, to: rows; they may be the same tensor.
void run(const Tensor& from, const QuantizeCall& call, Tensor& to) {
  if (from.numel() == 0) return;
  const Scaling& scaling = call.quantizer.scaling;
  if (scaling.per == Scaling::Per::block && scaling.columns == Scaling::whole_row &&
      from.size(-1) > Scaling::whole_row)
    fail<UsageError>("quantize", "rows of ", from.size(-1),
                     " numbers have one scale each, and the limit is ", Scaling::whole_row,
                     ". Use blocks, or one scale for the tensor.");
  const bool chooses = !call.quantizer.choice.grids.empty();
  const bool host_only = call.quantizer.own || !call.quantizer.table.empty();
  if (host_only && from.device() != Device::cpu()) return run_on_host(from, call, to);
  if (call.quantizer.clip.any() || call.quantizer.own || chooses) return run_in_f32(from, call, to);
  if (call.quantizer.average > 0) return run_by_average(from, call, to);
  Backend& backend = backend_for(from);
  const Quantizer& quantizer = call.quantizer;
  const bool rotates = quantizer.hadamard > 0;
  Rotation rotation = rotation_of(call);
  if (rotates) backend.rotate(from, rotation, to);
  const Tensor& x = rotates ? to : from;
  QuantizeCall whole = call;
  if (quantizer.needs_amax() && !call.amax.defined()) whole.amax = amax_of(quantizer, x);
  if (call.survey.defined()) {
    Tensor y = empty_like(to), row = call.survey;  // x may be the tensor that receives the result
    backend.quantize(x, whole, y);
    backend.survey(x, y, &whole, row);
    backend.copy(y, to);
  } else {
    backend.quantize(x, whole, to);
  }
  rotation.back = true;
  if (rotates) backend.rotate(to, rotation, to);
}

}  // namespace

double largest_in_units(const NumberFormat& format) {
  const int below = format.subnormals ? format.significand_bits - 1 : 0;
  return double(format.max) / std::ldexp(1.0, format.min_exponent - below);
}

Tensor first_scale(const Quantizer& quantizer, const Tensor& x) {
  const bool per_row = quantizer.scaling.row_level && x.rank() > 0;
  const std::vector<double> values = views::contiguous(x).to_vector<double>();
  const int64_t rows = per_row ? x.size(0) : 1, columns = rows > 0 ? x.numel() / rows : 0;
  const double q = largest_in_units(quantizer.grid), unit = double(quantizer.grid.max) / q;
  Tensor scales = ones(per_row ? Shape{rows} : Shape{});
  for (int64_t row = 0; row < rows && columns > 0; ++row) {
    const double sum = summed_by_lanes(
        columns, [&](int64_t i) { return std::abs(values[std::size_t(row * columns + i)]); });
    const auto s = float(2 * sum / double(columns) / std::sqrt(q) / unit);
    if (s > 0 && is_finite_magnitude(s)) scales.data<float>()[row] = s;
  }
  return scales.to(x.device());
}

/// Returns the matrix whose rows have learned scales.
static Tensor as_learned_rows(const Tensor& x) {
  return views::reshaped(x, {x.size(0), x.numel() / x.size(0)});
}
static bool has_other_rows(const Quantizer& quantizer, const Tensor& x) {
  return quantizer.scaling.learned && quantizer.scaling.row_level && x.rank() != 2 &&
         x.rank() > 0 && x.numel() > 0;
}

Tensor quantized(const Tensor& x, const QuantizeCall& call) {
  if (has_other_rows(call.quantizer, x))
    return views::reshaped(quantized(as_learned_rows(x), call), x.shape());
  if (x.rank() == 0) {
    QuantizeCall whole = call;
    if (call.average.defined()) whole.average = views::reshaped(call.average, {1});
    return views::reshaped(quantized(views::reshaped(x, {1}), whole), {});
  }
  if (any_order(call.quantizer) && x.is_dense()) {
    Tensor y = empty_like(x);
    const Tensor from = x.view_as({x.numel()}, {1}, x.offset());
    Tensor to = y.view_as({y.numel()}, {1}, y.offset());
    run(from, call, to);
    return y;
  }
  const Tensor from = views::contiguous(x);
  Tensor y = empty(x.shape(), x.dtype(), x.device());
  run(from, call, y);
  return y;
}

std::optional<F8Kind> f8_kind(const Quantizer& quantizer) {
  const Scaling& scaling = quantizer.scaling;
  Quantizer plain{.grid = quantizer.grid,
                  .rounding = quantizer.rounding,
                  .random = quantizer.random,
                  .saturation = quantizer.saturation};
  F8Scales scales = F8Scales::tensor;
  if (scaling.per == Scaling::Per::tensor && !scaling.learned) plain.scaling = scaling;
  if (scaling.per == Scaling::Per::block) {
    const bool of_row = scaling.columns == Scaling::whole_row;
    if (!of_row && (scaling.columns != f8_block || scaling.scale_format != formats::e8m0))
      return {};
    plain.scaling = Scaling::per_block(1, scaling.columns, scaling.scale_format);
    plain.scaling.rule = scaling.rule;
    scales = of_row ? F8Scales::rows : F8Scales::blocks;
    if (of_row && scaling.scale_format != formats::f32 && scaling.scale_format != formats::e8m0)
      return {};
  }
  if (quantizer != plain) return {};
  if (quantizer.grid == formats::e4m3) return F8Kind{f8_e4m3, scales};
  if (quantizer.grid == formats::e5m2) return F8Kind{f8_e5m2, scales};
  return {};
}

bool has_scales_for(const Accumulator& accumulator, const Quantizer& quantizer) {
  const Scaling& scaling = quantizer.scaling;
  const NumberFormat &grid = quantizer.grid, &scale = scaling.scale_format;
  const Quantizer plain{.grid = grid,
                        .rounding = quantizer.rounding,
                        .random = quantizer.random,
                        .saturation = quantizer.saturation,
                        .scaling = scaling,
                        .hadamard = quantizer.hadamard,
                        .hadamard_signs = quantizer.hadamard_signs};
  const bool scaled = scaling.per == Scaling::Per::block && scaling.columns == accumulator.scaled &&
                      scaling.inner == Scaling{}.inner && !scaling.learned && !scaling.row_level;
  if (quantizer != plain || !scaled || scale.significand_bits > 4) return false;
  if (accumulator.align == Align::scales)
    return grid == formats::e2m1 && scale.min_exponent == accumulator.least_exponent;
  return scale == formats::e8m0 && (grid == formats::e4m3 || grid == formats::e5m2);
}

/// Returns the same as rows of blocks. Blocks of several rows have a factor for each row. Rotated
/// numbers stay rotated.
static F8Operand as_rows_of_blocks(const Tensor& x, const QuantizeCall& call) {
  if (call.quantizer.hadamard > 0) {
    Tensor turned = empty(x.shape(), x.dtype(), x.device());
    backend_for(x).rotate(views::contiguous(x), rotation_of(call), turned);
    Quantizer quantizer = call.quantizer;
    quantizer.hadamard = 0;
    return as_rows_of_blocks(
        turned, {.quantizer = quantizer, .key = call.key, .key_stride = call.key_stride});
  }
  const Scaling& scaling = call.quantizer.scaling;
  const auto pieces = [](int64_t n, int64_t size) { return (n + size - 1) / size; };
  const int64_t columns = x.rank() > 0 ? x.size(-1) : 1, rows = x.numel() / columns;
  const int64_t bands = pieces(rows, scaling.rows), across = pieces(columns, scaling.columns);
  QuantizeCall own = call;
  own.factor = empty({bands * across + 1}, f32, x.device());
  F8Operand result{
      .numbers =
          empty(x.shape(), call.quantizer.grid == formats::e5m2 ? f8_e5m2 : f8_e4m3, x.device()),
      .factor = own.factor.view_as({bands, across}, {across, 1}, 0),
      .block = scaling.columns,
      .whole = own.factor.view_as({}, {}, bands * across)};
  run(views::contiguous(x), own, result.numbers);
  if (scaling.rows > 1) {
    const Shape each{bands, scaling.rows, across};
    const Tensor all =
        views::reshaped(views::expand(views::reshaped(result.factor, {bands, 1, across}), each),
                        {bands * scaling.rows, across});
    result.factor = views::slice(all, 0, 0, rows);
  }
  return result;
}

/// Returns numbers of a dtype and their factors, of a tensor or of rows.
static F8Operand with_factors(const Tensor& x, const QuantizeCall& call, DType dtype,
                              F8Scales scales) {
  const Device device = x.device();
  QuantizeCall whole = call;
  if (any_order(call.quantizer) && x.is_dense()) {
    Tensor numbers = empty({x.numel()}, dtype, device);
    whole.factor = ones({}, f32, device);
    run(x.view_as({x.numel()}, {1}, x.offset()), whole, numbers);
    return {numbers.view_as(x.shape(), x.strides(), numbers.offset()), whole.factor};
  }
  const int64_t columns = x.rank() > 0 ? x.size(-1) : 1,
                rows = numel_of(x.shape()) / std::max(columns, int64_t(1));
  switch (scales) {
    case F8Scales::tensor: whole.factor = ones({}, f32, device); break;
    case F8Scales::rows: whole.factor = empty({rows + 1}, f32, device); break;
    case F8Scales::blocks: return {empty(x.shape(), dtype, device), zeros({rows, 0}, f32, device)};
  }
  Tensor numbers = empty(x.shape(), dtype, device);
  run(views::contiguous(x), whole, numbers);
  const bool per_row = scales == F8Scales::rows;
  return {numbers, per_row ? whole.factor.view_as({rows}, {1}, 0) : whole.factor};
}

F8Operand quantized_f8(const Tensor& x, const QuantizeCall& call) {
  const auto kind = f8_kind(call.quantizer);
  if (x.numel() > 0 && (!kind || kind->scales == F8Scales::blocks))
    return as_rows_of_blocks(x, call);
  const auto [dtype, scales] = kind.value_or(F8Kind{f8_e4m3, F8Scales::blocks});
  return with_factors(x, call, dtype, scales);
}

bool has_one_factor(const Quantizer& quantizer) {
  return quantizer.scaling.per == Scaling::Per::tensor && f8_kind(quantizer);
}

F8Operand quantized_apart(const Tensor& x, const QuantizeCall& call) {
  const DType dtype = x.device() == Device::cpu() ? f32 : f8_kind(call.quantizer)->dtype;
  F8Operand result = with_factors(x, call, dtype, F8Scales::tensor);
  result.numbers = converted(result.numbers, f32);
  return result;
}

void quantize_in_place(const Tensor& x, const QuantizeCall& call) {
  if (call.quantizer.average > 0)
    fail<UsageError>("quantize", "a tensor that is rounded in place has no average over steps (",
                     described(call.quantizer), "). Leave the average out.");
  if (has_other_rows(call.quantizer, x)) return quantize_in_place(as_learned_rows(x), call);
  write_in_place(x.rank() == 0 ? views::reshaped(x, {1}) : x, [&](Backend& backend, Tensor& y) {
    if (!call.skip.defined() || one_kernel(call.quantizer)) return run(y, call, y);
    const MemoryScope scope(MemoryUse::workspace);
    QuantizeCall always = call;
    always.skip = {};
    Tensor rounded = empty_like(y), skips = empty({}, boolean, y.device());
    run(y, always, rounded);
    backend.compare(call_of<CompareFormulas>(formula::NotEqual{}), call.skip,
                    zeros({}, f32, y.device()), skips);
    backend.select(views::expand(skips, y.shape()), y, rounded, y);
  });
}

}  // namespace halftone
