// Matrix products: cuBLASLt if it supports the call, otherwise the tiles of product.h. cuBLASLt
// gets large short matrices with aligned rows: others are copied first.
#include <halftone/backends/cuda/cublaslt/cublaslt.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/library_calls.h>
#include <halftone/backends/cuda/product.h>
#include <halftone/core/tensor.h>

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

/// Rows of short floats are aligned to 16 bytes if their length is a multiple of this.
constexpr int64_t aligned_length = 8;

bool is_transposed(const Tensor& x) { return x.strides()[1] != 1 && x.strides()[0] == 1; }

/// Returns whether to copy the matrices of a product into aligned ones. Without aligned rows,
/// cuBLASLt 13.1 on an H100 multiplies an f32 result of short factors without tensor cores. The
/// copies take longer than a small product.
bool is_worth_padding(const Tensor& a, const Tensor& b, const Tensor& c) {
  const auto length = [](const Tensor& x) { return x.size(is_transposed(x) ? 0 : 1); };
  if (c.rank() != 2 || size_of(a.dtype()) != 2 || !cublaslt::is_usable()) return false;
  const bool aligned = length(a) % aligned_length == 0 && length(b) % aligned_length == 0 &&
                       c.size(1) % aligned_length == 0;
  return !aligned && c.size(0) * c.size(1) * a.size(1) >= int64_t(1) << 26;
}

Tensor part_of(const Tensor& whole, const Shape& shape) {
  return views::slice(views::slice(whole, 0, 0, shape[0]), 1, 0, shape[1]);
}
Shape padded_shape(const Shape& shape) {
  const auto up = [](int64_t n) {
    return (n + aligned_length - 1) / aligned_length * aligned_length;
  };
  return {up(shape[0]), up(shape[1])};
}
/// Returns a matrix with zeros to the right and below, in the same order in memory; x itself if
/// both sizes are multiples of the aligned length.
Tensor padded(CudaBackend& backend, const Context& context, const Tensor& x) {
  if (padded_shape(x.shape()) == x.shape()) return x;
  if (is_transposed(x))
    return views::transpose(padded(backend, context, views::transpose(x, 0, 1)), 0, 1);
  Tensor whole = scratch(context, padded_shape(x.shape()), x.dtype());
  backend.fill(0, whole);
  Tensor part = part_of(whole, x.shape());
  backend.copy(x, part);
  return whole;
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::matmul(const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c) {
  if (c.numel() == 0) return;
  const auto add_bias = [&](const Tensor& sum) {
    binary(call_of<BinaryFormulas>(formula::Add{}), sum, views::expand(bias, c.shape()), c);
  };
  if (is_worth_padding(a, b, c)) {
    Tensor whole = scratch(context_, padded_shape(c.shape()), bias.defined() ? f32 : c.dtype());
    if (cublaslt::matmul(context_, padded(*this, context_, a), padded(*this, context_, b), {},
                         whole)) {
      count_call(Family::matmul, By::cublaslt);
      const Tensor sum = part_of(whole, c.shape());
      return bias.defined() ? add_bias(sum) : copy(sum, c);
    }
  }
  if (a.numel() > 0 && cublaslt::matmul(context_, a, b, bias, c))
    return count_call(Family::matmul, By::cublaslt);
  // If cuBLASLt cannot add the bias, it is added after the product. A short c would be rounded
  // twice, so the product is then in f32.
  if (a.numel() > 0 && bias.defined()) {
    Tensor sum = size_of(c.dtype()) > 2 ? c : scratch(context_, c.shape(), f32);
    if (cublaslt::matmul(context_, a, b, {}, sum)) {
      count_call(Family::matmul, By::cublaslt);
      return add_bias(sum);
    }
  }
  count_call(Family::matmul, By::own_kernel);
  const ProductSizes sizes{c.rank() == 3 ? c.shape()[0] : 1, c.size(-2), c.size(-1), a.size(-1)};
  visit_floating(a.dtype(), "matmul", [&]<class T>() {
    const StoreMatrix<compute_t<T>> store{Operand(c), Operand(bias), sizes.rows, sizes.columns};
    product(context_, factor_of<T>(a, -2, -1), factor_of<T>(b, -1, -2), store, sizes);
  });
}

}  // namespace halftone
