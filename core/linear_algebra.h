// Linear algebra of single matrices of f64, row-major, on the host. backends/linear_algebra.cpp
// defines it with Eigen, in one thread: every machine has the same bits. `place`: the matrix's
// number in its batch, for errors. Sizes are 1 or more.
#pragma once

#include <cstdint>

namespace halftone::linear_algebra {

// All throw UnsupportedError in a build without Eigen.

/// y [n, n] = a^-1. Throws UsageError for a singular matrix.
void invert(const double* a, int64_t n, double* y, int64_t place);
/// x [n, k] with a x = b. Throws UsageError for a singular matrix.
void solve(const double* a, const double* b, int64_t n, int64_t k, double* x, int64_t place);
/// The lower triangular l [n, n] with a = l l^T, from the lower triangle of `a`. Throws UsageError
/// for a matrix that is not positive definite.
void cholesky(const double* a, int64_t n, double* l, int64_t place);
/// a [m, n] = q [m, k] r [k, n], k = min(m, n).
void qr(const double* a, int64_t m, int64_t n, double* q, double* r);
/// a [m, n] = u [m, k] diag(s) vh [k, n], k = min(m, n); `a` must be finite.
void svd(const double* a, int64_t m, int64_t n, double* u, double* s, double* vh);
/// values [n]: eigenvalues of a symmetric a, ascending; vectors [n, n]: eigenvectors, in columns.
/// Reads the lower triangle of `a`, which must be finite. Throws UsageError if it does not
/// converge.
void eigh(const double* a, int64_t n, double* values, double* vectors, int64_t place);

}  // namespace halftone::linear_algebra
