// torch.matmul's rules for ranks and batches.
#include <halftone/autograd/ops/matmul.h>

#include <algorithm>

namespace halftone {

namespace {
Shape batch_of(Shape shape) {
  for (int i = 0; i < 2; ++i) shape.erase(shape.rank() - 1);
  return shape;
}
Shape with_matrix(Shape batch, int64_t rows, int64_t columns) {
  batch.push_back(rows), batch.push_back(columns);
  return batch;
}
/// Returns x as [count, rows, columns] for a whole batch.
Tensor spread(const Tensor& x, const Shape& batch) {
  const Shape full = with_matrix(batch, x.size(-2), x.size(-1));
  return views::reshaped(views::expand(x, full), {numel_of(batch), x.size(-2), x.size(-1)});
}
/// Returns [count, rows, columns] as [count rows, columns].
Tensor folded(const Tensor& x) {
  return views::reshaped(x, {x.shape()[0] * x.shape()[1], x.shape()[2]});
}
}  // namespace

double Matmul::flops(std::span<const Tensor> inputs) {
  const Tensor &x = inputs[0], &y = inputs[1];
  if (x.rank() < 2 || y.rank() < 2) return 0;
  return 2 * double(std::max(x.numel() * y.size(-1), y.numel() * x.size(-2)));
}

double Linear::flops(std::span<const Tensor> inputs) {
  const Tensor &x = inputs[0], &weight = inputs[1];
  return weight.rank() == 2 ? 2 * double(x.numel()) * double(weight.size(0)) : 0;
}

Tensor Matmul::forward(const Tensor& a_in, const Tensor& b_in) {
  check::floating("matmul", a_in);
  check::same_dtype("matmul", a_in, b_in);
  a_shape = a_in.shape(), b_shape = b_in.shape();
  if (a_in.rank() == 2 && b_in.rank() == 2) {
    a = detail::matrix_layout(a_in), b = detail::matrix_layout(b_in);
    return product(a, b, a.dtype(), accumulate);
  }
  batch = broadcast_shapes("matmul", batch_of(a_shape), batch_of(b_shape));
  a = detail::matrix_layout(spread(a_in, batch)), b = detail::matrix_layout(spread(b_in, batch));
  return detail::as_shape(product(a, b, a.dtype(), accumulate),
                          with_matrix(batch, a_in.size(-2), b_in.size(-1)));
}

std::array<Tensor, 2> Matmul::backward(const Tensor& dc_in) const {
  const Tensor dc = detail::matrix_layout(
      a.rank() == 2 ? dc_in : views::reshaped(dc_in, {a.shape()[0], a.shape()[1], b.shape()[2]}));
  Tensor da, db;
  if (needs[0]) da = gradient(0, dc, detail::transposed(b));
  if (needs[1]) db = gradient(1, detail::transposed(a), dc);
  return {da, db};
}

Tensor Matmul::gradient(int which, const Tensor& x, const Tensor& y) const {
  const Shape& shape = which == 0 ? a_shape : b_shape;
  const DType dtype = needs.dtype(which);
  if (x.rank() == 2) return product(x, y, dtype, accumulate);
  const Shape full = with_matrix(batch, x.shape()[1], y.shape()[2]);
  if (numel_of(shape) == numel_of(full))
    return detail::as_shape(product(x, y, dtype, accumulate), shape);
  // One b for the whole batch: the product includes the sum over the batch.
  if (which == 1 && numel_of(batch_of(shape)) == 1 && a.is_contiguous() && y.is_contiguous())
    return detail::as_shape(product(detail::transposed(folded(a)), folded(y), dtype, accumulate),
                            shape);
  const Tensor all = product(x, y, dtype == f64 ? f64 : f32, accumulate);
  return reduce_to(detail::as_shape(all, full), shape, dtype);
}

namespace {
/// Multiplies modulo the dtype's size, in parts of the inner dimension: never all products at once.
Tensor integer_matmul(const Tensor& a, const Tensor& b) {
  check::same_dtype("matmul", a, b);
  check::numbers("matmul", a);
  const Shape batch = broadcast_shapes("matmul", batch_of(a.shape()), batch_of(b.shape()));
  Tensor c = zeros(with_matrix(batch, a.size(-2), b.size(-1)), a.dtype(), a.device());
  constexpr int64_t most_products = 1 << 20;
  const int64_t k = a.size(-1),
                some = std::max<int64_t>(1, most_products / std::max<int64_t>(c.numel(), 1));
  for (int64_t start = 0; start < k; start += some) {
    const Tensor left = unsqueeze(slice(a, -1, start, start + some), -1);
    const Tensor right = unsqueeze(slice(b, -2, start, start + some), -3);
    c = c + cast(sum(left * right, {-2}), c.dtype());
  }
  return c;
}
}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  check::defined("matmul", "a", a);
  check::defined("matmul", "b", b);
  if (a.rank() == 0 || b.rank() == 0)
    fail<ShapeError>("matmul", "a is ", described(a), ", b is ", described(b),
                     "; scalars have no product. Use mul().");
  if (a.rank() == 1) return squeeze(matmul(unsqueeze(a, 0), b), b.rank() == 1 ? 0 : -2);
  if (b.rank() == 1) return squeeze(matmul(a, unsqueeze(b, 1)), -1);
  const int64_t k = a.size(-1), n = b.size(-1);
  if (b.size(-2) != k)
    fail<ShapeError>("matmul", "inner sizes differ: a is ", described(a), ", b is ", described(b),
                     "; a.size(-1) must equal b.size(-2).");
  if (!is_floating(a.dtype()) && !is_floating(b.dtype())) return integer_matmul(a, b);
  if (a.rank() == 2 && b.rank() == 2) return apply(Matmul{}, a, b);
  if (b.rank() == 2) {  // one matrix for the whole batch: fold the batch into the rows
    Shape shape = a.shape();
    shape[a.rank() - 1] = n;
    return reshape(apply(Matmul{}, reshape(a, {rows_of(a.shape()), k}), b), shape);
  }
  return apply(Matmul{}, a, b);
}

}  // namespace halftone
