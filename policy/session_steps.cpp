// The end of a step: scales move, parameters and states go onto their grids, rules begin and end.
// And what of a session is saved.
#include <charconv>
#include <set>

#include <halftone/core/captured_step.h>
#include <halftone/core/factory.h>
#include <halftone/core/names.h>
#include <halftone/core/quantized.h>
#include <halftone/optim/update_watch.h>
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

/// 3 of "state.3.exp_avg".
std::size_t number_of_parameter(std::string_view entry) {
  std::size_t number = 0;
  entry.remove_prefix(std::string_view("state.").size());
  std::from_chars(entry.data(), entry.data() + entry.size(), number);
  return number;
}

/// The entries of an optimizer's state that rules name. A name that neither this optimizer nor any
/// of optim/ has is a mistake.
std::vector<RuledState> ruled_states(std::string_view where,
                                     const std::map<std::string, Quantizer>& rules,
                                     const NamedTensors& state) {
  std::set<std::string_view> known{"exp_avg",         "exp_avg_sq", "max_exp_avg_sq",
                                   "momentum_buffer", "square_avg", "grad_avg"};
  std::vector<RuledState> ruled;
  for (const auto& [entry, x] : state) {
    if (rules.empty() || !entry.starts_with("state.")) continue;
    const std::string_view name = std::string_view(entry).substr(entry.rfind('.') + 1);
    known.insert(name);
    if (const auto rule = rules.find(std::string(name)); rule != rules.end())
      ruled.push_back({&rule->second, number_of_parameter(entry), rule->first, x});
  }
  for (const auto& [name, quantizer] : rules)
    if (!known.contains(name))
      fail_unknown_name(where, "state of an optimizer", name,
                        std::vector(known.begin(), known.end()));
  return ruled;
}
}  // namespace

/// A parameter of an optimizer as the model names it; copies that the model does not have (masters)
/// by their number.
std::string PolicySession::name_of(const std::vector<Tensor>& parameters, std::size_t i) const {
  const std::string* name = names_.parameter_of(parameters.at(i));
  return name ? *name : std::to_string(i);
}

/// A parameter or a state of the optimizer, in place; `tensor`, "parameter.fc.weight" or
/// "state.fc.weight.exp_avg", decides on what is drawn for it.
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
  quantize_in_place(x,
                    {.quantizer = quantizer,
                     .skip = skip.defined() ? skip.to(x.device()) : skip,
                     .key = {site_seed(matcher_.book().seed, tensor), uint64_t(at_->step) << 34}});
}

void PolicySession::before_step() {
  if (rules_used_ || matcher_.book().rules.empty()) return;
  if (entries_.empty())
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
  // Names of states come with step counts, which the host would have to read.
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
                       ", which a captured step cannot follow. Capture behind it.");
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
  scales_->add_to(state);
  state["step"] = scalar(double(at_->step), i64), state["pass"] = scalar(double(at_->pass), i64);
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
  scales_->load(state);
  at_->step = int64_t(state.at("step").item()), at_->pass = uint64_t(state.at("pass").item());
  follow_rules();
}

}  // namespace halftone::policy
