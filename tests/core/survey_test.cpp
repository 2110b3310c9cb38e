// Surveys: the counts for each number, rows that add up, and conclusions from them.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include <halftone/halftone.h>

namespace halftone::test::survey_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity(),
                not_a_number = std::numeric_limits<float>::quiet_NaN();

Tensor vector_of(const std::vector<float>& values) {
  return from_span<float>(values, {int64_t(values.size())}, f32);
}

/// y = Q(x) and its survey.
Survey quantizing(const Tensor& x, const Quantizer& quantizer, Tensor* y = nullptr) {
  const Tensor row = new_survey_row({});
  const Tensor result = quantized(x, {.quantizer = quantizer, .survey = row});
  if (y) *y = result;
  return Survey::from(row);
}
Survey looking(const Tensor& x) {
  const Tensor row = new_survey_row({});
  survey(x, x, nullptr, row);
  return Survey::from(row);
}

TEST_CASE("the effect of e4m3 on twenty numbers, by hand") {
  // Largest 448, smallest normal 2^-6, spacing below it 2^-9, half of that becomes 0.
  const Tensor x =
      vector_of({0.0f,      -0.0f,  1.0f,     -1.0f,     1.03f,        448.0f,     449.0f,
                 -500.0f,   1e30f,  0x1p-6f,  0x1p-7f,   0x1p-9f,      0x1.8p-10f, 0x1p-10f,
                 -0x1p-11f, 1e-40f, infinity, -infinity, not_a_number, 3.3f});
  const SurveySums s = quantizing(x, {.grid = formats::e4m3}).sums;
  CHECK(s.count == 20);
  CHECK(s.zeros == 2);
  CHECK(s.infinite == 2);
  CHECK(s.nan == 1);
  CHECK(s.to_zero == 3);    // 2^-10 (a tie to even), 2^-11, 1e-40
  CHECK(s.subnormal == 3);  // 2^-7, 2^-9, and 1.5 2^-10, which becomes 2^-9
  CHECK(s.saturated == 3);  // 449, -500, 1e30
  CHECK(s.to_infinity == 0);
  CHECK(s.changed == 9);  // those and 1.03, 3.3, 1.5 2^-10
  CHECK(s.largest == doctest::Approx(1e30));
  CHECK(s.smallest == doctest::Approx(1e-40).epsilon(1e-5));
}

TEST_CASE("values that e5m2 cannot represent become infinite and are not in any sum") {
  const SurveySums s = quantizing(vector_of({1e5f, 2.0f, -1e9f}), {.grid = formats::e5m2}).sums;
  CHECK(s.to_infinity == 2);
  CHECK(s.saturated == 0);
  CHECK(s.changed == 2);
  CHECK(s.sum_e2 == 0);
}

TEST_CASE("bins are the exponents of std::ilogb") {
  for (int e = -149; e <= 127; ++e)
    for (const float factor : {1.0f, 1.5f, -1.999f}) {
      const float x = std::ldexp(factor, e);
      if (x == 0) continue;
      CAPTURE(e);
      CHECK(binade_of(x) + Survey::lowest_exponent == std::ilogb(x));
    }
}

TEST_CASE("surveys of parts add up to that of the whole") {
  manual_seed(3);
  const Tensor x = randn({64, 96});
  for (const char* name : {"e4m3", "mxfp8", "nvfp4", "fp8_tensor"}) {
    CAPTURE(name);
    Quantizer quantizer = *quantizer_named(name);
    const Tensor amax = scalar(5.0);
    const auto of = [&](const Tensor& part) {
      const Tensor row = new_survey_row({});
      quantized(part, {.quantizer = quantizer, .amax = amax, .survey = row});
      return Survey::from(row);
    };
    Survey parts = of(views::slice(x, 0, 0, 40));
    parts.merge(of(views::slice(x, 0, 40, 24)));
    const Survey whole = of(x);
    CHECK(parts.binade == whole.binade);
    CHECK(parts.sums.changed == whole.sums.changed);
    CHECK(parts.sums.to_zero == whole.sums.to_zero);
    CHECK(parts.sums.subnormal == whole.sums.subnormal);
    CHECK(parts.sums.sum_e2 == doctest::Approx(whole.sums.sum_e2).epsilon(1e-12));
    CHECK(parts.sums.smallest == whole.sums.smallest);
  }
}

TEST_CASE("sums are those of the tensors, with blocks, rotations and any strides") {
  manual_seed(4);
  const Tensor square = randn({48, 64});
  for (const Tensor& x : {square, views::transpose(square, 0, 1)})
    for (const char* name : {"e4m3", "mxfp4", "nvfp4", "fp8_block", "bf16"}) {
      CAPTURE(name);
      Quantizer quantizer = *quantizer_named(name);
      Tensor y;
      const Survey got = quantizing(x, quantizer, &y);
      const auto before = x.to_vector<double>(), after = y.to_vector<double>();
      double e2 = 0, x2 = 0, changed = 0, zeros = 0;
      for (std::size_t i = 0; i < before.size(); ++i) {
        e2 += (after[i] - before[i]) * (after[i] - before[i]), x2 += before[i] * before[i];
        changed += after[i] != before[i] ? 1 : 0, zeros += after[i] == 0 ? 1 : 0;
      }
      CHECK(got.sums.sum_e2 == doctest::Approx(e2).epsilon(1e-12));
      CHECK(got.sums.changed == changed);
      CHECK(got.sums.to_zero == zeros);
      CHECK(got.sqnr() == doctest::Approx(10 * std::log10(x2 / e2)));
    }
  Quantizer rotated = *quantizer_named("nvfp4");
  rotated.hadamard = 16;
  Tensor with, without = quantized(square, {.quantizer = rotated});
  const Survey got = quantizing(square, rotated, &with);
  CHECK(with.to_vector<float>() == without.to_vector<float>());
  CHECK(got.sums.count == 48 * 64);
}

/// The parts of an error, element by element, as ErrorParts defines them.
ErrorParts parts_of(const std::vector<double>& x, const std::vector<double>& y,
                    const std::function<bool(double)>& beyond) {
  double xx = 0, xy = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (std::isfinite(x[i]) && std::isfinite(y[i])) xx += x[i] * x[i], xy += x[i] * y[i];
  const double a = xx > 0 ? xy / xx : 1;
  ErrorParts parts{.scale = (a - 1) * (a - 1) * xx};
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == 0 || !std::isfinite(x[i]) || !std::isfinite(y[i])) continue;
    const double rest = (y[i] - a * x[i]) * (y[i] - a * x[i]);
    (y[i] == 0 ? parts.dead_zone : beyond(x[i]) ? parts.saturation : parts.grid) += rest;
  }
  return parts;
}

TEST_CASE("tensors whose error has one part, by hand") {
  const Quantizer e4m3{.grid = formats::e4m3};
  const auto check = [](const ErrorParts& got, const ErrorParts& wanted) {
    const double whole = wanted.whole();
    CHECK(std::abs(got.scale - wanted.scale) <= 1e-14 * whole);
    CHECK(std::abs(got.dead_zone - wanted.dead_zone) <= 1e-14 * whole);
    CHECK(std::abs(got.grid - wanted.grid) <= 1e-14 * whole);
    CHECK(std::abs(got.saturation - wanted.saturation) <= 1e-14 * whole);
  };
  // All numbers are 12.5 % too small: one factor removes the whole error.
  check(quantizing(vector_of({512, -512, 512}), e4m3).error_parts(), {.scale = 3 * 64.0 * 64});
  // 17 and 19 become 16 and 20 (ties to even): the sum of x e is 2.
  const Survey pair = quantizing(vector_of({17.0f, 19.0f}), e4m3);
  const double gain = (19.0 - 17.0) / (17.0 * 17 + 19 * 19);
  check(pair.error_parts(), {.scale = gain * 2, .grid = 2 - gain * 2});
  // Numbers that are on the grid, and one that becomes 0: 2^-11.
  const double tiny = 0x1p-22, all = tiny + 1 + 4;
  check(quantizing(vector_of({0x1p-11f, 1, 2}), e4m3).error_parts(),
        {.scale = tiny * tiny / all,
         .dead_zone = tiny * (1 - tiny / all) * (1 - tiny / all),
         .grid = 5 * tiny * tiny / all / all});
  check(quantizing(vector_of({1, 2, 0}), e4m3).error_parts(), {});
  CHECK(quantizing(vector_of({1, 2, 0}), e4m3).norm_to_noise() == infinity);
  CHECK(quantizing(vector_of({3, 4, 1.5f * 0x1p-10f}), e4m3).norm_to_noise() ==
        doctest::Approx(5 / 0x1p-11));
  // A row of a file without these sums.
  Survey old;
  old.sums.sum_x2 = 2, old.sums.sum_e2 = 1;
  CHECK(std::isnan(old.error_parts().grid));
  CHECK(old.norm_to_noise() == doctest::Approx(std::sqrt(2)));
}

TEST_CASE("parts are those of a plain loop, and add up, for every kind of quantizer") {
  manual_seed(5);
  Tensor x = randn({24, 64});
  for (int64_t i = 0; i < x.numel(); ++i)
    x.data<float>()[i] *= std::ldexp(1.0f, int(i * 7 % 37) - 16);
  for (const char* name : {"e4m3", "e5m2", "bf16", "f16", "e2m1", "mxfp8", "mxfp4", "nvfp4",
                           "fp8_tensor", "fp8_block", "int8"})
    for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
      CAPTURE(name);
      const auto known = quantizer_named(name);
      REQUIRE(known);
      Quantizer quantizer = *known;
      quantizer.rounding = rounding;
      Tensor y;
      const Survey got = quantizing(x, quantizer, &y);
      const ErrorParts parts = got.error_parts();
      const double whole = got.sums.sum_e2;
      CHECK(std::abs(parts.whole() - whole) <= 1e-12 * whole);
      if (quantizer.scaling.per != Scaling::Per::none) continue;
      const auto before = x.to_vector<double>(), after = y.to_vector<double>();
      const ErrorParts wanted = parts_of(before, after, [&](double number) {
        return std::abs(number) > double(quantizer.grid.max);
      });
      CHECK(std::abs(parts.scale - wanted.scale) <= 1e-12 * whole);
      CHECK(std::abs(parts.dead_zone - wanted.dead_zone) <= 1e-12 * whole);
      CHECK(std::abs(parts.grid - wanted.grid) <= 1e-12 * whole);
      CHECK(std::abs(parts.saturation - wanted.saturation) <= 1e-12 * whole);
    }
}

TEST_CASE("an empty tensor and a scalar") {
  CHECK(looking(empty({0, 3})).sums.count == 0);
  CHECK(std::isnan(looking(empty({0})).underflow()));
  CHECK(looking(scalar(2.5)).sums.largest == 2.5);
  CHECK_FALSE(looking(zeros({4})).sufficient_lift(formats::f16));
}

TEST_CASE("the loss scale that a histogram recommends") {
  // Gradients of 2^-30 and 2^-20: the smallest number of f16 is about 2^-25, the largest power
  // 2^15.
  std::vector<float> values(1000, 0x1.2p-20f);
  for (std::size_t i = 0; i < 500; ++i) values[i] = 0x1.1p-30f;
  const Survey s = looking(vector_of(values));
  CHECK(s.would_underflow(formats::f16) == doctest::Approx(0.5));
  CHECK(s.would_underflow(formats::f16, 5) == 0);
  CHECK(s.would_underflow(formats::f16, 4) == doctest::Approx(0.5));
  CHECK(s.sufficient_lift(formats::f16) == 5);
  CHECK(s.would_overflow(formats::f16, 35) == 0);
  CHECK(s.would_overflow(formats::f16, 36) == doctest::Approx(0.5));
}

TEST_CASE("an invalid row is refused") {
  CHECK_THROWS_WITH_AS(Survey::from(zeros({3}, f64)), doctest::Contains("[survey] a row is"),
                       UsageError);
}

}  // namespace
}  // namespace halftone::test::survey_test
