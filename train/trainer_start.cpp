// What a Trainer does before its first step: fits options, data and what is in its directory
// together.
#include <halftone/train/trainer.h>

#include <algorithm>
#include <limits>

#include <halftone/core/error.h>
#include <halftone/train/for_people.h>
#include <halftone/train/model_summary.h>
#include <halftone/train/rates.h>
#include <halftone/train/resume.h>

namespace halftone::train {

namespace {
constexpr std::string_view where = "Trainer";

int64_t limited(int64_t size, int64_t limit) { return limit > 0 ? std::min(size, limit) : size; }

void require_batches(const data::DataLoader& loader, std::string_view which) {
  if (loader.size() == 0)
    fail<UsageError>(where, "the ", which, " loader has no batch: ", loader.dataset().size(),
                     " samples, batch_size ", loader.options().batch_size,
                     ". Turn drop_last off, or make batches smaller.");
}

void require_device(const data::DataLoader& loader, Device device, std::string_view which) {
  if (loader.options().device != device)
    fail<DeviceError>(where, "the model is on ", device, ", the ", which, " loader delivers to ",
                      loader.options().device, ". Give it {.device = ...}, or move the model.");
}

}  // namespace

Device Trainer::device() const {
  const std::vector<Tensor> parameters = task_.model.parameters();
  return parameters.empty() ? Device::cpu() : parameters.front().device();
}

void Trainer::require_data(const data::DataLoader& train,
                           const data::DataLoader* validation) const {
  const TrainerOptions& o = options_;
  require_batches(train, "training");
  require_device(train, device(), "training");
  if (position_.batches > 0 && loader_) require_same_loader(loader_numbers(*loader_), train);
  if (validation) {
    require_batches(*validation, "validation");
    require_device(*validation, device(), "validation");
  }
  const bool validates = validation && (o.validate_every_epochs > 0 || o.validate_every_steps > 0);
  const bool wants = o.checkpoints.keep_best > 0 && o.monitor.starts_with("val/");
  if ((o.validate_every_steps > 0 && !validation) || (wants && !validates))
    fail<UsageError>(where,
                     wants ? "checkpoints.keep_best by " + o.monitor : "validate_every_steps",
                     " needs something to validate on, and a time for it. Pass fit() a second "
                     "loader, and validate_every_epochs or validate_every_steps.");
}

std::optional<DirectoryLock> Trainer::set_up(data::DataLoader train,
                                             std::optional<data::DataLoader> validation) {
  const TrainerOptions& o = options_;
  if (o.overfit_batches > 0) {
    data::DataLoaderOptions in_order = train.options();
    in_order.shuffle = false;
    train = train.with_options(in_order), validation = train;
  }
  require_data(train, validation ? &*validation : nullptr);
  loader_ = std::move(train), validation_ = std::move(validation);
  batches_ = limited(loader_->size(), o.limit_train_batches);
  validation_batches_ = validation_ ? limited(validation_->size(), o.limit_validation_batches) : 0;

  const int64_t steps = 1 + (batches_ - 1) / o.accumulate_batches;
  constexpr int64_t never = std::numeric_limits<int64_t>::max();
  if (o.progress_bar)
    records_.show_progress({.epochs = o.max_epochs,
                            .steps_per_epoch = steps,
                            .interval = o.log_every_steps > 0 ? o.log_every_steps : never,
                            .output = o.output});
  std::optional<DirectoryLock> lock;
  if (directory_) lock = directory_->lock();
  if (!begun_) begin(steps);
  return lock;
}

void Trainer::begin(int64_t steps_per_epoch) {
  optim::Optimizer& optimizer = training_.optimizer();
  const std::vector<double> rates = rates_of(optimizer);
  try {
    if (options_.schedule) make_scheduler(steps_per_epoch);
    if (options_.model_summary)
      print_for_people(options_.output,
                       model_summary(task_.model, optimizer, training_.strategy()) + '\n');
    records_.write_to(options_.loggers);
    if (directory_) begin_in_directory();
    if (validation_)
      evaluate(*validation_, std::min(validation_batches_, options_.sanity_check_batches), false);
    begun_ = true;
  } catch (...) {
    records_.write_to({});
    if (scheduler_) set_rates(optimizer, rates);
    scheduler_.reset();
    throw;
  }
}

void Trainer::begin_in_directory() {
  const TrainerOptions& o = options_;
  const auto found = directory_->open({.resume = o.resume, .set_aside = o.set_aside});
  if (found) {
    if (found->state.batches > 0) require_same_loader(found->state.numbers, *loader_);
    if (o.deterministic) require_same_environment(found->state, device());
  }
  std::vector<std::shared_ptr<Logger>> loggers = o.loggers;
  for (auto& one : directory_->loggers(
           {.csv = o.csv, .json_lines = o.json_lines, .tensorboard = o.tensorboard}))
    loggers.push_back(std::move(one));
  records_.write_to(std::move(loggers));
  if (found) resume(*found);
  directory_->remove_old();  // a kill may have come between saving and removing
}

void Trainer::make_scheduler(int64_t steps_per_epoch) {
  int64_t steps = options_.max_steps, of_epochs = 0;
  if (__builtin_mul_overflow(options_.max_epochs, steps_per_epoch, &of_epochs))
    of_epochs = std::numeric_limits<int64_t>::max();
  if (of_epochs > 0) steps = steps > 0 ? std::min(steps, of_epochs) : of_epochs;
  scheduler_.emplace(training_.optimizer(), options_.schedule(steps));
}

}  // namespace halftone::train
