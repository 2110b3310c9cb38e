// Learning rates over time. A schedule is a value, a pure function from the step number (0, 1,
// 2, ...) to the factor of each parameter group's own rate; LrScheduler applies one to an
// optimizer. A schedule does not depend on optimizers, so it can be printed, tested and
// composed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <halftone/optim/optimizer.h>

namespace halftone::optim {

class LrSchedule {
 public:
  /// Takes any function of the step number.
  explicit LrSchedule(std::function<double(int64_t step)> factor) : factor_(std::move(factor)) {}
  /// Returns the same factor at every step.
  static LrSchedule constant(double factor = 1);
  /// gamma^(step / every), rounded down: torch's StepLR.
  static LrSchedule step_decay(int64_t every, double gamma = 0.1);
  /// A straight line from 1 to `last` over `steps` steps, then constant `last`.
  static LrSchedule linear(int64_t steps, double last = 0);
  /// Half a cosine from 1 to `last` over `steps` steps, then constant `last` (Loshchilov & Hutter
  /// 2017, without restarts).
  static LrSchedule cosine(int64_t steps, double last = 0);
  /// 1/steps, 2/steps, ..., 1 during the first `steps` steps, then `after` from its beginning
  /// (Goyal et al. 2017).
  static LrSchedule warm_up(int64_t steps, const LrSchedule& after = constant());

  /// gamma^(number of milestones reached): torch's MultiStepLR.
  static LrSchedule multi_step(std::vector<int64_t> milestones, double gamma = 0.1);
  /// gamma^step: torch's ExponentialLR.
  static LrSchedule exponential(double gamma);
  /// (1 - step / steps)^power, then 0: torch's PolynomialLR.
  static LrSchedule polynomial(int64_t steps, double power = 1);
  /// Half a cosine from 1 to `last` over `first` steps, then repeated, each time over `growth`
  /// times as many: torch's CosineAnnealingWarmRestarts with eta_min = last * lr (Loshchilov &
  /// Hutter 2017).
  static LrSchedule cosine_restarts(int64_t first, int64_t growth = 1, double last = 0);
  /// Up from 1 / start_divisor to 1 over the share `rising` of the steps, then down to 1 /
  /// (start_divisor * end_divisor), both along half a cosine: torch's OneCycleLR with the
  /// optimizer's own rate as max_lr (Smith & Topin 2018). Momentum does not change.
  static LrSchedule one_cycle(int64_t steps, double rising = 0.3, double start_divisor = 25,
                              double end_divisor = 1e4);

  double at(int64_t step) const { return factor_(step); }

 private:
  std::function<double(int64_t)> factor_;
};

/// Sets an optimizer's rates by a schedule. The constructor sets those of step 0; call step() after
/// each optimizer step that was not skipped by a gradient scaler. The optimizer must outlive it and
/// must not be moved.
class LrScheduler {
 public:
  LrScheduler(Optimizer& optimizer, LrSchedule schedule);
  void step();
  int64_t steps() const { return step_; }

  /// Returns `step` and `base_lrs`, the groups' own rates.
  NamedTensors state_dict() const;
  void load_state_dict(const NamedTensors& state);

 private:
  void apply();

  Optimizer* optimizer_;
  LrSchedule schedule_;
  int64_t step_ = 0;
  std::vector<double> base_lrs_;
};

struct PlateauOptions {
  bool larger_is_better = false;  // torch's mode
  double factor = 0.1;
  int64_t patience = 10;    // measurements without improvement that are tolerated
  double threshold = 1e-4;  // least improvement, relative to the best
  bool absolute_threshold = false;
  int64_t cooldown = 0;  // measurements ignored after a reduction
  double min_lr = 0;
  double eps = 1e-8;  // smaller reductions are skipped
};

/// Multiplies the rates by a factor when a measured value has stopped getting better:
/// torch.optim.lr_scheduler.ReduceLROnPlateau. It changes the optimizer's own rates, so it cannot
/// be combined with an LrScheduler, which sets them again at each step. The optimizer must outlive
/// it and must not be moved. NaN does not count as an improvement.
class ReduceOnPlateau {
 public:
  explicit ReduceOnPlateau(Optimizer& optimizer, PlateauOptions options = {});
  /// Takes a measurement. Returns true if the rates have been reduced.
  bool step(double value);
  double best() const { return best_; }

  /// Returns `best`, `bad` (measurements since the best) and `cooldown` (those left).
  std::map<std::string, double> state() const;
  void load_state(const std::map<std::string, double>& state);

 private:
  bool improves(double value) const;

  Optimizer* optimizer_;
  PlateauOptions options_;
  double best_;
  int64_t bad_ = 0, cooldown_ = 0;
};

}  // namespace halftone::optim
