// Softmax and its logarithm along one dimension, and the log of the sum of exponentials. Computed
// in f32 or wider with the row maximum subtracted, so no input overflows.
#pragma once

#include <halftone/autograd/ops/reduce.h>

namespace halftone {

/// y_i = exp(x_i) / sum_j exp(x_j) along the last dimension;  dx = y (dy - sum(y dy)).
struct Softmax {
  static constexpr OpInfo info{"softmax", CastClass::full_precision, cast_reason::exp_inside};
  bool f32_result = false;
  Tensor y{};
  DType from{};

  Tensor forward(const Tensor& x) {
    check::floating("softmax", x);
    from = x.dtype();
    y = empty(x.shape(), f32_result ? f32 : from, x.device());
    backend_for(x).softmax(views::contiguous(x), false, y);
    return y;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    Tensor dx = empty_like(y, from);
    backend_for(y).softmax_backward(y, views::contiguous(dy), false, dx);
    return {dx};
  }
};

/// y_i = x_i - log sum_j exp(x_j) along the last dimension;  dx = dy - exp(y) sum(dy).
struct LogSoftmax {
  static constexpr OpInfo info{"log_softmax", CastClass::full_precision, cast_reason::exp_inside};
  bool f32_result = false;
  Tensor y{};
  DType from{};

  Tensor forward(const Tensor& x) {
    check::floating("log_softmax", x);
    from = x.dtype();
    y = empty(x.shape(), f32_result ? f32 : from, x.device());
    backend_for(x).softmax(views::contiguous(x), true, y);
    return y;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    Tensor dx = empty_like(y, from);
    backend_for(y).softmax_backward(y, views::contiguous(dy), true, dx);
    return {dx};
  }
};

/// y = log sum_j exp(x_j) along the last dimension, which is removed;  dx = softmax(x) dy, and 0 if
/// all of x are -inf.
struct LogSumExp {
  static constexpr OpInfo info{"logsumexp", CastClass::full_precision, cast_reason::exp_inside};
  bool f32_result = false;
  Tensor x{}, y{};

  Tensor forward(const Tensor& in) {
    check::floating("logsumexp", in);
    x = views::contiguous(in);
    Shape shape = x.shape();
    shape.erase(x.rank() - 1);
    y = empty(shape, f32_result ? f32 : x.dtype(), x.device());
    backend_for(x).log_sum_exp(x, y);
    return y;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const;
};

inline Tensor softmax(const Tensor& x, int dim) { return detail::along_dim(Softmax{}, x, dim); }
inline Tensor log_softmax(const Tensor& x, int dim) {
  return detail::along_dim(LogSoftmax{}, x, dim);
}
/// Reduces one dimension, several, or all (if `dims` is empty).
inline Tensor logsumexp(const Tensor& x, const Dims& dims, bool keep = false) {
  check::defined("logsumexp", "the input", x);
  const ReduceDims over{dims, keep};
  const Shape result = over.result_shape("logsumexp", x.shape());
  if (x.rank() == 0) return x;
  const Dims reduced = dims.empty() ? Dims::filled(x.rank(), 1) : over.named("logsumexp", x.rank());
  Dims order, last;
  Shape rows;
  for (int i = 0; i < x.rank(); ++i) {
    (reduced[i] ? last : order).push_back(i);
    if (!reduced[i]) rows.push_back(x.shape()[i]);
  }
  int64_t count = 1;
  for (const int64_t i : last) order.push_back(i), count *= x.shape()[int(i)];
  rows.push_back(count);
  return reshape(apply(LogSumExp{}, reshape(permute(x, order), rows)), result);
}
inline Tensor logsumexp(const Tensor& x, int dim, bool keep = false) {
  return logsumexp(x, Dims{dim}, keep);
}

}  // namespace halftone
