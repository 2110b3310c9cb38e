// Runs a training from start to end: steps from batches under a strategy, validation, limits,
// records, checkpoints, and resuming after a kill. Like PyTorch Lightning's Trainer, with one
// device per process:
//
//   train::Trainer trainer(train::classification(model), adamw,
//                          {.precision = "bf16-mixed", .max_epochs = 3});
//   trainer.fit(loader, validation_loader);
//
// Steps have the bits of the loop in amp/training.h. How it works: training_loop.h. Options:
// trainer_options.h.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <halftone/amp/training.h>
#include <halftone/data/data_loader.h>
#include <halftone/train/checkpoints/checkpoint.h>
#include <halftone/train/metric_values.h>
#include <halftone/train/task.h>
#include <halftone/train/trainer_options.h>

namespace halftone::train {

class TrainingLoop;

struct FitResult {
  std::string reason;      // why it ended: "max_epochs is reached", or the reason of stop()
  int signal = 0;          // the signal that ended it
  int64_t steps = 0;       // of the whole training, including resumed runs
  int64_t epochs = 0;      // completed ones
  double seconds = 0;      // of the whole training, including resumed runs
  MetricValues metrics{};  // the last number of each name
  /// The best checkpoint by TrainerOptions::monitor that is kept, at the end of fit(); on rank 0.
  /// Empty without checkpoints.keep_best, or if no checkpoint has the metric.
  std::filesystem::path best_checkpoint{};
};

class Trainer {
 public:
  /// Applies the strategy to the task's model and its optimizer (amp::apply()); both must outlive
  /// this. Throws UsageError for options that are unknown, out of range or contradict each other,
  /// and throws what amp::apply() throws; then model and optimizer are unchanged.
  Trainer(Task task, optim::Optimizer& optimizer, TrainerOptions options);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  /// In a function that fit() calls: fit() ends with a UsageError as soon as that function returns.
  ~Trainer();

  /// Trains until a limit is reached, stop() is called, or a signal comes. Another call continues
  /// from there. Throws what the task, the dataset and the callbacks throw, FormatError if files
  /// cannot be written, and UsageError if a checkpoint does not belong to this training; earlier
  /// checkpoints are still there then. If several processes train, all must call it, with equal
  /// data; an exception in one ends all of them with its message.
  FitResult fit(data::DataLoader train, std::optional<data::DataLoader> validation = {});
  /// Returns "val/loss" and the task's metrics over an epoch of a loader, with fit()'s names, in
  /// evaluation mode. Does not change modules' modes or random numbers.
  MetricValues validate(data::DataLoader loader);
  /// Returns the task's outputs for an epoch of a loader, in its order, in evaluation mode and
  /// without gradients: [samples, ...], on the model's device. Does not read targets. Throws
  /// UsageError for a loader that shuffles, because the order of its outputs would be unknown.
  Tensor predict(data::DataLoader loader);
  /// Saves as save_checkpoint(), between two steps. All ranks call it, the first writes. Waits for
  /// a GPU.
  void save(const std::filesystem::path& path) const;

  // --- for callbacks
  /// Ends the training after this step, or when min_steps and min_epochs are reached; if it was
  /// called several times by then, the first reason counts.
  void stop(std::string reason);
  /// Adds a number to the record of this step; for equal names the last counts. Throws as
  /// check_log_name().
  void log(std::string_view name, double value);
  /// Returns the last logged number of a name. Throws UsageError, with the nearest name, if there
  /// is none.
  double metric(std::string_view name) const;
  /// Writes a line for people above the progress bar.
  void note(std::string_view text);

  amp::Training& training();
  nn::Module& model();
  const TrainerOptions& options() const;
  /// Returns whether validations will run: there is a loader for them and an interval.
  bool validates() const;
  /// Returns the steps taken, completed epochs, and finished batches of the present epoch.
  const CheckpointState& position() const;
  /// Returns the number of samples that this object has trained on.
  double samples() const;
  /// Returns the mean loss of the last step. Waits for a GPU, and for the other processes.
  double step_loss() const;
  /// This process's number among those that train together; only rank 0 writes files and messages.
  int rank() const;
  int ranks() const;

 private:
  friend class TrainingLoop;
  explicit Trainer(std::shared_ptr<TrainingLoop> loop);

  std::shared_ptr<TrainingLoop> loop_;  // fit() and its like hold it until they return
  bool owns_;
};

}  // namespace halftone::train
