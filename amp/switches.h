// Rules that begin and end by what the run shows: a rule's `when` names a tensor of its sites and a
// bound of a statistic of its rounding. In every `over`-th step the tensor is rounded once more and
// surveyed; after the step the rule is on at that site, or off. So a step never depends on its own
// result.
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

/// Returns the statistic; NaN of a survey without numbers.
double value_of(Statistic statistic, const Survey& survey);

/// A tensor of a site that a rule's condition measures, and the rounding whose effect counts.
struct Measured {
  int rule;
  Role role;
  Quantizer quantizer;
};

/// A change of a rule at a site, from step `step` on.
struct Switched {
  int64_t step;
  int rule;
  std::string site;
  bool on;
  double value;  // that decided it
};

/// Returns a line of JSON for each: {"step": 40, "rule": 1, "site": "fc/linear.0", "on": true,
/// "value": 1.69}. The content of switches.jsonl.
std::string json_lines(const std::vector<Switched>& switched);

class RuleSwitches {
 public:
  /// Returns whether the tensors of a rule are surveyed in a step.
  static bool measures(const When& when, int64_t step);
  bool is_on(int rule, const std::string& site) const;
  /// Returns the row for a survey of an operand, or an undefined tensor if this operand was
  /// surveyed in this pass before (a checkpointed segment runs twice). pass: its batch, then its
  /// number in the batch: sums are added in this order, so that they do not depend on the number of
  /// processes.
  Tensor row_for(int rule, const std::string& site, std::pair<uint64_t, uint64_t> pass, int operand,
                 Device device);
  /// For several processes: the surveys of this one, and those of each.
  std::string seen() const;
  void hear(std::string_view seen);
  /// Decides after a step which rules are on; `rules` as the numbers count them. Returns whether
  /// one changed.
  bool end_step(const std::vector<Rule>& rules, int64_t step);
  /// Returns all changes since the start, or since a state was loaded.
  const std::vector<Switched>& log() const { return log_; }

  /// Adds "switch.<rule>.<site>": whether it is on, and the last value. load() throws UsageError
  /// for entries of other rules.
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
