// Gradients at NaN, infinity, subnormal numbers and constants, and tensors without elements.
// Expected values are those of PyTorch 2, except where a test says why they are better.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <halftone/autograd/ops.h>
#include <halftone/core/in_place.h>

#include "../temporary_directory.h"

namespace halftone::test::special_values_test {
namespace {

using Values = std::vector<double>;
constexpr double nan = std::numeric_limits<double>::quiet_NaN(),
                 inf = std::numeric_limits<double>::infinity();

/// Equal numbers, or both NaN.
bool same(const Values& a, const Values& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i] && !(a[i] != a[i] && b[i] != b[i])) return false;
  return true;
}
std::string text_of(const Values& values) {
  std::string text;
  for (const double v : values) text += std::to_string(v) + ' ';
  return text;
}
/// The gradient of the sum of f(x).
template <class F> Values gradient_of(const F& f, const Values& at, double dy = 1) {
  Tensor x = from_vector(at, {int64_t(at.size())}, f32).set_requires_grad();
  const Tensor y = f(x);
  y.backward(full(y.shape(), dy, y.dtype()));
  return x.grad().to_vector<double>();
}
void check_gradient(const Values& got, const Values& wanted) {
  INFO("got    ", text_of(got));
  INFO("wanted ", text_of(wanted));
  CHECK(same(got, wanted));
}

TEST_CASE("NaN passes its gradient on") {
  check_gradient(gradient_of([](const Tensor& x) { return relu(x); }, {nan, -1, 0, 2}),
                 {1, 0, 0, 1});
  const Tensor other = from({1, nan, 1, 1});
  check_gradient(gradient_of([&](const Tensor& x) { return maximum(x, other); }, {nan, 1, 2, 1}),
                 {1, 1, 1, 0.5});
  check_gradient(gradient_of([&](const Tensor& x) { return maximum(other, x); }, {nan, 1, 2, 1}),
                 {1, 1, 1, 0.5});
  check_gradient(gradient_of([&](const Tensor& x) { return minimum(x, other); }, {nan, 1, 2, 1}),
                 {1, 1, 0, 0.5});
  const Tensor target = from({0, nan, 2, 2});
  check_gradient(
      gradient_of(
          [&](const Tensor& x) { return sum(smooth_l1(x, target, 1, LossReduction::none)); },
          {nan, 1, 2, 5}),
      {nan, nan, 0, 1});
}

TEST_CASE("a gradient of 0 stays 0 at subnormal arguments of logarithms") {
  for (const auto& f :
       {+[](const Tensor& x) { return log(x); }, +[](const Tensor& x) { return log2(x); },
        +[](const Tensor& x) { return log10(x); }})
    check_gradient(gradient_of(f, {1e-40, 1}, 0), {0, 0});
}

TEST_CASE("a constant has no variance, and no gradient of its deviation") {
  for (const DType dtype : {f32, f64})
    for (const double value : {0.9, 1e-3, 123.456}) {
      Tensor x = full({3, 4}, value, dtype).clone().set_requires_grad();
      const Tensor y = std(x, 0);
      CHECK(y.to_vector<double>() == Values(4, 0.0));
      sum(y).backward();
      CHECK(x.grad().to_vector<double>() == Values(12, 0.0));
    }
}

TEST_CASE("a normalized group of one element has no gradient") {
  Tensor x = from({3.0, 5.0}).clone().set_requires_grad();
  sum(layer_norm(reshape(x, {2, 1}), {1}) * from({0.7, -0.3})).backward();
  CHECK(x.grad().to_vector<double>() == Values{0, 0});
  Tensor z = reshape(from({3.1, 5.7}), {1, 2, 1}).clone().set_requires_grad();
  const Tensor w = from({1.3, 0.9}), b = from({0.0, 0.0});
  sum(group_norm(z, 2, w, b) * 0.37).backward();
  CHECK(z.grad().to_vector<double>() == Values{0, 0});
}

TEST_CASE("norms of numbers whose squares are beyond f32") {
  const Values y = layer_norm(from({{1e20, 2e20, -1e20}}), {3}).to_vector<double>();
  const double mean = 2e20 / 3, spread = std::sqrt(14.0 / 9) * 1e20;
  CHECK(y[0] == doctest::Approx((1e20 - mean) / spread).epsilon(1e-5));
  CHECK(y[2] == doctest::Approx((-1e20 - mean) / spread).epsilon(1e-5));
}

TEST_CASE("f16 running variances are rounded after the momentum") {
  Tensor x = cast(randn({64, 2}) * 700.0, f16);
  const Tensor mean = zeros({2}, f16), variance = ones({2}, f16);
  batch_norm(x, {}, {}, mean, variance, {.training = true, .momentum = 0.1});
  for (const double v : variance.to_vector<double>()) {
    CHECK(v > 20000);
    CHECK(v < 65504);
  }
}

TEST_CASE("pow has the digits of its exponent") {
  for (const double at : {2.0, 1000.0, 1e-20, 1e30}) {
    const double wanted = std::pow(double(float(at)), 1.0 / 3);
    const double got = pow(scalar(at), 1.0 / 3).item();
    CHECK(std::abs(got - wanted) <= 2 * epsilon(f32) * wanted);
  }
  CHECK(pow(scalar(0.0), 1.0 / 3).item() == 0);
  CHECK(pow(scalar(inf), 1.0 / 3).item() == inf);
  CHECK(std::isnan(pow(scalar(-8.0), 1.0 / 3).item()));
}

TEST_CASE("logsumexp with +inf has a gradient of 0 elsewhere") {
  check_gradient(gradient_of([](const Tensor& x) { return logsumexp(x, 0); }, {inf, 1, 2}),
                 {nan, 0, 0});
}

TEST_CASE("products without a common dimension are zeros") {
  CHECK(matmul(zeros({5, 5, 0}), zeros({0, 5})).to_vector<double>() == Values(125, 0.0));
  CHECK(linear(zeros({3, 0}), zeros({4, 0}), ones({4})).to_vector<double>() == Values(12, 1.0));
  CHECK(dot(zeros({0}), zeros({0})).item() == 0);
  Tensor w = zeros({4, 0}).set_requires_grad();
  sum(linear(zeros({3, 0}), w)).backward();
  CHECK(w.grad().shape() == Shape{4, 0});
}

TEST_CASE("the extremum of a NaN has a gradient of NaN, as torch.amax") {
  check_gradient(gradient_of([](const Tensor& x) { return max(x); }, {nan, 1, 2}), {nan, nan, nan});
  check_gradient(gradient_of([](const Tensor& x) { return min(x); }, {nan, 1, 2}), {nan, nan, nan});
}

TEST_CASE("an image or a batch without samples") {
  for (const DType dtype : {f32, bf16, f16}) {
    CAPTURE(std::string(name(dtype)));
    Tensor w = ones({3, 2, 2, 2}, dtype).set_requires_grad();
    const Tensor y = conv_transpose2d(zeros({0, 3, 4, 4}, dtype), w);
    CHECK(y.shape() == Shape{0, 2, 5, 5});
    sum(y).backward();
    CHECK(w.grad().to_vector<double>() == Values(24, 0.0));
    CHECK(conv2d(zeros({0, 2, 5, 5}, dtype), w).shape() == Shape{0, 3, 4, 4});
  }
  const Tensor mean = zeros({3}), variance = ones({3});
  Tensor weight = ones({3}).set_requires_grad();
  const Tensor y =
      batch_norm(zeros({0, 3}), weight, zeros({3}), mean, variance, {.training = true});
  CHECK(y.shape() == Shape{0, 3});
  CHECK(variance.to_vector<double>() == Values(3, 1.0));
  sum(y).backward();
  CHECK(weight.grad().to_vector<double>() == Values(3, 0.0));
}

TEST_CASE("cosine_similarity of two numbers") {
  CHECK(cosine_similarity(scalar(2.0), scalar(3.0), 0).item() == doctest::Approx(1));
  CHECK(cosine_similarity(scalar(2.0), scalar(-3.0), -1).item() == doctest::Approx(-1));
}

TEST_CASE("a size of 0 makes -1 ambiguous") {
  CHECK(contains(message_of<ShapeError>([] {
                   reshape(zeros({0, 3}), {0, -1});
                 }),
                 "with a size of 0, -1 could be any size"));
  CHECK(reshape(zeros({0, 3}), {-1, 3}).shape() == Shape{0, 3});
}

TEST_CASE("a tensor that an operation saved must not be written before backward") {
  Tensor w = from({2.0, 3.0}).clone().set_requires_grad();
  const Tensor x = from({5.0, 7.0}).clone();
  const Tensor loss = sum(w * x);
  copy_into(x, zeros({2}));
  CHECK(contains(message_of<UsageError>([&] { loss.backward(); }),
                 "[mul] a tensor that it saved for backward was written in place"));
  // Writes after backward, and writes to a tensor that no operation saved, are allowed.
  const Tensor again = sum(w * x);
  again.backward();
  copy_into(x, ones({2}));
  const Tensor shifted = sum(w + x);
  copy_into(x, zeros({2}));
  CHECK_NOTHROW(shifted.backward());
}

TEST_CASE("running statistics may change between forward and backward") {
  Tensor x = randn({8, 2}).set_requires_grad();
  const Tensor mean = zeros({2}), variance = ones({2});
  const auto pass = [&] {
    return sum(square(batch_norm(x, {}, {}, mean, variance, {.training = true})));
  };
  const Tensor first = pass(), second = pass();
  CHECK_NOTHROW(first.backward());
  CHECK_NOTHROW(second.backward());
}

}  // namespace
}  // namespace halftone::test::special_values_test
