// Argument rules of the losses, and losses made of other operations.
#include <halftone/autograd/ops/loss.h>

#include <array>
#include <cmath>

#include <halftone/autograd/ops/logical.h>
#include <halftone/autograd/ops/matmul.h>

namespace halftone {

namespace detail {
void check_class_loss(std::string_view op, const Tensor& x, const Tensor& targets,
                      const CrossEntropyOptions& options) {
  check::floating(op, x);
  check::rank(op, "the input", x, 2);
  check::integers(op, "targets", targets);
  if (targets.rank() != 1 || targets.shape()[0] != x.shape()[0])
    fail<ShapeError>(op, "the input is ", described(x), ", targets are ", described(targets),
                     ". There must be one target per row.");
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    fail<UsageError>(op, "label_smoothing is ", options.label_smoothing,
                     ". Use a value on [0, 1].");
  check::vector_of(op, "the class weight", options.weight, x.shape()[1]);
  check::on_device_of(op, x, "the class weight", options.weight);
}

namespace {
/// Calls loss(rows, targets) with the class dimension moved last and everything else flattened.
template <class Loss>
Tensor on_rows(std::string_view op, const Tensor& x, const Tensor& targets_in,
               LossReduction reduction, Loss loss) {
  check::defined(op, "the input", x);
  const Tensor targets = wide_indices(op, "targets", targets_in);
  if (x.rank() == 2) return loss(x, targets);
  if (x.rank() == 0) fail<ShapeError>(op, "the input is a scalar. It must have a class dimension.");
  if (x.rank() == 1) {
    const Tensor y = loss(unsqueeze(x, 0), reshape(targets, {1}));
    return reduction == LossReduction::none ? reshape(y, {}) : y;
  }
  Shape expected = x.shape();
  expected.erase(1);
  if (targets.shape() != expected)
    fail<ShapeError>(op, "the input is ", described(x), ", targets are ", described(targets),
                     ". Targets must have the input's shape without dimension 1.");
  Dims order{0};
  for (int i = 2; i < x.rank(); ++i) order.push_back(i);
  order.push_back(1);
  const Tensor y = loss(reshape(permute(x, order), {-1, x.shape()[1]}), reshape(targets, {-1}));
  return reduction == LossReduction::none ? reshape(y, expected) : y;
}
}  // namespace

/// Returns 0, 1, 2 .. made on the device itself: a copy from the host could not be recorded.
Tensor places(int64_t count, Device device) {
  Tensor ones = full({count}, 1, i64, device);
  Tensor first = views::slice(ones, 0, 0, std::min<int64_t>(count, 1));
  backend_for(ones).fill(0, first);
  Tensor sums = empty_like(ones);
  backend_for(ones).cumulative_sum(ones, false, sums);
  return sums;
}

/// Returns the losses of rows. `misses` is 1 in rows whose target is out of range: an error at once
/// on the CPU, and NaN on a device that the host would have to wait for.
Tensor refuse_misses(const Tensor& losses, const Tensor& misses, int64_t classes) {
  if (losses.device().kind != DeviceKind::cpu) return losses / (1 - misses);
  if (sum(misses).item() != 0)
    fail<UsageError>("nll_loss", "a target is out of range for ", classes, " classes. Use 0 to ",
                     classes - 1, ".");
  return losses;
}
}  // namespace detail

Tensor NllLoss::forward(const Tensor& x, const Tensor& targets) {
  detail::check_class_loss("nll_loss", x, targets, options);
  dtype = x.dtype();
  const DType wide = detail::statistics_dtype(dtype);
  const int64_t rows = x.shape()[0], classes = x.shape()[1];
  const Tensor column = views::reshaped(targets, {rows, 1});
  const Tensor nowhere = full({}, -1, i64, x.device());
  const Tensor kept = not_equal(column, full({}, options.ignore_index, i64, x.device()));
  const Tensor target = where(kept, column, nowhere);
  chosen = equal(target, detail::places(classes, x.device()));
  const Tensor zero = zeros({}, wide, x.device()), one = full({}, 1, wide, x.device());
  const Tensor weight = options.weight.defined() ? cast(options.weight.detach(), wide) : one;
  row_weights = sum(where(chosen, weight, zero), {1});
  const Tensor logs = sum(where(chosen, cast(x, wide), zero), {1});
  // A row whose target is not one of the classes has no chosen element, though it is not ignored.
  const Tensor hits = sum(cast(chosen, wide), {1});
  const Tensor misses = views::reshaped(cast(kept, wide), {rows}) - hits;
  const Tensor losses = detail::refuse_misses(logs * row_weights * -1.0, misses, classes);
  return cast(detail::reduce_rows(losses, row_weights, options.reduction, total), dtype);
}

std::array<Tensor, 2> NllLoss::backward(const Tensor& dy) const {
  const int64_t rows = chosen.shape()[0];
  const DType wide = row_weights.dtype();
  const Tensor scale = detail::row_scale(dy, total, options.reduction, rows, wide);
  const Tensor of_target = cast(views::reshaped(row_weights * scale * -1.0, {rows, 1}), dtype);
  return {where(chosen, of_target, zeros({}, dtype, dy.device())), Tensor{}};
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  if (targets.defined() && logits.defined() && is_floating(targets.dtype()) &&
      targets.shape() == logits.shape())
    return detail::soft_cross_entropy(logits, targets, options);
  return detail::on_rows("cross_entropy", logits, targets, options.reduction,
                         [&](const Tensor& x, const Tensor& t) {
                           return apply(CrossEntropy{.options = options}, x, t);
                         });
}

Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets,
                const CrossEntropyOptions& options) {
  return detail::on_rows(
      "nll_loss", log_probabilities, targets, options.reduction,
      [&](const Tensor& x, const Tensor& t) { return apply(NllLoss{.options = options}, x, t); });
}

// Losses that are made of other operations.

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

// Cross-entropy with probabilities as targets, made of other operations:
//   loss = - sum_c w[c] q[c] log p[c],   q = (1 - s) target + s / C

namespace halftone::detail {

namespace {
void check_soft_loss(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  const std::string_view op = "cross_entropy";
  check::floating(op, logits);
  check::floating(op, targets);
  if (logits.rank() == 0)
    fail<ShapeError>(op, "the input is a scalar. It must have a class dimension.");
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1))
    fail<UsageError>(op, "label_smoothing is ", options.label_smoothing,
                     ". Use a value on [0, 1].");
  if (options.ignore_index >= 0)
    fail<UsageError>(op, "ignore_index is ", options.ignore_index,
                     ", but the targets are probabilities. Leave it out.");
  check::vector_of(op, "the class weight", options.weight,
                   logits.shape()[logits.rank() == 1 ? 0 : 1]);
}
}  // namespace

Tensor soft_cross_entropy(const Tensor& logits, const Tensor& targets,
                          const CrossEntropyOptions& options) {
  check_soft_loss(logits, targets, options);
  // Under autocast the result is f32, as for targets that are indices.
  std::array inputs{logits, targets};
  if (InputCaster* caster = active_caster()) caster->cast_inputs(CrossEntropy::info, inputs);
  const CasterScope no_further_casts(nullptr);
  const DType result = inputs[0].dtype();
  const DType wide = result == f64 || targets.dtype() == f64 ? f64 : f32;
  const int dim = logits.rank() == 1 ? 0 : 1;
  const int64_t classes = logits.shape()[dim];
  Tensor weights = cast(inputs[1], wide);
  if (const double s = options.label_smoothing; s != 0)
    weights = affine(weights, 1 - s, s / double(classes));
  if (options.weight.defined()) {
    Shape column = Dims::filled(logits.rank(), 1);
    column[dim] = classes;
    weights = weights * reshape(cast(options.weight.detach(), wide), column);
  }
  // 0 log 0 is 0: a class with probability 0 in both.
  const Tensor log_p = log_softmax(cast(inputs[0], wide), dim);
  const Tensor nothing = logical_and(weights == 0, isinf(log_p));
  const Tensor losses = -sum(where(nothing, 0, log_p) * weights, {dim});
  if (options.reduction == LossReduction::none) return cast(losses, result);
  const Tensor total = sum(losses);
  if (options.reduction == LossReduction::sum) return cast(total, result);
  return cast(total / double(logits.numel() / std::max<int64_t>(classes, 1)), result);
}

}  // namespace halftone::detail
