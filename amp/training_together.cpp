// Steps of several batches. Every rank steps with the whole sums by itself, with the same bits.
#include <halftone/amp/together.h>

#include <omp.h>

#include <halftone/amp/session.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/plain_numbers.h>
#include <halftone/distributed/collectives.h>

namespace halftone::amp {

namespace {
/// What must be alike on all ranks, a line each.
std::string description_of(const nn::Module& model, const Strategy& strategy,
                           const distributed::Options& options) {
  PlainText text;
  text << "strategy " << strategy.name << "\nwire ";
  if (options.wire) text << *options.wire;
  else text << "own";
  text << "\nbucket_bytes " << options.bucket_bytes;
  const auto parameters = model.named_parameters();
  for (const auto& [name, x] : parameters)
    text << "\nparameter " << name << ' ' << x.shape() << ' ' << x.dtype();
  const Backend& backend =
      backend_for(parameters.empty() ? Device::cpu() : parameters.front().second.device());
  for (const BackendStatus& status : backend_statuses())
    if (status.backend == &backend) text << "\nkernels " << status.description;
  text << "\nthreads " << omp_get_max_threads();
  return text.str();
}
}  // namespace

void Training::train_together(Communicator& group, const distributed::Options& options) {
  if (together_)
    fail<UsageError>("Training.train_together",
                     "called twice. Call it once, before the first step.");
  if (group.size() > 1) {
    if (region_.session)
      fail<UnsupportedError>("distributed",
                             "policy files measure the tensors of one process, so their scales "
                             "would part. Start one process, or use a strategy.");
    distributed::require_agreement(group, "agreement on model and strategy",
                                   description_of(model_, strategy_, options));
    const optim::NamedTensors state =
        distributed::broadcast(group, "the state of rank 0", state_dict());
    if (group.rank() != 0) load_state_dict(state);
  }
  zero_grad();
  std::vector<Tensor> buffers;
  for (const auto& [name, x] : model_.named_buffers()) buffers.push_back(x);
  together_.reset(new Together{.reducer = {group, optimizer().parameters(), options},
                               .statistics = {group, std::move(buffers)}});
}

Training apply(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer,
               const distributed::Options& options) {
  Training training(strategy, model, optimizer);
  training.train_together(world(), options);
  return training;
}

/// 2^36 numbers for each batch; the counters from the top down are the data loader's.
void Training::begin_batch(int64_t number) {
  constexpr int64_t most = (int64_t(1) << 30) - 2;
  if (number < 0 || number >= most)
    fail<UsageError>("Training.begin_batch", "the batch has number ", number,
                     ". Count the batches of a training from 0, up to ", most, '.');
  const uint64_t seed = default_generator().state().seed;
  default_generator().set_state({seed, uint64_t(number + 1) << 34});
}

void Training::require_fresh_gradients() const {
  if (together_->gathered)
    fail<UsageError>("Training.backward",
                     "the gradients of the last step are still there. Call zero_grad() before the "
                     "first backward() of a step.");
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
  casts_before_.reset();  // a rank without a batch cannot say that nothing was cast
  together_->add_batches(false);
}

void Training::gather_gradients() {
  if (!together_ || !together_->reducer.pending()) return;
  together_->reducer.finish();
  together_->gathered = true;
}

StatisticsSink* Training::statistics_sink() const {
  return together_ ? &together_->statistics : active_statistics_sink();
}

}  // namespace halftone::amp
