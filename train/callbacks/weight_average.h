// Weights averaged over the steps of a training: they often generalise better than the last ones.
// With a decay the exponential moving average (Polyak & Juditsky 1992), without one the plain mean
// (stochastic weight averaging, Izmailov et al. 2018). As torch.optim.swa_utils.AveragedModel,
// under every precision strategy and in checkpoints.
#pragma once

#include <optional>
#include <vector>

#include <halftone/train/callbacks/callback.h>

namespace halftone::train {

struct WeightAverageOptions {
  /// average = decay * average + (1 - decay) * weight; nullopt: the mean of all updates.
  std::optional<double> decay = 0.999;
  int64_t every_steps = 1;
  int64_t start_step = 0;  // the first step behind which weights count
  /// Validations, and so early stopping and the best checkpoints, measure the averages.
  bool validates = true;
};

/// Averages what the optimizer trains, in f32 (f64 of f64 weights): masters, joined halves and
/// compensated weights where a strategy keeps them, not what bf16 makes of them. Buffers, such as
/// the statistics of batch norm, are those of the model.
class WeightAverage final : public Callback {
 public:
  /// Throws UsageError for a decay outside [0, 1), or every_steps below 1.
  explicit WeightAverage(WeightAverageOptions options = {});

  void on_fit_start(Trainer& trainer) override;
  void on_step_end(Trainer& trainer) override;
  std::shared_ptr<void> during_validation(Trainer& trainer) override;
  std::map<std::string, Tensor> tensors() const override;
  /// Throws UsageError for averages of other weights, at the start of fit().
  void load_tensors(const std::map<std::string, Tensor>& tensors) override;
  std::map<std::string, double> state() const override;
  void load_state(const std::map<std::string, double>& state) override;

  /// How many updates are in it.
  int64_t updates() const { return updates_; }
  /// In the order of the optimizer's parameters; empty before the first update.
  const std::vector<Tensor>& averages() const { return averages_; }
  /// Until what it returns is destroyed, the model computes with the averages, rounded to its
  /// dtype: to predict with them, or to save them by nn::save(). Null before the first update.
  std::shared_ptr<void> in_place(Trainer& trainer) const;

 private:
  /// The optimizer's parameters, which the averages there are must fit.
  std::vector<Tensor> parameters_of(Trainer& trainer) const;

  WeightAverageOptions options_;
  std::vector<Tensor> averages_{};
  int64_t updates_ = 0;
};

}  // namespace halftone::train
