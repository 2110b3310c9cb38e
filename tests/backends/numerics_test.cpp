// Cases in which a direct formula loses digits, or the value itself: infinities next to the chosen
// element, squares that overflow or vanish, means and sums in short floats, logarithms of sums with
// large maxima. On every backend, compared with numbers computed by hand or in f64.
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "../support.h"
#include "backends/simd_levels.h"
#include "ops/properties.h"
#include "simd_levels.h"

namespace halftone::test::numerics_test {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

/// Runs body(device) on every backend.
template <class Body> void everywhere(const Body& body) {
  for (const Target& target : targets()) {
    INFO(std::string(target.backend));
    const TargetScope scope(target);
    body(target.device);
  }
}

std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }

/// The root of the mean square of x - truth, relative to that of truth.
double relative_rms(const Tensor& x, const Tensor& truth) {
  const auto a = values(x), b = values(truth);
  double squares = 0, scale = 0;
  for (std::size_t i = 0; i < b.size(); ++i)
    squares += (a[i] - b[i]) * (a[i] - b[i]), scale += b[i] * b[i];
  return std::sqrt(squares / scale);
}

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

/// The result and the gradients of inputs, which are leaves of a dtype.
std::vector<Tensor> gradients_of(const Function& function, const std::vector<Tensor>& inputs,
                                 DType dtype, const Tensor& dy = {}) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : inputs) leaves.push_back(cast(x, dtype).clone().set_requires_grad());
  const Tensor y = function(leaves);
  y.backward(dy.defined() ? cast(dy, y.dtype()) : ones(y.shape(), y.dtype(), y.device()));
  std::vector<Tensor> results{y.detach()};
  for (const Tensor& leaf : leaves) results.push_back(leaf.grad());
  return results;
}

TEST_CASE("nll_loss takes the target's entry, for any values of the others") {
  everywhere([](Device device) {
    const Tensor target = from_vector<int64_t>({0}, {1}, i64, device);
    for (const DType dtype : tested_dtypes) {
      const auto [loss, gradient] = [&] {
        const auto results = gradients_of([&](const auto& in) { return nll_loss(in[0], target); },
                                          {from({{-0.5, -1, -inf}}, dtype, device)}, dtype);
        return std::pair(results[0], results[1]);
      }();
      CHECK(loss.item() == 0.5);
      CHECK(values(gradient) == std::vector<double>{-1, 0, 0});
    }
    // Class weights, a row that is ignored though it holds a NaN, and every reduction.
    const Tensor logs = from({{-1, -inf, -2}, {NAN, NAN, NAN}, {-inf, -3, -inf}}, f32, device),
                 targets = from_vector<int64_t>({2, -100, 1}, {3}, i64, device),
                 weight = from({1, 2, 4}, f32, device);
    CHECK(values(nll_loss(logs, targets, {.weight = weight, .reduction = LossReduction::none})) ==
          std::vector<double>{8, 0, 6});
    CHECK(nll_loss(logs, targets, {.weight = weight, .reduction = LossReduction::sum}).item() ==
          14);
    const auto results = gradients_of(
        [&](const auto& in) { return nll_loss(in[0], targets, {.weight = weight}); }, {logs}, f32);
    CHECK(results[0].item() == doctest::Approx(14.0 / 6));
    const auto gradient = values(results[1]);
    for (int i = 0; i < 9; ++i)
      CHECK(gradient[std::size_t(i)] == doctest::Approx(i == 2   ? -4.0 / 6
                                                        : i == 7 ? -2.0 / 6
                                                                 : 0.0));
    // A target of infinite weight in probability is infinite, and so is its loss.
    CHECK(nll_loss(from({{-inf, 0}}, f32, device), target).item() == inf);
  });
}

TEST_CASE("adaptive averages of no images") {
  everywhere([](Device device) {
    Tensor x = ones({0, 3, 4, 4}, f32, device).set_requires_grad();
    const Tensor y = adaptive_avg_pool2d(x, 2);
    CHECK(y.shape() == Shape{0, 3, 2, 2});
    sum(y).backward();
    CHECK(x.grad().shape() == x.shape());
  });
}

TEST_CASE("losses of infinite logits that are not the target are finite") {
  everywhere([](Device device) {
    const Tensor target = from_vector<int64_t>({1}, {1}, i64, device);
    const auto results = gradients_of([&](const auto& in) { return cross_entropy(in[0], target); },
                                      {from({{-inf, 2, 2, -inf}}, f32, device)}, f32);
    CHECK(results[0].item() == doctest::Approx(std::log(2.0)));
    CHECK(values(results[1]) == std::vector<double>{0, -0.5, 0.5, 0});
    // Smoothing includes every class.
    const Tensor first = from({{-inf, 2, 2}}, f32, device);
    CHECK(cross_entropy(first, target, {.label_smoothing = 0.1}).item() == inf);
  });
}

TEST_CASE("the variance of short floats is computed in f32") {
  everywhere([](Device device) {
    std::vector<double> far, near;
    for (int i = 0; i < 1024; ++i) {
      far.push_back(i % 2 ? 1032 : 968);
      near.push_back(i % 2 ? 258 : 256);
    }
    const Tensor a = from_vector<double>(far, {1024}, f16, device),
                 b = from_vector<double>(near, {1024}, bf16, device);
    CHECK(var(a).dtype() == f16);
    CHECK(var(a).item() == 1025);  // 1024 * 1024 / 1023
    CHECK(var(b).item() == 1);
    CHECK(values(var(reshape(a, {2, 512}), {1}, 0)) == std::vector<double>{1024, 1024});
    // 2 (x - mean) / (n - 1), each rounded once
    const auto results = gradients_of([](const auto& in) { return var(in[0]); }, {b}, bf16);
    CHECK(values(results[1])[0] == double(float(BFloat16(-2.0f / 1023))));
    CHECK(values(results[1])[1] == double(float(BFloat16(2.0f / 1023))));
  });
}

TEST_CASE("norms whose squares overflow or vanish") {
  everywhere([](Device device) {
    for (const double size : {1e-25, 1e-40, 1e30, 3e38 / 2}) {
      CAPTURE(size);
      const auto results = gradients_of([](const auto& in) { return norm(in[0]); },
                                        {full({4}, size, f32, device)}, f32);
      CHECK(results[0].item() == doctest::Approx(2 * double(float(size))).epsilon(1e-6));
      for (const double g : values(results[1])) CHECK(g == doctest::Approx(0.5).epsilon(1e-6));
    }
    const auto of_zero =
        gradients_of([](const auto& in) { return norm(in[0]); }, {zeros({4}, f32, device)}, f32);
    CHECK(of_zero[0].item() == 0);
    CHECK(values(of_zero[1]) == std::vector<double>(4, 0));
    const Tensor rows = from({{3e30, 4e30}, {0, 0}}, f32, device);
    const auto of_rows = gradients_of([](const auto& in) { return norm(in[0], {1}); }, {rows}, f32);
    CHECK(values(of_rows[0])[0] == doctest::Approx(5e30));
    CHECK(values(of_rows[1])[0] == doctest::Approx(0.6));
    CHECK(values(of_rows[1])[2] == 0);
    // a / b by b is -a / b^2
    const auto quotient =
        gradients_of([](const auto& in) { return in[0] / in[1]; },
                     {full({1}, 1e-30, f32, device), full({1}, 1e-24, f32, device)}, f32);
    CHECK(values(quotient[2])[0] == doctest::Approx(-1e18));
  });
}

TEST_CASE("the gradient of norm in short floats is rounded once") {
  everywhere([](Device device) {
    manual_seed(3);
    const Tensor x = randn({7, 33}, f64, device), dy = randn({7}, f64, device);
    for (const DType dtype : {bf16, f16}) {
      const Tensor rounded = cast(cast(x, dtype), f64), seed = cast(cast(dy, dtype), f64);
      const Function rows = [](const auto& in) { return norm(in[0], {1}); };
      const auto truth = gradients_of(rows, {rounded}, f64, seed),
                 got = gradients_of(rows, {rounded}, dtype, seed);
      CHECK(relative_rms(got[1], truth[1]) <= 0.35 * epsilon(dtype));
    }
  });
}

TEST_CASE("the logarithm of a sum of exponentials keeps its digits next to a large maximum") {
  everywhere([](Device device) {
    const std::vector<double> small{0, 1, -1, -0.4375}, offsets{0, 1000, -1000, 20000};
    const double sum = std::exp(0.0) + std::exp(1.0) + std::exp(-1.0) + std::exp(-0.4375);
    const Tensor target = from_vector<int64_t>({1}, {1}, i64, device);
    for (const double offset : offsets) {
      CAPTURE(offset);
      std::vector<double> logits = small;
      for (double& x : logits) x += offset;
      const Tensor x = from_vector<double>(logits, {1, 4}, f32, device);
      const auto close = [](double wanted) { return doctest::Approx(wanted).epsilon(1e-6); };
      const auto logs = values(log_softmax(x, 1));
      for (std::size_t i = 0; i < 4; ++i) CHECK(logs[i] == close(small[i] - std::log(sum)));
      for (const double smoothing : {0.0, 0.25}) {
        const auto results = gradients_of(
            [&](const auto& in) {
              return cross_entropy(in[0], target, {.label_smoothing = smoothing});
            },
            {x}, f32);
        double mean = 0;
        for (const double v : small) mean += (std::log(sum) - v) / 4;
        CHECK(results[0].item() == close((1 - smoothing) * (std::log(sum) - 1) + smoothing * mean));
        for (std::size_t i = 0; i < 4; ++i) {
          const double p = std::exp(small[i]) / sum;
          CHECK(values(results[1])[i] == close(p - (i == 1 ? 1 - smoothing : 0) - smoothing / 4));
        }
      }
    }
  });
}

TEST_CASE("logsumexp of only -inf is -inf and has no gradient") {
  everywhere([](Device device) {
    for (const DType dtype : tested_dtypes) {
      const auto results = gradients_of([](const auto& in) { return logsumexp(in[0], 1); },
                                        {from({{-inf, -inf}, {0, -inf}}, dtype, device)}, dtype);
      CHECK(values(results[0]) == std::vector<double>{-inf, 0});
      CHECK(values(results[1]) == std::vector<double>{0, 0, 1, 0});
    }
  });
}

Function attention(AttentionOptions options) {
  return [=](const std::vector<Tensor>& in) {
    AttentionOptions with_mask = options;
    if (in.size() > 3) with_mask.mask = in[3];
    return scaled_dot_product_attention(in[0], in[1], in[2], with_mask);
  };
}

/// Errors of y and of all gradients in a dtype, relative to its epsilon.
std::vector<double> attention_errors(const std::vector<Tensor>& inputs, const Tensor& dy,
                                     DType dtype, const AttentionOptions& options) {
  std::vector<Tensor> rounded;
  for (const Tensor& x : inputs) rounded.push_back(cast(cast(x, dtype), f64));
  const Tensor seed = cast(cast(dy, dtype), f64);
  const auto truth = gradients_of(attention(options), rounded, f64, seed),
             got = gradients_of(attention(options), rounded, dtype, seed);
  std::vector<double> errors;
  for (std::size_t i = 0; i < truth.size(); ++i)
    errors.push_back(relative_rms(got[i], truth[i]) / epsilon(dtype));
  return errors;
}

TEST_CASE("gradients of attention with few queries or keys are as accurate as their dtype") {
  everywhere([](Device device) {
    for (const DType dtype : {bf16, f16})
      for (const auto& [l, s, causal] : {std::tuple(3, 129, true),
                                         {3, 129, false},
                                         {129, 3, false},
                                         {5, 600, false},
                                         {40, 40, true}}) {
        CAPTURE(facts(dtype).name);
        CAPTURE(l);
        CAPTURE(s);
        CAPTURE(causal);
        manual_seed(5);
        // Scores of several units: most rows have one large weight, and small gradients.
        const Tensor q = 3.0 * randn({1, 2, l, 16}, f64, device),
                     k = 1.5 * randn({1, 2, s, 16}, f64, device),
                     v = randn({1, 2, s, 16}, f64, device), dy = randn({1, 2, l, 16}, f64, device);
        for (const double error : attention_errors({q, k, v}, dy, dtype, {.causal = causal}))
          CHECK(error <= 0.5);
      }
  });
}

TEST_CASE("attention to a single key has no gradients but the value's") {
  everywhere([](Device device) {
    manual_seed(10);
    for (const DType dtype : {f32, bf16, f16}) {
      const Tensor q = randn({1, 2, 32, 16}, dtype, device),
                   k = randn({1, 2, 1, 16}, dtype, device), v = randn({1, 2, 1, 16}, dtype, device);
      const auto results = gradients_of(attention({.scale = 0.37}), {q, k, v}, dtype);
      for (const std::size_t i : {1, 2})
        for (const double g : values(results[i]))
          CHECK(std::abs(g) <= (dtype == f32 ? 1e-5 : 1e-12));
    }
  });
}

TEST_CASE("attention with scores in the thousands") {
  everywhere([](Device device) {
    manual_seed(6);
    // Every score is exactly 4096 and a few sixteenths, so that only the softmax loses digits.
    const auto quarters = [&] {
      return cat({cast(randint(-4, 5, {1, 1, 33, 8}, i64, device), f64) * 0.25,
                  full({1, 1, 33, 1}, 64, f64, device)},
                 3);
    };
    const Tensor q = quarters(), k = quarters(), v = randn({1, 1, 33, 8}, f64, device),
                 dy = randn({1, 1, 33, 8}, f64, device);
    for (const bool causal : {false, true})
      for (const double error :
           attention_errors({q, k, v}, dy, f32, {.causal = causal, .scale = 1}))
        CHECK(error <= 100);  // of columns that are 64 times a difference of weights
  });
}

TEST_CASE("gradients through a mask are as accurate as their dtype") {
  everywhere([](Device device) {
    manual_seed(7);
    const Tensor q = 2.0 * randn({2, 2, 9, 16}, f64, device),
                 k = 2.0 * randn({2, 2, 17, 16}, f64, device),
                 v = randn({2, 2, 17, 16}, f64, device), dy = randn({2, 2, 9, 16}, f64, device),
                 mask = randn({9, 17}, f64, device);
    for (const DType dtype : {bf16, f16}) {
      for (const double error : attention_errors({q, k, v, mask}, dy, dtype, {}))
        CHECK(error <= 0.5);
      const auto of_region = gradients_of(
          [&](const auto& in) { return amp::autocast(dtype, [&] { return attention({})(in); }); },
          {q, k, v, mask}, f32, dy);
      CHECK(of_region[0].dtype() == dtype);
      CHECK(of_region[4].dtype() == f32);
    }
  });
}

TEST_CASE("batch statistics of many values with few digits") {
  everywhere([](Device device) {
    for (const int64_t channels : {1, 3, 16, 40}) {
      CAPTURE(channels);
      const int64_t pixels = 1 << 15;
      manual_seed(8);
      const Tensor x = cast(randint(0, 9, {pixels, channels}), f64) * 0.25 + 3.0;
      const Tensor truth = var(x, {0}, 0), mean_truth = mean(x, {0});
      Tensor mean = empty({channels}, f32, device), variance = empty({channels}, f32, device);
      backend_for(mean).batch_norm_statistics(cast(x, f32).to(device), mean, variance);
      const auto got = values(variance), wanted = values(truth), got_mean = values(mean),
                 wanted_mean = values(mean_truth);
      for (std::size_t c = 0; c < wanted.size(); ++c) {
        CHECK(got[c] == doctest::Approx(wanted[c]).epsilon(6e-7));
        CHECK(got_mean[c] == doctest::Approx(wanted_mean[c]).epsilon(2e-7));
      }
    }
  });
}

/// The batch of one shape with the matrix of another.
Shape with_batch(const Shape& matrix, const Shape& batch) {
  Shape shape = batch;
  shape[batch.rank() - 2] = matrix[matrix.rank() - 2];
  shape[batch.rank() - 1] = matrix[matrix.rank() - 1];
  return shape;
}

TEST_CASE("the gradient of a matrix that is used by a whole batch is rounded once") {
  everywhere([](Device device) {
    manual_seed(9);
    const auto draw = [&](const Shape& shape) { return randn(shape, f64, device); };
    struct Shapes {
      Shape a, b, c;
    };
    for (const Shapes& s :
         {Shapes{{64, 5, 7}, {1, 7, 6}, {64, 5, 6}}, Shapes{{1, 5, 7}, {64, 7, 6}, {64, 5, 6}},
          Shapes{{5, 7}, {64, 7, 6}, {64, 5, 6}},
          Shapes{{8, 1, 5, 7}, {1, 16, 7, 6}, {8, 16, 5, 6}},
          Shapes{{8, 16, 5, 7}, {16, 7, 6}, {8, 16, 5, 6}}})
      for (const DType dtype : {f64, f32, bf16, f16}) {
        CAPTURE(s.a);
        CAPTURE(s.b);
        CAPTURE(facts(dtype).name);
        const Tensor a = cast(cast(draw(s.a), dtype), f64), b = cast(cast(draw(s.b), dtype), f64),
                     dc = cast(cast(draw(s.c), dtype), f64);
        const Function product = [](const auto& in) { return matmul(in[0], in[1]); };
        const auto truth = gradients_of(product, {a, b}, f64, dc),
                   got = gradients_of(product, {a, b}, dtype, dc);
        for (std::size_t i = 0; i < 3; ++i) {
          CHECK(got[i].shape() == truth[i].shape());
          CHECK(relative_rms(got[i], truth[i]) <= (size_of(dtype) < 4 ? 0.35 : 4) * epsilon(dtype));
        }
        // and the gradients are those of the sum of single products
        if (dtype != f64) continue;
        const Tensor per_batch = matmul(transpose(expand(a, with_batch(s.a, s.c)), -2, -1), dc);
        const Tensor summed = reduce_to(per_batch, s.b);
        CHECK(relative_rms(got[2], summed) <= 1e-14);
      }
  });
}

TEST_CASE("gradients of 1 x 1 weights with a stride and few channels") {
  everywhere([](Device device) {
    for (const Pair stride : {Pair(2), Pair(2, 1), Pair(1, 2)})
      for (const int64_t channels : {3, 16, 20}) {
        manual_seed(11);
        const Tensor x = randn({4, channels, 14, 8}, f64, device),
                     w = randn({11, channels, 1, 1}, f64, device);
        const Function convolution = [=](const auto& in) {
          return conv2d(in[0], in[1], {}, {.stride = stride});
        };
        const auto truth = gradients_of(convolution, {x, w}, f64),
                   got = gradients_of(convolution, {x, w}, f32);
        for (std::size_t i = 0; i < 3; ++i) CHECK(relative_rms(got[i], truth[i]) <= 1e-6);
      }
  });
}

TEST_CASE("ties of a maximum share its gradient, also in short floats") {
  everywhere([](Device device) {
    const Tensor x = zeros({1, 300}, bf16, device);
    const auto results = gradients_of([](const auto& in) { return max(in[0], {1}); }, {x}, bf16,
                                      full({1}, 3, f32, device));
    for (const double g : values(results[1])) CHECK(g == double(float(BFloat16(0.01f))));
    // Elements below the maximum get 0, also from an infinite gradient.
    const auto infinite =
        gradients_of([](const auto& in) { return max(in[0], {1}); }, {from({{1, 2}}, f32, device)},
                     f32, full({1}, inf, f32, device));
    CHECK(values(infinite[1]) == std::vector<double>{0, inf});
  });
}

}  // namespace
}  // namespace halftone::test::numerics_test

// Errors of sums in f32 on CPU backends, compared with sums in f64. A result is as accurate as one
// or two roundings of it, for any number of terms.

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
