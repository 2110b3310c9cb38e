// Applies a strategy to a model and an optimizer, and implements the verbs of a step.
#include <halftone/amp/training.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include <halftone/amp/master_weights.h>
#include <halftone/amp/session.h>
#include <halftone/amp/training_core.h>
#include <halftone/autograd/ops.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/named_tensors.h>
#include <halftone/nn/conv.h>
#include <halftone/nn/module.h>
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
Region region_of(const Policy& strategy) {
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
void require_no_keeper(const Policy& strategy) {
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

void set_state_formats(const Policy& strategy, optim::Optimizer& optimizer) {
  if (!strategy.state_dtype && strategy.states.empty()) return;
  if (optimizer.set_state_formats(strategy.state_formats()) || strategy.states.empty()) return;
  fail<UsageError>("amp.apply", strategy.name, " stores ", strategy.states.begin()->first, " as ",
                   strategy.states.begin()->second, ", and ", optimizer.name(),
                   " has no choice of formats. Use an optimizer of optim/, or leave \"stored\" "
                   "out.");
}

bool is_batch_norm(const nn::Module& module) {
  return dynamic_cast<const nn::BatchNorm*>(&module) != nullptr;
}
}  // namespace

TrainingCore::TrainingCore(const Policy& asked, nn::Module& trained, optim::Optimizer& updating,
                           const Cut* cut)
    : strategy(asked),
      model(trained),
      optimizer(updating),
      scaler(asked.loss_scale, {.enabled = asked.scales_loss}),
      region(region_of(asked)),
      route(std::make_unique<GradientRoute>(*this)) {
  require_f32_parameters(model, optimizer);
  set_state_formats(strategy, optimizer);
  if (strategy.weights != f32) convert_weights(cut);
  region.session = policy::session_for(model, strategy);
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
                                     .seed = strategy.random_seed()};
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

Training::Training(const Policy& strategy, nn::Module& model, optim::Optimizer& optimizer)
    : core_(std::make_unique<TrainingCore>(strategy, model, optimizer, nullptr)) {}
Training::Training(const Policy& strategy, nn::Module& model, optim::Optimizer& optimizer,
                   Communicator& group, const distributed::Options& options)
    : core_(std::make_unique<TrainingCore>(
          strategy, model, optimizer, cut_for(strategy, model, optimizer, group, options).get())) {
  train_together(group, options);
}
Training::Training(Training&&) noexcept = default;
Training::~Training() = default;

nn::Module& Training::model() { return core_->model; }
const Policy& Training::strategy() const { return core_->strategy; }
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

Training apply(const Policy& strategy, nn::Module& model, optim::Optimizer& optimizer) {
  return {strategy, model, optimizer};
}

Training apply(std::string_view strategy, nn::Module& model, optim::Optimizer& optimizer) {
  return {Policy::named(strategy), model, optimizer};
}

Training apply(const Policy& strategy, nn::Module& model, optim::Optimizer& optimizer,
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
  if (!is_short_float(result)) return result;
  // A leaf may be a parameter, which the next step writes: its copy is made now.
  return result.is_leaf() ? cast(result, f32) : apply(Cast{.to = f32, .later = true}, result);
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
  const std::shared_ptr<policy::Session> session = core.region.session;
  core.route->begin_step();
  if (session) session->before_step(core.made_with);
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

std::shared_ptr<policy::Session> Training::set_session(std::shared_ptr<policy::Session> session) {
  return std::exchange(core_->region.session, std::move(session));
}

// The route of one process.

void GradientRoute::rescale(const Tensor& old) { core_.scaler.rescale(core_.stepping(), old); }

void GradientRoute::end_backward() {
  if (core_.masters && core_.strategy.accumulate_in_f32) core_.masters->collect();
}

void GradientRoute::no_backward() {
  fail<UsageError>("Training.no_backward",
                   "this training is not part of a group. Call train_together() first, or leave it "
                   "out.");
}

void GradientRoute::begin_step() {
  if (core_.strategy.wire != distributed::WireFormat{})
    fail<UsageError>("Training.step", "under ", core_.strategy.name, " gradients travel in ",
                     name(core_.strategy.wire),
                     " to a sum, and here nothing is summed up. Call train_together() before the "
                     "first step, also for one process.");
}

Tensor GradientRoute::norm(double norm_type) const {
  return optim::norm_of(core_.stepping().gradients(), norm_type);
}

std::vector<Tensor> GradientRoute::parameters() const {
  return core_.masters ? core_.masters->parameters() : core_.optimizer.parameters();
}

Tensor GradientRoute::weight(std::size_t index) const {
  const Tensor parameter = parameters().at(index);
  if (!is_short_float(parameter)) return parameter.detach();
  return core_.masters ? core_.masters->weight(index) : converted(parameter, f32);
}

void GradientRoute::on_rank_0(std::string_view, const std::function<void()>& f) const { f(); }

void GradientRoute::write_state(const std::function<void(const TensorSource&)>& write) const {
  const optim::NamedTensors own = core_.state();
  write(source_of(own));
}

optim::NamedTensors GradientRoute::part_of_state(
    const std::function<optim::NamedTensors()>& make) const {
  return make();
}

// Everything a training continues from, as named tensors. Loading checks everything first and
// changes the model afterwards. States of other strategies are converted below.

namespace {
using optim::NamedTensors;

/// Returns whether the model's tensors were saved in their present dtypes.
bool same_dtypes(const NamedTensors& given, const nn::Module& model) {
  return std::ranges::all_of(nn::state_dict(model), [&](const auto& own) {
    const auto found = given.find("model." + own.first);
    return found == given.end() || !found->second.defined() ||
           found->second.dtype() == own.second.dtype();
  });
}
}  // namespace

NamedTensors TrainingCore::state() const {
  NamedTensors all;
  add_part(all, "model.", nn::state_dict(model));
  add_part(all, "optimizer.", masters ? masters->state_dict() : optimizer.state_dict());
  add_part(all, "scaler.", scaler.state_dict());
  if (region.session) add_part(all, "session.", region.session->state_dict());
  const RandomKey random = default_generator().state();
  all["generator"] =
      from_vector(std::vector<int64_t>{int64_t(random.seed), int64_t(random.offset)}, {2}, i64);
  all["strategy"] = text_tensor(strategy.name);
  all["form"] = text_tensor(halftone::name(strategy.form));
  if (const int64_t skipped = all_skipped_steps(); skipped > 0)
    all["skipped_steps"] = from_vector(std::vector<int64_t>{skipped}, {}, i64);
  return all;
}

namespace {
/// Returns the given state as a state of this strategy, of whole tensors.
NamedTensors fitting(const TrainingCore& core, const NamedTensors& given, Convert convert) {
  Entries entries(loading_training, "a Training", given);
  const bool same = entries.text("strategy") == core.strategy.name &&
                    entries.text("form") == halftone::name(core.strategy.form) &&
                    same_dtypes(given, core.model);
  NamedTensors state = same ? given : converted(core, given, convert);
  // A session's state of another policy, or of none, does not fit this one.
  if (!same)
    std::erase_if(state, [](const auto& entry) { return entry.first.starts_with("session."); });
  Entries unknown(loading_training, "a Training", state);
  for (const std::string_view part : {"model.", "optimizer.", "scaler.", "session."})
    unknown.part(part);
  for (const char* name : {"generator", "strategy", "form", "skipped_steps"}) unknown.find(name);
  unknown.refuse_rest();
  return state;
}
}  // namespace

void Training::write_state(const std::function<void(const TensorSource&)>& write) const {
  core_->route->write_state(write);
}

NamedTensors Training::state_dict() const {
  NamedTensors state;
  write_state([&](const TensorSource& source) {
    for (const TensorInfo& info : source.infos) state[info.name] = source.tensor(info.name);
  });
  return state;
}

void Training::load_state_dict(const NamedTensors& given, Convert convert) {
  core_->load(core_->route->part_of_state([&] { return fitting(*core_, given, convert); }));
}

void TrainingCore::load(const NamedTensors& state) {
  const NamedTensors weights = part_of(state, "model."), session = part_of(state, "session.");
  // Each load checks before it changes anything, the model first; if a later one fails, the values
  // loaded before it are restored.
  NamedTensors before;
  for (const auto& [name, x] : nn::state_dict(model)) before[name] = x.clone();
  NamedTensors session_before;
  if (!session.empty() && region.session) {
    for (const auto& [name, x] : region.session->state_dict()) session_before[name] = x.clone();
    region.session->load_state_dict(session);
  }
  try {
    nn::load_state_dict(model, weights);
    load_except_model(state);
  } catch (...) {
    nn::load_state_dict(model, before);
    if (!session_before.empty()) region.session->load_state_dict(session_before);
    throw;
  }
}

void TrainingCore::load_except_model(const NamedTensors& given) {
  Entries entries(loading_training, "a Training", given);
  const std::vector<int64_t> key = entries.take("generator", {2}, i64).to_vector<int64_t>();
  const int64_t skipped =
      entries.has("skipped_steps") ? entries.count("skipped_steps", "number of skipped steps") : 0;
  const NamedTensors of_scaler = entries.part("scaler.");
  GradScaler trial = scaler;
  trial.load_state_dict(of_scaler);
  stepping().load_state_dict(entries.part("optimizer."));
  scaler.load_state_dict(of_scaler);  // in place: captured steps go on from it
  skipped_steps = skipped, skipped_on_device = {};
  default_generator().set_state({uint64_t(key[0]), uint64_t(key[1])});
  zero_grad();
  statistics = {};
}

void Training::save(const std::filesystem::path& path) const {
  write_state([&](const TensorSource& source) {
    stream_safetensors(path, source, {{"format", "pt"}, {"strategy", core_->strategy.name}});
  });
}

void Training::load(const std::filesystem::path& path, Convert convert) {
  const MemoryScope scope(MemoryUse::workspace);  // the file's tensors live until copied
  NamedTensors state;
  const auto read = [&] {
    SafetensorsFile file = nn::load_safetensors(path);
    file.require_all();
    state = std::move(file.tensors);
  };
  core_->route->on_rank_0("a state to load", read);
  load_state_dict(state, convert);
}

// Conversion of weights between strategies: rewrites a state that another strategy saved as a state
// of this one. Every tensor of the model is joined from its saved form and split into its form in
// this strategy; the model itself does not change.

namespace {
constexpr std::string_view loading = loading_training;
using optim::NamedTensors;

/// A parameter or buffer of the model; tied ones have several names.
struct ModelTensor {
  Tensor target;
  std::vector<std::string> names{};       // entries of the state
  std::optional<std::size_t> position{};  // among the optimizer's parameters; absent: frozen
};

std::vector<ModelTensor> tensors_of(const nn::Module& model,
                                    const std::vector<Tensor>& parameters) {
  const auto body = [](const auto& x) { return x.body().get(); };
  std::vector<ModelTensor> list;
  for (const auto& [name, x] : nn::state_dict(model)) {
    auto known = std::ranges::find(list, x.body().get(),
                                   [&](const ModelTensor& t) { return body(t.target); });
    if (known == list.end()) {
      known = list.insert(list.end(), {.target = x});
      const auto own = std::ranges::find(parameters, x.body().get(), body);
      if (own != parameters.end()) known->position = std::size_t(own - parameters.begin());
    }
    known->names.push_back("model." + name);
  }
  return list;
}

/// Takes a tensor's saved value, which must be equal under each of its names.
Tensor take_value(Entries& entries, const ModelTensor& tensor) {
  Tensor value = entries.take(tensor.names[0]);
  if (value.shape() != tensor.target.shape())
    fail<ShapeError>(loading, '"', tensor.names[0], "\" is ", described(value), " instead of ",
                     tensor.target.shape(), ". Build the model with the sizes that were saved.");
  if (tensor.position && value.dtype() != f64 && value.dtype() != f32 && !is_short_float(value))
    fail<DTypeError>(loading, '"', tensor.names[0], "\" is ", described(value),
                     ", but weights are saved in f64, f32, bf16 or f16. The state is damaged.");
  for (std::size_t i = 1; i < tensor.names.size(); ++i)
    if (const Tensor other = entries.take(tensor.names[i]);
        other.dtype() != value.dtype() || !same_values(other, value))
      fail<UsageError>(loading, '"', tensor.names[i], "\" is not \"", tensor.names[0],
                       "\", but the model has the two tied. Load a state of a model that has them "
                       "tied as well.");
  return value;
}

std::string companion_entry(WeightForm form, std::size_t position) {
  std::string text("optimizer.");
  text += facts(form).companion, text += '.';
  return text += std::to_string(position);
}

/// Returns the weight of a saved parameter and its companion, which it takes.
Tensor take_weight(Entries& entries, WeightForm form, const Tensor& parameter,
                   std::size_t position) {
  require_form(loading, form, parameter.dtype());
  if (!facts(form).has_companion()) return joined_weight(form, parameter, {});
  const std::string entry = companion_entry(form, position);
  const Tensor companion = entries.take(entry);
  if (companion.shape() != parameter.shape() ||
      companion.dtype() != facts(form).companion_dtype(parameter.dtype()))
    fail<ShapeError>(loading, '"', entry, "\" is ", described(companion), ", which does not fit ",
                     described(parameter), ". The state is damaged.");
  return joined_weight(form, parameter, companion);
}

Tensor converted_to(DType dtype, const Tensor& x) {
  Tensor y = empty(x.shape(), dtype, x.device());
  backend_for(x).copy(x, y);
  return y;
}

/// Returns the form of a parameter: parameters that the strategy left in f32 have none.
WeightForm form_of(const Tensor& parameter, WeightForm form) {
  return is_short_float(parameter) ? form : WeightForm::plain;
}
}  // namespace

NamedTensors converted(const TrainingCore& training, const NamedTensors& given, Convert convert) {
  const Policy& strategy = training.strategy;
  Entries entries(loading, "a Training", given);
  const std::string saved_under = entries.text("strategy"), form_name = entries.text("form"),
                    from = shortened(saved_under, 80);
  const std::optional<WeightForm> saved_form = named<WeightForm>(form_name);
  if (!saved_form)
    fail<FormatError>(loading, "\"form\" is ", in_quotes(form_name),
                      ", which is not a form of weights. The state is damaged, or newer than this "
                      "library.");
  if (convert == Convert::refuse)
    fail<UsageError>(loading, "the state was saved under ", from,
                     saved_under == strategy.name ? " with other options" : "", ", this is ",
                     strategy.name, ". Pass Convert::lossless or Convert::rounding to convert it.");
  const auto require_same = [&](const Tensor& held, const Tensor& value, const std::string& name) {
    if (convert == Convert::lossless && !same_values(held, value))
      fail<UsageError>(loading, strategy.name, " cannot hold what ", from, " saved to the bit: \"",
                       name, "\" would be rounded. Pass Convert::rounding to accept that.");
  };
  const auto require_range = [&](DType dtype, const Tensor& value, const std::string& name) {
    if (const std::optional<double> lost = lost_value(value, dtype))
      fail<DTypeError>(loading, '"', name, "\" has ", *lost, ", which ", dtype,
                       " cannot hold. Convert to a strategy with a wider dtype.");
  };
  const MemoryScope scope(MemoryUse::workspace);
  NamedTensors state;
  for (const ModelTensor& tensor : tensors_of(training.model, training.route->parameters())) {
    const Tensor value = take_value(entries, tensor);
    Tensor stored = empty(tensor.target.shape(), tensor.target.dtype()), companion;
    if (!tensor.position) {
      require_range(stored.dtype(), value, tensor.names[0]);
      stored = converted_to(tensor.target.dtype(), value);
      require_same(stored, value, tensor.names[0]);
    } else {
      const Tensor weight =
          take_weight(entries, form_of(value, *saved_form), value, *tensor.position);
      require_range(stored.dtype(), weight, tensor.names[0]);
      const WeightForm form = form_of(stored, strategy.form);
      if (!!facts(form).has_companion())
        companion = empty(stored.shape(), facts(form).companion_dtype(stored.dtype()));
      store_weight(form, weight, stored, companion);
      require_same(joined_weight(form, stored, companion), weight, tensor.names[0]);
      if (companion.defined()) state[companion_entry(form, *tensor.position)] = companion;
    }
    for (const std::string& name : tensor.names) state[name] = stored;
  }
  const NamedTensors own = training.state();
  entries.find("optimizer.rounding");
  if (own.contains("optimizer.rounding"))
    state["optimizer.rounding"] = own.at("optimizer.rounding");
  NamedTensors scaler = entries.part("scaler.");
  if (scaler.empty() || !training.scaler.enabled()) scaler = training.scaler.state_dict();
  add_part(state, "scaler.", scaler);
  state.insert(entries.rest().begin(), entries.rest().end());
  state["strategy"] = own.at("strategy"), state["form"] = own.at("form");
  return state;
}

}  // namespace halftone::amp
