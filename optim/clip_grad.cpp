// Computes the factor and scales by it, without reading a value back to the host.
#include <halftone/optim/clip_grad.h>

#include <cmath>
#include <limits>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/optim/gradient_lists.h>
#include <halftone/optim/optimizer.h>

namespace halftone::optim {
namespace {

template <class F> void apply_in_place(const F& formula, Tensor& x) {
  backend_for(x).unary(call_of<UnaryFormulas>(formula), x, x);
}

/// Returns min(1, max_norm / (norm + 1e-6)) of an f64 norm, in f32; NaN stays NaN.
Tensor clip_factor(const Tensor& norm, double max_norm) {
  Tensor denominator = norm.clone();
  apply_in_place(formula::Affine{1, 1e-6}, denominator);
  Tensor factor = full({}, max_norm, f64, norm.device());
  backend_for(norm).binary(call_of<BinaryFormulas>(formula::Div{}), factor, denominator, factor);
  apply_in_place(formula::Clamp{-std::numeric_limits<double>::infinity(), 1}, factor);
  return Cast::converted(factor, f32);
}

}  // namespace

Tensor clip_gradients_norm(std::span<Tensor> gradients, double max_norm, ClipOptions options) {
  if (!(max_norm >= 0))
    fail<UsageError>("clip_grad_norm", "max_norm is ", max_norm, ". Use 0 or more.");
  if (gradients.empty()) return zeros({});
  const Tensor norm = norm_of(gradients, options.norm_type);
  if (options.error_if_nonfinite) {
    if (const double value = norm.item(); !std::isfinite(value))
      fail<UsageError>("clip_grad_norm", "the norm of the gradients is ", value,
                       ". Unscale them first, or turn error_if_nonfinite off.");
  }
  scale_gradients(gradients, clip_factor(norm, max_norm));
  return Cast::converted(norm, f32);
}

Tensor clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm, ClipOptions options) {
  std::vector<Tensor> gradients = gradients_of(parameters);
  return clip_gradients_norm(gradients, max_norm, options);
}

void clip_gradients_value(std::span<Tensor> gradients, double limit) {
  if (!(limit >= 0)) fail<UsageError>("clip_grad_value", "limit is ", limit, ". Use 0 or more.");
  for (Tensor& gradient : gradients) {
    apply_in_place(formula::Clamp{-limit, limit}, gradient);
    mark_written(gradient);
  }
}

void clip_grad_value(const std::vector<Tensor>& parameters, double limit) {
  std::vector<Tensor> gradients = gradients_of(parameters);
  clip_gradients_value(gradients, limit);
}

}  // namespace halftone::optim
