// What a Trainer is told. docs/training.md sets each option beside PyTorch Lightning's.
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
#include <halftone/distributed/options.h>
#include <halftone/optim/lr_schedule.h>
#include <halftone/train/callbacks/callback.h>
#include <halftone/train/logging/logger.h>

namespace halftone::train {

/// Which checkpoints are saved, and which are kept.
struct CheckpointOptions {
  int64_t every_epochs = 1, every_steps = 0;  // 0: not for that reason
  int64_t keep_last = 1;                      // 1 or more
  int64_t keep_best = 0;                      // besides, so many by TrainerOptions::monitor

  bool operator==(const CheckpointOptions&) const = default;
};

struct TrainerOptions {
  /// "32-true", "bf16-mixed", ... or the name of a strategy: see precision.h.
  std::string precision = "32-true";
  /// In the place of `precision`: a strategy of your own.
  std::optional<amp::Strategy> strategy{};

  // --- the end of the training: the first limit that is reached. One must be given.
  int64_t max_epochs = 0, max_steps = 0;
  std::chrono::duration<double> max_time{0};  // with that of the runs that this one resumes
  /// stop(), as callbacks call it, waits until there have been so many. Limits and signals do not.
  int64_t min_epochs = 0, min_steps = 0;

  // --- a step
  /// Batches whose gradients make one step: their mean over all samples. Of several processes each
  /// computes its share of them, and the weights at the end do not depend on how many there are.
  /// 0: one for each process; a training that resumes keeps what its checkpoint has.
  int64_t accumulate_batches = 0;
  /// What gradients are on their way to the sum of a step's batches, of one process or several.
  distributed::Options distributed{};
  double clip_norm = 0, clip_value = 0;  // 0: none; of unscaled gradients
  double clip_norm_type = 2;             // p of the norm; infinity for the largest element
  /// Makes the schedule of the learning rates from the number of steps that the training will have
  /// by max_epochs and max_steps. Steps that are skipped or dropped do not advance it.
  std::function<optim::LrSchedule(int64_t steps)> schedule{};

  // --- validation, where there is a loader for it
  int64_t validate_every_epochs = 1, validate_every_steps = 0;
  /// Before the first step, so that what fails there does not fail after an epoch.
  int64_t sanity_check_batches = 2;

  /// The task's metrics are measured on training batches, too, not only on validation.
  bool train_metrics = true;

  // --- trying things out; 0: off
  int64_t limit_train_batches = 0, limit_validation_batches = 0;
  /// One epoch of so many batches, for training and validation. Writes no file.
  int64_t fast_dev_run = 0;
  /// Trains on the first so many batches, unshuffled, and validates on the same.
  int64_t overfit_batches = 0;
  /// Refuses to resume where the bits could become others: another device, other kernels, another
  /// number of threads or version. Within one run everything is deterministic in any case.
  bool deterministic = false;

  // --- files
  /// Of checkpoints/, metrics.csv, metrics.jsonl and tensorboard/; made if it is not there. Empty:
  /// no files.
  std::filesystem::path directory{};
  CheckpointOptions checkpoints{};
  /// What the best checkpoints are best by: a number that is logged when they are saved.
  std::string monitor = "val/loss";
  bool larger_is_better = false;
  /// Goes on from the latest valid checkpoint in the directory, if there is one. Without this, a
  /// directory with checkpoints or logs is refused; with it, one whose checkpoints are all damaged.
  bool resume = false;
  /// Instead of refusing it: checkpoints and logs move to old-1/ (old-2/, ...) in the directory,
  /// and the training begins there anew.
  bool set_aside = false;
  bool csv = true, json_lines = false, tensorboard = false;
  std::vector<std::shared_ptr<Logger>> loggers{};  // more of them
  int64_t log_every_steps = 50;
  /// After a step that was skipped for an overflow: says where the first tensor that is not finite
  /// stood, and which loss scale would have done (policy/telemetry/overflow.h), for the step's last batch.
  /// Slow for such steps; on a GPU every step waits.
  bool explain_overflows = false;

  // --- what people see
  bool progress_bar = true, model_summary = true;
  std::FILE* output = stdout;  // stays open

  std::vector<std::shared_ptr<Callback>> callbacks{};
  /// After SIGINT, SIGTERM or SIGHUP: the step is finished, a checkpoint saved, and the process
  /// ends by that signal (of several trainings in one process the last one ends it). False: fit()
  /// returns instead. A second signal ends the process at once.
  bool exit_on_signal = true;
};

/// The options with fast_dev_run and overfit_batches spelled out as limits. Throws UsageError for
/// numbers out of range and options that contradict each other.
TrainerOptions effective(TrainerOptions options);
/// By `strategy`, else by `precision`. Throws UsageError for unknown words.
amp::Strategy strategy_of(const TrainerOptions& options);

}  // namespace halftone::train
