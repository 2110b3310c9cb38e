// The optimizers, and schedules of their learning rates.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/optim/grouped_optimizer.h>
#include <halftone/optim/optimizer.h>

namespace halftone::optim {

// The optimizers. SGD, Adam, Lion and RMSprop are options of an elementwise rule
// (core/update_rules.h); LAMB and Muon look at a whole tensor.

// Stochastic gradient descent with momentum (Polyak 1964; Sutskever et al. 2013 for the Nesterov
// form). Mirrors torch.optim.SGD: g += weight_decay p;  buf = momentum buf + (1 - dampening) g, at
// first buf = g; p -= lr (nesterov ? g + momentum buf : buf).

struct SgdOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;  // maximize: moves along the gradient
  std::optional<DType> state_dtype{};       // absent: f32

  static constexpr std::string_view name = "Sgd";
  static constexpr StateLayout layout{.names = {"momentum_buffer"}, .has_step = false};
  UpdateRule rule() const;
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

using Sgd = ElementwiseOptimizer<SgdOptions>;
extern template class ElementwiseOptimizer<SgdOptions>;

// Adam (Kingma & Ba 2015) and AdamW, with weight decay decoupled from the gradient (Loshchilov &
// Hutter 2019). They mirror torch.optim.Adam and AdamW:  m = beta1 m + (1 - beta1) g;  v = beta2 v
// + (1 - beta2) g^2; p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps).

/// The layout of both; max_exp_avg_sq is AMSGrad's.
inline constexpr StateLayout adam_layout{.names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
                                         .essential = 2};

struct AdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8, weight_decay = 0;  // decay is added to the gradient
  std::optional<DType> state_dtype{};   // absent: f32
  bool amsgrad = false;                 // divides by the largest v until now (Reddi et al. 2018)
  bool maximize = false;                // moves along the gradient, not against it

  static constexpr std::string_view name = "Adam";
  static constexpr StateLayout layout = adam_layout;
  UpdateRule rule() const;
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

/// The same with PyTorch's other default; decay shrinks the parameter itself, by lr * weight_decay.
struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8, weight_decay = 0.01;
  std::optional<DType> state_dtype{};
  bool amsgrad = false, maximize = false;

  static constexpr std::string_view name = "AdamW";
  static constexpr StateLayout layout = adam_layout;
  UpdateRule rule() const;
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

using Adam = ElementwiseOptimizer<AdamOptions>;
using AdamW = ElementwiseOptimizer<AdamWOptions>;

extern template class ElementwiseOptimizer<AdamOptions>;
extern template class ElementwiseOptimizer<AdamWOptions>;

// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2): a step
// of length lr in every element, u = sign(beta1 m + (1 - beta1) g); p -= lr (u + weight_decay p);
// m = beta2 m + (1 - beta2) g. It has one state tensor, Adam has two; its lr is 3 to 10 times
// smaller.

struct LionOptions {
  double lr = 1e-4;
  std::array<double, 2> betas{0.9, 0.99};
  double weight_decay = 0;
  std::optional<DType> state_dtype{};  // absent: f32
  bool maximize = false;               // moves along the gradient, not against it

  static constexpr std::string_view name = "Lion";
  static constexpr StateLayout layout{.names = {"exp_avg"}, .essential = 1, .numbered = false};
  UpdateRule rule() const { return rule::Lion{betas[0], betas[1], weight_decay}; }
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

using Lion = ElementwiseOptimizer<LionOptions>;

// RMSprop (Hinton 2012, lecture 6e; Graves 2013 for the centered form). Mirrors
// torch.optim.RMSprop: v = alpha v + (1 - alpha) g^2;  p -= lr g / (sqrt(v) + eps). If centered, v
// - avg(g)^2 replaces v; if momentum is not 0, the quotient goes through a momentum buffer.

struct RmspropOptions {
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false, maximize = false;  // maximize: moves along the gradient
  std::optional<DType> state_dtype{};       // absent: f32

  static constexpr std::string_view name = "Rmsprop";
  static constexpr StateLayout layout{
      .names = {"square_avg", "momentum_buffer", "grad_avg"}, .essential = 1, .numbered = false};
  UpdateRule rule() const;
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

using Rmsprop = ElementwiseOptimizer<RmspropOptions>;
extern template class ElementwiseOptimizer<RmspropOptions>;

// LAMB (You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2): Adam's
// direction u = m / (sqrt(v) + eps) + weight_decay p, moments corrected for their bias, scaled to
// the length of the parameter tensor: p -= lr |p| / |u| u (factor 1 if a norm is 0). Not
// elementwise: the model for optimizers that need more than a rule.

struct LambOptions {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-6, weight_decay = 0;
  std::optional<DType> state_dtype{};  // absent: f32
  bool maximize = false;               // moves along the gradient, not against it

  static constexpr std::string_view name = "Lamb";
  static constexpr StateLayout layout{.names = {"exp_avg", "exp_avg_sq"}, .essential = 2};
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

class Lamb final : public GroupedOptimizer<LambOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  StateMask needed_state(int /*group*/, const Tensor& /*parameter*/) const override { return 3; }
  void update(int group, const Batch& batch, Backend& backend) override;
};

// Muon (Jordan et al. 2024): a few Newton-Schulz iterations in low precision bring the momentum of
// a matrix near the closest orthogonal one, U V^T of its singular value decomposition. Mirrors
// torch.optim.Muon, with two differences. Parameters that are not matrices are accepted as well and
// updated as AdamW does (convolution weights count as matrices [out, the rest]). And the dtype of
// the iteration is an option, so that its need for precision can be studied.

/// The factor of the rate of a matrix [rows, columns].
enum class MuonScale : uint8_t {
  original,         // sqrt(max(1, rows / columns))
  match_rms_adamw,  // 0.2 sqrt(max(rows, columns)): AdamW's rates fit (Liu et al. 2025)
};

struct MuonOptions {
  double lr = 1e-3, weight_decay = 0.1, momentum = 0.95;
  bool nesterov = true;
  DType iteration_dtype = bf16;  // f64, f32, bf16 or f16
  int iterations = 5;
  std::array<double, 3> coefficients{3.4445, -4.7750, 2.0315};
  double eps = 1e-7;  // lower bound of the norm that a momentum is divided by
  MuonScale scale = MuonScale::original;
  // for parameters that are not matrices: AdamW at lr times this, weight_decay as above
  double vector_lr_factor = 1;
  std::array<double, 2> betas{0.9, 0.999};
  double adam_eps = 1e-8;
  std::optional<DType> state_dtype{};  // absent: f32
  bool maximize = false;               // moves along the gradient, not against it

  static constexpr std::string_view name = "Muon";
  /// exp_avg_sq exists for parameters that are not matrices; their momentum_buffer is Adam's m.
  static constexpr StateLayout layout{.names = {"momentum_buffer", "exp_avg_sq"}, .essential = 1};
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

class Muon final : public GroupedOptimizer<MuonOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  StateMask needed_state(int group, const Tensor& parameter) const override;
  void update(int group, const Batch& batch, Backend& backend) override;
};

/// Returns the names of all states that these optimizers have, as their state dictionaries spell
/// them: "exp_avg".
std::vector<std::string_view> state_names();

// Learning rates over time. A schedule is a value, a pure function from the step number (0, 1,
// 2, ...) to the factor of each parameter group's own rate; LrScheduler applies one to an
// optimizer. A schedule does not depend on optimizers, so it can be printed, tested and
// composed.

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
