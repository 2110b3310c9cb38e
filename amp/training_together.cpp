// Steps of several batches. What ranks keep of the optimizer: training_parts.cpp.
#include <halftone/amp/together.h>

#include <algorithm>
#include <utility>

#include <halftone/amp/session.h>
#include <halftone/amp/state_entries.h>
#include <halftone/core/kernel_identity.h>
#include <halftone/core/factory.h>
#include <halftone/core/in_place.h>
#include <halftone/core/memory_ledger.h>
#include <halftone/core/plain_numbers.h>
#include <halftone/distributed/collectives.h>
#include <halftone/nn/state_dict.h>

namespace halftone::amp {

namespace {
/// What must be alike on all ranks, a line each.
std::string description_of(const nn::Module& model, const Strategy& strategy,
                           const optim::Optimizer& optimizer, const distributed::Options& options) {
  PlainText text;
  const LossScaleOptions& scale = strategy.loss_scale;
  text << "strategy " << strategy << "\nwire " << name(*options.wire) << "\nfused_master "
       << strategy.fused_master << "\naccumulate_in_f32 " << strategy.accumulate_in_f32
       << "\nhold_statistics " << strategy.hold_statistics << "\nseed of rounding " << strategy.seed
       << "\nloss scale: growth " << scale.growth_factor << " after " << scale.growth_interval
       << ", backoff " << scale.backoff_factor << " after " << scale.hysteresis << ", from "
       << scale.min_scale << " to " << scale.max_scale << ", rule " << int(scale.rule)
       << "\nshard_optimizer " << options.shard_optimizer << "\nbucket_bytes "
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

/// One by one: there may be no more memory.
void take_weights_of_rank_0(const nn::Module& model, Communicator& group) {
  const MemoryScope scope(MemoryUse::communication);
  for (const auto& [name, x] : nn::state_dict(model)) {
    const Tensor of_0 =
        distributed::broadcast_tensor(group, "the weights of rank 0", x, info_of(name, x));
    if (group.rank() != 0) copy_into(x, of_0);
  }
}
}  // namespace

void Training::train_together(Communicator& group, const distributed::Options& asked) {
  if (together_)
    fail<UsageError>("Training.train_together",
                     "called twice. Call it once, before the first step.");
  distributed::Options options = asked;
  if (!options.wire) options.wire = strategy_.wire;
  // A session looks at parameters and states as the optimizer has them.
  options.shard_optimizer = asked.shard_optimizer && optimizer().elementwise() && !region_.session;
  optim::NamedTensors beside;  // the weights, on rank 0
  if (group.size() > 1) {
    std::string text = description_of(model_, strategy_, optimizer(), options);
    if (region_.session && region_.session->state_dict().contains("policy"))
      text = "policy " +
             std::to_string(region_.session->state_dict()["policy"].to_vector<int64_t>()[0]) +
             '\n' + text;
    distributed::require_agreement(group, "agreement on model and strategy", text);
    if (group.rank() == 0) beside = local_state();
    std::erase_if(beside, [](const auto& entry) { return entry.first.starts_with("model."); });
  }
  zero_grad();
  std::vector<Tensor> buffers;
  for (const auto& [name, x] : model_.named_buffers()) buffers.push_back(x);
  together_.reset(new Together{.group = group,
                               .reducer = {group, optimizer().parameters(), options},
                               .statistics = {group, std::move(buffers)}});
  if (has_parts()) share_out();
  if (group.size() == 1) return;
  take_weights_of_rank_0(model_, group);
  optim::NamedTensors own = taken_from_rank_0(beside);
  if (masters_to_come_) {  // all have rank 0's f32 weights
    make_masters_of_parts();
    optim::NamedTensors made = local_state();
    std::erase_if(made, [](const auto& entry) { return entry.first.starts_with("model."); });
    own.merge(made);
  }
  if (has_parts() || group.rank() != 0) load_beside_model(own);
  if (region_.session && group.rank() != 0)
    region_.session->load_state_dict(entries::part_of(own, "session."));
}

Training apply(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer,
               const distributed::Options& options) {
  return {strategy, model, optimizer, world(), options};
}

/// Null where this rank keeps all. Every rank then has rank 0's weights, in f32, so that what each
/// makes of its parts fits those of the others.
std::unique_ptr<Training::Cut> Training::cut_for(const Strategy& strategy, const nn::Module& model,
                                                 const optim::Optimizer& optimizer,
                                                 Communicator& group,
                                                 const distributed::Options& asked) {
  const bool shares = asked.shard_optimizer && optimizer.elementwise() && !strategy.session;
  if (group.size() == 1 || !shares) return nullptr;
  distributed::Options options = asked;
  if (!options.wire) options.wire = strategy.wire;
  distributed::require_agreement(group, "agreement on model and strategy",
                                 description_of(model, strategy, optimizer, options));
  take_weights_of_rank_0(model, group);
  return std::make_unique<Cut>(Cut{{optimizer.parameters(), group.size()}, group.rank()});
}

Training::Training(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer,
                   Communicator& group, const distributed::Options& options)
    : Training(strategy, model, optimizer,
               cut_for(strategy, model, optimizer, group, options).get()) {
  train_together(group, options);
}

/// 2^36 numbers for each batch; the counters from the top down are the data loader's.
void Training::begin_batch(int64_t number) {
  constexpr int64_t most = (int64_t(1) << 30) - 2;
  if (number < 0 || number >= most)
    fail<UsageError>("Training.begin_batch", "the batch has number ", number,
                     ". Count the batches of a training from 0, up to ", most, '.');
  const uint64_t seed = default_generator().state().seed;
  default_generator().set_state({seed, uint64_t(number + 1) << 34});
  if (together_) together_->batch = number;
  if (region_.session) region_.session->begin_batch(number);
}

/// Rules and scales of a policy file follow from the batches of all ranks.
void Training::tell_session() {
  if (together_->group.size() == 1 || !strategy_.session) return;
  region_.session->hear(distributed::all_gather_texts(together_->group, "what policies have seen",
                                                      region_.session->seen()));
}

/// What the wire draws depends on the batch's number and not on who computes it; it draws from a
/// stream of its own.
void Training::prepare_wire() {
  constexpr uint64_t stream = 0x9e3779b97f4a7c15;
  const distributed::WireFormat& wire = together_->reducer.wire();
  const std::optional<int64_t> number = std::exchange(together_->batch, std::nullopt);
  if (wire.stochastic && !number)
    fail<UsageError>("Training.backward", "the wire is ", name(wire),
                     ", which draws by the number of the batch. Call begin_batch() before the "
                     "forward pass of each.");
  const bool scales = wire.error_feedback && scaler_.enabled();
  together_->reducer.begin_batch(
      {default_generator().state().seed ^ stream, uint64_t(number.value_or(0) + 1) << 34},
      scales ? scaler_.scale_tensor().item() : 1);
}

void Training::require_fresh_gradients() const {
  if (together_->gathered)
    fail<UsageError>("Training.backward",
                     "the gradients of the last step are still there. Call zero_grad() before the "
                     "first backward() of a step.");
  const distributed::Reducer& reducer = together_->reducer;
  for (std::size_t i = 0; i < reducer.parts().size(); ++i)
    if (reducer.parts()[i].storage() != reducer.parameters()[i].storage())
      fail<UsageError>("Training.backward",
                       "the model was moved or cast since train_together(), which left what the "
                       "optimizer updates behind. Do that before.");
}

void Training::no_backward() {
  if (!together_)
    fail<UsageError>("Training.no_backward",
                     "this training is not part of a group. Call "
                     "train_together() first, or leave it out.");
  require_fresh_gradients();
  if (scaler_.enabled()) {  // as backward() would leave it
    const std::vector<Tensor> own = optimizer().parameters();
    scaler_.scale(zeros({}, f32, own.empty() ? Device::cpu() : own.front().device()));
    made_with_ = scaler_.scale_tensor();
  }
  hold_statistics();
  together_->batch.reset();
  casts_before_.reset();  // a rank without a batch cannot say that nothing was cast
  together_->add_batches(false);
}

void Training::gather_gradients() {
  if (!together_ || !together_->reducer.pending()) return;
  together_->reducer.finish();
  together_->gathered = true;
}

/// One that is there already has its reasons: a pass that is repeated to look at it.
StatisticsSink* Training::statistics_sink() const {
  StatisticsSink* const active = active_statistics_sink();
  return active || !together_ ? active : &together_->statistics;
}

}  // namespace halftone::amp
