// The options of a Trainer. docs/trainer_options.md compares each option with PyTorch Lightning's.
#pragma once

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <halftone/amp/strategy.h>
#include <halftone/distributed/wire.h>
#include <halftone/optim/lr_schedule.h>
#include <halftone/train/callbacks.h>
#include <halftone/train/logging/logger.h>

namespace halftone::train {

/// When checkpoints are saved, and which are kept.
struct CheckpointOptions {
  int64_t every_epochs = 1, every_steps = 0;  // 0: not at this interval
  int64_t keep_last = 1;                      // 1 or more
  int64_t keep_best = 0;                      // keeps this many more, the best by
                                              // TrainerOptions::monitor

  bool operator==(const CheckpointOptions&) const = default;
};

struct TrainerOptions {
  /// "32-true", "bf16-mixed", ... or the name of a strategy: see precision.h.
  std::string precision = "32-true";
  /// Used instead of `precision`: a strategy of your own.
  std::optional<amp::Strategy> strategy{};

  // --- the end of the training: the first limit that is reached. At least one must be set.
  int64_t max_epochs = 0, max_steps = 0;
  std::chrono::duration<double> max_time{0};  // includes the time of the runs that this one resumes
  /// stop(), as called by callbacks, waits for these minimums. Limits and signals do not wait.
  int64_t min_epochs = 0, min_steps = 0;

  // --- a step
  /// Batches per step: the gradient is the mean over the terms of all. Several processes share the
  /// batches, and the final weights do not depend on the number of processes. 0: one batch per
  /// process; a resumed training keeps its checkpoint's number.
  int64_t accumulate_batches = 0;
  /// The wire format of gradients in the sum over a step's batches, for one process or several.
  distributed::Options distributed{};
  double clip_norm = 0, clip_value = 0;  // 0: none; for unscaled gradients
  double clip_norm_type = 2;             // p of the norm; infinity: the largest element
  /// Makes the schedule of the learning rates for the number of steps that max_epochs and max_steps
  /// allow. Skipped and dropped steps do not advance it.
  std::function<optim::LrSchedule(int64_t steps)> schedule{};

  // --- validation, if there is a loader for it
  int64_t validate_every_epochs = 1, validate_every_steps = 0;
  /// Batches to validate before the first step, so that errors show at once and not after an epoch.
  int64_t sanity_check_batches = 2;

  /// Also measures the task's metrics on training batches, not only in validation.
  bool train_metrics = true;

  // --- trying things out; 0: off
  int64_t limit_train_batches = 0, limit_validation_batches = 0;
  /// One epoch of this many batches, for training and validation. Writes no files.
  int64_t fast_dev_run = 0;
  /// Trains on the first n batches, unshuffled, and validates on the same batches.
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
  /// The metric that ranks checkpoints: a number that is logged when they are saved.
  std::string monitor = "val/loss";
  bool larger_is_better = false;
  /// Resumes from the latest valid checkpoint in the directory, if there is one. If false, a
  /// directory with checkpoints or logs is an error; if true, one whose checkpoints are all damaged
  /// is.
  bool resume = false;
  /// Moves old checkpoints and logs to old-1/ (old-2/, ...) in the directory and starts anew,
  /// instead of refusing.
  bool set_aside = false;
  bool csv = true, json_lines = false, tensorboard = false;
  std::vector<std::shared_ptr<Logger>> loggers{};  // additional loggers
  int64_t log_every_steps = 50;
  /// After a step skipped for an overflow: says which tensor was the first that is not finite, and
  /// which loss scale would have been enough (policy/probe.h), for the step's last
  /// batch. Such steps are slow; on a GPU every step waits.
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
/// Returns `strategy`, or else the strategy of `precision`. Throws UsageError for unknown words.
amp::Strategy strategy_of(const TrainerOptions& options);

}  // namespace halftone::train
