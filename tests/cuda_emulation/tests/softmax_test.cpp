// Softmax and cross-entropy on rows of every length class: in a warp, in a block, and too long to
// be held; packs that cross rows.
#include "../../kernels/against_reference.h"

#include <halftone/core/error.h>

namespace halftone::test {
namespace {

constexpr int64_t lengths[] = {1, 7, 8, 33, 127, 1024, 1025, 17001};

TEST_CASE("kernels: softmax, its logarithm, their gradients, log-sum-exp") {
  for (const DType dtype : floating_dtypes)
    for (const DType result : {dtype, statistics(dtype)})
      for (const int64_t n : lengths)
        for (const bool logarithm : {false, true}) {
          const Tensor x = randn({3, n}, dtype), y = empty({3, n}, result);
          INFO(described(x), ", logarithm ", logarithm);
          check_against_reference({x}, {y}, 16,
                                  [&](Backend& backend, const Tensors& in, Tensors& out) {
                                    backend.softmax(in[0], logarithm, out[0]);
                                  });
          const Tensor log_y = randn({3, n}, result), dy = randn({3, n}, result);
          check_against_reference({log_y, dy}, {empty({3, n}, dtype)}, 8 + 4 * std::sqrt(double(n)),
                                  [&](Backend& backend, const Tensors& in, Tensors& out) {
                                    backend.softmax_backward(in[0], in[1], logarithm, out[0]);
                                  });
          check_against_reference({x}, {empty({3}, result)}, 16,
                                  [&](Backend& backend, const Tensors& in, Tensors& out) {
                                    backend.log_sum_exp(in[0], out[0]);
                                  });
        }
}

TEST_CASE("kernels: rows with infinite values") {
  const double inf = INFINITY;
  for (const int64_t n : {4, 17000}) {
    Values values(std::size_t(4 * n), -1.0);
    values[1] = inf, values[std::size_t(n)] = -inf, values[std::size_t(3 * n)] = std::nan("");
    std::fill_n(values.begin() + 2 * n, n, -inf);
    const Tensor x = from_vector(values, {4, n}, f32);
    check_against_reference({x}, {empty({4, n}, f32)}, 16,
                            [](Backend& backend, const Tensors& in, Tensors& out) {
                              backend.softmax(in[0], false, out[0]);
                            });
    check_against_reference({x}, {empty({4}, f32)}, 16,
                            [](Backend& backend, const Tensors& in, Tensors& out) {
                              backend.log_sum_exp(in[0], out[0]);
                            });
  }
}

TEST_CASE("kernels: softmax of dtypes without a compiled kernel uses copies") {
  const Tensor x = randn({3, 10}, f32);
  for (const DType dtype : {f16, f64})
    check_against_reference({x}, {empty({3, 10}, dtype)}, 1e10 * epsilon(f32),
                            [](Backend& backend, const Tensors& in, Tensors& out) {
                              backend.softmax(in[0], false, out[0]);
                            });
}

/// logits, targets, class weights, row scale; losses, row weights, maximum and sum of each row.
void check_cross_entropy(int64_t rows, int64_t n, DType dtype, double smoothing, bool weighted) {
  INFO(rows, " rows of ", n, ", ", dtype, ", smoothing ", smoothing, ", weighted ", weighted);
  const DType wide = statistics(dtype);
  const Tensor logits = randn({rows, n}, dtype), scale = randn({rows}, wide);
  Tensor targets = random_indices(rows, n);
  targets.data<int64_t>()[0] = -100;
  const Tensor weights = weighted ? rand({n}, wide) : Tensor{};
  const CrossEntropySettings settings{smoothing, -100};
  const Tensor row = empty({rows}, wide);
  check_against_reference({logits, targets, weights}, {row, row, empty({2, rows}, wide)}, 64,
                          [&](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.cross_entropy(in[0], in[1], in[2], settings, out[0], out[1],
                                                  out[2]);
                          });
  check_against_reference(
      {logits, targets, weights, scale}, {empty({rows, n}, dtype)}, 64,
      [&](Backend& backend, const Tensors& in, Tensors& out) {
        const Device device = in[0].device();
        Tensor losses = empty({rows}, wide, device), row_weights = empty_like(losses),
               totals = empty({2, rows}, wide, device);
        backend.cross_entropy(in[0], in[1], in[2], settings, losses, row_weights, totals);
        backend.cross_entropy_backward(in[0], in[1], in[2], settings, totals, in[3], out[0]);
      });
}

TEST_CASE("kernels: cross-entropy and its gradient") {
  for (const DType dtype : floating_dtypes)
    for (const int64_t n : {1, 3, 10, 1000, 5003})
      for (const double smoothing : {0.0, 0.1})
        for (const bool weighted : {false, true})
          check_cross_entropy(5, n, dtype, smoothing, weighted);
  check_cross_entropy(2, 50257, bf16, 0.1, false);
}

TEST_CASE("kernels: a target out of range is reported, and nothing out of bounds is read") {
  Backend& backend = backend_for(Device::cuda());
  const Tensor logits = randn({3, 10}, f32).to(Device::cuda());
  const Tensor targets = from_vector(std::vector<int64_t>{4, 10, -1}, {3}, i64).to(Device::cuda());
  const Tensor weights = rand({10}, f32).to(Device::cuda());
  Tensor losses = empty({3}, f32, Device::cuda()), row_weights = empty_like(losses),
         totals = empty({2, 3}, f32, Device::cuda()), dlogits = empty_like(logits);
  backend.cross_entropy(logits, targets, weights, {}, losses, row_weights, totals);
  CHECK_THROWS_WITH_AS(backend.synchronize(), doctest::Contains("is out of range for 10 classes"),
                       UsageError);  // the second of two
  CHECK(losses.to_vector<double>()[1] == 0);
  CHECK(losses.to_vector<double>()[2] == 0);
  CHECK(std::isfinite(losses.to_vector<double>()[0]));
  backend.cross_entropy_backward(logits, targets, weights, {}, totals, row_weights, dlogits);
  const Values gradient = dlogits.to_vector<double>();
  CHECK(gradient[0] != 0);
  for (std::size_t i = 10; i < 30; ++i) CHECK(gradient[i] == 0);
}

}  // namespace
}  // namespace halftone::test
