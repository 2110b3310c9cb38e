// Matrix products around the edges of tiles and strips, in every layout, with the depth split and
// in large tiles.
#include <halftone/halftone.h>

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
    for (const auto& [m, n, k] : {Sizes{1, 1, 1},
                                  {5, 3, 0},
                                  {0, 4, 3},
                                  {64, 64, 16},
                                  {65, 63, 17},
                                  {3, 130, 9},
                                  {127, 2, 31}})
      for (const bool bias : {false, true})
        check_product({0, m, n, k, dtype, dtype, false, false, bias});
}

TEST_CASE("kernels: matrix products in every layout, of batches, to f32") {
  for (const DType dtype : floating_dtypes)
    for (const bool a : {false, true})
      for (const bool b : {false, true}) {
        check_product({0, 33, 70, 21, dtype, f32, a, b, a});
        check_product({3, 5, 66, 7, dtype, dtype, a, b, true, a});
      }
}

TEST_CASE("kernels: matrix products of long depth are split, those of many tiles use large ones") {
  for (const DType dtype : floating_dtypes) {
    check_product({0, 5, 9, 1201, dtype, dtype, true, false, true});
    check_product({2, 70, 3, 700, dtype, f32});
    check_product({0, 140, 200, 19, dtype, dtype, false, true});
    check_product({4, 65, 128, 8, dtype, dtype});
  }
}

}  // namespace

// Sums and differences of f32 and short floats: one kernel, forward, for residuals and for
// gradients that are added to f32 gradients.

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
  if (!with_gpu()) return;
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
  for (const KernelTarget& target : kernel_targets()) {
    const OnTarget scope(target);
    const Device device = target.device;
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
  if (!with_gpu()) return;
  const Device gpu = Device::cuda();
  CHECK((full({3}, 1.5, f16, gpu) + full({3}, 2.0, bf16, gpu)).dtype() == f32);
  CHECK((full({3}, 1.5, f64, gpu) + full({3}, 2.0, bf16, gpu)).dtype() == f64);
  CHECK((full({3}, 1.5, f16, gpu) + full({3}, 2.0, bf16, gpu)).to_vector<float>() ==
        std::vector<float>(3, 3.5f));
}

}  // namespace
}  // namespace halftone::test
