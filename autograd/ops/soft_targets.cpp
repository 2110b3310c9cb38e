// Cross-entropy with probabilities as targets, made of other operations:
//   loss = - sum_c w[c] q[c] log p[c],   q = (1 - s) target + s / C
#include <halftone/autograd/ops/logical.h>
#include <halftone/autograd/ops/loss.h>

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
