// Callbacks of a Trainer: the interface, and those that come with it.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <halftone/data/data_loader.h>
#include <halftone/optim/optimizers.h>
#include <halftone/amp/probe.h>

namespace halftone::train {

// Hooks around a Trainer's steps. The Trainer calls them in the order of the callbacks in
// TrainerOptions. A callback may read everything that the Trainer exposes, log numbers, and stop
// the training. Checkpoints are saved after all callbacks.

class Trainer;

class Callback {
 public:
  Callback() = default;
  virtual ~Callback() = default;
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

  /// Called after a resumed training has restored its state, before the first step.
  virtual void on_fit_start(Trainer&) {}
  /// May replace the batch by another with the same number of samples. All batches of a step get
  /// this call before the first of them is computed.
  virtual void on_batch_start(Trainer&, data::Batch&) {}
  /// Called with a batch's loss before its backward pass. The loss is 0 for a batch whose labels
  /// are all ignored, if another batch of the step has labels. Return false to drop the whole step,
  /// with all its batches; the model's buffers then return to their values before the step.
  virtual bool on_loss(Trainer&, const Tensor& loss) {
    static_cast<void>(loss);
    return true;
  }
  /// Returns whether on_loss() may return false or throw. If true, the Trainer copies the buffers
  /// in every step. If false, fit() throws UsageError when on_loss() returns false.
  virtual bool drops_steps() const { return false; }
  /// Called every log_every_steps steps, after the Trainer has logged its own numbers. Validation
  /// and the end of an epoch come later. Trainer::log() adds to the step's record.
  virtual void on_log(Trainer&) {}
  virtual void on_validation_end(Trainer&) {}
  /// Called after each step that was not dropped, and after its validation if there is one. At the
  /// last step of an epoch the Trainer's position is already at the start of the next epoch.
  virtual void on_step_end(Trainer&) {}
  /// Called after the on_step_end() of an epoch's last step.
  virtual void on_epoch_end(Trainer&) {}
  /// Called when the training ends for any reason except an exception.
  virtual void on_fit_end(Trainer&) {}

  /// Called before a validation. May change the model for it; then returns an object whose
  /// destructor, after the validation, restores the model. Returns null if nothing is changed.
  virtual std::shared_ptr<void> during_validation(Trainer&) { return nullptr; }

  /// Returns tensors to save in a checkpoint, by name. A resumed training passes them to
  /// load_tensors(), before it calls load_state().
  virtual std::map<std::string, Tensor> tensors() const { return {}; }
  virtual void load_tensors(const std::map<std::string, Tensor>& tensors) {
    static_cast<void>(tensors);
  }
  /// Returns numbers to save in a checkpoint, by name. A resumed training passes them to
  /// load_state() of the callback at the same place in the list, if that has the same class.
  virtual std::map<std::string, double> state() const { return {}; }
  virtual void load_state(const std::map<std::string, double>& state) { static_cast<void>(state); }
};

// Ends a training whose validation metric no longer improves, like Lightning's EarlyStopping.

struct EarlyStoppingOptions {
  std::string metric = "val/loss";
  bool larger_is_better = false;
  int64_t patience = 3;      // validations in a row without an improvement
  double min_delta = 0;      // an improvement must be larger than this
  bool check_finite = true;  // NaN and infinities end the training at once
};

class EarlyStopping final : public Callback {
 public:
  /// Throws UsageError for a patience below 1, or a min_delta that is negative or not finite.
  explicit EarlyStopping(EarlyStoppingOptions options = {});
  /// Throws UsageError if the Trainer has no validation. Stops a resumed training again if its
  /// checkpoint already had `patience` validations without an improvement.
  void on_fit_start(Trainer& trainer) override;
  /// Stops the training if the metric has not improved for `patience` validations or, with
  /// check_finite, if it is not finite. Throws UsageError for an unknown metric.
  void on_validation_end(Trainer& trainer) override;
  std::map<std::string, double> state() const override;
  void load_state(const std::map<std::string, double>& state) override;

  /// Returns the best value of the metric so far; before the first validation the worst infinity.
  double best() const { return best_; }

 private:
  void stop_if_hopeless(Trainer& trainer) const;

  EarlyStoppingOptions options_;
  double best_;
  int64_t waited_ = 0;
};

// Lowers the learning rate when a validation metric no longer improves: torch's ReduceLROnPlateau
// for the Trainer's metrics.

class LrOnPlateau final : public Callback {
 public:
  explicit LrOnPlateau(std::string metric = "val/loss", optim::PlateauOptions options = {});
  /// Throws UsageError if the Trainer has no validation, or if a schedule sets the rates at each
  /// step.
  void on_fit_start(Trainer& trainer) override;
  /// Throws UsageError for an unknown metric.
  void on_validation_end(Trainer& trainer) override;
  std::map<std::string, double> state() const override;
  void load_state(const std::map<std::string, double>& state) override { loaded_ = state; }

 private:
  std::string metric_;
  optim::PlateauOptions options_;
  std::optional<optim::ReduceOnPlateau> plateau_{};
  std::map<std::string, double> loaded_{};  // state for plateau_, which on_fit_start() makes
};

// Mixup (Zhang et al. 2018) as a callback, like timm's Mixup: blends each training batch with a
// permutation of itself. Class numbers become shares of two classes.

struct MixupOptions {
  double alpha = 0.2;  // a batch's share is drawn from Beta(alpha, alpha); 0: no mixup
  uint64_t seed = 0;
};

/// For tasks whose loss accepts probabilities, such as classification(). The blending depends only
/// on the seed, the epoch and the batch's place in it, so a resumed training sees the same batches.
class Mixup final : public Callback {
 public:
  /// `classes`: the number of classes. Throws UsageError for fewer than 2, or an alpha that is
  /// negative or not finite.
  explicit Mixup(int64_t classes, MixupOptions options = {});
  /// Blends inputs [n, ...] f32, and turns class numbers [n] into blended probabilities f32 [n,
  /// classes]. Both stay on their device. Throws what data::mixup() and one_hot() throw, and
  /// UsageError for a label that is not a class, such as the -100 of an ignored sample.
  void on_batch_start(Trainer& trainer, data::Batch& batch) override;

 private:
  void require_classes(const Tensor& labels) const;

  int64_t classes_;
  MixupOptions options_;
};

// Callbacks that only add numbers to the log.

/// Logs the learning rates of the logged step, like Lightning's LearningRateMonitor: as "lr", or as
/// "lr/0", "lr/1", ... if there are several parameter groups.
class LearningRateMonitor final : public Callback {
 public:
  void on_batch_start(Trainer& trainer, data::Batch& batch) override;
  void on_log(Trainer& trainer) override;

 private:
  std::vector<double> rates_{};
};

/// Logs "samples_per_second" and "steps_per_second" since the last record or, if later, validation.
class ThroughputMonitor final : public Callback {
 public:
  void on_fit_start(Trainer& trainer) override { begin(trainer); }
  void on_validation_end(Trainer& trainer) override { begin(trainer); }
  void on_log(Trainer& trainer) override;

 private:
  void begin(const Trainer& trainer);

  std::chrono::steady_clock::time_point since_{};
  double samples_ = 0;
  int64_t steps_ = 0;
};

// Reacts to a loss that is NaN or infinite, because such a step would make all weights useless. The
// check comes before the backward pass, so weights and running statistics are those of the last
// good step. (An overflow of scaled f16 gradients is a different case: the loss scaler skips that
// step, and this callback does not see it.)

enum class OnNan {
  stop,       // ends the training
  drop_step,  // drops the step and continues with the next
  fail,       // throws UsageError
};

struct NanPolicyOptions {
  OnNan action = OnNan::stop;
  int64_t patience = 10;  // drop_step ends the training after this many drops in a row
  /// Checks only every n-th batch. On a GPU, a check waits for the loss; on the CPU it is free.
  int64_t every_batches = 1;
};

class NanPolicy final : public Callback {
 public:
  /// Throws UsageError for numbers below 1.
  explicit NanPolicy(const NanPolicyOptions& options = {});
  bool on_loss(Trainer& trainer, const Tensor& loss) override;
  bool drops_steps() const override { return true; }
  void on_step_end(Trainer&) override { in_a_row_ = 0; }
  std::map<std::string, double> state() const override;
  void load_state(const std::map<std::string, double>& state) override;

  int64_t dropped_steps() const { return dropped_; }

 private:
  NanPolicyOptions options_;
  int64_t batches_ = 0, dropped_ = 0, in_a_row_ = 0;
};

// A probe (amp/probe.h) as a callback: telemetry of a Trainer's training.

/// Writes probe.jsonl into the training's directory, if it has one. Logs three numbers of the last
/// sampled step: "precision/worst_underflow" (the largest share of a tensor that became 0),
/// "precision/least_sqnr" (of a tensor, in dB) and "precision/lost_updates" (the share that changed
/// no weight). A note says which site (an operation of the model) has the worst underflow. A
/// resumed training appends to the file; rows of steps that it repeats occur twice.
class PrecisionMonitor final : public Callback {
 public:
  explicit PrecisionMonitor(policy::ProbeOptions options = {}) : options_(std::move(options)) {}
  void on_fit_start(Trainer& trainer) override;
  void on_step_end(Trainer& trainer) override;
  void on_log(Trainer& trainer) override;
  void on_fit_end(Trainer& trainer) override;
  std::map<std::string, double> state() const override;
  void load_state(const std::map<std::string, double>& state) override;
  std::map<std::string, Tensor> tensors() const override;
  void load_tensors(const std::map<std::string, Tensor>& tensors) override { history_ = tensors; }

 private:
  void write(Trainer& trainer);

  policy::ProbeOptions options_;
  std::optional<policy::Probe> probe_{};
  struct Worst {
    double underflow = 0, sqnr = 0, lost = 0;
    std::string site{};
  };
  std::optional<Worst> worst_{};
  std::map<std::string, Tensor> history_{};  // the probe's, before there is a probe
};

// Averages weights over the steps of a training; averages often generalize better than the last
// weights. With a decay it is the exponential moving average (Polyak & Juditsky 1992), without one
// the plain mean (stochastic weight averaging, Izmailov et al. 2018). Like
// torch.optim.swa_utils.AveragedModel, under every strategy and in checkpoints.

struct WeightAverageOptions {
  /// average = decay * average + (1 - decay) * weight; nullopt: the mean of all updates.
  std::optional<double> decay = 0.999;
  int64_t every_steps = 1;
  int64_t start_step = 0;  // averages weights after this step and later steps
  /// Validations measure the averages instead of the weights. Early stopping and the best
  /// checkpoints then depend on them.
  bool validates = true;
};

/// Averages the weights that the optimizer trains, in f32 (f64 for f64 weights). If the strategy
/// keeps more bits of a weight than the model has (master weights, split or compensated weights),
/// it averages these. Buffers, such as the statistics of batch norm, are not averaged. To use the
/// averages with batch norm, call nn::update_batch_norm() while an object of in_place() exists.
class WeightAverage final : public Callback {
 public:
  /// Throws UsageError for a decay outside [0, 1), or if every_steps is below 1.
  explicit WeightAverage(WeightAverageOptions options = {});

  void on_fit_start(Trainer& trainer) override;
  void on_step_end(Trainer& trainer) override;
  std::shared_ptr<void> during_validation(Trainer& trainer) override;
  std::map<std::string, Tensor> tensors() const override;
  /// Loads saved averages. If they are of other weights, fit() throws UsageError at its start.
  void load_tensors(const std::map<std::string, Tensor>& tensors) override;
  std::map<std::string, double> state() const override;
  void load_state(const std::map<std::string, double>& state) override;

  /// Returns how many times the averages have been updated.
  int64_t updates() const { return updates_; }
  /// Returns the averages in the order of the optimizer's parameters; empty before the first
  /// update.
  const std::vector<Tensor>& averages() const { return averages_; }
  /// Replaces the model's weights by the averages, rounded to its dtype, until the returned object
  /// is destroyed: to predict, or to save them by nn::save(). Before the first update returns null.
  std::shared_ptr<void> in_place(Trainer& trainer) const;

 private:
  /// Returns the optimizer's parameters. Throws UsageError if existing averages do not fit them.
  std::vector<Tensor> parameters_of(Trainer& trainer) const;

  WeightAverageOptions options_;
  std::vector<Tensor> averages_{};
  int64_t updates_ = 0;
};

}  // namespace halftone::train
