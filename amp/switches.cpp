// Rules that begin and end by what the run shows.
#include <halftone/amp/switches.h>

#include <bit>
#include <charconv>
#include <cmath>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/survey.h>
#include <halftone/core/json_value.h>
#include <halftone/core/memory.h>

namespace halftone::policy {

double value_of(Statistic statistic, const Survey& survey) {
  switch (statistic) {
    case Statistic::norm_to_noise: return survey.norm_to_noise();
    case Statistic::saturated: return survey.saturation();
    case Statistic::underflow: return survey.underflow();
    case Statistic::bias_t: return survey.bias_t();
    case Statistic::sqnr_db: break;
  }
  return survey.sqnr();
}

std::string json_lines(const std::vector<Switched>& switched) {
  std::string lines;
  for (const Switched& s : switched)
    lines +=
        Json{{"step", s.step}, {"rule", s.rule}, {"site", s.site}, {"on", s.on}, {"value", s.value}}
            .dump() +
        '\n';
  return lines;
}

bool RuleSwitches::measures(const When& when, int64_t step) { return (step + 1) % when.over == 0; }

bool RuleSwitches::is_on(int rule, const std::string& site) const {
  const auto found = states_.find({rule, site});
  return found != states_.end() && found->second.on;
}

Tensor RuleSwitches::row_for(int rule, const std::string& site, std::pair<uint64_t, uint64_t> pass,
                             int operand, Device device) {
  const MemoryScope scope(MemoryUse::workspace);
  Row& row = rows_[{rule, site, pass}];
  if (!row.operands.insert(operand).second) return {};
  if (!row.survey.defined()) row.survey = new_survey_row(device);
  return row.survey;
}

std::string RuleSwitches::seen() const {
  Json all = Json::array();
  for (const auto& [place, row] : rows_) {
    const auto& [rule, site, pass] = place;
    SurveySums sums = Survey::from(row.survey).sums;
    Json numbers = Json::array();
    each_sum([&](const char*, SumKind, double x) { numbers.push_back(std::bit_cast<uint64_t>(x)); },
             sums);
    all.push_back({rule, site, pass.first, pass.second, numbers});
  }
  return all.dump();
}

void RuleSwitches::hear(std::string_view seen) {
  for (const Json& row : Json::parse(seen)) {
    SurveySums sums;
    std::size_t at = 0;
    each_sum([&](const char*, SumKind,
                 double& x) { x = std::bit_cast<double>(row.at(4).at(at++).get<uint64_t>()); },
             sums);
    heard_[{row.at(0).get<int>(),
            row.at(1).get<std::string>(),
            {row.at(2).get<uint64_t>(), row.at(3).get<uint64_t>()}}] = sums;
  }
}

bool RuleSwitches::end_step(const std::vector<Rule>& rules, int64_t step) {
  std::map<Place, SurveySums> sums = std::move(heard_);
  heard_.clear();
  if (sums.empty())
    for (const auto& [place, row] : rows_) sums[place] = Survey::from(row.survey).sums;
  rows_.clear();
  // The passes of a rule at a site are neighbors, in the order of their batches.
  bool changed = false;
  for (auto row = sums.begin(); row != sums.end();) {
    const auto [rule, site, pass] = row->first;
    Survey survey;
    for (; row != sums.end() && std::get<0>(row->first) == rule && std::get<1>(row->first) == site;
         ++row)
      survey.sums.merge(row->second);
    const When& when = *rules.at(std::size_t(rule)).match.when;
    const double value = value_of(when.statistic, survey);
    if (std::isnan(value)) continue;
    State& state = states_[{rule, site}];
    const bool holds = when.below ? value < when.bound : value > when.bound;
    const bool on = holds || (when.stays && state.on);
    state.value = value;
    if (on == state.on) continue;
    state.on = on, changed = true;
    log_.push_back({step + 1, rule, site, on, value});
  }
  return changed;
}

void RuleSwitches::add_to(NamedTensors& state) const {
  for (const auto& [place, one] : states_) {
    const double numbers[]{one.on ? 1.0 : 0.0, one.value};
    state["switch." + std::to_string(place.first) + '.' + place.second] =
        from_span(std::span<const double>(numbers), {2}, f64);
  }
}

void RuleSwitches::load(const NamedTensors& state, std::size_t rules) {
  constexpr std::string_view prefix = "switch.";
  std::map<std::pair<int, std::string>, State> loaded;
  for (const auto& [name, x] : state) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view rest = std::string_view(name).substr(prefix.size());
    const std::size_t dot = rest.find('.');
    std::size_t rule = rules;
    if (dot != rest.npos) std::from_chars(rest.data(), rest.data() + dot, rule);
    if (rule >= rules || !x.defined() || x.dtype() != f64 || x.numel() != 2)
      fail<UsageError>(
          "policy.load_state_dict", "the entry ", in_quotes(name), " is ", described(x),
          ", which is no switch of this policy. Load a state that was saved under it.");
    const std::vector<double> numbers = x.to_vector<double>();
    loaded[{int(rule), std::string(rest.substr(dot + 1))}] = {numbers[0] != 0, numbers[1]};
  }
  states_ = std::move(loaded), rows_.clear(), heard_.clear(), log_.clear();
}

}  // namespace halftone::policy
