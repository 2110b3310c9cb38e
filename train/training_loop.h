// The internals of train/trainer.h: the Trainer's members, the steps of fit(), and the agreement of
// several processes. The sections below say which file has which step.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include <halftone/amp/training.h>
#include <halftone/core/communicator.h>
#include <halftone/data/data_loader.h>
#include <halftone/train/checkpoints.h>
#include <halftone/train/loggers.h>
#include <halftone/train/task.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

class TrainingLoop {
 public:
  TrainingLoop(Task task, optim::Optimizer& optimizer, TrainerOptions options);
  TrainingLoop(const TrainingLoop&) = delete;
  TrainingLoop& operator=(const TrainingLoop&) = delete;

  /// Notes that the user's Trainer is destroyed: a running fit() will throw UsageError.
  void lose_trainer() { lost_trainer_ = true; }

  // --- the functions of Trainer, documented there
  FitResult fit(data::DataLoader train, std::optional<data::DataLoader> validation);
  MetricValues validate(data::DataLoader loader);
  Tensor predict(data::DataLoader loader);
  void save(const std::filesystem::path& path) const;
  void stop(std::string reason);
  void log(std::string_view name, double value) { records_.log(name, value, position_.step); }
  double metric(std::string_view name) const { return records_.metric(name); }
  void note(std::string_view text) { records_.note(text); }
  amp::Training& training() { return training_; }
  nn::Module& model() { return task_.model; }
  const TrainerOptions& options() const { return options_; }
  bool validates() const;
  const CheckpointState& position() const { return position_; }
  double samples() const { return samples_; }
  double step_loss() const { return value_of_all(step_loss_); }
  int rank() const { return world_.rank(); }
  int ranks() const { return world_.size(); }

 private:
  // --- training_loop.cpp: the start
  /// Starts fit(). Returns a lock that keeps other trainings out of the directory, if there is one.
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

  // --- training_loop.cpp: the loop
  FitResult fit_here(data::DataLoader train, std::optional<data::DataLoader> validation);
  void run_epoch();
  bool run_group(data::DataLoader::Iterator& next);
  struct Fetched;
  struct Pass;
  class HeldStep;
  Fetched fetch(data::Batch batch);
  Tensor terms_of_step(const std::deque<Fetched>& own, int64_t batches, double samples) const;
  Pass forward(Fetched fetched, const Tensor& terms_of_step);
  void backward(Pass pass, const Tensor& terms_of_step);
  void update();
  void explain_overflow();
  void show_progress(double samples);
  void follow_up(bool stepped);
  void finish_step();
  void call_each(void (Callback::*hook)(Trainer&));
  bool saves_by_plan() const;
  void log_step();
  void end_epoch();
  void record_and_save(bool saves, bool interruption);
  void save(const std::filesystem::path& path, CheckpointState state) const;
  bool may_stop() const;
  void check_limits();
  FitResult finish();
  bool run_validation();
  std::optional<std::map<std::string, double>> evaluate(data::DataLoader& loader, int64_t batches,
                                                        bool interruptible);
  double seconds() const;
  void require_trainer() const;
  /// Calls f(callback) for each callback. Throws UsageError after one that destroyed the Trainer.
  template <class F> void each_callback(const F& f) const {
    for (const auto& callback : options_.callbacks) f(*callback), require_trainer();
  }

  // --- training_loop_ranks.cpp: agreement of several processes; does nothing with one process
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
  double sum_of_all(const std::vector<double>& own, int64_t count) const;
  double value_of_all(RunningMean mean) const;
  double value_of_all(TaskMetric metric) const;
  void log_waiting();
  [[noreturn]] void end_all(std::string_view message) const;

  Trainer trainer_;  // callbacks get this one: it exists even if the user's is destroyed in a call
  bool lost_trainer_ = false;
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

  // --- the position
  CheckpointState position_{};
  bool begun_ = false;                   // files are open, and an earlier state has been resumed
  std::optional<std::string> reason_{};  // set: ends this fit()
  std::string wish_{};                   // request to stop; it waits for min_steps and min_epochs
  /// The work that is left after the last step, in the order of its stages.
  enum class Stage { none, log, validation, validation_end, step_end, epoch_end, save };
  struct Left {
    Stage stage = Stage::none;
    bool stepped = false, epoch_over = false;  // not dropped; the epoch's last step
    bool interrupted = false;                  // a signal ended its validation: it is repeated
    bool validated = false;
    std::size_t callback = 0;  // the next one to call in this stage
  };
  Left left_{};
  double samples_ = 0, seconds_before_ = 0;
  double waited_before_ = 0;  // this rank's waiting time at the last record
  std::optional<std::chrono::steady_clock::time_point> started_at_{};
  RunningMean step_loss_{}, epoch_loss_{};
  Tensor gradient_norm_{};
  std::function<Tensor()> last_loss_{};  // computes the loss of the step's last batch again, for
                                         // explain_overflows
};

}  // namespace halftone::train
