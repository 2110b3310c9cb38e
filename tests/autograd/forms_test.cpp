// The forms in which PyTorch users write operations: numbers next to tensors, single dimensions,
// sizes one by one; and the errors and dtypes of operations on integers.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <halftone/autograd/ops.h>
#include <halftone/core/tensor.h>

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
  CHECK(message_of<UsageError>([] {
          floor_divide(from({1, 2}, i64), from({1, 0}, i64));
        }) ==
        "[floor_divide] a divisor is 0. Integers need another one; cast to f32 for infinities.");
  CHECK(message_of<UsageError>([] { from({1}, i32) % 0; }).starts_with("[remainder] a divisor"));
  CHECK(message_of<DTypeError>([] { ones({2}, boolean) - ones({2}, boolean); }) ==
        "[sub] needs integers, f64, f32, f16 or bf16, got [2] bool. Cast it first.");
  CHECK(message_of<DTypeError>([] { -ones({2}, boolean); }).starts_with("[neg] needs integers"));
  CHECK(message_of<DTypeError>([] { mean(ones({2}, i64)); }) ==
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
  CHECK(message_of<UsageError>([&] { masked_fill(zeros({2}, f16), mask, -1e9); }) ==
        "[masked_fill] the value -1e+09 is not one of f16, whose largest is 65504. Use one that "
        "fits, or an infinity.");
  CHECK(message_of<UsageError>([&] {
          masked_fill(zeros({2}, i64), mask, 0.5);
        }).starts_with("[masked_fill] the value 0.5"));
  CHECK(message_of<DTypeError>([&] { masked_fill(zeros({2}), zeros({2}), 1); }) ==
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
  CHECK(message_of<UsageError>([&] { cross_entropy(x, certain, {.ignore_index = 0}); }) ==
        "[cross_entropy] ignore_index is 0, but the targets are probabilities. Leave it out.");
}

TEST_CASE("einsum names the equations it does not support") {
  const Tensor m = ones({2, 3});
  const auto message = [&](std::string_view equation) {
    return message_of<Error>([&] { einsum(equation, m, m); });
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
  CHECK(message_of<ShapeError>([&] {
          split(x, std::vector<int64_t>{1, 1}, 1);
        }) ==
        "[split] 2 sizes for dimension 1 of [2, 3] f32. None may be negative, and they must add up "
        "to 3.");
  CHECK(message_of<UsageError>([&] { split(x, 0, 1); }).starts_with("[split] the size is 0"));
  CHECK(message_of<UsageError>([&] { chunk(x, 0); }) ==
        "[chunk] the number of chunks is 0 for [2, 3] f32. Use 1 or more.");
  CHECK(message_of<UsageError>([&] { chunk(ones({0}), INT64_MAX); }).starts_with("[chunk] the"));
  CHECK(message_of<UsageError>([&] { topk(x, 4); }) == "[topk] k is 4 for 3 elements. Use 0 to 3.");
  CHECK(message_of<ShapeError>([&] {
          tril(ones({3}));
        }).starts_with("[tril] [3] f32 has rank 1. It must have rows and columns."));
  CHECK(message_of<ShapeError>([&] {
          pad(x, {3, 0}, PadMode::reflect);
        }).starts_with("[pad] 3 before and 0 after dimension 1 of [2, 3] f32."));
  CHECK(message_of<UsageError>([&] {
          one_hot(from({0, 3}, i64), 3);
        }).starts_with("[one_hot] index 3 is out of range for a dimension of size 3."));
  CHECK(message_of<UsageError>([&] {
          one_hot(zeros({0}, i64));
        }).starts_with("[one_hot] -1 classes"));
  CHECK(message_of<UsageError>([&] { one_hot(full({1}, 9e18, i64)); }).starts_with("[one_hot]"));
}

}  // namespace
}  // namespace halftone::test::forms_test
