// Layer, RMS, group and batch norm with row lengths and channel counts near the sizes of packs,
// warps and blocks.
#include <halftone/core/error.h>

#include "against_reference.h"

namespace halftone::test {
namespace {

/// With a row offset of 100, mean of squares minus square of the mean loses all accuracy.
Tensor shifted(const Shape& shape, DType dtype) {
  Tensor x = randn(shape, statistics(dtype));
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (x.dtype() == f64) x.data<double>()[i] += 100;
    else x.data<float>()[i] += 100;
  }
  Tensor y = empty(shape, dtype);
  backend_for(y).copy(x, y);
  return y;
}

struct NormCase {
  int64_t rows, n;
  DType dtype, weights, result;
  bool centred;
};

void check_layer_norm(const NormCase& c) {
  INFO(c.rows, " x ", c.n, ", ", c.dtype, ", weights ", c.weights, ", result ", c.result,
       ", centred ", c.centred);
  const DType wide = statistics(c.dtype);
  const Tensor x =
      c.centred && c.n > 1 ? shifted({c.rows, c.n}, c.dtype) : randn({c.rows, c.n}, c.dtype);
  const Tensor weight = randn({c.n}, c.weights),
               bias = c.centred ? randn({c.n}, c.weights) : Tensor{};
  const Tensor mean = c.centred ? empty({c.rows}, wide) : Tensor{}, rstd = empty({c.rows}, wide);
  // In f64 the difference comes from the reference's own sum, element after element.
  const double epsilons = 400 + double(c.n) / 8;
  check_against_reference({x, weight, bias}, {empty({c.rows, c.n}, c.result), mean, rstd}, epsilons,
                          [](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.layer_norm({.x = in[0],
                                                .weight = in[1],
                                                .bias = in[2],
                                                .eps = 1e-5,
                                                .y = out[0],
                                                .mean = out[1],
                                                .rstd = out[2]});
                          });
  const Tensor dy = randn({c.rows, c.n}, c.result), in = randn({c.rows, c.n}, c.dtype),
               scales = rand({c.rows}, wide);
  // One number is its mean, and kernels may know that.
  Tensor means = c.centred ? randn({c.rows}, wide) : Tensor{};
  if (c.centred && c.n == 1) means = in.view_as({c.rows}, {1}, 0).to(wide);
  check_against_reference({in, weight, means, scales, dy},
                          {empty_like(in), empty_like(weight), empty_like(weight)},
                          8 + 4 * std::sqrt(double(c.rows + c.n)),
                          [](Backend& backend, const Tensors& from, Tensors& out) {
                            backend.layer_norm_backward({.x = from[0],
                                                         .weight = from[1],
                                                         .mean = from[2],
                                                         .rstd = from[3],
                                                         .dy = from[4],
                                                         .dx = out[0],
                                                         .dweight = out[1],
                                                         .dbias = out[2]});
                          });
}

TEST_CASE("kernels: layer norm, RMS norm and their gradients") {
  for (const DType dtype : floating_dtypes)
    for (const int64_t n : {1, 8, 33, 768, 1025, 17001})
      for (const bool centred : {true, false}) {
        check_layer_norm({3, n, dtype, dtype, dtype, centred});
        if (n < 1000) check_layer_norm({5, n, dtype, f32, statistics(dtype), centred});
      }
  for (const DType dtype : {f16, bf16}) check_layer_norm({2, 17001, dtype, f32, f32, true});
  check_layer_norm({0, 5, f32, f32, f32, true});
  check_layer_norm({700, 40, bf16, f32, bf16, true});
  check_layer_norm({3, 16, f64, bf16, f32, true});
}

TEST_CASE("kernels: sums with their RMS norms") {
  struct Dtypes {
    DType a, b, sum;
  };
  for (const Dtypes& d : {Dtypes{f64, f64, f64},
                          {f32, f32, f32},
                          {f16, f16, f16},
                          {bf16, bf16, bf16},
                          {f32, bf16, f32},
                          {f16, f32, f32}})
    for (const int64_t n : {1, 8, 33, 768, 1025, 17001}) {
      INFO(n, ", ", d.a, " and ", d.b);
      const DType wide = statistics(d.sum);
      for (const Tensor& weight : {randn({n}, d.sum), randn({n}, wide), Tensor{}})
        check_against_reference({randn({3, n}, d.a), randn({3, n}, d.b), weight},
                                {empty({3, n}, d.sum), empty({3, n}, d.sum), empty({3}, wide)},
                                400 + double(n) / 8,
                                [](Backend& backend, const Tensors& in, Tensors& out) {
                                  backend.add_rms_norm({.a = in[0],
                                                        .b = in[1],
                                                        .weight = in[2],
                                                        .eps = 1e-5,
                                                        .sum = out[0],
                                                        .y = out[1],
                                                        .rstd = out[2]});
                                });
    }
}

TEST_CASE("kernels: group norm and its gradient") {
  for (const DType dtype : floating_dtypes)
    for (const int64_t spatial : {1, 5, 16, 333})
      for (const int64_t groups : {1, 3, 6}) {
        const DType wide = statistics(dtype);
        const Tensor x = randn({2, 6, spatial}, dtype), weight = randn({6}, wide),
                     bias = randn({6}, wide), statistic = empty({2, groups}, wide);
        INFO(described(x), ", groups ", groups);
        check_against_reference({x, weight, bias}, {empty_like(x), statistic, statistic}, 400,
                                [](Backend& backend, const Tensors& in, Tensors& out) {
                                  backend.group_norm({.x = in[0],
                                                      .weight = in[1],
                                                      .bias = in[2],
                                                      .eps = 1e-1,
                                                      .y = out[0],
                                                      .mean = out[1],
                                                      .rstd = out[2]});
                                });
        const Tensor means = spatial == 1 && groups == 6 ? x.view_as({2, 6}, {6, 1}, 0).to(wide)
                                                         : randn({2, groups}, wide);
        check_against_reference(
            {x, weight, means, rand({2, groups}, wide), randn({2, 6, spatial}, dtype)},
            {empty_like(x), empty_like(weight), empty_like(weight)}, 200,
            [](Backend& backend, const Tensors& in, Tensors& out) {
              backend.group_norm_backward({.x = in[0],
                                           .weight = in[1],
                                           .mean = in[2],
                                           .rstd = in[3],
                                           .dy = in[4],
                                           .dx = out[0],
                                           .dweight = out[1],
                                           .dbias = out[2]});
            });
      }
}

struct BatchCase {
  Shape shape;  // of images or rows
  DType dtype;
  bool relu, adds, training;
};

Tensor images_or_rows(const Tensor& x) { return x.rank() == 4 ? views::channels_last(x) : x; }

void check_batch_norm(const BatchCase& c) {
  const int64_t channels = c.shape[1];
  const DType wide = statistics(c.dtype);
  const auto random = [&] { return images_or_rows(randn(c.shape, c.dtype)); };
  const Tensor x = random(), residual = c.adds ? random() : Tensor{};
  const Tensor weight = randn({channels}, c.adds ? wide : c.dtype), bias = randn({channels}, f32);
  const Tensor mean = randn({channels}, wide), variance = rand({channels}, wide);
  INFO(described(x), ", relu ", c.relu, ", residual ", c.adds);
  check_against_reference({images_or_rows(shifted(c.shape, c.dtype))}, {mean, variance}, 64,
                          [](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.batch_norm_statistics(in[0], out[0], out[1]);
                          });
  check_against_reference({x, mean, variance, weight, bias, residual}, {empty_like(x)}, 64,
                          [&](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.batch_norm({.x = in[0],
                                                .mean = in[1],
                                                .variance = in[2],
                                                .eps = 1e-1,
                                                .weight = in[3],
                                                .bias = in[4],
                                                .residual = in[5],
                                                .relu = c.relu,
                                                .y = out[0]});
                          });
  const Tensor output = c.relu ? random() : Tensor{};
  const Tensor dresidual = c.adds ? empty_like(x) : Tensor{};
  check_against_reference({x, mean, variance, weight, output, random()},
                          {empty_like(x), empty_like(weight), empty_like(bias), dresidual}, 1000,
                          [&](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.batch_norm_backward({.x = in[0],
                                                         .mean = in[1],
                                                         .variance = in[2],
                                                         .eps = 1e-1,
                                                         .weight = in[3],
                                                         .relu_output = in[4],
                                                         .dy = in[5],
                                                         .training = c.training,
                                                         .dx = out[0],
                                                         .dweight = out[1],
                                                         .dbias = out[2],
                                                         .dresidual = out[3]});
                          });
}

TEST_CASE("kernels: batch norm, its statistics and its gradient") {
  for (const DType dtype : floating_dtypes)
    for (const Shape& shape :
         sizes<Shape>({{2, 1}, {37, 3}, {300, 8}, {2, 64, 5, 7}, {3, 17, 4, 4}, {1, 520, 3, 3}},
                      {{2, 3, 40, 40}, {2, 64, 40, 40}, {2, 9000, 2, 2}})) {
      check_batch_norm({shape, dtype, false, false, true});
      check_batch_norm({shape, dtype, true, true, true});
      check_batch_norm({shape, dtype, true, false, false});
    }
  check_batch_norm({{3000, 16}, bf16, true, true, true});
}

}  // namespace

// Softmax and cross-entropy on rows of every length class: in a warp, in a block, and too long to
// be held; packs that cross rows.

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

TEST_CASE(
    "kernels: a short tensor and its f32 copy have the same cross-entropy and norms, to the bit") {
  const int64_t rows = 5;
  for (const int64_t n : {10, 1000, 5003, 20011})
    for (const DType dtype : {bf16, f16}) {
      const Tensor host = randn({rows, n}, dtype), host_x = randn({rows, n});
      const Tensor host_targets = random_indices(rows, n);
      on_every_target([&](Device device) {
        Backend& backend = backend_for(device);
        const Tensor x = host.to(device), targets = host_targets.to(device), none;
        Tensor wide = empty(x.shape(), f32, device);
        backend.copy(x, wide);
        std::vector<Values> losses, gradients, of_norm, of_weight;
        for (const Tensor& logits : {x, wide}) {
          Tensor loss = empty({rows}, f32, device), weights = empty_like(loss),
                 totals = empty({2, rows}, f32, device), dx = empty_like(wide);
          backend.cross_entropy(logits, targets, none, {}, loss, weights, totals);
          backend.cross_entropy_backward(logits, targets, none, {}, totals, weights, dx);
          losses.push_back(loss.to_vector<double>()), gradients.push_back(dx.to_vector<double>());
          const Tensor in = host_x.to(device), rstd = ones({rows}, f32, device);
          const Tensor weight = ones({n}, f32, device);
          Tensor dweight = empty_like(weight), dbias;
          backend.layer_norm_backward({.x = in,
                                       .weight = weight,
                                       .mean = none,
                                       .rstd = rstd,
                                       .dy = logits,
                                       .dx = dx,
                                       .dweight = dweight,
                                       .dbias = dbias});
          of_norm.push_back(dx.to_vector<double>()),
              of_weight.push_back(dweight.to_vector<double>());
        }
        INFO(n, ", ", dtype);
        CHECK(losses[0] == losses[1]);
        CHECK(gradients[0] == gradients[1]);
        CHECK(of_norm[0] == of_norm[1]);
        CHECK(of_weight[0] == of_weight[1]);
      });
    }
}

TEST_CASE("kernels: a target out of range is reported, and nothing out of bounds is read") {
  if (!with_gpu()) return;
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
