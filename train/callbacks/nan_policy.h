// Reacts to a loss that is NaN or infinite, because such a step would make all weights useless. The
// check comes before the backward pass, so weights and running statistics are those of the last
// good step. (An overflow of scaled f16 gradients is a different case: the loss scaler skips that
// step, and this callback does not see it.)
#pragma once

#include <halftone/train/callbacks.h>

namespace halftone::train {

enum class OnNan {
  stop,       // ends the training
  drop_step,  // drops the step and continues with the next
  fail,       // throws UsageError
};

struct NanPolicyOptions {
  OnNan action = OnNan::stop;
  int64_t patience = 10;  // drop_step ends the training after this many drops in a row
  /// Checks only every n-th batch: on a GPU a check waits, on the CPU it is free.
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

}  // namespace halftone::train
