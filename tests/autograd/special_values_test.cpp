// Gradients at NaN, infinity, subnormal numbers and constants, and tensors without elements.
// Expected values are those of PyTorch 2, except where a test says why they are better.
#include <climits>
#include <cmath>
#include <functional>
#include <limits>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "../support.h"

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

TEST_CASE("slopes beyond f32 times a small gradient") {
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    const double tiny = double(float(1e-39)), dy = 0x1p-10;
    const auto slope = [&](const auto& f, double x) { return gradient_of(f, {x}, dy)[0]; };
    CHECK(slope([](const Tensor& x) { return log(x); }, tiny) == doctest::Approx(dy / tiny));
    CHECK(slope([](const Tensor& x) { return log2(x); }, tiny) ==
          doctest::Approx(dy / tiny / std::log(2.0)));
    CHECK(slope([](const Tensor& x) { return log10(x); }, tiny) ==
          doctest::Approx(dy / tiny / std::log(10.0)));
    CHECK(slope([&](const Tensor& x) { return x / scalar(tiny); }, 0) ==
          doctest::Approx(dy / tiny));
    CHECK(slope([](const Tensor& x) { return log(x); }, 1e-43) == inf);
    CHECK((scalar(1e-30) / 1e-39).item() == doctest::Approx(1e9));
    CHECK((scalar(1e-300, f64) / 1e-310).item() == doctest::Approx(1e10));
  }
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

/// Numbers of mean 0, `size` times -3, -1, 1 and 3.
Tensor spread(double size) { return from({{-3.0, -1, 1, 3}}) * size; }

TEST_CASE("normalized numbers do not depend on their size, nor does their gradient but for it") {
  const Tensor dy = from({{1.0, -2, 4, 0.5}}), weight = from({1.0, 2, 3, 4});
  const std::pair<const char*, std::function<Tensor(const Tensor&)>> norms[] = {
      {"layer_norm", [&](const Tensor& x) { return layer_norm(x, {4}, weight, {}, 0); }},
      {"rms_norm", [&](const Tensor& x) { return rms_norm(x, {4}, weight, 0); }},
      {"group_norm",
       [&](const Tensor& x) {
         return reshape(group_norm(reshape(x, {1, 2, 2}), 1, {}, {}, 0), {1, 4});
       }},
      {"instance_norm",
       [&](const Tensor& x) {
         return reshape(instance_norm(reshape(x, {1, 1, 4}), {}, {}, 0), {1, 4});
       }},
      {"normalize", [&](const Tensor& x) { return normalize(x, 2, 1, 0); }},
      {"normalize of order 3", [&](const Tensor& x) { return normalize(x, 3, 1, 0); }},
      {"cosine_similarity",
       [&](const Tensor& x) {
         return cosine_similarity(x, dy, 1, 1e-38) * ones({1, 4});
       }},
      {"over std", [&](const Tensor& x) { return x / std(x, {1}, 1, true); }}};
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    for (const auto& [name, norm] : norms) {
      const auto run = [&, &f = norm](double size) {
        Tensor x = spread(size).set_requires_grad();
        const Tensor y = f(x);
        y.backward(dy);
        return std::pair(y.to_vector<double>(), x.grad().to_vector<double>());
      };
      const auto usual = run(1);
      for (const double size : {1e-30, 1e-25, 1e20, 1e30, 1e37}) {
        INFO(std::string(backend), ' ', std::string(name), " of numbers of ", size);
        const auto other = run(size);
        for (std::size_t i = 0; i < 4; ++i) {
          CHECK(other.first[i] == doctest::Approx(usual.first[i]).epsilon(1e-4));
          const double slope = other.second[i] * double(float(size));
          CHECK(std::abs(slope - usual.second[i]) <= 1e-4 * (0.1 + std::abs(usual.second[i])));
        }
      }
    }
  }
}

TEST_CASE("vector norms of every order, and deviations, of numbers whose powers leave f32") {
  for (const double size : {1e-30, 1e30})
    for (const double p : {0.5, 1.0, 2.0, 3.0, 4.0, 10.0}) {
      CAPTURE(p);
      Tensor x = full({8}, size).clone().set_requires_grad();
      const Tensor y = vector_norm(x, p);
      CHECK(y.item() == doctest::Approx(size * std::pow(8, 1 / p)).epsilon(1e-5));
      y.backward();
      for (const double slope : x.grad().to_vector<double>())
        CHECK(slope == doctest::Approx(std::pow(8, 1 / p - 1)).epsilon(1e-5));
    }
  CHECK(halftone::std(spread(1e30)).item() == doctest::Approx(std::sqrt(20.0 / 3) * 1e30));
  CHECK(halftone::std(spread(1e-30)).item() == doctest::Approx(std::sqrt(20.0 / 3) * 1e-30));
}

TEST_CASE("a running product is the row's own: zeros next to large numbers, and no overflow") {
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    const auto products = [](const Values& x, DType dtype) {
      return cumprod(from_vector(x, {int64_t(x.size())}, dtype), 0).to_vector<double>();
    };
    CHECK(products({0, 1e30, 1e30}, f32) == Values(3, 0.0));
    CHECK(products({0, 1e200, 1e200}, f64) == Values(3, 0.0));
    CHECK(products({0, 2, 2, 2, 2, 2}, bf16) == Values(6, 0.0));
    const Values back = products({1e-30, 1e30, 1e30, 1e30, 1e-30}, f32);
    CHECK(back[2] == doctest::Approx(1e30));
    CHECK(back[3] == inf);
    CHECK(back[4] == doctest::Approx(1e30));
    check_gradient(gradient_of([](const Tensor& x) { return cumprod(x, 0); }, {0, 2, 3, 0, 5}),
                   {9, 0, 0, 0, 0});
    check_gradient(gradient_of([](const Tensor& x) { return cumprod(x, 0); }, {2, 0, 3}),
                   {1, 8, 0});
    Values large(40, 1e30);
    large[0] = 0;
    Values slopes(40, 0.0);
    slopes[0] = inf;
    check_gradient(gradient_of([](const Tensor& x) { return cumprod(x, 0); }, large), slopes);
    large[0] = 2, large[1] = 0, slopes[0] = 1, slopes[1] = inf;
    check_gradient(gradient_of([](const Tensor& x) { return cumprod(x, 0); }, large), slopes);
  }
}

TEST_CASE("norms of numbers whose squares are beyond f32") {
  const Values y = layer_norm(from({{1e20, 2e20, -1e20}}), {3}).to_vector<double>();
  const double mean = 2e20 / 3, spread = std::sqrt(14.0 / 9) * 1e20;
  CHECK(y[0] == doctest::Approx((1e20 - mean) / spread).epsilon(1e-5));
  CHECK(y[2] == doctest::Approx((-1e20 - mean) / spread).epsilon(1e-5));
}

TEST_CASE("f16 running variances are rounded after the momentum") {
  manual_seed(1);
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

TEST_CASE("the gradients of the extremes of many rows have the bits of each row alone") {
  for (const DType dtype : {f64, f32, bf16, f16})
    for (const bool largest : {true, false}) {
      CAPTURE(std::string(name(dtype)));
      Tensor numbers = cast(randint(0, 4, {40, 3, 2}), f64);  // with ties
      numbers.data<double>()[7] = nan;
      const Tensor x = cast(numbers, dtype), dy = cast(randn({40}), dtype);
      const auto gradient = [&](const Tensor& part, const Tensor& of_part) {
        Tensor leaf = part.clone().set_requires_grad();
        sum((largest ? max(leaf, {1, 2}) : min(leaf, {1, 2})) * of_part).backward();
        return leaf.grad().to_vector<double>();
      };
      Values rows;
      for (int64_t i = 0; i < 40; ++i)
        for (const double g : gradient(slice(x, 0, i, i + 1), slice(dy, 0, i, i + 1)))
          rows.push_back(g);
      check_gradient(gradient(x, dy), rows);
    }
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
  CHECK(contains(MESSAGE_OF(ShapeError, reshape(zeros({0, 3}), {0, -1})),
                 "with a size of 0, -1 could be any size"));
  CHECK(reshape(zeros({0, 3}), {-1, 3}).shape() == Shape{0, 3});
}

TEST_CASE("a tensor that an operation saved must not be written before backward") {
  Tensor w = from({2.0, 3.0}).clone().set_requires_grad();
  const Tensor x = from({5.0, 7.0}).clone();
  const Tensor loss = sum(w * x);
  copy_into(x, zeros({2}));
  CHECK(contains(MESSAGE_OF(UsageError, loss.backward()),
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

// Numbers that make every computation overflow: they are refused before that, by halftone's error
// that names the operation.

namespace halftone::test::hostile_sizes_test {
namespace {
constexpr int64_t huge = std::numeric_limits<int64_t>::max();
constexpr double infinity = std::numeric_limits<double>::infinity();
const double not_a_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("hostile sizes: shapes") {
  const Tensor x = zeros({2, 3}), image = zeros({1, 1, 4, 4}), one = zeros({1});
  for (const int64_t size : {huge, huge - 7, huge / 2 + 1, huge / 4}) {
    CAPTURE(size);
    CHECK(MESSAGE_OF(Error, pad(x, {size, size})).starts_with("["));
    CHECK(MESSAGE_OF(Error, pad(x, {0, size})).starts_with("["));
    CHECK(MESSAGE_OF(Error, expand(one, {size, size})).starts_with("[shape]"));
    CHECK(MESSAGE_OF(Error, reshape(x, {size, size})).starts_with("["));
    CHECK(MESSAGE_OF(Error, reshape(x, {size})).starts_with("[reshape]"));
    CHECK(MESSAGE_OF(Error, empty({size})).starts_with("["));
    CHECK(MESSAGE_OF(Error, empty({size, size})).starts_with("[shape]"));
    CHECK(MESSAGE_OF(Error, randn({size})).starts_with("["));
    CHECK(
        MESSAGE_OF(Error, empty_channels_last({1, size, size, 1}, f32, {})).starts_with("[shape]"));
    CHECK(MESSAGE_OF(Error, arange(size)).starts_with("[arange]"));
    CHECK(MESSAGE_OF(Error, adaptive_avg_pool2d(image, {size, 1})).starts_with("["));
    CHECK(MESSAGE_OF(Error, interpolate(image, {.size = Pair(size, size)})).starts_with("["));
  }
  CHECK(
      MESSAGE_OF(Error, pad(x, {huge, 1})) ==
      "[pad] padding [9223372036854775807, 1] for [2, 3] f32. Give pairs (before, after) from the "
      "last dimension backwards; negative ones cut away no more than there is.");
  CHECK(MESSAGE_OF(Error, expand(one, {huge})) ==
        "[expand] too many bytes for [9223372036854775807] f32. Use a smaller shape.");
  CHECK(MESSAGE_OF(Error, interpolate(image, {.scale_factor = Factors(1e300, 1)}))
            .starts_with("[interpolate] scale_factor 1e+300"));
  CHECK(MESSAGE_OF(Error, interpolate(image, {.scale_factor = Factors(infinity, 1)}))
            .starts_with("[interpolate] scale_factor inf"));
  // A step that is never taken may have any length.
  CHECK(slice(x, 1, 1, 3, huge).shape() == Shape{2, 1});
  CHECK(slice(x, 1, -huge - 1, huge).shape() == Shape{2, 3});
  const Tensor wide = expand(one, {huge / 8});
  CHECK(MESSAGE_OF(Error, cat({wide, wide, wide, wide, wide, wide, wide, wide, wide}))
            .starts_with("[cat] sizes of "));
}

TEST_CASE("hostile sizes: geometry of convolutions and pools") {
  const Tensor x = zeros({1, 1, 4, 4}), w = zeros({1, 1, 2, 2}), none{};
  for (const int64_t size : {huge, huge / 2 + 1}) {
    CAPTURE(size);
    CHECK(MESSAGE_OF(Error, conv2d(x, w, none, {.padding = size})).starts_with("["));
    CHECK(MESSAGE_OF(Error, conv2d(x, w, none, {.dilation = size})).starts_with("[conv2d]"));
    CHECK(MESSAGE_OF(Error, conv2d(x, w, none, {.groups = size})).starts_with("[conv2d]"));
    CHECK(MESSAGE_OF(Error, conv_transpose2d(x, w, none, {.stride = size}))
              .starts_with("[conv_transpose2d]"));
    CHECK(MESSAGE_OF(Error, conv_transpose2d(x, w, none, {.padding = size}))
              .starts_with("[conv_transpose2d]"));
    CHECK(MESSAGE_OF(Error, conv_transpose2d(x, w, none, {.dilation = size})).starts_with("["));
    CHECK(MESSAGE_OF(Error, conv_transpose2d(x, zeros({1, 3, 2, 2}), none, {.groups = size}))
              .starts_with("[conv_transpose2d]"));
    CHECK(MESSAGE_OF(Error, max_pool2d(x, {.kernel = size})).starts_with("[max_pool2d]"));
    CHECK(MESSAGE_OF(Error, avg_pool2d(x, {.kernel = size, .padding = size / 2})).starts_with("["));
    CHECK(MESSAGE_OF(Error, avg_pool2d(x, {.kernel = 2, .padding = size}))
              .starts_with("[avg_pool2d]"));
  }
  CHECK(MESSAGE_OF(Error, conv2d(x, w, none, {.stride = huge})).starts_with("[conv2d] stride"));
  constexpr int64_t largest = 2147483647;
  CHECK(MESSAGE_OF(Error, conv2d(x, w, none, {.dilation = largest}))
            .starts_with("[conv2d] the output would be"));
  const Tensor wide = expand(zeros({1, 1, 1, 1}), {1, 1, int64_t(1) << 40, int64_t(1) << 20});
  CHECK(MESSAGE_OF(Error, conv_transpose2d(wide, w, none, {.stride = largest}))
            .starts_with("[conv_transpose2d] sizes are beyond 64 bits with strides [2147483647"));
}

TEST_CASE("hostile sizes: a dimension is named once") {
  const Tensor x = ones({2, 3, 4});
  const auto twice = [](std::string_view op, const std::function<void()>& call) {
    CHECK(message_of<Error>(call).starts_with("[" + std::string(op) +
                                              "] dimension 1 is given twice in [1, "));
  };
  for (const int64_t again : {1, -2}) {
    const Dims dims{1, again};
    twice("sum", [&] { sum(x, dims); });
    twice("mean", [&] { mean(x, dims, true); });
    twice("var", [&] { var(x, dims); });
    twice("max", [&] { max(x, dims); });
    twice("min", [&] { min(x, dims); });
    twice("prod", [&] { prod(x, dims); });
    twice("norm", [&] { norm(x, dims); });
    CHECK(MESSAGE_OF(Error, permute(x, {1, again, 0})).starts_with("[permute]"));
  }
  CHECK(sum(x, {0, 2}).shape() == Shape{3});
  CHECK(sum(x, {-1, 0}, true).shape() == Shape{1, 3, 1});
  CHECK(sum(scalar(2), {0}).item() == 2);
}

TEST_CASE("hostile sizes: no gradients of f8") {
  for (const DType dtype : {f8_e4m3, f8_e5m2, i64, boolean}) {
    CAPTURE(dtype);
    Tensor x = zeros({2}, dtype);
    CHECK(MESSAGE_OF(Error, x.set_requires_grad(true))
              .starts_with("[set_requires_grad] f64, f32, f16 and bf16 tensors have gradients"));
    CHECK_FALSE(x.requires_grad());
    x.set_requires_grad(false);
  }
}

TEST_CASE("hostile sizes: options of optimizers and schedules are finite") {
  const std::vector<Tensor> p{zeros({2}).set_requires_grad(true)};
  for (const double bad : {infinity, -infinity, not_a_number, -1.0}) {
    CAPTURE(bad);
    CHECK(MESSAGE_OF(Error, optim::Sgd(p, {.lr = bad})).starts_with("[Sgd] lr is "));
    CHECK(MESSAGE_OF(Error, optim::Sgd(p, {.momentum = bad})).starts_with("[Sgd] momentum"));
    CHECK(MESSAGE_OF(Error, optim::Sgd(p, {.weight_decay = bad})).starts_with("[Sgd] weight"));
    CHECK(MESSAGE_OF(Error, optim::Adam(p, {.lr = bad})).starts_with("[Adam] lr is "));
    CHECK(MESSAGE_OF(Error, optim::Adam(p, {.betas = {bad, 0.9}})).starts_with("[Adam] beta1"));
    CHECK(MESSAGE_OF(Error, optim::AdamW(p, {.lr = bad})).starts_with("[AdamW] lr is "));
    CHECK(MESSAGE_OF(Error, optim::AdamW(p, {.eps = bad})).starts_with("[AdamW] eps"));
    CHECK(MESSAGE_OF(Error, optim::AdamW(p, {.weight_decay = bad})).starts_with("[AdamW] weight"));
    CHECK(MESSAGE_OF(Error, optim::Rmsprop(p, {.lr = bad})).starts_with("[Rmsprop] lr is "));
    CHECK(MESSAGE_OF(Error, optim::Rmsprop(p, {.alpha = bad})).starts_with("[Rmsprop] alpha"));
    optim::AdamW adamw(p, {.lr = 0.5});
    CHECK(MESSAGE_OF(Error, adamw.set_lr(bad)).starts_with("[AdamW] lr is "));
    CHECK(adamw.lr() == 0.5);
    using optim::LrSchedule;
    CHECK(MESSAGE_OF(Error, LrSchedule::constant(bad)).starts_with("[LrSchedule.constant]"));
    CHECK(MESSAGE_OF(Error, LrSchedule::step_decay(3, bad)).starts_with("[LrSchedule.step_decay]"));
    CHECK(MESSAGE_OF(Error, LrSchedule::linear(3, bad)).starts_with("[LrSchedule.linear] last"));
    CHECK(MESSAGE_OF(Error, LrSchedule::cosine(3, bad)).starts_with("[LrSchedule.cosine] last"));
    CHECK(
        MESSAGE_OF(Error, LrSchedule::multi_step({3}, bad)).starts_with("[LrSchedule.multi_step]"));
    CHECK(MESSAGE_OF(Error, LrSchedule::exponential(bad)).starts_with("[LrSchedule.exponential]"));
    CHECK(MESSAGE_OF(Error, LrSchedule::polynomial(3, bad)).starts_with("[LrSchedule.polynomial]"));
    CHECK(MESSAGE_OF(Error, LrSchedule::cosine_restarts(3, 1, bad))
              .starts_with("[LrSchedule.cosine_restarts]"));
    CHECK(MESSAGE_OF(Error, LrSchedule::one_cycle(9, 0.3, bad))
              .starts_with("[LrSchedule.one_cycle]"));
    const LrSchedule own([&](int64_t step) { return step == 1 ? bad : 1; });
    optim::LrScheduler scheduler(adamw, own);
    CHECK(
        MESSAGE_OF(Error, scheduler.step()).starts_with("[LrScheduler] the factor at step 1 is "));
    CHECK(adamw.lr() == 0.5);
  }
  CHECK(
      MESSAGE_OF(Error, optim::Sgd(p, {.dampening = not_a_number})).starts_with("[Sgd] dampening"));
}

namespace {
/// Returns this size, but has no samples.
struct Pretender final : data::Dataset {
  int64_t samples;
  explicit Pretender(int64_t n) : samples(n) {}
  int64_t size() const override { return samples; }
  data::Batch batch(std::span<const int64_t> indices) const override {
    return {zeros({int64_t(indices.size())}), zeros({int64_t(indices.size())})};
  }
};
}  // namespace

TEST_CASE("hostile sizes: loaders") {
  const data::TensorDataset four(zeros({4, 1}), zeros({4}));
  CHECK(MESSAGE_OF(Error, data::DataLoader(four, {.prefetch = INT_MAX})) ==
        "[DataLoader] prefetch is 2147483647. Use 0 for no thread, or a number of batches up "
        "to 65536.");
  int64_t batches = 0;
  for (const auto& batch : data::DataLoader(four, {.workers = 1024, .prefetch = 65536}))
    batches += batch.inputs.size(0);
  CHECK(batches == 4);
  const std::string negative =
      "[DataLoader] the dataset says that it has -3 samples. Let size() return 0 or more.";
  data::DataLoader loader{Pretender(-3)};
  CHECK(MESSAGE_OF(Error, loader.size()) == negative);
  CHECK(MESSAGE_OF(Error, loader.begin()) == negative);
  CHECK(MESSAGE_OF(Error, loader.resume(0, 0)) == negative);
  CHECK(MESSAGE_OF(Error, data::DataLoader(Pretender(huge)).begin())
            .starts_with("[DataLoader] there is no memory for the order of "));
  CHECK(MESSAGE_OF(Error, data::DataLoader(Pretender(huge), {.batch_size = huge}).begin())
            .starts_with("[DataLoader] there is no memory"));
}

TEST_CASE("hostile sizes: images") {
  const Tensor image = zeros({2, 2, 3}, u8);
  for (const int64_t size : {huge, int64_t(1) << 31, int64_t(-1)}) {
    CAPTURE(size);
    CHECK(MESSAGE_OF(Error, data::resize_image(image, size, size)).starts_with("["));
    CHECK(MESSAGE_OF(Error, data::crop_image(image, 0, 0, size, size)).starts_with("["));
  }
  for (const int64_t at : {huge, -huge}) {
    CAPTURE(at);
    const std::string result = MESSAGE_OF(Error, data::crop_image(image, at, at, 2, 2));
    CHECK((result.empty() || result.starts_with("[")));
  }
}

}  // namespace halftone::test::hostile_sizes_test

// gradcheck must find wrong gradients, or the operation table proves nothing.

namespace halftone::test::gradcheck_test {
namespace {

/// y = 3 x, whose gradient is off by a factor in one element.
struct AlmostRight : UserOp {
  static constexpr OpInfo info{"almost_right", CastClass::as_is};
  double wrong_factor = 1;

  explicit AlmostRight(double factor) : wrong_factor(factor) {}
  Tensor forward(const Tensor& x) { return x * 3.0; }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    return {dy * from({3, 3 * wrong_factor, 3}, f64)};
  }
};

GradcheckResult check_factor(double factor) {
  const Tensor x = from({1, 2, 3}, f64).set_requires_grad();
  return gradcheck([&](const std::vector<Tensor>& in) { return apply(AlmostRight(factor), in[0]); },
                   {x});
}

TEST_CASE("a right gradient passes") {
  const GradcheckResult result = check_factor(1);
  CHECK(result.passed);
  CHECK(result.message.empty());
  CHECK(result.worst_error < 1e-8);
}

TEST_CASE("a gradient that is wrong in one element is found and named") {
  const GradcheckResult result = check_factor(1.001);
  CHECK_FALSE(result);
  CHECK(result.message.starts_with("input 0, element 1: analytic "));
  CHECK(result.worst_error > 1e-4);
}

TEST_CASE("a gradient that never arrives is wrong") {
  const Tensor x = from({1, 2}, f64).set_requires_grad(), y = from({3, 4}, f64).set_requires_grad();
  const GradcheckResult result =
      gradcheck([](const std::vector<Tensor>& in) { return in[0] * in[1].detach(); }, {x, y});
  CHECK_FALSE(result);
  CHECK(result.message.starts_with("input 1, element 0: analytic 0, numeric "));
}

TEST_CASE("other inputs stay as they are, and the caller's leaves collect nothing") {
  const Tensor x = from({1, 2}, f64).set_requires_grad(), scale = from({2, 3}, f64);
  CHECK(gradcheck([](const std::vector<Tensor>& in) { return square(in[0]) * in[1]; }, {x, scale}));
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("only f64 is precise enough") {
  const Tensor x = ones({2}).set_requires_grad();
  CHECK_THROWS_WITH_AS(gradcheck([](const std::vector<Tensor>& in) { return in[0] * 2.0; }, {x}),
                       "[gradcheck] an input that requires a gradient is f32. Cast it to f64.",
                       DTypeError);
}

}  // namespace

}  // namespace halftone::test::gradcheck_test
