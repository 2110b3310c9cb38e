// Checks the cells of a sweep before the first training.
#include <algorithm>
#include <map>
#include <set>

#include <halftone/core/error.h>
#include <halftone/lab/commands/flags.h>
#include <halftone/lab/sweep.h>
#include <halftone/policy/policy_file.h>

namespace halftone::lab {

namespace {

void require(const CLI::Validator& check, const std::string& option, const std::string& value) {
  if (const std::string mistake = check(value); !mistake.empty())
    fail<UsageError>("sweep", option, ": ", printable(mistake), ". Change this value.");
}

void require_one_of(std::span<const std::string_view> names, std::string_view kind,
                    const std::string& value) {
  if (std::ranges::find(names, value) == names.end())
    fail_unknown_name("sweep", kind, value, names);
}

/// Throws what `run` would throw for the option.
void require_option(const std::string& option, const std::string& value,
                    const std::vector<NamedWorkload>& own) {
  if (option == "--lr") require(positive_number(), option, value);
  else if (option == "--steps") require(whole_number(1, most_steps), option, value);
  else if (option == "--optimizer") require_one_of(optimizer_names(), "optimizer", value);
  else if (option == "--schedule") require_one_of(schedule_names(), "schedule", value);
  else if (option == "--from") static_cast<void>(trained_state(value));
  else if (!workload_named(value, own)) static_cast<void>(make_workload(value, 0, own));
}

/// Returns a text that is equal for cells that train the same: the options, and the policy without
/// its name and remarks.
std::string training_of(const Cell& cell, policy::PolicyFile file) {
  file.base.name = "cell", file.about.clear(), file.meant_for.clear();
  std::string text = policy::hash(file);
  for (const auto& [option, value] : cell.options) text += '\n' + option + ' ' + value;
  return text + '\n';
}

}  // namespace

void require_options(const RunOptions& run, const std::vector<Cell>& cells,
                     const std::vector<NamedWorkload>& own) {
  std::set<std::pair<std::string, std::string>> options{{"--workload", run.workload},
                                                        {"--steps", std::to_string(run.steps)},
                                                        {"--optimizer", run.choices.optimizer},
                                                        {"--schedule", run.choices.schedule},
                                                        {"--from", run.choices.from.string()}};
  std::erase_if(options, [](const auto& option) {
    return option.second.empty() && option.first != "--workload";
  });
  for (const Cell& cell : cells) options.insert(cell.options.begin(), cell.options.end());
  for (const auto& [option, value] : options) require_option(option, value, own);
}

void require_effects(const std::vector<Axis>& axes, const std::vector<Cell>& cells,
                     const std::vector<policy::PolicyFile>& policies) {
  std::vector<std::string> trainings;
  for (std::size_t c = 0; c < cells.size(); ++c)
    trainings.push_back(training_of(cells[c], policies[c]));
  for (std::size_t i = 0; i < axes.size(); ++i) {
    std::vector<std::string> of_value(axes[i].values.size());
    for (std::size_t c = 0; c < cells.size(); ++c) of_value[cells[c].places[i]] += trainings[c];
    std::map<std::string, std::string> seen;
    for (std::size_t v = 0; v < of_value.size(); ++v) {
      const auto [other, is_new] = seen.emplace(std::move(of_value[v]), axes[i].values[v]);
      if (!is_new)
        fail<UsageError>("sweep", "the axis ", in_quotes(axes[i].name),
                         " has no effect: the values ", shortened(other->second, 80), " and ",
                         shortened(axes[i].values[v], 80),
                         " give the same policy. Name a field that the policy uses.");
    }
  }
}

}  // namespace halftone::lab
