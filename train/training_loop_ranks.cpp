// The cooperation of several processes of one training. Each computes its share of every step's
// batches and steps with the sums over all (distributed/reducer.h). Decisions that depend on
// numbers that all ranks have need no message; the functions below agree on the others.
#include <halftone/train/training_loop.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>
#include <typeinfo>
#include <utility>

#include <zlib.h>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/distributed/collectives.h>
#include <halftone/train/checkpoint.h>
#include <halftone/train/metrics.h>
#include <halftone/train/task.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

/// Only rank 0 writes files and messages.
TrainerOptions TrainingLoop::for_this_rank(TrainerOptions options) const {
  if (options.accumulate_batches > 0 && options.accumulate_batches < world_.size())
    fail<UsageError>(
        "Trainer", "accumulate_batches is ", options.accumulate_batches, " for ", world_.size(),
        " processes, some of which would have no batch. Use 0, or as many as there are "
        "processes, or more.");
  if (world_.rank() == 0) return options;
  options.progress_bar = options.model_summary = false;
  options.loggers.clear();
  return options;
}

void TrainingLoop::share_out() {
  if (group_ == 1) return;
  data::DataLoaderOptions options = loader_->options();
  options.share = {.rank = rank(), .of = ranks(), .group = group_};
  loader_ = loader_->with_options(options);
}

namespace {
/// Hashes the first, the middle and the last sample, to detect other data of the same size.
uint32_t checksum_of(const data::Dataset& dataset) {
  uLong sum = crc32(0, nullptr, 0);
  const auto add = [&sum](const Tensor& x) {
    if (!x.defined()) return;
    const Tensor bytes = views::contiguous(x.to(Device::cpu()));
    sum = crc32(sum, reinterpret_cast<const Bytef*>(bytes.raw_data()), uInt(bytes.bytes()));
  };
  const int64_t size = dataset.size();
  for (const int64_t sample : {int64_t(0), size / 2, size - 1}) {
    if (sample < 0 || sample >= size) continue;
    const data::Batch batch = dataset.batch_in_epoch({&sample, 1}, {});
    add(batch.inputs), add(batch.targets);
    for (const Tensor& more : batch.more) add(more);
  }
  return uint32_t(sum);
}
}  // namespace

void TrainingLoop::require_alike() const {
  if (ranks() == 1) return;
  const TrainerOptions& o = options_;
  PlainText text;
  const auto add = [&](const std::string& what, const data::DataLoader& loader) {
    for (const auto& [name, value] : loader_numbers(loader))
      text << what << name.substr(name.rfind('.') + 1) << ' ' << value << '\n';
    text << what << "checksum of three samples " << checksum_of(loader.dataset()) << '\n';
  };
  add("", *loader_);
  if (validation_) add("validation ", *validation_);
  text << "batches of an epoch " << batches_ << "\nbatches of a validation " << validation_batches_
       << "\naccumulate_batches " << group_ << "\nmax_epochs " << o.max_epochs << "\nmax_steps "
       << o.max_steps << "\nclip_norm " << o.clip_norm << "\nclip_value " << o.clip_value
       << "\nclip_norm_type " << o.clip_norm_type << "\nvalidate_every_epochs "
       << o.validate_every_epochs << "\nvalidate_every_steps " << o.validate_every_steps
       << "\nlog_every_steps " << o.log_every_steps << "\ncheckpoints.every_epochs "
       << o.checkpoints.every_epochs << "\ncheckpoints.every_steps " << o.checkpoints.every_steps
       << "\na schedule: " << (o.schedule ? "yes" : "no")
       << "\na directory: " << (o.directory.empty() ? "no" : "yes") << "\ncallbacks";
  for (const auto& callback : o.callbacks) {
    const Callback& called = *callback;
    text << ' ' << class_name(typeid(called));
  }
  distributed::require_agreement(world_, "agreement on data and options", text.str());
}

std::optional<FoundCheckpoint> TrainingLoop::found_by_rank_0(
    std::optional<FoundCheckpoint> found) const {
  if (ranks() == 1 || !rank_0_says(found.has_value())) return found;
  constexpr std::string_view what = "the checkpoint that rank 0 found";
  const std::string path =
      distributed::broadcast_text(world_, what, found ? found->path.string() : "");
  const std::string state =
      distributed::broadcast_text(world_, what, found ? state_text(found->state) : "");
  return FoundCheckpoint{path, parse_state(state, path)};
}

/// Takes the number of batches per step from the checkpoint, if the options leave it open. Returns
/// whether that changes it.
bool TrainingLoop::adopt_group(const CheckpointState& state) {
  const auto entry = state.numbers.find("state.loader.group");
  const int64_t before = entry == state.numbers.end() ? 1 : int64_t(entry->second);
  if (before == group_) return false;
  if (options_.accumulate_batches > 0) {
    if (state.batches > 0)
      fail<UsageError>("Trainer", "the training is in the middle of an epoch whose steps have ",
                       before, " batches; accumulate_batches is ", group_, ". Go on with ", before,
                       '.');
    records_.tell("steps have " + std::to_string(group_) + " batches from now on; they had " +
                  std::to_string(before));
    return false;
  }
  if (before < ranks())
    fail<UsageError>("Trainer", "the steps of this training have ", before,
                     " batches, and there are ", ranks(), " processes. Start at most ", before,
                     ", or set accumulate_batches to go on with other steps.");
  records_.tell("steps have " + std::to_string(before) + " batches, as those of the checkpoint");
  group_ = before;
  if (!training_.trains_together()) training_.train_together(world_, options_.distributed);
  return true;
}

Checkpoint TrainingLoop::read_by_rank_0(const FoundCheckpoint& found) const {
  return rank() == 0 ? load_checkpoint(found.path)
                     : Checkpoint{.state = found.state, .tensors = {}};
}

bool TrainingLoop::all_accept(bool accepted) const {
  return distributed::largest(world_, "whether all go on", accepted ? 0 : 1) == 0;
}

bool TrainingLoop::rank_0_says(bool own) const {
  return distributed::largest(world_, "what rank 0 says", rank() == 0 && own ? 1 : 0) != 0;
}

/// Makes all ranks end after the same step, with the reason of the lowest rank that has one.
void TrainingLoop::agree_on_reason() {
  if (ranks() == 1) return;
  constexpr std::string_view what = "the end of a step";
  if (distributed::largest(world_, what, reason_ ? 1 : 0) == 0) return;
  for (const std::string& reason :
       distributed::all_gather_texts(world_, what, reason_.value_or("")))
    if (!reason.empty()) {
      reason_ = reason;
      return;
    }
}

/// Returns the signal that ended the training: launchers and people may signal one process or all.
int TrainingLoop::signal_of_all() const {
  return int(distributed::largest(world_, "signals", StopSignals::received()));
}

/// Returns the sums over all ranks.
MetricSums TrainingLoop::of_all(const MetricSums& own) const {
  if (ranks() == 1) return own;
  std::vector<double> numbers;
  for (const ExactSum& sum : {own.total, own.weight, own.targets, own.squares})
    numbers.insert(numbers.end(), {sum, sum.rest()});
  MetricSums all;
  for (const Tensor& x : distributed::all_gather(world_, "sums of metrics", TrafficUse::control,
                                                 from_vector(numbers, {8}, f64))) {
    const auto* const next = x.data<double>();
    const auto sum = [next](int i) { return ExactSum(next[2 * i], next[2 * i + 1]); };
    all += {.total = sum(0), .weight = sum(1), .targets = sum(2), .squares = sum(3)};
  }
  return all;
}

/// Returns the sum of `count` numbers in their order: rank r has the numbers r, r + ranks, ...
double TrainingLoop::sum_of_all(const std::vector<double>& own, int64_t count) const {
  std::vector<double> padded = own;
  padded.resize(std::size_t(1 + (count - 1) / ranks()));
  const std::vector<Tensor> all =
      distributed::all_gather(world_, "terms of a step", TrafficUse::control,
                              from_vector(padded, {int64_t(padded.size())}, f64));
  double sum = 0;
  for (int64_t i = 0; i < count; ++i)
    sum += all[std::size_t(i % ranks())].data<double>()[i / ranks()];
  return sum;
}

double TrainingLoop::value_of_all(RunningMean mean) const {
  if (ranks() > 1) mean.restore(of_all(mean.sums()));
  return mean.value();
}

double TrainingLoop::value_of_all(TaskMetric metric) const {
  if (ranks() > 1) metric.restore(of_all(metric.sums()));
  return metric.value();
}

/// Logs how long ranks have waited for each other since the last record. The slowest rank waits
/// least.
void TrainingLoop::log_waiting() {
  if (ranks() == 1) return;
  const double waited = world_.traffic().waited;
  const Tensor own = scalar(waited - std::exchange(waited_before_, waited), f64);
  std::vector<double> all;
  for (const Tensor& x :
       distributed::all_gather(world_, "how long ranks waited", TrafficUse::control, own))
    all.push_back(x.item());
  log("train/waited_most", std::ranges::max(all)), log("train/waited_least", std::ranges::min(all));
}

/// Ends all ranks with one message, from rank 0, for an error that all ranks have.
void TrainingLoop::end_all(std::string_view message) const {
  if (rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  world_.abort(message);
  std::terminate();  // compilers do not see that the virtual function never returns
}

}  // namespace halftone::train
