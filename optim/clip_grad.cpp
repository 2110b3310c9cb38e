// One reduction and one scaling per device, without reading anything back.
#include <halftone/optim/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <halftone/autograd/ops.h>
#include <halftone/core/in_place.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/optim/optimizer.h>

namespace halftone::optim {
namespace {

/// Orders gradients by device and calls use(those of one device, its backend) for each.
template <class Use> void for_each_device(std::span<Tensor> gradients, Use use) {
  for (auto begin = gradients.begin(); begin != gradients.end();) {
    const Device device = begin->device();
    const auto end = std::partition(begin, gradients.end(),
                                    [&](const Tensor& x) { return x.device() == device; });
    use(std::span<Tensor>(begin, end), backend_for(device));
    begin = end;
  }
}

template <class F> void apply_in_place(const F& formula, Tensor& x) {
  backend_for(x).unary(call_of<UnaryFormulas>(formula), x, x);
}

/// sqrt of the sum of all squares; partial sums of further devices come to the first.
Tensor total_norm(std::span<Tensor> gradients) {
  Tensor norm;
  for_each_device(gradients, [&](std::span<Tensor> some, Backend& backend) {
    Tensor sum = empty({}, f32, some[0].device());
    backend.sum_of_squares(some, sum);
    if (norm.defined()) backend_for(norm).accumulate(sum.to(norm.device()), norm);
    else norm = sum;
  });
  apply_in_place(formula::Sqrt{}, norm);
  return norm;
}

/// min(1, max_norm / (norm + 1e-6)); NaN stays NaN.
Tensor clip_factor(const Tensor& norm, double max_norm) {
  Tensor denominator = norm.clone();
  apply_in_place(formula::Affine{1, 1e-6}, denominator);
  Tensor factor = full({}, max_norm, f32, norm.device());
  backend_for(norm).binary(call_of<BinaryFormulas>(formula::Div{}), factor, denominator, factor);
  apply_in_place(formula::Clamp{-std::numeric_limits<double>::infinity(), 1}, factor);
  return factor;
}

}  // namespace

Tensor p_norm_of(std::span<const Tensor> gradients, double p) {
  if (!(p > 0))
    fail<UsageError>("clip_grad_norm", "norm_type is ", p, ". Use a positive number, or infinity.");
  const NoGrad no_grad;
  const CasterScope no_cast(nullptr);
  const bool largest = std::isinf(p);
  Tensor total;
  for (const Tensor& gradient : gradients) {
    if (gradient.numel() == 0) continue;
    const Tensor sizes = abs(cast(gradient, f64));
    const Tensor own = largest ? max(sizes) : sum(p == 1 ? sizes : pow(sizes, p));
    const Tensor here = total.defined() ? own.to(total.device()) : own;
    total = !total.defined() ? here : largest ? maximum(total, here) : total + here;
  }
  if (!total.defined()) return zeros({}, f64);
  return largest || p == 1 ? total : pow(total, 1 / p);
}

Tensor clip_gradients_norm(std::span<Tensor> gradients, double max_norm, ClipOptions options) {
  if (!(max_norm >= 0))
    fail<UsageError>("clip_grad_norm", "max_norm is ", max_norm, ". Use 0 or more.");
  if (gradients.empty()) return zeros({});
  Tensor norm = options.norm_type == 2
                    ? total_norm(gradients)
                    : Cast::converted(p_norm_of(gradients, options.norm_type), f32);
  if (options.error_if_nonfinite) {
    if (const double value = norm.item(); !std::isfinite(value))
      fail<UsageError>("clip_grad_norm", "the norm of the gradients is ", value,
                       ". Unscale them first, or turn error_if_nonfinite off.");
  }
  const Tensor factor = clip_factor(norm, max_norm);
  for_each_device(gradients, [&](std::span<Tensor> some, Backend& backend) {
    backend.scale_all(some, factor.to(some[0].device()));
  });
  return norm;
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
