// Learning rates over time. A schedule is a value, a pure function from the step number (0, 1, 2,
// ...) to a factor by which each parameter group's own rate is multiplied; LrScheduler applies one
// to an optimizer. A schedule knows nothing of optimizers, so it can be printed, tested and
// composed.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <halftone/optim/optimizer.h>

namespace halftone::optim {

class LrSchedule {
 public:
  /// Any function of the step number.
  explicit LrSchedule(std::function<double(int64_t step)> factor) : factor_(std::move(factor)) {}
  /// Always the same.
  static LrSchedule constant(double factor = 1);
  /// gamma^(step / every), rounded down: torch's StepLR.
  static LrSchedule step_decay(int64_t every, double gamma = 0.1);
  /// A straight line from 1 to `last` over `steps` steps, then `last`.
  static LrSchedule linear(int64_t steps, double last = 0);
  /// Half a cosine from 1 to `last` over `steps` steps, then `last` (Loshchilov & Hutter 2017,
  /// without restarts).
  static LrSchedule cosine(int64_t steps, double last = 0);
  /// 1/steps, 2/steps, ..., 1 during the first `steps` steps, then `after` from its beginning
  /// (Goyal et al. 2017).
  static LrSchedule warm_up(int64_t steps, const LrSchedule& after = constant());

  double at(int64_t step) const { return factor_(step); }

 private:
  std::function<double(int64_t)> factor_;
};

/// Sets an optimizer's rates by a schedule. Construction sets those of step 0; call step() after
/// each optimizer step that was taken (not after one that a gradient scaler skipped). The optimizer
/// must outlive it and stay in place.
class LrScheduler {
 public:
  LrScheduler(Optimizer& optimizer, LrSchedule schedule);
  void step();
  int64_t steps() const { return step_; }

  /// `step` and `base_lrs`, the groups' own rates.
  NamedTensors state_dict() const;
  void load_state_dict(const NamedTensors& state);

 private:
  void apply();

  Optimizer* optimizer_;
  LrSchedule schedule_;
  int64_t step_ = 0;
  std::vector<double> base_lrs_;
};

}  // namespace halftone::optim
