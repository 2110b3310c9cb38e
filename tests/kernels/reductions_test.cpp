// Reductions of every kind at the edges of packs, warps, blocks and pieces.
#include "against_reference.h"

namespace halftone::test {
namespace {

constexpr Reduction kinds[] = {Reduction::sum, Reduction::mean, Reduction::sum_of_squares,
                               Reduction::max, Reduction::min,  Reduction::prod};

/// The dimensions of x that are reduced: bit d of `mask`.
Shape reduced_shape(const Shape& from, int mask) {
  Shape shape = from;
  for (int d = 0; d < from.rank(); ++d)
    if (mask >> d & 1) shape[d] = 1;
  return shape;
}

void check_reduce(Reduction kind, const Tensor& x, int mask, DType result,
                  const std::function<Tensor(const Tensor&)>& view = {}) {
  INFO("kind ", int(kind), ", ", described(x), ", dims ", mask);
  const Shape seen = view ? view(x).shape() : x.shape();
  const Tensor y = empty(reduced_shape(seen, mask), result);
  const double terms = double(x.numel()) / double(std::max<int64_t>(1, y.numel()));
  check_against_reference({x}, {y}, 8 + terms / 2,
                          [&](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.reduce(kind, view ? view(in[0]) : in[0], out[0]);
                          });
}

TEST_CASE("kernels: reductions of matrices along each and both dimensions") {
  for (const DType dtype : floating_dtypes)
    for (const Shape& shape : {Shape{1, 1}, Shape{0, 5}, Shape{5, 0}, Shape{7, 1}, Shape{3, 1025},
                               Shape{301, 17}, Shape{600, 40}, Shape{2, 2051}})
      for (const Reduction kind : kinds)
        for (const int mask : {1, 2, 3}) {
          const Tensor x = randn(shape, dtype);
          const bool extreme = kind == Reduction::max || kind == Reduction::min;
          if (extreme && x.numel() == 0) continue;
          check_reduce(kind, x, mask, dtype);
        }
}

TEST_CASE("kernels: reductions of strided and of short tensors into f32") {
  const auto transposed = [](const Tensor& x) { return views::transpose(x, 0, 2); };
  for (const DType dtype : floating_dtypes)
    for (const Reduction kind : {Reduction::sum, Reduction::max})
      for (int mask = 0; mask < 8; ++mask) {
        const Tensor x = randn({5, 33, 18}, dtype);
        check_reduce(kind, x, mask, statistics(dtype));
        check_reduce(kind, x, mask, dtype, transposed);
      }
}

TEST_CASE("kernels: reductions of every second dimension of five") {
  for (const DType dtype : {f64, f32, bf16, i64})
    for (const Reduction kind : {Reduction::sum, Reduction::max})
      for (const int mask : {0b10101, 0b01010}) {
        Tensor x = empty({2, 3, 4, 5, 6}, dtype);
        backend_for(x).copy(randint(-50, 50, x.shape()), x);
        check_reduce(kind, x, mask, dtype);
      }
}

TEST_CASE("kernels: reductions of long ranges are cut into pieces") {
  check_reduce(Reduction::sum, randn({1, 300007}, f32), 3, f32);
  check_reduce(Reduction::sum_of_squares, randn({1, 300008}, bf16), 3, f32);
  check_reduce(Reduction::max, randn({1, 300007}, f16), 3, f16);
  check_reduce(Reduction::sum, randn({20011, 3}, f32), 1, f32);
  // Five tiles of columns and four pieces: a block joins the pieces of several tiles.
  for (const DType dtype : floating_dtypes)
    check_reduce(Reduction::sum, randn({300, 130}, dtype), 1, dtype);
}

TEST_CASE("kernels: sums and means of columns") {
  for (const DType dtype : {f32, bf16, f16})
    for (const Shape& shape : sizes<Shape>(
             {{1, 1}, {7, 3}}, {{512, 1030}, {513, 256}, {3000, 32}, {1500, 37}, {2, 70001}}))
      for (const Reduction kind : {Reduction::sum, Reduction::mean})
        check_reduce(kind, rand(shape, dtype), 1, f32);
}

TEST_CASE("kernels: reductions keep NaN, and integers exact") {
  const Tensor x = from({1, 5, std::nan(""), 2}, f32);
  for (const Reduction kind : {Reduction::max, Reduction::min}) check_reduce(kind, x, 1, f32);
  check_reduce(Reduction::sum, randint(0, 1 << 30, {3001}), 1, i64);
  for (const int mask : {1, 2}) {
    for (const Reduction kind : {Reduction::sum, Reduction::max, Reduction::min})
      check_reduce(kind, randint(-9, 10, {7, 40}), mask, i64);
    check_reduce(Reduction::prod, randint(1, 3, {7, 40}), mask, i64);
  }
}

TEST_CASE("kernels: positions of extremes and running sums") {
  for (const DType dtype : floating_dtypes)
    for (const int64_t n : {1, 7, 33, 257, 1025, 9001})
      for (const bool flag : {false, true}) {
        Tensor x = empty({5, n}, dtype);
        backend_for(x).copy(randint(0, 9, {5, n}), x);  // with ties
        INFO(described(x), ", ", flag);
        check_against_reference({x}, {empty({5}, i64)}, 0,
                                [&](Backend& backend, const Tensors& in, Tensors& out) {
                                  backend.arg_reduce(flag, in[0], out[0]);
                                });
        Tensor extremum = empty({5, 1}, dtype), dy = empty({5}, dtype);
        backend_for(x).reduce(flag ? Reduction::max : Reduction::min, x, extremum);
        backend_for(x).copy(randn({5}), dy);
        check_against_reference({x, extremum, dy}, {empty({5, n}, dtype)}, 0,
                                [](Backend& backend, const Tensors& in, Tensors& out) {
                                  backend.extremum_backward(in[0], in[1], in[2], out[0]);
                                });
        check_against_reference({x}, {empty({5, n}, statistics(dtype))}, 8,
                                [&](Backend& backend, const Tensors& in, Tensors& out) {
                                  backend.cumulative_sum(in[0], flag, out[0]);
                                });
      }
  for (const DType dtype : floating_dtypes) {
    const Tensor x = from({{2, 0, 1.5, -3, 0, 7}, {1.25, -2, 3, 0.5, 1, 2}}, dtype);
    check_against_reference({x}, {empty({2, 6}, dtype)}, 8,
                            [](Backend& backend, const Tensors& in, Tensors& out) {
                              backend.cumulative_product(in[0], out[0]);
                            });
    check_against_reference({x, randn({2, 6}, dtype)}, {empty({2, 6}, dtype)}, 8,
                            [](Backend& backend, const Tensors& in, Tensors& out) {
                              backend.cumulative_product_backward(in[0], in[1], out[0]);
                            });
  }
  check_against_reference({randint(-9, 9, {3, 40})}, {empty({3, 40}, i64)}, 0,
                          [](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.cumulative_product(in[0], out[0]);
                          });
  const Tensor with_nan = from({{1, std::nan(""), 3, std::nan("")}, {-1, -1, -2, -2}}, f32);
  check_against_reference({with_nan, from({std::nan(""), -1}, f32), from({6, 3}, f32)},
                          {empty({2, 4}, f32)}, 0,
                          [](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.extremum_backward(in[0], in[1], in[2], out[0]);
                          });
  for (const bool largest : {false, true})
    check_against_reference({with_nan}, {empty({2}, i64)}, 0,
                            [&](Backend& backend, const Tensors& in, Tensors& out) {
                              backend.arg_reduce(largest, in[0], out[0]);
                            });
}

}  // namespace
}  // namespace halftone::test
