// Lowers the learning rate when a validation metric no longer improves: torch's ReduceLROnPlateau
// for the Trainer's metrics.
#pragma once

#include <optional>
#include <string>

#include <halftone/optim/lr_schedule.h>
#include <halftone/train/callbacks.h>

namespace halftone::train {

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
  std::map<std::string, double> loaded_{};  // until on_fit_start() gives the optimizer
};

}  // namespace halftone::train
