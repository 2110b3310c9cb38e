// One reduction per device; the host reads nothing back.
#include <halftone/optim/gradient_lists.h>

#include <cmath>

#include <halftone/autograd/ops.h>

namespace halftone::optim {

void scale_gradients(std::span<Tensor> gradients, const Tensor& factor) {
  for_each_device(gradients, [&](std::span<Tensor> some, Backend& backend) {
    backend.scale_all(some, factor.to(some[0].device()));
  });
}

namespace {
Tensor euclidean_norm(std::span<const Tensor> gradients) {
  Tensor squares;
  for_each_device(gradients, [&](std::span<const Tensor> some, Backend& backend) {
    const Tensor here = empty({}, f64, some[0].device());
    Tensor sum = here;
    backend.sum_of_squares(some, sum);
    squares = squares.defined() ? squares + here.to(squares.device()) : here;
  });
  return sqrt(squares);
}
}  // namespace

Tensor norm_of(std::span<const Tensor> gradients, double p) {
  if (!(p > 0))
    fail<UsageError>("clip_grad_norm", "norm_type is ", p, ". Use a positive number, or infinity.");
  if (gradients.empty()) return zeros({}, f64);
  const NoGrad no_grad;
  const CasterScope no_cast(nullptr);
  if (p == 2) return euclidean_norm(gradients);
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

}  // namespace halftone::optim
