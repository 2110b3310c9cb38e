// Callbacks that only add numbers to the log.
#pragma once

#include <chrono>
#include <vector>

#include <halftone/train/callbacks.h>

namespace halftone::train {

/// Logs "lr", or "lr/0", "lr/1", ... if there are several parameter groups: the rates of the logged
/// step. Like Lightning's LearningRateMonitor.
class LearningRateMonitor final : public Callback {
 public:
  void on_batch_start(Trainer& trainer, data::Batch& batch) override;
  void on_log(Trainer& trainer) override;

 private:
  std::vector<double> rates_{};
};

/// Logs "samples_per_second" and "steps_per_second" since the last record, without validations.
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

}  // namespace halftone::train
