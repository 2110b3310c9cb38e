// Matrix products: cuBLASLt if it supports the call, otherwise the tiles of product.h.
#include <halftone/backends/cuda/cublaslt/cublaslt.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/library_calls.h>
#include <halftone/backends/cuda/product.h>
#include <halftone/core/views.h>

namespace halftone {

namespace cuda {
namespace {

/// Stores c[batch][i][j] = sum + bias[j]; the dtypes of c and bias are looked up.
template <class C> struct StoreMatrix {
  Operand c, bias;
  int64_t rows, columns;
  __device__ void operator()(int64_t batch, int64_t i, int64_t j, C sum) const {
    if (bias.data) sum += load_floating<C>(bias, j);
    store_floating(c, (batch * rows + i) * columns + j, sum);
  }
};

/// Returns lines along one of the last two dimensions, and levels along the other.
template <class T> MatrixFactor<T> factor_of(const Tensor& x, int line_dim, int level_dim) {
  const int r = x.rank();
  return {x.data<T>(), r == 3 && x.shape()[0] > 1 ? x.strides()[0] : 0, x.strides()[r + line_dim],
          x.strides()[r + level_dim]};
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::matmul(const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c) {
  if (c.numel() == 0) return;
  if (a.numel() > 0 && cublaslt::matmul(context_, a, b, bias, c))
    return count_call(Family::matmul, By::cublaslt);
  // cuBLASLt adds only a bias of c's dtype, and none in f64. In other cases the bias is added after
  // the product, if c is wide enough for a separate sum.
  if (a.numel() > 0 && bias.defined() && size_of(c.dtype()) > 2 &&
      cublaslt::matmul(context_, a, b, {}, c)) {
    count_call(Family::matmul, By::cublaslt);
    return binary(call_of<BinaryFormulas>(formula::Add{}), c, views::expand(bias, c.shape()), c);
  }
  count_call(Family::matmul, By::own_kernel);
  const ProductSizes sizes{c.rank() == 3 ? c.shape()[0] : 1, c.size(-2), c.size(-1), a.size(-1)};
  visit_floating(a.dtype(), "matmul", [&]<class T>() {
    const StoreMatrix<compute_t<T>> store{Operand(c), Operand(bias), sizes.rows, sizes.columns};
    product(context_, factor_of<T>(a, -2, -1), factor_of<T>(b, -1, -2), store, sizes);
  });
}

bool CudaBackend::linear_backward_weights(const Tensor& dy, const Tensor& x, Tensor& dw,
                                          Tensor& dbias) {
  if (dw.numel() == 0 || dy.numel() == 0 ||
      !cublaslt::matmul_and_row_sums(context_, views::transpose(dy, 0, 1), x, dw, dbias))
    return false;
  count_call(Family::matmul, By::cublaslt);
  return true;
}

}  // namespace halftone
