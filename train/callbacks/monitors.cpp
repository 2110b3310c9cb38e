// Numbers for the log: learning rates, and samples and steps per second since the last record.
#include <halftone/train/callbacks/monitors.h>

#include <halftone/train/rates.h>
#include <halftone/train/trainer.h>

namespace halftone::train {

void LearningRateMonitor::on_batch_start(Trainer& trainer, data::Batch&) {
  rates_ = rates_of(trainer.training().optimizer());
}

void LearningRateMonitor::on_log(Trainer& trainer) {
  for (std::size_t group = 0; group < rates_.size(); ++group)
    trainer.log(rates_.size() == 1 ? "lr" : "lr/" + std::to_string(group), rates_[group]);
}

void ThroughputMonitor::begin(const Trainer& trainer) {
  since_ = std::chrono::steady_clock::now();
  samples_ = trainer.samples(), steps_ = trainer.position().step;
}

void ThroughputMonitor::on_log(Trainer& trainer) {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - since_;
  const double steps = double(trainer.position().step - steps_);
  if (steps > 0 && passed.count() > 0) {
    trainer.log("samples_per_second", (trainer.samples() - samples_) / passed.count());
    trainer.log("steps_per_second", steps / passed.count());
  }
  begin(trainer);
}

}  // namespace halftone::train
