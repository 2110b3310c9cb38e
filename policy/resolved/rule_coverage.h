// What each rule reaches of a model, in the steps in which it holds, and what no rule does.
#pragma once

#include <string>

#include <halftone/policy/resolved/resolved_rules.h>

namespace halftone::policy {

/// A line per rule, the products that no rule reaches in any step, and a warning for each rule that
/// names layers of a list by number where no rule reaches some of the others.
std::string coverage(const PolicySession& session, const ResolvedRules& resolved);

}  // namespace halftone::policy
