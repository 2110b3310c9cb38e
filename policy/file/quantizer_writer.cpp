// Writes quantizers as files can express them, and with all fields for hashes.
#include <halftone/policy/file/quantizer_writer.h>

#include <halftone/core/error.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/policy/quantizer_json.h>

namespace halftone::policy {

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

}  // namespace halftone::policy
