// The rules of a policy file, and the values that rules share with other entries.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <halftone/policy/json_value.h>
#include <halftone/policy/quantizer_json.h>
#include <halftone/policy/rules.h>

namespace halftone::policy {

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
