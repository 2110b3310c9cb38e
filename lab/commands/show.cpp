// Finds the sites by one forward and backward pass of the workload; nothing is trained.
#include <halftone/lab/commands/show.h>

#include <iomanip>
#include <iostream>
#include <map>
#include <sstream>

#include <halftone/amp/cast_policy.h>
#include <halftone/amp/training.h>
#include <halftone/lab/commands/flags.h>
#include <halftone/lab/policy_note.h>
#include <halftone/policy/json_value.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/resolved.h>

namespace halftone::lab {

namespace {
/// A workload under a policy, after its first pass.
class Shown {
 public:
  Shown(const std::string& policy, Workload workload)
      : file_(policy::named_or_read(policy)),
        work_(std::move(workload)),
        optimizer_(optimizer_of(work_)),
        training_(policy::watched_strategy_of(file_), *work_.model, *optimizer_) {
    training_.backward(loss_of(work_, training_, example_of(work_)));
    session().require_all_rules_used();
    // A step finds states that the optimizer does not have.
    if (!file_.rules.states.empty()) training_.step();
  }
  const policy::PolicyFile& file() const { return file_; }
  const amp::Strategy& strategy() const { return training_.strategy(); }
  policy::PolicySession& session() const { return policy::session_of(training_); }

 private:
  policy::PolicyFile file_;
  Workload work_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  amp::Training training_;
};

void warn_of_short_weights(const Shown& shown) {
  if (shown.strategy().weights == f32 || shown.strategy().weights == f64) return;
  for (const policy::Rule& rule : shown.file().rules.rules)
    if (rule.roles.contains(policy::Role::weight)) {
      std::cout << "note: weights are " << shown.strategy().weights
                << " already, so those that a rule quantizes are rounded twice.\n";
      return;
    }
}
/// Returns weights, autocast and loss scale in a line without the strategy's name. The wire format
/// is left out because it is among the rules.
std::string line_of(amp::Strategy strategy) {
  strategy.name = "strategy", strategy.wire = {};
  std::ostringstream text;
  text << strategy;
  return text.str();
}
void print_difference(const Shown& shown, const Shown& other, const std::string& json) {
  const std::string before = line_of(shown.strategy()), after = line_of(other.strategy());
  if (!json.empty()) {
    policy::Json all =
        policy::Json::parse(policy::resolved_difference_json(shown.session(), other.session()));
    if (before != after) all["strategy"] = {{"before", before}, {"after", after}};
    write_json(json, all.dump(2) + '\n');
  }
  if (json == "-") return;
  std::string text = policy::resolved_difference(shown.session(), other.session());
  if (before != after) text += "- " + before + "\n+ " + after + '\n';
  std::cout << (text.empty() ? "no site differs, and nothing else does\n" : text);
}
/// Prints the cast class of each operation in the pass, and the reason.
void print_reasons(const policy::PolicySession& session) {
  std::map<std::string, CastClass> met;
  std::size_t longest = 0;
  for (const policy::ResolvedSite& site : session.resolved()) {
    met.emplace(site.site.op, site.asks);
    longest = std::max(longest, site.site.op.size());
  }
  std::cout << "\nwhy, by what operations ask for\n";
  for (const auto& [op, asks] : met) {
    const OpInfo* info = amp::CastPolicy::info(op);
    const std::string_view why = info ? info->reason : "";
    std::cout << "  " << std::left << std::setw(int(longest) + 2) << op << std::setw(15)
              << name(asks) << ' ' << (why.empty() ? "as its author says" : why) << '\n';
  }
}
}  // namespace

int run_show(const ShowOptions& options, const std::vector<NamedWorkload>& own) {
  require_json(options.json);
  const Shown shown(options.policy, make_workload(options.workload, 0, own));
  note_other_model(std::cerr, shown.file(), options.workload, own);
  if (!options.other.empty()) {
    const Shown other(options.other, make_workload(options.workload, 0, own));
    note_other_model(std::cerr, other.file(), options.workload, own);
    print_difference(shown, other, options.json);
    return 0;
  }
  write_json(options.json, policy::resolved_json(shown.session()));
  if (options.json == "-") return 0;
  std::cout << shown.strategy() << "\npolicy " << policy::hash(shown.file()) << ", on "
            << options.workload << "\n\n"
            << policy::resolved_table(shown.session());
  warn_of_short_weights(shown);
  print_reasons(shown.session());
  return 0;
}

Work add_show(CLI::App& app, const Context& context) {
  auto options = std::make_shared<ShowOptions>();
  options->workload = context.workload;
  add_policy(app, options->policy);
  add_workload(app, options->workload, context);
  app.add_option("--diff", options->other, "another policy: prints only its differences");
  add_json(app, options->json);
  return [options, &context] { return run_show(*options, context.own); };
}

}  // namespace halftone::lab
