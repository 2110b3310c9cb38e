// Attention in blocks: sizes around the blocks' edges against the reference, memory that does not
// grow with the square of the length, and results that do not depend on the number of threads.
#include <doctest/doctest.h>

#include <omp.h>

#include <algorithm>
#include <cmath>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>

namespace halftone::test::attention_test {
namespace {

struct Sizes {
  int64_t l, s, e, ev;
};

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

TEST_CASE("attention of sizes around the blocks' edges equals the reference") {
  for (const DType dtype : {f32, bf16, f16})
    for (const Sizes& size : {Sizes{1, 1, 8, 8},
                              {5, 257, 16, 9},
                              {113, 33, 33, 16},
                              {241, 300, 64, 32},
                              {130, 600, 24, 40}})
      for (const char* kind : {"plain", "causal", "condition", "added", "dropout"}) {
        CAPTURE(facts(dtype).name);
        CAPTURE(size.l);
        CAPTURE(kind);
        const std::string what = kind;
        manual_seed(uint64_t(size.l));
        const auto draw = [&](int64_t rows, int64_t columns) {
          return cast(randn({2, 2, rows, columns}), dtype);
        };
        const std::vector<Tensor> inputs{draw(size.l, size.e), draw(size.s, size.e),
                                         draw(size.s, size.ev)};
        const Tensor dy = draw(size.l, size.ev);
        AttentionOptions options{.dropout = what == "dropout" ? 0.25 : 0,
                                 .causal = what == "causal"};
        if (what == "condition") options.mask = greater(rand({2, 1, size.l, size.s}), scalar(0.4));
        if (what == "added") options.mask = cast(randn({size.l, size.s}), dtype);
        const auto truth = results_of("reference", inputs, dy, options),
                   results = results_of("cpu", inputs, dy, options);
        // Backward computes sum(w g) of a query from its rounded y, and adds up over queries.
        const double terms = double(std::max(size.l, size.s));
        for (std::size_t i = 0; i < results.size(); ++i) {
          CAPTURE(i);
          CHECK(distance(results[i], truth[i]) <= 8 * epsilon(dtype) * std::sqrt(terms));
        }
      }
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
