// Applies a strategy to a model and an optimizer, and implements the verbs of a step. State:
// training_state.cpp.
#include <halftone/amp/training.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include <halftone/amp/session.h>
#include <halftone/amp/together.h>
#include <halftone/amp/training_core.h>
#include <halftone/amp/weight_storage.h>
#include <halftone/autograd/ops.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/nn/norm.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

namespace {
/// The policy of strategies with short weights and without autocast: losses are f32 although logits
/// are short, and f32 inputs of products with short weights are cast. Nothing else is.
class ShortWeights final : public CastPolicy {
 public:
  ShortWeights() : CastPolicy(preset("none")) {
    for (const std::string_view loss : losses()) (*this)[loss] = CastClass::full_precision;
  }
  CastDecision decide(const OpInfo& op, std::span<const Tensor> inputs) const override {
    const CastDecision listed = CastPolicy::decide(op, inputs);
    const bool joins =
        op.cast_class == CastClass::low_precision || op.cast_class == CastClass::widest_input;
    if (listed.cast_class != CastClass::as_is || !joins) return listed;
    const auto has = [&](const auto& is) {
      return std::ranges::any_of(inputs, [&](const Tensor& x) { return x.defined() && is(x); });
    };
    const bool mixed = has(is_short_float) && has([](const Tensor& x) { return x.dtype() == f32; });
    return mixed ? CastDecision(op.cast_class) : listed;
  }
};

/// Returns the region of the model's passes.
Region region_of(const Strategy& strategy) {
  if (strategy.autocast)
    return {.policy = strategy.own_policy
                          ? strategy.own_policy
                          : std::make_shared<CastPolicy>(CastPolicy::preset(strategy.policy)),
            .dtype = strategy.autocast};
  if (strategy.weights == f32 || strategy.weights == f64) return {.enabled = false};
  return {.policy = std::make_shared<ShortWeights>(), .dtype = strategy.weights};
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

/// Refuses strategies that an optimizer without updates through the backend cannot follow: it can
/// only have masters that replace its parameters.
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

TrainingCore::TrainingCore(const Strategy& asked, nn::Module& trained, optim::Optimizer& updating,
                           const Cut* cut)
    : strategy(asked),
      model(trained),
      optimizer(updating),
      scaler(asked.loss_scale, {.enabled = asked.scales_loss}),
      region(region_of(asked)),
      route(std::make_unique<GradientRoute>(*this)) {
  require_f32_parameters(model, optimizer);
  if (strategy.state_dtype) optimizer.set_default_state_dtype(*strategy.state_dtype);
  if (strategy.weights != f32) convert_weights(cut);
  if (strategy.session) region.session = strategy.session->session_for(model, strategy);
}

namespace {
/// Returns a parameter's f32 data, in new storage or in that of the body, which gets another one;
/// with a cut, only this rank's part.
Tensor initial_weight(const Tensor& parameter, std::size_t index, const Cut* cut) {
  if (!cut) return Tensor(std::make_shared<TensorBody>(*parameter.body()));
  const MemoryScope scope(MemoryUse::master_weight);
  return distributed::part_of(parameter, cut->shards.range(index, cut->rank)).clone();
}
}  // namespace

void TrainingCore::convert_weights(const Cut* cut) {
  if (!is_floating(strategy.weights))
    fail<DTypeError>("amp.apply", strategy.name, " has ", strategy.weights,
                     " weights. Use f64, f32, f16 or bf16.");
  require_form("amp.apply", strategy.form, strategy.weights);
  const bool keeps = strategy.form != WeightForm::plain || strategy.accumulate_in_f32;
  const bool fuses = keeps && optimizer.set_weight_keeper(nullptr);
  if (keeps && !fuses) require_no_keeper(strategy);
  std::vector<Tensor> initial;
  if (strategy.form != WeightForm::plain && strategy.form != WeightForm::stochastic)
    for (const Tensor& x : optimizer.parameters())
      initial.push_back(initial_weight(x, initial.size(), cut));
  model.to(strategy.weights,
           strategy.keep_batch_norm ? is_batch_norm : std::function<bool(const nn::Module&)>{});
  // If only batch norm's parameters remain, kept in f32, they need no companion.
  if (!keeps || std::ranges::none_of(optimizer.parameters(), is_short_float)) return;
  const bool fused = strategy.form != WeightForm::master || (strategy.fused_master && fuses);
  const MasterWeightsOptions options{.form = strategy.form,
                                     .fused = fused,
                                     .accumulate_in_f32 = strategy.accumulate_in_f32,
                                     .seed = strategy.seed};
  if (cut) masters_to_come = {options, std::move(initial)};
  else masters = std::make_unique<MasterWeights>(optimizer, options, std::move(initial));
}

std::vector<Tensor> TrainingCore::gradients() const {
  const std::vector<Tensor> parameters = optimizer.parameters();
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < parameters.size(); ++i)
    result.push_back(masters ? masters->gradient(i) : parameters[i].grad());
  return result;
}

void TrainingCore::zero_grad() {
  stepping().zero_grad();
  route->drop();
  made_with = {}, last_step = Stepped(true), clipping.reset();
}

void TrainingCore::hold_statistics() {
  if (strategy.hold_statistics && statistics.empty()) statistics = nn::BufferCopies(model);
}

Training::Training(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer)
    : core_(std::make_unique<TrainingCore>(strategy, model, optimizer, nullptr)) {}
Training::Training(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer,
                   Communicator& group, const distributed::Options& options)
    : core_(std::make_unique<TrainingCore>(
          strategy, model, optimizer, cut_for(strategy, model, optimizer, group, options).get())) {
  train_together(group, options);
}
Training::Training(Training&&) noexcept = default;
Training::~Training() = default;

nn::Module& Training::model() { return core_->model; }
const Strategy& Training::strategy() const { return core_->strategy; }
const Region& Training::region() const { return core_->region; }
GradScaler& Training::scaler() { return core_->scaler; }
MasterWeights* Training::masters() { return core_->masters.get(); }
optim::Optimizer& Training::optimizer() { return core_->stepping(); }
const LastPass& Training::last_pass() const { return core_->last_pass; }
Communicator* Training::group() const { return core_->route->group(); }
std::vector<Tensor> Training::parameters() const { return core_->route->parameters(); }
Tensor Training::weight(std::size_t index) const { return core_->route->weight(index); }

void Training::train_together(Communicator& group, const distributed::Options& options) {
  if (trains_together())
    fail<UsageError>("Training.train_together",
                     "called twice. Call it once, before the first step.");
  auto route = std::make_unique<TogetherRoute>(*core_, group, options);
  TogetherRoute& together = *route;
  core_->route = std::move(route);
  together.begin();
}

Training apply(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer) {
  return {strategy, model, optimizer};
}

Training apply(std::string_view strategy, nn::Module& model, optim::Optimizer& optimizer) {
  return {Strategy::named(strategy), model, optimizer};
}

Training apply(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer,
               const distributed::Options& options) {
  return {strategy, model, optimizer, world(), options};
}

// --- a step

Tensor Training::as_input(const Tensor& x) const {
  return core_->strategy.weights == f64 && x.defined() && x.dtype() == f32 ? cast(x, f64) : x;
}

namespace {
/// Looks at the casts of a training's inputs in its first pass.
class InputWatch final : public CastWatcher {
 public:
  InputWatch(std::string strategy, std::initializer_list<Tensor> inputs)
      : strategy_(std::move(strategy)) {
    for (const Tensor& x : inputs)
      if (x.defined() && x.numel() > 0) inputs_.push_back(x.storage());
  }
  void casting(const Tensor& x, DType to) override {
    if (x.dtype() != f32 || std::erase(inputs_, x.storage()) == 0) return;
    const NoGrad no_grad;
    const CasterScope no_cast(nullptr);
    const CastWatcherScope no_watch(nullptr);
    say_if_lost(x.detach(), to);
  }

 private:
  /// Columns are those of a table, features of sequences, channels of images.
  void say_if_lost(const Tensor& x, DType to) const {
    constexpr int64_t most_rows = 4096;
    constexpr double most_lost = 0.05;
    if (x.rank() < 2 || x.size(0) < 2) return;
    const int column = x.rank() == 3 ? 2 : 1;
    const Tensor rows = views::slice(x, 0, 0, std::min(x.size(0), most_rows));
    const Tensor some = flatten(cast(transpose(rows, 0, column), f64), 1);  // [columns, numbers]
    const Tensor means = mean(some, {1}, true);
    const std::vector<double> squares = mean(square(some - means), {1}).to_vector<double>(),
                              errors = mean(square(cast(cast(some, to), f64) - some), {1})
                                           .to_vector<double>();
    std::size_t worst = 0;
    double lost = 0;
    for (std::size_t i = 0; i < squares.size(); ++i)
      if (const double share = std::sqrt(errors[i] / squares[i]); share > lost)
        worst = i, lost = share;
    if (!(lost > most_lost)) return;
    PlainText text;
    text << "[Training] under " << strategy_ << " an input is rounded to " << to
         << " as it is. In column " << worst << " (mean " << means.to_vector<double>()[worst]
         << ", standard deviation " << std::sqrt(squares[worst]) << ") that changes numbers by "
         << 100 * lost << " % of the deviation. Standardize inputs first, for example by "
         << "nn::Standardizer as the first layer.\n";
    std::cerr << text.str();
  }

  std::string strategy_;
  std::vector<std::shared_ptr<Storage>> inputs_{};
};
}  // namespace

std::shared_ptr<void> Training::watch_inputs(std::initializer_list<Tensor> inputs) {
  if (!std::exchange(core_->watches_inputs, false)) return nullptr;
  struct Watching {
    InputWatch watch;
    CastWatcherScope scope{&watch};
    Watching(const std::string& strategy, std::initializer_list<Tensor> inputs)
        : watch(strategy, inputs) {}
  };
  return std::make_shared<Watching>(core_->strategy.name, inputs);
}

Tensor Training::as_f32(const Tensor& result) {
  return is_short_float(result) ? cast(result, f32) : result;
}

void Training::begin_forward() {
  core_->route->begin_forward();
  if (!grad_enabled()) return;  // no step follows: an evaluation
  core_->last_pass.random = default_generator().state();
  core_->hold_statistics();
}

void Training::end_forward() { core_->route->end_forward(); }

/// An installed sink has priority: it belongs to a pass that is repeated for observation.
StatisticsSink* Training::statistics_sink() const {
  StatisticsSink* const active = active_statistics_sink();
  return active ? active : core_->route->statistics_sink();
}

void Training::zero_grad() { core_->zero_grad(); }

/// 2^36 numbers for each batch; the counters from the top down are the data loader's.
void Training::begin_batch(int64_t number) {
  constexpr int64_t most = (int64_t(1) << 30) - 2;
  if (number < 0 || number >= most)
    fail<UsageError>("Training.begin_batch", "the batch has number ", number,
                     ". Count the batches of a training from 0, up to ", most, '.');
  const uint64_t seed = default_generator().state().seed;
  default_generator().set_state({seed, uint64_t(number + 1) << 34});
  core_->route->begin_batch(number);
  if (core_->region.session) core_->region.session->begin_batch(number);
}

namespace {
/// Runs a backward pass, and throws if it reached parameters that no module describes: these would
/// never be trained, cast or saved.
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
  TrainingCore& core = *core_;
  core.route->require_fresh();
  const Tensor scaled = core.scaler.scale(loss);
  if (core.scaler.enabled()) {
    const Tensor& now = core.scaler.scale_tensor();  // another tensor if the scale has changed
    if (core.made_with.defined() && core.made_with.body() != now.body())
      core.route->rescale(core.made_with);
    core.made_with = now;
  }
  core.last_pass.scale = core.made_with;
  core.route->begin_backward();
  {
    const GradientListenerScope sends(core.route->listener());
    if (std::exchange(core.first_backward, false)) backward_reaching_described(scaled);
    else scaled.backward();
  }
  core.clipping.reset();
  core.route->end_backward();
}

void Training::no_backward() { core_->route->no_backward(); }
void Training::gather_gradients() { core_->route->gather(); }
double Training::sum_of_ranks(double own) const { return core_->route->sum(own); }

Tensor Training::clip_grad_norm(double max_norm, double norm_type) {
  if (!(max_norm >= 0))
    fail<UsageError>("Training.clip_grad_norm", "max_norm is ", max_norm, ". Use 0 or more.");
  gather_gradients();
  Tensor norm = core_->route->norm(norm_type);
  if (scaler().enabled()) norm = norm / cast(scaler().scale_tensor().to(norm.device()), f64);
  core_->clipping = {norm, max_norm};
  return norm;
}

void Training::clip_grad_value(double limit) {
  gather_gradients();
  if (scaler().enabled()) scaler().unscale(optimizer());
  std::vector<Tensor> gradients = optimizer().gradients();
  optim::clip_gradients_value(gradients, limit);
}

namespace {
/// The silent mistake of mixed precision: everything works, in f32.
void say_if_nothing_was_cast(TrainingCore& core) {
  if (!core.casts_before) return;
  // Rules may say f32 everywhere; a session itself knows whether the model ran under them.
  const bool none =
      core.strategy.autocast && !core.region.session && casts_made() == *core.casts_before;
  core.casts_before.reset();
  if (none)
    std::cerr << "[Training] under " << core.strategy.name << " nothing was cast to "
              << *core.strategy.autocast
              << " before the first step. Run the model inside of training.forward().\n";
}

/// Records the name of the first gradient that is not finite, on any rank.
void note_overflow(TrainingCore& core) {
  const std::vector<Tensor> gradients = core.gradients();
  std::size_t first = gradients.size();
  std::optional<std::size_t> position = first_not_finite(gradients);
  for (std::size_t i = 0; position && i < gradients.size(); ++i)
    if (gradients[i].defined() && (*position)-- == 0) {
      first = i;
      break;
    }
  first = core.route->smallest(first);
  if (first == gradients.size()) return;
  const Tensor parameter = core.route->parameters()[first];
  for (const auto& [name, x] : core.model.named_parameters())
    if (x.body() == parameter.body()) core.first_overflow = name;
}

/// Counts a skipped step, finds the gradient that overflowed, and restores statistics; if the host
/// does not know the outcome yet, it does so on the device.
void account_for(TrainingCore& core, const Stepped& stepped) {
  core.last_step = Stepped(true);
  if (!stepped.known()) {
    Tensor found_inf =
        cast(not_equal(stepped.skip(), zeros({}, f32, stepped.skip().device())), f64);
    if (core.skipped_on_device.defined())
      backend_for(found_inf).accumulate(found_inf.to(core.skipped_on_device.device()),
                                        core.skipped_on_device);
    else core.skipped_on_device = found_inf;
    core.last_step = stepped;
    core.statistics.restore_where(stepped.skip());
  } else if (!stepped) {
    ++core.skipped_steps;
    note_overflow(core);
    core.statistics.restore_where(ones({}));
  }
}
}  // namespace

Stepped Training::step() {
  TrainingCore& core = *core_;
  const std::shared_ptr<Session> session = core.region.session;
  core.route->begin_step();
  if (session) session->before_step();
  say_if_nothing_was_cast(core);
  core.route->gather();
  Stepped stepped(true);
  if (core.clipping) stepped = step_clipped();
  else if (core.scaler.enabled()) stepped = core.scaler.step(optimizer());
  else optimizer().step();
  if (core.scaler.enabled()) core.scaler.update();
  account_for(core, stepped);
  if (!stepped.known() || stepped) core.route->end_step();
  if (session)
    session->end_step(optimizer(),
                      !stepped.known() ? stepped.skip() : (stepped ? Tensor{} : ones({})));
  core.made_with = {}, core.clipping.reset(), core.statistics = {};
  return stepped;
}

/// Uses one factor for both, min(1, max_norm / (norm + 1e-6)) / scale, computed in f64; the norm is
/// infinite or NaN exactly if a gradient is.
Stepped Training::step_clipped() {
  const Tensor& norm = core_->clipping->norm;
  const Tensor one = ones({}, f64, norm.device());
  const Tensor quotient = full({}, core_->clipping->max_norm, f64, norm.device()) / (norm + 1e-6);
  Tensor factor = where(less(quotient, one), quotient, one), found_inf;
  if (scaler().enabled()) {
    factor = factor / cast(scaler().scale_tensor().to(norm.device()), f64);
    found_inf = zeros({}, f32, norm.device());
    Tensor checked = norm;
    backend_for(norm).unscale({&checked, 1}, {}, found_inf);
    scaler().report(optimizer(), found_inf);
  }
  factor = cast(factor, f32);
  const bool free = norm.device().kind == DeviceKind::cpu;
  if (free && *factor.data<float>() == 1) factor = {};
  return amp::step(optimizer(), {.factor = factor, .skip = found_inf}, scaler().decision());
}

int64_t Training::skipped_steps() const { return core_->all_skipped_steps(); }

int64_t TrainingCore::all_skipped_steps() const {
  return skipped_steps + (skipped_on_device.defined() ? int64_t(skipped_on_device.item()) : 0);
}

const std::string& Training::first_overflow() const {
  if (!core_->last_step) note_overflow(*core_);
  core_->last_step = Stepped(true);
  return core_->first_overflow;
}

std::shared_ptr<Session> Training::set_session(std::shared_ptr<Session> session) {
  return std::exchange(core_->region.session, std::move(session));
}

}  // namespace halftone::amp
