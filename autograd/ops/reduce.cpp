// Reductions that are composed: variance, norm, and the gradients of products, extremes and
// logsumexp. Between the roundings of their input and of their result everything is f32 or wider.
#include <halftone/autograd/ops/softmax.h>

namespace halftone {

namespace {
DType wide_dtype(DType dtype) { return dtype == f64 ? f64 : f32; }
Tensor number(double value, const Tensor& like) {
  return views::expand(full({}, value, like.dtype(), like.device()), like.shape());
}
}  // namespace

double Var::divisor() const {
  const double count = double(x.numel()) / double(std::max<int64_t>(mean.numel(), 1));
  return std::max(count - correction, 0.0);
}

Tensor Var::forward(const Tensor& in) {
  check::floating("var", in);
  x = in;
  const Tensor wide = cast(x, wide_dtype(x.dtype()));
  // The mean of what the rounded mean leaves is added: of equal elements it is then one of them,
  // and the variance 0.
  const Tensor rounded = detail::reduce_keeping("var", Reduction::mean, wide, over);
  mean = rounded + detail::reduce_keeping("var", Reduction::mean, wide - rounded, over);
  const Tensor squares =
      detail::reduce_keeping("var", Reduction::sum_of_squares, wide - mean, over);
  return detail::as_shape(cast(squares * (1 / divisor()), x.dtype()),
                          over.result_shape("var", x.shape()));
}

std::array<Tensor, 1> Var::backward(const Tensor& dy) const {
  const Tensor seed = detail::keeping(cast(dy, mean.dtype()), mean.shape());
  return {cast((cast(x, mean.dtype()) - mean) * (seed * (2 / divisor())), x.dtype())};
}

Tensor detail::extremum_backward(const Tensor& x, const Tensor& extremum, const Tensor& dy) {
  const Tensor attains = equal(x, extremum);
  const DType wide = wide_dtype(x.dtype());
  const Tensor ties = reduce_to(cast(attains, wide), extremum.shape());
  const Tensor share = cast(keeping(cast(dy, wide), extremum.shape()) / ties, x.dtype());
  // If the extremum is NaN, so is the whole gradient, as in PyTorch.
  const Tensor otherwise =
      where(equal(extremum, extremum), zeros({}, x.dtype(), x.device()),
            full({}, std::numeric_limits<double>::quiet_NaN(), x.dtype(), x.device()));
  return where(attains, share, otherwise);
}

std::array<Tensor, 1> Prod::backward(const Tensor& dy) const {
  const Tensor wide = cast(x, wide_dtype(x.dtype())), zero = number(0, wide);
  const Tensor is_zero = equal(wide, zero), filled = where(is_zero, number(1, wide), wide);
  const Tensor product = detail::reduce_keeping("prod", Reduction::prod, filled, over);
  const Tensor mark = cast(is_zero, wide.dtype());
  const Tensor zeros_elsewhere = detail::reduce_keeping("prod", Reduction::sum, mark, over) - mark;
  const Tensor others = where(equal(zeros_elsewhere, zero), product / filled, zero);
  const Tensor seed = detail::keeping(cast(dy, wide.dtype()), product.shape());
  return {cast(others * seed, x.dtype())};
}

Tensor Norm::forward(const Tensor& in) {
  check::floating("norm", in);
  x = in;
  const Tensor squares = detail::reduce_keeping("norm", Reduction::sum_of_squares, x, over, f64);
  y = cast(sqrt(squares), wide_dtype(x.dtype()));
  return detail::as_shape(cast(y, f32_result ? f32 : x.dtype()),
                          over.result_shape("norm", x.shape()));
}

std::array<Tensor, 1> Norm::backward(const Tensor& dy) const {
  const Tensor zero = number(0, y), is_zero = equal(y, zero);
  const Tensor seed = where(is_zero, zero, detail::keeping(cast(dy, y.dtype()), y.shape()));
  const Tensor direction = cast(x, y.dtype()) / where(is_zero, number(1, y), y);
  return {cast(direction * seed, x.dtype())};
}

std::array<Tensor, 1> LogSumExp::backward(const Tensor& dy) const {
  Tensor probabilities = empty_like(x, wide_dtype(x.dtype()));
  backend_for(x).softmax(x, false, probabilities);
  Shape kept = dy.shape();
  kept.push_back(1);
  // Beside +inf a finite element has no share: softmax says NaN of the whole row.
  const Tensor largest = full({}, std::numeric_limits<double>::infinity(), y.dtype(), y.device());
  const Tensor no_share = where(views::reshaped(equal(y, largest), kept),
                                less(x, cast(largest, x.dtype())), zeros({}, boolean, x.device()));
  probabilities = where(no_share, zeros({}, probabilities.dtype(), x.device()), probabilities);
  const Tensor dx = probabilities * views::reshaped(cast(dy, probabilities.dtype()), kept);
  const double lowest = -std::numeric_limits<double>::infinity();
  const Tensor empty_rows = equal(y, full({}, lowest, y.dtype(), y.device()));
  return {where(views::reshaped(empty_rows, kept), zeros({}, x.dtype(), x.device()),
                cast(dx, x.dtype()))};
}

}  // namespace halftone
