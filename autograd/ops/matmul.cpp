// torch.matmul's rules for ranks, reduced to the two cases of the Matmul operation.
#include <halftone/autograd/ops/matmul.h>

namespace halftone {

Tensor matmul(const Tensor& a, const Tensor& b) {
  check::defined("matmul", "a", a);
  check::defined("matmul", "b", b);
  if (a.rank() == 0 || b.rank() == 0)
    fail<ShapeError>("matmul", "a is ", described(a), ", b is ", described(b),
                     "; scalars have no product. Use mul().");
  if (a.rank() == 1) return squeeze(matmul(unsqueeze(a, 0), b), b.rank() == 1 ? 0 : -2);
  if (b.rank() == 1) return squeeze(matmul(a, unsqueeze(b, 1)), -1);
  const int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  if (b.size(-2) != k)
    fail<ShapeError>("matmul", "inner sizes differ: a is ", described(a), ", b is ", described(b),
                     "; a.size(-1) must equal b.size(-2).");
  if (a.rank() == 2 && b.rank() == 2) return apply(Matmul{}, a, b);
  if (b.rank() == 2) {  // one matrix for the whole batch: fold the batch into the rows
    Shape shape = a.shape();
    shape[a.rank() - 1] = n;
    return reshape(apply(Matmul{}, reshape(a, {a.numel() / std::max<int64_t>(k, 1), k}), b), shape);
  }
  // Casts come before the batch is spread out: of a weight, a region then casts the weight itself.
  std::array inputs{a, b};
  if (InputCaster* caster = active_caster()) caster->cast(Matmul::info, inputs, false);
  Shape a_batch = a.shape(), b_batch = b.shape();
  for (Shape* batch : {&a_batch, &b_batch})
    batch->erase(batch->rank() - 1), batch->erase(batch->rank() - 1);
  const Shape batch = broadcast_shapes("matmul", a_batch, b_batch);
  const int64_t count = numel_of(batch);
  const auto flat = [&](const Tensor& x, int64_t rows, int64_t columns) {
    Shape full = batch;
    full.push_back(rows), full.push_back(columns);
    return reshape(expand(x, full), {count, rows, columns});
  };
  Shape shape = batch;
  shape.push_back(m), shape.push_back(n);
  return reshape(apply(Matmul{}, flat(inputs[0], m, k), flat(inputs[1], k, n)), shape);
}

}  // namespace halftone
