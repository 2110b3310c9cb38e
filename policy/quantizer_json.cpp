// Formats, scales and quantizers as files write them.
#include <halftone/policy/policy_reader.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <vector>

#include <halftone/core/error.h>
#include <halftone/core/formats/block_scale.h>
#include <halftone/core/formats/quantizer.h>

namespace halftone::policy {

namespace {
using Words = std::vector<std::string_view>;

/// Refuses entries without effect: every entry of a file must have one.
void require_default(const JsonValue& value, std::string_view entry, bool is_default,
                     std::string_view whose) {
  if (!is_default)
    value.find(entry)->refuse("this has no effect: it is of ", whose, ". Leave it out.");
}

Scaling tensor_scaling(const JsonValue& value) {
  Scaling scaling = Scaling::per_tensor();
  constexpr std::array<std::string_view, 2> froms{"current", "history"}, takes{"max", "latest"};
  if (const auto from = value.find("from")) scaling.from_history = from->word(froms) == 1;
  if (const auto history = value.find("history"))
    scaling.history = int32_t(history->integer(1, 1 << 20));
  if (const auto take = value.find("take")) scaling.latest = take->word(takes) == 1;
  if (!scaling.from_history) {
    const Scaling usual = Scaling::per_tensor();
    require_default(value, "history", scaling.history == usual.history, "scales from history");
    require_default(value, "take", !scaling.latest, "scales from history");
  }
  if (const auto margin = value.find("margin")) scaling.margin = int32_t(margin->integer(0, 100));
  if (const auto on = value.find("power_of_two")) scaling.power_of_two = on->boolean();
  if (const auto least = value.find("least")) scaling.least = float(least->number());
  return scaling;
}

constexpr std::array<Rounding, 3> scale_roundings{Rounding::nearest_even, Rounding::up,
                                                  Rounding::stochastic};
constexpr std::array<std::string_view, 3> scale_rounding_words{"nearest", "up", "stochastic"};

/// Reads {"from": [numbers], "by": an error}.
void read_choice(const JsonValue& value, Scaling& scaling) {
  constexpr std::array<std::string_view, 2> known{"from", "by"};
  constexpr std::array<std::string_view, 3> errors{"mse", "mae", "max"};
  value.only("a choice", known);
  const auto from = value.find("from");
  if (!from) value.refuse("\"from\", a list of numbers of the grid, is missing.");
  const std::vector<JsonValue> targets = from->elements();
  if (targets.empty() || targets.size() > std::size_t(Scaling::most_targets))
    from->refuse("a block chooses from 1 to ", Scaling::most_targets, " numbers, got ",
                 targets.size(), '.');
  for (std::size_t i = 0; i < targets.size(); ++i) {
    scaling.targets[i] = float(targets[i].number());
    if (!(scaling.targets[i] > 0)) targets[i].refuse("a number of a choice must be positive.");
    if (std::find(scaling.targets.begin(), scaling.targets.begin() + std::ptrdiff_t(i),
                  scaling.targets[i]) != scaling.targets.begin() + std::ptrdiff_t(i))
      targets[i].refuse("this has no effect: the choice has ", scaling.targets[i],
                        " twice. Leave it out.");
  }
  const auto by = value.find("by");
  if (by) scaling.error = *scale_error_named(errors[by->word(errors)]);
  if (targets.size() == 1)
    require_default(value, "by", scaling.error == ScaleError::mse, "choices of several numbers");
  else if (!by) value.refuse("\"by\": \"mse\", \"mae\" or \"max\" is missing.");
}

/// Reads "mse": the block tries scales that put its largest magnitude at 0.75 to 2 times the grid's
/// largest number (powers of two: 1 and 2 times), and takes the one with the least squared error.
void read_fit(const JsonValue& value, const JsonValue& whole, float max, Scaling& scaling) {
  constexpr std::array<std::string_view, 1> errors{"mse"};
  value.word(errors);
  if (whole.find("choose"))
    value.refuse("\"choose\" says which scales a block tries. Leave one out.");
  require_default(whole, "rule", scaling.rule == ScaleRule::floor, "scales without \"fit\"");
  if (!std::isfinite(2 * max))
    value.refuse(
        "a fit tries twice the format's largest number, ", max,
        ", which is above f32's range. Leave it out: a block of such a format needs no scale.");
  const bool powers = scaling.scale_format == formats::e8m0;
  const std::vector<float> factors =
      powers ? std::vector<float>{1, 2}
             : std::vector<float>{1, 0.75f, 0.875f, 1.125f, 1.25f, 1.5f, 1.75f, 2};
  for (std::size_t i = 0; i < factors.size(); ++i) scaling.targets[i] = max * factors[i];
  scaling.error = ScaleError::mse;
}

/// Refuses names of formats and quantizers that are words of rules.
void require_name(const JsonValue& named) {
  named.require_printable_key();
  if (named.key() == "none" || named.key() == "as_used")
    named.refuse("\"", named.key(), "\" is a word of rules. Choose another name.");
}

Quantizer table_in(const JsonValue& value) {
  std::vector<float> numbers;
  for (const JsonValue& number : value.elements()) numbers.push_back(float(number.number()));
  const Quantizer quantizer = Quantizer::of_table(std::move(numbers));
  checked_at(value, [&] { check_quantizer("table", quantizer); });
  return quantizer;
}

/// Reads a size, or {"size": 16, "signs": "fixed" or "step"}.
void read_rotation(const JsonValue& value, Quantizer& quantizer) {
  constexpr std::array<std::string_view, 2> known{"size", "signs"}, kinds{"fixed", "step"};
  quantizer.draws_signs = false;
  if (value.is_object()) {
    value.only("a rotation", known);
    const auto size = value.find("size");
    if (!size) value.refuse("\"size\" is missing.");
    quantizer.hadamard = int32_t(size->integer(2, Rotation::largest));
    if (const auto signs = value.find("signs")) quantizer.draws_signs = signs->word(kinds) == 1;
  } else {
    quantizer.hadamard = int32_t(value.integer(0, Rotation::largest));
  }
  const bool fixed = quantizer.hadamard > 0 && !quantizer.draws_signs;
  quantizer.hadamard_signs = fixed ? rotation_signs : 0;
}

}  // namespace

std::string_view scale_rounding_word(Rounding rounding) {
  return scale_rounding_words[std::size_t(std::ranges::find(scale_roundings, rounding) -
                                          scale_roundings.begin())];
}

bool is_unsigned(const NumberFormat& format) {
  return format == formats::e8m0 || described(format).starts_with("ue");
}

Scaling QuantizerReader::block_scaling(const JsonValue& value, float max) const {
  Scaling scaling{.per = Scaling::Per::block};
  if (const auto block = value.find("block")) {
    const std::vector<JsonValue> sizes = block->elements();
    if (sizes.size() != 2) block->refuse("a block is [rows, columns].");
    scaling.rows = int32_t(sizes[0].integer(1, 1 << 20));
    scaling.columns = int32_t(sizes[1].integer(1, 1 << 20));
  }
  constexpr std::array<std::string_view, 4> rules{"floor", "ceil", "rceil", "even"};
  if (const auto format = value.find("format")) scaling.scale_format = format_in(*format);
  if (const auto rule = value.find("rule"))
    scaling.rule = *scale_rule_named(rules[rule->word(rules)]);
  if (scaling.scale_format != formats::e8m0)
    require_default(value, "rule", scaling.rule == ScaleRule::floor, "e8m0 scales");
  if (const auto on = value.find("tensor_level")) scaling.tensor_level = on->boolean();
  constexpr std::array<std::string_view, 3> outers{"none", "tensor", "row"};
  if (const auto outer = value.find("outer")) {
    if (value.find("tensor_level"))
      outer->refuse("\"tensor_level\" says the same for a tensor. Leave one out.");
    const std::size_t level = outer->word(outers);
    scaling.tensor_level = level == 1, scaling.row_level = level == 2;
  }
  if (const auto largest = value.find("scale_max")) {
    scaling.scale_max = float(largest->number());
    if (scaling.scale_max == scaling.scale_format.max) scaling.scale_max = 0;
    require_default(value, "scale_max",
                    scaling.tensor_level || scaling.row_level || scaling.scale_max == 0,
                    "scales under one of the tensor or row");
  }
  if (const auto choice = value.find("choose")) read_choice(*choice, scaling);
  if (const auto fit = value.find("fit")) read_fit(*fit, value, max, scaling);
  if (const auto rounding = value.find("rounding"))
    scaling.scale_rounding = scale_roundings[rounding->word(scale_rounding_words)];
  constexpr std::array<std::string_view, 2> corrections{"none", "eden"};
  if (const auto correct = value.find("correct"))
    scaling.corrected = correct->word(corrections) == 1;
  return scaling;
}

Scaling QuantizerReader::scaling_in(const JsonValue& value, float max) const {
  if (value.is_text()) {
    constexpr std::array<std::string_view, 1> none{"none"};
    value.word(none);
    return {};
  }
  constexpr std::array<std::string_view, 17> known{
      "per",          "from",     "history", "take", "margin", "power_of_two",
      "least",        "block",    "format",  "rule", "outer",  "scale_max",
      "tensor_level", "rounding", "choose",  "fit",  "correct"};
  value.only("a scale", known);
  constexpr std::array<std::string_view, 2> pers{"tensor", "block"};
  const auto per = value.find("per");
  if (!per) value.refuse("\"per\": \"tensor\" or \"block\" is missing.");
  const bool of_tensor = per->word(pers) == 0;
  for (const std::string_view entry : known)
    if (const bool tensors = entry == "from" || entry == "history" || entry == "take" ||
                             entry == "margin" || entry == "power_of_two" || entry == "least";
        entry != "per" && tensors != of_tensor && value.find(entry))
      value.find(entry)->refuse("this is of scales per ", tensors ? "tensor" : "block", '.');
  return of_tensor ? tensor_scaling(value) : block_scaling(value, max);
}

NumberFormat QuantizerReader::format_in(const JsonValue& value) const {
  if (value.is_text()) {
    const std::string name = value.text();
    if (const auto own = formats_.find(name); own != formats_.end()) {
      redefined_.erase("formats/" + name);
      return own->second;
    }
    if (const auto format = number_format_named(name)) return *format;
    Words known;
    for (const NamedFormat& format : named_formats()) known.push_back(format.name);
    for (const auto& [own, format] : formats_) known.push_back(own);
    value.refuse_unknown("number format", name, known);
  }
  constexpr std::array<std::string_view, 5> known{"exponent", "fraction", "max", "infinity",
                                                  "subnormals"};
  value.only("a format", known);
  const auto exponent = value.find("exponent"), fraction = value.find("fraction");
  if (!exponent || !fraction) value.refuse("\"exponent\" and \"fraction\" must both be there.");
  NumberFormat format =
      NumberFormat::ieee_like(int(exponent->integer(2, 8)), int(fraction->integer(0, 23)));
  if (const auto max = value.find("max")) format.max = float(max->number());
  if (const auto on = value.find("infinity")) format.infinity = on->boolean();
  if (const auto on = value.find("subnormals")) format.subnormals = on->boolean();
  checked_at(value, [&] { check_format("format", format); });
  return format;
}

void QuantizerReader::read_formats(const JsonValue& formats) {
  for (const JsonValue& format : formats.members()) {
    require_name(format);
    const NumberFormat own = format_in(format);
    if (!formats_.emplace(format.key(), own).second)
      formats_[format.key()] = own, redefined_.insert("formats/" + format.key());
  }
}

/// "none" removes the clip of "like".
static Clip clip_in(const JsonValue& value) {
  Clip clip;
  if (value.is_text()) {
    constexpr std::array<std::string_view, 1> words{"none"};
    value.word(words);
    return clip;
  }
  constexpr std::array<std::string_view, 2> known{"rms", "quantile"};
  value.only("a clip", known);
  if (const auto rms = value.find("rms")) clip.rms = rms->number();
  if (const auto quantile = value.find("quantile")) clip.quantile = quantile->number();
  if (!clip.any()) value.refuse("\"rms\" or \"quantile\" is missing.");
  checked_at(value, [&] { check_clip("clip", clip); });
  // No number is above the largest one, and one of 2^40 numbers is at most 2^20 root mean squares.
  if (clip.quantile == 1.0 || clip.rms > 0x1p20)
    value.refuse("this has no effect: it clips no number. Leave it out, or choose less, such as ",
                 clip.rms ? "4." : "0.999.");
  return clip;
}

/// Refuses formats without a sign bit: tensors have negative numbers.
static void require_sign(const JsonValue& value, const Quantizer& quantizer) {
  if (!quantizer.own && quantizer.table.empty() && is_unsigned(quantizer.grid))
    value.refuse(
        described(quantizer.grid),
        " has no sign bit, and tensors have negative numbers. Use it for a scale, or choose "
        "a format with a sign, such as e4m3.");
}

Quantizer QuantizerReader::quantizer_in(const JsonValue& value) const {
  if (value.is_text()) {
    const Quantizer quantizer = quantizer_named_at(value);
    require_sign(value, quantizer);
    return quantizer;
  }
  constexpr std::array<std::string_view, 10> known{"about",    "like",        "format",   "table",
                                                   "rounding", "random_bits", "hadamard", "clip",
                                                   "average",  "scale"};
  value.only("a quantizer", known);
  Quantizer quantizer;
  const auto like = value.find("like");
  if (like) quantizer = quantizer_named_at(*like);
  const auto format = value.find("format"), table = value.find("table");
  if (format && table) table->refuse("a quantizer has a format or a table. Leave one out.");
  if (format || table) quantizer.own = nullptr;
  if (format) quantizer.grid = format_in(*format), quantizer.table.clear();
  else if (table) {
    Quantizer of_table = table_in(*table);
    quantizer.grid = of_table.grid, quantizer.table = std::move(of_table.table);
  } else if (!like) value.refuse("\"format\", \"table\" or \"like\" is missing.");
  if (const auto rounding = value.find("rounding")) {
    const Words roundings = rounding_names();
    quantizer.rounding = *rounding_named(roundings[rounding->word(roundings)]);
  }
  if (const auto bits = value.find("random_bits"))
    quantizer.random_bits = int32_t(bits->integer(1, 32));
  if (quantizer.rounding != Rounding::stochastic) {
    const bool inherited = !value.find("random_bits");
    require_default(value, "random_bits", inherited || quantizer.random_bits == 32,
                    "stochastic rounding");
    quantizer.random_bits = 32;
  }
  if (const auto hadamard = value.find("hadamard")) read_rotation(*hadamard, quantizer);
  if (const auto clip = value.find("clip")) quantizer.clip = clip_in(*clip);
  if (const auto average = value.find("average")) quantizer.average = average->number();
  if (const auto scale = value.find("scale"))
    quantizer.scaling = scaling_in(*scale, quantizer.grid.max);
  checked_at(value, [&] { check_quantizer("quantizer", quantizer); });
  require_sign(format ? *format : value, quantizer);
  return quantizer;
}

Quantizer QuantizerReader::quantizer_named_at(const JsonValue& value) const {
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
  Words known;
  for (const NamedFormat& format : named_formats()) known.push_back(format.name);
  for (const std::string_view ready : ready_made_quantizers()) known.push_back(ready);
  for (const auto& [own, quantizer] : quantizers_) known.push_back(own);
  const std::vector<std::string> added = own_quantizer_names();
  known.insert(known.end(), added.begin(), added.end());
  value.refuse_unknown("quantizer", name, known);
}

/// In the file's order: a quantizer may be like another one before it.
void QuantizerReader::read_quantizers(const JsonValue& quantizers) {
  for (const JsonValue& quantizer : quantizers.members()) {
    require_name(quantizer);
    const Quantizer own = quantizer_in(quantizer);
    if (!quantizers_.emplace(quantizer.key(), own).second)
      quantizers_[quantizer.key()] = own, redefined_.insert("quantizers/" + quantizer.key());
  }
}

void QuantizerReader::require_used(std::string_view kind, const JsonValue& defined) const {
  for (const JsonValue& each : defined.members())
    if (redefined_.contains(std::string(kind) + '/' + each.key()))
      each.refuse("this has no effect: the rules of the base keep the base's \"", each.key(),
                  "\", and nothing in this file uses the new one. Use it in a rule of this file.");
}

// Writes quantizers as files can express them, and with all fields for hashes.

namespace {

/// Returns the exponent bits of an IEEE-like format with that least exponent; 8 if there are none.
int exponent_bits_of(const NumberFormat& format) {
  int bits = 2;
  while (bits < 8 && 2 - (1 << (bits - 1)) != format.min_exponent) ++bits;
  return bits;
}

/// Returns the format that a file would make from its exponent and fraction.
NumberFormat as_read(const NumberFormat& format) {
  NumberFormat read =
      NumberFormat::ieee_like(exponent_bits_of(format), format.significand_bits - 1);
  read.max = format.max, read.infinity = format.infinity, read.subnormals = format.subnormals;
  return read;
}

Json fields_of(const NumberFormat& format) {
  return {{"significand_bits", format.significand_bits},
          {"min_exponent", format.min_exponent},
          {"max", format.max},
          {"subnormals", format.subnormals},
          {"infinity", format.infinity}};
}

bool signs_differ(const Quantizer& quantizer) {
  return quantizer.hadamard > 0 && !quantizer.draws_signs &&
         quantizer.hadamard_signs != rotation_signs;
}

/// `format_of` writes the format of scales.
template <class FormatOf> Json json_of(const Scaling& scaling, const FormatOf& format_of) {
  switch (scaling.per) {
    case Scaling::Per::none: break;
    case Scaling::Per::tensor: {
      Json json{{"per", "tensor"}, {"from", scaling.from_history ? "history" : "current"}};
      if (scaling.from_history)
        json["history"] = scaling.history, json["take"] = scaling.latest ? "latest" : "max";
      json["margin"] = scaling.margin, json["power_of_two"] = scaling.power_of_two;
      json["least"] = scaling.least;
      return json;
    }
    case Scaling::Per::block: {
      Json json{{"per", "block"},
                {"block", Json::array({scaling.rows, scaling.columns})},
                {"format", format_of(scaling.scale_format)},
                {"rule", name(scaling.rule)},
                {"tensor_level", scaling.tensor_level}};
      if (scaling.row_level) json.erase("tensor_level"), json["outer"] = "row";
      if (scaling.scale_max != 0) json["scale_max"] = scaling.scale_max;
      if (scaling.scale_rounding != Rounding::nearest_even)
        json["rounding"] = scale_rounding_word(scaling.scale_rounding);
      if (scaling.corrected) json["correct"] = "eden";
      const auto count = std::size_t(scaling.target_count());
      if (count > 0)
        json["choose"]["from"] =
            std::vector(scaling.targets.begin(), scaling.targets.begin() + std::ptrdiff_t(count));
      if (count > 1) json["choose"]["by"] = name(scaling.error);
      return json;
    }
  }
  return "none";
}

template <class FormatOf> Json json_of(const Quantizer& quantizer, const FormatOf& format_of) {
  Json json;
  if (quantizer.own) json["like"] = quantizer.own->name;
  else if (quantizer.table.empty()) json["format"] = format_of(quantizer.grid);
  else json["table"] = quantizer.table;
  if (!quantizer.own) json["rounding"] = name(quantizer.rounding);
  if (quantizer.rounding == Rounding::stochastic) json["random_bits"] = quantizer.random_bits;
  if (quantizer.hadamard > 0 && !quantizer.draws_signs) json["hadamard"] = quantizer.hadamard;
  if (quantizer.hadamard > 0 && quantizer.draws_signs)
    json["hadamard"] = {{"size", quantizer.hadamard}, {"signs", "step"}};
  if (quantizer.clip.rms) json["clip"]["rms"] = *quantizer.clip.rms;
  if (quantizer.clip.quantile) json["clip"]["quantile"] = *quantizer.clip.quantile;
  if (quantizer.average > 0) json["average"] = quantizer.average;
  if (!quantizer.own) json["scale"] = json_of(quantizer.scaling, format_of);
  return json;
}

/// Returns JSON, or a word if a rule has no grid.
template <class GridOf> Json json_of(const RoleRule& said, const GridOf& grid_of) {
  switch (said.kind) {
    case RoleRule::Kind::none: return "none";
    case RoleRule::Kind::as_used: return "as_used";
    case RoleRule::Kind::grid: break;
  }
  return grid_of(said.quantizer);
}

template <class FormatOf> Json json_of(const Accumulator& accumulator, const FormatOf& format_of) {
  return {{"format", format_of(accumulator.grid)},
          {"rounding", name(accumulator.rounding)},
          {"chunk", accumulator.chunk}};
}

}  // namespace

// --- for files

Json json_of(const NumberFormat& format) {
  for (const NamedFormat& known : named_formats())
    if (known.format == format) return std::string(known.name);
  if (const std::string known = described(format); known.starts_with("ue")) return known;
  // The fields alone would count a bit of exponent in it.
  if (format.bits >= 3 && format.bits <= 16 && format == NumberFormat::integer(format.bits))
    return "int" + std::to_string(format.bits);
  check_format("policy.write", format);
  if (format != as_read(format))
    fail<UsageError>("policy.write", "no file can say the grid of ", int(format.significand_bits),
                     " significand bits, least exponent ", int(format.min_exponent), " and ",
                     int(format.bits), " bits: a file's grids have the bias and the bits of their ",
                     "exponent. Use one of those, or keep the policy in code.");
  return {{"exponent", exponent_bits_of(format)},
          {"fraction", format.significand_bits - 1},
          {"max", format.max},
          {"infinity", format.infinity},
          {"subnormals", format.subnormals}};
}

Json json_of(const Quantizer& quantizer) {
  if (signs_differ(quantizer))
    fail<UsageError>("policy.write", "no file can say the signs ", quantizer.hadamard_signs,
                     " of a rotation: a file's rotations have their own. Use ", rotation_signs,
                     ", or keep the policy in code.");
  return json_of(quantizer, [](const NumberFormat& format) { return json_of(format); });
}

Json json_of(const RoleRule& said) {
  return json_of(said, [](const Quantizer& quantizer) { return json_of(quantizer); });
}

Json json_of(const Accumulator& accumulator) {
  return json_of(accumulator, [](const NumberFormat& format) { return json_of(format); });
}

// --- for hashes

Json content_of(const Quantizer& quantizer) {
  Json json = json_of(quantizer, fields_of);
  if (quantizer.own) json["own_hash"] = quantizer.own->hash;
  if (quantizer.hadamard > 0 && !quantizer.draws_signs)
    json["hadamard_signs"] = quantizer.hadamard_signs;
  return json;
}

Json content_of(const RoleRule& said) {
  return json_of(said, [](const Quantizer& quantizer) { return content_of(quantizer); });
}

Json content_of(const Accumulator& accumulator) { return json_of(accumulator, fields_of); }

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
