// Attention in blocks: memory that does not grow with the square of the length, and results that do
// not depend on the number of threads.
#include <algorithm>
#include <cmath>

#include <omp.h>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "simd_levels.h"

namespace halftone::test::attention_test {
namespace {

/// y, dq, dk, dv on one backend.
std::vector<Tensor> results_of(std::string_view backend, const std::vector<Tensor>& inputs,
                               const Tensor& dy, const AttentionOptions& options) {
  const CpuBackendScope scope(backend);
  std::vector<Tensor> leaves;
  for (const Tensor& x : inputs) leaves.push_back(x.clone().set_requires_grad());
  manual_seed(9);
  const Tensor y = scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], options);
  y.backward(dy);
  std::vector<Tensor> results{y.detach()};
  for (const Tensor& leaf : leaves) results.push_back(leaf.grad());
  return results;
}

/// The largest distance, relative to the largest value or 1.
double distance(const Tensor& x, const Tensor& truth) {
  const auto a = x.to_vector<double>(), b = truth.to_vector<double>();
  double largest = 0, scale = 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    largest = d <= largest ? largest : d;  // NaN counts as a difference
    scale = std::max(scale, std::abs(b[i]));
  }
  return largest / scale;
}

TEST_CASE("attention does not depend on the number of threads") {
  const int before = omp_get_max_threads();
  manual_seed(1);
  for (const int64_t queries : {300, 122, 9, 3}) {
    CAPTURE(queries);
    const std::vector<Tensor> inputs{randn({1, 1, queries, 64}), randn({1, 1, 400, 64}),
                                     randn({1, 1, 400, 16})};
    const Tensor dy = randn({1, 1, queries, 16});
    omp_set_num_threads(1);
    const auto one = results_of("cpu", inputs, dy, {.causal = true});
    omp_set_num_threads(3);
    const auto three = results_of("cpu", inputs, dy, {.causal = true});
    omp_set_num_threads(before);
    for (std::size_t i = 0; i < one.size(); ++i)
      CHECK(one[i].to_vector<float>() == three[i].to_vector<float>());
  }
}

TEST_CASE("attention's memory grows linearly with the length") {
  const auto peak = [](std::string_view backend, int64_t length, DType dtype) {
    const CpuBackendScope scope(backend);
    Tensor qkv = cast(randn({1, length, 3 * 16}), dtype).set_requires_grad();
    const int64_t before = memory_report().total_now;
    reset_peak_memory();
    self_attention(qkv, 1, {.dropout = 0.1, .causal = true}).backward(ones({1, length, 16}, dtype));
    return memory_report().total_peak - before;
  };
  for (const DType dtype : {f32, bf16, f16}) {
    CAPTURE(facts(dtype).name);
    const int64_t at_512 = peak("cpu", 512, dtype), at_4096 = peak("cpu", 4096, dtype);
    CHECK(at_4096 < 8 * at_512);  // linear, and blocks that do not grow
    CHECK(at_4096 < int64_t(4096) * 4096);
  }
}

TEST_CASE("queries of one number, in any order of memory") {
  // The stride of a dimension of size 1 does not determine the layout of results.
  for (const DType dtype : {f32, bf16, f64}) {
    manual_seed(3);
    const Tensor q = cast(transpose(randn({1, 5, 2}), 0, 2), dtype);
    const Tensor k = cast(randn({2, 3, 1}), dtype), v = cast(randn({2, 3, 4}), dtype);
    for (const Tensor& x : {q, unsqueeze(q, 0)}) {
      const auto like = [&](const Tensor& t) { return x.rank() == 3 ? t : unsqueeze(t, 0); };
      const Tensor y = scaled_dot_product_attention(x, like(k), like(v));
      const Tensor same = scaled_dot_product_attention(contiguous(x), like(k), like(v));
      CHECK(y.to_vector<double>() == same.to_vector<double>());
    }
  }
}

TEST_CASE("a mask that is trained gets its gradient") {
  manual_seed(2);
  const Tensor q = randn({1, 2, 4, 3}, f64), k = randn({1, 2, 5, 3}, f64),
               v = randn({1, 2, 5, 2}, f64);
  Tensor mask = randn({4, 5}, f64).set_requires_grad();
  const Tensor y = scaled_dot_product_attention(q, k, v, {.mask = mask});
  const Tensor fused = scaled_dot_product_attention(q, k, v, {.mask = mask.detach()});
  CHECK(distance(y, fused) <= 1e-14);
  sum(y * y).backward();
  CHECK(mask.grad().shape() == Shape{4, 5});
  const double h = 1e-6;
  const auto loss = [&](double shift) {
    auto values = mask.to_vector<double>();
    values[7] += shift;
    const Tensor moved =
        scaled_dot_product_attention(q, k, v, {.mask = from_vector(values, {4, 5}, f64)});
    return sum(moved * moved).item();
  };
  CHECK(std::abs((loss(h) - loss(-h)) / (2 * h) - mask.grad().at({1, 2})) <= 1e-7);
}

}  // namespace
}  // namespace halftone::test::attention_test

// Batch norm: its kernels on every instruction set against loops in double.

namespace halftone::test::batch_norm_test {
namespace {

constexpr double eps = 0x1p-23;

/// Returns the place where `got` differs from the truth by more than a few roundings of terms up to
/// `scale`.
template <class Number, class Truth>
std::string beyond(const std::vector<Number>& got, double scale, const Truth& truth) {
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!(std::abs(double(got[i]) - truth(i)) <= 8 * eps * scale))
      return "element " + std::to_string(i) + " is " + std::to_string(got[i]);
  return "";
}

TEST_CASE("batch-norm kernels") {
  Numbers numbers(26);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t c : {1, 3, 16, 50})
      for (const int64_t rows : {1, 9}) {
        const int64_t n = rows * c;
        const std::vector<float> x = numbers.many(n), dy = numbers.many(n), y = numbers.many(n),
                                 a = numbers.many(c), b = numbers.many(c), m = numbers.many(c),
                                 shift = numbers.many(c);
        const auto channel = [&](std::size_t i) { return i % std::size_t(c); };
        for (const bool adds : {false, true})
          for (const bool relu : {false, true}) {
            std::vector<float> result(x.size());
            k.channels.affine(x.data(), m.data(), a.data(), b.data(), adds ? dy.data() : nullptr,
                              relu, result.data(), rows, c);
            CHECK(beyond(result, 8, [&](std::size_t i) {
                    const double value =
                        (double(x[i]) - double(m[channel(i)])) * double(a[channel(i)]) +
                        double(b[channel(i)]) + (adds ? double(dy[i]) : 0.0);
                    return relu ? std::max(0.0, value) : value;
                  }) == "");
          }
        const auto sum = [&](const auto& term) {
          return [&, term](std::size_t j) {
            double total = 0.5;  // sums add to a value
            for (std::size_t i = j; i < std::size_t(n); i += std::size_t(c)) total += term(i);
            return total;
          };
        };
        std::vector<double> first(std::size_t(c), 0.5), second(first);
        k.channel_moments(x.data(), m.data(), rows, c, first.data(), second.data());
        const auto distance = [&](std::size_t i) { return double(x[i]) - double(m[channel(i)]); };
        CHECK(beyond(first, 40, sum(distance)) == "");
        CHECK(beyond(second, 160, sum([&](std::size_t i) { return distance(i) * distance(i); })) ==
              "");
        for (const bool relu : {false, true}) {
          const auto g = [&](std::size_t i) { return relu && y[i] <= 0 ? 0.0 : double(dy[i]); };
          const float* output = relu ? y.data() : nullptr;
          std::fill(first.begin(), first.end(), 0.5), second = first;
          k.channels.sums(x.data(), dy.data(), output, m.data(), rows, c, first.data(),
                          second.data());
          CHECK(beyond(first, 20, sum(g)) == "");
          CHECK(beyond(second, 80, sum([&](std::size_t i) { return g(i) * distance(i); })) == "");
          for (const int wanted : {1, 2, 3}) {
            std::vector<float> dx(x.size(), 7.0f), dresidual(dx);
            k.channels.backward(x.data(), dy.data(), output, m.data(), a.data(), b.data(),
                                shift.data(), wanted & 1 ? dx.data() : nullptr,
                                wanted & 2 ? dresidual.data() : nullptr, rows, c);
            CHECK(beyond(dx, 10, [&](std::size_t i) {
                    return wanted & 1
                               ? double(a[channel(i)]) * g(i) +
                                     double(b[channel(i)]) * distance(i) + double(shift[channel(i)])
                               : 7.0;
                  }) == "");
            CHECK(beyond(dresidual, 1, [&](std::size_t i) { return wanted & 2 ? g(i) : 7.0; }) ==
                  "");
          }
        }
      }
  });
}

TEST_CASE("a maximum of zero passes NaN on") {
  each_level([](const simd::Kernels& k) {
    const std::vector<float> x(40, std::nanf("")), one(40, 1.0f);
    std::vector<float> y(40);
    k.channels.affine(x.data(), one.data(), one.data(), one.data(), nullptr, true, y.data(), 1, 40);
    CHECK(std::ranges::all_of(y, [](float v) { return std::isnan(v); }));
  });
}

TEST_CASE("statistics of channels with a large mean keep their variance") {
  manual_seed(4);
  // The variance, 1, is 1e-8 of the mean's square: sums of squares would lose it.
  const Tensor x = randn({3, 5, 40, 50}) + full({1}, 1e4);
  Tensor mean = empty({5}), variance = empty({5});
  const Tensor images = views::channels_last(x);
  backend_for(x).batch_norm_statistics(images, mean, variance);
  Tensor true_mean = empty({5}, f64), true_variance = empty({5}, f64);
  const Tensor wide = cast(images, f64);
  backend_for(x).batch_norm_statistics(wide, true_mean, true_variance);
  for (int64_t c = 0; c < 5; ++c) {
    CHECK(std::abs(mean.at({c}) - true_mean.at({c})) <= 2 * eps * 1e4);
    CHECK(std::abs(variance.at({c}) - true_variance.at({c})) <= 1e-5);
  }
}

}  // namespace
}  // namespace halftone::test::batch_norm_test
