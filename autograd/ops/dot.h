// Products of vectors, operations of their own because casting policies name them. Composed of
// others, dot would return a sum's f32, cosine_similarity would multiply in short floats.
#pragma once

#include <halftone/autograd/ops/matmul.h>

namespace halftone {

/// sum_i a[i] b[i] of two vectors, accumulated in f32 or wider.
struct Dot {
  static constexpr OpInfo info{"dot", CastClass::widest_input, cast_reason::several_inputs};
  Tensor a{}, b{};
  Needs<2> needs{};

  Tensor forward(const Tensor& a_in, const Tensor& b_in) {
    check::rank("dot", "a", a_in, 1);
    check::rank("dot", "b", b_in, 1);
    check::floating("dot", a_in);
    check::floating("dot", b_in);
    check::same_dtype("dot", a_in, b_in);
    a = views::contiguous(a_in), b = views::contiguous(b_in);
    const int64_t n = a.numel();
    if (b.numel() != n)
      fail<ShapeError>("dot", "a is ", described(a), ", b is ", described(b),
                       ". They must have the same number of elements.");
    const Tensor row = detail::as_shape(a, {1, n}), column = detail::as_shape(b, {n, 1});
    return detail::as_shape(Matmul::product(row, column, a.dtype()), {});
  }
  std::array<Tensor, 2> backward(const Tensor& dy) const {
    return {needs[0] ? b * dy : Tensor{}, needs[1] ? a * dy : Tensor{}};
  }
};

/// a . b / (max(|a|, eps) max(|b|, eps)) along one dimension, in f32 or wider. A norm below eps is
/// a constant also for the gradient, whereas PyTorch differentiates the norm as if it were not
/// bounded.
struct CosineSimilarity {
  static constexpr OpInfo info{"cosine_similarity", CastClass::full_precision,
                               cast_reason::deviations};
  int dim;
  double eps;
  bool f32_result = false;
  Tensor a{}, b{}, a_norm{}, b_norm{}, y{};  // in f32 or wider; norms and y keep a size of 1
  DType from{};
  Needs<2> needs{};

  Tensor forward(const Tensor& a_in, const Tensor& b_in) {
    check::floating("cosine_similarity", a_in);
    check::floating("cosine_similarity", b_in);
    check::same_dtype("cosine_similarity", a_in, b_in);
    from = a_in.dtype();
    const DType wide = from == f64 ? f64 : f32;
    a = cast(views::contiguous(a_in), wide), b = cast(views::contiguous(b_in), wide);
    a_norm = norm(a, {dim}, true), b_norm = norm(b, {dim}, true);
    const double largest = facts(wide).max;
    y = sum((a / clamp(a_norm, eps, largest)) * (b / clamp(b_norm, eps, largest)), {dim}, true);
    Shape shape = y.shape();
    shape.erase(normalize_dim("cosine_similarity", dim, y.rank()));
    return detail::as_shape(cast(y, f32_result ? f32 : from), shape);
  }
  std::array<Tensor, 2> backward(const Tensor& dy_in) const {
    const Tensor dy = cast(detail::keeping(dy_in, y.shape()), y.dtype());
    return {needs[0] ? gradient(dy, a, a_norm, b, b_norm) : Tensor{},
            needs[1] ? gradient(dy, b, b_norm, a, a_norm) : Tensor{}};
  }
  /// the gradient of x, given z: (z / |z| - y x / |x|) / |x|
  Tensor gradient(const Tensor& dy, const Tensor& x, const Tensor& x_norm, const Tensor& z,
                  const Tensor& z_norm) const {
    const double largest = facts(y.dtype()).max;
    const Tensor x_size = clamp(x_norm, eps, largest), z_size = clamp(z_norm, eps, largest);
    const Tensor moves = cast(greater_equal(x_norm, scalar(eps, y.dtype(), y.device())), y.dtype());
    return cast(dy * (z / z_size - y * moves * (x / x_size)) / x_size, from);
  }
};

/// As torch.dot: two vectors of one size; dtypes are promoted.
inline Tensor dot(const Tensor& a, const Tensor& b) { return detail::apply_promoted(Dot{}, a, b); }

/// As torch.nn.functional.cosine_similarity: inputs broadcast, dtypes are promoted, `dim` counts in
/// the common shape and disappears.
inline Tensor cosine_similarity(const Tensor& a, const Tensor& b, int dim = 1, double eps = 1e-8) {
  check::defined("cosine_similarity", "an input", a);
  check::defined("cosine_similarity", "an input", b);
  Shape shape = broadcast_shapes("cosine_similarity", a.shape(), b.shape());
  if (shape.rank() == 0) shape.push_back(1);  // two numbers are vectors of one element
  normalize_dim("cosine_similarity", dim, shape.rank());
  if (!(eps > 0)) fail<UsageError>("cosine_similarity", "eps is ", eps, ". It must be positive.");
  return detail::apply_promoted(CosineSimilarity{.dim = dim, .eps = eps}, expand(a, shape),
                                expand(b, shape));
}

}  // namespace halftone
