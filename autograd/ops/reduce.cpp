// Composed reductions: variance, norm, and the gradients of products, extremes and logsumexp.
// Between the roundings of their input and of their result everything is f32 or wider.
#include <halftone/autograd/ops/logical.h>
#include <halftone/autograd/ops/sequences.h>

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
  // Adds the mean of the residuals of the rounded mean: for equal elements the mean is then one of
  // them, and the variance 0.
  const Tensor rounded = detail::reduce_keeping("var", Reduction::mean, wide, over);
  mean = rounded + detail::reduce_keeping("var", Reduction::mean, wide - rounded, over);
  const Tensor squares =
      detail::reduce_keeping("var", Reduction::sum_of_squares, wide - mean, over, f64);
  return detail::as_shape(cast(squares * (1 / divisor()), f64_result ? f64 : x.dtype()),
                          over.result_shape("var", x.shape()));
}

std::array<Tensor, 1> Var::backward(const Tensor& dy) const {
  const DType wide = f64_result ? f64 : mean.dtype();
  const Tensor seed = detail::keeping(cast(dy, wide), mean.shape()) * (2 / divisor());
  return {cast(cast(cast(x, mean.dtype()) - mean, wide) * seed, x.dtype())};
}

namespace {
/// Returns whether x has enough rows, each with one extremum, for the threads of a device.
bool reduces_rows(const Tensor& x, const Shape& kept) {
  constexpr int64_t enough = 32;
  int dim = 0;
  while (dim < x.rank() && kept[dim] == x.size(dim)) ++dim;
  while (dim < x.rank() && kept[dim] == 1) ++dim;
  return dim == x.rank() && numel_of(kept) >= enough && x.is_contiguous();
}
}  // namespace

Tensor detail::extremum_backward(const Tensor& x, const Tensor& extremum, const Tensor& dy) {
  if (reduces_rows(x, extremum.shape())) {
    Tensor dx = empty(x.shape(), x.dtype(), x.device());
    backend_for(x).extremum_backward(x, extremum, views::contiguous(dy), dx);
    return dx;
  }
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

/// With a zero in x, the product of the other elements; else the result over the element, which is
/// NaN at an infinite one. As PyTorch's.
std::array<Tensor, 1> Prod::backward(const Tensor& dy) const {
  const auto product = [&](const Tensor& of) {
    return detail::reduce_keeping("prod", Reduction::prod, of, over);
  };
  const Tensor wide = cast(x, wide_dtype(x.dtype())), zero = number(0, wide), one = number(1, wide);
  const Tensor is_zero = equal(wide, zero), is_infinite = isinf(wide), is_nan = isnan(wide);
  const Tensor filled =
      where(logical_or(is_zero, is_nan), one, where(is_infinite, sign(wide), wide));
  /// Returns `others` times `factor` if another element is marked, else `others`.
  const auto times = [&](const Tensor& others, const Tensor& marked, double factor) {
    const Tensor mark = cast(marked, wide.dtype());
    const Tensor count = detail::reduce_keeping("prod", Reduction::sum, mark, over) - mark;
    return where(equal(count, zero), others, others * factor);
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Tensor others = times(product(filled) / filled, is_infinite, infinity);
  others = times(times(others, is_nan, std::numeric_limits<double>::quiet_NaN()), is_zero, 0);
  const Tensor any_zero = detail::reduce_keeping("prod", Reduction::max, is_zero, {}, boolean);
  const Tensor total = product(wide);
  const Tensor seed = detail::keeping(cast(dy, wide.dtype()), total.shape());
  return {cast(where(any_zero, others, total / wide) * seed, x.dtype())};
}

namespace {
Tensor norm_of(const Tensor& x, double p, const ReduceDims& over) {
  const auto reduced = [&](Reduction kind, const Tensor& of) {
    return detail::reduce_keeping("norm", kind, of, over, of.dtype());
  };
  const DType wide = wide_dtype(x.dtype());
  if (p == 2)
    return cast(sqrt(detail::reduce_keeping("norm", Reduction::sum_of_squares, x, over, f64)),
                wide);
  if (p < 0 || std::isinf(p)) detail::require_elements("norm", x, over);
  const Tensor size = abs(cast(x, wide));
  if (std::isinf(p)) return reduced(p > 0 ? Reduction::max : Reduction::min, size);
  if (p == 0) return reduced(Reduction::sum, cast(not_equal(size, number(0, size)), wide));
  if (p == 1) return reduced(Reduction::sum, size);
  return cast(pow(reduced(Reduction::sum, pow(cast(size, f64), p)), 1 / p), wide);
}
}  // namespace

Tensor Norm::forward(const Tensor& in) {
  check::floating("norm", in);
  if (std::isnan(p)) fail<UsageError>("norm", "the order p is NaN. Use a number or an infinity.");
  x = in, y = norm_of(x, p, over);
  return detail::as_shape(cast(y, f32_result ? f32 : x.dtype()),
                          over.result_shape("norm", x.shape()));
}

std::array<Tensor, 1> Norm::backward(const Tensor& dy) const {
  const Tensor seed = detail::keeping(cast(dy, y.dtype()), y.shape());
  const Tensor wide = cast(x, y.dtype()), zero = number(0, y), is_zero = equal(y, zero);
  if (p == 0) return {zeros_like(x)};
  if (p == 1) return {cast(sign(wide) * seed, x.dtype())};
  if (std::isinf(p)) {  // equal parts to all elements with the extreme value
    const Tensor attains = equal(abs(wide), y);
    const Tensor count = reduce_to(cast(attains, y.dtype()), y.shape());
    return {cast(where(attains, sign(wide) * (seed / count), number(0, wide)), x.dtype())};
  }
  const Tensor share = wide / where(is_zero, number(1, y), y);
  Tensor slope = p == 2 ? share : sign(wide) * pow(abs(share), p - 1);
  if (p < 1) slope = where(equal(wide, number(0, wide)), number(0, wide), slope);
  return {cast(slope * where(is_zero, zero, seed), x.dtype())};
}

std::array<Tensor, 1> LogSumExp::backward(const Tensor& dy) const {
  Tensor probabilities = empty_like(x, wide_dtype(x.dtype()));
  backend_for(x).softmax(x, false, probabilities);
  Shape kept = dy.shape();
  kept.push_back(1);
  // If an element is +inf, finite elements have no share: softmax gives NaN for the whole row.
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

// Reductions that are made of others, on no casting list of PyTorch: they run in their input's
// dtype also under autocast, and round once.

Tensor nansum(const Tensor& x, const Dims& dims, bool keep) {
  check::numbers_or_bool("nansum", x);
  const CasterScope no_cast(nullptr);
  return sum(is_floating(x.dtype()) ? where(isnan(x.detach()), 0, x) : x, dims, keep);
}

Tensor nanmean(const Tensor& x, const Dims& dims, bool keep) {
  check::floating("nanmean", x);
  const CasterScope no_cast(nullptr);
  const Tensor wide = cast(x, wide_dtype(x.dtype()));
  const Tensor count = sum(logical_not(isnan(wide.detach())), dims, keep);
  return cast(nansum(wide, dims, keep) / count, x.dtype());
}

Tensor count_nonzero(const Tensor& x, const Dims& dims, bool keep) {
  check::numbers_or_bool("count_nonzero", x);
  return sum(x.detach() != 0, dims, keep);
}

std::pair<Tensor, Tensor> var_mean(const Tensor& x, const Dims& dims, double correction,
                                   bool keep) {
  return {var(x, dims, correction, keep), mean(x, dims, keep)};
}
std::pair<Tensor, Tensor> std_mean(const Tensor& x, const Dims& dims, double correction,
                                   bool keep) {
  return {std(x, dims, correction, keep), mean(x, dims, keep)};
}

/// Each pass adds to each place the sum that ends as many places before as it has terms: twice as
/// many terms with each pass.
Tensor logcumsumexp(const Tensor& x, int dim) {
  check::floating("logcumsumexp", x);
  const int d = normalize_dim("logcumsumexp", dim, x.rank());
  if (x.rank() == 0) return x;
  const CasterScope no_cast(nullptr);
  Tensor sums = cast(x, wide_dtype(x.dtype()));
  const int64_t n = x.size(d);
  for (int64_t terms = 1; terms < n; terms *= 2) {
    const Tensor before = slice(sums, d, 0, n - terms), here = slice(sums, d, terms, n);
    sums = cat({slice(sums, d, 0, terms), logsumexp(stack({before, here}, -1), -1)}, d);
  }
  return cast(sums, x.dtype());
}

Tensor isclose(const Tensor& a, const Tensor& b, const Closeness& options) {
  check::numbers_or_bool("isclose", a);
  check::numbers_or_bool("isclose", b);
  check::same_dtype("isclose", a, b);
  for (const auto& [name, value] : {std::pair{"rtol", options.rtol}, {"atol", options.atol}})
    if (!(value >= 0)) fail<UsageError>("isclose", name, " is ", value, ". Use 0 or more.");
  const NoGrad no_grad;
  const CasterScope no_cast(nullptr);
  Tensor close = a == b;
  if (options.equal_nan) close = logical_or(close, logical_and(isnan(a), isnan(b)));
  if (options.rtol == 0 && options.atol == 0) return close;
  const DType dtype = is_floating(a.dtype()) ? a.dtype() : f32;
  const Tensor x = cast(a, dtype), y = cast(b, dtype), error = abs(x - y);
  const Tensor allowed = abs(y * options.rtol) + options.atol;
  return logical_or(close, logical_and(isfinite(error), error <= allowed));
}

bool allclose(const Tensor& a, const Tensor& b, const Closeness& options) {
  return all(isclose(a, b, options)).item() != 0;
}

}  // namespace halftone
