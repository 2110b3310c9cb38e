// Errors of sums in f32 on CPU backends, compared with sums in f64. A result is as accurate as one
// or two roundings of it, for any number of terms.
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include <doctest/doctest.h>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/formats/survey.h>
#include <halftone/core/tensor.h>
#include <halftone/policy/session.h>

#include "../support.h"
#include "backends/simd_levels.h"
#include "ops/properties.h"
#include "simd_levels.h"

namespace halftone::test::numerics_sums_test {
namespace {

constexpr double eps = 0x1p-23;

using Tensors = std::vector<Tensor>;
using Function = std::function<Tensor(const Tensors&)>;

/// The result and the gradients of inputs in a dtype, for a gradient dy of the result.
Tensors results_in(DType dtype, const Function& function, const Tensors& inputs, const Tensor& dy) {
  Tensors leaves;
  for (const Tensor& x : inputs) leaves.push_back(cast(x, dtype).clone().set_requires_grad());
  const Tensor y = function(leaves);
  y.backward(cast(dy, dtype));
  Tensors results{y.detach()};
  for (const Tensor& leaf : leaves) results.push_back(leaf.grad());
  return results;
}

/// The largest error among some of the results: root mean squares relative to those of the truth,
/// in units of the last place of f32.
double error_of(const Function& function, const Tensors& inputs, const Tensor& dy,
                const std::vector<std::size_t>& which) {
  const Tensors truth = results_in(f64, function, inputs, dy),
                got = results_in(f32, function, inputs, dy);
  double worst = 0;
  for (const std::size_t k : which) {
    const auto a = got[k].to_vector<double>(), b = truth[k].to_vector<double>();
    double squares = 0, scale = 0;
    for (std::size_t i = 0; i < b.size(); ++i)
      squares += (a[i] - b[i]) * (a[i] - b[i]), scale += b[i] * b[i];
    worst = std::max(worst, std::sqrt(squares / scale) / eps);
  }
  return worst;
}

/// Numbers that are exact in f32.
Tensor numbers(const Shape& shape) { return cast(cast(randn(shape), f32), f64); }

template <class Body> void on_cpu_backends(const Body& body) {
  for (const Target& target : cpu_targets()) {
    INFO(std::string(target.backend));
    const TargetScope scope(target);
    manual_seed(5);
    body();
  }
}

TEST_CASE("sums of columns do not get worse with their length") {
  on_cpu_backends([] {
    for (const int64_t rows : {20, 200, 3000})
      for (const int64_t columns : {5, 16, 70}) {
        CAPTURE(rows);
        CAPTURE(columns);
        const Function total = [](const Tensors& in) { return sum(in[0], {0}); };
        CHECK(error_of(total, {numbers({rows, columns})}, numbers({columns}), {0}) < 1.3);
      }
  });
}

TEST_CASE("gradients of normalizations' weights are sums as accurate as their terms") {
  on_cpu_backends([] {
    const Function layer = [](const Tensors& in) {
      return layer_norm(in[0], {in[0].size(-1)}, in[1], in[2]);
    };
    const Tensor rows = numbers({400, 48});
    CHECK(error_of(layer, {rows, numbers({48}), numbers({48})}, numbers({400, 48}), {2, 3}) < 1.4);
    for (const int64_t channels : {4, 24}) {
      CAPTURE(channels);
      const Tensor images = numbers({6, channels, 20, 20}), dy = numbers({6, channels, 20, 20});
      const Tensor mean = zeros({channels}), variance = ones({channels});
      const Function batch = [&](const Tensors& in) {
        return batch_norm(in[0], in[1], in[2], mean.clone(), variance.clone(), {.training = true});
      };
      CHECK(error_of(batch, {images, numbers({channels}), numbers({channels})}, dy, {2, 3}) < 1.4);
    }
  });
}

TEST_CASE("batch norm far from zero subtracts the mean first") {
  on_cpu_backends([] {
    // The mean, 1000, is exact: result and gradient have no reason for an error.
    std::vector<double> sides;
    for (int i = 0; i < 8 * 3 * 8 * 8; ++i) sides.push_back(i % 2 ? 1000.25 : 999.75);
    const Tensor x = from_vector<double>(sides, {8, 3, 8, 8}, f64);
    const Tensor mean = full({3}, 1000), variance = ones({3});
    for (const bool training : {true, false}) {
      CAPTURE(training);
      const Function batch = [&](const Tensors& in) {
        return batch_norm(in[0], in[1], in[2], cast(mean, in[0].dtype()).clone(),
                          cast(variance, in[0].dtype()).clone(), {.training = training});
      };
      const Tensor dy = numbers(x.shape());
      CHECK(error_of(batch, {x, numbers({3}), numbers({3})}, dy, {0}) < 1.3);
    }
  });
}

TEST_CASE("the gradient of a convolution's bias is as accurate as other sums") {
  on_cpu_backends([] {
    for (const int64_t filters : {4, 16}) {
      CAPTURE(filters);
      const Function convolution = [](const Tensors& in) { return conv2d(in[0], in[1], in[2]); };
      CHECK(error_of(convolution,
                     {numbers({3, 8, 32, 32}), numbers({filters, 8, 3, 3}), numbers({filters})},
                     numbers({3, filters, 30, 30}), {3}) < 1.3);
    }
  });
}

TEST_CASE("small products are sums of short chains") {
  on_cpu_backends([] {
    const Function product = [](const Tensors& in) { return matmul(in[0], in[1]); };
    for (const int64_t rows : {1, 3, 20})
      for (const int64_t depth : {100, 300}) {
        CAPTURE(rows);
        CAPTURE(depth);
        const Tensors inputs{numbers({rows, depth}), numbers({depth, 24})};
        CHECK(error_of(product, inputs, numbers({rows, 24}), {0}) < 2);
      }
  });
}

}  // namespace
}  // namespace halftone::test::numerics_sums_test

// Quantizers that round by an average: the choice of the neighbor by hand, against a search in f64,
// with the reference's bits on the CPU, and in views.

namespace halftone::test::averaged_test {
namespace {

using Values = std::vector<float>;

Tensor tensor_of(const Values& values) { return from_vector(values, {int64_t(values.size())}); }

Values rounded(const Quantizer& quantizer, const Values& x, const Values& average) {
  return quantized(tensor_of(x), {.quantizer = quantizer, .average = tensor_of(average)})
      .to_vector<float>();
}

Quantizer by_average(const char* name) {
  Quantizer quantizer = *quantizer_named(name);
  quantizer.average = 0.9;
  check_quantizer("test", quantizer);
  return quantizer;
}

TEST_CASE("average: of two neighbors on the grid, the one that is nearer to the average") {
  const Quantizer e2m1 = by_average("e2m1");  // 0 0.5 1 1.5 2 3 4 6
  CHECK(rounded(e2m1, {2.4f, 2.4f, 2.4f, 2.4f}, {2.6f, 1, 9, 2.5f}) == Values{3, 2, 3, 3});
  CHECK(rounded(e2m1, {-2.4f, -2.4f, -2.4f, -2.4f}, {-2.6f, -2.4f, 5, -2.5f}) ==
        Values{-3, -2, -2, -3});
  CHECK(rounded(e2m1, {3, -0.5f, 0, 0}, {0, 8, 5, -5}) == Values{3, -0.5f, 0, 0});
  CHECK(rounded(e2m1, {100, -100, 5.9f}, {0, 0, 0}) == Values{6, -6, 4});
  CHECK(std::isnan(rounded(e2m1, {std::numeric_limits<float>::quiet_NaN()}, {1})[0]));
  // Without an average: to the nearest, ties away from zero.
  CHECK(
      quantized(tensor_of({2.4f, 2.5f, -2.5f, 5, 0.25f}), {.quantizer = e2m1}).to_vector<float>() ==
      Values{2, 3, -3, 6, 0.5f});
  CHECK(quantized(scalar(2.4), {.quantizer = e2m1, .average = scalar(2.9)}).item() == 3);
  CHECK(described(e2m1) == "e2m1, by an average (0.9)");
}

TEST_CASE("average: the neighbors are those under the scale of x, on every backend") {
  Numbers numbers(7);
  Values x, average;
  for (int i = 0; i < 4 * 96; ++i) {
    x.push_back(std::ldexp(numbers.uniform(-2, 2), int(numbers.word() % 8) - 4));
    average.push_back(x.back() * numbers.uniform(0.5f, 1.5f));
  }
  const Tensor of_x = from_vector(x, {4, 96}), of_average = from_vector(average, {4, 96});
  for (const char* name : {"e4m3", "mxfp4", "nvfp4", "fp8_tensor", "fp8_block"}) {
    CAPTURE(name);
    const Quantizer quantizer = by_average(name);
    const QuantizeCall call{.quantizer = quantizer, .average = of_average};
    const Values y = quantized(of_x, call).to_vector<float>();
    Quantizer directed = *quantizer_named(name);
    directed.rounding = Rounding::down;
    const Values down = quantized(of_x, {.quantizer = directed}).to_vector<float>();
    directed.rounding = Rounding::up;
    const Values up = quantized(of_x, {.quantizer = directed}).to_vector<float>();
    int moved = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double below = double(average[i]) - double(down[i]);
      const double above = double(up[i]) - double(average[i]);
      CHECK(y[i] == (below > above ? up[i] : down[i]));
      moved += y[i] != quantized(of_x, {.quantizer = *quantizer_named(name)}).data<float>()[i];
    }
    CHECK(moved > 20);
    const CpuBackendScope scope("reference");
    CHECK(bits_of(quantized(of_x, call)) == bits_of(from_vector(y, {4, 96})));
  }
}

TEST_CASE("average: a short dtype and a view get the same numbers") {
  Numbers numbers(8);
  Values x;
  for (int i = 0; i < 64 * 40; ++i) x.push_back(numbers.uniform(-2, 2));
  const Tensor w = cast(from_vector(x, {40, 64}), bf16);
  const Tensor average = cast(w, f32) * scalar(1.1);
  const Quantizer quantizer = by_average("mxfp4");
  const QuantizeCall call{.quantizer = quantizer, .average = average};
  const Tensor y = quantized(w, call);
  CHECK(y.dtype() == bf16);
  CHECK(bits_of(y) == bits_of(quantized(cast(w, f32), call)));
  const auto turned = [](const Tensor& t) { return views::transpose(t, 0, 1); };
  const QuantizeCall turned_call{.quantizer = quantizer, .average = turned(average)};
  for (const Sums sums : {Sums::over_rows, Sums::over_tokens})
    CHECK(bits_of(policy::quantized_along(w, sums, call)) ==
          bits_of(turned(quantized(turned(w), turned_call))));
}

TEST_CASE("average: surveys count the results") {
  const Quantizer e2m1 = by_average("e2m1");
  const Tensor row = new_survey_row(Device::cpu());
  const QuantizeCall call{
      .quantizer = e2m1, .average = tensor_of({0, 2.6f, 9, 0.4f}), .survey = row};
  CHECK(quantized(tensor_of({0.2f, 2.4f, 100, 0.5f}), call).to_vector<float>() ==
        Values{0, 3, 6, 0.5f});
  const SurveySums sums = Survey::from(row).sums;
  CHECK(sums.to_zero == 1);
  CHECK(sums.saturated == 1);
  CHECK(sums.changed == 3);
  const double error = 0.2f * double(0.2f) + (3 - double(2.4f)) * (3 - double(2.4f)) + 94 * 94.0;
  CHECK(sums.sum_e2 == doctest::Approx(error));
}

TEST_CASE("average: other choices of the neighbor are refused") {
  const auto refusal = [](const auto& change) {
    Quantizer quantizer = *quantizer_named("nvfp4");
    quantizer.average = 0.9;
    change(quantizer);
    return message_of<UsageError>([&] { check_quantizer("test", quantizer); });
  };
  CHECK(refusal([](Quantizer& q) { q.average = 1; }) ==
        "[test] an average keeps the share 1 of itself in each step. Choose a number above 0 and "
        "below 1.");
  CHECK_FALSE(refusal([](Quantizer& q) { q.average = -0.5; }).empty());
  CHECK_FALSE(refusal([](Quantizer& q) { q.average = std::nan(""); }).empty());
  CHECK(refusal([](Quantizer& q) { q.rounding = Rounding::stochastic; }) ==
        "[test] an average chooses the neighbor on the grid, and the quantizer has another "
        "rounding than nearest_even as well. Leave one out.");
  CHECK_FALSE(refusal([](Quantizer& q) { q.hadamard = 16; }).empty());
  CHECK_FALSE(refusal([](Quantizer& q) { q.clip.rms = 3; }).empty());
  CHECK_FALSE(refusal([](Quantizer& q) { q.scaling.targets = {6, 4}; }).empty());
  CHECK_FALSE(refusal([](Quantizer& q) { q.scaling.corrected = true; }).empty());
  CHECK_THROWS_AS(quantize(ones({4}), by_average("e2m1")), UsageError);
  CHECK_THROWS_AS(quantize_in_place(ones({4}), {.quantizer = by_average("e2m1")}), UsageError);
}

}  // namespace
}  // namespace halftone::test::averaged_test
