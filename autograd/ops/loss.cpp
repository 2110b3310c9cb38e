// Argument rules of the losses, and losses made of other operations.
#include <halftone/autograd/ops/loss.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include <halftone/autograd/ops/logical.h>
#include <halftone/autograd/ops/matmul.h>

namespace halftone {

namespace detail {
void refuse_batchmean(std::string_view op, LossReduction reduction) {
  if (reduction == LossReduction::batchmean)
    fail<UsageError>(op, "the reduction is batchmean, which kl_div alone has. Use mean or sum.");
}

Tensor reduced(std::string_view op, const Tensor& losses, LossReduction reduction) {
  refuse_batchmean(op, reduction);
  if (reduction == LossReduction::none) return losses;
  return reduction == LossReduction::mean ? mean(losses) : sum(losses);
}

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
  refuse_batchmean(op, options.reduction);
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

namespace {
/// The gradient of logits, which a cast after it may want in a short dtype.
struct CrossEntropyGradient final : PendingResult {
  CrossEntropy op;
  Tensor scale;
  CrossEntropyGradient(const CrossEntropy& of, Tensor row_scale)
      : PendingResult(of.from, {of.logits, of.targets, of.options.weight, of.log_sum_exp}),
        op(of),
        scale(std::move(row_scale)) {}
  bool gives(DType dtype) const override { return dtype == bf16 || dtype == f16; }
  Tensor make(DType dtype) const override {
    Tensor dx = empty(op.logits.shape(), dtype, op.logits.device());
    backend_for(dx).cross_entropy_backward(op.logits, op.targets, op.options.weight, op.settings(),
                                           op.log_sum_exp, scale, dx);
    return dx;
  }
};
}  // namespace

std::array<Tensor, 2> CrossEntropy::backward(const Tensor& dy) const {
  const Tensor scale =
      detail::row_scale(dy, total, options.reduction, logits.shape()[0], log_sum_exp.dtype());
  auto gradient = std::make_shared<CrossEntropyGradient>(*this, scale);
  if (from != f32 || !may_wait(logits.numel() * size_of(f32)))
    return {gradient->make(from), Tensor{}};
  return {pending_tensor(logits.shape(), logits.strides(), logits.device(), std::move(gradient)),
          Tensor{}};
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
/// Throws unless x is floating and the target has its shape.
void check_same_shape(std::string_view op, const Tensor& x, const Tensor& target) {
  check::floating(op, x);
  check::defined(op, "the target", target);
  if (x.shape() != target.shape())
    fail<ShapeError>(op, "the outputs are ", described(x), ", the targets ", described(target),
                     ". They must have the same shape: reshape or expand one.");
}

/// Returns the weights of losses with the target's shape, which have no gradient.
Tensor weights_of_losses(std::string_view op, const Tensor& given, const Tensor& target,
                         DType dtype) {
  if (broadcast_shapes(op, given.shape(), target.shape()) != target.shape())
    fail<ShapeError>(op, "a weight is ", described(given), ", the targets ", described(target),
                     ". It must broadcast to them.");
  return cast(given.detach(), dtype);
}

/// The inputs of a loss as autocast leaves them, then widened to f32 or f64, and the dtype of its
/// result. While it exists, nothing else is cast.
template <std::size_t N> struct WideInputs {
  std::array<Tensor, N> x;
  DType result{};
  CasterScope no_further_casts{nullptr};

  /// The first `decide` inputs decide on the dtype of the result.
  WideInputs(const OpInfo& info, std::array<Tensor, N> inputs, std::size_t decide)
      : x(cast_by_policy(info, std::move(inputs))), result(x[0].dtype()) {
    for (std::size_t i = 1; i < decide; ++i)
      if (is_floating(x[i].dtype())) result = promote(result, x[i].dtype());
    for (Tensor& input : x)
      if (input.defined()) input = cast(input, result == f64 ? f64 : f32);
  }

 private:
  static std::array<Tensor, N> cast_by_policy(const OpInfo& info, std::array<Tensor, N> inputs) {
    if (InputCaster* caster = active_caster()) caster->cast_inputs(info, inputs);
    return inputs;
  }
};
}  // namespace

/// (1 - t) x - (1 + (pos_weight - 1) t) logsigmoid(x), in f32 or wider.
Tensor bce_with_logits(const Tensor& logits, const Tensor& target, const BceOptions& options) {
  const std::string_view op = formula::BceWithLogits::info.name;
  if (!options.weight.defined() && !options.pos_weight.defined())
    return bce_with_logits(logits, target, options.reduction);
  check_same_shape(op, logits, target);
  check::floating(op, target);
  const WideInputs<4> in(formula::BceWithLogits::info,
                         {logits, target, options.weight, options.pos_weight}, 2);
  const auto& [x, t, weight, pos_weight] = in.x;
  const auto weights = [&, dtype = x.dtype()](const Tensor& given) {
    return weights_of_losses(op, given, target, dtype);
  };
  Tensor losses;
  if (pos_weight.defined()) {
    losses = (1 - t) * x - ((weights(pos_weight) - 1) * t + 1) * logsigmoid(x);
  } else {
    losses = binary(formula::BceWithLogits{}, x, t);
  }
  if (weight.defined()) losses = losses * weights(weight);
  return cast(detail::reduced(op, losses, options.reduction), in.result);
}

Tensor binary_cross_entropy(const Tensor& probabilities, const Tensor& target, const Tensor& weight,
                            LossReduction reduction) {
  const std::string_view op = formula::BinaryCrossEntropy::info.name;
  if (!weight.defined()) return binary_cross_entropy(probabilities, target, reduction);
  check_same_shape(op, probabilities, target);
  const WideInputs<3> in(formula::BinaryCrossEntropy::info, {probabilities, target, weight}, 2);
  const auto& [x, t, w] = in.x;
  const Tensor losses = binary(formula::BinaryCrossEntropy{}, x, t);
  return cast(detail::reduced(op, losses * weights_of_losses(op, w, target, x.dtype()), reduction),
              in.result);
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
  return detail::reduced(op, losses, options.reduction);
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
  return detail::reduced(op, clamp(near - far + options.margin, 0), options.reduction);
}

Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target, double margin,
                             LossReduction reduction) {
  const OpInfo& info = composed::cosine_embedding_loss;
  check::floating(info.name, a);
  check::floating(info.name, b);
  check::defined(info.name, "the target", target);
  const int dim = target.rank();
  if (dim > 1 || a.rank() != dim + 1 || b.rank() != dim + 1)
    fail<ShapeError>(info.name, "the inputs are ", described(a), " and ", described(b),
                     ", the target ", described(target),
                     ". Pass [n, size] twice with [n], or vectors with a scalar.");
  const WideInputs<3> in(info, {a, b, target}, 2);
  const auto& [x, y, t] = in.x;
  const auto product = [&](const Tensor& p, const Tensor& q) { return sum(p * q, {dim}); };
  const Tensor squares = (product(x, x) + 1e-12) * (product(y, y) + 1e-12);
  const Tensor cosine = product(x, y) / sqrt(squares);
  const Tensor losses = where(t == 1, 1 - cosine, 0) + where(t == -1, clamp(cosine - margin, 0), 0);
  return cast(detail::reduced(info.name, losses, reduction), in.result);
}

Tensor margin_ranking_loss(const Tensor& a, const Tensor& b, const Tensor& target, double margin,
                           LossReduction reduction) {
  const OpInfo& info = composed::margin_ranking_loss;
  check::floating(info.name, a);
  check::floating(info.name, b);
  check::defined(info.name, "the target", target);
  if (a.rank() != b.rank() || a.rank() != target.rank())
    fail<ShapeError>(info.name, "the inputs are ", described(a), " and ", described(b),
                     ", the target ", described(target), ". They must have one rank.");
  const WideInputs<3> in(info, {a, b, target}, 3);
  const auto& [x, y, t] = in.x;
  const Tensor losses = clamp((y - x) * t + margin, 0);
  return cast(detail::reduced(info.name, losses, reduction), in.result);
}

Tensor hinge_embedding_loss(const Tensor& x, const Tensor& target, double margin,
                            LossReduction reduction) {
  const OpInfo& info = composed::hinge_embedding_loss;
  check::floating(info.name, x);
  check::defined(info.name, "the target", target);
  const WideInputs<2> in(info, {x, target}, 1);
  const auto& [y, t] = in.x;
  const Tensor losses = where(t != 1, clamp(margin - y, 0), 0) + where(t != -1, y, 0);
  return cast(detail::reduced(info.name, losses, reduction), in.result);
}

// On no casting list of PyTorch: its operations are cast one by one.
Tensor multilabel_soft_margin_loss(const Tensor& x, const Tensor& target, const Tensor& weight,
                                   LossReduction reduction) {
  const std::string_view op = "multilabel_soft_margin_loss";
  check_same_shape(op, x, target);
  if (x.rank() == 0)
    fail<ShapeError>(op, "the input is a scalar. It must have a dimension of classes.");
  Tensor losses = -(target * logsigmoid(x) + (1 - target) * logsigmoid(-x));
  if (weight.defined()) losses = losses * weight;
  return detail::reduced(op, sum(losses, {-1}) / double(x.size(-1)), reduction);
}

Tensor poisson_nll_loss(const Tensor& x, const Tensor& target, const PoissonNllOptions& options) {
  const OpInfo& info = composed::poisson_nll_loss;
  check_same_shape(info.name, x, target);
  const WideInputs<2> in(info, {x, target}, 2);
  const auto& [y, t] = in.x;
  Tensor losses = options.log_input ? exp(y) - t * y : y - t * log(y + options.eps);
  if (options.full) losses = losses + where(t <= 1, 0, t * log(t) - t + 0.5 * log(2 * M_PI * t));
  return cast(detail::reduced(info.name, losses, options.reduction), in.result);
}

// Connectionist temporal classification. The labels of a sequence, with a blank before, between and
// after them, are its places: 2 labels + 1. An alignment goes from the first two places to the last
// two, in each step to the same place, the next one, or over a blank between different labels.

namespace {
constexpr double nowhere = -std::numeric_limits<double>::infinity();

/// Returns [time + 1, n, places]: row t has, for each place, the logarithm of the sum over all ways
/// to it in t steps. steps: [time, n, places], the log-probability of each place; labels: [n,
/// places].
Tensor ways_to(const Tensor& steps, const Tensor& labels) {
  const int64_t n = labels.size(0), places = labels.size(1);
  const Tensor differs = slice(labels, 1, 2, places) != slice(labels, 1, 0, places - 2);
  const Tensor skips = cat({zeros({n, 2}, boolean, labels.device()), differs}, 1);
  const Tensor first = expand(arange(places, i64, labels.device()) == 0, {n, places});
  std::vector<Tensor> ways{where(first, 0, full({n, places}, nowhere, f64, labels.device()))};
  for (int64_t t = 0; t < steps.size(0); ++t) {
    const Tensor &here = ways.back(), over = where(skips, pad(here, {2, -2}, nowhere), nowhere);
    const Tensor from = stack({here, pad(here, {1, -1}, nowhere), over}, -1);
    ways.push_back(logsumexp(from, -1) + select(steps, 0, t));
  }
  return stack(ways);
}

/// The losses [n] of log-probabilities [time, n, classes], in f64.
struct CtcLoss : UserOp {
  static constexpr OpInfo info = composed::ctc_loss;
  Tensor labels{};            // i64 [n, places]; blanks beyond the places of a sequence
  Tensor times{}, lengths{};  // i64 [n]: steps and labels of each sequence
  bool zero_infinity = false;
  Tensor x{}, ways{}, losses{};  // ways: from the first place

  /// Returns the log-probability of each place.
  Tensor of_places() const {
    const Shape shape{x.size(0), labels.size(0), labels.size(1)};
    return gather(x, 2, expand(labels, shape));
  }
  Tensor forward(const Tensor& in) {
    x = cast(in, f64);
    ways = ways_to(of_places(), labels);
    const int64_t n = labels.size(0), places = labels.size(1);
    const Tensor last = expand(reshape(times, {1, n, 1}), {1, n, places});
    const Tensor column = reshape(lengths, {n, 1}) * 2;
    const Tensor ends =
        gather(select(gather(ways, 0, last), 0, 0), 1, cat({column, clamp(column - 1, 0)}, 1));
    const Tensor absent = cat({zeros({n, 1}, boolean, x.device()), column == 0}, 1);
    losses = -logsumexp(where(absent, nowhere, ends), -1);
    return zero_infinity ? where(losses == -nowhere, 0, losses) : losses;
  }
  /// exp(x) - P(class at this time | an alignment): the derivative by the input of a log_softmax()
  /// that gave x.
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    const int64_t time = x.size(0), n = labels.size(0), places = labels.size(1);
    const Tensor t = reshape(arange(time, i64, x.device()), {time, 1}), step = of_places();
    const Tensor p = expand(arange(places, i64, x.device()), {n, places});
    // The ways to the end are those from the first place of the sequences turned around.
    const Tensor within = t < times, last = reshape(lengths, {n, 1}) * 2;
    const Tensor turned_t = where(within, times - 1 - t, t),
                 turned_p = where(p <= last, last - p, p);
    const Shape shape{time, n, places};
    const auto turned = [&](const Tensor& of) {
      return gather(gather(of, 0, expand(unsqueeze(turned_t, -1), shape)), 2,
                    expand(turned_p, shape));
    };
    const Tensor back = ways_to(turned(step), gather(labels, 1, turned_p));
    const Tensor both = slice(ways, 0, 1, time + 1) + turned(slice(back, 0, 1, time + 1));
    const Tensor reached =
        logical_and(unsqueeze(within, -1), logical_and(p <= last, step > nowhere));
    const Tensor shares = where(reached, exp(both - step + unsqueeze(losses, -1)), 0);
    const Tensor dx = exp(x) - scatter_add(zeros_like(x), 2, expand(labels, shape), shares);
    const double unreached = zero_infinity ? 0 : std::numeric_limits<double>::quiet_NaN();
    const Tensor scaled =
        where(unsqueeze(losses == -nowhere, -1), unreached, dx * unsqueeze(dy, -1));
    return {where(unsqueeze(within, -1), scaled, 0)};
  }
};

/// Throws unless the lengths are from 0 to `most`, one for each of n sequences.
void check_lengths(std::string_view what, const std::vector<int64_t>& lengths, int64_t n,
                   int64_t most) {
  const std::string_view op = composed::ctc_loss.name;
  if (int64_t(lengths.size()) != n)
    fail<ShapeError>(op, "there are ", lengths.size(), " ", what, " for ", n,
                     " sequences. Pass one for each.");
  for (const int64_t length : lengths)
    if (length < 0 || length > most)
      fail<UsageError>(op, "one of the ", what, " is ", length, ". Use 0 to ", most, ".");
}
}  // namespace

Tensor ctc_loss(const Tensor& log_probabilities, const Tensor& targets,
                const std::vector<int64_t>& input_lengths,
                const std::vector<int64_t>& target_lengths, const CtcOptions& options) {
  const OpInfo& info = composed::ctc_loss;
  check::floating(info.name, log_probabilities);
  detail::refuse_batchmean(info.name, options.reduction);
  const Tensor given = detail::wide_indices(info.name, "targets", targets);
  if (log_probabilities.rank() == 2) {
    const Tensor losses = ctc_loss(unsqueeze(log_probabilities, 1), reshape(targets, {-1}),
                                   input_lengths, target_lengths, options);
    return options.reduction == LossReduction::none ? reshape(losses, {}) : losses;
  }
  check::rank(info.name, "the input", log_probabilities, 3);
  check::on_device_of(info.name, log_probabilities, "the targets", targets);
  if (log_probabilities.numel() == 0)
    fail<ShapeError>(info.name, described(log_probabilities), " has no elements. Pass some.");
  const int64_t n = log_probabilities.size(1), classes = log_probabilities.size(2);
  if (options.blank < 0 || options.blank >= classes)
    fail<UsageError>(info.name, "blank is ", options.blank, " of ", classes, " classes. Use 0 to ",
                     classes - 1, ".");
  check_lengths("input_lengths", input_lengths, n, log_probabilities.size(0));
  if (given.rank() != 1 && (given.rank() != 2 || given.size(0) != n))
    fail<ShapeError>(info.name, "the targets are ", described(targets), " for ", n,
                     " sequences. Pass [n, longest], or all one after the other.");
  check_lengths("target_lengths", target_lengths, n, given.size(-1));
  const int64_t total = std::accumulate(target_lengths.begin(), target_lengths.end(), int64_t(0));
  if (given.rank() == 1 && given.numel() != total)
    fail<ShapeError>(info.name, "the targets are ", described(targets), " for target_lengths of ",
                     total, " together. Pass as many.");
  // Where each place has its label: the blank is the last one.
  const int64_t longest = std::max<int64_t>(1, std::ranges::max(target_lengths));
  std::vector<int64_t> places;
  for (int64_t i = 0, begin = 0; i < n; ++i) {
    const int64_t length = target_lengths[std::size_t(i)];
    for (int64_t p = 0; p < 2 * longest + 1; ++p)
      places.push_back(p % 2 == 1 && p / 2 < length ? begin + p / 2 : given.numel());
    begin += given.rank() == 1 ? length : given.size(1);
  }
  const Device device = log_probabilities.device();
  const Tensor known = cat({reshape(given, {-1}), full({1}, options.blank, i64, device)});
  const Tensor of_places = from_vector(places, {int64_t(places.size())}, i64, device);
  const Tensor labels = detail::indices_within(
      info.name, reshape(index_select(known, 0, of_places), {n, 2 * longest + 1}), classes);
  std::array inputs{log_probabilities};
  if (InputCaster* caster = active_caster()) caster->cast_inputs(info, inputs);
  const CasterScope no_further_casts(nullptr);
  const Tensor lengths = from_vector(target_lengths, {n}, i64, device);
  CtcLoss op{
      {}, labels, from_vector(input_lengths, {n}, i64, device), lengths, options.zero_infinity};
  Tensor losses = apply(std::move(op), cast(inputs[0], f64));
  if (options.reduction == LossReduction::mean) losses = losses / cast(clamp(lengths, 1), f64);
  return cast(detail::reduced(info.name, losses, options.reduction), inputs[0].dtype());
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
  refuse_batchmean(op, options.reduction);
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
