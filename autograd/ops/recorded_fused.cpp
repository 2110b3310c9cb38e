// Fused operations under create_graph: softmax, attention, norms and losses. Where a gradient is
// not short in operations, the operation itself is stated in operations, and History::through()
// goes back through those.
#include <halftone/autograd/history.h>
#include <halftone/autograd/ops/decoder.h>
#include <halftone/autograd/ops/images.h>
#include <halftone/autograd/ops/loss.h>
#include <halftone/autograd/ops/norm.h>
#include <halftone/autograd/ops/sequences.h>

#include <limits>

namespace halftone {

namespace {
Tensor widened(const Tensor& x) { return x.defined() ? cast(x, statistics_dtype(x)) : x; }
}  // namespace

Gradients Softmax::recorded_backward(const Tensor& dy_in, const History& history) const {
  const Tensor dy = widened(dy_in), p = widened(history.output(y));
  return {cast(p * (dy - sum(p * dy, {-1}, true)), from)};
}

Gradients AttentionProbabilities::recorded_backward(const Tensor& dy,
                                                    const History& history) const {
  const Tensor p = history.output(y);
  return {p * (dy - sum(p * dy, {-1}, true)), {}};
}

Gradients LogSoftmax::recorded_backward(const Tensor& dy_in, const History& history) const {
  const Tensor dy = widened(dy_in), p = exp(widened(history.output(y)));
  return {cast(dy - p * sum(dy, {-1}, true), from)};
}

Gradients LogSumExp::recorded_backward(const Tensor& dy, const History& history) const {
  const Tensor lowest = full({}, -std::numeric_limits<double>::infinity(), y.dtype(), y.device());
  const Tensor no_row = unsqueeze(equal(y, lowest), -1);
  const Tensor zero = scalar(0, statistics_dtype(x), x.device());
  const Tensor p = softmax(where(no_row, zero, widened(history.input(0, x))), -1);
  return {cast(where(no_row, zero, p * widened(unsqueeze(dy, -1))), x.dtype())};
}

/// The mask runs in x's memory order, and is drawn again from its key.
Gradients Dropout::recorded_backward(const Tensor& dy, const History&) const {
  const detail::Map same = [op = *this](const Tensor& x) {
    return op.masked(views::with_strides(x, op.order));
  };
  return {detail::linear_map(dy, same, same)};
}

Gradients Rope::recorded_backward(const Tensor& dy, const History&) const {
  return {apply(Rope{.options = options, .inverse = !inverse}, dy)};
}

Gradients PackedSwiglu::recorded_backward(const Tensor& dy, const History& history) const {
  return history.through(dy, {x}, [](const std::vector<Tensor>& in) {
    const int64_t n = in[0].size(-1) / 2;
    return swiglu(slice(in[0], -1, 0, n), slice(in[0], -1, n, 2 * n));
  });
}

namespace {

/// Returns k or v with a head for each head of q.
Tensor for_each_head(const Tensor& x, int64_t heads) {
  const Shape& s = x.shape();
  if (s[1] == heads) return x;
  const Tensor spread = expand(unsqueeze(x, 2), {s[0], s[1], heads / s[1], s[2], s[3]});
  return reshape(spread, {s[0], heads, s[2], s[3]});
}

/// Returns which keys each query sees, [l, s].
Tensor seen_until_itself(int64_t l, int64_t s, Device device) {
  return tril(ones({l, s}, f32, device)) > 0;
}

/// Returns softmax(scale q k^T + mask) v in f32 or wider. A query that sees no key gets 0.
Tensor attention_in_steps(const Tensor& q, const Tensor& k_in, const Tensor& v_in,
                          const Tensor& mask, const AttentionSettings& settings) {
  const int64_t heads = q.size(1);
  const Tensor k = for_each_head(k_in, heads), v = for_each_head(v_in, heads);
  Tensor scores = matmul(q, transpose(k, -2, -1)) * settings.scale, seen;
  if (settings.causal) seen = seen_until_itself(q.size(2), k.size(2), q.device());
  if (mask.defined() && mask.dtype() == boolean) seen = mask;
  if (mask.defined() && mask.dtype() != boolean) {
    const Tensor wide = cast(mask, scores.dtype());
    seen = wide > -std::numeric_limits<double>::infinity();
    scores = scores + where(seen, wide, 0);
  }
  if (seen.defined()) scores = where(seen, scores, facts(scores.dtype()).max * -0.5);
  Tensor weights = softmax(scores, -1);
  if (seen.defined()) weights = where(seen, weights, 0);
  if (settings.dropout > 0)
    weights = apply(Dropout{.p = settings.dropout, .key = settings.key}, contiguous(weights));
  return matmul(weights, v);
}

}  // namespace

Gradients Attention::recorded_backward(const Tensor& dy, const History& history) const {
  return history.through(dy, {q, k, v}, [this](const std::vector<Tensor>& in) {
    return attention_in_steps(widened(in[0]), widened(in[1]), widened(in[2]), mask, settings);
  });
}

Gradients PackedAttention::recorded_backward(const Tensor& dy, const History& history) const {
  return history.through(dy, {qkv}, [this](const std::vector<Tensor>& in) {
    const int64_t n = qkv.size(0), l = qkv.size(1), width = qkv.size(2) / 3;
    const Tensor parts =
        permute(reshape(widened(in[0]), {n, l, 3, heads, width / heads}), {2, 0, 3, 1, 4});
    const Tensor y = attention_in_steps(select(parts, 0, 0), select(parts, 0, 1),
                                        select(parts, 0, 2), inner.mask, settings);
    return reshape(transpose(y, 1, 2), {n, l, width});
  });
}

// Norms. A bias is not saved: the gradients do not depend on its values.

namespace {

/// Returns x times a weight and plus a bias, if there are any, which are reshaped to `shape`.
Tensor scaled(Tensor x, const Tensor& weight, const Tensor& bias, const Shape& shape) {
  if (weight.defined()) x = x * cast(reshape(weight, shape), x.dtype());
  return bias.defined() ? x + cast(reshape(bias, shape), x.dtype()) : x;
}

/// Returns x minus its mean, over its standard deviation.
Tensor normalized_over(const Tensor& x, const Dims& dims, double eps) {
  const Tensor from_mean = x - mean(x, dims, true);
  return from_mean * rsqrt(mean(from_mean * from_mean, dims, true) + eps);
}

/// Returns the inputs of a norm: x, weight, and a stand-in for the bias if it wants a gradient.
std::vector<Tensor> inputs_of_norm(const Tensor& x, const Tensor& weight, const History& history) {
  return {x, weight, history.stand_in(2, x.device())};
}

}  // namespace

Gradients LayerNorm::recorded_backward(const Tensor& dy, const History& history) const {
  return history.through(
      dy, inputs_of_norm(x, weight, history), [this](const std::vector<Tensor>& in) {
        return scaled(normalized_over(widened(in[0]), {1}, eps), in[1], in[2], {x.size(1)});
      });
}

Gradients RmsNorm::recorded_backward(const Tensor& dy, const History& history) const {
  return history.through(dy, {x, weight}, [this](const std::vector<Tensor>& in) {
    const Tensor wide = widened(in[0]);
    const Tensor y = wide * rsqrt(mean(wide * wide, {1}, true) + eps);
    return scaled(y, in[1], {}, {x.size(1)});
  });
}

Gradients AddBeforeNorm::recorded_backward(const Tensor& dy, const History& history) const {
  return {history.wants(0) ? cast(dy, history.dtype(0)) : Tensor{},
          history.wants(1) ? cast(dy, history.dtype(1)) : Tensor{}};
}

Gradients GroupNorm::recorded_backward(const Tensor& dy, const History& history) const {
  return history.through(dy, inputs_of_norm(x, weight, history),
                         [this](const std::vector<Tensor>& in) {
                           const int64_t channels = x.size(1);
                           const Shape of_groups{x.size(0), groups, channels / groups * x.size(2)};
                           const Tensor rows = reshape(widened(in[0]), of_groups);
                           const Tensor y = reshape(normalized_over(rows, {2}, eps), x.shape());
                           return scaled(y, in[1], in[2], {channels, 1});
                         });
}

Gradients InstanceNorm::recorded_backward(const Tensor& dy, const History& history) const {
  return norm.recorded_backward(dy, history);
}

Gradients BatchNorm::recorded_backward(const Tensor& dy, const History& history) const {
  return history.through(
      dy, inputs_of_norm(x, weight, history), [this](const std::vector<Tensor>& in) {
        const Dims dims = x.rank() == 4 ? Dims{0, 2, 3} : Dims{0};
        const Shape shape = x.rank() == 4 ? Shape{x.size(1), 1, 1} : Shape{x.size(1)};
        const Tensor wide = widened(in[0]);
        if (batch_statistics)
          return scaled(normalized_over(wide, dims, options.eps), in[1], in[2], shape);
        const Tensor from_mean = wide - reshape(mean, shape);
        return scaled(from_mean * reshape(rsqrt(variance + options.eps), shape), in[1], in[2],
                      shape);
      });
}

Gradients BatchNormRelu::recorded_backward(const Tensor& dy, const History& history) const {
  const Tensor zero = scalar(0, y.dtype(), y.device());
  const Tensor passed = where(less_equal(y, zero), scalar(0, dy.dtype(), dy.device()), dy);
  Gradients gradients = norm.recorded_backward(passed, history);
  if (history.wants(3)) gradients[3] = passed;
  return gradients;
}

// Losses of classes.

namespace {
/// Returns the losses of rows, reduced; the divisor of a mean is a constant.
Tensor reduced_rows(const Tensor& losses, const Tensor& total, LossReduction reduction) {
  if (reduction == LossReduction::none) return losses;
  return reduction == LossReduction::mean ? sum(losses) / total : sum(losses);
}
}  // namespace

Gradients CrossEntropy::recorded_backward(const Tensor& dy, const History& history) const {
  return history.through(dy, {logits}, [this](const std::vector<Tensor>& in) {
    const Tensor wide = widened(in[0]), losses = neg(log_softmax(wide, 1));
    const int64_t rows = logits.size(0), classes = logits.size(1);
    const Tensor weight =
        options.weight.defined() ? options.weight : ones({classes}, wide.dtype(), wide.device());
    const Tensor kept = targets != Number(options.ignore_index);
    const Tensor target = reshape(where(kept, targets, 0), {rows, 1});
    const Tensor of_target = reshape(gather(losses * weight, 1, target), {rows});
    const double smoothing = options.label_smoothing;
    Tensor all = of_target * (1 - smoothing);
    if (smoothing > 0) all = all + sum(losses * weight, {1}) * (smoothing / double(classes));
    return reduced_rows(where(kept, all, 0), total, options.reduction);
  });
}

Gradients NllLoss::recorded_backward(const Tensor& dy, const History& history) const {
  const Tensor like = cast(chosen, dtype);  // the loss is linear: the values do not matter
  return history.through(dy, {like}, [this](const std::vector<Tensor>& in) {
    const Tensor logs = sum(where(chosen, widened(in[0]), 0), {1});
    return reduced_rows(logs * row_weights * -1.0, total, options.reduction);
  });
}

}  // namespace halftone
