// Layer, RMS, group and batch norm with row lengths and channel counts near the sizes of packs,
// warps and blocks.
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
                            backend.layer_norm(in[0], in[1], in[2], 1e-5, out[0], out[1], out[2]);
                          });
  const Tensor dy = randn({c.rows, c.n}, c.result),
               means = c.centred ? randn({c.rows}, wide) : Tensor{};
  const Tensor in = randn({c.rows, c.n}, c.dtype), scales = rand({c.rows}, wide);
  check_against_reference({in, weight, means, scales, dy},
                          {empty_like(in), empty_like(weight), empty_like(weight)},
                          8 + 4 * std::sqrt(double(c.rows + c.n)),
                          [](Backend& backend, const Tensors& from, Tensors& out) {
                            backend.layer_norm_backward(from[0], from[1], from[2], from[3], from[4],
                                                        out[0], out[1], out[2]);
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
                                  backend.group_norm(in[0], in[1], in[2], 1e-1, out[0], out[1],
                                                     out[2]);
                                });
        check_against_reference({x, weight, randn({2, groups}, wide), rand({2, groups}, wide),
                                 randn({2, 6, spatial}, dtype)},
                                {empty_like(x), empty_like(weight), empty_like(weight)}, 200,
                                [](Backend& backend, const Tensors& in, Tensors& out) {
                                  backend.group_norm_backward(in[0], in[1], in[2], in[3], in[4],
                                                              out[0], out[1], out[2]);
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
                            backend.batch_norm(in[0], in[1], in[2], 1e-1, in[3], in[4], in[5],
                                               c.relu, out[0]);
                          });
  const Tensor output = c.relu ? random() : Tensor{};
  const Tensor dresidual = c.adds ? empty_like(x) : Tensor{};
  check_against_reference({x, mean, variance, weight, output, random()},
                          {empty_like(x), empty_like(weight), empty_like(bias), dresidual}, 1000,
                          [&](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.batch_norm_backward(in[0], in[1], in[2], 1e-1, in[3], in[4],
                                                        in[5], c.training, out[0], out[1], out[2],
                                                        out[3]);
                          });
}

TEST_CASE("kernels: batch norm, its statistics and its gradient") {
  for (const DType dtype : floating_dtypes)
    for (const Shape& shape : {Shape{2, 1}, Shape{37, 3}, Shape{300, 8}, Shape{2, 64, 5, 7},
                               Shape{3, 17, 4, 4}, Shape{1, 520, 3, 3}}) {
      check_batch_norm({shape, dtype, false, false, true});
      check_batch_norm({shape, dtype, true, true, true});
      check_batch_norm({shape, dtype, true, false, false});
    }
  check_batch_norm({{3000, 16}, bf16, true, true, true});
}

}  // namespace
}  // namespace halftone::test
