// One forward and backward pass of the workload finds the sites; nothing is trained.
#include "show_command.h"

#include <iostream>

#include <halftone/halftone.h>
#include <halftone/policy/resolved_table.h>

#include "../bench/workloads.h"

namespace ht = halftone;

namespace {
/// A workload under a policy, after its first pass.
class Shown {
 public:
  Shown(const std::string& policy, const std::string& workload)
      : file_(ht::policy::file_of(ht::policy::named_or_loaded(policy))),
        work_((ht::manual_seed(0), bench::make_workload(workload))),
        sgd_(work_.model->parameters(), {.lr = 0}),
        training_(ht::policy::watched(ht::policy::strategy_of(file_)), *work_.model, sgd_) {
    const ht::Tensor loss =
        bench::loss_of(training_.forward(*work_.model, work_.inputs), work_.targets);
    training_.backward(loss);
    session().require_all_rules_used();
  }
  const ht::policy::PolicyFile& file() const { return file_; }
  const ht::amp::Strategy& strategy() const { return training_.strategy(); }
  ht::policy::PolicySession& session() const {
    return dynamic_cast<ht::policy::PolicySession&>(*training_.region().session);
  }

 private:
  ht::policy::PolicyFile file_;
  bench::Workload work_;
  ht::optim::Sgd sgd_;
  ht::amp::Training training_;
};

void warn_of_short_weights(const Shown& shown) {
  if (shown.strategy().weights == ht::f32 || shown.strategy().weights == ht::f64) return;
  for (const ht::policy::Rule& rule : shown.file().rules.rules)
    if (rule.roles.contains(ht::policy::Role::weight)) {
      std::cout << "note: weights are " << shown.strategy().weights
                << " already, so those that a rule quantizes are rounded twice.\n";
      return;
    }
}
}  // namespace

int run_show(const ShowOptions& options) {
  const Shown shown(options.policy, options.workload);
  if (options.json) {
    std::cout << ht::policy::resolved_json(shown.session());
    return 0;
  }
  if (!options.other.empty()) {
    const Shown other(options.other, options.workload);
    const std::string text = ht::policy::resolved_difference(shown.session(), other.session());
    std::cout << (text.empty() ? "no site differs\n" : text);
    return 0;
  }
  std::cout << shown.strategy() << "\npolicy " << ht::policy::hash(shown.file()) << ", on "
            << options.workload << "\n\n"
            << ht::policy::resolved_table(shown.session());
  warn_of_short_weights(shown);
  return 0;
}
