// Argument rules of the class losses, and nll_loss.
#include <halftone/autograd/ops/loss.h>

namespace halftone {

namespace detail {
void check_class_loss(std::string_view op, const Tensor& x, const Tensor& targets,
                      const CrossEntropySettings& settings) {
  check::floating(op, x);
  check::rank(op, "the input", x, 2);
  check::integers(op, "targets", targets);
  if (targets.rank() != 1 || targets.shape()[0] != x.shape()[0])
    fail<ShapeError>(op, "the input is ", described(x), ", targets are ", described(targets),
                     ". There must be one target per row.");
  if (!(settings.label_smoothing >= 0 && settings.label_smoothing <= 1))
    fail<UsageError>(op, "label_smoothing is ", settings.label_smoothing,
                     ". Use a value on [0, 1].");
  check::vector_of(op, "the class weight", settings.weight, x.shape()[1]);
  if (settings.weight.defined() && settings.weight.device() != x.device())
    fail<DeviceError>(op, "the input is on ", x.device(), ", the class weight on ",
                      settings.weight.device(), ". Move them to one device with to().");
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

/// The losses of rows; where `misses` is 1, the target being out of range: an error at once on the
/// CPU, and NaN on a device that the host would have to wait for.
Tensor refuse_misses(const Tensor& losses, const Tensor& misses, int64_t classes) {
  if (losses.device().kind != DeviceKind::cpu) return losses / (1 - misses);
  if (sum(misses).item() != 0)
    fail<UsageError>("nll_loss", "a target is out of range for ", classes, " classes. Use 0 to ",
                     classes - 1, ".");
  return losses;
}
}  // namespace detail

Tensor NllLoss::forward(const Tensor& x, const Tensor& targets) {
  detail::check_class_loss("nll_loss", x, targets, settings);
  dtype = x.dtype();
  const DType wide = detail::statistics_dtype(dtype);
  const int64_t rows = x.shape()[0], classes = x.shape()[1];
  const Tensor column = views::reshaped(targets, {rows, 1});
  const Tensor kept =
      cast(not_equal(column, full({}, double(settings.ignore_index), i64, x.device())), wide);
  const Tensor in_range = cast(greater_equal(column, zeros({}, i64, x.device())), wide) *
                          cast(less(column, full({}, double(classes), i64, x.device())), wide);
  const Tensor misses = (1 - in_range) * kept;
  const Tensor one_hot = cast(equal(column, arange(classes, i64, x.device())), wide) * kept;
  selected =
      -(settings.weight.defined() ? one_hot * cast(settings.weight.detach(), wide) : one_hot);
  const Tensor all = sum(cast(x, wide) * selected, {1});
  const Tensor losses = detail::refuse_misses(all, views::reshaped(misses, {rows}), classes);
  return cast(detail::reduce_rows(losses, -sum(selected, {1}), settings.reduction, total), dtype);
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropySettings& settings) {
  if (targets.defined() && logits.defined() && is_floating(targets.dtype()) &&
      targets.shape() == logits.shape())
    return detail::soft_cross_entropy(logits, targets, settings);
  return detail::on_rows("cross_entropy", logits, targets, settings.reduction,
                         [&](const Tensor& x, const Tensor& t) {
                           return apply(CrossEntropy{.settings = settings}, x, t);
                         });
}

Tensor nll_loss(const Tensor& log_probabilities, const Tensor& targets,
                const CrossEntropySettings& settings) {
  return detail::on_rows(
      "nll_loss", log_probabilities, targets, settings.reduction,
      [&](const Tensor& x, const Tensor& t) { return apply(NllLoss{.settings = settings}, x, t); });
}

}  // namespace halftone
