// The work of a Trainer before its first step: it combines options, data and the content of its
// directory. Also saves the state, so that another Trainer can continue.
#include <halftone/train/training_loop.h>

#include <algorithm>
#include <limits>

#include <halftone/core/error.h>
#include <halftone/core/named_tensors.h>
#include <halftone/train/checkpoint.h>
#include <halftone/train/class_name.h>
#include <halftone/train/environment.h>
#include <halftone/train/logging/for_people.h>
#include <halftone/train/logging/model_summary.h>
#include <halftone/train/numbers.h>
#include <halftone/train/rates.h>

namespace halftone::train {

namespace {

int64_t limited(int64_t size, int64_t limit) { return limit > 0 ? std::min(size, limit) : size; }

void require_batches(const data::DataLoader& loader, std::string_view which) {
  if (loader.size() == 0)
    fail<UsageError>("Trainer", "the ", which, " loader has no batch: ", loader.dataset().size(),
                     " samples, batch_size ", loader.options().batch_size,
                     ". Turn drop_last off, or make batches smaller.");
}

void require_device(const data::DataLoader& loader, Device device, std::string_view which) {
  if (loader.options().device != device)
    fail<DeviceError>("Trainer", "the model is on ", device, ", the ", which,
                      " loader delivers to ", loader.options().device,
                      ". Give it {.device = ...}, or move the model.");
}

/// Returns a name such as "state.callback.0.EarlyStopping.".
std::string state_name(const Callback& callback, std::size_t i) {
  return "state.callback." + std::to_string(i) + '.' + class_name(typeid(callback)) + '.';
}
}  // namespace

Device TrainingLoop::device() const {
  const std::vector<Tensor> parameters = task_.model.parameters();
  return parameters.empty() ? Device::cpu() : parameters.front().device();
}

void TrainingLoop::require_data(const data::DataLoader& train,
                                const data::DataLoader* validation) const {
  const TrainerOptions& o = options_;
  require_batches(train, "training");
  require_device(train, device(), "training");
  if (train.options().share != data::LoaderShare{})
    fail<UsageError>("Trainer",
                     "the loader delivers a share of the batches. Leave it whole: the "
                     "Trainer shares them out.");
  if (position_.batches > 0 && loader_) require_same_loader(loader_numbers(*loader_), train);
  if (validation) {
    require_batches(*validation, "validation");
    require_device(*validation, device(), "validation");
  }
  const bool validates = validation && (o.validate_every_epochs > 0 || o.validate_every_steps > 0);
  const bool wants = o.checkpoints.keep_best > 0 && o.monitor.starts_with("val/");
  if ((o.validate_every_steps > 0 && !validation) || (wants && !validates))
    fail<UsageError>("Trainer",
                     wants ? "checkpoints.keep_best by " + o.monitor : "validate_every_steps",
                     " needs something to validate on, and a time for it. Pass fit() a second "
                     "loader, and validate_every_epochs or validate_every_steps.");
}

std::optional<DirectoryLock> TrainingLoop::set_up(data::DataLoader train,
                                                  std::optional<data::DataLoader> validation) {
  const TrainerOptions& o = options_;
  if (o.overfit_batches > 0) {
    data::DataLoaderOptions in_order = train.options();
    in_order.shuffle = false;
    train = train.with_options(in_order), validation = train;
  }
  if (position_.batches > 0 && loader_) train = with_seed_of(loader_numbers(*loader_), train);
  require_data(train, validation ? &*validation : nullptr);
  loader_ = std::move(train), validation_ = std::move(validation);
  batches_ = limited(loader_->size(), o.limit_train_batches);
  validation_batches_ = validation_ ? limited(validation_->size(), o.limit_validation_batches) : 0;

  require_alike();
  make_progress();
  std::optional<DirectoryLock> lock;
  if (directory_) lock = directory_->lock();
  if (!begun_) begin();
  share_out();
  return lock;
}

void TrainingLoop::make_progress() {
  const TrainerOptions& o = options_;
  constexpr int64_t never = std::numeric_limits<int64_t>::max();
  if (o.progress_bar)
    records_.progress.emplace(
        ProgressOptions{.epochs = o.max_epochs,
                        .steps_per_epoch = steps_per_epoch(),
                        .interval = o.log_every_steps > 0 ? o.log_every_steps : never,
                        .output = o.output});
}

void TrainingLoop::begin() {
  optim::Optimizer& optimizer = training_.optimizer();
  const std::vector<double> rates = rates_of(optimizer);
  try {
    if (options_.schedule) make_scheduler(steps_per_epoch());
    if (options_.model_summary)
      print_for_people(options_.output,
                       model_summary(task_.model, optimizer, training_.strategy(),
                                     options_.distributed.shard_optimizer ? ranks() : 1) +
                           '\n');
    records_.loggers = options_.loggers;
    if (!options_.directory.empty()) {
      const auto found =
          found_by_rank_0(directory_ ? directory_->open() : std::optional<FoundCheckpoint>());
      if (found && adopt_group(found->state)) {
        if (scheduler_) set_rates(optimizer, rates), make_scheduler(steps_per_epoch());
        make_progress();
      }
      begin_in_directory(found);
    }
    if (validation_)
      evaluate(*validation_, std::min(validation_batches_, options_.sanity_check_batches), false);
    begun_ = true;
  } catch (...) {
    records_.loggers.clear();
    if (scheduler_) set_rates(optimizer, rates);
    scheduler_.reset();
    throw;
  }
}

void TrainingLoop::begin_in_directory(const std::optional<FoundCheckpoint>& found) {
  if (found) loader_ = with_seed_of(found->state.numbers, *loader_);
  if (found && found->state.batches > 0) require_same_loader(found->state.numbers, *loader_);
  if (found && options_.deterministic) require_same_environment(found->state, device());
  if (directory_)
    for (auto& logger : directory_->loggers()) records_.loggers.push_back(std::move(logger));
  if (found) resume(*found);
  if (directory_) directory_->remove_old();  // a kill may have come between saving and removing
}

void TrainingLoop::make_scheduler(int64_t steps_per_epoch) {
  int64_t steps = options_.max_steps, of_epochs = 0;
  if (__builtin_mul_overflow(options_.max_epochs, steps_per_epoch, &of_epochs))
    of_epochs = std::numeric_limits<int64_t>::max();
  if (of_epochs > 0) steps = steps > 0 ? std::min(steps, of_epochs) : of_epochs;
  scheduler_.emplace(training_.optimizer(), options_.schedule(steps));
}

// --- checkpoints

namespace {
/// Calls `f` with each sum of a metric and its name in checkpoints.
template <class Sums, class F> void each_sum(Sums& sums, const F& f) {
  f("total", sums.total), f("weight", sums.weight);
  f("targets", sums.targets), f("squares", sums.squares);
}
}  // namespace

void TrainingLoop::save(const std::filesystem::path& path) const { save(path, position_); }

/// `state`: the position, and what kind of checkpoint it is.
void TrainingLoop::save(const std::filesystem::path& path, CheckpointState state) const {
  records_.save(state, left_.interrupted);
  if (loader_) state.numbers.merge(loader_numbers(*loader_));
  state.numbers["state.seconds"] = seconds();
  if (left_.interrupted) {
    state.numbers["state.validation_interrupted"] = 1;
    state.numbers["state.left.stepped"] = double(left_.stepped);
    state.numbers["state.left.epoch_over"] = double(left_.epoch_over);
  }
  if (!wish_.empty()) state.texts["wish"] = wish_;
  const auto add = [&](const std::string& name, const MetricSums& sums) {
    each_sum(sums, [&](const std::string& part, const ExactSum& sum) {
      state.numbers["state." + part + '.' + name] = sum;
      if (sum.rest() != 0) state.numbers["state." + part + "_rest." + name] = sum.rest();
    });
  };
  add("loss", of_all(epoch_loss_.sums()));
  for (const TaskMetric& metric : task_.metrics) add(metric.name(), of_all(metric.sums()));
  if (group_ > 1) state.numbers["state.loader.group"] = double(group_);
  optim::NamedTensors tensors;
  for (std::size_t i = 0; i < options_.callbacks.size(); ++i) {
    const Callback& callback = *options_.callbacks[i];
    const std::string own = state_name(callback, i);
    for (const auto& [name, value] : callback.state()) state.numbers[own + name] = value;
    for (const auto& [name, x] : callback.tensors()) tensors[own + name] = x;
  }
  state.texts["environment"] = environment_of(device());
  save_training(path, training_, state, scheduler_ ? &*scheduler_ : nullptr, tensors);
}

void TrainingLoop::resume(const FoundCheckpoint& found) {
  optim::LrScheduler* const scheduler = scheduler_ ? &*scheduler_ : nullptr;
  const OptionValues program = option_values(training_.optimizer(), scheduler);
  optim::NamedTensors tensors;
  const CheckpointState state = load_training(read_by_rank_0(found), found.path.string(), training_,
                                              scheduler, amp::Convert::refuse, &tensors);
  const auto& numbers = state.numbers;
  for (std::size_t i = 0; i < options_.callbacks.size(); ++i) {
    Callback& callback = *options_.callbacks[i];
    const std::string name = state_name(callback, i);
    if (const auto own = part_of(tensors, name); !own.empty()) callback.load_tensors(own);
    if (const auto own = part_of(numbers, name); !own.empty()) callback.load_state(own);
  }
  position_ = {.step = state.step, .epoch = state.epoch, .batches = state.batches};
  records_.restore(state);
  seconds_before_ = number_in(numbers, "state.seconds");
  left_ = {};
  if (number_in(numbers, "state.validation_interrupted") != 0)
    left_ = {.stage = Stage::validation,
             .stepped = number_in(numbers, "state.left.stepped") != 0,
             .epoch_over = number_in(numbers, "state.left.epoch_over") != 0,
             .interrupted = true};
  if (const auto wish = state.texts.find("wish"); wish != state.texts.end()) wish_ = wish->second;
  const auto sums = [&](const std::string& name) {
    MetricSums sums;
    if (rank() != 0) return sums;  // rank 0 continues with the sums of all ranks
    each_sum(sums, [&](const std::string& part, ExactSum& sum) {
      sum = {number_in(numbers, "state." + part + '.' + name),
             number_in(numbers, "state." + part + "_rest." + name)};
    });
    return sums;
  };
  epoch_loss_.restore(sums("loss"));
  for (TaskMetric& metric : task_.metrics) metric.restore(sums(metric.name()));

  note("resumed after step " + std::to_string(state.step) + " from " + found.path.string());
  for (const std::string& line :
       changes(program, option_values(training_.optimizer(), scheduler), state, *loader_))
    records_.tell(line);
}

}  // namespace halftone::train
