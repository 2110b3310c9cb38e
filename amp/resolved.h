// The effect of a policy on a model, as data: for the tables of `halftone-lab show` and for checks
// before a training.
#pragma once

#include <string>

#include <halftone/amp/session.h>

namespace halftone::policy {

// The effect of a policy on a model, site by site: as a table for people, as JSON, as a hash, and
// compared with another policy. These functions cover every step, not only the present one.

/// Returns one line per site, in the order of computation: the cast class it asks for, the dtype it
/// computes in, and each role with a rule. Equal neighbors in a list of layers share one line. If
/// rules begin or end with steps, a site has a line for each range. Then follow the grids of
/// parameters and states, the sites that each rule reaches, and the products without a rule.
std::string resolved_table(const Session& session);
/// Returns {"sites": [...], "rules": [...], "parameters": ..., "states": ..., "evaluation": ...,
/// "seed": ..., "hash": "..."}; docs/policy_files.md has the fields.
std::string resolved_json(const Session& session);
/// Returns the differences of the second policy's effect from the first's, ignoring names: by site,
/// then parameters, states, evaluation and seed; "" if nothing differs.
std::string resolved_difference(const Session& before, const Session& after);
/// Returns resolved_difference() as JSON: {"sites": {name: {"before": ..., "after": ...}},
/// "parameters": {...}, ...}, only with differences; null for a site that one of the sessions
/// lacks.
std::string resolved_difference_json(const Session& before, const Session& after);
/// Returns a hash of everything that has an effect on numbers, except names: sites with their
/// treatments, grids of parameters and states, seed. FNV-1a, 64 bits, as 16 hexadecimal digits.
std::string resolved_hash(const Session& session);

}  // namespace halftone::policy
