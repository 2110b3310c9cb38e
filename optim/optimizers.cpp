// Options and rules of the optimizers.
#include <halftone/optim/optimizers.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/math.h>
#include <halftone/core/memory.h>
#include <halftone/optim/grouped_optimizer.h>

namespace halftone::optim {

void SgdOptions::describe(OptionFields& field) {
  field("lr", lr), field("momentum", momentum), field("dampening", dampening);
  field("weight_decay", weight_decay), field("nesterov", nesterov), field("maximize", maximize);
}

void SgdOptions::check(std::string_view optimizer) const {
  detail::require_not_negative(optimizer, "lr", lr);
  detail::require_not_negative(optimizer, "momentum", momentum);
  detail::require_finite(optimizer, "dampening", dampening);
  detail::require_not_negative(optimizer, "weight_decay", weight_decay);
  detail::require_state_dtype(optimizer, state_dtype);
  if (nesterov && (momentum <= 0 || dampening != 0))
    fail<UsageError>(optimizer, "nesterov with momentum ", momentum, " and dampening ", dampening,
                     ". It needs a positive momentum and no dampening.");
}

UpdateRule SgdOptions::rule() const {
  return rule::Sgd{momentum, dampening, weight_decay, nesterov};
}

template class ElementwiseOptimizer<SgdOptions>;

// Adam's and AdamW's options, and the update rule they describe.

namespace {

template <class Options> void describe_adam(Options& options, OptionFields& field) {
  field("lr", options.lr), field("betas", options.betas);
  field("eps", options.eps), field("weight_decay", options.weight_decay);
  field("amsgrad", options.amsgrad), field("maximize", options.maximize);
}

template <class Options> void check_adam(const Options& options, std::string_view optimizer) {
  detail::require_not_negative(optimizer, "lr", options.lr);
  detail::require_decay_rate(optimizer, "beta1", options.betas[0]);
  detail::require_decay_rate(optimizer, "beta2", options.betas[1]);
  detail::require_not_negative(optimizer, "eps", options.eps);
  detail::require_not_negative(optimizer, "weight_decay", options.weight_decay);
  detail::require_state_dtype(optimizer, options.state_dtype);
}

}  // namespace

void AdamOptions::describe(OptionFields& field) { describe_adam(*this, field); }
void AdamOptions::check(std::string_view optimizer) const { check_adam(*this, optimizer); }
void AdamWOptions::describe(OptionFields& field) { describe_adam(*this, field); }
void AdamWOptions::check(std::string_view optimizer) const { check_adam(*this, optimizer); }

UpdateRule AdamOptions::rule() const {
  return rule::Adam{betas[0], betas[1], eps, weight_decay, false, amsgrad};
}
UpdateRule AdamWOptions::rule() const {
  return rule::Adam{betas[0], betas[1], eps, weight_decay, true, amsgrad};
}

template class ElementwiseOptimizer<AdamOptions>;
template class ElementwiseOptimizer<AdamWOptions>;

// Lion's options.

void LionOptions::describe(OptionFields& field) {
  field("lr", lr), field("betas", betas);
  field("weight_decay", weight_decay), field("maximize", maximize);
}

void LionOptions::check(std::string_view optimizer) const {
  detail::require_not_negative(optimizer, "lr", lr);
  detail::require_decay_rate(optimizer, "beta1", betas[0]);
  detail::require_decay_rate(optimizer, "beta2", betas[1]);
  detail::require_not_negative(optimizer, "weight_decay", weight_decay);
  detail::require_state_dtype(optimizer, state_dtype);
}

// RMSprop's options, and the update rule they describe.

void RmspropOptions::describe(OptionFields& field) {
  field("lr", lr), field("alpha", alpha), field("eps", eps);
  field("weight_decay", weight_decay), field("momentum", momentum), field("centered", centered);
  field("maximize", maximize);
}

void RmspropOptions::check(std::string_view optimizer) const {
  detail::require_not_negative(optimizer, "lr", lr);
  detail::require_not_negative(optimizer, "alpha", alpha);
  detail::require_not_negative(optimizer, "eps", eps);
  detail::require_not_negative(optimizer, "weight_decay", weight_decay);
  detail::require_not_negative(optimizer, "momentum", momentum);
  detail::require_state_dtype(optimizer, state_dtype);
}

UpdateRule RmspropOptions::rule() const {
  return rule::Rmsprop{alpha, eps, weight_decay, momentum, centered};
}

template class ElementwiseOptimizer<RmspropOptions>;

// Shared code of optimizers that are not elementwise. Their step has two halves: a rule that writes
// a direction (core/update_rules.h), and SGD's rule along it. The backend thus handles weight
// forms, loss scales and skipped steps in both.

/// Returns a tensor for a direction, laid out as the parameter: f32, or f64 for an f64 parameter.
inline Tensor direction_like(const Tensor& parameter) {
  return empty_like(parameter, parameter.dtype() == f64 ? f64 : f32);
}

/// Returns a slot that only moves the weight along `gradient`: no state, no factor, no count.
inline UpdateSlot uncounted(const UpdateSlot& slot, const Tensor& gradient) {
  return {.parameter = slot.parameter,
          .gradient = gradient,
          .form = slot.form,
          .companion = slot.companion,
          .key = slot.key,
          .key_stride = slot.key_stride};
}

/// x *= factor, a scalar of x's dtype on its device.
inline void scale(Backend& backend, Tensor& x, const Tensor& factor) {
  const Tensor everywhere = factor.view_as(x.shape(), Strides::filled(x.rank(), 0), 0);
  backend.binary(call_of<BinaryFormulas>(formula::Mul{}), x, everywhere, x);
}

// Three passes over a parameter: the direction, both norms, the step. The host reads no value.

void LambOptions::describe(OptionFields& field) {
  field("lr", lr), field("betas", betas), field("eps", eps);
  field("weight_decay", weight_decay), field("maximize", maximize);
}

void LambOptions::check(std::string_view optimizer) const {
  detail::require_not_negative(optimizer, "lr", lr);
  detail::require_decay_rate(optimizer, "beta1", betas[0]);
  detail::require_decay_rate(optimizer, "beta2", betas[1]);
  detail::require_not_negative(optimizer, "eps", eps);
  detail::require_not_negative(optimizer, "weight_decay", weight_decay);
  detail::require_state_dtype(optimizer, state_dtype);
}

namespace {
Tensor squares(Backend& backend, const Tensor& x) {
  Tensor total = empty({}, f64, x.device());
  backend.sum_of_squares({&x, 1}, total);
  return total;
}

/// Returns |weight| / |direction|, or 1 if either is 0.
Tensor trust_ratio(Backend& backend, const Tensor& weight, const Tensor& direction) {
  const Tensor w = squares(backend, weight), u = squares(backend, direction);
  const Tensor zero = full({}, 0, w.dtype(), w.device()), one = full({}, 1, w.dtype(), w.device());
  Tensor smaller = empty_like(w), ratio = empty_like(w), result = empty_like(w),
         positive = empty_like(w, boolean);
  backend.binary(call_of<BinaryFormulas>(formula::Minimum{}), w, u, smaller);
  backend.compare(call_of<CompareFormulas>(formula::Greater{}), smaller, zero, positive);
  backend.binary(call_of<BinaryFormulas>(formula::Div{}), w, u, ratio);
  backend.unary(call_of<UnaryFormulas>(formula::Sqrt{}), ratio, ratio);
  backend.select(positive, ratio, one, result);
  Tensor in_dtype = empty_like(result, direction.dtype());
  backend.copy(result, in_dtype);
  return in_dtype;
}
}  // namespace

void Lamb::update(int group, const Batch& batch, Backend& backend) {
  const LambOptions& o = options_of(group);
  const MemoryScope scope(MemoryUse::workspace);
  for (const UpdateSlot& slot : batch.slots) {
    Tensor direction = direction_like(slot.parameter), weight = direction_like(slot.parameter);
    UpdateSlot first = slot;
    first.state[2] = direction;
    backend.update(
        {&first, 1},
        batch.call(rule::AdamDirection{o.betas[0], o.betas[1], o.eps, o.weight_decay}, o.lr));
    UpdateSlot reading = uncounted(slot, slot.gradient);
    reading.state[0] = weight;
    backend.update({&reading, 1}, batch.call(rule::ReadWeight{}, o.lr));
    scale(backend, direction, trust_ratio(backend, weight, direction));
    UpdateSlot last = uncounted(slot, direction);
    backend.update({&last, 1}, batch.call(rule::Sgd{}, o.lr));
  }
}

// Momentum, its orthogonalization, the step; AdamW's rule for other parameters.

void MuonOptions::describe(OptionFields& field) {
  field("lr", lr), field("weight_decay", weight_decay), field("momentum", momentum);
  field("nesterov", nesterov), field("eps", eps), field("vector_lr_factor", vector_lr_factor);
  field("betas", betas), field("adam_eps", adam_eps), field("maximize", maximize);
}

void MuonOptions::check(std::string_view optimizer) const {
  detail::require_not_negative(optimizer, "lr", lr);
  detail::require_not_negative(optimizer, "weight_decay", weight_decay);
  detail::require_decay_rate(optimizer, "momentum", momentum);
  detail::require_not_negative(optimizer, "eps", eps);
  detail::require_not_negative(optimizer, "vector_lr_factor", vector_lr_factor);
  detail::require_decay_rate(optimizer, "beta1", betas[0]);
  detail::require_decay_rate(optimizer, "beta2", betas[1]);
  detail::require_not_negative(optimizer, "adam_eps", adam_eps);
  for (const double c : coefficients) detail::require_finite(optimizer, "a coefficient", c);
  if (iterations < 0 || iterations >= 100)
    fail<UsageError>(optimizer, "iterations is ", iterations, ". Use 0 to 99; 5 is usual.");
  if (!facts(iteration_dtype).floating || size_of(iteration_dtype) == 1)
    fail<DTypeError>(optimizer, "iteration_dtype is ", iteration_dtype,
                     ". Use bf16, f16, f32 or f64.");
  detail::require_state_dtype(optimizer, state_dtype);
}

namespace {
bool is_matrix(const Tensor& parameter) { return parameter.rank() >= 2; }

Tensor transposed(const Tensor& x) {
  return x.view_as({x.shape()[1], x.shape()[0]}, {x.strides()[1], x.strides()[0]}, x.offset());
}

Tensor cast_to(Backend& backend, const Tensor& x, DType dtype) {
  Tensor y = empty(x.shape(), dtype, x.device());
  backend.copy(x, y);
  return y;
}

/// y = beta y + alpha x with one rounding: a step of SGD, y -= lr (x + weight_decay y).
void scaled_sum(Backend& backend, Tensor& y, double beta, const Tensor& x, double alpha) {
  UpdateSlot slot{.parameter = y, .gradient = x};
  backend.update({&slot, 1}, {.rule = rule::Sgd{.weight_decay = (beta - 1) / alpha}, .lr = -alpha});
}

/// x / max(|x|, eps), in place.
void normalize(Backend& backend, Tensor& x, double eps) {
  Tensor norm = empty({}, f64, x.device());
  const Tensor least = full({}, eps, f64, x.device());
  backend.sum_of_squares({&x, 1}, norm);
  backend.unary(call_of<UnaryFormulas>(formula::Sqrt{}), norm, norm);
  backend.binary(call_of<BinaryFormulas>(formula::Maximum{}), norm, least, norm);
  backend.unary(call_of<UnaryFormulas>(formula::Reciprocal{}), norm, norm);
  scale(backend, x, cast_to(backend, norm, x.dtype()));
}

/// Runs the iteration x <- a x + (b g + c g g) x with g = x x^T, on x or its transpose, whichever
/// makes g smaller. x is [rows, columns], any dtype; the result has the iteration's dtype.
Tensor orthogonalized(Backend& backend, const Tensor& direction, const MuonOptions& o) {
  const bool tall = direction.shape()[0] > direction.shape()[1];
  Tensor x = cast_to(backend, tall ? transposed(direction) : direction, o.iteration_dtype);
  normalize(backend, x, o.eps);
  const DType wide = o.iteration_dtype == f64 ? f64 : f32;
  const int64_t n = x.shape()[0];
  Tensor gram = empty({n, n}, x.dtype(), x.device()), squared = empty({n, n}, wide, x.device()),
         product = empty(x.shape(), wide, x.device());
  const auto [a, b, c] = o.coefficients;
  for (int i = 0; i < o.iterations; ++i) {
    backend.matmul(x, transposed(x), {}, gram);
    backend.matmul(gram, gram, {}, squared);
    scaled_sum(backend, gram, b, squared, c);
    backend.matmul(gram, x, {}, product);
    scaled_sum(backend, x, a, product, 1);
  }
  return tall ? transposed(x) : x;
}

double rate_factor(MuonScale scale, int64_t rows, int64_t columns) {
  const auto r = double(rows), c = double(columns);
  return scale == MuonScale::original ? std::sqrt(std::max(1.0, r / c))
                                      : 0.2 * std::sqrt(std::max(r, c));
}
}  // namespace

StateMask Muon::needed_state(int /*group*/, const Tensor& parameter) const {
  return is_matrix(parameter) ? 1 : 3;
}

void Muon::update(int group, const Batch& batch, Backend& backend) {
  const MuonOptions& o = options_of(group);
  const MemoryScope scope(MemoryUse::workspace);
  for (UpdateSlot& slot : batch.slots) {
    const Tensor& parameter = slot.parameter;
    if (!is_matrix(parameter)) {
      backend.update({&slot, 1}, batch.call(rule::Adam{o.betas[0], o.betas[1], o.adam_eps,
                                                       o.weight_decay, true, false},
                                            o.lr * o.vector_lr_factor));
      continue;
    }
    if (parameter.numel() == 0) continue;
    const int64_t rows = parameter.shape()[0], columns = parameter.numel() / rows;
    UpdateSlot first = slot;
    first.state[1] =
        empty(parameter.shape(), parameter.dtype() == f64 ? f64 : f32, parameter.device());
    backend.update({&first, 1}, batch.call(rule::MomentumDirection{o.momentum, o.nesterov}, o.lr));
    const Tensor direction = first.state[1].view_as({rows, columns}, {columns, 1}, 0);
    const Tensor step = cast_to(backend, orthogonalized(backend, direction, o), direction.dtype());
    // p -= lr (factor step + weight_decay p)
    UpdateSlot last =
        uncounted(slot, step.view_as(parameter.shape(), contiguous_strides(parameter.shape()), 0));
    Tensor scaled = last.gradient;
    scale(backend, scaled,
          full({}, rate_factor(o.scale, rows, columns), step.dtype(), step.device()));
    backend.update({&last, 1}, batch.call(rule::Sgd{.weight_decay = o.weight_decay}, o.lr));
  }
}

// The formulas of the schedules, and the object that applies them.

namespace {

void require_steps(std::string_view schedule, std::string_view name, int64_t steps, int64_t least) {
  if (steps < least) fail<UsageError>(schedule, name, " is ", steps, ". Use ", least, " or more.");
}

/// Returns the completed part of the steps, from 0 to 1.
double progress(int64_t step, int64_t steps) {
  return std::clamp(double(step) / double(steps), 0.0, 1.0);
}

}  // namespace

LrSchedule LrSchedule::constant(double factor) {
  detail::require_not_negative("LrSchedule.constant", "factor", factor);
  return LrSchedule([=](int64_t) { return factor; });
}

LrSchedule LrSchedule::step_decay(int64_t every, double gamma) {
  require_steps("LrSchedule.step_decay", "every", every, 1);
  detail::require_not_negative("LrSchedule.step_decay", "gamma", gamma);
  return LrSchedule([=](int64_t step) {
    return elementary::pow(gamma, std::floor(double(step) / double(every)));
  });
}

LrSchedule LrSchedule::linear(int64_t steps, double last) {
  require_steps("LrSchedule.linear", "steps", steps, 1);
  detail::require_not_negative("LrSchedule.linear", "last", last);
  return LrSchedule([=](int64_t step) { return 1 + (last - 1) * progress(step, steps); });
}

LrSchedule LrSchedule::cosine(int64_t steps, double last) {
  require_steps("LrSchedule.cosine", "steps", steps, 1);
  detail::require_not_negative("LrSchedule.cosine", "last", last);
  return LrSchedule([=](int64_t step) {
    return last +
           (1 - last) * 0.5 * (1 + elementary::cos(std::numbers::pi * progress(step, steps)));
  });
}

LrSchedule LrSchedule::warm_up(int64_t steps, const LrSchedule& after) {
  require_steps("LrSchedule.warm_up", "steps", steps, 0);
  return LrSchedule([=](int64_t step) {
    return step < steps ? double(step + 1) / double(steps) * after.at(0) : after.at(step - steps);
  });
}

LrSchedule LrSchedule::multi_step(std::vector<int64_t> milestones, double gamma) {
  for (const int64_t milestone : milestones)
    require_steps("LrSchedule.multi_step", "a milestone", milestone, 0);
  detail::require_not_negative("LrSchedule.multi_step", "gamma", gamma);
  return LrSchedule([milestones = std::move(milestones), gamma](int64_t step) {
    const auto reached = std::ranges::count_if(milestones, [=](int64_t m) { return m <= step; });
    return elementary::pow(gamma, double(reached));
  });
}

LrSchedule LrSchedule::exponential(double gamma) {
  detail::require_not_negative("LrSchedule.exponential", "gamma", gamma);
  return LrSchedule([=](int64_t step) { return elementary::pow(gamma, double(step)); });
}

LrSchedule LrSchedule::polynomial(int64_t steps, double power) {
  require_steps("LrSchedule.polynomial", "steps", steps, 1);
  detail::require_not_negative("LrSchedule.polynomial", "power", power);
  return LrSchedule(
      [=](int64_t step) { return elementary::pow(1 - progress(step, steps), power); });
}

LrSchedule LrSchedule::cosine_restarts(int64_t first, int64_t growth, double last) {
  require_steps("LrSchedule.cosine_restarts", "first", first, 1);
  require_steps("LrSchedule.cosine_restarts", "growth", growth, 1);
  detail::require_not_negative("LrSchedule.cosine_restarts", "last", last);
  return LrSchedule([=](int64_t step) {
    int64_t length = first;
    if (growth == 1) step %= length;
    else
      for (; step >= length; length *= growth) step -= length;
    return last +
           (1 - last) * 0.5 * (1 + elementary::cos(std::numbers::pi * progress(step, length)));
  });
}

LrSchedule LrSchedule::one_cycle(int64_t steps, double rising, double start_divisor,
                                 double end_divisor) {
  require_steps("LrSchedule.one_cycle", "steps", steps, 1);
  if (!(rising >= 0 && rising <= 1))
    fail<UsageError>("LrSchedule.one_cycle", "rising is ", rising, ". Use a share from 0 to 1.");
  if (!(start_divisor > 0 && end_divisor > 0))
    fail<UsageError>("LrSchedule.one_cycle", "the divisors are ", start_divisor, " and ",
                     end_divisor, ". Use positive ones.");
  detail::require_finite("LrSchedule.one_cycle", "start_divisor", start_divisor);
  detail::require_finite("LrSchedule.one_cycle", "end_divisor", end_divisor);
  return LrSchedule([=](int64_t step) {
    const double start = 1 / start_divisor, end = start / end_divisor;
    const double top = rising * double(steps) - 1, bottom = double(steps) - 1;
    const auto between = [](double from, double to, double share) {
      return to + (from - to) / 2 *
                      (1 + elementary::cos(std::numbers::pi * std::clamp(share, 0.0, 1.0)));
    };
    const auto at = double(step);
    if (at <= top) return between(start, 1, top > 0 ? at / top : 1);
    return between(1, end, bottom > top ? (at - top) / (bottom - top) : 1);
  });
}

ReduceOnPlateau::ReduceOnPlateau(Optimizer& optimizer, PlateauOptions options)
    : optimizer_(&optimizer),
      options_(options),
      best_(options.larger_is_better ? -std::numeric_limits<double>::infinity()
                                     : std::numeric_limits<double>::infinity()) {
  if (!(options.factor > 0 && options.factor < 1))
    fail<UsageError>("ReduceOnPlateau", "factor is ", options.factor, ". Use one between 0 and 1.");
  require_steps("ReduceOnPlateau", "patience", options.patience, 0);
  require_steps("ReduceOnPlateau", "cooldown", options.cooldown, 0);
}

bool ReduceOnPlateau::improves(double value) const {
  const double sign = options_.larger_is_better ? 1 : -1;
  // As PyTorch: relative thresholds move the best value away from 0, for either sign.
  const double bar = options_.absolute_threshold ? best_ + sign * options_.threshold
                                                 : best_ * (1 + sign * options_.threshold);
  return options_.larger_is_better ? value > bar : value < bar;
}

bool ReduceOnPlateau::step(double value) {
  if (improves(value)) best_ = value, bad_ = 0;
  else ++bad_;
  if (cooldown_ > 0) --cooldown_, bad_ = 0;
  if (bad_ <= options_.patience) return false;
  bool reduced = false;
  for (int group = 0; group < optimizer_->group_count(); ++group) {
    const double lr = optimizer_->lr(group), next = std::max(lr * options_.factor, options_.min_lr);
    if (lr - next <= options_.eps) continue;
    optimizer_->set_lr(next, group);
    reduced = true;
  }
  cooldown_ = options_.cooldown, bad_ = 0;
  return reduced;
}

std::map<std::string, double> ReduceOnPlateau::state() const {
  return {{"best", best_}, {"bad", double(bad_)}, {"cooldown", double(cooldown_)}};
}

void ReduceOnPlateau::load_state(const std::map<std::string, double>& state) {
  for (const char* name : {"best", "bad", "cooldown"})
    if (!state.contains(name))
      fail<UsageError>("ReduceOnPlateau.load_state", "there is no \"", name,
                       "\" in it. Load what state() gave.");
  best_ = state.at("best");
  bad_ = int64_t(state.at("bad")), cooldown_ = int64_t(state.at("cooldown"));
}

LrScheduler::LrScheduler(Optimizer& optimizer, LrSchedule schedule)
    : optimizer_(&optimizer), schedule_(std::move(schedule)) {
  for (int group = 0; group < optimizer.group_count(); ++group)
    base_lrs_.push_back(optimizer.lr(group));
  apply();
}

void LrScheduler::step() {
  ++step_;
  apply();
}

void LrScheduler::apply() {
  const double factor = schedule_.at(step_);
  detail::require_not_negative("LrScheduler", "the factor at step " + std::to_string(step_),
                               factor);
  for (std::size_t group = 0; group < base_lrs_.size(); ++group)
    optimizer_->set_lr(base_lrs_[group] * factor, int(group));
}

NamedTensors LrScheduler::state_dict() const {
  return {{"step", scalar(double(step_), i64)},
          {"base_lrs", from_vector(base_lrs_, {int64_t(base_lrs_.size())}, f64)}};
}

void LrScheduler::load_state_dict(const NamedTensors& state) {
  const auto step = state.find("step"), base_lrs = state.find("base_lrs");
  if (state.size() != 2 || step == state.end() || base_lrs == state.end())
    fail<UsageError>("LrScheduler.load_state_dict", "the state has ", state.size(),
                     " entries. It must have `step` and `base_lrs`, as state_dict() writes them.");
  if (base_lrs->second.numel() != int64_t(base_lrs_.size()))
    fail<UsageError>("LrScheduler.load_state_dict", "the state has ", base_lrs->second.numel(),
                     " rates, the optimizer ", base_lrs_.size(),
                     " groups. Load what was saved for the same groups.");
  step_ = int64_t(step->second.item());
  base_lrs_ = base_lrs->second.to_vector<double>();
  apply();
}

// The names of states.

std::vector<std::string_view> state_names() {
  std::vector<std::string_view> names;
  for (const StateLayout& layout :
       {SgdOptions::layout, AdamOptions::layout, LionOptions::layout, RmspropOptions::layout,
        LambOptions::layout, MuonOptions::layout})
    for (const std::string_view name : layout.names)
      if (!name.empty() && std::ranges::find(names, name) == names.end()) names.push_back(name);
  return names;
}

}  // namespace halftone::optim
