// Sums and differences of f32 and short floats: one kernel, forward, for residuals and for
// gradients that are added to f32 gradients.
#include "../../kernels/against_reference.h"

#include <halftone/halftone.h>

namespace halftone::test {
namespace {

const DType pairs[][2] = {{f32, bf16}, {bf16, f32}, {f32, f16}, {f16, f32}};

TEST_CASE("sums and differences of two dtypes") {
  manual_seed(11);
  for (const auto& [of_a, of_b] : pairs)
    for (const Shape& shape : {Shape{1}, Shape{3}, Shape{7, 149}, Shape{40000}}) {
      INFO(std::string(name(of_a)), " and ", std::string(name(of_b)), " of ", numel_of(shape));
      const Tensors in{randn(shape, of_a), randn(shape, of_b)}, out{zeros(shape)};
      check_against_reference(in, out, 1, [](Backend& backend, const Tensors& x, Tensors& y) {
        backend.binary(call_of<BinaryFormulas>(formula::Add{}), x[0], x[1], y[0]);
      });
      check_against_reference(in, out, 1, [](Backend& backend, const Tensors& x, Tensors& y) {
        backend.binary(call_of<BinaryFormulas>(formula::Sub{}), x[0], x[1], y[0]);
      });
      check_against_reference({in[0]}, {in[1]}, 1, [](Backend& b, const Tensors& x, Tensors& y) {
        b.accumulate(x[0], y[0]);
      });
    }
}

TEST_CASE("a short result is added to an f32 residual by one kernel, to the bit of its cast") {
  manual_seed(12);
  const Device gpu = Device::cuda();
  for (const auto& [of_a, of_b] : pairs) {
    INFO(std::string(name(of_a)), " and ", std::string(name(of_b)));
    const auto leaf = [&](const Tensor& x, DType dtype) {
      Tensor y = x.to(dtype).to(gpu);
      return y.set_requires_grad();
    };
    const Tensor numbers = randn({6, 50}), others = randn({6, 50}), slope = randn({6, 50}).to(gpu);
    const Tensor a = leaf(numbers, of_a), b = leaf(others, of_b), a2 = leaf(numbers, of_a),
                 b2 = leaf(others, of_b);
    const int64_t before = emulation::kernel_launches();
    const Tensor y = a - b;
    CHECK(emulation::kernel_launches() == before + 1);
    const Tensor y2 = cast(a2, f32) - cast(b2, f32);
    CHECK(y.dtype() == f32);
    CHECK(y.to_vector<float>() == y2.to_vector<float>());
    y.backward(slope), y2.backward(slope);
    CHECK(a.grad().dtype() == of_a);
    CHECK(b.grad().dtype() == of_b);
    CHECK(a.grad().to_vector<float>() == a2.grad().to_vector<float>());
    CHECK(b.grad().to_vector<float>() == b2.grad().to_vector<float>());
  }
}

TEST_CASE("mixed sums broadcast: the gradient is summed before it is rounded") {
  manual_seed(13);
  for (const Device device : {Device::cpu(), Device::cuda()}) {
    Tensor x = randn({30, 8}).to(device), bias = randn({8}, bf16).to(device), bias2 = bias.clone();
    bias.set_requires_grad(), bias2.set_requires_grad();
    const Tensor y = x + bias, y2 = x + cast(bias2, f32);
    CHECK(y.to_vector<float>() == y2.to_vector<float>());
    y.backward(x), y2.backward(x);
    CHECK(bias.grad().dtype() == bf16);
    CHECK(bias.grad().to_vector<float>() == bias2.grad().to_vector<float>());
  }
}

TEST_CASE("f16 with bf16, and f64 with either, are promoted as usual") {
  const Device gpu = Device::cuda();
  CHECK((full({3}, 1.5, f16, gpu) + full({3}, 2.0, bf16, gpu)).dtype() == f32);
  CHECK((full({3}, 1.5, f64, gpu) + full({3}, 2.0, bf16, gpu)).dtype() == f64);
  CHECK((full({3}, 1.5, f16, gpu) + full({3}, 2.0, bf16, gpu)).to_vector<float>() ==
        std::vector<float>(3, 3.5f));
}

}  // namespace
}  // namespace halftone::test
