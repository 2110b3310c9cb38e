// Averages weights over the steps of a training; averages often generalize better than the last
// weights. With a decay it is the exponential moving average (Polyak & Juditsky 1992), without one
// the plain mean (stochastic weight averaging, Izmailov et al. 2018). Like
// torch.optim.swa_utils.AveragedModel, under every strategy and in checkpoints.
#pragma once

#include <optional>
#include <vector>

#include <halftone/train/callbacks.h>

namespace halftone::train {

struct WeightAverageOptions {
  /// average = decay * average + (1 - decay) * weight; nullopt: the mean of all updates.
  std::optional<double> decay = 0.999;
  int64_t every_steps = 1;
  int64_t start_step = 0;  // weights count after this step and later ones
  /// Validations measure the averages, and therefore also early stopping and the best checkpoints.
  bool validates = true;
};

/// Averages the weights that the optimizer trains, in f32 (f64 for f64 weights): master weights,
/// joined halves and compensated weights if the strategy has them, not their bf16 rounding.
/// Buffers, such as the statistics of batch norm, are not averaged: they are the model's. To use
/// the averages with batch norm, call nn::update_batch_norm() while they are in place().
class WeightAverage final : public Callback {
 public:
  /// Throws UsageError for a decay outside [0, 1), or every_steps below 1.
  explicit WeightAverage(WeightAverageOptions options = {});

  void on_fit_start(Trainer& trainer) override;
  void on_step_end(Trainer& trainer) override;
  std::shared_ptr<void> during_validation(Trainer& trainer) override;
  std::map<std::string, Tensor> tensors() const override;
  /// Throws UsageError if the averages belong to other weights, at the start of fit().
  void load_tensors(const std::map<std::string, Tensor>& tensors) override;
  std::map<std::string, double> state() const override;
  void load_state(const std::map<std::string, double>& state) override;

  /// Returns the number of updates in the averages.
  int64_t updates() const { return updates_; }
  /// Returns the averages in the order of the optimizer's parameters; empty before the first
  /// update.
  const std::vector<Tensor>& averages() const { return averages_; }
  /// Makes the model compute with the averages, rounded to its dtype, until the returned object is
  /// destroyed: to predict with them, or to save them by nn::save(). Null before the first update.
  std::shared_ptr<void> in_place(Trainer& trainer) const;

 private:
  /// Returns the optimizer's parameters. Throws if existing averages do not fit them.
  std::vector<Tensor> parameters_of(Trainer& trainer) const;

  WeightAverageOptions options_;
  std::vector<Tensor> averages_{};
  int64_t updates_ = 0;
};

}  // namespace halftone::train
