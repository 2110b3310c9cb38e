// Options and rules of the optimizers.
#include <halftone/optim/optimizers.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include <halftone/autograd/ops.h>
#include <halftone/autograd/slots.h>
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

// Adam's and AdamW's options, and the update rule they describe. NAdam, RAdam and LAMB share most
// options.

namespace {

template <class Options> void describe_adam(Options& options, OptionFields& field) {
  field("lr", options.lr), field("betas", options.betas);
  field("eps", options.eps), field("weight_decay", options.weight_decay);
  field("maximize", options.maximize);
  if constexpr (requires { options.amsgrad; }) field("amsgrad", options.amsgrad);
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

void AdagradOptions::describe(OptionFields& field) {
  field("lr", lr), field("lr_decay", lr_decay), field("eps", eps);
  field("weight_decay", weight_decay), field("maximize", maximize);
  field("initial_accumulator_value", initial_accumulator_value);
}

void AdagradOptions::check(std::string_view optimizer) const {
  detail::require_not_negative(optimizer, "lr", lr);
  detail::require_not_negative(optimizer, "lr_decay", lr_decay);
  detail::require_not_negative(optimizer, "weight_decay", weight_decay);
  detail::require_not_negative(optimizer, "initial_accumulator_value", initial_accumulator_value);
  detail::require_not_negative(optimizer, "eps", eps);
  detail::require_state_dtype(optimizer, state_dtype);
}

UpdateRule AdagradOptions::rule() const {
  return rule::Adagrad{lr_decay, weight_decay, initial_accumulator_value, eps};
}

template class ElementwiseOptimizer<AdagradOptions>;

void NAdamOptions::describe(OptionFields& field) {
  describe_adam(*this, field);
  field("momentum_decay", momentum_decay), field("decoupled_weight_decay", decoupled_weight_decay);
}

void NAdamOptions::check(std::string_view optimizer) const {
  check_adam(*this, optimizer);
  detail::require_not_negative(optimizer, "momentum_decay", momentum_decay);
}

UpdateRule NAdamOptions::rule() const {
  return rule::NAdam{betas[0], betas[1], eps, weight_decay, momentum_decay, decoupled_weight_decay};
}

double NAdamOptions::computed(int64_t steps) const {
  return rule::NAdam{.beta1 = betas[0], .momentum_decay = momentum_decay}.mu_product(steps);
}

void RAdamOptions::describe(OptionFields& field) {
  describe_adam(*this, field);
  field("decoupled_weight_decay", decoupled_weight_decay);
}

void RAdamOptions::check(std::string_view optimizer) const { check_adam(*this, optimizer); }

UpdateRule RAdamOptions::rule() const {
  return rule::RAdam{betas[0], betas[1], eps, weight_decay, decoupled_weight_decay};
}

template class ElementwiseOptimizer<NAdamOptions>;
template class ElementwiseOptimizer<RAdamOptions>;

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

void LambOptions::describe(OptionFields& field) { describe_adam(*this, field); }

void LambOptions::check(std::string_view optimizer) const { check_adam(*this, optimizer); }

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
    first.stored[1] = {};  // the direction
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

// Adafactor: the averages move by the rule, as if they were weights; then the direction, its
// length, the step.

void AdafactorOptions::describe(OptionFields& field) {
  field("lr", lr), field("beta2_decay", beta2_decay), field("eps", eps), field("d", d);
  field("weight_decay", weight_decay), field("maximize", maximize);
}

void AdafactorOptions::check(std::string_view optimizer) const {
  detail::require_not_negative(optimizer, "lr", lr);
  if (!(beta2_decay <= 0))
    fail<UsageError>(optimizer, "beta2_decay is ", beta2_decay, ". Use 0 or less.");
  detail::require_finite(optimizer, "beta2_decay", beta2_decay);
  detail::require_not_negative(optimizer, "eps[0]", eps[0]);
  detail::require_not_negative(optimizer, "eps[1]", eps[1]);
  if (!(d >= 1)) fail<UsageError>(optimizer, "d is ", d, ". Use 1 or more.");
  detail::require_finite(optimizer, "d", d);
  detail::require_not_negative(optimizer, "weight_decay", weight_decay);
  if (state_dtype && state_dtype->coded())
    fail<DTypeError>(optimizer, "state_dtype is ", *state_dtype,
                     ". Its averages are rows and columns, too small for blocks: use f32, bf16 or "
                     "f16.");
  detail::require_state_dtype(optimizer, state_dtype);
}

StateMask Adafactor::needed_state(int /*group*/, const Tensor& parameter) const {
  return is_matrix(parameter) ? 3 : 4;
}

Shape Adafactor::state_shape(std::size_t i, const Tensor& parameter) const {
  Shape shape = parameter.shape();
  if (i < 2 && is_matrix(parameter)) shape[i == 0 ? -1 : -2] = 1;
  return shape;
}

void Adafactor::update(int group, const Batch& batch, Backend& backend) {
  const AdafactorOptions& o = options_of(group);
  const MemoryScope scope(MemoryUse::workspace);
  const NoGrad no_grad;
  const CasterScope no_cast(nullptr);
  for (const UpdateSlot& slot : batch.slots) {
    const DType wide = slot.parameter.dtype() == f64 ? f64 : f32;
    const double eps = o.eps[0] != 0 ? o.eps[0] : epsilon(wide);
    const auto mean_square = [](const Tensor& x) { return mean(square(cast(x, f64))); };
    Tensor g = cast(slot.gradient, wide), weight = empty(slot.parameter.shape(), wide, g.device());
    if (slot.gradient_factor.defined()) g = g * cast(slot.gradient_factor, wide);
    UpdateSlot reading = uncounted(slot, slot.gradient);
    reading.state[0] = weight;
    backend.update({&reading, 1}, batch.call(rule::ReadWeight{}, o.lr));

    const Tensor squares = square(g);
    const auto averaged = [&](const Tensor& state, const Tensor& of) {
      UpdateSlot moving{.parameter = state, .gradient = of};
      if (slot.steps.defined()) moving.steps = slot.steps.clone();  // the last call counts
      backend.update({&moving, 1}, batch.call(rule::Adafactor{o.beta2_decay, 0, true}, o.lr));
      return cast(state, wide);
    };
    Tensor moments;
    if (is_matrix(slot.parameter)) {
      const Tensor rows = averaged(slot.state[0], mean(squares, {-1}, true)),
                   columns = averaged(slot.state[1], mean(squares, {-2}, true));
      moments = rows / clamp(mean(rows, {-2}, true), eps) * columns;
    } else {
      moments = averaged(slot.state[2], squares);
    }
    const Tensor direction = g * rsqrt(clamp(moments, eps * eps));
    const Tensor longer = clamp(sqrt(mean_square(direction)) / o.d, 1);
    const Tensor length = clamp(sqrt(mean_square(weight)), o.eps[1]) / longer;
    UpdateSlot last = uncounted(slot, direction * cast(length, wide));
    last.steps = slot.steps;
    backend.update({&last, 1}, batch.call(rule::Adafactor{0, o.weight_decay, false}, o.lr));
  }
}

// L-BFGS: the history of steps, the direction, the search along it. Numbers that decide are doubles
// of the host.

namespace {
double dot_of(const Tensor& a, const Tensor& b) { return dot(cast(a, f64), cast(b, f64)).item(); }

/// The least of the cubic through two values with their slopes, within bounds; the middle of the
/// bounds if it has none.
double cubic_minimum(double x1, double f1, double g1, double x2, double f2, double g2, double low,
                     double high) {
  const double d1 = g1 + g2 - 3 * (f1 - f2) / (x1 - x2), square = d1 * d1 - g1 * g2;
  if (!(square >= 0)) return (low + high) / 2;
  const double d2 = std::sqrt(square);
  const double least = x1 <= x2 ? x2 - (x2 - x1) * ((g2 + d2 - d1) / (g2 - g1 + 2 * d2))
                                : x1 - (x1 - x2) * ((g1 + d2 - d1) / (g1 - g2 + 2 * d2));
  return std::min(std::max(least, low), high);
}
}  // namespace

struct Lbfgs::Point {
  double loss;
  Tensor gradient;
  double at = 0, slope = 0;  // on a line
};

void LbfgsOptions::describe(OptionFields& field) {
  const auto whole = [&](std::string_view name, int64_t& value) {
    auto number = double(value);
    field(name, number);
    value = int64_t(number);
  };
  int64_t evaluations = max_eval.value_or(max_iter * 5 / 4);
  field("lr", lr), whole("max_iter", max_iter), whole("max_eval", evaluations);
  if (max_eval || evaluations != max_iter * 5 / 4) max_eval = evaluations;
  field("tolerance_grad", tolerance_grad), field("tolerance_change", tolerance_change);
  whole("history_size", history_size), field("strong_wolfe", strong_wolfe);
  field("maximize", maximize);
}

void LbfgsOptions::check(std::string_view optimizer) const {
  detail::require_not_negative(optimizer, "lr", lr);
  detail::require_not_negative(optimizer, "tolerance_grad", tolerance_grad);
  detail::require_not_negative(optimizer, "tolerance_change", tolerance_change);
  for (const auto& [option, value] : {std::pair{"max_iter", max_iter},
                                      {"max_eval", max_eval.value_or(1)},
                                      {"history_size", history_size}})
    if (value < 1) fail<UsageError>(optimizer, option, " is ", value, ". Use 1 or more.");
  if (state_dtype)
    fail<UsageError>(optimizer, "state_dtype is ", *state_dtype,
                     ". Leave it out: the state has the parameters' dtype.");
}

Lbfgs::Lbfgs(std::vector<Tensor> parameters, const LbfgsOptions& options)
    : GroupedOptimizer(std::move(parameters), options) {
  const std::span<const Tensor> all = group_parameters(0);
  for (const Tensor& x : all) {
    if (x.dtype() != all[0].dtype() || (x.dtype() != f32 && x.dtype() != f64))
      fail<DTypeError>(name(), "the parameters are ", described(all[0]), " and ", described(x),
                       ". All must be f32, or all f64: cast the model first.");
    if (x.device() != all[0].device())
      fail<DeviceError>(name(), "the parameters are on ", all[0].device(), " and ", x.device(),
                        ". Move them to one device with to().");
  }
}

bool Lbfgs::set_weight_keeper(std::shared_ptr<WeightKeeper> /*keeper*/) { return false; }
bool Lbfgs::set_state_formats(const StateFormats& /*formats*/) { return false; }

void Lbfgs::step(const StepControl& /*control*/) {
  fail<UsageError>(name(),
                   "a step needs the loss more than once. Call step(closure), with a function that "
                   "calls zero_grad(), computes the loss, calls backward() and returns the loss.");
}

/// Returns the parameters, or their gradients, as one vector; absent gradients are 0.
Tensor Lbfgs::flat(bool of_gradients) {
  std::vector<Tensor> parts;
  for (const Tensor& x : group_parameters(0)) {
    const Tensor part = of_gradients ? x.grad() : x.detach();
    parts.push_back(reshape(part.defined() ? cast(part, x.dtype()) : zeros_like(x), {-1}));
  }
  const Tensor whole = cat(parts);
  return of_gradients && options().maximize ? -whole : whole;
}

void Lbfgs::move_to(const Tensor& place) {
  int64_t begin = 0;
  for (const Tensor& x : group_parameters(0)) {
    Tensor parameter = x.detach();
    backend_for(x).copy(reshape(slice(place, 0, begin, begin + x.numel()), x.shape()), parameter);
    begin += x.numel();
  }
}

Lbfgs::Point Lbfgs::evaluate(const std::function<Tensor()>& closure, Tensor* loss) {
  Tensor value = closure();
  if (!value.defined()) fail<UsageError>(name(), "the closure returned no loss. Return it.");
  require_unscaled(name(), {});
  if (loss) *loss = value;
  return {options().maximize ? -value.item() : value.item(), flat(true)};
}

/// Adds the last step to the history.
void Lbfgs::remember(const Tensor& gradient) {
  const Tensor change = gradient - gradient_, move = direction_ * rate_;
  const double product = dot_of(change, move);
  if (!(product > 1e-10)) return;
  if (int64_t(moves_.size()) == options().history_size) {
    gradient_changes_.erase(gradient_changes_.begin()), moves_.erase(moves_.begin());
    inverse_products_.erase(inverse_products_.begin());
  }
  gradient_changes_.push_back(change), moves_.push_back(move);
  inverse_products_.push_back(1 / product);
  scale_ = product / dot_of(change, change);
}

/// Returns the gradient times the approximate inverse Hessian, downhill.
Tensor Lbfgs::along(const Tensor& gradient) const {
  Tensor q = -gradient;
  std::vector<double> shares(moves_.size());
  for (std::size_t i = moves_.size(); i-- > 0;) {
    shares[i] = dot_of(moves_[i], q) * inverse_products_[i];
    q = q - gradient_changes_[i] * shares[i];
  }
  q = q * scale_;
  for (std::size_t i = 0; i < moves_.size(); ++i)
    q = q + moves_[i] * (shares[i] - dot_of(gradient_changes_[i], q) * inverse_products_[i]);
  return q;
}

/// Searches for a place on the line that satisfies the strong Wolfe conditions, with c1 = 1e-4 and
/// c2 = 0.9: first an interval around it, then smaller ones. In the order of PyTorch's.
Lbfgs::Point Lbfgs::search(const std::function<Tensor()>& closure, const Point& start, double slope,
                           int64_t most, int64_t& evaluations) {
  const double size = max(abs(direction_)).item(), change = options().tolerance_change;
  const Tensor origin = flat(false);
  const auto at = [&](double rate) {
    move_to(origin + direction_ * rate);
    Point point = evaluate(closure);
    move_to(origin);
    ++evaluations;
    point.at = rate, point.slope = dot_of(point.gradient, direction_);
    return point;
  };
  const auto too_high = [&](const Point& point) {
    return point.loss > start.loss + 1e-4 * point.at * slope;
  };
  const auto flat_enough = [&](const Point& point) {
    return std::abs(point.slope) <= -0.9 * slope;
  };
  const auto between = [](const Point& a, const Point& b, double low, double high) {
    return cubic_minimum(a.at, a.loss, a.slope, b.at, b.loss, b.slope, low, high);
  };
  Point before{start.loss, start.gradient, 0, slope}, next = at(rate_);
  std::array<Point, 2> ends{before, next};
  bool done = false;
  int64_t tries = 0;
  for (; tries < most; ++tries) {
    ends = {before, next};
    if (too_high(next) || (tries > 1 && next.loss >= before.loss)) break;
    if (flat_enough(next)) {
      ends[0] = next, done = true;
      break;
    }
    if (next.slope >= 0) break;
    const double rate = between(before, next, next.at + 0.01 * (next.at - before.at), next.at * 10);
    before = next, next = at(rate);
  }
  if (tries == most) ends = {Point{start.loss, start.gradient, 0, slope}, next};
  std::size_t low = ends[0].loss <= ends[1].loss ? 0 : 1;
  bool slow = false;  // the last new place was close to an end
  while (!done && tries < most) {
    const auto [left, right] = std::minmax(ends[0].at, ends[1].at);
    if ((right - left) * size < change) break;
    double rate = between(ends[0], ends[1], left, right);
    const double margin = 0.1 * (right - left);
    const bool close = std::min(right - rate, rate - left) < margin;
    if (close && (slow || rate >= right || rate <= left)) {
      rate = std::abs(rate - right) < std::abs(rate - left) ? right - margin : left + margin;
      slow = false;
    } else {
      slow = close;
    }
    next = at(rate), ++tries;
    Point &best = ends[low], &other = ends[1 - low];
    if (too_high(next) || next.loss >= best.loss) {
      other = next;
      low = ends[0].loss <= ends[1].loss ? 0 : 1;
    } else {
      done = flat_enough(next);
      if (!done && next.slope * (other.at - best.at) >= 0) other = best;
      best = next;
    }
  }
  return ends[low];
}

Tensor Lbfgs::step(const std::function<Tensor()>& closure) {
  if (group_count() != 1)
    fail<UsageError>(name(), "there are ", group_count(), " parameter groups. It takes one.");
  const LbfgsOptions& o = options();
  o.check(name());
  const std::function<Tensor()> loss_of = [&closure, caster = shared_active_caster()] {
    const EnableGrad with_grad;
    const CasterScope as_called(caster);
    return closure();
  };
  const NoGrad no_grad;
  const CasterScope no_cast(nullptr);
  const auto largest = [](const Tensor& x) { return x.numel() > 0 ? max(abs(x)).item() : 0; };
  Tensor first;
  Point here = evaluate(loss_of, &first);
  const int64_t most = o.max_eval.value_or(o.max_iter * 5 / 4);
  int64_t evaluations = 1;
  if (largest(here.gradient) > o.tolerance_grad || std::isnan(largest(here.gradient))) {
    for (int64_t i = 0; i < o.max_iter; ++i) {
      if (++iterations_ > 1) remember(here.gradient);
      direction_ = along(here.gradient);
      gradient_ = here.gradient, loss_ = here.loss;
      rate_ = iterations_ > 1 ? o.lr : std::min(1.0, 1 / sum(abs(here.gradient)).item()) * o.lr;
      const double slope = dot_of(here.gradient, direction_);
      if (slope > -o.tolerance_change) break;
      const Tensor origin = flat(false);
      if (o.strong_wolfe) {
        here = search(loss_of, here, slope, most - evaluations, evaluations);
        rate_ = here.at;
        move_to(origin + direction_ * rate_);
      } else {
        move_to(origin + direction_ * rate_);
        if (i + 1 < o.max_iter) here = evaluate(loss_of), ++evaluations;
      }
      if (evaluations >= most || largest(here.gradient) <= o.tolerance_grad ||
          largest(direction_ * rate_) <= o.tolerance_change ||
          std::abs(here.loss - loss_) < o.tolerance_change)
        break;
    }
  }
  evaluations_ += evaluations;
  return first;
}

namespace {
constexpr std::string_view first_state = "state.0.";
}

NamedTensors Lbfgs::state_dict() const {
  NamedTensors result = GroupedOptimizer::state_dict();
  if (evaluations_ == 0) return result;
  const auto put = [&](std::string_view name, const Tensor& x) {
    result[std::string(first_state).append(name)] = x;
  };
  put("func_evals", scalar(evaluations_, i64)), put("n_iter", scalar(iterations_, i64));
  if (iterations_ == 0) return result;
  put("d", direction_), put("t", scalar(rate_, f64)), put("H_diag", scalar(scale_, f64));
  put("prev_flat_grad", gradient_), put("prev_loss", scalar(loss_, f64));
  put("ro", from_vector(inverse_products_, {int64_t(moves_.size())}, f64));
  const NoGrad no_grad;
  const CasterScope no_cast(nullptr);
  if (!moves_.empty()) put("old_dirs", stack(gradient_changes_)), put("old_stps", stack(moves_));
  return result;
}

void Lbfgs::load_state_dict(const NamedTensors& state) {
  NamedTensors others, own;
  for (const auto& [key, x] : state) (key.starts_with(first_state) ? own : others)[key] = x;
  const auto take = [&](std::string_view name, const Shape& shape) {
    const auto entry = own.find(std::string(first_state).append(name));
    if (entry == own.end() || !entry->second.defined() || entry->second.shape() != shape)
      fail<UsageError>("Lbfgs.load_state_dict", "there is no ", first_state, name, " of ", shape,
                       ". Load what the same optimizer saved for the same parameters.");
    return entry->second;
  };
  Lbfgs loaded(parameters(), options());  // changes nothing if an entry is missing
  loaded.GroupedOptimizer::load_state_dict(others);
  if (!own.empty()) {
    loaded.evaluations_ = take("func_evals", {}).item<int64_t>();
    loaded.iterations_ = take("n_iter", {}).item<int64_t>();
  }
  if (loaded.iterations_ > 0) {
    const Tensor &like = group_parameters(0)[0], whole = flat(false);
    const auto vector_of = [&](const Tensor& x) {
      return cast(x.detach(), like.dtype()).to(like.device()).clone();
    };
    loaded.direction_ = vector_of(take("d", whole.shape()));
    loaded.gradient_ = vector_of(take("prev_flat_grad", whole.shape()));
    loaded.rate_ = take("t", {}).item(), loaded.scale_ = take("H_diag", {}).item();
    loaded.loss_ = take("prev_loss", {}).item();
    const auto products = own.find(std::string(first_state) + "ro");
    const int64_t count =
        products == own.end() || !products->second.defined() ? 0 : products->second.numel();
    loaded.inverse_products_ = take("ro", {count}).to_vector<double>();
    for (int64_t i = 0; i < count; ++i) {
      const Shape shape{count, whole.numel()};
      loaded.gradient_changes_.push_back(vector_of(select(take("old_dirs", shape), 0, i)));
      loaded.moves_.push_back(vector_of(select(take("old_stps", shape), 0, i)));
    }
  }
  *this = std::move(loaded);
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
        AdagradOptions::layout, NAdamOptions::layout, RAdamOptions::layout,
        AdafactorOptions::layout, LambOptions::layout, MuonOptions::layout})
    for (const std::string_view name : layout.names)
      if (!name.empty() && std::ranges::find(names, name) == names.end()) names.push_back(name);
  return names;
}

}  // namespace halftone::optim
