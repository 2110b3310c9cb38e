// Linear algebra of matrices and batches of matrices, as torch.linalg. Eigen computes it, in f64 on
// the CPU and in one thread, so that every machine has the same bits; results are rounded once to
// the dtype of the input. For a tensor on a GPU the host waits.
#pragma once

#include <array>
#include <string_view>

#include <halftone/autograd/apply.h>
#include <halftone/autograd/history.h>
#include <halftone/core/op_info.h>

namespace halftone {

namespace cast_reason {
inline constexpr Text cancels =
    "differences of products cancel: an error grows with the condition of the matrix";
}

struct Inverse {
  static constexpr OpInfo info{"inv", CastClass::full_precision, cast_reason::cancels};
  Tensor y{};  // in f32 or wider, as all that these operations save
  DType from{};

  Tensor forward(const Tensor& a);
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {gradient(y, dy)}; }
  Gradients recorded_backward(const Tensor& dy, const History& history) const {
    return {gradient(history.output(y), dy)};
  }
  Tensor gradient(const Tensor& inverse, const Tensor& dy) const;
};

/// x with a x = b, for a [..., n, n] and b [..., n, k] with the same leading dimensions.
struct Solve {
  static constexpr OpInfo info{"solve", CastClass::full_precision, cast_reason::cancels};
  Tensor a{}, x{};
  DType from{};

  Tensor forward(const Tensor& a_in, const Tensor& b);
  std::array<Tensor, 2> backward(const Tensor& dx) const;
  Gradients recorded_backward(const Tensor& dx, const History& history) const;
};

struct Cholesky {
  static constexpr OpInfo info{"cholesky", CastClass::full_precision, cast_reason::cancels};
  Tensor l{};
  DType from{};

  Tensor forward(const Tensor& a);
  std::array<Tensor, 1> backward(const Tensor& dl) const { return {gradient(l, dl)}; }
  Gradients recorded_backward(const Tensor& dl, const History& history) const {
    return {gradient(history.output(l), dl)};
  }
  Tensor gradient(const Tensor& factor, const Tensor& dl) const;
};

/// Decomposes matrices. The result is one tensor [..., count] with the elements of all factors,
/// because an operation has one result. The functions for users cut it into views.
template <DecompositionKind kind> struct Decomposition {
  static constexpr std::array<std::string_view, 3> names{"qr", "svd", "eigh"};
  static constexpr OpInfo info{names[std::size_t(kind)], CastClass::full_precision,
                               cast_reason::cancels};
  Tensor packed{};
  Shape of{};  // of the matrix
  DType from{};

  Tensor forward(const Tensor& a);
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {gradient(packed, dy)}; }
  Gradients recorded_backward(const Tensor& dy, const History& history) const {
    return {gradient(history.output(packed), dy)};
  }
  Tensor gradient(const Tensor& result, const Tensor& dy) const;
};
template <> Tensor Qr::forward(const Tensor& a);
template <> Tensor Qr::gradient(const Tensor& result, const Tensor& dy) const;
template <> Tensor Svd::forward(const Tensor& a);
template <> Tensor Svd::gradient(const Tensor& result, const Tensor& dy) const;
template <> Tensor Eigh::forward(const Tensor& a);
template <> Tensor Eigh::gradient(const Tensor& result, const Tensor& dy) const;

/// Functions of torch.linalg. Matrices are [..., m, n]. All throw ShapeError for other ranks or if
/// a matrix must be square and is not, and UnsupportedError in a build without Eigen.
namespace linalg {

/// Returns the inverse of a. Throws UsageError, with the place in the batch, for a singular matrix.
Tensor inv(const Tensor& a);
/// Returns x with a x = b: a [..., n, n], b [..., n, k] or vectors [..., n] (b of rank 1, or a's
/// shape without the last dimension). Batches broadcast. Throws UsageError for a singular matrix.
Tensor solve(const Tensor& a, const Tensor& b);
/// Returns the lower triangular l with a = l l^T. Reads the lower triangle of `a`; its gradient is
/// symmetric. Throws UsageError for a matrix that is not positive definite.
Tensor cholesky(const Tensor& a);

struct QrFactors {
  Tensor q, r;  // [..., m, k], [..., k, n], k = min(m, n)
};
/// Returns q and r with a = q r; q has orthonormal columns, r is upper triangular ("reduced").
QrFactors qr(const Tensor& a);
struct SvdFactors {
  Tensor u, s, vh;  // [..., m, k], [..., k], [..., k, n], k = min(m, n)
};
/// Returns u, s and vh with a = u diag(s) vh (full_matrices=False); s is in descending order. The
/// signs of pairs of singular vectors are not unique, and gradients of u and vh are infinite or NaN
/// if singular values are equal. Throws UsageError for elements that are not finite.
SvdFactors svd(const Tensor& a);
struct EighFactors {
  Tensor values, vectors;  // [..., n], ascending; [..., n, n], in columns
};
/// Returns the eigenvalues and eigenvectors of symmetric matrices; reads the lower triangle. As for
/// svd(), signs of vectors are not unique, and gradients of vectors need distinct eigenvalues.
/// Throws UsageError for elements that are not finite.
EighFactors eigh(const Tensor& a);
/// Returns the x of the least |a x - b|, and of these the least |x|: a [..., m, n] of full rank, b
/// [..., m, k]. As torch.linalg.lstsq(a, b).solution. Throws UsageError for a matrix whose factor r
/// is singular.
Tensor lstsq(const Tensor& a, const Tensor& b);

}  // namespace linalg
}  // namespace halftone
