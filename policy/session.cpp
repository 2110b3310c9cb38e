// Sites, treatments, passes and steps.
#include <halftone/policy/session.h>

#include <algorithm>
#include <set>

#include <halftone/autograd/grad_mode.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/factory.h>
#include <halftone/core/names.h>
#include <halftone/core/quantized.h>
#include <halftone/optim/update_watch.h>
#include <halftone/policy/treated_op.h>

namespace halftone::policy {

namespace {
/// Operations that must not run twice, and with them operands of their own for backward.
bool runs_once(std::string_view op) {
  return op == "batch_norm" || op == "batch_norm_relu" || op == "checkpoint";
}
double flops_of(std::string_view op, std::span<const Tensor> inputs) {
  if (inputs.size() < 2 || !inputs[0].defined() || !inputs[1].defined()) return 0;
  const Tensor &x = inputs[0], &w = inputs[1];
  if (op == "linear") return 2 * double(x.numel()) * double(w.size(0));
  if (op == "matmul" && x.rank() > 1 && w.rank() > 1)
    return 2 * double(std::max(x.numel() * w.size(-1), w.numel() * x.size(-2)));
  if (op == "conv2d" && x.rank() == 4)
    return 2 * double(w.numel()) * double(x.size(0) * x.size(2) * x.size(3));
  return 0;
}
/// Evaluations draw the same numbers each time, which no training pass has.
constexpr uint64_t evaluation_pass = (uint64_t(1) << 30) - 1;

bool has_accumulator(std::string_view op) { return op == "matmul" || op == "linear"; }
}  // namespace

std::size_t PolicySession::HashKey::operator()(const Key& key) const {
  std::size_t hash = std::hash<const void*>{}(key.owner);
  hash = hash * 31 + std::hash<const void*>{}(key.label);
  hash = hash * 31 + std::hash<const void*>{}(key.op);
  return hash * 31 + std::size_t(key.ordinal);
}

PolicySession::PolicySession(std::string_view where, nn::Module& model,
                             std::shared_ptr<const Rulebook> rules)
    : where_(where),
      names_(model),
      matcher_(where, std::move(rules), names_.paths()),
      changes_at_(matcher_.next_change(0)) {
  if (matcher_.book().parameters)
    for (const Tensor& x : model.parameters()) put_on_grid(*matcher_.book().parameters, "start", x);
}

std::shared_ptr<PolicySession> PolicySession::for_observers(nn::Module& model) {
  auto session = std::make_shared<PolicySession>("observer", model, std::make_shared<Rulebook>());
  session->lists_sites_ = false;
  return session;
}

std::shared_ptr<Observer> PolicySession::observe(std::shared_ptr<Observer> observer) {
  watched_.clear();
  return std::exchange(observer_, std::move(observer));
}

bool PolicySession::watches(uint64_t pass) const {
  // A checkpointed segment computes twice: without gradients first, and then as its graph has it.
  return observer_ && grad_enabled() && std::ranges::find(watched_, pass) != watched_.end();
}

std::shared_ptr<void> PolicySession::repeat_last_pass() {
  const uint64_t pass = at_->pass--;
  repeats_ = true;
  return {this,
          [pass](PolicySession* session) { session->at_->pass = pass, session->repeats_ = false; }};
}

uint64_t PolicySession::begin_pass() {
  if (!lists_sites_ && !observer_) return 0;
  names_.refresh();
  if (!grad_enabled()) return evaluation_pass;
  if (recording_step()) repeat_on_replay([at = at_] { ++at->pass; });
  const uint64_t pass = ++at_->pass;
  if (observer_ && observer_->begin_pass(at_->step)) watched_.push_back(pass);
  return pass;
}

bool PolicySession::rests() const { return !matcher_.book().in_evaluation && !grad_enabled(); }

PolicySession::Entry PolicySession::made(const OpInfo& op, std::span<const Tensor> inputs,
                                         const CallScope* scope, int ordinal) const {
  Entry entry{.resolved = {}, .op = &op, .seed = 0, .name = {}};
  ResolvedSite& resolved = entry.resolved;
  resolved.asks = op.cast_class;
  resolved.site = {
      .path = names_.path_of(scope), .op = op.name, .ordinal = ordinal, .parameter = {}};
  for (const Tensor& x : inputs) {
    const std::string* parameter = names_.parameter_of(x);
    const bool floats = x.defined() && is_floating(x.dtype());
    Role role = Role::input;
    if (parameter && floats) role = parameter->ends_with("bias") ? Role::bias : Role::weight;
    if (role == Role::weight && resolved.site.parameter.empty())
      resolved.site.parameter = *parameter;
    resolved.roles.push_back(role);
  }
  resolved.flops = flops_of(op.name, inputs);
  entry.name = name(resolved.site);
  entry.seed = site_seed(matcher_.book().seed, entry.name);
  resolved.treatment = checked(entry);
  return entry;
}

/// The treatment of this step, which the operation must be able to follow.
std::shared_ptr<const Treatment> PolicySession::checked(const Entry& entry) const {
  const ResolvedSite& resolved = entry.resolved;
  auto treatment =
      std::make_shared<Treatment>(matcher_.treatment(resolved.site, *entry.op, at_->step));
  if (treatment->backward_differs() && runs_once(entry.op->name))
    fail<UsageError>(where_, entry.name, ": ", entry.op->name,
                     " cannot be computed twice, so \"input.backward\" is not possible here. "
                     "Leave it out of the rule, or except this place.");
  if (treatment->accumulate && !has_accumulator(entry.op->name))
    fail<UsageError>(where_, entry.name, ": ", entry.op->name,
                     " has no emulated accumulator. linear and matmul do.");
  return treatment;
}

PolicySession::Entry& PolicySession::entry_for(const OpInfo& op, std::span<const Tensor> inputs) {
  const CallScope* scope = CallScope::innermost();
  const int ordinal = scope ? scope->next_ordinal(op) : 0;
  const Key key{scope ? scope->owner() : nullptr, scope ? scope->label().data() : nullptr, &op,
                ordinal};
  if (const auto known = entries_.find(key); known != entries_.end()) return known->second;
  order_.push_back(key);
  return entries_.emplace(key, made(op, inputs, scope, ordinal)).first->second;
}

PolicySession::Decision PolicySession::decide(const OpInfo& op, std::span<const Tensor> inputs) {
  current_ = nullptr;
  if (rests() || (!lists_sites_ && watched_.empty())) return {};
  current_ = &entry_for(op, inputs);
  const Treatment& treatment = *current_->resolved.treatment;
  Decision decision{.result = treatment.result, .accumulate = treatment.accumulate};
  if (!treatment.compute) return decision;
  switch (*treatment.compute) {
    case Compute::low: decision.cast_class = CastClass::low_precision; break;
    case Compute::f32: decision.cast_class = CastClass::full_precision; break;
    case Compute::bf16:
      decision.cast_class = CastClass::low_precision, decision.dtype = bf16;
      break;
    case Compute::f16: decision.cast_class = CastClass::low_precision, decision.dtype = f16; break;
    case Compute::widest: decision.cast_class = CastClass::widest_input; break;
    case Compute::as_is: decision.cast_class = CastClass::as_is; break;
    case Compute::refuse: decision.cast_class = CastClass::banned; break;
  }
  return decision;
}

std::shared_ptr<OpTap> PolicySession::tap(std::span<const Tensor> before,
                                          std::span<const Tensor> after, uint64_t pass) {
  if (!current_) return nullptr;
  ResolvedSite& resolved = current_->resolved;
  if (resolved.operands.empty())
    for (const Tensor& x : after)
      resolved.operands.push_back(x.defined() ? std::optional(x.dtype()) : std::nullopt);
  for (std::size_t i = 0; i < after.size(); ++i)
    if (after[i].defined() && before[i].body() != after[i].body())
      names_.enter(before[i], after[i]);
  const Treatment& treatment = *resolved.treatment;
  const auto is_f64 = [](const Tensor& x) { return x.defined() && x.dtype() == f64; };
  if ((treatment.quantizes() || treatment.accumulate) && std::ranges::any_of(after, is_f64))
    fail<UsageError>(where_, current_->name,
                     ": its operands are f64, in which nothing is emulated. "
                     "Extend a strategy with f32 weights, or except this place.");
  const bool watched = watches(pass);
  if (!treatment.quantizes() && !watched) return nullptr;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const Role role = i < resolved.roles.size() ? resolved.roles[i] : Role::input;
    const Quantizer* quantizer = treatment.quantizer(role);
    if (!quantizer || !after[i].defined() || !is_floating(after[i].dtype())) continue;
    if (!quantizer->exact_in(after[i].dtype()))
      fail<UsageError>(
          where_, current_->name, ": the grid of \"", name(role), "\" is ", described(*quantizer),
          ", which ", after[i].dtype(),
          " does not hold exactly. Add \"compute\": \"f32\", or a power-of-two scale.");
  }
  return make_treated_op(
      {.treatment = resolved.treatment,
       .site = current_->name,
       .op = resolved.site.op,
       .roles = resolved.roles,
       .scales = scales_,
       .seed = current_->seed,
       .offset = pass << 34,
       .notes = grad_enabled() && !repeats_,
       .observer = watched ? observer_ : nullptr,
       .before = watched ? std::vector(before.begin(), before.end()) : std::vector<Tensor>{}});
}

// --- steps

namespace {
struct RuledState {
  const Quantizer* quantizer;
  std::string entry;
  Tensor tensor;
};

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
      ruled.push_back({&rule->second, entry, x});
  }
  for (const auto& [name, quantizer] : rules)
    if (!known.contains(name))
      fail_unknown_name(where, "state of an optimizer", name,
                        std::vector(known.begin(), known.end()));
  return ruled;
}
}  // namespace

/// A parameter or a state of the optimizer, in place; `tensor`, "parameter.0" or
/// "state.0.exp_avg", decides on what is drawn for it.
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

void PolicySession::end_step(optim::Optimizer& optimizer, const Tensor& skip) {
  watched_.clear();
  scales_->end_step();
  const Rulebook& book = matcher_.book();
  if (book.parameters) {
    const std::vector<Tensor> parameters = optimizer.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].grad().defined())
        put_on_grid(*book.parameters, "parameter." + std::to_string(i), parameters[i], skip);
  }
  // Names of states come with step counts, which the host would have to read.
  if (!book.states.empty() && recording_step())
    fail<UsageError>(where_,
                     "states of the optimizer go onto grids, which a captured step cannot "
                     "do. Run it uncaptured, or leave \"optimizer\" out of the policy.");
  if (!book.states.empty())
    for (const RuledState& state : ruled_states(where_, book.states, optimizer.state_dict()))
      put_on_grid(*state.quantizer, state.entry, state.tensor, skip);
  if (recording_step()) {
    if (changes_at_ != std::numeric_limits<int64_t>::max())
      fail<UsageError>(where_, "a rule begins or ends at step ", changes_at_,
                       ", which a captured step cannot follow. Capture behind it.");
    repeat_on_replay([at = at_] { ++at->step; });
  }
  ++at_->step;
  if (observer_) observer_->end_step();
  if (at_->step < changes_at_) return;
  changes_at_ = matcher_.next_change(at_->step);
  for (auto& [key, entry] : entries_) entry.resolved.treatment = checked(entry);
}

std::vector<ResolvedSite> PolicySession::resolved() const {
  std::vector<ResolvedSite> sites;
  for (const Key& key : order_) sites.push_back(entries_.at(key).resolved);
  return sites;
}

void PolicySession::require_all_rules_used() const {
  const std::vector<Rule>& rules = matcher_.book().rules;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const auto used = [&](const auto& entry) {
      return matcher_.matches(i, entry.second.resolved.site, *entry.second.op);
    };
    if (rules[i].optional || std::ranges::any_of(entries_, used)) continue;
    std::vector<std::string> paths;
    for (const auto& [key, entry] : entries_) paths.push_back(entry.resolved.site.path);
    std::ranges::sort(paths);
    fail<UsageError>(where_, "rule ", i, " (\"", rules[i].name,
                     "\") matches nothing in this model: no operation that it is for has a path "
                     "like \"",
                     rules[i].match.path, "\". The nearest is \"",
                     nearest_path(rules[i].match.path, paths),
                     "\". Mark it \"optional\" if that is meant.");
  }
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
  changes_at_ = matcher_.next_change(at_->step);
  for (auto& [key, entry] : entries_) entry.resolved.treatment = checked(entry);
}

}  // namespace halftone::policy
