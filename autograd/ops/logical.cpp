// lerp, glu and nan_to_num.
#include <halftone/autograd/ops/logical.h>

namespace halftone {

Tensor lerp(const Tensor& a_in, const Tensor& b_in, const Tensor& weight) {
  check::floating("lerp", a_in);
  check::floating("lerp", b_in);
  check::floating("lerp", weight);
  check::same_dtype("lerp", a_in, b_in);
  check::same_dtype("lerp", a_in, weight);
  const DType dtype = a_in.dtype(), wide = dtype == f64 ? f64 : f32;
  const Tensor a = cast(a_in, wide), b = cast(b_in, wide), w = cast(weight, wide), step = b - a;
  return cast(where(abs(w) < 0.5, a + w * step, b - step * (1 - w)), dtype);
}

Tensor lerp(const Tensor& a_in, const Tensor& b_in, double weight) {
  check::floating("lerp", a_in);
  check::floating("lerp", b_in);
  check::same_dtype("lerp", a_in, b_in);
  const DType dtype = a_in.dtype(), wide = dtype == f64 ? f64 : f32;
  const Tensor a = cast(a_in, wide), b = cast(b_in, wide), step = b - a;
  return cast(std::abs(weight) < 0.5 ? a + step * weight : b - step * (1 - weight), dtype);
}

Tensor glu(const Tensor& x, int dim) {
  check::floating("glu", x);
  const int d = normalize_dim("glu", dim, x.rank());
  const int64_t size = x.rank() == 0 ? 1 : x.shape()[d];
  if (size % 2 != 0)
    fail<ShapeError>("glu", "dimension ", d, " of ", described(x),
                     " has no halves. Its size must be even.");
  return binary(formula::Glu{}, slice(x, d, 0, size / 2), slice(x, d, size / 2, size));
}

Tensor nan_to_num(const Tensor& x, double nan, std::optional<double> posinf,
                  std::optional<double> neginf) {
  check::numbers_or_bool("nan_to_num", x);
  if (!is_floating(x.dtype())) return x;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double largest = facts(x.dtype()).max;
  const Tensor y = where(isnan(x), nan, x);
  return where(x == infinity, posinf.value_or(largest),
               where(x == -infinity, neginf.value_or(-largest), y));
}

}  // namespace halftone
