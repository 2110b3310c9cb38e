// Shapes, indices and reductions under create_graph: each gradient is stated in operations.
#include <cmath>

#include <halftone/autograd/history.h>
#include <halftone/autograd/ops/index.h>
#include <halftone/autograd/ops/logical.h>
#include <halftone/autograd/ops/matmul.h>
#include <halftone/autograd/ops/reduce.h>
#include <halftone/autograd/ops/shape.h>

namespace halftone {

Gradients Reshape::recorded_backward(const Tensor& dy, const History&) const {
  return {reshape(dy, from)};
}

Gradients Permute::recorded_backward(const Tensor& dy, const History&) const {
  Dims inverse = order;
  for (int i = 0; i < order.rank(); ++i) inverse[int(order[i])] = i;
  return {permute(dy, inverse)};
}

Gradients Expand::recorded_backward(const Tensor& dy, const History&) const {
  return {detail::sum_to(dy, from)};
}

Gradients Slice::recorded_backward(const Tensor& dy, const History&) const {
  return {detail::adjoint_of(*this, dy)};
}

Gradients Cat::recorded_backward(const Tensor& dy, const History& history) const {
  Gradients parts = history.none();
  int64_t start = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (history.wants(i)) parts[i] = slice(dy, dim, start, start + sizes[i]);
    start += sizes[i];
  }
  return parts;
}

Gradients Pad::recorded_backward(const Tensor& dy, const History&) const {
  Tensor inner = dy;
  for (int i = 0; i < from.rank(); ++i)
    if (from[i] != dy.shape()[i]) inner = slice(inner, i, before[i], before[i] + from[i]);
  return {inner};
}

Gradients Contiguous::recorded_backward(const Tensor& dy, const History&) const { return {dy}; }

Gradients Flip::recorded_backward(const Tensor& dy, const History&) const {
  return {flip(dy, dims)};
}

// By index.

Gradients Gather::recorded_backward(const Tensor& dy, const History&) const {
  const auto of_elements = [op = *this](const Tensor& g) { return op.backward(g)[0]; };
  const auto elements_of = [op = *this](const Tensor& x) {
    return Gather{.dim = op.dim}.forward(x, op.index);
  };
  return {detail::linear_map(dy, of_elements, elements_of), Tensor{}};
}

Gradients ScatterAdd::recorded_backward(const Tensor& dy, const History& history) const {
  Gradients gradients(3);
  if (history.wants(0)) gradients[0] = dy;
  if (!history.wants(2)) return gradients;
  const auto of_sums = [op = *this](const Tensor& g) { return op.backward(g)[2]; };
  const auto sums_of = [op = *this, shape = dy.shape()](const Tensor& source) {
    const Tensor zero = zeros(shape, source.dtype(), source.device());
    return ScatterAdd{.dim = op.dim}.forward(zero, op.index, source);
  };
  gradients[2] = detail::linear_map(dy, of_sums, sums_of);
  return gradients;
}

Gradients Embedding::recorded_backward(const Tensor& dy, const History&) const {
  const auto table_of = [op = *this](const Tensor& rows) { return op.backward(rows)[0]; };
  const auto rows_of = [op = *this](const Tensor& table) {
    const Tensor rows = Embedding{.padding_index = op.padding_index}.forward(table, op.indices);
    const Tensor padding = op.indices == Number(op.padding_index);
    return where(unsqueeze(padding, -1), scalar(0, rows.dtype(), rows.device()), rows);
  };
  return {detail::linear_map(dy, table_of, rows_of), Tensor{}};
}

// Reductions. The linear ones are stated, the others are differentiated through operations.

namespace {

/// Returns x with the reduced dimensions last, as one: [.., n].
Tensor with_reduced_last(std::string_view op, const Tensor& x, const ReduceDims& over) {
  const Dims reduced = over.dims.empty() ? Dims::filled(x.rank(), 1) : over.named(op, x.rank());
  Dims order, last;
  Shape shape;
  int64_t count = 1;
  for (int i = 0; i < x.rank(); ++i) {
    (reduced[i] ? last : order).push_back(i);
    if (reduced[i]) count *= x.shape()[i];
    else shape.push_back(x.shape()[i]);
  }
  for (const int64_t i : last) order.push_back(i);
  shape.push_back(count);
  return reshape(permute(x, order), shape);
}

/// Returns dx of a reduction that takes a constant share of each element.
Tensor by_share(const Tensor& dy, const Shape& kept, const Tensor& share, const Tensor& x) {
  const Tensor wide = cast(reshape(dy, kept), share.dtype());
  return cast(expand(wide, x.shape()) * share, x.dtype());
}
Tensor share_of_extremum(const Tensor& x, const Tensor& extremum) {
  const NoGrad no_grad;
  const DType wide = statistics_dtype(x);
  const Tensor y = cast(extremum, wide);
  return detail::extremum_backward(cast(x, wide), y, ones_like(y));
}
}  // namespace

Gradients Sum::recorded_backward(const Tensor& dy, const History&) const {
  return {expand(reshape(cast(dy, dtype), over.kept_shape("sum", from)), from)};
}

Gradients Mean::recorded_backward(const Tensor& dy, const History&) const {
  const double count = double(numel_of(from)) / double(std::max<int64_t>(dy.numel(), 1));
  return {expand(reshape(dy * (1 / count), over.kept_shape("mean", from)), from)};
}

Gradients Var::recorded_backward(const Tensor& dy, const History& history) const {
  return history.through(dy, {x}, [this](const std::vector<Tensor>& in) {
    const Tensor wide = cast(in[0], f64_result ? f64 : mean.dtype());
    const Tensor from_mean = wide - halftone::mean(wide, over.dims, true);
    return sum(from_mean * from_mean, over.dims, true) * (1 / divisor());
  });
}

Gradients Max::recorded_backward(const Tensor& dy, const History&) const {
  return {by_share(dy, y.shape(), share_of_extremum(x, y), x)};
}
Gradients Min::recorded_backward(const Tensor& dy, const History&) const {
  return {by_share(dy, y.shape(), share_of_extremum(x, y), x)};
}

/// Multiplies pairs of halves, so that no gradient divides.
Gradients Prod::recorded_backward(const Tensor& dy, const History& history) const {
  return history.through(dy, {x}, [this](const std::vector<Tensor>& in) {
    Tensor y = with_reduced_last("prod", cast(in[0], statistics_dtype(x)), over);
    while (y.size(-1) > 1) {
      const int64_t count = y.size(-1), half = count / 2;
      const Tensor pairs = slice(y, -1, 0, half) * slice(y, -1, half, 2 * half);
      y = count % 2 == 0 ? pairs : cat({pairs, slice(y, -1, count - 1, count)}, -1);
    }
    if (y.size(-1) == 1) return y;
    return ones(over.kept_shape("prod", x.shape()), y.dtype(), y.device());  // of no elements
  });
}

namespace {
/// Returns the norm in f64, whose gradient is 0 at 0.
Tensor norm_in_steps(const Tensor& x, double p, const ReduceDims& over) {
  if (std::isinf(p)) {
    const Tensor size = abs(x);
    return p > 0 ? max(size, over.dims, true) : min(size, over.dims, true);
  }
  if (p == 1) return sum(abs(x), over.dims, true);
  const Tensor wide = cast(x, f64), is_zero = wide.detach() == 0;
  const Tensor powers =
      p == 2 ? wide * wide
             : where(is_zero, p > 0 ? 0 : INFINITY, pow(abs(where(is_zero, 1, wide)), p));
  const Tensor total = sum(powers, over.dims, true);
  const Tensor no_power = logical_or(total.detach() == 0, isinf(total.detach()));
  return where(no_power, 0, pow(where(no_power, 1, total), 1 / p));
}
}  // namespace

Gradients Norm::recorded_backward(const Tensor& dy, const History& history) const {
  if (p == 0) return {zeros_like(x)};
  return history.through(dy, {x}, [this](const std::vector<Tensor>& in) {
    return norm_in_steps(cast(in[0], y.dtype()), p, over);
  });
}

Gradients CumulativeSum::recorded_backward(const Tensor& dy, const History&) const {
  const Tensor backwards = flip(dy, {-1});
  return {cast(flip(cumsum(backwards, -1), {-1}), from)};
}

/// Multiplies by the product of the elements before, of which twice as many are known in each turn.
Gradients CumulativeProduct::recorded_backward(const Tensor& dy, const History& history) const {
  return history.through(dy, {x}, [this](const std::vector<Tensor>& in) {
    Tensor y = cast(in[0], statistics_dtype(x));
    for (int64_t known = 1; known < y.size(-1); known *= 2)
      y = y * pad(slice(y, -1, 0, y.size(-1) - known), {known, 0}, 1);
    return y;
  });
}

}  // namespace halftone
