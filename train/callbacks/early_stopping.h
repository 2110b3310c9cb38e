// Ends a training whose validation metric no longer improves, like Lightning's EarlyStopping.
#pragma once

#include <string>

#include <halftone/train/callbacks.h>

namespace halftone::train {

struct EarlyStoppingOptions {
  std::string metric = "val/loss";
  bool larger_is_better = false;
  int64_t patience = 3;      // validations in a row without an improvement
  double min_delta = 0;      // an improvement must be larger than this
  bool check_finite = true;  // NaN and infinities end the training at once
};

class EarlyStopping final : public Callback {
 public:
  /// Throws UsageError for a patience below 1 and a min_delta that is negative or not finite.
  explicit EarlyStopping(EarlyStoppingOptions options = {});
  /// Throws UsageError if the Trainer has no validation. Stops again a training that it had
  /// stopped.
  void on_fit_start(Trainer& trainer) override;
  /// Throws UsageError for an unknown metric. Without check_finite, NaN does not count as
  /// improvement.
  void on_validation_end(Trainer& trainer) override;
  std::map<std::string, double> state() const override;
  void load_state(const std::map<std::string, double>& state) override;

  /// Returns the best value so far, infinite before the first.
  double best() const { return best_; }

 private:
  void stop_if_hopeless(Trainer& trainer) const;

  EarlyStoppingOptions options_;
  double best_;
  int64_t waited_ = 0;
};

}  // namespace halftone::train
