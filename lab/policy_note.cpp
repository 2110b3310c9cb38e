// Compares the "for" of policy files with the model of a workload.
#include <halftone/lab/policy_note.h>

#include <algorithm>
#include <ostream>

namespace halftone::lab {

void note_other_model(std::ostream& out, const policy::PolicyFile& policy,
                      const std::string& workload, const std::vector<NamedWorkload>& own) {
  const std::vector<std::string>& meant = policy.meant_for;
  const std::string model = model_of(workload, own);
  if (meant.empty() || std::ranges::find(meant, model) != meant.end()) return;
  out << "note: " << policy.base.name << " is for ";
  for (std::size_t i = 0; i < meant.size(); ++i)
    out << (i == 0 ? "" : i + 1 == meant.size() ? " and " : ", ") << meant[i];
  out << ", and " << workload << " trains ";
  if (model.empty()) out << "a model of its own";
  else out << model;
  out << ". Its rules may mean other layers.\n";
}

void note_noise(std::ostream& out, const std::string& workload,
                const std::vector<NamedWorkload>& own) {
  if (trains_on_noise(workload, own))
    out << "note: " << workload
        << " trains on one batch of noise. Its losses are no evidence for or "
           "against a policy.\n";
}

}  // namespace halftone::lab
