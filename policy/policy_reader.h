// Parts of the reader of policy files: words, checks, rules.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/formats/number_format.h>
#include <halftone/core/op_info.h>
#include <halftone/core/update_rules.h>
#include <halftone/policy/json_value.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/quantizer_json.h>
#include <halftone/policy/rules.h>

namespace halftone::policy {

// The words of policy files for the values of enums, in their order.

inline std::vector<std::string_view> cast_class_names() {
  std::vector<std::string_view> names;
  for (int i = 0; i <= int(CastClass::banned); ++i) names.push_back(name(CastClass(i)));
  return names;
}
inline std::vector<std::string_view> form_names() {
  std::vector<std::string_view> names;
  for (std::size_t i = 0; i < WeightForms::size; ++i) names.push_back(name(WeightForm(i)));
  return names;
}
inline std::vector<std::string_view> rounding_names() {
  std::vector<std::string_view> names;
  for (int i = 0; i < rounding_count; ++i) names.push_back(name(Rounding(i)));
  return names;
}

// Checks that the entries of a policy file fit together.

/// Throws FormatError, at the entry in `top`, for contradictory settings of a policy: a form that
/// f32 or f64 weights do not have, autocast of f64 weights, "low" without autocast, and a grid of
/// parameters with a form that stores the rounding error of that grid.
void require_sensible(const JsonValue& top, const PolicyFile& file);

// The rules of a policy file, and the values that rules share with other entries.

/// Reads a rule. `grids`: the formats and quantizers that the file knows. `autocast`: the dtype of
/// "compute": "low". Throws FormatError for other entries, and for grids that the dtype of
/// "compute" does not hold.
Rule rule_in(const JsonValue& value, const QuantizerReader& grids, std::optional<DType> autocast);

/// Reads a name of 1 to 100 printable letters, which messages repeat.
std::string label_in(const JsonValue& value);
/// Reads a dtype, one of `allowed`.
DType dtype_in(const JsonValue& value, std::span<const std::string_view> allowed);
/// Throws FormatError for a text that does not name an operation of the library.
void require_operation(const JsonValue& op);

}  // namespace halftone::policy
