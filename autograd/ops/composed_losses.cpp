// Losses that are made of other operations.
#include <array>
#include <cmath>

#include <halftone/autograd/ops/logical.h>
#include <halftone/autograd/ops/loss.h>
#include <halftone/autograd/ops/products.h>

namespace halftone {

namespace {
Tensor reduced(const Tensor& losses, LossReduction reduction) {
  if (reduction == LossReduction::none) return losses;
  return reduction == LossReduction::mean ? mean(losses) : sum(losses);
}
}  // namespace

/// (1 - t) x - (1 + (pos_weight - 1) t) logsigmoid(x), in f32 or wider.
Tensor bce_with_logits(const Tensor& logits, const Tensor& target, const BceOptions& options) {
  const std::string_view op = formula::BceWithLogits::info.name;
  if (!options.weight.defined() && !options.pos_weight.defined())
    return bce_with_logits(logits, target, options.reduction);
  check::floating(op, logits);
  check::floating(op, target);
  if (logits.shape() != target.shape())
    fail<ShapeError>(op, "the outputs are ", described(logits), ", the targets ", described(target),
                     ". They must have the same shape: reshape or expand one.");
  std::array inputs{logits, target, options.weight, options.pos_weight};
  if (InputCaster* caster = active_caster())
    caster->cast_inputs(formula::BceWithLogits::info, inputs);
  const CasterScope no_further_casts(nullptr);
  const DType result = promote(inputs[0].dtype(), inputs[1].dtype()),
              wide = result == f64 ? f64 : f32;
  const auto weights = [&](const Tensor& given) {
    if (broadcast_shapes(op, given.shape(), target.shape()) != target.shape())
      fail<ShapeError>(op, "a weight is ", described(given), ", the targets ", described(target),
                       ". It must broadcast to them.");
    return cast(given.detach(), wide);
  };
  const Tensor x = cast(inputs[0], wide), t = cast(inputs[1], wide);
  Tensor losses;
  if (inputs[3].defined()) {
    losses = (1 - t) * x - ((weights(inputs[3]) - 1) * t + 1) * logsigmoid(x);
  } else {
    losses = binary(formula::BceWithLogits{}, x, t);
  }
  if (inputs[2].defined()) losses = losses * weights(inputs[2]);
  return cast(reduced(losses, options.reduction), result);
}

Tensor gaussian_nll_loss(const Tensor& x, const Tensor& target, const Tensor& variance,
                         const GaussianNllOptions& options) {
  const std::string_view op = "gaussian_nll_loss";
  check::floating(op, x);
  check::defined(op, "the target", target);
  check::floating(op, variance);
  // One variance for each row of the last dimension may lack that dimension.
  Shape row = x.shape();
  if (row.rank() > 0) row.erase(row.rank() - 1);
  const bool per_row = variance.shape() != x.shape() && variance.shape() == row && x.rank() > 0;
  const Tensor v = per_row ? unsqueeze(variance, -1) : variance;
  if (broadcast_shapes(op, v.shape(), x.shape()) != x.shape())
    fail<ShapeError>(op, "the variance is ", described(variance), " for ", described(x),
                     ". Give one per element, one per row, or one.");
  if (!(options.eps > 0)) fail<UsageError>(op, "eps is ", options.eps, ". It must be positive.");
  if (v.device().kind == DeviceKind::cpu && any(v.detach() < 0).item() != 0)
    fail<UsageError>(op, "a variance is negative. Pass variances, not their logarithms.");
  const Tensor above = v + (maximum(v.detach(), options.eps) - v.detach());
  Tensor losses = 0.5 * (log(above) + square(x - target) / above);
  if (options.full) losses = losses + 0.5 * std::log(2 * M_PI);
  return reduced(losses, options.reduction);
}

Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletOptions& options) {
  const std::string_view op = composed::triplet_margin_loss.name;
  for (const Tensor* x : {&anchor, &positive, &negative}) check::floating(op, *x);
  std::array inputs{anchor, positive, negative};
  if (InputCaster* caster = active_caster())
    caster->cast_inputs(composed::triplet_margin_loss, inputs);
  if (anchor.rank() != positive.rank() || anchor.rank() != negative.rank() || anchor.rank() == 0)
    fail<ShapeError>(op, "the inputs are ", described(anchor), ", ", described(positive), " and ",
                     described(negative), ". They must have one rank, 1 or more.");
  if (!(options.margin > 0))
    fail<UsageError>(op, "the margin is ", options.margin, ". It must be positive.");
  const auto distance = [&](const Tensor& a, const Tensor& b) {
    return pairwise_distance(a, b, options.p, options.eps);
  };
  Tensor far = distance(inputs[0], inputs[2]);
  if (options.swap) far = minimum(far, distance(inputs[1], inputs[2]));
  const Tensor near = distance(inputs[0], inputs[1]);
  return reduced(clamp(near - far + options.margin, 0), options.reduction);
}

}  // namespace halftone
