// Sites, treatments and passes; then steps, scales and averages.
#include <halftone/amp/session.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <set>
#include <vector>

#include <halftone/amp/cast_policy.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/policy_reader.h>
#include <halftone/amp/training.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/json_value.h>
#include <halftone/core/memory.h>
#include <halftone/optim/optimizers.h>

namespace halftone::policy {

namespace {
double flops_of(const OpInfo& op, std::span<const Tensor> inputs) {
  const bool whole = inputs.size() >= 2 && inputs[0].defined() && inputs[1].defined();
  return op.flops && whole ? op.flops(inputs) : 0;
}
/// Evaluations draw the same numbers each time, which differ from those of all training passes.
constexpr uint64_t evaluation_pass = (uint64_t(1) << 30) - 1;

}  // namespace

std::size_t Session::HashKey::operator()(const Key& key) const {
  std::size_t hash = std::hash<const void*>{}(key.owner);
  hash = hash * 31 + std::hash<const void*>{}(key.label);
  hash = hash * 31 + std::hash<const void*>{}(key.op);
  hash = hash * 31 + std::hash<const void*>{}(key.module);
  return hash * 31 + std::size_t(key.ordinal);
}

Session::Session(std::string_view where, nn::Module& model, std::shared_ptr<const Rulebook> rules,
                 Settings settings)
    : where_(where),
      settings_(std::move(settings)),
      hash_(int64_t(Fingerprint().add(settings_.hash).value())),
      names_(model),
      matcher_(where, std::move(rules), names_.parts()),
      scales_(std::make_shared<TensorScales>()),
      averages_(std::make_shared<WeightAverages>()),
      at_(std::make_shared<Position>()),
      changes_at_(matcher_.next_change(0)) {
  if (matcher_.book().parameters)
    for (const auto& [name, x] : model.named_parameters())
      put_on_grid(*matcher_.book().parameters, "start." + name, x);
}

std::shared_ptr<Session> Session::for_observers(nn::Module& model, int64_t steps) {
  auto session =
      std::make_shared<Session>("observer", model, std::make_shared<Rulebook>(), Settings{});
  session->lists_sites_ = false, session->at_->step = steps;
  return session;
}

std::shared_ptr<Observer> Session::observe(std::shared_ptr<Observer> observer) {
  watched_.clear();
  return std::exchange(observer_, std::move(observer));
}

bool Session::watches(uint64_t pass) const {
  // A checkpointed segment computes twice: first without gradients, then with them.
  return observer_ && grad_enabled() && std::ranges::find(watched_, pass) != watched_.end();
}

std::shared_ptr<void> Session::repeat_last_pass() {
  const uint64_t pass = std::exchange(at_->pass, at_->last_pass - next_pass_);
  repeats_ = true;
  return {this, [pass](Session* session) { session->at_->pass = pass, session->repeats_ = false; }};
}

uint64_t Session::begin_pass() {
  if (!lists_sites_ && !observer_) return 0;
  names_.refresh();
  if (!grad_enabled()) return evaluation_pass;
  if (++passes_; !several_passes_) rounded_->clear();
  if (recording_step())
    repeat_on_replay([at = at_, by = next_pass_] { at->last_pass = at->pass += by; });
  const uint64_t pass = at_->last_pass = at_->pass += next_pass_;
  if (observer_ && observer_->begin_pass(at_->step)) watched_.push_back(pass);
  return pass;
}

/// Numbers the passes of a batch: the first has the number of the batch, and the others differ by
/// passes_of_keys, which random keys do not count, so they draw from other seeds.
void Session::begin_batch(int64_t number) {
  next_pass_ = passes_of_keys;
  at_->pass = uint64_t(number) + 1 - next_pass_;
}

/// Returns whether rules have no effect in a pass. A training pass may run parts without gradients
/// (a checkpointed segment, a frozen part), so this depends on the whole pass.
bool Session::rests(uint64_t pass) const {
  return !matcher_.book().in_evaluation && pass == evaluation_pass;
}

std::vector<Role> Session::roles_of(std::span<const Tensor> inputs) const {
  std::vector<Role> roles;
  for (const Tensor& x : inputs) {
    const std::string* parameter = names_.parameter_of(x);
    const bool floats = x.defined() && is_floating(x.dtype());
    if (!parameter || !floats) roles.push_back(Role::input);
    else roles.push_back(parameter->ends_with("bias") ? Role::bias : Role::weight);
  }
  return roles;
}

uint32_t Session::parameters_among(std::span<const Tensor> inputs) const {
  uint32_t parameters = 0;
  for (std::size_t i = 0; i < inputs.size() && i < 32; ++i)
    if (names_.parameter_of(inputs[i])) parameters |= uint32_t(1) << i;
  return parameters;
}

Session::Entry Session::made(const OpInfo& op, std::span<const Tensor> inputs,
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
  require_possible(entry), require_operands(entry), require_measurable(entry);
  resolved.treatment = treatment_of(entry, at_->step);
  return entry;
}

std::shared_ptr<const Treatment> Session::treatment_of(const Entry& entry, int64_t step) const {
  const auto on = [&](std::size_t rule) { return switches_->is_on(int(rule), entry.name); };
  return std::make_shared<Treatment>(matcher_.treatment(entry.resolved.site, *entry.op, step, on));
}

namespace {
/// Returns the grid whose effect a rule's condition measures: its own, or that of the rules without
/// a condition; null: none. A scale comes from the tensor itself.
std::optional<Quantizer> measured_grid(const Rule& rule, const Treatment& others) {
  const Role role = rule.match.when->role;
  const auto own = rule.roles.find(role);
  const bool has_own = own != rule.roles.end() && own->second.kind == RoleRule::Kind::grid;
  const Quantizer* const grid = has_own ? &own->second.quantizer : others.quantizer(role);
  if (!grid) return {};
  Quantizer quantizer = *grid;
  quantizer.scaling.from_history = quantizer.scaling.learned = quantizer.scaling.row_level = false;
  quantizer.average = 0;
  return quantizer;
}
}  // namespace

/// Returns what the conditions of rules measure at a site in this step.
std::vector<Measured> Session::measured_at(const Entry& entry) const {
  std::vector<Measured> all;
  const std::vector<Rule>& rules = matcher_.book().rules;
  std::optional<Treatment> others;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    const Match& match = rules[i].match;
    if (!match.when || !RuleSwitches::measures(*match.when, at_->step) ||
        at_->step < match.from_step || at_->step >= match.to_step ||
        !matcher_.matches(i, entry.resolved.site, *entry.op))
      continue;
    if (!others) others = matcher_.treatment(entry.resolved.site, *entry.op, at_->step);
    if (auto grid = measured_grid(rules[i], *others))
      all.push_back({int(i), match.when->role, std::move(*grid)});
  }
  return all;
}

/// Checks that a rule with a condition has something to measure at a site, in some step.
void Session::require_measurable(const Entry& entry) const {
  constexpr int64_t never = std::numeric_limits<int64_t>::max();
  const std::vector<Rule>& rules = matcher_.book().rules;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (!rules[i].match.when || !matcher_.matches(i, entry.resolved.site, *entry.op)) continue;
    bool measurable = false;
    for (int64_t step = 0; step != never && !measurable; step = matcher_.next_change(step))
      measurable = measured_grid(rules[i], matcher_.treatment(entry.resolved.site, *entry.op, step))
                       .has_value();
    if (!measurable)
      fail<UsageError>(where_, "rule ", i, " (\"", rules[i].name, "\") at ", entry.name,
                       ": its condition is about the rounding of \"",
                       policy::name(rules[i].match.when->role),
                       "\", which no rule without a condition rounds here. Give this rule, or one "
                       "before it, a grid for it, or except this place.");
  }
}

/// Checks that the operation can follow its rules, in this step and in all later ones: a mistake is
/// reported when a site is first met, not when its rule begins.
void Session::require_possible(const Entry& entry) const {
  constexpr int64_t never = std::numeric_limits<int64_t>::max();
  for (int64_t step = at_->step; step != never; step = matcher_.next_change(step)) {
    for (const bool on : {false, true})
      require_possible(entry, matcher_.treatment(entry.resolved.site, *entry.op, step,
                                                 [on](std::size_t) { return on; }));
  }
}

void Session::require_possible(const Entry& entry, const Treatment& treatment) const {
  if (treatment.backward_differs() && entry.op->once)
    fail<UsageError>(
        where_,
        matcher_.last_about(treatment, {Role::input_backward, Role::weight_backward,
                                        Role::input_0_backward, Role::input_1_backward}),
        " at ", entry.name, ": ", entry.op->name,
        " cannot be computed twice, so \"input.backward\" is not possible here. "
        "Leave it out of the rule, or except this place.");
  if (treatment.accumulate && !entry.op->accumulator)
    fail<UsageError>(where_, entry.name, ": ", entry.op->name, " has no emulated accumulator. ",
                     amp::CastPolicy::operations_with(&OpFacts::accumulator), " do.");
  if (treatment.compute == Compute::hardware) require_f8(entry, treatment);
  else if (treatment.accumulate && treatment.accumulate->scaled > 0)
    require_scales(entry, treatment);
  if (treatment.compute != Compute::tf32) return;
  if (!entry.op->tf32)
    fail<UsageError>(where_, entry.name, ": ", entry.op->name, " has no products in TF32. ",
                     amp::CastPolicy::operations_with(&OpFacts::tf32), " do.");
  if (treatment.accumulate)
    fail<UsageError>(where_, entry.name,
                     ": an accumulator is emulated, and its factors are f32. Use \"compute\": "
                     "\"f32\".");
}

/// Checks that the operands of products in an accumulator with scales have them.
void Session::require_scales(const Entry& entry, const Treatment& treatment) const {
  const Accumulator& accumulator = *treatment.accumulate;
  const std::string sums = json_of(accumulator).dump();
  if (entry.op->name != "linear")
    fail<UsageError>(where_, entry.name, ": ", entry.op->name, " has no products in ", sums,
                     "; linear does. Name it in \"match\".");
  const auto require = [&](Role role, std::size_t operand) {
    const Quantizer* const quantizer = treatment.quantizer(role, operand);
    if (!quantizer || !has_scales_for(accumulator, *quantizer))
      fail<UsageError>(where_, entry.name, ": ", sums, " reads numbers and their scales, and \"",
                       policy::name(role), "\" is ",
                       quantizer ? described(*quantizer) : "not quantized", ". Use ",
                       accumulator.align == Align::scales ? "e2m1" : "e4m3 or e5m2", " with ",
                       accumulator.least_exponent == formats::e4m3.min_exponent &&
                               accumulator.align == Align::scales
                           ? "e4m3"
                           : "e8m0",
                       " scales of blocks of ", accumulator.scaled, ".");
    if (is_use(role) && !treatment.says(role, operand))
      fail<UsageError>(where_, entry.name, ": \"", policy::name(role), "\" is as used, ",
                       described(*quantizer),
                       ", and the scales of backward run along another dimension. Give it a "
                       "quantizer of its own.");
  };
  // A product reads rotated numbers as they are.
  const auto require_both = [&](Role a, Role b) {
    const std::size_t of_b = b == Role::input_backward ? 0 : 1;
    require(a, 0), require(b, of_b);
    const Quantizer &left = *treatment.quantizer(a, 0), &right = *treatment.quantizer(b, of_b);
    if (left.hadamard != right.hadamard || left.hadamard_signs != right.hadamard_signs)
      fail<UsageError>(where_, entry.name, ": \"", policy::name(a), "\" is ", described(left),
                       ", and \"", policy::name(b), "\" is ", described(right),
                       ". Rotate both operands of a product alike, or none.");
  };
  require_both(Role::input, Role::weight);
  require_both(Role::grad_output, Role::weight_backward);
  require_both(Role::grad_output_weight, Role::input_backward);
}

/// Checks that an operation's products can have the operands and sums of a GPU.
void Session::require_f8(const Entry& entry, const Treatment& treatment) const {
  const bool linear = entry.op->name == "linear";
  if (!entry.op->factors)
    fail<UsageError>(where_, entry.name, ": ", entry.op->name,
                     " has no products in \"hardware\"; linear and matmul do. Name them in "
                     "\"match\".");
  if (!treatment.accumulate)
    fail<UsageError>(where_, entry.name,
                     ": \"hardware\" needs an \"accumulate\" that names how the GPU adds: "
                     "\"l40-mma-f8\", \"h100-wgmma-f8\" or \"b200-tcgen05-f8\".");
  const auto kind_of = [&](Role role, std::size_t operand) {
    const Quantizer* const quantizer = treatment.quantizer(role, operand);
    const auto kind = quantizer ? f8_kind(*quantizer) : std::nullopt;
    if (!kind)
      fail<UsageError>(where_, entry.name, ": in \"hardware\" \"", policy::name(role), "\" is ",
                       quantizer ? described(*quantizer) : "not quantized",
                       ". Use e4m3 or e5m2, unscaled, or with scales per tensor, per row, or e8m0 "
                       "ones of blocks of 32.");
    if (is_use(role) && !treatment.says(role, operand) && kind->scales != F8Scales::tensor)
      fail<UsageError>(where_, entry.name, ": \"", policy::name(role), "\" is as used, ",
                       described(*quantizer),
                       ", and the scales of backward run along another dimension. Give it a "
                       "quantizer of its own.");
    return *kind;
  };
  const auto require = [&](Role a, std::size_t a_operand, Role b, std::size_t b_operand) {
    const F8Kind left = kind_of(a, a_operand), right = kind_of(b, b_operand);
    const auto refuse = [&](const auto&... why) {
      fail<UsageError>(where_, entry.name, ": \"", policy::name(a), "\" and \"", policy::name(b),
                       why...);
    };
    if (left.dtype == f8_e5m2 && right.dtype == f8_e5m2)
      refuse("\" are e5m2, and no GPU multiplies these. Use e4m3 for one.");
    if ((left.scales == F8Scales::blocks) != (right.scales == F8Scales::blocks))
      refuse(
          "\" have blocks on one side only, and no GPU multiplies these. Use blocks of 32 for "
          "both.");
  };
  // The second operand of matmul may be a weight, or another input.
  const std::vector<Role>& roles = entry.resolved.roles;
  const bool has_weight = linear || (roles.size() > 1 && roles[1] == Role::weight);
  const Role second = has_weight ? Role::weight : Role::input,
             second_backward = has_weight ? Role::weight_backward : Role::input_backward,
             gradient = has_weight ? Role::grad_output_weight : Role::grad_output;
  require(Role::input, 0, second, 1);
  require(Role::grad_output, 0, second_backward, 1);
  require(gradient, 0, Role::input_backward, 0);
  if (!has_weight && kind_of(Role::grad_output, 0).scales != F8Scales::tensor)
    fail<UsageError>(where_, entry.name, ": \"grad_output\" is ",
                     described(*treatment.quantizer(Role::grad_output, 0)),
                     ", and two products read it along different dimensions. Give it one scale for "
                     "the tensor.");
}

/// Checks that a device multiplies f8 numbers, and adds as the rule says.
void Session::require_hardware(const Entry& entry, std::span<const Tensor> inputs) const {
  if (!inputs[0].defined()) return;  // the operation says so
  const Device device = inputs[0].device();
  const Accumulator* const own = backend_for(device).f8_sums();
  if (!own)
    fail<UsageError>(
        where_, entry.name, ": ", device,
        " has no products of f8 numbers in hardware. Use a GPU of sm_89, 90 or 100 with "
        "cuBLASLt, or \"compute\": \"f32\", which emulates them anywhere.");
  const Treatment& treatment = *entry.resolved.treatment;
  if (*own != *treatment.accumulate)
    fail<UsageError>(where_, entry.name, ": ", device, " adds as ", json_of(*own).dump(),
                     ", and \"accumulate\" says otherwise. Name this one, or use \"compute\": "
                     "\"f32\", which emulates any.");
  for (const Role role : {Role::input, Role::grad_output, Role::grad_output_weight}) {
    const Quantizer& quantizer = *treatment.quantizer(role, 0);
    if (f8_kind(quantizer)->scales == F8Scales::blocks && !backend_for(device).f8_blocks())
      fail<UsageError>(where_, entry.name, ": ", device,
                       " has no products of blocks in hardware, and \"", policy::name(role),
                       "\" is ", described(quantizer),
                       ". Use a GPU of sm_100, or \"compute\": \"f32\".");
  }
}

/// Checks that the operation has the operands that its rules name.
void Session::require_operands(const Entry& entry) const {
  const std::vector<Rule>& rules = matcher_.book().rules;
  const std::size_t inputs = entry.resolved.roles.size();
  if (opens(entry)) require_inner_roles(entry);
  for (std::size_t i = 0; i < rules.size(); ++i)
    for (const auto& [role, said] : rules[i].roles)
      if (operand_of(role).value_or(0) >= std::max<std::size_t>(inputs, 1) &&
          matcher_.matches(i, entry.resolved.site, *entry.op))
        fail<UsageError>(where_, "rule ", i, " (\"", rules[i].name, "\") at ", entry.name, ": ",
                         entry.op->name, " has one input, so \"", policy::name(role),
                         "\" is not possible here. Name the operations in \"match\", or except "
                         "this place.");
}

bool Session::opens(const Entry& entry) const {
  return matcher_.opens_attention() && entry.op->name == attention_op &&
         matcher_.opens_attention(entry.resolved.site.path);
}

/// Checks that the rules of attention, where one is for its inside, name nothing of the whole that
/// its parts lack.
void Session::require_inner_roles(const Entry& entry) const {
  const std::vector<Rule>& rules = matcher_.book().rules;
  for (std::size_t i = 0; i < rules.size(); ++i)
    for (const auto& [role, said] : rules[i].roles)
      if (std::ranges::find(inner_roles(), role, &InnerRole::said) == inner_roles().end() &&
          matcher_.matches(i, entry.resolved.site, *entry.op))
        fail<UsageError>(where_, "rule ", i, " (\"", rules[i].name, "\") at ", entry.name, ": \"",
                         policy::name(role),
                         "\" is not possible where a rule is for the inside of attention. Name "
                         "\"query\", \"key\" or \"value\", or except this place.");
}

/// Checks that the device has TF32: a model may move from a GPU to a CPU between two passes.
void Session::require_tf32(const Entry& entry, std::span<const Tensor> inputs) const {
  if (!inputs.empty() && inputs[0].defined() && inputs[0].device().kind == DeviceKind::cpu)
    fail<UsageError>(where_, entry.name, ": ", inputs[0].device(),
                     " has no TF32. Use a CUDA device, or the policy tf32.json, which rounds "
                     "operands to the same numbers on any.");
}

/// Checks that operands, their gradients, and the final result hold their grids. treated_op.cpp
/// checks the result before its cast, because it sees that dtype.
void Session::require_exact(const Entry& entry, std::span<const Tensor> operands) const {
  const ResolvedSite& resolved = entry.resolved;
  const Treatment& treatment = *resolved.treatment;
  const auto require = [&](Role role, DType dtype, std::size_t operand = 0) {
    const Quantizer* quantizer = treatment.quantizer(role, operand);
    if (quantizer && !treatment.keeps_scales(role) && is_floating(dtype) &&
        !quantizer->exact_in(dtype))
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

Session::Entry& Session::entry_for(const OpInfo& op, std::span<const Tensor> inputs) {
  const CallScope* scope = CallScope::innermost();
  const int ordinal = scope ? scope->next_ordinal(op) : 0;
  const Key key{names_.module_of(scope), scope ? scope->owner() : nullptr,
                scope ? scope->label().data() : nullptr, &op, ordinal};
  if (const auto known = entries_.find(key); known != entries_.end()) return known->second;
  Entry& entry = entries_.emplace(key, made(op, inputs, scope, ordinal)).first->second;
  order_.push_back(key);
  return entry;
}

const Treatment* Session::open(const OpInfo& op, std::span<const Tensor> inputs, uint64_t pass) {
  if (!lists_sites_ || !matcher_.opens_attention() || rests(pass)) return nullptr;
  if (!matcher_.opens_attention(names_.path_of(CallScope::innermost()))) return nullptr;
  ResolvedSite& resolved = entry_for(op, inputs).resolved;
  if (resolved.operands.empty())
    for (const Tensor& x : inputs) resolved.operands.emplace_back(x.dtype());
  return resolved.treatment.get();
}

const Treatment* Session::treat(const OpInfo& op, std::span<const Tensor> inputs, uint64_t pass) {
  current_ = nullptr;
  if (rests(pass) || (!lists_sites_ && watched_.empty())) return nullptr;
  current_ = &entry_for(op, inputs);
  const Treatment& treatment = *current_->resolved.treatment;
  if (opens(*current_))
    fail<UnsupportedError>(where_, current_->name,
                           ": a rule is for the inside of attention, which is computed as a whole "
                           "here. Except this place from the rule.");
  if (treatment.compute == Compute::tf32) require_tf32(*current_, inputs);
  if (treatment.compute == Compute::hardware) require_hardware(*current_, inputs);
  if (treatment.compute == Compute::refuse)
    fail<UsageError>(where_, current_->name, ": a rule refuses ", op.name,
                     " here. Change the model, or except this place.");
  return &treatment;
}

std::shared_ptr<OpTap> Session::tap(std::span<const Tensor> before, std::span<const Tensor> after,
                                    uint64_t pass) {
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
  const bool watched = watches(pass), notes = pass != evaluation_pass && !repeats_;
  // A replay rounds the weights of its own step.
  const bool keeps = (pass == evaluation_pass || several_passes_) && !watched && !recording_step();
  std::vector<Measured> measured = notes ? measured_at(*current_) : std::vector<Measured>{};
  if (!treatment.quantizes() && !watched && measured.empty()) return nullptr;
  if (treatment.quantizes() || !measured.empty())
    resolved.roles = roles_of(before);  // calls may differ in operands
  require_exact(*current_, after);
  return make_treated_op({.treatment = resolved.treatment,
                          .where = where_,
                          .site = current_->name,
                          .op = current_->op,
                          .roles = resolved.roles,
                          .scales = scales_,
                          .averages = averages_,
                          .learned = learned_,
                          .rounded = keeps ? rounded_ : nullptr,
                          .seed = current_->seed + (pass / passes_of_keys) * 0x9e3779b97f4a7c15u,
                          .offset = pass << 34,
                          .step = at_->step,
                          .records = grad_enabled(),
                          .notes = notes,
                          .measured = std::move(measured),
                          .switches = switches_,
                          .pass = {pass % passes_of_keys, pass / passes_of_keys},
                          .observer = watched ? observer_ : nullptr,
                          .before = watched || keeps ? std::vector(before.begin(), before.end())
                                                     : std::vector<Tensor>{}});
}

std::vector<ResolvedSite> Session::resolved() const {
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
  if (is_inner(role)) return site.site.op == attention_op;
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
bool Session::is_met_here(std::size_t rule, std::optional<Role> role) const {
  return std::ranges::any_of(entries_, [&](const auto& each) {
    const ResolvedSite& resolved = each.second.resolved;
    return matcher_.matches(rule, resolved.site, *each.second.op) &&
           (!role || has_tensor(resolved, *role));
  });
}

/// The same for sites of this process and of all others.
bool Session::is_met(std::size_t rule, std::optional<Role> role) const {
  return (!used_by_any_.empty() && used_by_any_[place_of(rule, role)]) || is_met_here(rule, role);
}

void Session::fail_unmatched(std::size_t number) const {
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
                   rule.match.path, "\".", matcher_.lacking(number), " The nearest is \"",
                   nearest_path(rule.match.path, paths),
                   "\". Mark it \"optional\" if that is meant.");
}

void Session::require_all_rules_used() const {
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

Session& session_of(const amp::Training& training) {
  Session* session = training.region().session.get();
  if (!session)
    fail<UsageError>("policy.session_of", training.strategy().name,
                     " has no rules, so there is no session of a policy. Train under "
                     "policy::watched(policy).");
  return *session;
}

// The end of a step: scales are updated, parameters and states are rounded to their grids, rules
// begin and end. Also the saved state of a session.

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
  const std::vector<std::string_view> of_library = optim::state_names();
  std::set<std::string_view> known(of_library.begin(), of_library.end());
  std::vector<RuledState> ruled;
  std::set<std::string_view> own;
  for (const auto& [entry, x] : state) {
    if (rules.empty() || !entry.starts_with("state.")) continue;
    const std::string_view name = std::string_view(entry).substr(entry.rfind('.') + 1);
    if (x.dtype() == u8) {  // "state.3.exp_avg.8bit"
      const std::string_view coded = std::string_view(entry).substr(0, entry.rfind('.'));
      const auto rule = rules.find(std::string(coded.substr(coded.rfind('.') + 1)));
      if (rule != rules.end())
        fail<UsageError>(where, "the policy has a grid for the state ", rule->first,
                         ", which is stored as ", name, ". Leave the grid or the format out.");
      continue;
    }
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
std::string Session::name_of(const std::vector<Tensor>& parameters, std::size_t i) const {
  const std::string* name = names_.parameter_of(parameters.at(i));
  return name ? *name : std::to_string(i);
}

/// Rounds a parameter or a state of the optimizer, in place. The random numbers depend on `tensor`,
/// "parameter.fc.weight" or "state.fc.weight.exp_avg".
void Session::put_on_grid(const Quantizer& quantizer, const std::string& tensor, const Tensor& x,
                          const Tensor& skip) const {
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
std::vector<const Quantizer*> Session::grids_from_history() const {
  std::vector<const Quantizer*> grids;
  for (const Rule& rule : matcher_.book().rules)
    for (const auto& [role, said] : rule.roles)
      if (said.quantizer.scaling.from_history) grids.push_back(&said.quantizer);
  return grids;
}

bool Session::learns_scales() const {
  return std::ranges::any_of(matcher_.book().rules, [](const Rule& rule) {
    return std::ranges::any_of(
        rule.roles, [](const auto& said) { return said.second.quantizer.scaling.learned; });
  });
}

std::string Session::seen() const {
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
  return Json{{"met", !entries_.empty()},
              {"used", used},
              {"scales", scales},
              {"measured", switches_->seen()}}
      .dump();
}

/// The largest magnitudes of a step are those of all its batches.
void Session::hear(std::span<const std::string> seen_by_all) {
  if (learns_scales())
    fail<UsageError>(where_, "scales are learned, which ", seen_by_all.size(),
                     " processes cannot do together: each would learn its own. Train on one, or "
                     "let the scales follow from the tensors.");
  const std::vector<const Quantizer*> grids = grids_from_history();
  for (const std::string& text : seen_by_all) {
    const Json seen = Json::parse(text);
    if (seen["met"].get<bool>()) used_by_any_.resize(place_of(matcher_.book().rules.size(), {}));
    for (const Json& place : seen["used"]) used_by_any_.at(place.get<std::size_t>()) = true;
    for (const Json& scale : seen["scales"])
      scales_->note({scale[0].get<std::string>(), *grids.at(scale[1].get<std::size_t>()),
                     std::bit_cast<float>(scale[2].get<uint32_t>())});
    switches_->hear(seen["measured"].get<std::string>());
  }
}

void Session::before_step(const Tensor& loss_scale) {
  learned_->set_loss_scale(loss_scale);
  if (rules_used_ || matcher_.book().rules.empty()) return;
  if (entries_.empty() && used_by_any_.empty())
    fail<UsageError>(where_,
                     "no operation has met its rules before the first step. Run the model "
                     "inside of training.forward().");
  require_all_rules_used();
  rules_used_ = true;
}

void Session::end_step(optim::Optimizer& optimizer, const Tensor& skip) {
  watched_.clear();
  rounded_->clear();
  several_passes_ = std::exchange(passes_, 0) > 1;
  scales_->end_step();
  if (optimizer.group_count() > 0) learned_->end_step(optimizer.lr(), skip);
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
    for (std::size_t i = 0; i < book.rules.size(); ++i)
      if (book.rules[i].match.when)
        fail<UsageError>(where_, "rule ", i, " (\"", book.rules[i].name,
                         "\") begins and ends by what steps show, which a captured step cannot "
                         "follow. Run it uncaptured.");
    if (learns_scales())
      fail<UsageError>(where_,
                       "scales are learned, which a captured step cannot do. Run it uncaptured.");
    repeat_on_replay([at = at_, rounded = rounded_] { ++at->step, rounded->clear(); });
  }
  const bool switched = switches_->end_step(book.rules, at_->step);
  ++at_->step;
  if (observer_) observer_->end_step();
  if (switched || at_->step >= changes_at_) follow_rules();
}

void Session::follow_rules() {
  changes_at_ = matcher_.next_change(at_->step);
  for (auto& [key, entry] : entries_) entry.resolved.treatment = treatment_of(entry, at_->step);
}

// --- state

NamedTensors Session::state_dict() const {
  NamedTensors state;
  if (!lists_sites_) return state;
  scales_->add_to(state), averages_->add_to(state), switches_->add_to(state);
  learned_->add_to(state);
  const uint64_t pass = next_pass_ == 1 ? at_->pass : at_->pass % passes_of_keys;
  state["step"] = scalar(double(at_->step), i64), state["pass"] = scalar(double(pass), i64);
  state["policy"] = from_span(std::span<const int64_t>(&hash_, 1), {}, i64);
  return state;
}

void Session::load_state_dict(const NamedTensors& state) {
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
  const NamedTensors none;
  const NamedTensors& from = own ? state : none;
  // Each of them checks its entries first; no other one may have changed when one refuses.
  const auto switches = std::make_shared<RuleSwitches>(*switches_);
  const auto scales = std::make_shared<TensorScales>();
  const auto averages = std::make_shared<WeightAverages>();
  const auto learned = std::make_shared<LearnedScales>();
  switches->load(from, matcher_.book().rules.size());
  scales->load(from), averages->load(from), learned->load(from);
  switches_ = switches, scales_ = scales, averages_ = averages, learned_ = learned;
  at_->step = int64_t(state.at("step").item()), at_->pass = uint64_t(state.at("pass").item());
  follow_rules();
}

namespace {
std::string hash_if_a_file_can_say(const amp::Policy& policy) {
  try {
    return hash(policy);
  } catch (const UsageError&) { return {}; }
}
}  // namespace

std::shared_ptr<Session> session_for(nn::Module& model, const amp::Policy& policy) {
  if (!policy.has_session()) return nullptr;
  std::map<std::string, std::string> stored;
  for (const auto& [state, format] : policy.states) stored[state] = (PlainText() << format).str();
  return std::make_shared<Session>(
      "policy " + policy.name, model, std::make_shared<const Rulebook>(policy.rules),
      Session::Settings{policy.random_seed(), policy.wire, std::move(stored),
                        hash_if_a_file_can_say(policy)});
}

// One ring of magnitudes per tensor.

TensorScales::Memory& TensorScales::memory_for(const std::string& name, const Quantizer& quantizer,
                                               Device device) {
  Memory& memory = memories_[name];
  if (memory.scale.defined() && memory.quantizer == quantizer) {
    if (memory.scale.device() != device)
      for (Tensor* x : {&memory.amax, &memory.history, &memory.position, &memory.scale})
        *x = x->to(device);
    return memory;
  }
  const MemoryScope scope(MemoryUse::workspace);
  memory.quantizer = quantizer;
  const int64_t steps = quantizer.scaling.history;
  const auto make = [&](const char* kind, const Shape& shape, DType dtype, double value) {
    // A loaded entry is used once: with another quantizer it would be outdated later.
    const auto saved = waiting_.extract(std::string(kind) + '.' + name);
    if (saved && saved.mapped().shape() == shape && saved.mapped().dtype() == dtype)
      return saved.mapped().to(device).clone();
    return full(shape, value, dtype, device);
  };
  memory.amax = make("amax", {1}, f32, 0);
  memory.history = make("history", {1, steps}, f32, 0);
  memory.position = make("position", {1}, i64, 0);
  memory.scale = make("scale", {1}, f32, 1);
  return memory;
}

Tensor TensorScales::scale_for(const std::string& name, const Quantizer& quantizer, const Tensor& x,
                               bool notes) {
  Memory& memory = memory_for(name, quantizer, x.device());
  if (notes && x.numel() > 0) {
    const Tensor rows = x.is_contiguous() ? x.view_as({x.numel()}, {1}, x.offset()) : x;
    Tensor amax = memory.amax.view_as({}, {}, 0);
    backend_for(x).largest_magnitude(rows, amax);
    memory.noted = true;
  }
  return memory.scale.view_as({}, {}, 0);
}

std::vector<TensorScales::Noted> TensorScales::noted() const {
  std::vector<Noted> all;
  for (const auto& [name, memory] : memories_)
    if (memory.noted) all.push_back({name, memory.quantizer, float(memory.amax.item())});
  return all;
}

void TensorScales::note(const Noted& seen) {
  const auto known = memories_.find(seen.name);
  const bool here = known != memories_.end() && known->second.scale.defined();
  Memory& memory =
      memory_for(seen.name, seen.quantizer, here ? known->second.scale.device() : Device::cpu());
  if (magnitude_bits(seen.amax) > magnitude_bits(float(memory.amax.item())))
    fill_with(memory.amax, double(seen.amax));
  memory.noted = true;
}

void TensorScales::end_step() {
  for (auto& [name, memory] : memories_)
    if (std::exchange(memory.noted, false))
      backend_for(memory.scale)
          .next_scales(memory.quantizer, memory.amax, memory.history, memory.position,
                       memory.scale);
}

void TensorScales::add_to(NamedTensors& state) const {
  state.insert(waiting_.begin(), waiting_.end());
  for (const auto& [name, memory] : memories_) {
    state["amax." + name] = memory.amax, state["history." + name] = memory.history;
    state["position." + name] = memory.position, state["scale." + name] = memory.scale;
  }
}

void TensorScales::load(const NamedTensors& state) {
  NamedTensors loaded;
  for (const auto& [name, x] : state) {
    const bool position = name.starts_with("position.");
    if (!position && !name.starts_with("amax.") && !name.starts_with("history.") &&
        !name.starts_with("scale."))
      continue;
    // A position is an index into memory.
    if (!x.defined() || x.dtype() != (position ? i64 : f32) ||
        (position && (x.numel() != 1 || x.item() < 0 || x.item() > 0x1p53)))
      fail<UsageError>("policy.load_state_dict", "the entry ", in_quotes(name), " is ",
                       described(x), position ? ", which is not a count of steps" : "",
                       ". Load a state that was saved under this policy.");
    loaded[name] = x.clone();
  }
  memories_.clear(), waiting_ = std::move(loaded);
}

// One f32 tensor per use of a weight.

Tensor WeightAverages::average_for(const std::string& name, double share, const Tensor& x,
                                   int64_t step, bool updates) {
  const MemoryScope scope(MemoryUse::optimizer_state);
  Memory& memory = memories_[name];
  Tensor& average = memory.average;
  if (!average.defined()) {
    const auto saved = waiting_.extract(name);
    if (saved && saved.mapped().shape() == x.shape()) average = saved.mapped();
  }
  if (!average.defined() || average.shape() != x.shape()) {
    average = empty(x.shape(), f32, x.device());
    backend_for(x).copy(x, average);
    memory.step = step;
    return average;
  }
  if (average.device() != x.device()) average = average.to(x.device());
  if (updates && memory.step != step) {
    memory.step = step;
    backend_for(x).lerp(x, 1 - share, average);
  }
  return average;
}

void WeightAverages::add_to(NamedTensors& state) const {
  for (const auto& [name, average] : waiting_) state["average." + name] = average;
  for (const auto& [name, memory] : memories_) state["average." + name] = memory.average;
}

void WeightAverages::load(const NamedTensors& state) {
  constexpr std::string_view prefix = "average.";
  const MemoryScope scope(MemoryUse::optimizer_state);
  NamedTensors loaded;
  for (const auto& [name, x] : state) {
    if (!name.starts_with(prefix)) continue;
    if (!x.defined() || x.dtype() != f32)
      fail<UsageError>("policy.load_state_dict", "the entry ", in_quotes(name), " is ",
                       described(x),
                       ". Averages of weights are f32. Load a state that was saved "
                       "under this policy.");
    loaded[name.substr(prefix.size())] = x.clone();
  }
  memories_.clear(), waiting_ = std::move(loaded);
}

// One tensor per use of a weight.

Tensor RoundedWeights::tensor_for(const std::string& use, const Tensor& weight, const Tensor& x,
                                  const Quantizer& quantizer,
                                  const std::function<Tensor()>& round) {
  const Scaling& scaling = quantizer.scaling;
  const bool same_each_time = !quantizer.draws() && !quantizer.own && quantizer.average == 0 &&
                              !scaling.from_history && !scaling.learned;
  const std::shared_ptr<Storage>& storage = weight.storage();
  if (!same_each_time || storage->wraps()) return round();
  Kept& kept = kept_[use];
  if (kept.weight.lock() == weight.body() && kept.storage.lock() == storage &&
      kept.version == storage->version() && kept.dtype == x.dtype() &&
      kept.strides == x.strides() && kept.quantizer == quantizer &&
      kept.waits == f8_operand(kept.result).has_value())
    return kept.result;
  kept.result = {};
  Tensor result = round();
  const auto waits = f8_operand(result);
  (waits ? waits->numbers : result).storage()->recharge(MemoryUse::cast_cache);
  kept = {weight.body(), storage, storage->version(), x.dtype(), x.strides(),
          quantizer,     result,  waits.has_value()};
  return result;
}

// Learned scales. Operations are calls of the backend: a region may be active.

struct LearnedScales::Memory {
  Tensor scale{};           // first * ratio
  Tensor first{}, ratio{};  // f32, of one shape
  Tensor gradient{};        // of the scale, in this step; undefined: none
  std::unique_ptr<optim::Adam> adam{};
};

LearnedScales::LearnedScales() = default;
LearnedScales::~LearnedScales() = default;

namespace {

template <class Formula> Tensor combined(Formula formula, const Tensor& a, const Tensor& b) {
  Tensor y = empty(a.shape(), f32, a.device());
  backend_for(a).binary(call_of<BinaryFormulas>(formula), a, views::expand(b, a.shape()), y);
  return y;
}

/// Returns a scale as a tensor that fits x: [rows, 1, ...], or all 1.
Tensor along_rows(const Tensor& scale, const Tensor& x) {
  std::vector<int64_t> shape(std::size_t(x.rank()), 1);
  if (scale.rank() > 0 && !shape.empty()) shape[0] = scale.size(0);
  return views::reshaped(scale, Shape(shape));
}

}  // namespace

LearnedScales::Memory& LearnedScales::memory_for(const std::string& name,
                                                 const Quantizer& quantizer, const Tensor& x) {
  Memory& memory = memories_[name];
  if (memory.scale.defined() && memory.scale.device() == x.device()) return memory;
  const MemoryScope scope(MemoryUse::optimizer_state);
  const bool moved = memory.scale.defined();
  NamedTensors saved;
  if (moved) {
    saved = memory.adam->state_dict();
    memory.first = memory.first.to(x.device()), memory.ratio = memory.ratio.to(x.device());
    memory.gradient = {};
  } else if (auto waiting = waiting_.extract(name)) {
    saved = std::move(waiting.mapped());
    memory.first = saved.at("first").to(x.device()),
    memory.ratio = saved.at("ratio").to(x.device());
    saved.erase("first"), saved.erase("ratio");
  }
  const Tensor first = first_scale(quantizer, x);
  if (!memory.first.defined() || memory.first.shape() != first.shape()) {
    memory.first = first, memory.ratio = ones(first.shape(), f32, x.device());
    saved.clear();
  }
  memory.scale = combined(formula::Mul{}, memory.first, memory.ratio);
  memory.adam = std::make_unique<optim::Adam>(std::vector<Tensor>{memory.ratio});
  if (!saved.empty()) memory.adam->load_state_dict(saved);
  return memory;
}

Tensor LearnedScales::scale_for(const std::string& name, const Quantizer& quantizer,
                                const Tensor& x) {
  return memory_for(name, quantizer, x).scale;
}

Tensor LearnedScales::gradient(const std::string& name, const Quantizer& quantizer, const Tensor& x,
                               const Tensor& scale, const Tensor& dy, int64_t count, bool adds) {
  if (x.numel() == 0) return dy;
  const MemoryScope scope(MemoryUse::workspace);
  Backend& backend = backend_for(x);
  const Tensor v = combined(formula::Div{}, x, along_rows(scale, x));
  Quantizer on = quantizer;
  on.scaling = {};
  if (on.table.empty() && !on.saturation) on.saturation = Saturation::propagate;
  const Tensor q = quantized(v, {.quantizer = on});
  Tensor size = empty(x.shape(), f32, x.device()), inside = empty(x.shape(), boolean, x.device());
  backend.unary(call_of<UnaryFormulas>(formula::Abs{}), v, size);
  backend.compare(call_of<CompareFormulas>(formula::Less{}), size,
                  views::expand(full({}, quantizer.grid.max, f32, x.device()), x.shape()), inside);
  if (adds) {
    Tensor t = empty(x.shape(), f32, x.device());
    backend.select(inside, combined(formula::Sub{}, q, v), q, t);
    const int64_t rows = scale.rank() > 0 ? scale.size(0) : 1;
    const Tensor terms = views::reshaped(combined(formula::Mul{}, t, dy), {rows, x.numel() / rows});
    Tensor sums = empty({rows, 1}, f32, x.device());
    backend.reduce(Reduction::sum, terms, sums);
    const double factor = 1 / std::sqrt(double(count) * largest_in_units(quantizer.grid));
    Memory& memory = memory_for(name, quantizer, x);
    const Tensor own =
        combined(formula::Mul{}, views::reshaped(sums, scale.shape()),
                 combined(formula::Mul{}, memory.first, full({}, factor, f32, x.device())));
    memory.gradient =
        memory.gradient.defined() ? combined(formula::Add{}, memory.gradient, own) : own;
  }
  Tensor dx = empty(x.shape(), dy.dtype(), x.device());
  backend.select(inside, dy, views::expand(zeros({}, dy.dtype(), x.device()), x.shape()), dx);
  return dx;
}

void LearnedScales::set_loss_scale(const Tensor& loss_scale) {
  loss_scale_ = !memories_.empty() && loss_scale.defined() ? loss_scale.clone() : Tensor{};
}

void LearnedScales::end_step(double lr, const Tensor& skip) {
  for (auto& [name, memory] : memories_) {
    if (!memory.gradient.defined()) continue;
    const Device device = memory.scale.device();
    Tensor gradient = std::exchange(memory.gradient, {}), factor;
    Tensor skips = skip.defined() ? skip.to(device).clone() : zeros({}, f32, device);
    if (loss_scale_.defined())
      factor = combined(formula::Div{}, ones({}, f32, device), loss_scale_.to(device));
    backend_for(gradient).unscale({&gradient, 1}, factor, skips);
    const Tensor least = combined(formula::Mul{}, memory.ratio, full({}, 0.5, f32, device));
    memory.adam->group_parameters(0)[0].set_grad(gradient);
    memory.adam->set_lr(lr);
    memory.adam->step({.skip = skips, .knows_scale = true});
    memory.adam->zero_grad();
    copy_into(memory.ratio, combined(formula::Maximum{}, memory.ratio, least));
    copy_into(memory.scale, combined(formula::Mul{}, memory.first, memory.ratio));
  }
}

void LearnedScales::add_to(NamedTensors& state) const {
  const auto add = [&state](std::string name, std::string_view entry, const Tensor& x) {
    state[name.insert(0, "learned.").append("/").append(entry)] = x;
  };
  for (const auto& [name, entries] : waiting_)
    for (const auto& [entry, x] : entries) add(name, entry, x);
  for (const auto& [name, memory] : memories_) {
    add(name, "first", memory.first), add(name, "ratio", memory.ratio);
    for (const auto& [entry, x] : memory.adam->state_dict()) add(name, entry, x);
  }
}

void LearnedScales::load(const NamedTensors& state) {
  constexpr std::string_view prefix = "learned.";
  std::map<std::string, NamedTensors> loaded;
  for (const auto& [name, x] : state) {
    if (!name.starts_with(prefix)) continue;
    const std::size_t slash = name.rfind('/');
    if (slash == name.npos || slash < prefix.size() || !x.defined())
      fail<UsageError>("policy.load_state_dict", "the entry ", in_quotes(name),
                       " is no part of a learned scale. Load a state that was saved under this "
                       "policy.");
    loaded[name.substr(prefix.size(), slash - prefix.size())][name.substr(slash + 1)] = x.clone();
  }
  for (const auto& [name, entries] : loaded) {
    const auto ratio = entries.find("ratio");
    for (const char* entry : {"first", "ratio"}) {
      const auto found = entries.find(entry);
      const bool is_scale = found != entries.end() && found->second.dtype() == f32 &&
                            ratio != entries.end() &&
                            found->second.shape() == ratio->second.shape();
      const auto positive = [](float s) { return s > 0 && is_finite_magnitude(s); };
      if (!is_scale || !std::ranges::all_of(found->second.to_vector<float>(), positive))
        fail<UsageError>("policy.load_state_dict", "the learned scale of ", in_quotes(name),
                         " has no positive numbers \"", entry,
                         "\". Load a state that was saved under this policy.");
    }
    optim::Adam probe(std::vector<Tensor>{ratio->second.clone()});
    NamedTensors of_adam = entries;
    of_adam.erase("first"), of_adam.erase("ratio");
    if (!of_adam.empty()) probe.load_state_dict(of_adam);  // throws for what it cannot take
  }
  memories_.clear(), waiting_ = std::move(loaded);
}

}  // namespace halftone::policy
