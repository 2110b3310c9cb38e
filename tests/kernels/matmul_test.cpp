// Matrix products around the edges of tiles and strips, in every layout, with the depth split and
// in large tiles.
#include "against_reference.h"

namespace halftone::test {
namespace {

struct ProductCase {
  int64_t batches, m, n, k;  // batches 0: rank 2
  DType dtype, result;
  bool a_transposed = false, b_transposed = false, bias = false, one_a = false;
};

/// [batches, rows, columns], stored column by column if `transposed`.
Tensor matrix(int64_t batches, int64_t rows, int64_t columns, DType dtype, bool transposed) {
  Shape shape = transposed ? Shape{columns, rows} : Shape{rows, columns};
  if (batches > 0) shape = {batches, shape[0], shape[1]};
  return randn(shape, dtype);
}
Tensor seen(const Tensor& x, bool transposed) {
  return transposed ? views::transpose(x, x.rank() - 2, x.rank() - 1) : x;
}

void check_product(const ProductCase& c) {
  INFO(c.batches, " x [", c.m, ", ", c.k, "] x [", c.k, ", ", c.n, "] ", c.dtype, " to ", c.result,
       c.a_transposed ? ", a^T" : "", c.b_transposed ? ", b^T" : "", c.bias ? ", bias" : "");
  const Tensor a = matrix(c.one_a ? 1 : c.batches, c.m, c.k, c.dtype, c.a_transposed),
               b = matrix(c.batches, c.k, c.n, c.dtype, c.b_transposed),
               bias = c.bias ? randn({c.n}, c.dtype) : Tensor{};
  const Shape shape = c.batches > 0 ? Shape{c.batches, c.m, c.n} : Shape{c.m, c.n};
  check_against_reference({a, b, bias}, {empty(shape, c.result)}, 8 + double(c.k) / 2,
                          [&](Backend& backend, const Tensors& in, Tensors& out) {
                            Tensor left = seen(in[0], c.a_transposed);
                            if (c.one_a) left = views::expand(left, {c.batches, c.m, c.k});
                            backend.matmul(left, seen(in[1], c.b_transposed), in[2], out[0]);
                          });
}

TEST_CASE("kernels: matrix products around the edges of tiles") {
  struct Sizes {
    int64_t m, n, k;
  };
  for (const DType dtype : floating_dtypes)
    for (const Sizes& s : {Sizes{1, 1, 1},
                           {5, 3, 0},
                           {0, 4, 3},
                           {64, 64, 16},
                           {65, 63, 17},
                           {3, 130, 9},
                           {127, 2, 31}})
      for (const bool bias : {false, true})
        check_product({.batches = 0,
                       .m = s.m,
                       .n = s.n,
                       .k = s.k,
                       .dtype = dtype,
                       .result = dtype,
                       .bias = bias});
}

TEST_CASE("kernels: matrix products in every layout, of batches, to f32") {
  for (const DType dtype : floating_dtypes)
    for (const bool a : {false, true})
      for (const bool b : {false, true}) {
        check_product({.batches = 0,
                       .m = 33,
                       .n = 70,
                       .k = 21,
                       .dtype = dtype,
                       .result = f32,
                       .a_transposed = a,
                       .b_transposed = b,
                       .bias = a});
        check_product({.batches = 3,
                       .m = 5,
                       .n = 66,
                       .k = 7,
                       .dtype = dtype,
                       .result = dtype,
                       .a_transposed = a,
                       .b_transposed = b,
                       .bias = true,
                       .one_a = a});
      }
}

TEST_CASE("kernels: matrix products of long depth are split, those of many tiles use large ones") {
  for (const DType dtype : floating_dtypes) {
    check_product({.batches = 0,
                   .m = 5,
                   .n = 9,
                   .k = 1201,
                   .dtype = dtype,
                   .result = dtype,
                   .a_transposed = true,
                   .bias = true});
    check_product({.batches = 2, .m = 70, .n = 3, .k = 700, .dtype = dtype, .result = f32});
    check_product({.batches = 0,
                   .m = 140,
                   .n = 200,
                   .k = 19,
                   .dtype = dtype,
                   .result = dtype,
                   .b_transposed = true});
    check_product({.batches = 4, .m = 65, .n = 128, .k = 8, .dtype = dtype, .result = dtype});
  }
}

}  // namespace
}  // namespace halftone::test
