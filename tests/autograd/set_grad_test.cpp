// Gradients that are set by hand: a gradient that no update can read is refused.
#include <doctest/doctest.h>

#include <halftone/core/factory.h>

#include "../support.h"

namespace halftone::test::set_grad_test {
namespace {

TEST_CASE("set_grad takes the floating dtypes, in the tensor's shape") {
  Tensor x = zeros({2}).set_requires_grad(true);
  for (const DType dtype : {f64, f32, f16, bf16}) {
    x.set_grad(ones({2}, dtype));
    CHECK(x.grad().dtype() == dtype);
  }
  for (const DType dtype : {boolean, u8, i32, i64, f8_e4m3, f8_e5m2}) {
    CAPTURE(name(dtype));
    CHECK(contains(message_of<DTypeError>([&] { x.set_grad(zeros({2}, dtype)); }),
                   "[set_grad] the gradient is [2] " + std::string(name(dtype)) +
                       ", the tensor is [2] f32. Gradients are f64, f32, f16 or bf16: cast it."));
  }
  CHECK(contains(message_of<ShapeError>([&] { x.set_grad(zeros({3})); }),
                 "[set_grad] the gradient is [3] f32, the tensor is [2] f32. Shapes must agree."));
  CHECK(x.grad().dtype() == bf16);
  x.set_grad({});
  CHECK_FALSE(x.grad().defined());
  CHECK(contains(message_of<UsageError>([] { Tensor().set_grad(zeros({2})); }),
                 "[set_grad] this tensor is undefined."));
  CHECK_THROWS_AS(Tensor().set_grad({}), UsageError);
}

}  // namespace
}  // namespace halftone::test::set_grad_test
