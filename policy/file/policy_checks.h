// Checks that the entries of a policy file fit together.
#pragma once

#include <halftone/policy/json_value.h>
#include <halftone/policy/policy_file.h>

namespace halftone::policy {

/// Throws FormatError, at the entry in `top`, for contradictory settings of a policy: a form that
/// f32 or f64 weights do not have, autocast of f64 weights, "low" without autocast, and a grid of
/// parameters with a form that stores the rounding error of that grid.
void require_sensible(const JsonValue& top, const PolicyFile& file);

}  // namespace halftone::policy
