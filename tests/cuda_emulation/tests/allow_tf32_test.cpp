// f32 products with and without TF32, which the stand-in for cuBLASLt rounds to.
#include <doctest/doctest.h>

#include <halftone/core/allow_tf32.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/number_format.h>

namespace halftone::test {
namespace {

Tensor rounded(const Tensor& x) {
  Tensor y = x.clone();
  for (int64_t i = 0; i < y.numel(); ++i)
    y.data<float>()[i] = round_to(formats::tf32, y.data<float>()[i]);
  return y;
}

std::vector<float> product(const Tensor& a, const Tensor& b) {
  Tensor c = empty({a.shape()[0], b.shape()[1]}, a.dtype(), Device::cuda());
  backend_for(c).matmul(a.to(Device::cuda()), b.to(Device::cuda()), {}, c);
  return c.to_vector<float>();
}

TEST_CASE(
    "factors of f32 products are rounded to TF32 where it is allowed, which it is not at first") {
  manual_seed(2);
  const Tensor a = randn({30, 40}), b = randn({40, 20});
  CHECK(!allow_tf32());
  const auto exact = product(a, b), of_rounded = product(rounded(a), rounded(b));
  CHECK(exact != of_rounded);
  set_allow_tf32(true);
  CHECK(product(a, b) == of_rounded);  // another plan than that of the same shapes before
  set_allow_tf32(false);
  CHECK(product(a, b) == exact);
  // Short floats and f64 are what they are.
  for (const DType dtype : {bf16, f64}) {
    const Tensor x = a.to(dtype), y = b.to(dtype);
    const auto before = product(x, y);
    set_allow_tf32(true);
    CHECK(product(x, y) == before);
    set_allow_tf32(false);
  }
}

}  // namespace
}  // namespace halftone::test
