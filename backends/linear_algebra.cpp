// core/linear_algebra.h by Eigen: the only file of the library that knows it.
#include <halftone/core/linear_algebra.h>

#include <algorithm>

#include <halftone/core/error.h>
#include <halftone/core/op_info.h>

#if HALFTONE_HAVE_EIGEN
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <Eigen/LU>
#include <Eigen/QR>
#include <Eigen/SVD>
#endif

namespace halftone::linear_algebra {

#if HALFTONE_HAVE_EIGEN

namespace {
using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Eigen::MatrixXd;

/// A row-major matrix at `values`.
auto at(const double* values, int64_t m, int64_t n) { return Eigen::Map<const Rows>(values, m, n); }
auto at(double* values, int64_t m, int64_t n) { return Eigen::Map<Rows>(values, m, n); }

Eigen::PartialPivLU<MatrixXd> lu_of(const double* a, int64_t n, int64_t place) {
  Eigen::PartialPivLU<MatrixXd> lu(at(a, n, n));
  for (int64_t i = 0; i < n; ++i)
    if (lu.matrixLU()(i, i) == 0)
      fail<UsageError>(running_operation("linear_algebra"), "matrix ", place,
                       " of the batch is singular: pivot ", i,
                       " is 0. Add a small multiple of the identity, or use lstsq().");
  return lu;
}
}  // namespace

void invert(const double* a, int64_t n, double* y, int64_t place) {
  at(y, n, n) = lu_of(a, n, place).inverse();
}
void solve(const double* a, const double* b, int64_t n, int64_t k, double* x, int64_t place) {
  at(x, n, k) = lu_of(a, n, place).solve(MatrixXd(at(b, n, k)));
}
void cholesky(const double* a, int64_t n, double* l, int64_t place) {
  const Eigen::LLT<MatrixXd> llt(at(a, n, n));
  const MatrixXd lower = llt.matrixL();
  // A NaN ends no factorization of Eigen's.
  if (llt.info() != Eigen::Success || !(lower.diagonal().array() > 0).all())
    fail<UsageError>("cholesky", "matrix ", place,
                     " of the batch is not positive definite. Add a small multiple of the "
                     "identity.");
  at(l, n, n) = lower;
}
void qr(const double* a, int64_t m, int64_t n, double* q, double* r) {
  const int64_t k = std::min(m, n);
  const Eigen::HouseholderQR<MatrixXd> factors(at(a, m, n));
  at(q, m, k) = factors.householderQ() * MatrixXd::Identity(m, k);
  at(r, k, n) = MatrixXd(factors.matrixQR().topRows(k)).triangularView<Eigen::Upper>();
}
void svd(const double* a, int64_t m, int64_t n, double* u, double* s, double* vh) {
  const int64_t k = std::min(m, n);
  const Eigen::BDCSVD<MatrixXd> factors(at(a, m, n), Eigen::ComputeThinU | Eigen::ComputeThinV);
  at(u, m, k) = factors.matrixU(), at(s, k, 1) = factors.singularValues();
  at(vh, k, n) = factors.matrixV().transpose();
}
void eigh(const double* a, int64_t n, double* values, double* vectors, int64_t place) {
  const Eigen::SelfAdjointEigenSolver<MatrixXd> solver(at(a, n, n));
  if (solver.info() != Eigen::Success)
    fail<UsageError>("eigh", "the eigenvalues of matrix ", place, " of the batch did not converge.",
                     " Scale it, or look for elements that are too large.");
  at(values, n, 1) = solver.eigenvalues(), at(vectors, n, n) = solver.eigenvectors();
}

#else

namespace {
[[noreturn]] void fail_without_eigen() {
  fail<UnsupportedError>(running_operation("linear_algebra"),
                         "this build has no Eigen. Install libeigen3-dev, and build again.");
}
}  // namespace
void invert(const double*, int64_t, double*, int64_t) { fail_without_eigen(); }
void solve(const double*, const double*, int64_t, int64_t, double*, int64_t) {
  fail_without_eigen();
}
void cholesky(const double*, int64_t, double*, int64_t) { fail_without_eigen(); }
void qr(const double*, int64_t, int64_t, double*, double*) { fail_without_eigen(); }
void svd(const double*, int64_t, int64_t, double*, double*, double*) { fail_without_eigen(); }
void eigh(const double*, int64_t, double*, double*, int64_t) { fail_without_eigen(); }

#endif

}  // namespace halftone::linear_algebra
