// Where a strategy meets a model and an optimizer, and the verbs of a step. State:
// training_state.cpp.
#include <halftone/amp/training.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include <halftone/amp/session.h>
#include <halftone/amp/together.h>
#include <halftone/amp/weight_storage.h>
#include <halftone/autograd/leaf_watch.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/plain_numbers.h>
#include <halftone/distributed/collectives.h>
#include <halftone/nn/norm.h>
#include <halftone/optim/clip_grad.h>
#include <halftone/optim/gradient_lists.h>
#include <halftone/core/in_place.h>

namespace halftone::amp {

namespace {
/// What holds while the model runs. Strategies without autocast have a region, too: in it losses
/// are f32 although logits are short, and nothing else is cast.
Region region_of(const Strategy& strategy) {
  if (strategy.autocast)
    return {.policy = strategy.own_policy
                          ? strategy.own_policy
                          : std::make_shared<CastPolicy>(CastPolicy::preset(strategy.policy)),
            .dtype = strategy.autocast};
  if (strategy.weights == f32 || strategy.weights == f64) return {.enabled = false};
  CastPolicy policy = CastPolicy::preset("none");
  for (const std::string_view loss : CastPolicy::losses()) policy[loss] = CastClass::full_precision;
  return policy.with(strategy.weights);
}

void require_f32_parameters(const nn::Module& model, const optim::Optimizer& optimizer) {
  std::vector<const TensorBody*> own;
  for (const auto& [name, x] : model.named_parameters()) {
    own.push_back(x.body().get());
    if (x.dtype() != f32)
      fail<DTypeError>("amp.apply", "parameter ", name, " is ", described(x),
                       ". Give the strategy a model in f32: it casts itself.");
  }
  for (const Tensor& x : optimizer.parameters())
    if (std::ranges::find(own, x.body().get()) == own.end())
      fail<UsageError>("amp.apply", "the optimizer has a parameter ", described(x),
                       " that the model has not. Make it from model.parameters().");
}

/// What an optimizer can have that does not update through the backend: masters in the place of its
/// parameters, and nothing else.
void require_no_keeper(const Strategy& strategy) {
  if (strategy.form == WeightForm::plain)
    fail<UsageError>("amp.apply",
                     "accumulate_in_f32 without masters needs an optimizer that updates through "
                     "the backend, which this one does not. Use a strategy of form master, or "
                     "leave accumulate_in_f32 off.");
  if (strategy.form != WeightForm::master)
    fail<UsageError>("amp.apply", strategy.name, " keeps weights in form ", name(strategy.form),
                     ", which needs an optimizer that updates through the backend; this one does "
                     "not. Use a strategy of form master, for example o2-bf16.");
}

bool is_batch_norm(const nn::Module& module) {
  return dynamic_cast<const nn::BatchNorm*>(&module) != nullptr;
}
}  // namespace

Training::Training(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer)
    : Training(strategy, model, optimizer, nullptr) {}

Training::Training(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer,
                   const Cut* cut)
    : strategy_(strategy),
      model_(model),
      optimizer_(optimizer),
      scaler_(strategy.loss_scale, {.enabled = strategy.scales_loss}),
      region_(region_of(strategy)) {
  require_f32_parameters(model, optimizer);
  if (strategy.state_dtype) optimizer.set_default_state_dtype(*strategy.state_dtype);
  if (strategy.weights != f32) convert_weights(cut);
  if (strategy.session) region_.session = strategy.session(model);
}

/// A parameter's f32 data, in storage of its own or of the body, which gets another one; of a cut
/// only what is kept.
Tensor Training::initial_weight(const Tensor& parameter, std::size_t index, const Cut* cut) {
  if (!cut) return Tensor(std::make_shared<TensorBody>(*parameter.body()));
  const MemoryScope scope(MemoryUse::master_weight);
  return part_of(parameter, cut->shards.range(index, cut->rank)).clone();
}

void Training::convert_weights(const Cut* cut) {
  const Strategy& strategy = strategy_;
  if (!is_floating(strategy.weights))
    fail<DTypeError>("amp.apply", strategy.name, " has ", strategy.weights,
                     " weights. Use f64, f32, f16 or bf16.");
  require_form("amp.apply", strategy.form, strategy.weights);
  const bool keeps = strategy.form != WeightForm::plain || strategy.accumulate_in_f32;
  const bool fuses = keeps && optimizer_.set_weight_keeper(nullptr);
  if (keeps && !fuses) require_no_keeper(strategy);
  std::vector<Tensor> initial;
  if (strategy.form != WeightForm::plain && strategy.form != WeightForm::stochastic)
    for (const Tensor& x : optimizer_.parameters())
      initial.push_back(initial_weight(x, initial.size(), cut));
  model_.to(strategy.weights,
            strategy.keep_batch_norm ? is_batch_norm : std::function<bool(const nn::Module&)>{});
  // Those of batch norm alone, kept in f32, need nothing beside them.
  if (!keeps || std::ranges::none_of(optimizer_.parameters(), is_short_float)) return;
  const bool fused = strategy.form != WeightForm::master || (strategy.fused_master && fuses);
  const MasterWeightsOptions options{.form = strategy.form,
                                     .fused = fused,
                                     .accumulate_in_f32 = strategy.accumulate_in_f32,
                                     .seed = strategy.seed};
  if (cut) masters_to_come_ = options, initial_parts_ = std::move(initial);
  else masters_ = std::make_unique<MasterWeights>(optimizer_, options, std::move(initial));
}

Training::Training(Training&&) noexcept = default;
Training::~Training() {
  if (!has_parts()) return;
  masters_.reset();
  try {
    replace_parameters(together_->reducer.parameters());
  } catch (...) {}  // there is no memory, not even for names
}

Training apply(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer) {
  return {strategy, model, optimizer};
}

Training apply(std::string_view strategy, nn::Module& model, optim::Optimizer& optimizer) {
  return {Strategy::named(strategy), model, optimizer};
}

// --- a step

void Training::zero_grad() {
  optimizer().zero_grad();
  if (together_) together_->drop();
  made_with_ = {}, last_step_ = Stepped(true), clipping_.reset();
}

namespace {
/// A backward pass, and an error if it reached parameters that no module describes: nobody would
/// ever train, cast or save them.
void backward_reaching_described(const Tensor& loss) {
  std::vector<std::pair<const AutogradMeta*, Edge>> forgotten;
  {
    const LeafWatch watch([&](const AutogradMeta& leaf, const Edge& edge) {
      const auto known = [&](const auto& entry) { return entry.first == &leaf; };
      if (leaf.unclaimed && std::ranges::none_of(forgotten, known))
        forgotten.emplace_back(&leaf, edge);
    });
    loss.backward();
  }
  if (forgotten.empty()) return;
  PlainText list;
  for (const auto& [leaf, edge] : forgotten)
    list << (&leaf == &forgotten.front().first ? "" : ", ") << edge.shape << ' ' << edge.dtype;
  fail<UsageError>("Training.backward", "the loss depends on ", forgotten.size(),
                   forgotten.size() == 1 ? " parameter" : " parameters",
                   " that no module's describe() names: ", list.str(),
                   ". They would not be trained, cast or saved. Name each in the describe() of its "
                   "module: field(\"name\", member).");
}
}  // namespace

void Training::backward(const Tensor& loss) {
  if (together_) require_fresh_gradients();
  const Tensor scaled = scaler_.scale(loss);
  if (scaler_.enabled()) {
    const Tensor& now = scaler_.scale_tensor();  // another tensor since the scale has moved
    if (made_with_.defined() && made_with_.body() != now.body()) {
      if (together_)
        fail<UsageError>("Training.backward",
                         "the loss scale moved between two batches of a step, whose gradients are "
                         "summed up already. Update the scaler between steps.");
      scaler_.rescale(optimizer(), made_with_);
    }
    made_with_ = now;
  }
  last_pass_.scale = made_with_;
  if (together_) prepare_wire();
  {
    const GradientListenerScope sends(together_ ? &together_->reducer : nullptr);
    if (std::exchange(first_backward_, false)) backward_reaching_described(scaled);
    else scaled.backward();
  }
  clipping_.reset();
  if (together_) together_->add_batches(true);
  else if (masters_ && strategy_.accumulate_in_f32) masters_->collect();
}

Tensor Training::clip_grad_norm(double max_norm, double norm_type) {
  if (!(max_norm >= 0))
    fail<UsageError>("Training.clip_grad_norm", "max_norm is ", max_norm, ". Use 0 or more.");
  if (together_) gather_gradients();
  const std::vector<Tensor> gradients = optimizer().gradients();
  Tensor norm = together_ ? norm_together(norm_type) : optim::norm_of(gradients, norm_type);
  if (scaler_.enabled()) norm = norm / cast(scaler_.scale_tensor().to(norm.device()), f64);
  clipping_ = {norm, max_norm};
  return norm;
}

void Training::clip_grad_value(double limit) {
  gather_gradients();
  if (scaler_.enabled()) scaler_.unscale(optimizer());
  std::vector<Tensor> gradients = optimizer().gradients();
  optim::clip_gradients_value(gradients, limit);
}

/// The silent mistake of mixed precision: everything works, in f32.
void Training::say_if_nothing_was_cast() {
  if (!casts_before_) return;
  // Rules may say f32 everywhere; a session knows by itself whether the model ran under them.
  const bool none = strategy_.autocast && !region_.session && casts_made() == *casts_before_;
  casts_before_.reset();
  if (none)
    std::cerr << "[Training] under " << strategy_.name << " nothing was cast to "
              << *strategy_.autocast
              << " before the first step. Run the model inside of training.forward().\n";
}

Stepped Training::step() {
  if (!together_ && strategy_.wire != distributed::WireFormat{})
    fail<UsageError>("Training.step", "under ", strategy_.name, " gradients travel in ",
                     name(strategy_.wire),
                     " to a sum, and here nothing is summed up. Call train_together() before the "
                     "first step, also for one process.");
  if (region_.session && together_) tell_session();
  if (region_.session) region_.session->before_step();
  say_if_nothing_was_cast();
  if (together_) gather_gradients();
  Stepped stepped(true);
  if (clipping_) stepped = step_clipped();
  else if (scaler_.enabled()) stepped = scaler_.step(optimizer());
  else optimizer().step();
  if (scaler_.enabled()) scaler_.update();
  account_for(stepped);
  if (together_ && (!stepped.known() || stepped)) together_->reducer.gather_parameters();
  if (region_.session)
    region_.session->end_step(optimizer(),
                              !stepped.known() ? stepped.skip() : (stepped ? Tensor{} : ones({})));
  made_with_ = {}, clipping_.reset(), statistics_ = {};
  return stepped;
}

/// One factor for both, min(1, max_norm / (norm + 1e-6)) / scale, computed in f64; the norm is
/// infinite or NaN exactly if a gradient is.
Stepped Training::step_clipped() {
  const Tensor& norm = clipping_->norm;
  const Tensor one = ones({}, f64, norm.device());
  const Tensor quotient = full({}, clipping_->max_norm, f64, norm.device()) / (norm + 1e-6);
  Tensor factor = where(less(quotient, one), quotient, one), found_inf;
  if (scaler_.enabled()) {
    factor = factor / cast(scaler_.scale_tensor().to(norm.device()), f64);
    found_inf = zeros({}, f32, norm.device());
    Tensor checked = norm;
    backend_for(norm).unscale({&checked, 1}, {}, found_inf);
    scaler_.report(optimizer(), found_inf);
  }
  factor = cast(factor, f32);
  const bool free = norm.device().kind == DeviceKind::cpu;
  if (free && *factor.data<float>() == 1) factor = {};
  return amp::step(optimizer(), {.factor = factor, .skip = found_inf}, scaler_.decision());
}

/// Counts a skipped step, learns who overflowed, and puts statistics back; for a step that the host
/// knows nothing of yet, on the device.
void Training::account_for(const Stepped& stepped) {
  last_step_ = Stepped(true);
  if (!stepped.known()) {
    Tensor found_inf =
        cast(not_equal(stepped.skip(), zeros({}, f32, stepped.skip().device())), f64);
    if (skipped_on_device_.defined())
      backend_for(found_inf).accumulate(found_inf.to(skipped_on_device_.device()),
                                        skipped_on_device_);
    else skipped_on_device_ = found_inf;
    last_step_ = stepped;
    statistics_.restore_where(stepped.skip());
  } else if (!stepped) {
    ++skipped_steps_;
    note_overflow();
    statistics_.restore_where(ones({}));
  }
}

int64_t Training::skipped_steps() const {
  return skipped_steps_ + (skipped_on_device_.defined() ? int64_t(skipped_on_device_.item()) : 0);
}

const std::string& Training::first_overflow() const {
  if (!last_step_) note_overflow();
  last_step_ = Stepped(true);
  return first_overflow_;
}

/// Undefined where there is none.
std::vector<Tensor> Training::gradients_by_parameter() const {
  const std::vector<Tensor> parameters = optimizer_.parameters();
  std::vector<Tensor> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    gradients.push_back(masters_ ? masters_->gradient(i) : parameters[i].grad());
  return gradients;
}

/// The name of the first gradient that is not finite, on any rank.
void Training::note_overflow() const {
  const std::vector<Tensor> gradients = gradients_by_parameter();
  std::size_t first = gradients.size();
  std::optional<std::size_t> position = first_not_finite(gradients);
  for (std::size_t i = 0; position && i < gradients.size(); ++i)
    if (gradients[i].defined() && (*position)-- == 0) {
      first = i;
      break;
    }
  if (has_parts())
    first = std::size_t(-distributed::largest(together_->group, "overflows", -int64_t(first)));
  if (first == gradients.size()) return;
  const Tensor parameter = parameters()[first];
  for (const auto& [name, x] : model_.named_parameters())
    if (x.body() == parameter.body()) first_overflow_ = name;
}

std::shared_ptr<Session> Training::set_session(std::shared_ptr<Session> session) {
  return std::exchange(region_.session, std::move(session));
}

void Training::begin_forward() {
  if (!grad_enabled()) return;  // then there is no step to come: an evaluation
  last_pass_.random = default_generator().state();
  hold_statistics();
}

void Training::hold_statistics() {
  if (strategy_.hold_statistics && statistics_.empty()) statistics_ = nn::BufferCopies(model_);
}

}  // namespace halftone::amp
