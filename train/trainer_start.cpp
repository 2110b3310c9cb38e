// What a Trainer does before its first step: fits options and data together, opens files, and goes
// back to the latest checkpoint.
#include <halftone/train/trainer.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include <halftone/core/error.h>
#include <halftone/train/checkpoints.h>
#include <halftone/train/environment.h>
#include <halftone/train/loggers.h>
#include <halftone/train/model_summary.h>
#include <halftone/train/rates.h>
#include <halftone/train/resume.h>

namespace halftone::train {

namespace fs = std::filesystem;

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

void make_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    fail<FormatError>(where, "cannot make the directory ", path.string(), ": ", error.message(),
                      ". Name one that can be made.");
}

/// All digits, and no others: 16, not 16.000000.
std::string digits(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", number);
  return text;
}

/// Whether there is anything but hidden names.
bool holds_anything(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory))
    if (!entry.path().filename().string().starts_with('.')) return true;
  return false;
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

void Trainer::set_up(data::DataLoader train, std::optional<data::DataLoader> validation) {
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
    progress_.emplace(ProgressOptions{.epochs = o.max_epochs,
                                      .steps_per_epoch = steps,
                                      .interval = o.log_every_steps > 0 ? o.log_every_steps : never,
                                      .output = o.output});
  if (!begun_) begin(steps);
}

void Trainer::begin(int64_t steps_per_epoch) {
  optim::Optimizer& optimizer = training_.optimizer();
  const std::vector<double> rates = rates_of(optimizer);
  try {
    if (options_.schedule) make_scheduler(steps_per_epoch);
    if (options_.model_summary)
      std::fprintf(options_.output, "%s\n",
                   model_summary(task_.model, optimizer, training_.strategy()).c_str());
    loggers_ = options_.loggers;
    if (!options_.directory.empty()) begin_in_directory();
    if (validation_)
      evaluate(*validation_, std::min(validation_batches_, options_.sanity_check_batches), false);
    begun_ = true;
  } catch (...) {
    loggers_.clear();
    if (scheduler_) set_rates(optimizer, rates);
    scheduler_.reset();
    throw;
  }
}

void Trainer::make_scheduler(int64_t steps_per_epoch) {
  int64_t steps = options_.max_steps, of_epochs = 0;
  if (__builtin_mul_overflow(options_.max_epochs, steps_per_epoch, &of_epochs))
    of_epochs = std::numeric_limits<int64_t>::max();
  if (of_epochs > 0) steps = steps > 0 ? std::min(steps, of_epochs) : of_epochs;
  scheduler_.emplace(training_.optimizer(), options_.schedule(steps));
}

void Trainer::begin_in_directory() {
  const fs::path checkpoints = options_.directory / "checkpoints";
  make_directory(checkpoints);
  if (!options_.resume && holds_anything(checkpoints))
    fail<UsageError>(where, checkpoints.string(), " holds the checkpoints of an earlier training. ",
                     "Pass .resume = true to go on with it, or name another directory.");
  remove_abandoned(checkpoints);
  const std::optional<FoundCheckpoint> found = latest_checkpoint(checkpoints);
  if (found) {
    if (found->state.batches > 0) require_same_loader(found->state.numbers, *loader_);
    require_same_environment(found->state);
  } else if (holds_anything(checkpoints)) {
    const std::string warning =
        "no checkpoint in " + checkpoints.string() + " is valid: the " + "training begins anew";
    if (progress_) note(warning);
    else std::fprintf(stderr, "%s\n", warning.c_str());
  }
  loggers_ = opened_loggers();
  if (found) resume(found->path);
  remove_old_checkpoints();  // a kill may have come between saving and removing
}

std::vector<std::shared_ptr<Logger>> Trainer::opened_loggers() const {
  std::vector<std::shared_ptr<Logger>> all = options_.loggers;
  const fs::path& directory = options_.directory;
  if (options_.csv) all.push_back(std::make_shared<CsvLogger>(directory / "metrics.csv"));
  if (options_.json_lines)
    all.push_back(std::make_shared<JsonLinesLogger>(directory / "metrics.jsonl"));
  if (options_.tensorboard)
    all.push_back(std::make_shared<TensorBoardLogger>(directory / "tensorboard"));
  return all;
}

void Trainer::resume(const fs::path& checkpoint) {
  const CheckpointState at =
      load_training(checkpoint, training_, scheduler_ ? &*scheduler_ : nullptr);
  restore(at);
  saved_ = place();
  note("resumed after step " + std::to_string(at.step) + " from " + checkpoint.string());
}

/// A place in an epoch means something only where the batches are the same.
void Trainer::require_same_loader(const std::map<std::string, double>& before,
                                  const data::DataLoader& now) {
  for (const auto& [name, here] : loader_numbers(now)) {
    const auto there = before.find(name);
    if (there == before.end() || there->second != here)
      fail<UsageError>(where, "the training stands in the middle of an epoch whose ",
                       name.substr(name.rfind('.') + 1), " is ",
                       there == before.end() ? "unknown" : digits(there->second),
                       "; that of this loader is ", digits(here),
                       ". Go on with the loader that it had.");
  }
}

void Trainer::require_same_environment(const CheckpointState& state) const {
  const auto text = state.texts.find("environment");
  const std::string there = text == state.texts.end() ? "unknown" : text->second,
                    here = environment_of(device());
  if (options_.deterministic && there != here)
    fail<UsageError>(where,
                     "this is another environment, whose bits may differ: the checkpoint is "
                     "of \"",
                     there, "\", here is \"", here, "\". Resume there, or turn deterministic off.");
}

}  // namespace halftone::train
