// The rules that a search may add, in the language of policy files.
#pragma once

#include <string>
#include <vector>

#include <halftone/lab/workload.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/session.h>

namespace halftone::lab {

/// Returns the sites that one pass of the workload's example meets under a policy, in the order of
/// computation.
std::vector<policy::ResolvedSite> sites_of(const policy::PolicyFile& base,
                                           const Workload& workload);

/// Returns the rules that would change something, on top of `base`, in a workload's pass:
///   ops      one for each kind of operation
///   modules  one for each module that runs operations
///   roles    one for each kind of product and role (only quantizers)
///   x.json   the rules of a policy file
/// `to` is the dtype or grid that the rules request: a word of "compute" (low, bf16, f16, f32), or
/// a format or quantizer (e4m3, mxfp8) for the operands and gradients of products. If the base has
/// no autocast, results return to f32, because no region casts the next operands. Each rule has a
/// name, "layer_norm -> low". Throws UsageError for unknown words and lists the known ones.
std::vector<policy::Rule> search_space(const std::string& space, const std::string& to,
                                       const policy::PolicyFile& base, const Workload& workload);
/// The same for sites that are known.
std::vector<policy::Rule> search_space(const std::string& space, const std::string& to,
                                       const policy::PolicyFile& base,
                                       const std::vector<policy::ResolvedSite>& sites);

}  // namespace halftone::lab
