// The end of a step: scales are updated, parameters and states are rounded to their grids, rules
// begin and end. Also the saved state of a session.
#include <algorithm>
#include <bit>
#include <charconv>
#include <set>

#include <halftone/core/captured_step.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/optim/optimizer.h>
#include <halftone/policy/json_value.h>
#include <halftone/policy/session.h>
#include <halftone/policy/treated_op.h>

namespace halftone::policy {

namespace {
struct RuledState {
  const Quantizer* quantizer;
  std::size_t parameter;  // its number
  std::string name;
  Tensor tensor;
};

/// Returns 3 for "state.3.exp_avg".
std::size_t number_of_parameter(std::string_view entry) {
  std::size_t number = 0;
  entry.remove_prefix(std::string_view("state.").size());
  std::from_chars(entry.data(), entry.data() + entry.size(), number);
  return number;
}

/// Returns the entries of an optimizer's state that rules name. Throws for a name that neither this
/// optimizer nor any of optim/ has.
std::vector<RuledState> ruled_states(std::string_view where,
                                     const std::map<std::string, Quantizer>& rules,
                                     const NamedTensors& state) {
  std::set<std::string_view> known{"exp_avg",         "exp_avg_sq", "max_exp_avg_sq",
                                   "momentum_buffer", "square_avg", "grad_avg"};
  std::vector<RuledState> ruled;
  std::set<std::string_view> own;
  for (const auto& [entry, x] : state) {
    if (rules.empty() || !entry.starts_with("state.")) continue;
    const std::string_view name = std::string_view(entry).substr(entry.rfind('.') + 1);
    known.insert(name);
    if (x.numel() > 1) own.insert(name);
    if (const auto rule = rules.find(std::string(name)); rule != rules.end())
      ruled.push_back({&rule->second, number_of_parameter(entry), rule->first, x});
  }
  for (const auto& [name, quantizer] : rules)
    if (!known.contains(name))
      fail_unknown_name(where, "state of an optimizer", name,
                        std::vector(known.begin(), known.end()));
  if (ruled.empty() && !rules.empty() && !own.empty())
    fail<UsageError>(where, "the policy has a grid for the state ", rules.begin()->first,
                     ", and this optimizer has only ", *own.begin(),
                     ". Use the optimizer that the policy is for, or name that state.");
  return ruled;
}
}  // namespace

/// Returns the model's name of an optimizer's parameter; for copies that the model does not have
/// (masters), their number.
std::string PolicySession::name_of(const std::vector<Tensor>& parameters, std::size_t i) const {
  const std::string* name = names_.parameter_of(parameters.at(i));
  return name ? *name : std::to_string(i);
}

/// Rounds a parameter or a state of the optimizer, in place. The random numbers depend on `tensor`,
/// "parameter.fc.weight" or "state.fc.weight.exp_avg".
void PolicySession::put_on_grid(const Quantizer& quantizer, const std::string& tensor,
                                const Tensor& x, const Tensor& skip) const {
  if (!is_floating(x.dtype())) return;
  if (x.dtype() == f64 || !quantizer.exact_in(x.dtype()))
    fail<UsageError>(where_, x.dtype(), " does not hold the grid ", described(quantizer),
                     " for parameters and states. Extend a strategy that keeps them in f32.");
  if (optim::UpdateWatcher* const watcher = optim::watcher_of_updates())
    watcher->rounding(tensor.starts_with("state.")
                          ? std::string_view(tensor).substr(tensor.rfind('.') + 1)
                          : std::string_view(),
                      x, quantizer);
  quantize_in_place(x, {.quantizer = quantizer,
                        .skip = skip.defined() ? skip.to(x.device()) : skip,
                        .key = {site_seed(settings_.seed, tensor), uint64_t(at_->step) << 34},
                        .key_stride = uint64_t(1) << 34});
}

/// Returns the grids of rules; in the same order on all processes.
std::vector<const Quantizer*> PolicySession::grids_from_history() const {
  std::vector<const Quantizer*> grids;
  for (const Rule& rule : matcher_.book().rules)
    for (const auto& [role, said] : rule.roles)
      if (said.quantizer.scaling.from_history) grids.push_back(&said.quantizer);
  return grids;
}

std::string PolicySession::seen() const {
  Json used = Json::array(), scales = Json::array();
  for (std::size_t i = 0; i < matcher_.book().rules.size() && !rules_used_; ++i) {
    if (is_met(i)) used.push_back(place_of(i, {}));
    for (const auto& [role, said] : matcher_.book().rules[i].roles)
      if (is_met(i, role)) used.push_back(place_of(i, role));
  }
  const std::vector<const Quantizer*> grids = grids_from_history();
  for (const auto& [name, quantizer, amax] : scales_->noted()) {
    const auto is_that = [&grid = quantizer](const Quantizer* other) { return *other == grid; };
    scales.push_back(
        {name, std::ranges::find_if(grids, is_that) - grids.begin(), magnitude_bits(amax)});
  }
  return Json{{"met", !entries_.empty()}, {"used", used}, {"scales", scales}}.dump();
}

/// The largest magnitudes of a step are those of all its batches.
void PolicySession::hear(std::span<const std::string> seen_by_all) {
  const std::vector<const Quantizer*> grids = grids_from_history();
  for (const std::string& text : seen_by_all) {
    const Json seen = Json::parse(text);
    if (seen["met"].get<bool>()) used_by_any_.resize(place_of(matcher_.book().rules.size(), {}));
    for (const Json& place : seen["used"]) used_by_any_.at(place.get<std::size_t>()) = true;
    for (const Json& scale : seen["scales"])
      scales_->note({scale[0].get<std::string>(), *grids.at(scale[1].get<std::size_t>()),
                     std::bit_cast<float>(scale[2].get<uint32_t>())});
  }
}

void PolicySession::before_step() {
  if (rules_used_ || matcher_.book().rules.empty()) return;
  if (entries_.empty() && used_by_any_.empty())
    fail<UsageError>(where_,
                     "no operation has met its rules before the first step. Run the model "
                     "inside of training.forward().");
  require_all_rules_used();
  rules_used_ = true;
}

void PolicySession::end_step(optim::Optimizer& optimizer, const Tensor& skip) {
  watched_.clear();
  scales_->end_step();
  const Rulebook& book = matcher_.book();
  const std::vector<Tensor> parameters = optimizer.parameters();
  if (book.parameters)
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].grad().defined())
        put_on_grid(*book.parameters, "parameter." + name_of(parameters, i), parameters[i], skip);
  // Reading names of states also reads step counts, for which the host would have to wait.
  if (!book.states.empty() && recording_step())
    fail<UsageError>(where_,
                     "states of the optimizer go onto grids, which a captured step cannot "
                     "do. Run it uncaptured, or leave \"optimizer\" out of the policy.");
  if (!book.states.empty())
    for (const RuledState& state : ruled_states(where_, book.states, optimizer.state_dict()))
      put_on_grid(*state.quantizer,
                  "state." + name_of(parameters, state.parameter) + '.' + state.name, state.tensor,
                  skip);
  if (recording_step()) {
    if (changes_at_ != std::numeric_limits<int64_t>::max())
      fail<UsageError>(where_, "a rule begins or ends at step ", changes_at_,
                       ", which a captured step cannot follow. Capture after it.");
    repeat_on_replay([at = at_] { ++at->step; });
  }
  ++at_->step;
  if (observer_) observer_->end_step();
  if (at_->step < changes_at_) return;
  follow_rules();
}

void PolicySession::follow_rules() {
  changes_at_ = matcher_.next_change(at_->step);
  for (auto& [key, entry] : entries_) entry.resolved.treatment = treatment_of(entry, at_->step);
}

// --- state

NamedTensors PolicySession::state_dict() const {
  NamedTensors state;
  if (!lists_sites_) return state;
  scales_->add_to(state), averages_->add_to(state);
  const uint64_t pass = next_pass_ == 1 ? at_->pass : at_->pass % passes_of_keys;
  state["step"] = scalar(double(at_->step), i64), state["pass"] = scalar(double(pass), i64);
  state["policy"] = from_span(std::span<const int64_t>(&hash_, 1), {}, i64);
  return state;
}

void PolicySession::load_state_dict(const NamedTensors& state) {
  if (!lists_sites_) return;
  for (const char* entry : {"step", "pass"})
    if (const auto found = state.find(entry);
        found == state.end() || !found->second.defined() || found->second.numel() != 1 ||
        found->second.dtype() != i64 || found->second.item() < 0 || found->second.item() > 0x1p53)
      fail<UsageError>(where_, "the state has no \"", entry,
                       "\" of a policy's session. Load one that was saved under this policy.");
  const auto policy = state.find("policy");  // older states lack this entry
  const bool own = policy == state.end() || !policy->second.defined() ||
                   policy->second.dtype() != i64 ||
                   policy->second.to_vector<int64_t>() == std::vector<int64_t>{hash_};
  scales_->load(own ? state : NamedTensors{}), averages_->load(own ? state : NamedTensors{});
  at_->step = int64_t(state.at("step").item()), at_->pass = uint64_t(state.at("pass").item());
  follow_rules();
}

}  // namespace halftone::policy
