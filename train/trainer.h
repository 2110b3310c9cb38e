// A training from start to end: batches into steps under a precision strategy, validation, limits,
// records, checkpoints, and a way back after a kill. What PyTorch Lightning's Trainer is, on one
// device for each process:
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
  std::string reason;      // why it ended: "max_epochs is reached", or what stop() was told
  int signal = 0;          // the one that ended it
  int64_t steps = 0;       // of the whole training, resumed runs included
  int64_t epochs = 0;      // completed ones
  double seconds = 0;      // of the whole training, too
  MetricValues metrics{};  // the last of each name
};

class Trainer {
 public:
  /// Puts the task's model and its optimizer under the strategy (amp::apply()); both must outlive
  /// this. Throws UsageError for options that are unknown, out of range or contradict each other,
  /// and what amp::apply() throws; then model and optimizer are as they were.
  Trainer(Task task, optim::Optimizer& optimizer, TrainerOptions options);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  ~Trainer();

  /// Trains until a limit is reached, somebody stops it, or a signal comes. Called again, it goes
  /// on from there. Throws what the task, the dataset and the callbacks throw, FormatError where
  /// files cannot be written, UsageError where a checkpoint does not belong to this training; then
  /// what was saved before is still there. Of several processes all call it, with data alike; one
  /// that throws ends all of them with its message.
  FitResult fit(data::DataLoader train, std::optional<data::DataLoader> validation = {});
  /// "val/loss" and the task's metrics, named as fit() names them, over an epoch of a loader, in
  /// evaluation mode; neither modules' modes nor random numbers are changed by it.
  MetricValues validate(data::DataLoader loader);
  /// The task's outputs for an epoch of a loader, in its order, in evaluation mode and without
  /// gradients: [samples, ...], on the model's device. Targets are not looked at. Throws UsageError
  /// for a loader that shuffles, whose order nobody would know.
  Tensor predict(data::DataLoader loader);
  /// As save_checkpoint(), between two steps. All ranks call it, the first writes. Waits for a GPU.
  void save(const std::filesystem::path& path) const;

  // --- for callbacks
  /// Ends the training after this step, or when min_steps and min_epochs are reached; then the
  /// first reason counts.
  void stop(std::string reason);
  /// Adds a number to the record of this step; of equal names the last counts. Throws as
  /// check_log_name().
  void log(std::string_view name, double value);
  /// The number that was logged last under a name. Throws UsageError, with the nearest name, if
  /// there is none.
  double metric(std::string_view name) const;
  /// A line for people, above the progress bar.
  void note(std::string_view text);

  amp::Training& training();
  nn::Module& model();
  const TrainerOptions& options() const;
  /// Whether there is something to validate on, and a time for it.
  bool validates() const;
  /// Steps taken, completed epochs, batches of the present epoch.
  const CheckpointState& position() const;
  /// Samples that this object has trained on.
  double samples() const;
  /// The mean loss of the last step. Waits for a GPU, and for the other processes.
  double step_loss() const;
  /// This process among those that train together; only the first writes files and speaks.
  int rank() const;
  int ranks() const;

 private:
  std::unique_ptr<TrainingLoop> loop_;
};

}  // namespace halftone::train
