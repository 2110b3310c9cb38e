// Ends a training whose validation no longer improves. As Lightning's EarlyStopping.
#pragma once

#include <string>

#include <halftone/train/callback.h>

namespace halftone::train {

struct EarlyStoppingOptions {
  std::string metric = "val/loss";
  bool larger_is_better = false;
  int64_t patience = 3;  // validations in a row without an improvement
  double min_delta = 0;  // what counts as one: more than this
};

class EarlyStopping final : public Callback {
 public:
  /// Throws UsageError for a patience below 1 and a min_delta that is negative or not finite.
  explicit EarlyStopping(EarlyStoppingOptions options = {});
  /// Throws UsageError if the validation has no such metric. A NaN is no improvement.
  void on_validation_end(Trainer& trainer) override;
  void save(CheckpointState& state) const override;
  void load(const CheckpointState& state) override;

  /// The best value so far, infinite before the first.
  double best() const { return best_; }

 private:
  EarlyStoppingOptions options_;
  double best_;
  int64_t waited_ = 0;
};

}  // namespace halftone::train
