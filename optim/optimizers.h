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

// The optimizers. Most are options of an elementwise rule (core/update_rules.h); LAMB, Adafactor
// and Muon look at a whole tensor, and L-BFGS at all of them.

// Stochastic gradient descent with momentum (Polyak 1964; Sutskever et al. 2013 for the Nesterov
// form). Mirrors torch.optim.SGD: g += weight_decay p;  buf = momentum buf + (1 - dampening) g, at
// first buf = g; p -= lr (nesterov ? g + momentum buf : buf).

struct SgdOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;   // maximize: moves along the gradient
  std::optional<StateFormat> state_dtype{};  // absent: f32

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

/// The state of Adam and of AdamW; max_exp_avg_sq is AMSGrad's.
inline constexpr StateLayout adam_layout{
    .names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, .essential = 2, .positive = 6};

struct AdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8, weight_decay = 0;       // decay is added to the gradient
  std::optional<StateFormat> state_dtype{};  // absent: f32
  bool amsgrad = false;   // divides by the largest v until now (Reddi et al. 2018)
  bool maximize = false;  // moves along the gradient, not against it

  static constexpr std::string_view name = "Adam";
  static constexpr StateLayout layout = adam_layout;
  UpdateRule rule() const;
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

/// As AdamOptions, but decay shrinks the parameter itself, by the factor 1 - lr * weight_decay.
struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8, weight_decay = 0.01;
  std::optional<StateFormat> state_dtype{};
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

// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2): a step of
// length lr in every element, u = sign(beta1 m + (1 - beta1) g); p -= lr (u + weight_decay p); m =
// beta2 m + (1 - beta2) g. It has one state tensor, Adam has two; its lr is 3 to 10 times smaller.

struct LionOptions {
  double lr = 1e-4;
  std::array<double, 2> betas{0.9, 0.99};
  double weight_decay = 0;
  std::optional<StateFormat> state_dtype{};  // absent: f32
  bool maximize = false;                     // moves along the gradient, not against it

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
  bool centered = false, maximize = false;   // maximize: moves along the gradient
  std::optional<StateFormat> state_dtype{};  // absent: f32

  static constexpr std::string_view name = "Rmsprop";
  static constexpr StateLayout layout{.names = {"square_avg", "momentum_buffer", "grad_avg"},
                                      .essential = 1,
                                      .numbered = false,
                                      .positive = 1};
  UpdateRule rule() const;
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

using Rmsprop = ElementwiseOptimizer<RmspropOptions>;
extern template class ElementwiseOptimizer<RmspropOptions>;

// Adagrad (Duchi et al. 2011). Mirrors torch.optim.Adagrad: sum += g^2;  p -= lr / (1 + t lr_decay)
// g / (sqrt(sum) + eps), t the number of steps before.

struct AdagradOptions {
  double lr = 1e-2, lr_decay = 0, weight_decay = 0, initial_accumulator_value = 0, eps = 1e-10;
  bool maximize = false;                     // moves along the gradient, not against it
  std::optional<StateFormat> state_dtype{};  // absent: f32

  static constexpr std::string_view name = "Adagrad";
  static constexpr StateLayout layout{.names = {"sum"}, .essential = 1, .positive = 1};
  UpdateRule rule() const;
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

using Adagrad = ElementwiseOptimizer<AdagradOptions>;
extern template class ElementwiseOptimizer<AdagradOptions>;

// NAdam (Dozat 2016) and RAdam (Liu et al. 2020): Adam with Nesterov's momentum, and Adam whose
// first steps do without the second moment. They mirror torch.optim.NAdam and RAdam.

struct NAdamOptions {
  double lr = 2e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8, weight_decay = 0, momentum_decay = 4e-3;
  bool decoupled_weight_decay = false, maximize = false;
  std::optional<StateFormat> state_dtype{};  // absent: f32

  static constexpr std::string_view name = "NAdam";
  static constexpr StateLayout layout{
      .names = {"exp_avg", "exp_avg_sq"}, .essential = 2, .positive = 2, .computed = "mu_product"};
  UpdateRule rule() const;
  double computed(int64_t steps) const;
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

struct RAdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8, weight_decay = 0;
  bool decoupled_weight_decay = false, maximize = false;
  std::optional<StateFormat> state_dtype{};  // absent: f32

  static constexpr std::string_view name = "RAdam";
  static constexpr StateLayout layout{
      .names = {"exp_avg", "exp_avg_sq"}, .essential = 2, .positive = 2};
  UpdateRule rule() const;
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

using NAdam = ElementwiseOptimizer<NAdamOptions>;
using RAdam = ElementwiseOptimizer<RAdamOptions>;
extern template class ElementwiseOptimizer<NAdamOptions>;
extern template class ElementwiseOptimizer<RAdamOptions>;

// Adafactor (Shazeer & Stern 2018). Mirrors torch.optim.Adafactor: for a matrix the second moments
// are the product of averages over its rows and its columns, r c / mean(r); u = g / sqrt(that);
// p -= min(lr, 1 / sqrt(t)) max(eps[1], rms(p)) u / max(1, rms(u) / d). rms: the root of the mean
// of squares. The state of a matrix has a row and a column, so much less than Adam's.

struct AdafactorOptions {
  double lr = 1e-2, beta2_decay = -0.8;
  /// eps[0]^2 is the least second moment; for 0, as for torch's None, eps[0] is the spacing of f32
  /// (f64) numbers near 1. eps[1] is the least rms(p).
  std::array<double, 2> eps{0, 1e-3};
  double d = 1, weight_decay = 0;            // decay shrinks the parameter itself
  bool maximize = false;                     // moves along the gradient, not against it
  std::optional<StateFormat> state_dtype{};  // absent: f32

  static constexpr std::string_view name = "Adafactor";
  static constexpr StateLayout layout{.names = {"row_var", "col_var", "variance"}, .essential = 3};
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

class Adafactor final : public GroupedOptimizer<AdafactorOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  StateMask needed_state(int group, const Tensor& parameter) const override;
  Shape state_shape(std::size_t i, const Tensor& parameter) const override;
  void update(int group, const Batch& batch, Backend& backend) override;
};

// LAMB (You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2): Adam's
// direction u = m / (sqrt(v) + eps) + weight_decay p, moments corrected for their bias, scaled to
// the length of the parameter tensor: p -= lr |p| / |u| u (factor 1 if a norm is 0). Not
// elementwise: the model for optimizers that need more than a rule.

struct LambOptions {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-6, weight_decay = 0;
  std::optional<StateFormat> state_dtype{};  // absent: f32
  bool maximize = false;                     // moves along the gradient, not against it

  static constexpr std::string_view name = "Lamb";
  static constexpr StateLayout layout{
      .names = {"exp_avg", "exp_avg_sq"}, .essential = 2, .positive = 2};
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

/// The factor that Muon applies to the learning rate of a matrix [rows, columns].
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
  std::optional<StateFormat> state_dtype{};  // absent: f32
  bool maximize = false;                     // moves along the gradient, not against it

  static constexpr std::string_view name = "Muon";
  /// exp_avg_sq exists for parameters that are not matrices; their momentum_buffer is Adam's m.
  static constexpr StateLayout layout{
      .names = {"momentum_buffer", "exp_avg_sq"}, .essential = 1, .positive = 2};
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

// L-BFGS (Nocedal & Wright 2006, chapter 7): steps along gradients times an approximate inverse
// Hessian, made of the last `history_size` steps. Mirrors torch.optim.LBFGS.

struct LbfgsOptions {
  double lr = 1;
  int64_t max_iter = 20;              // iterations in one call of step()
  std::optional<int64_t> max_eval{};  // evaluations of the loss in one call; absent: 1.25 max_iter
  double tolerance_grad = 1e-7, tolerance_change = 1e-9;
  int64_t history_size = 100;
  bool strong_wolfe = false;  // searches along the line; torch's line_search_fn="strong_wolfe"
  bool maximize = false;
  std::optional<StateFormat> state_dtype{};  // only absent: the state has the parameters' dtype

  static constexpr std::string_view name = "Lbfgs";
  static constexpr StateLayout layout{.has_step = false, .numbered = false};
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

/// For one group of parameters, all f32 or all f64, on one device. The host reads losses and
/// products of gradients, so a GPU is waited for.
class Lbfgs final : public GroupedOptimizer<LbfgsOptions> {
 public:
  explicit Lbfgs(std::vector<Tensor> parameters, const LbfgsOptions& options = {});

  /// Makes up to max_iter iterations. `closure` drops the gradients, computes the loss, calls
  /// backward() and returns the loss. Returns the first loss.
  Tensor step(const std::function<Tensor()>& closure);
  /// Throws UsageError: a step needs the closure.
  void step(const StepControl& control = {}) override;
  bool set_weight_keeper(std::shared_ptr<WeightKeeper> keeper) override;
  bool set_state_formats(const StateFormats& formats) override;
  /// Returns PyTorch's entries under state.0, each list as one tensor: old_dirs [steps, elements].
  NamedTensors state_dict() const override;
  void load_state_dict(const NamedTensors& state) override;

 private:
  struct Point;  // a loss and its gradient
  StateMask needed_state(int, const Tensor&) const override { return 0; }
  void update(int, const Batch&, Backend&) override {}
  Point evaluate(const std::function<Tensor()>& closure, Tensor* loss = nullptr);
  Point search(const std::function<Tensor()>& closure, const Point& start, double slope,
               int64_t most, int64_t& evaluations);
  void remember(const Tensor& gradient);
  Tensor along(const Tensor& gradient) const;
  Tensor flat(bool of_gradients);
  void move_to(const Tensor& place);

  int64_t iterations_ = 0, evaluations_ = 0;
  double rate_ = 0, scale_ = 1, loss_ = 0;            // PyTorch's t, H_diag, prev_loss
  Tensor direction_{}, gradient_{};                   // flat, as the next ones
  std::vector<Tensor> gradient_changes_{}, moves_{};  // PyTorch's old_dirs, old_stps
  std::vector<double> inverse_products_{};            // PyTorch's ro
};

/// Returns the names of all states that these optimizers have, as their state dictionaries spell
/// them, such as "exp_avg".
std::vector<std::string_view> state_names();

// Learning rates over time. A schedule is a value, a pure function from the step number (0, 1, 2,
// ...) to the factor of each parameter group's own rate; LrScheduler applies one to an optimizer. A
// schedule does not depend on optimizers, so it can be printed, tested and composed.

class LrSchedule {
 public:
  /// Takes any function of the step number.
  explicit LrSchedule(std::function<double(int64_t step)> factor) : factor_(std::move(factor)) {}
  /// Returns the same factor at every step.
  static LrSchedule constant(double factor = 1);
  /// gamma^floor(step / every): torch's StepLR.
  static LrSchedule step_decay(int64_t every, double gamma = 0.1);
  /// A straight line from 1 to `last` over `steps` steps, then constant `last`.
  static LrSchedule linear(int64_t steps, double last = 0);
  /// Half a cosine from 1 to `last` over `steps` steps, then constant `last` (Loshchilov & Hutter
  /// 2017, without restarts).
  static LrSchedule cosine(int64_t steps, double last = 0);
  /// 1/steps, 2/steps, ..., 1 times the first factor of `after` during the first `steps` steps,
  /// then `after` from its beginning (Goyal et al. 2017).
  static LrSchedule warm_up(int64_t steps, const LrSchedule& after = constant());

  /// gamma^(number of milestones reached): torch's MultiStepLR.
  static LrSchedule multi_step(std::vector<int64_t> milestones, double gamma = 0.1);
  /// gamma^step: torch's ExponentialLR.
  static LrSchedule exponential(double gamma);
  /// (1 - step / steps)^power, then 0: torch's PolynomialLR.
  static LrSchedule polynomial(int64_t steps, double power = 1);
  /// Half a cosine from 1 to `last` over `first` steps, then again and again, each time over
  /// `growth` times as many steps as before: torch's CosineAnnealingWarmRestarts with eta_min =
  /// last * lr (Loshchilov & Hutter 2017).
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

  /// Returns `step`, and `base_lrs`: the rates of the groups before the schedule's factor.
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

  /// Returns `best`, `bad` (measurements in a row without improvement) and `cooldown` (those left).
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
