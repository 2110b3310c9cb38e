// Rules that are switched on and off by what is measured in training: a rule's `when` names a
// tensor at its sites, a statistic of the tensor's rounding, and a bound. In every `over`-th step
// the tensor is rounded once more and measured; after the step the rule is switched on or off at
// that site. So a step never depends on its own result.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <halftone/amp/rules.h>
#include <halftone/core/formats/survey.h>
#include <halftone/core/named_tensors.h>

namespace halftone::policy {

/// Returns this statistic of a survey (core/formats/survey.h); NaN if nothing was surveyed.
double value_of(Statistic statistic, const Survey& survey);

/// A measurement for the `when` of a rule at a site: which tensor, and the rounding that is tried.
struct Measured {
  int rule;
  Role role;
  Quantizer quantizer;
};

/// The event that a rule was switched on or off at a site; `step` is the first step after it.
struct Switched {
  int64_t step;
  int rule;
  std::string site;
  bool on;
  double value;  // of the statistic, which decided it
};

/// Returns the content of switches.jsonl, one line of JSON per change: {"step": 40, "rule": 1,
/// "site": "fc/linear.0", "on": true, "value": 1.69}.
std::string json_lines(const std::vector<Switched>& switched);

class RuleSwitches {
 public:
  /// Returns whether a rule with this `when` measures its tensors in a step.
  static bool measures(const When& when, int64_t step);
  /// Returns whether the rule is on at the site; false until a measurement has switched it on.
  bool is_on(int rule, const std::string& site) const;
  /// Returns the row of numbers to which a survey of an operand is added, or an undefined tensor if
  /// this operand was surveyed in this pass before (a checkpointed segment runs twice). `pass`: the
  /// number of its batch, then its number within the batch. Sums are added in this order, so that
  /// they do not depend on the number of processes.
  Tensor row_for(int rule, const std::string& site, std::pair<uint64_t, uint64_t> pass, int operand,
                 Device device);
  /// For several processes: seen() returns this process's surveys as text, and hear() takes the
  /// text of one process. Each process hears all of them, including its own.
  std::string seen() const;
  void hear(std::string_view seen);
  /// Decides after step `step` which rules are on. `rules`: all rules, in the order of their
  /// numbers. Returns whether a rule was switched.
  bool end_step(const std::vector<Rule>& rules, int64_t step);
  /// Returns all changes since the start, or since a state was loaded.
  const std::vector<Switched>& log() const { return log_; }

  /// add_to() adds entries "switch.<rule>.<site>": whether the rule is on, and the last value.
  /// load() restores them; it throws UsageError if a rule's number is not below `rules`.
  void add_to(NamedTensors& state) const;
  void load(const NamedTensors& state, std::size_t rules);

 private:
  using Place = std::tuple<int, std::string, std::pair<uint64_t, uint64_t>>;
  struct Row {
    Tensor survey{};
    std::set<int> operands{};
  };
  struct State {
    bool on = false;
    double value = 0;
  };
  std::map<Place, Row> rows_;
  std::map<Place, SurveySums> heard_;
  std::map<std::pair<int, std::string>, State> states_;
  std::vector<Switched> log_;
};

}  // namespace halftone::policy
