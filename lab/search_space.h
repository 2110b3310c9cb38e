// Which rules a search may add: a list in the language of policy files.
#pragma once

#include <string>
#include <vector>

#include <halftone/lab/workloads/workload.h>
#include <halftone/policy/file/policy_file.h>

namespace halftone::lab {

/// Rules that would change something, on top of `base`, in a workload's pass:
///   ops      one for each kind of operation
///   modules  one for each module that runs operations
///   roles    one for each kind of product and role (of quantizers only)
///   x.json   the rules of a policy file
/// `to`: what they ask for, a word of "compute" (low, bf16, f16, f32) or a format or quantizer
/// (e4m3, mxfp8), which the operands and gradients of products then go through. Where the base has
/// no autocast, results come back in f32, as nobody casts what meets them. Each rule has a name,
/// "layer_norm -> low". Throws UsageError for words that are none, with those that are.
std::vector<policy::Rule> search_space(const std::string& space, const std::string& to,
                                       const policy::PolicyFile& base, const Workload& workload);

}  // namespace halftone::lab
