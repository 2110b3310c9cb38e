// What a policy does with a model, site by site: as a table for people, as JSON, as a hash, and
// beside another policy. Every step is in them, not only the present one.
#pragma once

#include <string>
#include <vector>

#include <halftone/policy/session/session.h>

namespace halftone::policy {

/// A line per site, in the order of computation: what the operation asks for, in what it computes,
/// and each role that is not left alone; equal neighbours of a list of layers are one line, and
/// where rules begin or end with steps a site has a line for each. Then the grids of parameters and
/// states, what each rule reaches, and the products that none does.
std::string resolved_table(const PolicySession& session);
/// {"sites": [...], "rules": [...], "parameters": ..., "states": ..., "evaluation": ..., "seed":
/// ..., "hash": "..."}; docs/policy_files.md has the fields.
std::string resolved_json(const PolicySession& session);
/// What the second policy does otherwise than the first, whatever either calls it: by site, then of
/// parameters, states, evaluation and seed; "" if nothing differs.
std::string resolved_difference(const PolicySession& before, const PolicySession& after);
/// The same: {"sites": {name: {"before": ..., "after": ...}}, "parameters": {...}, ...}, without
/// what does not differ; null where a site is not there.
std::string resolved_difference_json(const PolicySession& before, const PolicySession& after);
/// FNV-1a 64 of everything that has an effect on numbers: sites with their treatments, grids of
/// parameters and states, seed; in 16 hexadecimal digits. Names do not count.
std::string resolved_hash(const PolicySession& session);

}  // namespace halftone::policy
