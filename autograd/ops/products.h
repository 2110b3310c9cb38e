// Functions of vectors that are composed of norms and products.
#pragma once

#include <halftone/autograd/ops/dot.h>

namespace halftone {

/// Returns the matrix of all products of two vectors' elements. As torch.outer.
inline Tensor outer(const Tensor& a, const Tensor& b) {
  check::rank("outer", "a", a, 1);
  check::rank("outer", "b", b, 1);
  return unsqueeze(a, 1) * b;
}
/// Returns x over its norm of order p along a dimension, or over eps if that is larger. As
/// torch.nn.functional.normalize.
inline Tensor normalize(const Tensor& x, double p = 2, int dim = 1, double eps = 1e-12) {
  check::floating("normalize", x);
  const Dims dims{normalize_dim("normalize", dim, x.rank())};
  return x / clamp(vector_norm(x, p, dims, true), eps);
}
/// Returns the norm of order p of a - b + eps over the last dimension. As
/// torch.nn.functional.pairwise_distance.
inline Tensor pairwise_distance(const Tensor& a, const Tensor& b, double p = 2, double eps = 1e-6,
                                bool keep = false) {
  check::floating("pairwise_distance", a);
  check::floating("pairwise_distance", b);
  if (a.rank() == 0 && b.rank() == 0)
    fail<ShapeError>("pairwise_distance", "both inputs are scalars. Reshape them to [1].");
  return vector_norm(a - b + eps, p, {-1}, keep);
}

}  // namespace halftone
