// A training from start to end: batches into steps under a precision strategy, validation, limits,
// records, checkpoints, and a way back after a kill. What PyTorch Lightning's Trainer is, on one
// device for each process:
//
//   train::Trainer trainer(train::classification(model), adamw,
//                          {.precision = "bf16-mixed", .max_epochs = 3});
//   trainer.fit(loader, validation_loader);
//
// Steps have the bits of the loop in amp/training.h. The loop is in trainer.cpp, what precedes the
// first step in trainer_start.cpp, what several processes agree on in trainer_ranks.cpp. What it
// tells: records.h; where it saves: training_directory.h;
// options: trainer_options.h.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include <halftone/amp/training.h>
#include <halftone/core/communicator.h>
#include <halftone/data/data_loader.h>
#include <halftone/train/records.h>
#include <halftone/train/task.h>
#include <halftone/train/trainer_options.h>
#include <halftone/train/training_directory.h>

namespace halftone::train {

struct FitResult {
  std::string reason;  // why it ended: "max_epochs is reached", or what stop() was told
  int signal = 0;      // the one that ended it
  int64_t steps = 0;   // of the whole training, resumed runs included
  int64_t epochs = 0;  // completed ones
  double seconds = 0;  // of the whole training, too
  std::map<std::string, double> metrics{};  // the last of each name
};

class Trainer {
 public:
  /// Puts the task's model and its optimizer under the strategy (amp::apply()); both must outlive
  /// this. Throws UsageError for options that are unknown, out of range or contradict each other,
  /// and what amp::apply() throws; then model and optimizer are as they were.
  Trainer(Task task, optim::Optimizer& optimizer, TrainerOptions options);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Trains until a limit is reached, somebody stops it, or a signal comes. Called again, it goes
  /// on from there. Throws what the task, the dataset and the callbacks throw, FormatError where
  /// files cannot be written, UsageError where a checkpoint does not belong to this training; then
  /// what was saved before is still there. Of several processes all call it, with data alike; one
  /// that throws ends all of them with its message.
  FitResult fit(data::DataLoader train, std::optional<data::DataLoader> validation = {});
  /// The loss and the task's metrics over an epoch of a loader, in evaluation mode; neither
  /// modules' modes nor random numbers are changed by it.
  std::map<std::string, double> validate(data::DataLoader loader);
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
  void log(std::string_view name, double value) { records_.log(name, value, position_.step); }
  /// The number that was logged last under a name. Throws UsageError, with the nearest name, if
  /// there is none.
  double metric(std::string_view name) const { return records_.metric(name); }
  /// A line for people, above the progress bar.
  void note(std::string_view text) { records_.note(text); }

  amp::Training& training() { return training_; }
  nn::Module& model() { return task_.model; }
  const TrainerOptions& options() const { return options_; }
  /// Whether there is something to validate on, and a time for it.
  bool validates() const;
  /// Steps taken, completed epochs, batches of the present epoch.
  const CheckpointState& position() const { return position_; }
  /// Samples that this object has trained on.
  double samples() const { return samples_; }
  /// The mean loss of the last step. Waits for a GPU, and for the other processes.
  double step_loss() const { return value_of_all(step_loss_); }
  /// This process among those that train together; only the first writes files and speaks.
  int rank() const { return world_.rank(); }
  int ranks() const { return world_.size(); }

 private:
  // --- trainer_start.cpp
  /// With a lock on the directory, if there is one: nobody else trains there during this fit().
  [[nodiscard]] std::optional<DirectoryLock> set_up(data::DataLoader train,
                                                    std::optional<data::DataLoader> validation);
  void require_data(const data::DataLoader& train, const data::DataLoader* validation) const;
  void begin();
  void begin_in_directory(const std::optional<FoundCheckpoint>& found);
  void resume(const FoundCheckpoint& found);
  void make_progress();
  int64_t steps_per_epoch() const { return 1 + (batches_ - 1) / group_; }
  void make_scheduler(int64_t steps_per_epoch);
  Device device() const;

  // --- trainer.cpp
  FitResult fit_here(data::DataLoader train, std::optional<data::DataLoader> validation);
  void run_epoch();
  bool run_group(data::DataLoader::Iterator& next);
  struct Pass;
  Pass forward(data::Batch batch);
  void backward(Pass pass, double samples_of_step);
  void update();
  void explain_overflow();
  void show_progress(double samples);
  void follow_up(bool stepped);
  void log_step();
  void end_epoch();
  void record_and_save(bool saves);
  bool may_stop() const;
  void check_limits();
  FitResult finish();
  void run_validation();
  std::optional<std::map<std::string, double>> evaluate(data::DataLoader& loader, int64_t batches,
                                                        bool interruptible);
  double seconds() const;

  // --- trainer_ranks.cpp: what several processes do together; with one of them nothing
  TrainerOptions for_this_rank(TrainerOptions options) const;
  void share_out();
  void require_alike() const;
  std::optional<FoundCheckpoint> found_by_rank_0(std::optional<FoundCheckpoint> found) const;
  bool adopt_group(const CheckpointState& state);
  Checkpoint read_by_rank_0(const FoundCheckpoint& found) const;
  bool all_accept(bool accepted) const;
  bool rank_0_says(bool own) const;
  void agree_on_reason();
  int signal_of_all() const;
  MetricSums of_all(const MetricSums& own) const;
  double value_of_all(RunningMean mean) const;
  double value_of_all(TaskMetric metric) const;
  void log_waiting();
  [[noreturn]] void end_all(std::string_view message) const;

  Communicator& world_;
  Task task_;
  TrainerOptions options_;
  amp::Training training_;
  std::optional<optim::LrScheduler> scheduler_{};
  Records records_{};
  std::optional<TrainingDirectory> directory_{};

  // --- the data of this fit()
  std::optional<data::DataLoader> loader_{}, validation_{};
  int64_t batches_ = 0, validation_batches_ = 0;  // of an epoch
  int64_t group_ = 1;                             // batches of a step, over all ranks

  // --- where it stands
  CheckpointState position_{};
  bool begun_ = false;                   // files are open, what there was has been resumed
  std::optional<std::string> reason_{};  // to end this fit(), once there is one
  std::string wish_{};                   // to stop, that waits for min_steps or min_epochs
  bool validation_interrupted_ = false;  // by a signal: to be made up for
  double samples_ = 0, seconds_before_ = 0;
  double waited_before_ = 0;  // of this rank, when that was logged last
  std::optional<std::chrono::steady_clock::time_point> started_at_{};
  RunningMean step_loss_{}, epoch_loss_{};
  Tensor gradient_norm_{};
  std::function<Tensor()> last_loss_{};  // of the step's last batch again, under explain_overflows
};

}  // namespace halftone::train
