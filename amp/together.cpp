// The agreement of ranks, then batches and steps of a training of several ranks.
#include <halftone/amp/training_core.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <utility>

#include <halftone/amp/master_weights.h>
#include <halftone/amp/session.h>
#include <halftone/core/backend.h>
#include <halftone/core/device.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/named_tensors.h>
#include <halftone/distributed/collectives.h>
#include <halftone/nn/module.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

namespace {
/// Returns everything that must be the same on all ranks, one line for each fact.
std::string description_of(const nn::Module& model, const Policy& strategy,
                           const optim::Optimizer& optimizer, const distributed::Options& options) {
  PlainText text;
  const LossScaleOptions& scale = strategy.loss_scale;
  text << "strategy " << strategy << "\nwire " << name(*options.wire) << "\nfused_master "
       << strategy.fused_master << "\naccumulate_in_f32 " << strategy.accumulate_in_f32
       << "\nhold_statistics " << strategy.hold_statistics << "\nseed of rounding "
       << strategy.random_seed() << "\nloss scale: growth " << scale.growth_factor << " after "
       << scale.growth_interval << ", backoff " << scale.backoff_factor << " after "
       << scale.hysteresis << ", from " << scale.min_scale << " to " << scale.max_scale << ", rule "
       << int(scale.rule) << "\nshard_optimizer " << options.shard_optimizer << "\nbucket_bytes "
       << options.bucket_bytes;
  const auto parameters = model.named_parameters();
  for (const auto& [name, x] : parameters)
    text << "\nparameter " << name << ' ' << x.shape() << ' ' << x.dtype()
         << (x.requires_grad() ? "" : ", frozen");
  text << "\noptimizer's parameters, by number:";
  for (const Tensor& x : optimizer.parameters()) {
    const auto same = [&](const auto& entry) { return entry.second.body() == x.body(); };
    text << ' ' << std::ranges::find_if(parameters, same) - parameters.begin();
  }
  for (const auto& [name, x] : model.named_buffers())
    text << "\nbuffer " << name << ' ' << x.shape() << ' ' << x.dtype();
  text << "\nkernels "
       << kernels_of(parameters.empty() ? Device::cpu() : parameters.front().second.device())
       << "\nthreads " << cpu_threads();
  return text.str();
}

/// One by one: memory may not suffice for more.
void take_weights_of_rank_0(const nn::Module& model, Communicator& group) {
  const MemoryScope scope(MemoryUse::communication);
  for (const auto& [name, x] : nn::state_dict(model)) {
    const Tensor of_0 =
        distributed::broadcast_tensor(group, "the weights of rank 0", x, info_of(name, x));
    if (group.rank() != 0) copy_into(x, of_0);
  }
}

distributed::Options completed(distributed::Options options, const Policy& strategy) {
  if (!options.wire) options.wire = strategy.wire;
  return options;
}

/// Returns the options of the training, after the ranks agreed on model, strategy and environment.
distributed::Options agreed(const TrainingCore& core, Communicator& group,
                            const distributed::Options& asked) {
  distributed::Options options = completed(asked, core.strategy);
  const policy::Session* session = core.region.session.get();
  // A session needs whole parameters and states in the optimizer.
  options.shard_optimizer = asked.shard_optimizer && core.stepping().elementwise() && !session;
  if (group.size() == 1) return options;
  std::string text = description_of(core.model, core.strategy, core.stepping(), options);
  if (session && session->state_dict().contains("policy"))
    text = "policy " + std::to_string(session->state_dict()["policy"].to_vector<int64_t>()[0]) +
           '\n' + text;
  distributed::require_agreement(group, "agreement on model and strategy", text);
  return options;
}

std::vector<Tensor> buffers_of(const nn::Module& model) {
  std::vector<Tensor> buffers;
  for (const auto& [name, x] : model.named_buffers()) buffers.push_back(x);
  return buffers;
}

optim::NamedTensors without_model(optim::NamedTensors state) {
  std::erase_if(state, [](const auto& entry) { return entry.first.starts_with("model."); });
  return state;
}
}  // namespace

std::unique_ptr<Cut> cut_for(const Policy& strategy, const nn::Module& model,
                             const optim::Optimizer& optimizer, Communicator& group,
                             const distributed::Options& asked) {
  const bool shares = asked.shard_optimizer && optimizer.elementwise() && !strategy.has_session();
  if (group.size() == 1 || !shares) return nullptr;
  distributed::require_agreement(
      group, "agreement on model and strategy",
      description_of(model, strategy, optimizer, completed(asked, strategy)));
  take_weights_of_rank_0(model, group);
  return std::make_unique<Cut>(Cut{{optimizer.parameters(), group.size()}, group.rank()});
}

TogetherRoute::TogetherRoute(TrainingCore& core, Communicator& group,
                             const distributed::Options& options)
    : GradientRoute(core),
      group_(group),
      reducer_(group, core.stepping().parameters(), agreed(core, group, options)),
      statistics_(group, buffers_of(core.model)) {}

void TogetherRoute::begin() {
  core_.zero_grad();
  optim::NamedTensors rank_0;  // except for the weights
  if (of_several() && group_.rank() == 0) rank_0 = without_model(core_.state());
  if (has_parts()) share_out();
  if (!of_several()) return;
  take_weights_of_rank_0(core_.model, group_);
  optim::NamedTensors own = taken_from_rank_0(rank_0);
  if (core_.masters_to_come) {  // all have rank 0's f32 weights
    make_masters_of_parts();
    optim::NamedTensors made = without_model(core_.state());
    own.merge(made);
  }
  if (has_parts() || group_.rank() != 0) core_.load_except_model(own);
  if (core_.region.session && group_.rank() != 0)
    core_.region.session->load_state_dict(part_of(own, "session."));
}

TogetherRoute::~TogetherRoute() {
  if (!has_parts()) return;
  core_.masters.reset();
  try {
    replace_parameters(reducer_.parameters());
  } catch (...) {}  // memory may not suffice, not even for names
}

// --- a batch

void TogetherRoute::begin_forward() {
  if (of_several()) buffers_ = nn::BufferCopies(core_.model);
}

void TogetherRoute::end_forward() {
  const std::string written = std::exchange(buffers_, {}).first_changed();
  if (written.empty()) return;
  fail<UsageError>("Training.forward", "the forward pass wrote the buffer ", in_quotes(written),
                   ", and each of ", group_.size(),
                   " processes sees other batches, so their models would differ. Write it after "
                   "the step, from numbers that all processes have; or train on one process.");
}

void TogetherRoute::require_fresh() const {
  if (gathered_)
    fail<UsageError>("Training.backward",
                     "the gradients of the last step are still there. Call zero_grad() before the "
                     "first backward() of a step.");
  for (std::size_t i = 0; i < reducer_.parts().size(); ++i)
    if (reducer_.parts()[i].storage() != reducer_.parameters()[i].storage())
      fail<UsageError>("Training.backward",
                       "the model was moved or cast after train_together(), so the optimizer would "
                       "update other tensors. Move or cast it before.");
}

void TogetherRoute::rescale(const Tensor&) {
  fail<UsageError>("Training.backward",
                   "the loss scale moved between two batches of a step, whose gradients are summed "
                   "up already. Update the scaler between steps.");
}

/// The random numbers of the wire depend on the number of the batch, not on the rank that computes
/// it. They come from a separate stream.
void TogetherRoute::begin_backward() {
  constexpr uint64_t stream = 0x9e3779b97f4a7c15;
  const distributed::WireFormat& wire = reducer_.wire();
  const std::optional<int64_t> number = std::exchange(batch_, std::nullopt);
  if (wire.stochastic && !number)
    fail<UsageError>("Training.backward", "the wire is ", name(wire),
                     ", which draws by the number of the batch. Call begin_batch() before the "
                     "forward pass of each.");
  const bool scales = wire.error_feedback && core_.scaler.enabled();
  reducer_.begin_batch(
      {default_generator().state().seed ^ stream, uint64_t(number.value_or(0) + 1) << 34},
      scales ? core_.scaler.scale_tensor().item() : 1);
}

void TogetherRoute::no_backward() {
  require_fresh();
  if (core_.scaler.enabled()) {  // as backward() would leave it
    const std::vector<Tensor> own = core_.stepping().parameters();
    core_.scaler.scale(zeros({}, f32, own.empty() ? Device::cpu() : own.front().device()));
    core_.made_with = core_.scaler.scale_tensor();
  }
  core_.hold_statistics();
  batch_.reset();
  core_.casts_before.reset();  // a rank without a batch does not know whether nothing was cast
  add_batches(false);
}

// --- a step

void TogetherRoute::drop() { reducer_.drop(), statistics_.drop(), gathered_ = false; }

/// Rules and scales of a policy file depend on the batches of all ranks.
void TogetherRoute::begin_step() {
  const std::shared_ptr<policy::Session>& session = core_.region.session;
  if (!session || !of_several() || !core_.strategy.has_session()) return;
  session->hear(distributed::all_gather_texts(group_, "what policies have seen", session->seen()));
}

void TogetherRoute::gather() {
  if (!reducer_.pending()) return;
  reducer_.finish();
  gathered_ = true;
}

/// Gives the same bits on any number of ranks. (One process alone sums on its GPU.)
Tensor TogetherRoute::norm(double norm_type) const {
  const std::vector<Tensor> gradients = core_.gradients();
  const auto any = std::ranges::find_if(gradients, [](const Tensor& x) { return x.defined(); });
  const Device device = any == gradients.end() ? Device::cpu() : any->device();
  if (!of_several() && device != Device::cpu()) {
    std::vector<Tensor> defined;
    std::ranges::copy_if(gradients, std::back_inserter(defined),
                         [](const Tensor& x) { return x.defined(); });
    return optim::norm_of(defined, norm_type);
  }
  return distributed::norm_of(group_, reducer_.shards(), gradients, has_parts(), norm_type)
      .to(device);
}

double TogetherRoute::sum(double own) const {
  double sum = 0;
  for (const Tensor& x :
       distributed::all_gather(group_, "a sum of all ranks", TrafficUse::control, scalar(own, f64)))
    sum += x.item();
  return sum;
}

std::size_t TogetherRoute::smallest(std::size_t number) const {
  if (!has_parts()) return number;
  return std::size_t(-distributed::largest(group_, "overflows", -int64_t(number)));
}

// --- parts of parameters

std::vector<Tensor> TogetherRoute::parameters() const {
  return has_parts() ? reducer_.parameters() : GradientRoute::parameters();
}

Tensor TogetherRoute::weight(std::size_t index) const {
  const Tensor parameter = parameters().at(index);
  if (!has_parts() || !is_short_float(parameter) || !core_.masters)
    return GradientRoute::weight(index);
  const Tensor own = core_.masters->weight(index);
  Tensor whole = empty(parameter.shape(), own.dtype());
  const distributed::Shards& shards = reducer_.shards();
  Tensor part = distributed::part_of(whole, shards.range(index, group_.rank()));
  backend_for(part).copy(own, part);
  exchange_ranges(group_, shards, "a weight", TrafficUse::state, {&index, 1}, {&whole, 1});
  return whole;
}

/// In their order. Drops the optimizer's state, because it has other shapes.
void TogetherRoute::replace_parameters(const std::vector<Tensor>& others) {
  optim::Optimizer& optimizer = core_.optimizer;
  auto next = others.begin();
  for (int group = 0; group < optimizer.group_count(); ++group)
    for (Tensor& parameter : optimizer.group_parameters(group)) parameter = *next++;
  optim::NamedTensors options = optimizer.state_dict();
  std::erase_if(options, [](const auto& entry) { return entry.first.starts_with("state."); });
  optimizer.load_state_dict(options);
}

void TogetherRoute::share_out() {
  replace_parameters(reducer_.parts());
  if (core_.masters) core_.masters->adopt_parts(begins_of_parts());
  core_.scaler.set_agreement([&group = group_](Tensor& found_inf) {
    const bool here = found_inf.item() != 0;
    const bool anywhere = distributed::largest(group, "overflows", here ? 1 : 0) != 0;
    if (anywhere && !here) found_inf = ones({}, f32, found_inf.device());
  });
}

std::vector<int64_t> TogetherRoute::begins_of_parts() const {
  std::vector<int64_t> begins;
  for (std::size_t i = 0; i < reducer_.shards().parameters(); ++i)
    begins.push_back(reducer_.shards().range(i, group_.rank()).begin);
  return begins;
}

/// Each rank's weights, in the form of the strategy, come from its masters; then from all ranks.
void TogetherRoute::make_masters_of_parts() {
  TrainingCore::MastersOfParts made = *std::exchange(core_.masters_to_come, std::nullopt);
  core_.masters =
      std::make_unique<MasterWeights>(core_.optimizer, made.options, std::move(made.initial));
  std::vector<int64_t> sizes;
  std::vector<std::size_t> all;
  for (const Tensor& x : reducer_.parameters())
    all.push_back(sizes.size()), sizes.push_back(x.numel());
  core_.masters->count_as_parts(sizes, begins_of_parts());
  exchange_ranges(group_, reducer_.shards(), "weights in parts", TrafficUse::state, all,
                  reducer_.parameters());
}

// States of a training of several ranks: whole tensors on rank 0, parts of them elsewhere.

using optim::NamedTensors;

namespace {
/// Returns how an entry is stored: "optimizer.state.3.exp_avg.8bit" is coded.
CodedFormFacts form_of_entry(std::string_view name) {
  const auto& words = words_of<CodedForm>;
  const auto form = std::find(words.begin() + 1, words.end(), name.substr(name.rfind('.') + 1));
  return form == words.end() ? CodedFormFacts{} : facts(CodedForm(form - words.begin()));
}
Shape shape_of_entry(std::string_view name, const Tensor& parameter) {
  const CodedFormFacts form = form_of_entry(name);
  if (form.scales == 0) return parameter.shape();
  return {form.blocks(parameter.numel()), form.block_bytes()};
}
distributed::PerBlock per_block(std::string_view name) {
  const CodedFormFacts form = form_of_entry(name);
  if (form.scales == 0) return {};
  return {form.block, form.block_bytes()};
}
}  // namespace

/// Returns the parameter whose part an entry of the state holds: "optimizer.state.3.exp_avg",
/// "optimizer.master.3".
std::optional<std::size_t> TogetherRoute::parameter_of_entry(std::string_view name) const {
  constexpr std::string_view prefix = "optimizer.", states = "state.";
  if (!has_parts() || !name.starts_with(prefix)) return {};
  if (name.ends_with(".step") || name.ends_with(".mu_product")) return {};  // one number
  name.remove_prefix(prefix.size());
  const std::string_view companion = facts(core_.strategy.form).companion;
  const bool is_state = name.starts_with(states);
  if (!is_state && (companion.empty() || !name.starts_with(companion))) return {};
  name.remove_prefix(is_state ? states.size() : std::min(name.size(), companion.size() + 1));
  std::size_t index = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  const bool known = error == std::errc() && index < reducer_.parameters().size();
  return known ? std::optional(index) : std::nullopt;
}

/// Runs on rank 0, for whole tensors: only tensors of the right shape can be cut into parts.
void TogetherRoute::require_shapes(const NamedTensors& state) const {
  for (const auto& [name, x] : state) {
    if (!x.defined())
      fail<UsageError>(loading_training, "the entry \"", name,
                       "\" is undefined. Load what a Training saved.");
    const auto index = parameter_of_entry(name);
    if (!index) continue;
    const Shape shape = shape_of_entry(name, parameters()[*index]);
    if (x.shape() != shape)
      fail<ShapeError>(loading_training, '"', name, "\" is ", described(x), " instead of ", shape,
                       ". Load what was saved for the same parameters.");
  }
}

NamedTensors TogetherRoute::taken_from_rank_0(const NamedTensors& state) const {
  constexpr std::string_view what = "the state of rank 0";
  NamedTensors own;
  for (const TensorInfo& info : distributed::broadcast_infos(group_, what, state)) {
    const Tensor x = group_.rank() == 0 ? state.at(info.name) : Tensor{};
    if (const auto index = parameter_of_entry(info.name)) {
      const distributed::PerBlock per = per_block(info.name);
      const Tensor part =
          scatter_from_rank_0(group_, reducer_.shards(), what, *index, x, info.dtype, per);
      own[info.name] = per.elements == 1 ? part
                                         : part.view_as({part.numel() / per.numbers, per.numbers},
                                                        {per.numbers, 1}, part.offset());
    } else own[info.name] = distributed::broadcast_tensor(group_, what, x, info);
  }
  return own;
}

NamedTensors TogetherRoute::part_of_state(const std::function<NamedTensors()>& make) const {
  if (!of_several()) return make();
  NamedTensors state;
  on_rank_0("a state to load", [&] {
    state = make();
    require_shapes(state);
  });
  const MemoryScope scope(MemoryUse::communication);
  return taken_from_rank_0(state);
}

void TogetherRoute::on_rank_0(std::string_view what, const std::function<void()>& f) const {
  distributed::on_rank_0(group_, what, f);
}

/// Rank 0 asks for tensors by their number, and sends -1 in the end.
void TogetherRoute::write_state(const std::function<void(const TensorSource&)>& write) const {
  if (!of_several()) return GradientRoute::write_state(write);
  const NamedTensors own = core_.state();
  constexpr std::string_view what = "the state of all ranks";
  const std::vector<Tensor> parameters = this->parameters();
  std::vector<std::string> in_parts;
  TensorSource source = source_of(own);
  for (TensorInfo& info : source.infos)
    if (const auto index = parameter_of_entry(info.name)) {
      info.shape = shape_of_entry(info.name, parameters[*index]);
      in_parts.push_back(info.name);
    }
  const auto gathered = [&](const std::string& name) {
    const std::size_t index = *parameter_of_entry(name);
    return gather_on_rank_0(group_, reducer_.shards(), what, index, own.at(name),
                            shape_of_entry(name, parameters[index]), per_block(name));
  };
  source.tensor = [&](const std::string& name) {
    const auto found = std::ranges::find(in_parts, name);
    if (found == in_parts.end()) return own.at(name);
    distributed::broadcast_number(group_, what, found - in_parts.begin());
    return gathered(name);
  };
  if (group_.rank() != 0)
    for (int64_t next = 0; (next = distributed::broadcast_number(group_, what, -1)) >= 0;)
      static_cast<void>(gathered(in_parts.at(std::size_t(next))));
  distributed::on_rank_0(group_, what, [&] {
    std::exception_ptr failure;
    try {
      write(source);
    } catch (...) { failure = std::current_exception(); }
    distributed::broadcast_number(group_, what, -1);
    if (failure) std::rethrow_exception(failure);
  });
}

}  // namespace halftone::amp
