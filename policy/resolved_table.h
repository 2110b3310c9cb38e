// What a policy does with a model, site by site: as a table for people, as JSON, as a hash.
#pragma once

#include <string>
#include <vector>

#include <halftone/policy/session.h>

namespace halftone::policy {

/// A line per site, in the order of computation: what the operation asks for, in what it computes,
/// and each role that is not left alone; equal neighbours of a list of layers are one line. Ends
/// with what each rule reaches, and with the contractions that none does.
std::string resolved_table(const PolicySession& session);
/// {"sites": [...], "rules": [...], "hash": "..."}
std::string resolved_json(const PolicySession& session);
/// Lines of the second policy that differ from the first's, by site; "" if none does.
std::string resolved_difference(const PolicySession& before, const PolicySession& after);
/// FNV-1a 64 of all sites with their treatments, in 16 hexadecimal digits.
std::string resolved_hash(const PolicySession& session);

}  // namespace halftone::policy
