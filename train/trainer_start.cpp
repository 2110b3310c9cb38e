// What a Trainer does before its first step: fits options and data together, opens files, and goes
// back to the latest checkpoint.
#include <halftone/train/trainer.h>

#include <algorithm>
#include <iterator>

#include <halftone/core/error.h>
#include <halftone/train/checkpoints.h>
#include <halftone/train/environment.h>
#include <halftone/train/loggers.h>
#include <halftone/train/model_summary.h>
#include <halftone/train/resume.h>

namespace halftone::train {

namespace fs = std::filesystem;

namespace {
constexpr std::string_view where = "Trainer";

int64_t limited(int64_t size, int64_t limit) { return limit > 0 ? std::min(size, limit) : size; }

void require_device(const data::DataLoader& loader, Device device, std::string_view which) {
  if (loader.options().device != device)
    fail<DeviceError>(where, "the model is on ", device, ", the ", which, " loader delivers to ",
                      loader.options().device, ". Give it {.device = ...}, or move the model.");
}

void make_directory(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error || !fs::is_directory(path))
    fail<FormatError>(where, "cannot make the directory ", path.string(), ": ",
                      error ? error.message() : "something else has this name",
                      ". Name one that can be made.");
}

bool holds_anything(const fs::path& directory) {
  std::error_code none;
  return fs::directory_iterator(directory, none) != fs::directory_iterator{};
}
}  // namespace

Device Trainer::device() const {
  const std::vector<Tensor> parameters = task_.model.parameters();
  return parameters.empty() ? Device::cpu() : parameters.front().device();
}

void Trainer::arrange(data::DataLoader train, std::optional<data::DataLoader> validation) {
  const TrainerOptions& o = options_;
  loader_ = std::move(train), validation_ = std::move(validation);
  if (o.overfit_batches > 0) {
    data::DataLoaderOptions in_order = loader_->options();
    in_order.shuffle = false;
    loader_ = loader_->with_options(in_order), validation_ = loader_;
  }
  batches_ = limited(loader_->size(), o.limit_train_batches);
  if (batches_ == 0)
    fail<UsageError>(where, "the training loader has no batch: ", loader_->dataset().size(),
                     " samples, batch_size ", loader_->options().batch_size,
                     ". Turn drop_last off, or make batches smaller.");
  require_device(*loader_, device(), "training");
  if (validation_) {
    require_device(*validation_, device(), "validation");
    validation_batches_ = limited(validation_->size(), o.limit_validation_batches);
  } else if (o.validate_every_steps > 0 || o.checkpoints.keep_best > 0) {
    fail<UsageError>(where, o.validate_every_steps > 0 ? "validate_every_steps" : "keep_best",
                     " needs something to validate on. Pass fit() a second loader.");
  }

  const int64_t steps = (batches_ + o.accumulate_batches - 1) / o.accumulate_batches;
  if (o.progress_bar)
    progress_.emplace(ProgressOptions{.epochs = o.max_epochs,
                                      .steps_per_epoch = steps,
                                      .interval = std::max<int64_t>(o.log_every_steps, 1),
                                      .output = o.output});
  if (!scheduler_ && o.schedule) make_scheduler(steps);
  if (std::exchange(started_, true)) return;
  if (progress_ && o.model_summary)
    note(model_summary(task_.model, training_.optimizer(), training_.strategy()));
  if (validation_ && o.sanity_check_batches > 0)
    measure(*validation_, std::min(validation_batches_, o.sanity_check_batches));
  loggers_ = o.loggers;
  if (!o.directory.empty()) open_files();
  if (position_.batches >= batches_) ++position_.epoch, position_.batches = 0;  // lower limits now
}

void Trainer::make_scheduler(int64_t steps_per_epoch) {
  int64_t steps = options_.max_steps;
  if (const int64_t of_epochs = options_.max_epochs * steps_per_epoch; of_epochs > 0)
    steps = steps > 0 ? std::min(steps, of_epochs) : of_epochs;
  scheduler_.emplace(training_.optimizer(), options_.schedule(steps));
}

void Trainer::open_files() {
  const fs::path& directory = options_.directory;
  const fs::path checkpoints = directory / "checkpoints";
  make_directory(checkpoints);
  remove_abandoned(checkpoints);
  if (options_.resume) {
    resume(checkpoints);
    remove_old_checkpoints();  // a kill may have come between saving and removing
  } else if (holds_anything(checkpoints)) {
    fail<UsageError>(where, checkpoints.string(), " holds the checkpoints of an earlier training. ",
                     "Pass .resume = true to go on with it, or name another directory.");
  }
  if (options_.csv) loggers_.push_back(std::make_shared<CsvLogger>(directory / "metrics.csv"));
  if (options_.json_lines)
    loggers_.push_back(std::make_shared<JsonLinesLogger>(directory / "metrics.jsonl"));
  if (options_.tensorboard)
    loggers_.push_back(std::make_shared<TensorBoardLogger>(directory / "tensorboard"));
}

void Trainer::resume(const fs::path& checkpoints) {
  const std::optional<FoundCheckpoint> found = latest_checkpoint(checkpoints);
  if (!found) {
    if (holds_anything(checkpoints))
      note("no checkpoint in " + checkpoints.string() + " is valid: from the beginning");
    return;
  }
  require_same_data(found->state);
  const CheckpointState at =
      load_training(found->path, training_, scheduler_ ? &*scheduler_ : nullptr);
  restore(at);
  saved_step_ = at.step;
  note("resumed after step " + std::to_string(at.step) + " from " + found->path.string());
}

/// Bits and places in an epoch mean something only where the data and the machine are the same.
void Trainer::require_same_data(const CheckpointState& at) const {
  const auto number = [&](const char* name) {
    const auto entry = at.numbers.find(name);
    return entry == at.numbers.end() ? -1 : entry->second;
  };
  const double batch = number("state.batch_size"), samples = number("state.samples");
  const bool same = batch == double(loader_->options().batch_size) &&
                    samples == double(loader_->dataset().size());
  if (at.batches > 0 && !same)
    fail<UsageError>(where, "the checkpoint of step ", at.step, " stands in the middle of an ",
                     "epoch of ", samples, " samples in batches of ", batch, "; this loader has ",
                     loader_->dataset().size(), " in batches of ", loader_->options().batch_size,
                     ". Resume with the loader of that training.");
  const auto text = at.texts.find("environment");
  const std::string there = text == at.texts.end() ? "unknown" : text->second,
                    here = environment_of(device());
  if (options_.deterministic && there != here)
    fail<UsageError>(where,
                     "this is another environment, whose bits may differ: the checkpoint is "
                     "of \"",
                     there, "\", here is \"", here, "\". Resume there, or turn deterministic off.");
}

}  // namespace halftone::train
