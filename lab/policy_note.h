// A note if a policy runs on a model that it was not made for.
#pragma once

#include <iosfwd>
#include <string>

#include <halftone/lab/workload.h>
#include <halftone/policy/policy_file.h>

namespace halftone::lab {

/// Writes a line if the policy's "for" names models and the workload's model is not among them or
/// has no name.
void note_other_model(std::ostream& out, const policy::PolicyFile& policy,
                      const std::string& workload, const std::vector<NamedWorkload>& own);

/// Writes a line if the workload trains on noise, where losses of policies say little.
void note_noise(std::ostream& out, const std::string& workload,
                const std::vector<NamedWorkload>& own);

}  // namespace halftone::lab
