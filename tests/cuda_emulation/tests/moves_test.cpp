// Copies, fills and choices in every dtype; moving averages; gradients of sums by their formula.
#include "../../kernels/against_reference.h"

#include <halftone/core/formulas.h>

namespace halftone::test {
namespace {

constexpr DType every_dtype[] = {f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i32, i16, u8, boolean};

Tensor ones_and_zeros(const Shape& shape, DType dtype) {
  Tensor x = empty(shape, dtype);
  backend_for(x).copy(randint(0, 2, shape), x);
  return x;
}

TEST_CASE("kernels: fills, choices and conversions in every dtype") {
  for (const DType dtype : every_dtype) {
    INFO(dtype);
    const Tensor a = ones_and_zeros({9, 10}, dtype), b = ones_and_zeros({9, 10}, dtype),
                 turned = views::transpose(ones_and_zeros({10, 9}, dtype), 0, 1);
    check_against_reference({}, {a, b}, 0, [](Backend& backend, const Tensors&, Tensors& out) {
      backend.fill(1, out[0]);
      Tensor columns = views::slice(out[1], 1, 1, 3, 3);
      backend.fill(1, columns);
    });
    check_against_reference({ones_and_zeros({9, 10}, boolean), a, turned}, {b}, 0,
                            [](Backend& backend, const Tensors& in, Tensors& out) {
                              backend.select(in[0], in[1], in[2], out[0]);
                            });
    check_against_reference({turned, a}, {zeros({9, 10}), zeros({9, 10}, f64)}, 0,
                            [](Backend& backend, const Tensors& in, Tensors& out) {
                              backend.copy(in[0], out[0]);
                              Tensor columns = views::slice(out[1], 1, 0, 5, 2);
                              backend.copy(views::slice(in[1], 1, 1, 5, 2), columns);
                            });
  }
}

TEST_CASE("kernels: moving averages") {
  const auto check = [](const Tensor& x, const Tensor& y) {
    INFO(described(x), " into ", described(y));
    check_against_reference({x}, {y}, 8, [](Backend& backend, const Tensors& in, Tensors& out) {
      backend.lerp(in[0], 0.3, out[0]);
    });
  };
  for (const DType dtype : floating_dtypes)
    for (const int64_t n : {1, 37, 1030}) {
      check(randn({n}, dtype), randn({n}, dtype));
      check(randn({n}, dtype), randn({n}, f32));
      check(randn({n}, f32), randn({n}, dtype));
    }
  for (const DType dtype : {f64, f32})
    check(randn({5, 7}, dtype), views::transpose(randn({7, 5}, dtype), 0, 1));
}

TEST_CASE("kernels: gradients of sums and differences by their formula") {
  const FormulaCall add = call_of<BinaryFormulas>(formula::Add{}),
                    sub = call_of<BinaryFormulas>(formula::Sub{});
  for (const DType dtype : floating_dtypes)
    for (const auto& [call, input] : {std::pair(add, 0), {add, 1}, {sub, 0}, {sub, 1}}) {
      INFO(dtype, ", input ", input);
      check_against_reference({randn({77}, dtype), randn({77}, dtype), randn({77}, dtype)},
                              {empty({77}, dtype)}, 1,
                              [&](Backend& backend, const Tensors& in, Tensors& out) {
                                backend.binary_backward(call, input, in[0], in[1], in[2], out[0]);
                              });
    }
}

}  // namespace
}  // namespace halftone::test
