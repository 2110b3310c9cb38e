// Products of short floats whose rows are not aligned. Large ones are copied into aligned matrices.
// A bias is added to an f32 sum where a library would round the product first.
#include "gpu.h"

#include <halftone/halftone.h>

namespace halftone::test {
namespace {

struct Passes {
  std::vector<float> y, dx, dweight, dbias;
};

Passes passes_of(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& dy,
                 Device device) {
  const auto leaf = [&](const Tensor& t) {
    Tensor copy = t.clone().to(device);
    return copy.set_requires_grad();
  };
  const Tensor in = leaf(x), w = leaf(weight), b = bias.defined() ? leaf(bias) : bias;
  const Tensor y = linear(in, w, b);
  y.backward(dy.to(device));
  return {y.to_vector<float>(), in.grad().to_vector<float>(), w.grad().to_vector<float>(),
          b.defined() ? b.grad().to_vector<float>() : std::vector<float>{}};
}

/// terms: products of random numbers in a sum. Results that are rounded once differ by at most a
/// unit of their last place, and by the errors of f32 sums.
void check_alike(const std::vector<float>& there, const std::vector<float>& here, DType dtype,
                 int64_t terms) {
  REQUIRE(there.size() == here.size());
  const double sums = double(terms) * epsilon(f32);
  int64_t wrong = 0;
  for (std::size_t i = 0; i < here.size(); ++i)
    wrong += !(std::abs(there[i] - here[i]) <= std::abs(here[i]) * epsilon(dtype) + sums);
  CHECK(wrong == 0);
}

TEST_CASE("a linear layer of odd sizes on the GPU rounds each result once") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  struct Sizes {
    int64_t rows, inputs, outputs;
  };
  // The second has enough products to be copied.
  for (const auto& [rows, inputs, outputs] : {Sizes{31, 70, 13}, Sizes{299, 515, 437}})
    for (const DType dtype : {bf16, f16})
      for (const bool has_bias : {false, true}) {
        if (rows > 100 && has_bias == (dtype == f16)) continue;  // half of them, for time
        INFO(rows, " x ", inputs, " x ", outputs, ", ", std::string(name(dtype)),
             std::string(has_bias ? ", with a bias" : ""));
        manual_seed(5);
        const Tensor x = randn({rows, inputs}).to(dtype), w = randn({outputs, inputs}).to(dtype),
                     dy = randn({rows, outputs}).to(dtype),
                     b = has_bias ? randn({outputs}).to(dtype) : Tensor{};
        const Passes here = passes_of(x, w, b, dy, Device::cpu()),
                     there = passes_of(x, w, b, dy, *gpu);
        check_alike(there.y, here.y, dtype, inputs);
        check_alike(there.dx, here.dx, dtype, outputs);
        check_alike(there.dweight, here.dweight, dtype, rows);
        check_alike(there.dbias, here.dbias, dtype, rows);
      }
}

TEST_CASE("a convolution of single pixels with odd channels on the GPU rounds each result once") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (const int64_t inputs : {3, 64})
    for (const DType dtype : {bf16, f16}) {
      INFO(inputs, " channels, ", std::string(name(dtype)));
      manual_seed(6);
      const Tensor x = randn({4, inputs, 8, 8}).to(dtype), w = randn({33, inputs, 1, 1}).to(dtype),
                   b = randn({33}).to(dtype);
      check_alike(conv2d(x.to(*gpu), w.to(*gpu), b.to(*gpu)).to_vector<float>(),
                  conv2d(x, w, b).to_vector<float>(), dtype, inputs);
    }
}

}  // namespace
}  // namespace halftone::test
