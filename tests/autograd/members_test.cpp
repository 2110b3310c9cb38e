// The members of Tensor that call operations, and the errors of arguments.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include <halftone/autograd/ops.h>

namespace halftone::test::members_test {
namespace {

using Values = std::vector<double>;
Values values_of(const Tensor& x) { return x.to_vector<double>(); }
bool same(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && values_of(a) == values_of(b);
}
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) { return e.what(); }
  return "no error";
}

TEST_CASE("a member is the function of its name") {
  const Tensor x = reshape(arange(1., 7.), 2, 3) / 8;
  CHECK(same(x.sum(), sum(x)));
  CHECK(same(x.sum({1}, true), sum(x, {1}, true)));
  CHECK(same(x.mean({0}), mean(x, {0})));
  CHECK(same(x.var({1}, 0), var(x, {1}, 0)));
  CHECK(same(x.std({1}), halftone::std(x, {1})));
  CHECK(same(x.max(), max(x)));
  CHECK(same(x.min({0}), min(x, {0})));
  CHECK(same(x.prod({1}), prod(x, {1})));
  CHECK(same(x.norm(), norm(x)));
  CHECK(same((x > 0.5).any({1}), any(x > 0.5, {1})));
  CHECK(same((x > 0.5).all(), all(x > 0.5)));
  CHECK(same(x.argmax(1), argmax(x, 1)));
  CHECK(same(x.argmin(), argmin(x)));
  CHECK(same(x.softmax(1), softmax(x, 1)));
  CHECK(same(x.abs(), abs(x)));
  CHECK(same(x.exp(), exp(x)));
  CHECK(same(x.log(), log(x)));
  CHECK(same(x.sqrt(), sqrt(x)));
  CHECK(same(x.pow(3), pow(x, 3)));
  CHECK(same(x.clamp(0.25, 0.5), clamp(x, 0.25, 0.5)));
  CHECK(same(x.matmul(x.transpose(0, 1)), matmul(x, transpose(x, 0, 1))));
  CHECK(same(x[1], select(x, 0, 1)));
  CHECK(x[-1][2].item() == 0.75);
  CHECK(same(x.reshape({3, -1}), reshape(x, 3, 2)));
  CHECK(same(x.reshape(-1), flatten(x)));
  CHECK(same(x.permute(1, 0), transpose(x, 0, 1)));
  CHECK(same(x.unsqueeze(1).expand(2, 4, 3), expand(unsqueeze(x, 1), 2, 4, 3)));
  CHECK(same(x.flatten(), flatten(x)));
  CHECK(x.unsqueeze(0).unsqueeze(-1).squeeze().shape() == Shape{2, 3});
  CHECK(x.unsqueeze(0).unsqueeze(0).squeeze(0).shape() == Shape{1, 2, 3});
  CHECK(x.transpose(0, 1).contiguous().is_contiguous());
}

TEST_CASE("members are recorded") {
  Tensor x = from({{1.0, 2}, {3, 4}}).set_requires_grad();
  (x[1].reshape(2, 1).pow(2).sum() + x.mean()).backward();
  CHECK(values_of(x.grad()) == Values{0.25, 0.25, 6.25, 8.25});
}

TEST_CASE("of several sources for one position the last one stays") {
  Tensor source = from({1.0, 2, 3, 4}).set_requires_grad(), x = zeros(3).set_requires_grad();
  const Tensor y = scatter(x, 0, from({2, 0, 2, 0}), source);
  CHECK(values_of(y) == Values{4, 0, 3});
  y.sum().backward();
  CHECK(values_of(source.grad()) == Values{0, 0, 1, 1});
  CHECK(values_of(x.grad()) == Values{0, 1, 0});
  const int64_t large = (int64_t(1) << 53) + 1;
  const Tensor kept = scatter(zeros({2}, i64), 0, from({1}), from({large}));
  CHECK(kept.to_vector<int64_t>() == std::vector<int64_t>{0, large});
}

TEST_CASE("integers are multiplied modulo their size, however long the sum") {
  const Tensor a = full({2, 3000}, 3, u8), b = full({3000, 500}, 5, u8);
  const Tensor c = matmul(a, b);
  CHECK(c.dtype() == u8);
  CHECK(values_of(c) == Values(1000, double(3 * 5 * 3000 % 256)));
  const int64_t odd = (int64_t(1) << 55) + 1;  // f64 cannot represent it
  CHECK(matmul(from({{odd}}), from({{3}})).to_vector<int64_t>()[0] == 3 * odd);
}

TEST_CASE("sums of integers: index_add wraps as its dtype, einsum's are i64 as sum()'s") {
  const auto added = [](DType dtype, int64_t x, int64_t source, Number alpha) {
    return index_add(full({1}, x, dtype), 0, from({0}), full({1}, source, dtype), alpha)
        .item<int64_t>();
  };
  CHECK(added(u8, 200, 200, 2) == 600 % 256);
  CHECK(added(i64, 0, 16777217, 3) == 50331651);
  CHECK(added(i64, 5, 7, -1) == -2);
  CHECK(message_of([&] { added(i64, 5, 7, 0.5); }) ==
        "[index_add] alpha is 0.5 for [1] i64. Integers need a whole number. Cast to f32 for "
        "fractions.");
  const Tensor bytes = from({200, 100}, u8), twos = from({2, 2}, u8);
  CHECK(einsum("i->", {bytes}).dtype() == i64);
  CHECK(einsum("i->", {bytes}).item() == 300);
  CHECK(values_of(einsum("i,j->j", {bytes, twos})) == Values{600, 600});
  CHECK(einsum("i,j->ij", {bytes, twos}).dtype() == u8);
  CHECK(einsum("i,i->", {bytes, twos}).item() == 600 % 256);  // as matmul()
}

TEST_CASE("a transposed convolution with a bias rounds its result once") {
  for (const DType dtype : {bf16, f16}) {
    const auto one = [&](double value, const Shape& shape) { return full(shape, value, dtype); };
    const double a = 1 + 1.0 / 128, b = 1 + 1.0 / 64, c = -(1 + 3.0 / 128);
    CHECK(conv_transpose2d(one(a, {1, 1, 1, 1}), one(b, {1, 1, 1, 1}), one(c, {1})).item() ==
          a * b + c);
    const Tensor x = cast(randn({2, 5, 6, 7}), dtype), w = cast(randn({5, 4, 3, 3}), dtype),
                 bias = cast(randn({4}), dtype);
    const ConvTranspose2dOptions options{.stride = 2, .padding = 1};
    const auto wide = [](const Tensor& t) { return cast(t, f64); };
    const Values y = values_of(conv_transpose2d(x, w, bias, options)),
                 exact = values_of(conv_transpose2d(wide(x), wide(w), wide(bias), options));
    double largest = 0;  // beyond half a spacing there is only the error of f32 sums
    for (std::size_t i = 0; i < y.size(); ++i)
      largest = std::max(largest, std::abs(y[i] - exact[i]) -
                                      epsilon(dtype) / 2 * std::max(1e-3, std::abs(exact[i])));
    CHECK(largest <= 200 * epsilon(f32));
  }
}

TEST_CASE("arguments of numbers say what is wrong") {
  const Tensor x = ones({2, 3}), whole = from({1, 2});
  CHECK(message_of([&] { clamp(x, {}, std::optional<Number>{}); }) ==
        "[clamp] got neither bound. Pass low, high, or both.");
  CHECK(
      message_of([&] { clamp(x, Tensor{}, Tensor{}); }).starts_with("[clamp] got neither bound."));
  CHECK(message_of([&] { clamp(x, 2, 1); }) == "[clamp] low is 2, high is 1. Use low <= high.");
  CHECK(message_of([&] { pow(whole, -1); }) ==
        "[pow] the exponent of integers is -1. It must be 0 or more. Cast to f32 for fractions.");
  CHECK(message_of([&] {
          matmul(whole, from({1, 2}, i32));
        }).starts_with("[matmul] dtypes differ"));
  CHECK(message_of([&] {
          matmul(ones({2}, boolean), ones({2}, boolean));
        }).starts_with("[matmul] needs integers"));
  CHECK(message_of([&] { vector_norm(x, std::nan("")); }).starts_with("[norm] the order p is NaN"));
  CHECK(
      message_of([&] { vector_norm(zeros({0}), INFINITY); }).starts_with("[norm] [0] f32 has no"));
  CHECK(message_of([&] { mean(x, i64); }).starts_with("[mean] needs f64, f32, f16 or bf16"));
  CHECK(message_of([&] { glu(x); }) ==
        "[glu] dimension 1 of [2, 3] f32 has no halves. Its size must be even.");
  CHECK(message_of([&] { lerp(x, cast(x, bf16), 0.5); }).starts_with("[lerp] dtypes differ"));
  CHECK(message_of([&] { linspace(0, 1, -1); }).starts_with("[linspace] -1 steps from 0 to 1."));
  CHECK(message_of([&] { eye(-2); }) != "no error");
}

TEST_CASE("arguments of losses say what is wrong") {
  const Tensor x = ones({2, 3}), t = zeros({2, 3});
  CHECK(message_of([&] {
          bce_with_logits(x, t, {.weight = ones({4, 1, 1})});
        }) ==
        "[bce_with_logits] a weight is [4, 1, 1] f32, the targets [2, 3] f32. It must broadcast to "
        "them.");
  CHECK(message_of([&] {
          bce_with_logits(x, ones({3}), {.weight = x});
        }).starts_with("[bce_with_logits] the outputs are [2, 3] f32, the targets [3] f32."));
  CHECK(message_of([&] { gaussian_nll_loss(x, t, -x); }) ==
        "[gaussian_nll_loss] a variance is negative. Pass variances, not their logarithms.");
  CHECK(message_of([&] {
          gaussian_nll_loss(x, t, ones({4}));
        }).starts_with("[gaussian_nll_loss] shapes do not broadcast: [4] and [2, 3]"));
  CHECK(message_of([&] {
          gaussian_nll_loss(x, t, ones({2, 1, 1}));
        }).starts_with("[gaussian_nll_loss] the variance is [2, 1, 1] f32 for [2, 3] f32."));
  CHECK(message_of([&] {
          gaussian_nll_loss(x, t, x, {.eps = 0});
        }).starts_with("[gaussian_nll_loss] eps is 0."));
  CHECK(message_of([&] {
          triplet_margin_loss(x, x, x, {.margin = 0});
        }).starts_with("[triplet_margin_loss] the margin is 0."));
  CHECK(message_of([&] {
          triplet_margin_loss(x, x, ones({3}));
        }).starts_with("[triplet_margin_loss] the inputs are"));
  CHECK(message_of([&] {
          pairwise_distance(scalar(1), scalar(2));
        }).starts_with("[pairwise_distance] both inputs are scalars."));
}

TEST_CASE("arguments of images say what is wrong") {
  const Tensor x = ones({1, 2, 4, 4}), w = ones({2, 2, 3, 3});
  CHECK(message_of([&] { conv2d(x, w, {}, {.stride = 2, .padding = "same"}); }) ==
        "[conv2d] padding \"same\" with stride [2, 2]. Use stride 1.");
  CHECK(message_of([&] { conv2d(x, w, {}, {.padding = "some"}); }) ==
        "[ConvPadding] \"some\" is not a padding. Use \"same\", \"valid\" or numbers.");
  CHECK(message_of([&] { max_pool1d(x, {}); }) ==
        "[max_pool1d] x is [1, 2, 4, 4] f32, of rank 4. It must have rank 3.");
  CHECK(message_of([&] {
          adaptive_max_pool2d(x, {0, 1});
        }).starts_with("[adaptive_max_pool2d] output 0 x 1 of [1, 2, 4, 4] f32."));
  CHECK(message_of([&] {
          conv_transpose1d(x, ones({2, 2, 3}));
        }).starts_with("[conv_transpose1d] x"));
  CHECK(message_of([&] {
          pixel_shuffle(x, 2);
        }).starts_with("[pixel_shuffle] [1, 2, 4, 4] f32 with"));
  CHECK(message_of([&] {
          instance_norm(x, {}, {}, ones({2}), {}, {});
        }).starts_with("[instance_norm] running_mean or running_var is undefined."));
  CHECK(message_of([&] {
          instance_norm(ones({2, 2, 1}), {}, {}, ones({2}), ones({2}), {});
        }).starts_with("[instance_norm] [2, 2, 1] f32 has one value per channel."));
}

TEST_CASE("arguments of operations that move elements say what is wrong") {
  const Tensor x = ones({2, 3}), index = zeros({2, 3}, i64);
  CHECK(message_of([&] {
          scatter(x, 0, index, ones({1, 3}));
        }).starts_with("[scatter] the index is"));
  CHECK(
      message_of([&] { scatter(x, 0, index + 5, x); }) ==
      "[scatter] index 5 is out of range for a dimension of size 2. Indices must be from 0 to 1.");
  CHECK(message_of([&] {
          index_add(x, 0, from({0}), ones({2, 3}));
        }).starts_with("[index_add] the index is [1] i64, the source [2, 3] f32."));
  CHECK(message_of([&] { take_along_dim(x, from({0}), 0); }).starts_with("[take_along_dim] x is"));
  CHECK(message_of([&] { masked_select(x, x); }) ==
        "[masked_select] the mask must be bool, got [2, 3] f32. Compare first.");
  CHECK(message_of([&] { quantile(x, 1.5); }) == "[quantile] q is 1.5. It must be on [0, 1].");
  CHECK(
      message_of([&] { quantile(cast(x, bf16), 0.5); }).starts_with("[quantile] needs f32 or f64"));
  CHECK(message_of([&] {
          median(zeros({0}, i64));
        }).starts_with("[median] [0] i64 has no elements."));
  CHECK(message_of([&] { max_with_indices(zeros({0, 2}), 0); }) != "no error");
  CHECK(message_of([&] { tile(x, {-1}); }).starts_with("[tile] repeats [-1]."));
  CHECK(message_of([&] {
          roll(x, {1, 2}, {0});
        }).starts_with("[roll] shifts [1, 2] for dimensions [0]"));
  CHECK(
      message_of([&] { diagonal(x, 0, 1, -1); }).starts_with("[diagonal] dimensions 1 and -1 of"));
  CHECK(message_of([&] { meshgrid({x}); }).starts_with("[meshgrid] inputs are [2, 3] f32"));
  CHECK(
      message_of([&] { meshgrid({ones(2)}, "yx"); }).starts_with("[meshgrid] indexing is \"yx\"."));
  CHECK(message_of([&] { outer(x, x); }) ==
        "[outer] a is [2, 3] f32, of rank 2. It must have rank 1.");
}

TEST_CASE("the gradient of a median is that of the elements equal to it") {
  Tensor x = from({1.0, 2, 2, 9}).set_requires_grad();
  median(x).backward();
  CHECK(values_of(x.grad()) == Values{0, 0.5, 0.5, 0});
}

}  // namespace
}  // namespace halftone::test::members_test
