// Products that add up on a grid: every backend's bits against a loop written here, layouts and
// dtypes, and the effect of a short accumulator on long sums.
#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/tensor.h>

#include "backends/float_bits.h"
#include "simd_levels.h"

namespace halftone::test::accumulators_test {
namespace {

/// c = a b + bias, accumulated as core/formats/number_format.h describes.
std::vector<float> summed(const Accumulator& accumulator, const Tensor& a, const Tensor& b,
                          const Tensor& bias) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  const std::vector<float> left = a.to_vector<float>(), right = b.to_vector<float>();
  const int64_t chunk = accumulator.chunk > 0 ? accumulator.chunk : k;
  std::vector<float> c;
  for (int64_t i = 0; i < m * n; ++i) {
    volatile float total = 0;
    for (int64_t first = 0; first < k; first += chunk) {
      volatile float sum = 0;
      for (int64_t p = first; p < std::min(k, first + chunk); ++p) {
        const volatile float product =
            left[std::size_t(i / n * k + p)] * right[std::size_t(p * n + i % n)];
        const volatile float longer = sum + product;
        sum = round_to(accumulator.grid, longer, accumulator.rounding);
      }
      total = total + sum;
    }
    if (bias.defined()) total = total + bias.to_vector<float>()[std::size_t(i % n)];
    c.push_back(float(total));
  }
  return c;
}

TEST_CASE("accumulators: sums are rounded to the grid term by term, on every backend") {
  Numbers numbers(14);
  const Tensor a = from_vector(numbers.many(5 * 70), {5, 70}),
               b = from_vector(numbers.many(70 * 300), {70, 300});
  const Tensor bias = from_vector(numbers.many(300), {300});
  for (const char* format : {"f16", "bf16", "e8m13", "e4m3", "f32"})
    for (const Rounding rounding :
         {Rounding::nearest_even, Rounding::toward_zero, Rounding::to_odd, Rounding::up})
      for (const int chunk : {0, 1, 16, 32}) {
        const Accumulator accumulator{*number_format_named(format), rounding, chunk};
        INFO(std::string(format), ", chunk ", chunk);
        const std::vector<float> wanted = summed(accumulator, a, b, bias);
        for (const std::string_view backend : {"reference", "cpu"}) {
          const CpuBackendScope scope(backend);
          Tensor c = empty({5, 300});
          backend_for(c).matmul_accumulating(a, b, bias, accumulator, c);
          CHECK(bits_of(c) == bits_of(wanted));
        }
      }
}

TEST_CASE("accumulators: batches, transposed and short operands") {
  Numbers numbers(15);
  const Tensor a = cast(from_vector(numbers.many(3 * 4 * 20), {3, 4, 20}), bf16);
  const Tensor b =
      views::transpose(cast(from_vector(numbers.many(3 * 6 * 20), {3, 6, 20}), bf16), 1, 2);
  const Accumulator accumulator{formats::f16, Rounding::nearest_even, 8};
  for (const DType dtype : {bf16, f32}) {
    std::vector<std::vector<uint32_t>> results;
    for (const std::string_view backend : {"reference", "cpu"}) {
      const CpuBackendScope scope(backend);
      Tensor c = empty({3, 4, 6}, dtype);
      backend_for(c).matmul_accumulating(a, b, {}, accumulator, c);
      results.push_back(bits_of(c));
    }
    CHECK(results[0] == results[1]);
    Tensor one = empty({4, 6}, dtype);
    const Tensor a1 =
        views::contiguous(cast(views::reshaped(views::slice(a, 0, 1, 1), {4, 20}), f32));
    const Tensor b1 =
        views::contiguous(cast(views::reshaped(views::slice(b, 0, 1, 1), {20, 6}), f32));
    const std::vector<float> wanted =
        cast(from_vector(summed(accumulator, a1, b1, {}), {4, 6}), dtype).to_vector<float>();
    const std::vector<uint32_t> second(results[0].begin() + 24, results[0].begin() + 48);
    CHECK(second == bits_of(wanted));
  }
}

/// The limit of long sums (experiment E8): the relative error of a sum of 4096 positive terms.
TEST_CASE("accumulators: long sums of positive numbers") {
  Numbers numbers(16);
  const int64_t k = 4096;
  const Tensor a = from_vector(numbers.many(k * 4, 0, 1), {4, k}),
               b = from_vector(numbers.many(k * 8, 0, 1), {k, 8});
  const std::vector<float> left = a.to_vector<float>(), right = b.to_vector<float>();
  const auto error = [&](const Accumulator& accumulator) {
    Tensor c = empty({4, 8});
    backend_for(c).matmul_accumulating(a, b, {}, accumulator, c);
    const std::vector<double> got = c.to_vector<double>();
    double total = 0;
    for (int64_t i = 0; i < 32; ++i) {
      double exact = 0;
      for (int64_t p = 0; p < k; ++p)
        exact +=
            double(left[std::size_t(i / 8 * k + p)]) * double(right[std::size_t(p * 8 + i % 8)]);
      total += std::abs(got[std::size_t(i)] / exact - 1) / 32;
    }
    return total;
  };
  const double in_f32 = error({formats::f32}), in_f16 = error({formats::f16}),
               in_bf16 = error({formats::bf16}),
               chunked = error({*number_format_named("e8m13"), Rounding::nearest_even, 128});
  MESSAGE("f32 ", in_f32, ", 14 bits in chunks of 128 ", chunked, ", f16 ", in_f16, ", bf16 ",
          in_bf16);
  CHECK(in_f32 < 2e-6);
  CHECK(chunked < 1e-4);
  CHECK(in_f16 > 100 * chunked);
  CHECK(in_bf16 > 5 * in_f16);
}

}  // namespace
}  // namespace halftone::test::accumulators_test
