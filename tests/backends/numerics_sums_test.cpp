// Errors of sums in f32 on CPU backends, compared with sums in f64. A result is as accurate as one
// or two roundings of it, for any number of terms.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include <halftone/autograd/ops.h>
#include <halftone/core/factory.h>

#include "ops/properties.h"

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
