// Where a strategy meets a model and an optimizer, and the verbs of a step. State:
// training_state.cpp.
#include <halftone/amp/training.h>

#include <cmath>

#include <halftone/amp/weight_storage.h>
#include <halftone/autograd/ops.h>
#include <halftone/nn/norm.h>

namespace halftone::amp {

namespace {
/// What holds while the model runs. Strategies without autocast have a region, too: in it losses
/// are f32 although logits are short, and nothing else is cast.
Region region_of(const Strategy& strategy) {
  if (strategy.autocast)
    return {.policy = std::make_shared<Policy>(Policy::preset(strategy.policy)),
            .dtype = strategy.autocast};
  if (strategy.weights == f32) return {.enabled = false};
  Policy policy = Policy::preset("none");
  for (const std::string_view loss : {"cross_entropy", "nll_loss", "mse", "l1", "smooth_l1",
                                      "huber", "kl_div", "bce_with_logits"})
    policy[loss] = CastClass::full_precision;
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
    : strategy_(strategy),
      model_(model),
      optimizer_(optimizer),
      scaler_(strategy.loss_scale, {.enabled = strategy.scales_loss}),
      region_(region_of(strategy)) {
  require_f32_parameters(model, optimizer);
  if (strategy.weights == f32) return;
  if (!is_floating(strategy.weights))
    fail<DTypeError>("amp.apply", strategy.name, " has ", strategy.weights,
                     " weights. Use f32, f16 or bf16.");
  require_form("amp.apply", strategy.form, strategy.weights);
  const bool keeps = strategy.form != WeightForm::plain || strategy.accumulate_in_f32;
  const bool fuses = keeps && optimizer.set_weight_keeper(nullptr);
  if (keeps && !fuses) require_no_keeper(strategy);
  if (strategy.state_dtype) optimizer.set_default_state_dtype(*strategy.state_dtype);
  std::vector<Tensor> initial;  // the f32 data; the bodies get other storage below
  if (strategy.form != WeightForm::plain && strategy.form != WeightForm::stochastic)
    for (const Tensor& x : optimizer.parameters())
      initial.emplace_back(std::make_shared<TensorBody>(*x.body()));
  model.to(strategy.weights,
           strategy.keep_batch_norm ? is_batch_norm : std::function<bool(const nn::Module&)>{});
  // Those of batch norm alone, kept in f32, need nothing beside them.
  if (!keeps || std::ranges::none_of(optimizer.parameters(), is_short_float)) return;
  const bool fused = strategy.form != WeightForm::master || (strategy.fused_master && fuses);
  masters_ = std::make_unique<MasterWeights>(
      optimizer,
      MasterWeightsOptions{.form = strategy.form,
                           .fused = fused,
                           .accumulate_in_f32 = strategy.accumulate_in_f32,
                           .seed = strategy.seed},
      std::move(initial));
}

Training apply(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer) {
  return {strategy, model, optimizer};
}

// --- a step

void Training::zero_grad() {
  optimizer().zero_grad();
  made_with_ = 0, clipping_.reset();
}

void Training::backward(const Tensor& loss) {
  if (made_with_ != 0) scaler_.rescale(optimizer(), made_with_);
  scaler_.scale(loss).backward();
  made_with_ = scaler_.scale_value();
  clipping_.reset();
  if (masters_ && strategy_.accumulate_in_f32) masters_->collect();
}

double Training::clip_grad_norm(double max_norm) {
  if (!(max_norm >= 0))
    fail<UsageError>("Training.clip_grad_norm", "max_norm is ", max_norm, ". Use 0 or more.");
  double squares = 0;
  std::optional<std::size_t> overflow;
  const std::vector<Tensor> gradients = optimizer().gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    Tensor sum = zeros({}, f64, gradients[i].device());
    backend_for(gradients[i]).sum_of_squares({&gradients[i], 1}, sum);
    if (!overflow && !std::isfinite(sum.item())) overflow = i;
    squares += sum.item();
  }
  clipping_ = {std::sqrt(squares) / scaler_.scale_value(), max_norm, overflow};
  return clipping_->norm;
}

bool Training::step() {
  bool stepped = true;
  std::optional<std::size_t> overflow;
  if (!clipping_) {
    stepped = scaler_.step(optimizer());
    overflow = scaler_.first_overflow(optimizer());
  } else if (scaler_.enabled() && clipping_->first_overflow) {
    stepped = false, overflow = clipping_->first_overflow;
    scaler_.report(optimizer(), true);
  } else {
    const double clip = std::min(1.0, clipping_->max_norm / (clipping_->norm + 1e-6));
    const double factor = clip / scaler_.scale_value();
    const std::vector<Tensor> gradients = optimizer().gradients();
    if (factor == 1 || gradients.empty()) optimizer().step();
    else optimizer().step_scaled(full({}, factor, f32, gradients[0].device()));
    scaler_.report(optimizer(), false);
  }
  if (scaler_.enabled()) scaler_.update();
  if (!stepped) skip(overflow);
  made_with_ = 0, clipping_.reset(), statistics_.clear();
  return stepped;
}

/// The name of the gradient that overflowed, `position` among the optimizer's; and the statistics
/// of before, if they are held back.
void Training::skip(std::optional<std::size_t> position) {
  ++skipped_steps_;
  const std::vector<Tensor> parameters = optimizer().parameters();
  const auto names = model_.named_parameters();
  for (std::size_t i = 0, found = 0; position && i < parameters.size(); ++i) {
    const Tensor gradient = masters_ ? masters_->gradient(i) : parameters[i].grad();
    if (!gradient.defined() || found++ != *position) continue;
    for (const auto& [name, x] : names)
      if (x.body() == parameters[i].body()) first_overflow_ = name;
  }
  if (statistics_.empty()) return;
  const auto buffers = model_.named_buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    Tensor buffer = buffers[i].second;
    backend_for(buffer).copy(statistics_[i], buffer);
    buffer.storage()->bump_version();
  }
}

void Training::keep_statistics() {
  if (!strategy_.hold_statistics || !statistics_.empty()) return;
  const MemoryScope scope(MemoryUse::workspace);
  for (const auto& [name, buffer] : model_.named_buffers()) statistics_.push_back(buffer.clone());
}

}  // namespace halftone::amp
