// The Trainer, its options and its result.
#pragma once

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <halftone/amp/policy.h>
#include <halftone/amp/training.h>
#include <halftone/core/device.h>
#include <halftone/data/data_loader.h>
#include <halftone/distributed/wire.h>
#include <halftone/optim/optimizers.h>
#include <halftone/train/callbacks.h>
#include <halftone/train/checkpoint.h>
#include <halftone/train/loggers.h>
#include <halftone/train/metrics.h>
#include <halftone/train/task.h>

namespace halftone::train {

// The options of a Trainer. docs/trainer_options.md compares each option with PyTorch Lightning's.

/// When checkpoints are saved, and which are kept.
struct CheckpointOptions {
  int64_t every_epochs = 1, every_steps = 0;  // 0: not at this interval
  int64_t keep_last = 1;                      // 1 or more
  int64_t keep_best = 0;                      // keeps this many more, the best by
                                              // TrainerOptions::monitor

  bool operator==(const CheckpointOptions&) const = default;
};

struct TrainerOptions {
  /// "32-true", "bf16-mixed", ..., the name of a strategy, or a policy file: see strategy_for().
  std::string precision = "32-true";
  /// A strategy of your own, used instead of `precision`.
  std::optional<amp::Policy> strategy{};

  // --- the end of the training: the first limit that is reached. At least one must be set.
  int64_t max_epochs = 0, max_steps = 0;
  std::chrono::duration<double> max_time{0};  // includes the time before a resume
  /// After a callback calls stop(), the training goes on until both minimums are reached. Limits
  /// and signals do not wait for them.
  int64_t min_epochs = 0, min_steps = 0;

  // --- a step
  /// Batches per step. The gradient is that of the mean loss over the terms of all these batches.
  /// Several processes share the batches, and the final weights do not depend on the number of
  /// processes. 0: one batch per process; a resumed training keeps its checkpoint's number.
  int64_t accumulate_batches = 0;
  /// The wire format of gradients in the sum over a step's batches, also within a single process.
  distributed::Options distributed{};
  double clip_norm = 0, clip_value = 0;  // 0: no clipping; limits for unscaled gradients
  double clip_norm_type = 2;             // p of the norm; infinity: the largest element
  /// Returns the schedule of the learning rates for `steps`, the number of steps that max_epochs
  /// and max_steps allow. Skipped and dropped steps do not advance the schedule.
  std::function<optim::LrSchedule(int64_t steps)> schedule{};

  // --- validation, if there is a loader for it
  int64_t validate_every_epochs = 1, validate_every_steps = 0;
  /// Number of validation batches that run before the first step, so that errors show at once.
  int64_t sanity_check_batches = 2;

  /// Also measures the task's metrics on training batches, not only in validation.
  bool train_metrics = true;

  // --- trying things out; 0: off
  int64_t limit_train_batches = 0, limit_validation_batches = 0;
  /// Trains one epoch of this many batches, and validates on as many. Writes no files.
  int64_t fast_dev_run = 0;
  /// Trains on the first batches, this many, without shuffling, and validates on the same batches.
  int64_t overfit_batches = 0;
  /// Refuses to resume if the bits could differ: on another device, with other kernels, another
  /// number of threads or another version. Within one run everything is deterministic anyway.
  bool deterministic = false;
  /// Calls set_portable_bits(true): the same bits on every CPU, with any number of threads.
  bool portable_bits = false;

  // --- files
  /// The folder of checkpoints/, metrics.csv, metrics.jsonl and tensorboard/; created if it does
  /// not exist. Empty: no files.
  std::filesystem::path directory{};
  CheckpointOptions checkpoints{};
  /// The name of the logged number that ranks checkpoints. It must be logged before they are saved.
  std::string monitor = "val/loss";
  bool larger_is_better = false;
  /// Resumes from the latest valid checkpoint in the directory, if there is one. Without set_aside,
  /// fit() throws UsageError if this is false and the directory has checkpoints or logs, and
  /// FormatError if this is true and all checkpoints are damaged.
  bool resume = false;
  /// Where fit() would throw these errors, moves the old checkpoints and logs to old-1/ (old-2/,
  /// ...) in the directory instead, and starts anew.
  bool set_aside = false;
  bool csv = true, json_lines = false, tensorboard = false;
  std::vector<std::shared_ptr<Logger>> loggers{};  // additional loggers
  int64_t log_every_steps = 50;
  /// After each step that is skipped because of an overflow, prints the first tensor that is not
  /// finite in the step's last batch, and a loss scale that would have avoided it (amp/probe.h).
  /// Such steps are slow. On a GPU every step waits.
  bool explain_overflows = false;

  // --- output for people
  bool progress_bar = true, model_summary = true;
  std::FILE* output = stdout;  // stays open

  std::vector<std::shared_ptr<Callback>> callbacks{};
  /// After SIGINT, SIGTERM or SIGHUP the Trainer finishes the step, saves a checkpoint, and ends
  /// the process by that signal (with several trainings in one process, the last one ends it).
  /// False: fit() returns instead. A second signal ends the process at once.
  bool exit_on_signal = true;
};

/// Returns the options with fast_dev_run and overfit_batches turned into limits. Throws UsageError
/// for numbers out of range and options that contradict each other.
TrainerOptions effective(TrainerOptions options);
/// Returns options.strategy or, if it is not set, strategy_for(options.precision), with its errors.
amp::Policy strategy_of(const TrainerOptions& options);

// The environment that the bits of a training depend on, besides its own state.

/// Returns a text such as "halftone 0.1.0, cpu: avx2 kernels, ..., 2 threads". Two runs of one
/// build with equal texts compute the same bits. With portable bits (core/device.h) the text of
/// a CPU leaves out the number of threads.
std::string environment_of(Device device);

// SIGINT, SIGTERM and SIGHUP (a closed terminal) as a flag that a training loop checks between two
// steps.

/// While an object exists, the first SIGINT, SIGTERM or SIGHUP is only noted, and a second one of
/// the same kind ends the process. A signal that the process ignores stays ignored. SIGPIPE is also
/// ignored, unless it has a handler: an output without a reader must not stop a training. The last
/// object restores the earlier handlers. All trainings of a process share the noted signal.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Returns the noted signal; 0 if none came.
  static int received();
  /// Returns whether an object exists: then a training has not ended yet.
  static bool any();
  /// Returns a text such as "interrupted (SIGINT)".
  static const char* meaning(int signal);
};

// Runs a training from start to end: steps from batches under a strategy, validation, limits,
// records, checkpoints, and resuming after a kill. Like PyTorch Lightning's Trainer, with one
// device per process:
//
//   train::Trainer trainer(train::classification(model), adamw,
//                          {.precision = "bf16-mixed", .max_epochs = 3});
//   trainer.fit(loader, validation_loader);
//
// Steps have the bits of the loop in amp/training.h. How it works: training_loop.h.

class TrainingLoop;

struct FitResult {
  std::string reason;      // why it ended: "max_epochs is reached", ..., or stop()'s argument
  int signal = 0;          // the signal that ended it; 0: none
  int64_t steps = 0;       // of the whole training, including resumed runs
  int64_t epochs = 0;      // completed ones
  double seconds = 0;      // of the whole training, including resumed runs
  MetricValues metrics{};  // the last number of each name
  /// The path of the best kept checkpoint by TrainerOptions::monitor at the end of fit(), on rank
  /// 0. Empty without checkpoints.keep_best, or if no checkpoint has the metric.
  std::filesystem::path best_checkpoint{};
};

class Trainer {
 public:
  /// Applies the strategy to the task's model and its optimizer (amp::apply()); both must outlive
  /// this. Throws UsageError for options that are unknown, out of range or contradict each other,
  /// and throws what amp::apply() throws. After an exception, model and optimizer are unchanged.
  Trainer(Task task, optim::Optimizer& optimizer, TrainerOptions options);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  /// If a callback or function that fit() calls destroys the Trainer, fit() then throws UsageError.
  ~Trainer();

  /// Trains until a limit is reached, stop() is called, or a signal comes. Another call continues
  /// the training. Throws what the task, the dataset and the callbacks throw, FormatError if files
  /// cannot be written, UsageError if a checkpoint does not belong to this training or a loader has
  /// no batch, DeviceError if a loader's device is not the model's. Earlier checkpoints are still
  /// there after an exception. If several processes train, all must call it, with equal data; an
  /// exception in one ends all of them with its message.
  FitResult fit(data::DataLoader train, std::optional<data::DataLoader> validation = {});
  /// Measures one epoch of `loader` in evaluation mode, and returns "val/loss" and the task's
  /// metrics under the names that fit() uses ("val/top1"). Restores the modes of modules and the
  /// state of the default generator.
  MetricValues validate(data::DataLoader loader);
  /// Returns the task's outputs for an epoch of a loader, in its order, in evaluation mode and
  /// without gradients: [samples, ...], on the model's device. Does not read targets. Throws
  /// UsageError for a loader without a batch, and for one that shuffles: its order is not known.
  Tensor predict(data::DataLoader loader);
  /// Saves a checkpoint to a path that does not exist yet; call it between two steps. Throws what
  /// save_checkpoint() throws. All ranks must call it; rank 0 writes. Waits for a GPU.
  void save(const std::filesystem::path& path) const;

  // --- for callbacks
  /// Ends the training after this step, but not before min_steps and min_epochs are reached. If it
  /// is called several times before they are reached, the first reason counts.
  void stop(std::string reason);
  /// Adds a number to the record of this step. The last of equal names counts. Throws what
  /// check_log_name() throws.
  void log(std::string_view name, double value);
  /// Returns the last logged number of a name. If there is none, throws a UsageError that suggests
  /// the nearest name.
  double metric(std::string_view name) const;
  /// Writes a line for people above the progress bar.
  void note(std::string_view text);

  amp::Training& training();
  nn::Module& model();
  const TrainerOptions& options() const;
  /// Returns whether validations will run: fit() got a loader for them, and an interval is set.
  bool validates() const;
  /// Returns the steps taken, the completed epochs, and the finished batches of the present epoch.
  const CheckpointState& position() const;
  /// Returns how many samples this object has used, on all processes together. Skipped and dropped
  /// steps count, earlier runs do not.
  double samples() const;
  /// Returns the mean loss of the last step. Waits for a GPU, and for the other processes.
  double step_loss() const;
  /// Returns this process's number, below ranks(). Only rank 0 writes files and messages.
  int rank() const;
  int ranks() const;

 private:
  friend class TrainingLoop;
  explicit Trainer(std::shared_ptr<TrainingLoop> loop);

  std::shared_ptr<TrainingLoop> loop_;  // fit(), validate(), ... hold it until they return
  bool owns_;
};

}  // namespace halftone::train
