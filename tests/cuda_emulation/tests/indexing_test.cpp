// Elements gathered by indices along a dimension, their adjoint, the order of rows, and integers.
#include "../../kernels/against_reference.h"

#include <halftone/core/error.h>
#include <halftone/core/formulas.h>

namespace halftone::test {
namespace {

Tensor numbers(const Shape& shape, DType dtype) {
  Tensor x = empty(shape, dtype);
  backend_for(x).copy(randint(0, 90, shape), x);
  return x;
}

TEST_CASE("kernels: elements by index along each dimension") {
  for (const DType dtype : {f64, f32, f16, bf16, i64, i32, u8, boolean})
    for (const int dim : {0, 1, 2}) {
      INFO(std::string(name(dtype)), ", dimension ", dim);
      const Shape shape{3, 5, 7};
      const Tensor x = numbers({5, 6, 8}, dtype), index = randint(0, x.shape()[dim], shape);
      const auto reached = [=](const Tensor& whole) {  // in other dimensions the index's sizes
        Tensor part = whole;
        for (int d = 0; d < 3; ++d)
          if (d != dim) part = views::slice(part, d, 0, shape[d]);
        return part;
      };
      check_against_reference({x, index}, {empty(shape, dtype)}, 0,
                              [=](Backend& backend, const Tensors& in, Tensors& out) {
                                backend.gather(reached(in[0]), dim, in[1], out[0]);
                              });
      if (dtype == u8 || dtype == boolean) continue;  // sums do not support them
      check_against_reference({numbers(shape, dtype), index}, {x}, 60,
                              [=](Backend& backend, const Tensors& in, Tensors& out) {
                                Tensor part = reached(out[0]);
                                backend.scatter_add(in[0], dim, in[1], part);
                              });
    }
}

TEST_CASE("kernels: the order of rows") {
  for (const DType dtype : {f64, f32, f16, bf16, i64, i32, u8, boolean})
    for (const auto& [rows, n] : {std::pair{1, 1}, {3, 700}, {300, 5}, {1, 2100}})
      for (const bool descending : {false, true}) {
        INFO(std::string(name(dtype)), ", ", rows, " x ", n, ", descending ", descending);
        Tensor x = empty({rows, n}, dtype);
        backend_for(x).copy(randint(-40, 40, {rows, n}), x);
        if (is_floating(dtype) && n >= 5) {
          const Tensor odd = from_vector<double>({NAN, -INFINITY, INFINITY, -0.0, 0.0}, {5}, dtype);
          Tensor part = views::slice(x, 1, 0, 5);
          backend_for(x).copy(views::expand(odd, {rows, 5}), part);
        }
        check_against_reference({x}, {empty({rows, n}, i64)}, 0,
                                [=](Backend& backend, const Tensors& in, Tensors& out) {
                                  backend.argsort(in[0], descending, out[0]);
                                });
      }
}

TEST_CASE("kernels: an index out of range along a dimension is reported, and nothing is written") {
  Backend& backend = backend_for(Device::cuda());
  const Tensor x = randn({2, 4}, f32).to(Device::cuda());
  const Tensor index =
      from_vector<int64_t>({3, 4, -1, 0, 1, int64_t(1) << 40}, {2, 3}, i64).to(Device::cuda());
  Tensor y = empty({2, 3}, f32, Device::cuda()), sums = zeros({2, 4}, f32, Device::cuda());
  backend.gather(x, 1, index, y);
  CHECK_THROWS_WITH_AS(backend.synchronize(),
                       doctest::Contains("index 4 is out of range for a dimension of size 4"),
                       UsageError);
  const Values read = y.to_vector<double>(), of_x = x.to_vector<double>();
  CHECK(read == Values{of_x[3], 0, 0, of_x[4], of_x[5], 0});
  backend.scatter_add(ones({2, 3}, f32, Device::cuda()), 1, index, sums);
  CHECK_THROWS_AS(backend.synchronize(), UsageError);
  CHECK(sums.to_vector<double>() == Values{0, 0, 0, 1, 1, 1, 0, 0});
}

TEST_CASE("kernels: formulas of integers") {
  const Tensor a = from_vector<int64_t>({INT64_MIN, INT64_MAX, -7, 7, 0, INT64_MIN}, {6}, i64),
               b = from_vector<int64_t>({-1, 2, 2, -2, 3, 0}, {6}, i64);
  for_each_type(TypeList<formula::Add, formula::Sub, formula::Mul, formula::Maximum,
                         formula::Minimum, formula::Remainder, formula::FloorDivide>{},
                [&]<class F>() {
                  INFO(std::string(F::info.name));
                  for (const DType dtype : {i64, i32}) {
                    Tensor u = empty({6}, dtype), v = empty({6}, dtype);
                    backend_for(u).copy(a, u), backend_for(v).copy(b, v);
                    check_against_reference({u, v}, {empty({6}, dtype)}, 0,
                                            [](Backend& backend, const Tensors& in, Tensors& out) {
                                              backend.binary(call_of<BinaryFormulas>(F{}), in[0],
                                                             in[1], out[0]);
                                            });
                  }
                });
  for_each_type(
      TypeList<formula::Neg, formula::Abs, formula::Sign, formula::Square>{}, [&]<class F>() {
        check_against_reference({a}, {empty({6}, i64)}, 0,
                                [](Backend& backend, const Tensors& in, Tensors& out) {
                                  backend.unary(call_of<UnaryFormulas>(F{}), in[0], out[0]);
                                });
      });
}

}  // namespace
}  // namespace halftone::test
