// The sites that each rule reaches in the steps in which it holds, and those without a rule.
#pragma once

#include <string>

#include <halftone/policy/resolved.h>

namespace halftone::policy {

/// Returns a line per rule, the products that no rule reaches in any step, and warnings. A rule
/// gets a warning if it names layers of a list by number and no rule reaches some of the others.
std::string coverage(const PolicySession& session, const ResolvedRules& resolved);

}  // namespace halftone::policy
