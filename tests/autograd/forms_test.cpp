// The forms in which PyTorch users write operations: numbers next to tensors, single dimensions,
// sizes one by one; and the errors and dtypes of operations on integers.
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

namespace halftone::test::forms_test {
namespace {

using Values = std::vector<double>;

Values values_of(const Tensor& x) { return x.to_vector<double>(); }
template <class Kind> std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Kind& e) { return e.what(); }
  return "no error of that kind";
}

TEST_CASE("argmax and argmin without a dimension are over everything") {
  const Tensor x = from({{1.0, 7, 3}, {-4, 7, 0}});
  CHECK(argmax(x).shape() == Shape{});
  CHECK(argmax(x).item() == 1);  // the first of equals
  CHECK(argmin(x).item() == 3);
  CHECK(argmax(x, {}, true).shape() == Shape{1, 1});
  CHECK(argmin(views::transpose(x, 0, 1)).item() == 1);  // of the transposed rows
  CHECK(values_of(argmax(x, -1)) == Values{1, 1});
  CHECK(values_of(argmin(x, 0)) == Values{1, 0, 1});
  CHECK(argmax(full({}, 3)).item() == 0);
  CHECK_THROWS_AS(argmax(zeros({0, 2})), ShapeError);
}

TEST_CASE("comparisons with numbers on either side") {
  const Tensor x = from({-1.0, 0, 2});
  CHECK(values_of(x > 0) == Values{0, 0, 1});
  CHECK(values_of(0 >= x) == Values{1, 1, 0});
  CHECK(values_of(x < 0.5) == Values{1, 1, 0});
  CHECK(values_of(2 <= x) == Values{0, 0, 1});
  CHECK(values_of(x == 2) == Values{0, 0, 1});
  CHECK(values_of(0 != x) == Values{1, 0, 1});
  CHECK(values_of(x == x) == Values{1, 1, 1});
  CHECK((x > 0).dtype() == boolean);
  // As in PyTorch the number is rounded to the tensor's dtype, and integer tensors with fractions
  // give f32.
  CHECK(values_of(full({1}, 0.1, bf16) == 0.1) == Values{1});
  CHECK(values_of(from({1, 2}, i64) > 1.5) == Values{0, 1});
  CHECK(values_of(from({1, 2}, i32) < (int64_t(1) << 40)) == Values{1, 1});
  CHECK(values_of(from({1, 2}, u8) > -1) == Values{1, 1});
}

TEST_CASE("arithmetic of integers with numbers keeps integers, or gives f32") {
  const Tensor x = from({1, -2, 3}, i32), flag = from({1, 0}, boolean);
  CHECK((x + 1).dtype() == i32);
  CHECK(values_of(2 * x - 1) == Values{1, -5, 5});
  CHECK(values_of(10 - x) == Values{9, 12, 7});
  CHECK((x + 0.5).dtype() == f32);
  CHECK((x * 2.0).dtype() == f32);
  CHECK((x / 2).dtype() == f32);
  CHECK(values_of(x / 2) == Values{0.5, -1, 1.5});
  CHECK(values_of(6 / x) == Values{6, -3, 2});
  CHECK(values_of(x % 2) == Values{1, 0, 1});
  CHECK(values_of(floor_divide(x, 2)) == Values{0, -1, 1});
  CHECK((flag + 1).dtype() == i64);
  CHECK((flag + flag).dtype() == boolean);
  CHECK((flag * from({2, 3}, u8)).dtype() == u8);
  CHECK(values_of(from({250, 10}, u8) + 10) == Values{4, 20});  // modulo 256
  CHECK((x + from({1, 1, 1}, i64)).dtype() == i64);
  CHECK((x + from({1, 1, 1}, f16)).dtype() == f16);
}

TEST_CASE("whole numbers next to i64 tensors are exact") {
  constexpr int64_t big = 1764144000123456789, most = std::numeric_limits<int64_t>::max();
  using Whole = std::vector<int64_t>;
  const auto whole = [](const Tensor& x) { return x.to_vector<int64_t>(); };
  const Tensor x = from({big, big + 1, int64_t(-3)});
  CHECK(values_of(x == big) == Values{1, 0, 0});
  CHECK(values_of(x != big + 1) == Values{1, 0, 1});
  CHECK(values_of(x < big + 1) == Values{1, 0, 1});
  CHECK(values_of(big >= x) == Values{1, 0, 1});
  CHECK(whole(x - big) == Whole{0, 1, -3 - big});
  CHECK(whole(big - x) == Whole{0, -1, big + 3});
  CHECK(whole(x + big) == Whole{2 * big, 2 * big + 1, big - 3});
  CHECK(whole(from({int64_t(3)}) * (big / 3)) == Whole{big / 3 * 3});
  CHECK(whole(clamp(x, 0, big)) == Whole{big, big, 0});
  CHECK(whole(clamp(x, big + 1)) == Whole{big + 1, big + 1, big + 1});
  CHECK(whole(maximum(x, big + 1)) == Whole{big + 1, big + 1, big + 1});
  CHECK(whole(minimum(big, x)) == Whole{big, big, -3});
  CHECK(whole(x % big) == Whole{0, 1, big - 3});
  CHECK(whole(floor_divide(x, big + 1)) == Whole{0, 1, -1});
  CHECK(whole(pow(from({int64_t(-1)}), most)) == Whole{-1});
  CHECK(whole(where(x < 0, big, x)) == Whole{big, big + 1, big});
  CHECK(whole(masked_fill(x, x < 0, big + 2)) == Whole{big, big + 1, big + 2});
  CHECK(whole(pad(x, {1, 0}, big)) == Whole{big, big, big + 1, -3});
  CHECK(whole(scatter(x, 0, from({2}), big + 4)) == Whole{big, big + 1, big + 4});
  CHECK(whole(index_add(x, 0, from({2, 2}), from({int64_t(1), int64_t(2)}), big)) ==
        Whole{big, big + 1, 3 * big - 3});
  CHECK(whole(sort(x, 0, true).values) == Whole{big + 1, big, -3});
}

TEST_CASE("a number next to a short float is not rounded to it") {
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    for (const DType dtype : {f16, bf16}) {
      const Tensor x = from({39.5, 43.0, -39.5}, dtype);
      const float by = 3.3f;
      Values quotients, rests, powers;
      for (const double v : values_of(x)) {
        const double rest = v - std::floor(v / double(by)) * double(by);
        quotients.push_back(std::floor(v / double(by)));
        rests.push_back(cast(scalar(rest), dtype).item());
      }
      CHECK(values_of(floor_divide(x, 3.3)) == quotients);
      CHECK(floor_divide(x, 3.3).dtype() == dtype);
      const Values found = values_of(x % 3.3);
      for (std::size_t i = 0; i < 3; ++i)
        CHECK(std::abs(found[i] - rests[i]) <= epsilon(dtype) * rests[i]);
      CHECK(pow(3.3, full({1}, 2, dtype)).item() == cast(scalar(3.3 * 3.3), dtype).item());
    }
  }
  Tensor x = from({7.5}, f16).clone().set_requires_grad();
  sum(x % 3.3).backward();
  CHECK(x.grad().item() == 1);
  CHECK(x.grad().dtype() == f16);
}

TEST_CASE("operations that integers and bools are refused in") {
  CHECK(MESSAGE_OF(UsageError, floor_divide(from({1, 2}, i64), from({1, 0}, i64))) ==
        "[floor_divide] a divisor is 0. Integers need another one; cast to f32 for infinities.");
  CHECK(MESSAGE_OF(UsageError, from({1}, i32) % 0).starts_with("[remainder] a divisor"));
  CHECK(MESSAGE_OF(DTypeError, ones({2}, boolean) - ones({2}, boolean)) ==
        "[sub] needs integers, f64, f32, f16 or bf16, got [2] bool. Cast it first.");
  CHECK(MESSAGE_OF(DTypeError, -ones({2}, boolean)).starts_with("[neg] needs integers"));
  CHECK(MESSAGE_OF(DTypeError, mean(ones({2}, i64))) ==
        "[mean] needs f64, f32, f16 or bf16, got [2] i64. Cast it first.");
}

TEST_CASE("numbers in functions of two, and their gradients") {
  Tensor x = from({-1.0, 0, 2}).set_requires_grad();
  CHECK(values_of(maximum(x, 0.0)) == Values{0, 0, 2});
  CHECK(values_of(minimum(1, x)) == Values{-1, 0, 1});
  CHECK(values_of(where(x > 0, x, 0.5)) == Values{0.5, 0.5, 2});
  CHECK(values_of(where(x > 0, 0, x)) == Values{-1, 0, 0});
  CHECK(values_of(pow(2.0, x)) == Values{0.5, 1, 4});
  CHECK(where(x > 0, from({1, 2, 3}, i64), 0).dtype() == i64);
  sum(maximum(x, 0.0) + pow(2.0, x)).backward();
  const Values gradient = values_of(x.grad());
  CHECK(gradient[0] == doctest::Approx(0.5 * std::log(2)));
  CHECK(gradient[1] == doctest::Approx(0.5 + std::log(2)));  // a tie splits
  CHECK(gradient[2] == doctest::Approx(1 + 4 * std::log(2)));
}

TEST_CASE("one dimension as a number, sizes one by one") {
  const Tensor x = reshape(arange(6., f32), 2, -1);
  CHECK(x.shape() == Shape{2, 3});
  CHECK(values_of(sum(x, -1)) == Values{3, 12});
  CHECK(values_of(mean(x, 1)) == Values{1, 4});
  CHECK(sum(x, 0, true).shape() == Shape{1, 3});
  CHECK(values_of(max(x, 0)) == Values{3, 4, 5});
  CHECK(values_of(any(x > 4, 1)) == Values{0, 1});
  CHECK(values_of(halftone::std(x, 1)) == Values{1, 1});
  CHECK(sum(x, {}).rank() == 0);  // all dimensions, as before
  CHECK(permute(x, 1, 0).shape() == Shape{3, 2});
  CHECK(expand(ones({1, 3}), 4, -1).shape() == Shape{4, 3});
  CHECK(randn(2, 3).shape() == Shape{2, 3});
  CHECK(zeros(4).shape() == Shape{4});
  CHECK(ones(1, 2, 3).shape() == Shape{1, 2, 3});
  CHECK(rand(2, 2).dtype() == f32);
  CHECK(values_of(from_vector({1.f, 2.f}, {2})) == Values{1, 2});
  CHECK(values_of(from_vector({true, false}, {2}, boolean)) == Values{1, 0});
}

TEST_CASE("arange has one rule for its dtype: whole numbers give i64, others f32") {
  CHECK(arange(5).dtype() == i64);
  CHECK(arange(0, 5).dtype() == i64);
  CHECK(arange(5, 0, -2).dtype() == i64);
  CHECK(arange(5.).dtype() == f32);
  CHECK(arange(0, 1, 0.25).dtype() == f32);
  CHECK(arange(0., 5.).dtype() == f32);
  CHECK(arange(0, 5, bf16).dtype() == bf16);
  CHECK(values_of(arange(1, 4)) == Values{1, 2, 3});
}

TEST_CASE("to(dtype) is a recorded cast") {
  Tensor x = from({1.0, 2}).set_requires_grad();
  const Tensor y = x.to(bf16);
  CHECK(y.dtype() == bf16);
  sum(y * y).backward();
  CHECK(x.grad().dtype() == f32);
  CHECK(values_of(x.grad()) == Values{2, 4});
  CHECK(x.to(f32).body() == x.body());
}

TEST_CASE("i32 indices and targets work as i64 ones do") {
  const Tensor table = randn({5, 3}), logits = randn({4, 6});
  const Tensor rows = from({4, 0, 2}, i64), targets = from({1, 5, -100, 0}, i64);
  const auto same = [](const Tensor& a, const Tensor& b) { return values_of(a) == values_of(b); };
  CHECK(same(embedding(rows, table), embedding(cast(rows, i32), table)));
  CHECK(same(cross_entropy(logits, targets), cross_entropy(logits, cast(targets, i32))));
  CHECK(same(nll_loss(logits, targets), nll_loss(logits, cast(targets, i32))));
  CHECK(same(one_hot(rows), one_hot(cast(rows, i32))));
}

TEST_CASE("masked_fill refuses values that the dtype cannot represent") {
  const Tensor mask = ones({2}, boolean);
  CHECK(MESSAGE_OF(UsageError, masked_fill(zeros({2}, f16), mask, -1e9)) ==
        "[masked_fill] the value -1e+09 is not one of f16, whose largest is 65504. Use one that "
        "fits, or an infinity.");
  CHECK(MESSAGE_OF(UsageError, masked_fill(zeros({2}, i64), mask, 0.5))
            .starts_with("[masked_fill] the value 0.5"));
  CHECK(MESSAGE_OF(DTypeError, masked_fill(zeros({2}), zeros({2}), 1)) ==
        "[masked_fill] the mask must be bool, got [2] f32. Compare first.");
  CHECK(values_of(masked_fill(zeros({2}, f16), mask, -INFINITY)) == Values(2, -INFINITY));
}

TEST_CASE("the deviation of short floats is computed in f32, and its gradient at 0 is 0") {
  const Tensor far = from({700, 1300, 700, 1300}, f16);  // the variance is beyond f16
  CHECK(halftone::std(far).item() == doctest::Approx(346.41).epsilon(1e-3));
  CHECK(halftone::std(far).dtype() == f16);
  Tensor flat = full({4}, 2).set_requires_grad();
  halftone::std(flat).backward();
  CHECK(values_of(flat.grad()) == Values(4, 0));
}

TEST_CASE("a window whose dilation exceeds the image is empty") {
  for (const std::string_view backend : {"reference", "cpu"})
    for (const DType dtype : {f64, f32, bf16}) {
      const CpuBackendScope scope(backend);
      Tensor x = ones({1, 2, 1, 4}, dtype).set_requires_grad();
      const Tensor y = max_pool2d(
          x, {.kernel = {2, 1}, .stride = Pair(1), .padding = {1, 0}, .dilation = {2, 1}});
      CHECK(values_of(y) == Values(8, -INFINITY));
      y.backward(ones(y.shape(), dtype));
      CHECK(values_of(x.grad()) == Values(8, 0));
    }
}

TEST_CASE("cross-entropy with probabilities") {
  Tensor x = from({{-0.5, -1, -INFINITY}}).set_requires_grad();
  const Tensor certain = from({{1.0, 0, 0}});
  const double loss = std::log(1 + std::exp(-0.5));
  CHECK(cross_entropy(x, certain).item() == doctest::Approx(loss));  // 0 log 0 is 0
  CHECK(cross_entropy(cast(x, bf16), certain).dtype() == bf16);
  cross_entropy(x, certain).backward();
  CHECK(std::isfinite(x.grad().at({0, 2})));
  CHECK(MESSAGE_OF(UsageError, cross_entropy(x, certain, {.ignore_index = 0})) ==
        "[cross_entropy] ignore_index is 0, but the targets are probabilities. Leave it out.");
}

TEST_CASE("einsum names the equations it does not support") {
  const Tensor m = ones({2, 3});
  const auto message = [&](std::string_view equation) {
    return MESSAGE_OF(Error, einsum(equation, m, m));
  };
  CHECK(message("ii,ij->j") ==
        "[einsum] \"ii,ij->j\": i is twice in [2, 3] f32, with two sizes. A diagonal has one.");
  CHECK(message("ij->j").starts_with("[einsum] \"ij->j\": there are fewer operands in it than"));
  CHECK(message("ij,ij,ij").starts_with("[einsum] \"ij,ij,ij\": there are more operands in it"));
  CHECK(message("i..j,ij").starts_with("[einsum] \"i..j,ij\" has 4 letters for an operand"));
  CHECK(
      message("..,ij").starts_with("[einsum] \"..,ij\": it has a character that is not a letter."));
  CHECK(
      message("ij,ij->ii").starts_with("[einsum] \"ij,ij->ii\": a letter is twice in the result."));
  CHECK(message("ij,ij->k").starts_with("[einsum] \"ij,ij->k\": the result has a letter of no"));
  CHECK(message("ijk,ij->k") ==
        "[einsum] \"ijk,ij->k\" has 3 letters for an operand that is [2, 3] f32. Give one per "
        "dimension.");
  CHECK(message("ij,jk->ik") ==
        "[einsum] \"ij,jk->ik\": j is 3 in [2, 3] f32 and 2 in [2, 3] f32. A letter has one size.");
  CHECK(values_of(einsum("ij,kj->ik", m, m)) == Values(4, 3));
}

TEST_CASE("splitting, sorting and padding say what is wrong") {
  const Tensor x = ones({2, 3});
  CHECK(MESSAGE_OF(ShapeError, split(x, std::vector<int64_t>{1, 1}, 1)) ==
        "[split] 2 sizes for dimension 1 of [2, 3] f32. None may be negative, and they must add up "
        "to 3.");
  CHECK(MESSAGE_OF(UsageError, split(x, 0, 1)).starts_with("[split] the size is 0"));
  CHECK(MESSAGE_OF(UsageError, chunk(x, 0)) ==
        "[chunk] the number of chunks is 0 for [2, 3] f32. Use 1 or more.");
  CHECK(MESSAGE_OF(UsageError, chunk(ones({0}), INT64_MAX)).starts_with("[chunk] the"));
  CHECK(MESSAGE_OF(UsageError, topk(x, 4)) == "[topk] k is 4 for 3 elements. Use 0 to 3.");
  CHECK(MESSAGE_OF(ShapeError, tril(ones({3})))
            .starts_with("[tril] [3] f32 has rank 1. It must have rows and columns."));
  CHECK(MESSAGE_OF(ShapeError, pad(x, {3, 0}, PadMode::reflect))
            .starts_with("[pad] 3 before and 0 after dimension 1 of [2, 3] f32."));
  CHECK(MESSAGE_OF(UsageError, one_hot(from({0, 3}, i64), 3))
            .starts_with("[one_hot] index 3 is out of range for a dimension of size 3."));
  CHECK(MESSAGE_OF(UsageError, one_hot(zeros({0}, i64))).starts_with("[one_hot] -1 classes"));
  CHECK(MESSAGE_OF(UsageError, one_hot(full({1}, 9e18, i64))).starts_with("[one_hot]"));
}

}  // namespace
}  // namespace halftone::test::forms_test

// The members of Tensor that call operations, and the errors of arguments.

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
  const auto begins = [](const std::function<void()>& f, std::string_view text) {
    INFO(message_of(f));
    CHECK(message_of(f).starts_with(text));
  };
  begins([&] { cosine_embedding_loss(x, x, ones({2, 3})); }, "[cosine_embedding_loss] the inputs");
  begins([&] { margin_ranking_loss(x, x, ones({3})); }, "[margin_ranking_loss] the inputs are");
  begins([&] { hinge_embedding_loss(x, {}); }, "[hinge_embedding_loss] the target is undefined");
  begins([&] { multilabel_soft_margin_loss(x, ones({3})); },
         "[multilabel_soft_margin_loss] the outputs are [2, 3] f32, the targets [3] f32.");
  begins([&] { multilabel_soft_margin_loss(scalar(1.0), scalar(1.0)); },
         "[multilabel_soft_margin_loss] the input is a scalar.");
  begins([&] { poisson_nll_loss(x, ones({3})); }, "[poisson_nll_loss] the outputs are");
  begins([&] { binary_cross_entropy(x, t, ones({4})); }, "[binary_cross_entropy] ");
  for (const auto& f : std::vector<std::function<void()>>{
           [&] { mse(x, t, LossReduction::batchmean); },
           [&] {
             cross_entropy(x, from({0, 1}), {.reduction = LossReduction::batchmean});
           },
           [&] { cross_entropy(x, t, {.reduction = LossReduction::batchmean}); },
           [&] {
             nll_loss(x, from({0, 1}), {.reduction = LossReduction::batchmean});
           },
           [&] { gaussian_nll_loss(x, t, x, {.reduction = LossReduction::batchmean}); }})
    CHECK(message_of(f).ends_with(
        "] the reduction is batchmean, which kl_div alone has. Use mean or sum."));
}

TEST_CASE("arguments of ctc_loss say what is wrong") {
  const Tensor x = log_softmax(ones({4, 2, 3}), -1), t = ones({2, 2}, i64);
  const auto begins = [](const std::function<void()>& f, std::string_view text) {
    INFO(message_of(f));
    CHECK(message_of(f).starts_with(text));
  };
  begins(
      [&] {
        ctc_loss(x, t, {4}, {1, 1});
      },
      "[ctc_loss] there are 1 input_lengths for 2 sequences.");
  begins(
      [&] {
        ctc_loss(x, t, {5, 4}, {1, 1});
      },
      "[ctc_loss] one of the input_lengths is 5. Use 0 to 4.");
  begins([&] { ctc_loss(x, t, {4, 4}, {-1, 1}); }, "[ctc_loss] one of the target_lengths is -1.");
  begins(
      [&] {
        ctc_loss(x, t, {4, 4}, {3, 1});
      },
      "[ctc_loss] one of the target_lengths is 3. Use 0 to 2.");
  begins(
      [&] {
        ctc_loss(x, ones({3}, i64), {4, 4}, {1, 1});
      },
      "[ctc_loss] the targets are [3] i64 for target_lengths of 2 together.");
  begins([&] { ctc_loss(x, ones({3, 2}, i64), {4, 4}, {1, 1}); }, "[ctc_loss] the targets are");
  begins(
      [&] {
        ctc_loss(x, t * 3, {4, 4}, {1, 1});
      },
      "[ctc_loss] index 3 is out of range for a dimension of size 3.");
  begins([&] { ctc_loss(x, t, {4, 4}, {1, 1}, {.blank = 3}); }, "[ctc_loss] blank is 3 of 3");
  begins([&] { ctc_loss(ones({4, 0, 3}), t, {}, {}); }, "[ctc_loss] [4, 0, 3] f32 has no");
  begins([&] { ctc_loss(x, cast(t, f32), {4, 4}, {1, 1}); }, "[ctc_loss] targets must be i64");
  begins([&] { ctc_loss(cast(x, i64), t, {4, 4}, {1, 1}); }, "[ctc_loss] needs f64");
  begins(
      [&] {
        ctc_loss(x, t, {4, 4}, {1, 1}, {.reduction = LossReduction::batchmean});
      },
      "[ctc_loss] the reduction is batchmean");
  // Its second gradient is an error that names it, as in PyTorch.
  const Tensor leaf = randn({4, 2, 3}).set_requires_grad();
  const Tensor loss = ctc_loss(log_softmax(leaf, -1), t, {4, 4}, {1, 2});
  begins([&] { autograd::grad(loss, {leaf}, {.create_graph = true}); }, "[ctc_loss] ");
}

TEST_CASE("ctc_loss: short floats, and a probability of 0") {
  const Tensor x = log_softmax(randn({5, 2, 3}), -1), t = from({{1, 2}, {2, 1}});
  const auto loss = [&](const Tensor& logs) { return ctc_loss(logs, t, {5, 4}, {2, 1}); };
  CHECK(loss(cast(x, bf16)).dtype() == bf16);
  CHECK(loss(cast(x, bf16)).item() == cast(loss(cast(cast(x, bf16), f64)), bf16).item());
  const double none = -std::numeric_limits<double>::infinity();
  Tensor logs = from({{none, 0.0, none}, {none, none, 0.0}}).set_requires_grad();
  const Tensor certain = ctc_loss(logs, from({1, 2}), {2}, {2});
  CHECK(certain.item() == 0);
  certain.backward();
  CHECK(logs.grad().to_vector<double>() == std::vector<double>(6, 0.0));
}

TEST_CASE("arguments of counts and running reductions say what is wrong") {
  const Tensor x = ones({2, 3}), whole = ones({3}, i64);
  const auto begins = [](const std::function<void()>& f, std::string_view text) {
    INFO(message_of(f));
    CHECK(message_of(f).starts_with(text));
  };
  begins([&] { cummax(x, 2); }, "[cummax] ");
  begins([&] { logcumsumexp(whole, 0); }, "[logcumsumexp] needs f64");
  begins([&] { nanmean(whole); }, "[nanmean] needs f64");
  begins([&] { nansum(x, {0, 0}); }, "[sum] dimension 0 is given twice");
  begins([&] { bincount(x); }, "[bincount] the input is [2, 3] f32.");
  begins([&] { bincount(whole - 2); }, "[bincount] an element is -1.");
  begins([&] { bincount(whole, ones({2})); }, "[bincount] the weights are [2] f32 for [3] i64.");
  begins([&] { bincount(whole, {}, -1); }, "[bincount] minlength is -1.");
  begins([&] { histc(x, 0); }, "[histc] bins is 0. Use 1 or more.");
  begins([&] { histc(x, 4, 3, 2); }, "[histc] low is 3, high is 2.");
  begins([&] { histc(x / 0, 4); }, "[histc] the range is inf to inf. It must be finite.");
  begins([&] { histc(whole); }, "[histc] needs f64");
  begins([&] { searchsorted(scalar(1.0), x); }, "[searchsorted] the sorted sequence is a scalar.");
  begins([&] { searchsorted(x, ones({3, 3})); }, "[searchsorted] the sorted sequences are");
  begins([&] { searchsorted(x, scalar(1.0)); }, "[searchsorted] the sorted sequences are");
  begins([&] { bucketize(x, x); },
         "[bucketize] the vector of boundaries is [2, 3] f32, of rank 2.");
  begins([&] { isclose(x, cast(x, f64)); }, "[isclose] dtypes differ");
  begins([&] { isclose(x, x, {.rtol = -1}); }, "[isclose] rtol is -1. Use 0 or more.");
  CHECK(allclose(x, x + 1e-6));
  CHECK_FALSE(allclose(x, x + 1e-4));
  CHECK(allclose(zeros({0}), zeros({0})));
  CHECK_FALSE(allclose(x * std::nan(""), x * std::nan("")));
  CHECK(allclose(x * std::nan(""), x * std::nan(""), {.equal_nan = true}));
}

TEST_CASE("composed losses and running sums have second gradients") {
  manual_seed(4);
  const Tensor x = randn({3, 4}, f64).set_requires_grad(), y = randn({3, 4}, f64),
               sign = from({1, -1, 1});
  const auto second = [&](const std::function<Tensor(const Tensor&)>& f) {
    const auto slope = [&](const Tensor& in) {
      const Tensor leaf = in.detach().clone().set_requires_grad();
      const Tensor first = autograd::grad(sum(f(leaf) * 0.5), {leaf}, {.create_graph = true})[0];
      return std::pair{leaf, sum(square(first))};
    };
    const auto [leaf, value] = slope(x);
    const Tensor exact = autograd::grad(value, {leaf})[0];
    const Tensor step = randn({3, 4}, f64) * 1e-5;
    const double change = slope(x + step).second.item() - slope(x - step).second.item();
    CHECK(change == doctest::Approx(2 * sum(exact * step).item()).epsilon(1e-4));
  };
  second([](const Tensor& in) { return logcumsumexp(in, 1); });
  second([&](const Tensor& in) { return cosine_embedding_loss(in, y, sign, -0.9); });
  second([&](const Tensor& in) { return multilabel_soft_margin_loss(in, abs(y)); });
  second([&](const Tensor& in) { return poisson_nll_loss(in, abs(y)); });
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

TEST_CASE("arguments of several indices say what is wrong") {
  const Tensor x = ones({2, 3}), mask = from({1, 0, 1}) == 1, i = from({0, 1});
  CHECK(message_of([&] { x[mask]; }) ==
        "[index] the mask is [3] bool for [2, 3] f32 from dimension 0 on. Its sizes must be the "
        "same.");
  CHECK(message_of([&] {
          x[from({-3, 1})];
        }) == "[index] indices from -3 to 1 for a dimension of size 2. They must be from -2 to 1.");
  CHECK(message_of([&] { x[ones({1})]; }).starts_with("[index] the index must be i64 or i32"));
  CHECK(message_of([&] {
          index(x, {i, i, i});
        }).starts_with("[index] 3 dimensions are indexed, but x is [2, 3] f32."));
  CHECK(message_of([&] {
          index(x, {i, from({0, 1, 2})});
        }).starts_with("[index] shapes do not broadcast"));
  CHECK(message_of([&] { index(x, {}); }) ==
        "[index] got no index. Give an index tensor or a mask.");
  CHECK(message_of([&] { index(zeros({0, 3}), {i}); }).starts_with("[index] indices from 0 to 1"));
  CHECK(index(zeros({0, 3}), {zeros({0, 2}, i64)}).shape() == Shape{0, 2, 3});
  CHECK(message_of([&] {
          index_put(x, {i}, ones({2, 2, 3}));
        }).starts_with("[index_put] the values are [2, 2, 3] f32, x at the indices is [2, 3]."));
  CHECK(message_of([&] {
          index_put(x, {i}, zeros({3}, i64));
        }).starts_with("[index_put] dtypes differ"));
  CHECK(message_of([&] { index_fill(x, 0, x, 1); }).starts_with("[index_fill] the index must be"));
  CHECK(message_of([&] { index_fill(x, 0, from({2}), 1); }).starts_with("[index_fill] indices"));
  CHECK(message_of([&] {
          index_copy(x, 0, from({-1}), ones({1, 3}));
        }).starts_with("[index_copy] index -1 is out of range"));
  CHECK(message_of([&] {
          index_copy(x, 0, i, ones({1, 3}));
        }).starts_with("[index_copy] the index is [2] i64, the source [1, 3] f32."));
  CHECK(message_of([&] { masked_scatter(x, mask, ones({3})); }) ==
        "[masked_scatter] 4 elements are masked, the source is [3] f32. It must have as many.");
  CHECK(message_of([&] {
          scatter_reduce(x, 0, zeros({2, 3}, i64), ones({1, 3}), ScatterReduction::prod);
        }).starts_with("[scatter_reduce] the index is [2, 3] i64, the source [1, 3] f32."));
  CHECK(message_of([&] {
          scatter_reduce(x, 0, full({1, 1}, 2, i64), x, ScatterReduction::amax);
        }).starts_with("[scatter_reduce] index 2 is out of range"));
  CHECK(message_of([&] { repeat_interleave(x, -1); }) ==
        "[repeat_interleave] repeats is -1. It must not be negative.");
  CHECK(message_of([&] {
          repeat_interleave(x, i, 1);
        }).starts_with("[repeat_interleave] repeats is [2] i64 for dimension 1 of [2, 3] f32."));
  CHECK(message_of([&] {
          repeat_interleave(x, from({1, -1}), 0);
        }).starts_with("[repeat_interleave] repeats has -1."));
  CHECK(values_of(repeat_interleave(from({1.0, 2}), from({2}))) == Values{1, 1, 2, 2});
  CHECK(values_of(repeat_interleave(scalar(3), 2)) == Values{3, 3});
}

TEST_CASE("arguments of windows and grids say what is wrong") {
  const Tensor x = ones({1, 2, 4, 4}), scalar_0 = scalar(1);
  CHECK(message_of([&] { unbind(scalar_0); }).starts_with("[unbind] a scalar has no dimensions."));
  CHECK(message_of([&] {
          movedim(x, {0, 0}, {1, 2});
        }).starts_with("[movedim] dimensions [0, 0] to [1, 2] of"));
  CHECK(message_of([&] { movedim(x, {0}, {1, 2}); }).starts_with("[movedim] dimensions"));
  CHECK(message_of([&] {
          unflatten(x, 2, {-1, 3});
        }).starts_with("[unflatten] dimension 2 of [1, 2, 4, 4] f32 to [-1, 3]."));
  CHECK(message_of([&] { unflatten(x, 2, {2, 3}); }).starts_with("[unflatten] dimension 2"));
  CHECK(message_of([&] { hstack({}); }) != "no error");
  CHECK(message_of([&] { vstack({x, Tensor{}}); }).starts_with("[vstack] an input is undefined."));
  CHECK(message_of([&] { unfold(x, 2, 5, 1); }) ==
        "[unfold] windows of 5 elements, 1 apart, in dimension 2 of [1, 2, 4, 4] f32. Use a size "
        "from 0 to 4 and a step of 1 or more.");
  CHECK(message_of([&] { unfold(x, 2, 2, 0); }).starts_with("[unfold] windows"));
  CHECK(message_of([&] { unfold(x, {.kernel = 5}); }).starts_with("[unfold] a kernel of 5 with"));
  CHECK(message_of([&] {
          unfold(x, {.kernel = 2, .stride = 0});
        }).starts_with("[unfold] a kernel of 2 with dilation 1, padding 0 and stride 0"));
  CHECK(message_of([&] { unfold(ones({4, 4}), {.kernel = 2}); }).starts_with("[unfold] x is"));
  CHECK(message_of([&] {
          fold(ones({1, 8, 8}), 4, {.kernel = 2});
        }).starts_with("[fold] columns are [1, 8, 8] f32. They must be [n, c * 4, 9]"));
  CHECK(message_of([&] { fold(ones({1, 9, 9}), 4, {.kernel = 2}); }).starts_with("[fold] columns"));
  CHECK(message_of([&] {
          pixel_unshuffle(x, 3);
        }).starts_with("[pixel_unshuffle] [1, 2, 4, 4] f32 with a factor of 3."));
  CHECK(message_of([&] {
          grid_sample(x, ones({2, 3, 3, 2}));
        }).starts_with("[grid_sample] x is [1, 2, 4, 4] f32, the grid [2, 3, 3, 2] f32."));
  CHECK(message_of([&] { grid_sample(x, ones({1, 3, 3, 3})); }).starts_with("[grid_sample] x is"));
  CHECK(message_of([&] {
          grid_sample(x, ones({1, 3, 3, 2}, f64));
        }).starts_with("[grid_sample] dtypes differ"));
  CHECK(message_of([&] {
          grid_sample(ones({1, 2, 0, 4}), ones({1, 3, 3, 2}));
        }).starts_with("[grid_sample] x is"));
}

TEST_CASE("divisors of 0 and numbers in rarer functions of two") {
  CHECK(message_of([&] { fmod(from({5}), 0); }).starts_with("[fmod] a divisor is 0."));
  CHECK(message_of([&] {
          fmod(ones({2}, boolean), ones({2}, boolean));
        }).starts_with("[fmod] needs integers"));
  CHECK(values_of(fmod(from({5.5, -5.5}), 2)) == Values{1.5, -1.5});
  CHECK(values_of(fmod(from({1000.0}, f16), 3.3)) ==
        values_of(cast(fmod(from({1000.0}), 3.3), f16)));
  CHECK(values_of(xlogy(0, from({0.0, 3}))) == Values{0, 0});
  CHECK(values_of(xlogy(from({0.0, 2}), 1)) == Values{0, 0});
  CHECK(atan2(from({1}), from({0})).dtype() == f32);
}

TEST_CASE("a short float is sampled in f32, and extremes of several equals share the gradient") {
  const Tensor x = cast(randn({1, 2, 40, 50}), bf16), grid = cast(rand({1, 9, 7, 2}) * 2 - 1, bf16);
  CHECK(values_of(grid_sample(x, grid)) ==
        values_of(cast(grid_sample(cast(x, f32), cast(grid, f32)), bf16)));
  Tensor a = from({1.0, 5}).set_requires_grad(), b = from({5.0, 5, 2}).set_requires_grad();
  sum(scatter_reduce(a, 0, from({1, 1, 0}), b, ScatterReduction::amax)).backward();
  CHECK(max(abs(a.grad() - from({0, 1.0 / 3}))).item() < 1e-6);
  CHECK(max(abs(b.grad() - from({1.0 / 3, 1.0 / 3, 1}))).item() < 1e-6);
}

TEST_CASE("the gradient of a median is that of the elements equal to it") {
  Tensor x = from({1.0, 2, 2, 9}).set_requires_grad();
  median(x).backward();
  CHECK(values_of(x.grad()) == Values{0, 0.5, 0.5, 0});
}

}  // namespace
}  // namespace halftone::test::members_test

// Operations defined outside the library: a struct is enough, and its errors are reported under its
// name.

namespace halftone::test::user_op_test {
namespace {

/// y = x^3, as a user writes it: composed, with its own derivative.
struct Cube : UserOp {
  static constexpr OpInfo info{"cube", CastClass::full_precision};
  Tensor saved{};

  Tensor forward(const Tensor& x) {
    saved = x;
    return x * x * x;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {dy * square(saved) * 3.0}; }
};

Tensor cube(const Tensor& x) { return apply(Cube{}, x); }

TEST_CASE("a user's operation has its gradient, and works in a graph like any other") {
  const Tensor x = from({-1, 0.5, 2}, f64).set_requires_grad();
  CHECK(gradcheck([](const std::vector<Tensor>& in) { return cube(tanh(in[0])); }, {x}));
  cube(x).backward(ones({3}, f64));
  CHECK(x.grad().to_vector<double>() == std::vector<double>{3, 0.75, 12});
}

/// y = x + sum of the rest: any number of inputs, gradients only if required.
struct AddAll : UserOp {
  static constexpr OpInfo info{"add_all", CastClass::widest_input};
  std::size_t count = 0;

  Tensor forward(std::span<const Tensor> inputs) {
    count = inputs.size();
    Tensor y = inputs[0];
    for (std::size_t i = 1; i < count; ++i) y = y + inputs[i];
    return y;
  }
  std::vector<Tensor> backward(const Tensor& dy) const { return std::vector<Tensor>(count, dy); }
};

TEST_CASE("an operation on any number of inputs") {
  const Tensor a = from({1.0}).set_requires_grad(), b = from({2.0}),
               c = from({3.0}).set_requires_grad();
  const Tensor y = apply(AddAll{}, std::vector<Tensor>{a, b, c, a});
  CHECK(y.item() == 7);
  y.backward();
  CHECK(a.grad().item() == 2);
  CHECK(c.grad().item() == 1);
  CHECK_FALSE(b.grad().defined());
}

/// The identity, with a gradient of a chosen kind.
struct Wrong : UserOp {
  static constexpr OpInfo info{"wrong", CastClass::as_is};
  std::vector<Tensor> answer;

  explicit Wrong(std::vector<Tensor> gradients) : answer(std::move(gradients)) {}
  Tensor forward(const Tensor& x) { return x.clone(); }
  std::vector<Tensor> backward(const Tensor&) const { return answer; }
};

void backward_through(std::vector<Tensor> gradients) {
  const Tensor x = ones({2}).set_requires_grad();
  sum(apply(Wrong(std::move(gradients)), x)).backward();
}

TEST_CASE("a gradient that does not fit is an error that names the operation") {
  CHECK_THROWS_WITH_AS(
      backward_through({ones({2}, bf16)}),
      "[backward] wrong returned a gradient of dtype bf16 for an input of dtype f32. Its backward "
      "must return the input's dtype.",
      DTypeError);
  CHECK_THROWS_WITH_AS(backward_through({ones({2, 1})}),
                       "[backward] wrong returned a gradient of shape [2, 1] for an input of shape "
                       "[2]. Its backward "
                       "must return the input's shape.",
                       ShapeError);
  CHECK_THROWS_WITH_AS(backward_through({ones({2}), ones({2})}),
                       "[backward] wrong returned 2 gradients for 1 inputs. Return one per input, "
                       "undefined where none "
                       "is wanted.",
                       UsageError);
  CHECK_NOTHROW(backward_through({Tensor{}}));
}

/// Rounds, and has no derivative.
struct Floor : UserOp {
  static constexpr OpInfo info{"floor", CastClass::as_is};
  Tensor forward(const Tensor& x) { return cast(cast(x, i64), x.dtype()); }
};

TEST_CASE("an operation without backward fails when one is asked for") {
  const Tensor x = from({1.5}).set_requires_grad();
  const Tensor y = apply(Floor{}, x);
  CHECK(y.item() == 1);
  CHECK_THROWS_WITH_AS(y.backward(), "[floor] has no gradient. Use detach() on its result.",
                       UnsupportedError);
}

/// Records which gradients are required.
struct Asking : UserOp {
  static constexpr OpInfo info{"asking", CastClass::as_is};
  std::array<bool, 2>* told;
  Needs<2> needs{};

  explicit Asking(std::array<bool, 2>* answer) : told(answer) {}
  Tensor forward(const Tensor& a, const Tensor&) {
    *told = needs.input;
    return a.clone();
  }
  std::array<Tensor, 2> backward(const Tensor& dy) const { return {dy, dy}; }
};

TEST_CASE("an operation knows which gradients are required") {
  std::array<bool, 2> told{};
  const Tensor a = ones({1}).set_requires_grad(), b = ones({1});
  apply(Asking(&told), a, b);
  CHECK(told == std::array{true, false});
  apply(Asking(&told), b, a);
  CHECK(told == std::array{false, true});
  const NoGrad no_grad;
  apply(Asking(&told), a, a);
  CHECK(told == std::array{false, false});
}

/// Returns its input itself, and saves its output: neither may make a cycle in the graph.
struct Same : UserOp {
  static constexpr OpInfo info{"same", CastClass::as_is};
  Tensor saved{};
  Tensor forward(const Tensor& x) {
    saved = x;
    return x;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {dy}; }
};

TEST_CASE("an operation may return its input, or save its output") {
  const int64_t before = memory_report().total_now;
  {
    const Tensor x = ones({4}).set_requires_grad();
    const Tensor y = apply(Same{}, x);
    CHECK(x.is_leaf());
    CHECK_FALSE(y.is_leaf());
    CHECK(y.storage() == x.storage());
    sum(exp(y)).backward();
    CHECK(x.grad().defined());
  }
  CHECK(memory_report().total_now == before);
}

}  // namespace

}  // namespace halftone::test::user_op_test
