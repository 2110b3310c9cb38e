// Momentum, its orthogonalization, the step; AdamW's rule for other parameters.
#include <halftone/optim/optimizers.h>

#include <cmath>

#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/optim/directions.h>

namespace halftone::optim {

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

}  // namespace halftone::optim
