// What the entries of a policy file must be together.
#pragma once

#include <halftone/policy/file/json_value.h>
#include <halftone/policy/file/policy_file.h>

namespace halftone::policy {

/// Throws FormatError, at the place in `top` that says it, for a policy that was read and cannot be
/// meant: a form that f32 or f64 weights do not have, autocast of f64 weights, "low" without
/// autocast, a grid of parameters under a form that keeps what the grid takes away.
void require_sensible(const JsonValue& top, const PolicyFile& file);

}  // namespace halftone::policy
