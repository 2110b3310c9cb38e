// Formats, scales and quantizers as files write them: one description for reader and writer.
#include <halftone/amp/policy_reader.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <vector>

#include <halftone/core/error.h>
#include <halftone/core/formats/block_scale.h>
#include <halftone/core/formats/quantizer.h>

namespace halftone {

/// Returns the exponent bits that the format's bits leave; else those of an IEEE-like format with
/// that least exponent, or 8.
static int exponent_bits_of(const NumberFormat& format) {
  int bits = format.bits - format.significand_bits;
  if (bits >= 2 && bits <= 8) return bits;
  bits = 2;
  while (bits < 8 && 2 - (1 << (bits - 1)) != format.min_exponent) ++bits;
  return bits;
}

static int ieee_bias(int exponent_bits) { return (1 << (exponent_bits - 1)) - 1; }

/// The numbers of ieee_like() times 2^(the bias there - bias).
static NumberFormat with_bias(int exponent_bits, int fraction_bits, int bias) {
  NumberFormat format = NumberFormat::ieee_like(exponent_bits, fraction_bits);
  format.min_exponent = int16_t(1 - bias);
  format.max = std::ldexp(format.max, ieee_bias(exponent_bits) - bias);
  return format;
}

/// Returns the format that a file would make from its exponent, fraction and bias.
static NumberFormat as_read(const NumberFormat& format) {
  NumberFormat read =
      with_bias(exponent_bits_of(format), format.significand_bits - 1, 1 - format.min_exponent);
  read.max = format.max, read.infinity = format.infinity, read.subnormals = format.subnormals;
  return read;
}

/// An object of a format.
static void describe(Record& r, NumberFormat& format) {
  int exponent = exponent_bits_of(format), fraction = format.significand_bits - 1;
  for (const char* name : {"exponent", "fraction"})
    r.require(name, "\"exponent\" and \"fraction\" must both be there.");
  r.integer("exponent", exponent, 2, 8);
  r.integer("fraction", fraction, 0, 23);
  const int usual = ieee_bias(exponent);
  int bias = r.reads() ? usual : 1 - format.min_exponent;
  r.integer("bias", bias, -126, 149, bias != usual);
  if (r.reads()) format = with_bias(exponent, fraction, bias);
  r.number("max", format.max);
  r.flag("infinity", format.infinity);
  r.flag("subnormals", format.subnormals);
}

static void describe(Record& r, StochasticBits& random) {
  r.require("bits", "\"bits\" is missing.");
  r.integer("bits", random.bits, 1, 32);
  r.word("variant", random.variant);
}

static void describe(Record& r, Clip& clip) {
  r.number("rms", clip.rms);
  r.number("quantile", clip.quantile);
}

}  // namespace halftone

namespace halftone::policy {

namespace {
using Words = std::vector<std::string_view>;

Json fields_of(const NumberFormat& format) {
  Json fields{{"significand_bits", format.significand_bits},
              {"min_exponent", format.min_exponent},
              {"max", format.max},
              {"subnormals", format.subnormals},
              {"infinity", format.infinity}};
  if (format.codes != Codes::ieee) fields["codes"] = int(format.codes);
  return fields;
}

/// A format by its name, or as an object; for hashes with all fields.
void format_entry(Record& r, std::string_view name, NumberFormat& format, Record::Kept kept,
                  const Grids& grids) {
  r.entry(
      name, format, kept, [&](const JsonValue& v) { return grids.format_in(v); },
      [&](const NumberFormat& f) { return grids.for_hashes() ? fields_of(f) : json_of(f); });
}

/// The numbers at which a block's scale can put its largest magnitude.
struct Choice {
  std::vector<float> from{};
  ScaleError by = ScaleError::mse;
  bool operator==(const Choice&) const = default;
};

std::vector<float> targets_in(const JsonValue& value) {
  const std::vector<JsonValue> elements = value.elements();
  if (elements.empty() || elements.size() > std::size_t(Scaling::most_targets))
    value.refuse("a block chooses from 1 to ", Scaling::most_targets, " numbers, got ",
                 elements.size(), '.');
  std::vector<float> targets;
  for (const JsonValue& element : elements) {
    const auto target = float(element.number());
    if (!(target > 0)) element.refuse("a number of a choice must be positive.");
    if (std::ranges::find(targets, target) != targets.end())
      element.refuse("this has no effect: the choice has ", target, " twice. Leave it out.");
    targets.push_back(target);
  }
  return targets;
}

void describe(Record& r, Choice& choice) {
  r.require("from", "\"from\", a list of numbers of the grid, is missing.");
  r.entry("from", choice.from, {}, targets_in);
  const bool several = choice.from.size() > 1;
  if (several) r.require("by", "\"by\": \"mse\", \"mae\" or \"max\" is missing.");
  r.when(several, "choices of several numbers", [&] { r.word("by", choice.by); });
}

/// "fit": "mse": the block tries scales that put its largest magnitude at 0.75 to 2 times the
/// grid's largest number (powers of two: 1 and 2 times), and takes the one with the least squared
/// error.
Choice fit_in(const JsonValue& value, const Scaling& scaling, float max) {
  constexpr std::array<std::string_view, 1> errors{"mse"};
  value.word(errors);
  if (!std::isfinite(2 * max))
    value.refuse(
        "a fit tries twice the format's largest number, ", max,
        ", which is above f32's range. Leave it out: a block of such a format needs no scale.");
  Choice fit{.from = {1, 0.75f, 0.875f, 1.125f, 1.25f, 1.5f, 1.75f, 2}};
  if (scaling.scale_format == formats::e8m0) fit.from = {1, 2};
  for (float& target : fit.from) target *= max;
  return fit;
}

/// {"gradient": "lsq"}
struct Learned {
  bool lsq = false;
  bool operator==(const Learned&) const = default;
};
void describe(Record& r, Learned& learned) {
  r.require("gradient", "\"gradient\": \"lsq\" is missing.");
  r.word("gradient", learned.lsq, {{"lsq", true}});
}

void describe_tensor_scale(Record& r, Scaling& s) {
  Learned learned{s.learned};
  r.part("learned", "a learned scale", learned, s.learned);
  s.learned = learned.lsq;
  r.when(!s.learned, "scales that are not learned", [&] {
    r.word("from", s.from_history, {{"current", false}, {"history", true}});
    r.when(s.from_history, "scales from history", [&] {
      r.integer("history", s.history, 1, 1 << 20);
      r.word("take", s.latest, {{"max", false}, {"latest", true}});
    });
    r.integer("margin", s.margin, 0, 100);
    r.flag("power_of_two", s.power_of_two);
    r.number("least", s.least);
  });
}

/// The levels of sub-blocks from one of them on, each an entry of the level above.
struct Inner {
  std::array<InnerScale, 2> levels{};
  bool operator==(const Inner&) const = default;
};

std::array<int32_t, 2> block_in(const JsonValue& v) {
  const std::vector<JsonValue> sizes = v.elements();
  if (sizes.size() != 2) v.refuse("a block is [rows, columns].");
  return std::array{int32_t(sizes[0].integer(1, 1 << 20)), int32_t(sizes[1].integer(1, 1 << 20))};
}

void describe(Record& r, Inner& inner) {
  InnerScale& own = inner.levels[0];
  r.require("block", "\"block\": [1, columns] is missing.");
  std::array<int32_t, 2> block{1, own.columns};
  r.entry("block", block, {}, [](const JsonValue& v) {
    const auto sizes = block_in(v);
    if (sizes[0] != 1) v.refuse("sub-blocks are in one row: [1, columns].");
    return sizes;
  });
  own.columns = block[1];
  r.word("format", own.bits, {{"e1m0", 1}, {"e2m0", 2}, {"e3m0", 3}});
  Inner next{{inner.levels[1], {}}};
  r.entry(
      "inner", next, next.levels[0].columns > 0,
      [&](const JsonValue& v) {
        Inner read = Record::read(v, "a scale of sub-blocks", Inner{});
        if (read.levels[1].columns > 0)
          v.refuse("a block has more than two levels of sub-blocks inside. Leave one out.");
        return read;
      },
      [](const Inner& written) { return Record::write(written); });
  inner.levels[1] = next.levels[0];
}

/// The scale above the blocks: "tensor_level" is the older word for "outer": "tensor".
void describe_outer_scale(Record& r, Scaling& s) {
  enum class Outer : uint8_t { none, tensor, row };
  if (const auto outer = r.given("outer"); outer && r.given("tensor_level"))
    outer->refuse("\"tensor_level\" says the same for a tensor. Leave one out.");
  r.flag("tensor_level", s.tensor_level, s.per == Scaling::Per::block && !s.row_level);
  Outer outer = s.row_level ? Outer::row : s.tensor_level ? Outer::tensor : Outer::none;
  r.word("outer", outer, {{"none", Outer::none}, {"tensor", Outer::tensor}, {"row", Outer::row}},
         s.per == Scaling::Per::block && s.row_level);
  s.tensor_level = outer == Outer::tensor, s.row_level = outer == Outer::row;
  r.when(outer != Outer::none, "scales under one of the tensor or row", [&] {
    r.entry("scale_max", s.scale_max, s.scale_max != 0, [&](const JsonValue& v) {
      const auto largest = float(v.number());
      return largest == s.scale_format.max ? 0 : largest;
    });
  });
}

/// max: the largest number of the quantizer's grid.
void describe_block_scale(Record& r, Scaling& s, const Grids& grids, float max) {
  std::array<int32_t, 2> block{s.rows, s.columns};
  r.entry("block", block, {}, block_in);
  s.rows = block[0], s.columns = block[1];
  format_entry(r, "format", s.scale_format, {}, grids);
  const bool fits = r.given("fit").has_value(), of_powers = s.scale_format == formats::e8m0;
  r.when(of_powers && !fits, of_powers ? "scales without \"fit\"" : "e8m0 scales",
         [&] { r.word("rule", s.rule, s.per == Scaling::Per::block); });
  describe_outer_scale(r, s);
  r.word("rounding", s.scale_rounding,
         {{"nearest", Rounding::nearest_even},
          {"up", Rounding::up},
          {"stochastic", Rounding::stochastic}},
         s.scale_rounding != Rounding::nearest_even);
  r.word("correct", s.corrected, {{"none", false}, {"eden", true}}, s.corrected);
  Choice choice{{s.targets.begin(), s.targets.begin() + s.target_count()}, s.error};
  if (const auto fit = r.given("fit"); fit && r.given("choose"))
    fit->refuse("\"choose\" says which scales a block tries. Leave one out.");
  r.part("choose", "a choice", choice, !choice.from.empty());
  r.entry(
      "fit", choice, false, [&](const JsonValue& v) { return fit_in(v, s, max); },
      [](const Choice&) { return Json(); });
  std::ranges::copy(choice.from, s.targets.begin());
  s.error = choice.by;
  Inner inner{s.inner};
  r.part("inner", "a scale of sub-blocks", inner, s.inner[0].columns > 0);
  s.inner = inner.levels;
}

}  // namespace

static void describe(Record& r, Scaling& s, const Grids& grids, float max) {
  using Per = Scaling::Per;
  enum class Said : uint8_t { tensor, row, block };
  r.require("per", "\"per\": \"tensor\", \"row\" or \"block\" is missing.");
  const bool per_row = s.per == Per::tensor && s.row_level;
  Said said = s.per == Per::block ? Said::block : per_row ? Said::row : Said::tensor;
  r.word("per", said, {{"tensor", Said::tensor}, {"row", Said::row}, {"block", Said::block}});
  // A scale of a row is learned, or that of a block: the whole row.
  const bool of_row = said == Said::row && !per_row && !r.given("learned");
  if (of_row) s = Scaling::per_row();
  else s.per = said == Said::block ? Per::block : Per::tensor;
  if (said == Said::row && !of_row) s.row_level = true;
  if (of_row && r.given("block")) r.given("block")->refuse("a scale per row has no blocks.");
  r.of(s.per == Per::tensor, "scales per tensor", [&] { describe_tensor_scale(r, s); });
  r.of(s.per == Per::block, "scales per block", [&] { describe_block_scale(r, s, grids, max); });
}

namespace {

void scale_entry(Record& r, Quantizer& q, const Grids& grids) {
  const float max = q.grid.max;
  r.entry(
      "scale", q.scaling, q.own == nullptr,
      [&](const JsonValue& v) {
        constexpr std::array<std::string_view, 1> none{"none"};
        if (v.is_text()) return v.word(none), Scaling{};
        return Record::read(v, "a scale", Scaling{}, grids, max);
      },
      [&](const Scaling& s) {
        return s.per == Scaling::Per::none ? Json("none") : Record::write(s, grids, max);
      });
}

/// A rotation: its size, or {"size": 16, "signs": "fixed" or "step"}.
struct Turn {
  int32_t size = 0;
  bool draws_signs = false;
  bool operator==(const Turn&) const = default;
};
void describe(Record& r, Turn& turn) {
  r.require("size", "\"size\" is missing.");
  r.integer("size", turn.size, 2, Rotation::largest);
  r.word("signs", turn.draws_signs, {{"fixed", false}, {"step", true}});
}

void rotation_entry(Record& r, Quantizer& q) {
  Turn turn{q.hadamard, q.draws_signs};
  r.entry(
      "hadamard", turn, q.hadamard > 0,
      [](const JsonValue& v) {
        if (v.is_object()) return Record::read(v, "a rotation", Turn{});
        return Turn{.size = int32_t(v.integer(0, Rotation::largest))};
      },
      [](const Turn& t) { return t.draws_signs ? Record::write(t) : Json(t.size); });
  if (!r.given("hadamard")) return;
  q.hadamard = turn.size, q.draws_signs = turn.draws_signs;
  q.hadamard_signs = turn.size > 0 && !turn.draws_signs ? rotation_signs : 0;
}

/// "none" removes the clip of "like".
Clip clip_in(const JsonValue& value) {
  constexpr std::array<std::string_view, 1> none{"none"};
  if (value.is_text()) return value.word(none), Clip{};
  const Clip clip = Record::read(value, "a clip", Clip{});
  if (!clip.any()) value.refuse("\"rms\" or \"quantile\" is missing.");
  checked_at(value, [&] { check_clip("clip", clip); });
  // No number is above the largest one, and one of 2^40 numbers is at most 2^20 root mean squares.
  if (clip.quantile == 1.0 || clip.rms > 0x1p20)
    value.refuse("this has no effect: it clips no number. Leave it out, or choose less, such as ",
                 clip.rms ? "4." : "0.999.");
  return clip;
}

}  // namespace

static void describe(Record& r, GridChoice& choice, const Grids& grids) {
  r.require("choose", "\"choose\", a list of formats, is missing.");
  r.entry(
      "choose", choice.grids, {},
      [&](const JsonValue& v) {
        std::vector<NumberFormat> formats;
        for (const JsonValue& format : v.elements()) formats.push_back(grids.format_in(format));
        return formats;
      },
      [&](const std::vector<NumberFormat>& formats) {
        Json all = Json::array();
        for (const NumberFormat& format : formats)
          all.push_back(grids.for_hashes() ? fields_of(format) : json_of(format));
        return all;
      });
  r.word("by", choice.by);
}

namespace {

/// The numbers themselves: a format, or a table; "like" starts from another quantizer.
void describe_grid(Record& r, Quantizer& q, const Grids& grids) {
  r.entry(
      "like", q, q.own != nullptr, [&](const JsonValue& v) { return grids.quantizer_named_at(v); },
      [](const Quantizer& like) { return Json(like.own->name); });
  const auto format = r.given("format"), table = r.given("table"), choice = r.given("grid");
  if (format && table) table->refuse("a quantizer has a format or a table. Leave one out.");
  if (choice && (format || table))
    choice->refuse("a quantizer has a format, a table or a choice of grids. Leave one out.");
  if (format || table || choice) q.own = nullptr;
  if (format || choice) q.table.clear();
  if (format || table) q.choice = {};
  if (r.reads() && !format && !table && !choice && !r.given("like"))
    r.whole().refuse("\"format\", \"table\" or \"like\" is missing.");
  const bool chooses = !q.choice.grids.empty();
  format_entry(r, "format", q.grid, !q.own && q.table.empty() && !chooses, grids);
  GridChoice made = q.choice;
  r.part("grid", "a choice of grids", made, chooses, grids);
  if (choice && !made.grids.empty()) q.choice = made, q.grid = made.grids[0];
  r.entry("table", q.table, !q.own && !q.table.empty(), [](const JsonValue& v) {
    std::vector<float> numbers;
    for (const JsonValue& number : v.elements()) numbers.push_back(float(number.number()));
    const Quantizer of_table = Quantizer::of_table(std::move(numbers));
    checked_at(v, [&] { check_quantizer("table", of_table); });
    return of_table.table;
  });
  if (table) q.grid = Quantizer::of_table(q.table).grid;
}

void rounding_entries(Record& r, Quantizer& q) {
  std::vector<Word<Rounding>> words;
  for (int i = 0; i < rounding_count; ++i) words.push_back({name(Rounding(i)), Rounding(i)});
  words.push_back({"away", Rounding::nearest_away});
  const auto drawn = r.given("stochastic");
  if (drawn && !r.given("rounding")) q.rounding = Rounding::stochastic;
  r.word<Rounding>("rounding", q.rounding, std::span<const Word<Rounding>>(words),
                   q.own == nullptr);
  const bool draws = q.rounding == Rounding::stochastic;
  if (!draws && r.reads()) q.random = {};
  if (drawn && r.given("random_bits"))
    drawn->refuse("\"random_bits\" says the same. Leave one out.");
  const bool plain = q.random.variant == StochasticVariant::a;
  r.when(draws, "stochastic rounding", [&] {
    r.integer("random_bits", q.random.bits, 1, 32, draws && plain);
    r.part("stochastic", "a stochastic rounding", q.random, draws && !plain);
  });
  r.word("overflow", q.saturation);
}

}  // namespace

static void describe(Record& r, Quantizer& q, const Grids& grids) {
  r.remark("about");
  describe_grid(r, q, grids);
  rounding_entries(r, q);
  rotation_entry(r, q);
  r.entry("clip", q.clip, q.clip.any(), clip_in,
          [](const Clip& clip) { return Record::write(clip); });
  r.number("average", q.average, q.average > 0);
  scale_entry(r, q, grids);
}

/// An accumulator of a machine, by its name.
static Accumulator accumulator_named(const JsonValue& value) {
  const std::string name = value.text();
  if (const Accumulator* const machine = halftone::accumulator_named(name)) return *machine;
  Words known;
  for (const NamedAccumulator& machine : named_accumulators()) known.push_back(machine.name);
  value.refuse_unknown("accumulator", name, known);
}

static void describe(Record& r, Accumulator& accumulator, const Grids& grids) {
  const auto like = r.given("like");
  if (!like) r.require("format", "\"format\" or \"like\" is missing.");
  r.entry("like", accumulator, false, accumulator_named, [](const Accumulator&) { return Json(); });
  format_entry(r, "format", accumulator.grid, {}, grids);
  r.word("rounding", accumulator.rounding);
  r.integer("chunk", accumulator.chunk, 0, 1 << 30);
  const bool steps = accumulator.fused > 0;
  r.integer("fused", accumulator.fused, 1, 64, steps);
  r.when(accumulator.fused > 0, "sums in steps", [&] {
    r.word("align", accumulator.align);
    const bool cuts = accumulator.align == Align::largest || accumulator.align == Align::scales;
    r.when(cuts, "sums aligned to the largest", [&] {
      r.integer("fraction", accumulator.fraction, 1, 40);
      r.integer("scaled", accumulator.scaled, 1, 64, accumulator.scaled > 0);
    });
    r.when(cuts || accumulator.align == Align::apart, "aligned sums", [&] {
      r.integer("least_exponent", accumulator.least_exponent, -127, 0,
                accumulator.least_exponent != -126);
    });
  });
}

namespace {

/// Refuses names of formats and quantizers that are words of rules.
void require_name(const JsonValue& named) {
  named.require_printable_key();
  if (named.key() == "none" || named.key() == "as_used")
    named.refuse("\"", named.key(), "\" is a word of rules. Choose another name.");
}

/// Refuses formats without a sign bit: tensors have negative numbers.
void require_sign(const JsonValue& value, const Quantizer& quantizer) {
  if (!quantizer.own && quantizer.table.empty() && is_unsigned(quantizer.grid))
    value.refuse(
        described(quantizer.grid),
        " has no sign bit, and tensors have negative numbers. Use it for a scale, or choose "
        "a format with a sign, such as e4m3.");
}

bool signs_differ(const Quantizer& quantizer) {
  return quantizer.hadamard > 0 && !quantizer.draws_signs &&
         quantizer.hadamard_signs != rotation_signs;
}

const Grids to_files, to_hashes = Grids::writer_for_hashes();

}  // namespace

bool is_unsigned(const NumberFormat& format) {
  return format == formats::e8m0 || described(format).starts_with("ue");
}

/// Refuses a name of IEEE P3109 whose numbers are not floats.
static void require_floats(const JsonValue& value, std::string_view name) {
  const auto p3109 = P3109Format::named(name);
  if (p3109 && !p3109->grid())
    value.refuse(name, " has ", p3109->exponent_bits(),
                 " bits of exponent, and values here are f32 numbers, which have 8. Choose a "
                 "precision of at least ",
                 p3109->precision + p3109->exponent_bits() - 8, '.');
}

NumberFormat Grids::format_in(const JsonValue& value) const {
  if (value.is_text()) {
    const std::string name = value.text();
    if (const auto own = formats_.find(name); own != formats_.end()) {
      redefined_.erase("formats/" + name);
      return own->second;
    }
    if (const auto format = number_format_named(name)) return *format;
    require_floats(value, name);
    Words known;
    for (const NamedFormat& format : named_formats()) known.push_back(format.name);
    for (const auto& [own, format] : formats_) known.push_back(own);
    value.refuse_unknown("number format", name, known);
  }
  const NumberFormat format = Record::read(value, "a format", NumberFormat{});
  checked_at(value, [&] { check_format("format", format); });
  return format;
}

void Grids::read_formats(const JsonValue& formats) {
  for (const JsonValue& format : formats.members()) {
    require_name(format);
    const NumberFormat own = format_in(format);
    if (!formats_.emplace(format.key(), own).second)
      formats_[format.key()] = own, redefined_.insert("formats/" + format.key());
  }
}

Quantizer Grids::quantizer_in(const JsonValue& value) const {
  Quantizer quantizer;
  if (value.is_text()) {
    quantizer = quantizer_named_at(value);
  } else {
    quantizer = Record::read(value, "a quantizer", quantizer, *this);
    checked_at(value, [&] { check_quantizer("quantizer", quantizer); });
  }
  require_sign(value.is_object() ? value.find("format").value_or(value) : value, quantizer);
  return quantizer;
}

Accumulator Grids::accumulator_in(const JsonValue& value) const {
  if (value.is_text()) return accumulator_named(value);
  const Accumulator accumulator = Record::read(value, "an accumulator", Accumulator{}, *this);
  if (is_unsigned(accumulator.grid) || accumulator.grid.codes == Codes::p3109_unsigned)
    value.find("format")->refuse(
        described(accumulator.grid),
        " has no sign bit, and sums can be negative. Choose a format with a sign.");
  checked_at(value, [&] { check_accumulator("accumulator", accumulator); });
  return accumulator;
}

Quantizer Grids::quantizer_named_at(const JsonValue& value) const {
  const std::string name = value.text();
  if (const auto own = quantizers_.find(name); own != quantizers_.end()) {
    redefined_.erase("quantizers/" + name);
    return own->second;
  }
  if (const auto own = formats_.find(name); own != formats_.end()) {
    redefined_.erase("formats/" + name);
    return Quantizer{.grid = own->second};
  }
  if (const auto known = halftone::quantizer_named(name)) return *known;
  if (const auto own = own_quantizer_named(name)) return Quantizer{.own = own};
  require_floats(value, name);
  Words known;
  for (const NamedFormat& format : named_formats()) known.push_back(format.name);
  for (const std::string_view ready : ready_made_quantizers()) known.push_back(ready);
  for (const auto& [own, quantizer] : quantizers_) known.push_back(own);
  const std::vector<std::string> added = own_quantizer_names();
  known.insert(known.end(), added.begin(), added.end());
  value.refuse_unknown("quantizer", name, known);
}

/// In the file's order: a quantizer may be like another one before it.
void Grids::read_quantizers(const JsonValue& quantizers) {
  for (const JsonValue& quantizer : quantizers.members()) {
    require_name(quantizer);
    const Quantizer own = quantizer_in(quantizer);
    if (!quantizers_.emplace(quantizer.key(), own).second)
      quantizers_[quantizer.key()] = own, redefined_.insert("quantizers/" + quantizer.key());
  }
}

void Grids::require_used(std::string_view kind, const JsonValue& defined) const {
  for (const JsonValue& each : defined.members())
    if (redefined_.contains(std::string(kind) + '/' + each.key()))
      each.refuse("this has no effect: the rules of the base keep the base's \"", each.key(),
                  "\", and nothing in this file uses the new one. Use it in a rule of this file.");
}

// --- for files

Json json_of(const NumberFormat& format) {
  for (const NamedFormat& known : named_formats())
    if (known.format == format) return std::string(known.name);
  if (const std::string known = described(format); known.starts_with("ue")) return known;
  if (format.codes != Codes::ieee && number_format_named(described(format)))
    return described(format);
  // The fields alone would count a bit of exponent in it.
  if (format.bits >= 3 && format.bits <= 16 && format == NumberFormat::integer(format.bits))
    return "int" + std::to_string(format.bits);
  check_format("policy.write", format);
  if (format != as_read(format))
    fail<UsageError>("policy.write", "no file can say the grid of ", int(format.significand_bits),
                     " significand bits, least exponent ", int(format.min_exponent), " and ",
                     int(format.bits), " bits: a file's grids have as many bits as their sign, ",
                     "exponent and fraction. Set them so, or keep the policy in code.");
  return Record::write(format);
}

Json json_of(const Quantizer& quantizer) {
  if (signs_differ(quantizer))
    fail<UsageError>("policy.write", "no file can say the signs ", quantizer.hadamard_signs,
                     " of a rotation: a file's rotations have their own. Use ", rotation_signs,
                     ", or keep the policy in code.");
  return Record::write(quantizer, to_files);
}

/// Returns JSON, or a word if a rule has no grid.
static Json json_of(const RoleRule& said, Json (*grid_of)(const Quantizer&)) {
  switch (said.kind) {
    case RoleRule::Kind::none: return "none";
    case RoleRule::Kind::as_used: return "as_used";
    case RoleRule::Kind::grid: break;
  }
  return grid_of(said.quantizer);
}
Json json_of(const RoleRule& said) { return json_of(said, json_of); }
Json json_of(const Accumulator& accumulator) {
  for (const NamedAccumulator& machine : named_accumulators())
    if (machine.accumulator == accumulator) return machine.name;
  return Record::write(accumulator, to_files);
}

// --- for hashes

Json content_of(const Quantizer& quantizer) {
  Json json = Record::write(quantizer, to_hashes);
  if (quantizer.own) json["own_hash"] = quantizer.own->hash;
  if (quantizer.hadamard > 0 && !quantizer.draws_signs)
    json["hadamard_signs"] = quantizer.hadamard_signs;
  return json;
}

Json content_of(const RoleRule& said) { return json_of(said, content_of); }
Json content_of(const Accumulator& accumulator) { return Record::write(accumulator, to_hashes); }

// --- for people

std::string told_apart(const Quantizer& quantizer) {
  const NumberFormat& grid = quantizer.grid;
  PlainText more;
  const auto add = [&](const auto&... parts) {
    more << (more.str().empty() ? "" : ", ");
    (more << ... << parts);
  };
  // A name describes a format completely; other grids are described only by their numbers.
  if (!quantizer.table.empty()) {
    PlainText numbers;
    for (const float number : quantizer.table)
      numbers << (numbers.str().empty() ? "" : " ") << number;
    add(numbers.str());
  } else if (!quantizer.own && !number_format_named(described(grid))) {
    if (!grid.infinity) add("no infinity");
    if (!grid.subnormals) add("no subnormals");
  }
  if (quantizer.scaling.per == Scaling::Per::tensor && quantizer.scaling.least > 0)
    add("least ", quantizer.scaling.least);
  if (signs_differ(quantizer)) add("signs ", quantizer.hadamard_signs);
  const std::string text = more.str();
  return described(quantizer) + (text.empty() ? "" : " {" + text + "}");
}

// A map that the whole process shares.

namespace {

struct Added {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const OwnQuantizer>, std::less<>> by_name;
};
Added& added() {
  static Added all;
  return all;
}

}  // namespace

void add_quantizer(OwnQuantizer quantizer) {
  constexpr const char* op = "add_quantizer";
  check_own_quantizer(op, quantizer);
  const std::string name = quantizer.name;
  const std::lock_guard lock(added().mutex);
  if (name == "none" || name == "as_used" || quantizer_named(name) ||
      added().by_name.contains(name))
    fail<UsageError>(op, "the name \"", name, "\" has a meaning already. Choose another name.");
  added().by_name[name] = std::make_shared<const OwnQuantizer>(std::move(quantizer));
}

std::shared_ptr<const OwnQuantizer> own_quantizer_named(std::string_view name) {
  const std::lock_guard lock(added().mutex);
  const auto found = added().by_name.find(name);
  return found == added().by_name.end() ? nullptr : found->second;
}

std::vector<std::string> own_quantizer_names() {
  const std::lock_guard lock(added().mutex);
  std::vector<std::string> names;
  for (const auto& [name, quantizer] : added().by_name) names.push_back(name);
  return names;
}

}  // namespace halftone::policy
