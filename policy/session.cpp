// Sites, treatments and passes; steps are in session_steps.cpp.
#include <halftone/policy/session.h>

#include <algorithm>

#include <halftone/amp/cast_policy.h>
#include <halftone/amp/training.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/error.h>
#include <halftone/policy/file/fingerprint.h>
#include <halftone/policy/treated_op.h>

namespace halftone::policy {

namespace {
double flops_of(const OpInfo& op, std::span<const Tensor> inputs) {
  const bool whole = inputs.size() >= 2 && inputs[0].defined() && inputs[1].defined();
  return op.flops && whole ? op.flops(inputs) : 0;
}
/// Evaluations draw the same numbers each time, which differ from those of all training passes.
constexpr uint64_t evaluation_pass = (uint64_t(1) << 30) - 1;

}  // namespace

std::size_t PolicySession::HashKey::operator()(const Key& key) const {
  std::size_t hash = std::hash<const void*>{}(key.owner);
  hash = hash * 31 + std::hash<const void*>{}(key.label);
  hash = hash * 31 + std::hash<const void*>{}(key.op);
  hash = hash * 31 + std::hash<const void*>{}(key.module);
  return hash * 31 + std::size_t(key.ordinal);
}

PolicySession::PolicySession(std::string_view where, nn::Module& model,
                             std::shared_ptr<const Rulebook> rules, Settings settings)
    : where_(where),
      settings_(std::move(settings)),
      hash_(int64_t(Fingerprint().add(settings_.hash).value())),
      names_(model),
      matcher_(where, std::move(rules), names_.paths()),
      scales_(std::make_shared<TensorScales>()),
      averages_(std::make_shared<WeightAverages>()),
      at_(std::make_shared<Position>()),
      changes_at_(matcher_.next_change(0)) {
  if (matcher_.book().parameters)
    for (const auto& [name, x] : model.named_parameters())
      put_on_grid(*matcher_.book().parameters, "start." + name, x);
}

std::shared_ptr<PolicySession> PolicySession::for_observers(nn::Module& model, int64_t steps) {
  auto session =
      std::make_shared<PolicySession>("observer", model, std::make_shared<Rulebook>(), Settings{});
  session->lists_sites_ = false, session->at_->step = steps;
  return session;
}

std::shared_ptr<Observer> PolicySession::observe(std::shared_ptr<Observer> observer) {
  watched_.clear();
  return std::exchange(observer_, std::move(observer));
}

bool PolicySession::watches(uint64_t pass) const {
  // A checkpointed segment computes twice: first without gradients, then with them.
  return observer_ && grad_enabled() && std::ranges::find(watched_, pass) != watched_.end();
}

std::shared_ptr<void> PolicySession::repeat_last_pass() {
  const uint64_t pass = std::exchange(at_->pass, at_->last_pass - next_pass_);
  repeats_ = true;
  return {this,
          [pass](PolicySession* session) { session->at_->pass = pass, session->repeats_ = false; }};
}

uint64_t PolicySession::begin_pass() {
  if (!lists_sites_ && !observer_) return 0;
  names_.refresh();
  if (!grad_enabled()) return evaluation_pass;
  if (recording_step())
    repeat_on_replay([at = at_, by = next_pass_] { at->last_pass = at->pass += by; });
  const uint64_t pass = at_->last_pass = at_->pass += next_pass_;
  if (observer_ && observer_->begin_pass(at_->step)) watched_.push_back(pass);
  return pass;
}

/// Numbers the passes of a batch: the first has the number of the batch, and the others differ by
/// passes_of_keys, which random keys do not count, so they draw from other seeds.
void PolicySession::begin_batch(int64_t number) {
  next_pass_ = passes_of_keys;
  at_->pass = uint64_t(number) + 1 - next_pass_;
}

/// Returns whether rules have no effect in a pass. A training pass may run parts without gradients
/// (a checkpointed segment, a frozen part), so this depends on the whole pass.
bool PolicySession::rests(uint64_t pass) const {
  return !matcher_.book().in_evaluation && pass == evaluation_pass;
}

std::vector<Role> PolicySession::roles_of(std::span<const Tensor> inputs) const {
  std::vector<Role> roles;
  for (const Tensor& x : inputs) {
    const std::string* parameter = names_.parameter_of(x);
    const bool floats = x.defined() && is_floating(x.dtype());
    if (!parameter || !floats) roles.push_back(Role::input);
    else roles.push_back(parameter->ends_with("bias") ? Role::bias : Role::weight);
  }
  return roles;
}

PolicySession::Entry PolicySession::made(const OpInfo& op, std::span<const Tensor> inputs,
                                         const CallScope* scope, int ordinal) const {
  Entry entry{.resolved = {}, .op = &op, .seed = 0, .name = {}};
  ResolvedSite& resolved = entry.resolved;
  resolved.asks = op.cast_class;
  resolved.site = {
      .path = names_.path_of(scope), .op = op.name, .ordinal = ordinal, .parameter = {}};
  resolved.roles = roles_of(inputs);
  for (std::size_t i = inputs.size(); i-- > 0;)
    if (resolved.roles[i] == Role::weight)
      resolved.site.parameter = *names_.parameter_of(inputs[i]);
  resolved.flops = flops_of(op, inputs);
  entry.name = name(resolved.site);
  entry.seed = site_seed(settings_.seed, entry.name);
  require_possible(entry), require_operands(entry);
  resolved.treatment = treatment_of(entry, at_->step);
  return entry;
}

std::shared_ptr<const Treatment> PolicySession::treatment_of(const Entry& entry,
                                                             int64_t step) const {
  return std::make_shared<Treatment>(matcher_.treatment(entry.resolved.site, *entry.op, step));
}

/// Checks that the operation can follow its rules, in this step and in all later ones: a mistake is
/// reported when a site is first met, not when its rule begins.
void PolicySession::require_possible(const Entry& entry) const {
  constexpr int64_t never = std::numeric_limits<int64_t>::max();
  for (int64_t step = at_->step; step != never; step = matcher_.next_change(step)) {
    const auto treatment = treatment_of(entry, step);
    if (treatment->backward_differs() && entry.op->once)
      fail<UsageError>(
          where_,
          matcher_.last_about(*treatment, {Role::input_backward, Role::weight_backward,
                                           Role::input_0_backward, Role::input_1_backward}),
          " at ", entry.name, ": ", entry.op->name,
          " cannot be computed twice, so \"input.backward\" is not possible here. "
          "Leave it out of the rule, or except this place.");
    if (treatment->accumulate && !entry.op->accumulator)
      fail<UsageError>(where_, entry.name, ": ", entry.op->name, " has no emulated accumulator. ",
                       amp::CastPolicy::operations_with(&OpFacts::accumulator), " do.");
    if (treatment->compute != Compute::tf32) continue;
    if (!entry.op->tf32)
      fail<UsageError>(where_, entry.name, ": ", entry.op->name, " has no products in TF32. ",
                       amp::CastPolicy::operations_with(&OpFacts::tf32), " do.");
    if (treatment->accumulate)
      fail<UsageError>(where_, entry.name,
                       ": an accumulator is emulated, and its factors are f32. Use \"compute\": "
                       "\"f32\".");
  }
}

/// Checks that the operation has the operands that its rules name.
void PolicySession::require_operands(const Entry& entry) const {
  const std::vector<Rule>& rules = matcher_.book().rules;
  const std::size_t inputs = entry.resolved.roles.size();
  for (std::size_t i = 0; i < rules.size(); ++i)
    for (const auto& [role, said] : rules[i].roles)
      if (operand_of(role).value_or(0) >= std::max<std::size_t>(inputs, 1) &&
          matcher_.matches(i, entry.resolved.site, *entry.op))
        fail<UsageError>(where_, "rule ", i, " (\"", rules[i].name, "\") at ", entry.name, ": ",
                         entry.op->name, " has one input, so \"", policy::name(role),
                         "\" is not possible here. Name the operations in \"match\", or except "
                         "this place.");
}

/// Checks that the device has TF32: a model may move from a GPU to a CPU between two passes.
void PolicySession::require_tf32(const Entry& entry, std::span<const Tensor> inputs) const {
  if (!inputs.empty() && inputs[0].defined() && inputs[0].device().kind == DeviceKind::cpu)
    fail<UsageError>(where_, entry.name, ": ", inputs[0].device(),
                     " has no TF32. Use a CUDA device, or the policy tf32.json, which rounds "
                     "operands to the same numbers on any.");
}

/// Checks that operands, their gradients, and the final result hold their grids. treated_op.cpp
/// checks the result before its cast, because it sees that dtype.
void PolicySession::require_exact(const Entry& entry, std::span<const Tensor> operands) const {
  const ResolvedSite& resolved = entry.resolved;
  const Treatment& treatment = *resolved.treatment;
  const auto require = [&](Role role, DType dtype, std::size_t operand = 0) {
    const Quantizer* quantizer = treatment.quantizer(role, operand);
    if (quantizer && is_floating(dtype) && !quantizer->exact_in(dtype))
      fail_inexact(where_, entry.name, role, *quantizer, dtype);
  };
  for (std::size_t i = 0; i < operands.size() && i < resolved.roles.size(); ++i) {
    if (!operands[i].defined()) continue;
    const DType dtype = operands[i].dtype();
    const Role role = resolved.roles[i];
    require(role, dtype, i);
    if (role == Role::input)
      require(Role::input_backward, dtype, i), require(Role::grad_input, dtype);
    if (role == Role::weight) require(Role::weight_backward, dtype);
    if (role != Role::input) require(Role::grad_weight, dtype);
  }
  if (treatment.result) require(Role::output, *treatment.result);
}

PolicySession::Entry& PolicySession::entry_for(const OpInfo& op, std::span<const Tensor> inputs) {
  const CallScope* scope = CallScope::innermost();
  const int ordinal = scope ? scope->next_ordinal(op) : 0;
  const Key key{names_.module_of(scope), scope ? scope->owner() : nullptr,
                scope ? scope->label().data() : nullptr, &op, ordinal};
  if (const auto known = entries_.find(key); known != entries_.end()) return known->second;
  Entry& entry = entries_.emplace(key, made(op, inputs, scope, ordinal)).first->second;
  order_.push_back(key);
  return entry;
}

PolicySession::Decision PolicySession::decide(const OpInfo& op, std::span<const Tensor> inputs,
                                              uint64_t pass) {
  current_ = nullptr;
  if (rests(pass) || (!lists_sites_ && watched_.empty())) return {};
  current_ = &entry_for(op, inputs);
  const Treatment& treatment = *current_->resolved.treatment;
  Decision decision{.result = treatment.result, .accumulate = treatment.accumulate};
  if (!treatment.compute) return decision;
  switch (*treatment.compute) {
    case Compute::low: decision.cast_class = CastClass::low_precision; break;
    case Compute::f32: decision.cast_class = CastClass::full_precision; break;
    case Compute::tf32:
      decision.cast_class = CastClass::full_precision, decision.tf32 = true;
      require_tf32(*current_, inputs);
      break;
    case Compute::bf16:
      decision.cast_class = CastClass::low_precision, decision.dtype = bf16;
      break;
    case Compute::f16: decision.cast_class = CastClass::low_precision, decision.dtype = f16; break;
    case Compute::widest: decision.cast_class = CastClass::widest_input; break;
    case Compute::as_is: decision.cast_class = CastClass::as_is; break;
    case Compute::refuse:
      fail<UsageError>(where_, current_->name, ": a rule refuses ", op.name,
                       " here. Change the model, or except this place.");
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
  const bool of_f32 =
      treatment.quantizes() || treatment.accumulate || treatment.compute == Compute::tf32;
  if (of_f32 && std::ranges::any_of(after, is_f64))
    fail<UsageError>(where_, current_->name,
                     ": its operands are f64, in which nothing is emulated. "
                     "Extend a strategy with f32 weights, or except this place.");
  const bool watched = watches(pass);
  if (!treatment.quantizes() && !watched) return nullptr;
  if (treatment.quantizes()) resolved.roles = roles_of(before);  // calls may differ in operands
  require_exact(*current_, after);
  return make_treated_op(
      {.treatment = resolved.treatment,
       .where = where_,
       .site = current_->name,
       .op = current_->op,
       .roles = resolved.roles,
       .scales = scales_,
       .averages = averages_,
       .seed = current_->seed + (pass / passes_of_keys) * 0x9e3779b97f4a7c15u,
       .offset = pass << 34,
       .step = at_->step,
       .notes = pass != evaluation_pass && !repeats_,
       .observer = watched ? observer_ : nullptr,
       .before = watched ? std::vector(before.begin(), before.end()) : std::vector<Tensor>{}});
}

std::vector<ResolvedSite> PolicySession::resolved() const {
  std::vector<ResolvedSite> sites;
  for (const Key& key : order_) sites.push_back(entries_.at(key).resolved);
  return sites;
}

namespace {

/// Returns whether a site has a tensor that an entry of a rule for this role can change.
bool has_tensor(const ResolvedSite& site, Role role) {
  const std::size_t count = std::min(site.roles.size(), site.operands.size());
  const auto is = [&](std::size_t i, Role wanted) {
    return i < count && site.roles[i] == wanted && site.operands[i] &&
           is_floating(*site.operands[i]);
  };
  const auto any_is = [&](Role wanted) {
    for (std::size_t i = 0; i < count; ++i)
      if (is(i, wanted)) return true;
    return false;
  };
  if (const auto operand = operand_of(role)) return is(*operand, Role::input);
  switch (role) {
    case Role::input:
    case Role::input_backward:
    case Role::grad_input: return any_is(Role::input);
    case Role::weight:
    case Role::weight_backward: return any_is(Role::weight);
    case Role::bias: return any_is(Role::bias);
    case Role::grad_weight: return any_is(Role::weight) || any_is(Role::bias);
    default: return true;
  }
}

}  // namespace

/// Returns whether a site of this process matches a rule. With `role`: whether it also has a tensor
/// of this role.
bool PolicySession::is_met_here(std::size_t rule, std::optional<Role> role) const {
  return std::ranges::any_of(entries_, [&](const auto& each) {
    const ResolvedSite& resolved = each.second.resolved;
    return matcher_.matches(rule, resolved.site, *each.second.op) &&
           (!role || has_tensor(resolved, *role));
  });
}

/// The same for sites of this process and of all others.
bool PolicySession::is_met(std::size_t rule, std::optional<Role> role) const {
  return (!used_by_any_.empty() && used_by_any_[place_of(rule, role)]) || is_met_here(rule, role);
}

void PolicySession::fail_unmatched(std::size_t number) const {
  const Rule& rule = matcher_.book().rules[number];
  std::vector<std::string> paths;
  int largest = -1;  // ordinal of the operations that the rest of the rule matches
  for (const auto& [key, entry] : entries_) {
    const Site& site = entry.resolved.site;
    paths.push_back(site.path);
    if (matcher_.matches_any_call(number, site, *entry.op))
      largest = std::max(largest, site.ordinal);
  }
  std::ranges::sort(paths);
  if (largest >= 0 && rule.match.ordinal)
    fail<UsageError>(where_, "rule ", number, " (\"", rule.name,
                     "\") matches nothing in this model: its ordinal is ", *rule.match.ordinal,
                     ", and the largest ordinal of its operations is ", largest,
                     ". Mark it \"optional\" if that is meant.");
  fail<UsageError>(where_, "rule ", number, " (\"", rule.name,
                   "\") matches nothing in this model: no operation that it is for has a path "
                   "like \"",
                   rule.match.path, "\". The nearest is \"", nearest_path(rule.match.path, paths),
                   "\". Mark it \"optional\" if that is meant.");
}

void PolicySession::require_all_rules_used() const {
  const std::vector<Rule>& rules = matcher_.book().rules;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (rules[i].optional) continue;
    if (!is_met(i)) fail_unmatched(i);
    for (const auto& [role, said] : rules[i].roles) {
      if (is_met(i, role)) continue;
      const auto operand = operand_of(role);
      fail<UsageError>(where_, "rule ", i, " (\"", rules[i].name, "\"): \"", policy::name(role),
                       "\" changes no tensor: ",
                       operand ? "operand " + std::to_string(*operand) + " is not an activation"
                               : "there is none",
                       " at any site of the rule. ",
                       operand ? "Use \"weight\" for parameters, or mark" : "Leave it out, or mark",
                       " the rule \"optional\".");
    }
  }
}

PolicySession& session_of(const amp::Training& training) {
  amp::Session* session = training.region().session.get();
  PolicySession* of_policy = session ? session->of_policy() : nullptr;
  if (!of_policy)
    fail<UsageError>("policy.session_of", training.strategy().name,
                     " has no rules, so there is no session of a policy. Train under "
                     "policy::watched(strategy).");
  return *of_policy;
}

}  // namespace halftone::policy
