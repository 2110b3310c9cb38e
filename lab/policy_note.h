// A word to people who run a policy on a model that it is not for.
#pragma once

#include <iosfwd>
#include <string>

#include <halftone/lab/workloads/workload.h>
#include <halftone/policy/file/policy_file.h>

namespace halftone::lab {

/// A line where a policy says "for" which models it is and the workload's is none of them, or none
/// that has a name.
void note_other_model(std::ostream& out, const policy::PolicyFile& policy,
                      const std::string& workload, const std::vector<NamedWorkload>& own);

}  // namespace halftone::lab
