// Argument rules of the class losses, and nll_loss.
#include <halftone/autograd/ops/loss.h>

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

}  // namespace halftone
