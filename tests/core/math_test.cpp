// The float functions of core/math.h against the C library in double, over a dense sweep of all
// floats. Errors are counted in units in the last place of the exact result.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <halftone/core/math.h>

namespace halftone::test::math_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// Distance of `got` from `exact` in spacings of floats at `exact`.
double ulps(float got, double exact) {
  if (std::isnan(exact)) return std::isnan(got) ? 0 : 1e9;
  const float nearest = float(exact);
  if (got == nearest) return 0;
  if (!std::isfinite(got) || !std::isfinite(nearest)) return 1e9;
  const double spacing = std::max(std::ldexp(1.0, std::ilogb(exact) - 23), 0x1p-149);
  return std::abs(double(got) - exact) / spacing;
}

struct Worst {
  double error = 0;
  float at = 0;
};

/// Every `stride`-th float from `low` to `high`, both ends included.
template <class F, class Exact>
Worst worst_over(float low, float high, F f, Exact exact, int64_t stride = 1009) {
  // Floats in the order of their values as integers.
  const auto place = [](float x) {
    const int32_t bits = std::bit_cast<int32_t>(x);
    return int64_t(bits < 0 ? std::numeric_limits<int32_t>::min() - int64_t(bits) : bits);
  };
  const auto at = [](int64_t p) {
    return std::bit_cast<float>(int32_t(p < 0 ? std::numeric_limits<int32_t>::min() - p : p));
  };
  Worst worst;
  const auto visit = [&](float x) {
    const double error = ulps(f(x), exact(double(x)));
    if (error > worst.error) worst = {error, x};
  };
  for (int64_t p = place(low); p < place(high); p += stride) visit(at(p));
  visit(high);
  return worst;
}

template <class F, class Exact>
void check_bound(float low, float high, double bound, F f, Exact exact) {
  const Worst worst = worst_over(low, high, f, exact);
  INFO("from ", low, " to ", high, ": worst at ", worst.at);
  CHECK(worst.error <= bound);
}

}  // namespace

TEST_CASE("exp") {
  const auto f = [](float x) { return math::exp(x); };
  const auto exact = [](double x) { return std::exp(x); };
  check_bound(-87.3f, 88.72283f, 2, f, exact);
  check_bound(-110, -87.3f, 1, f, exact);  // subnormal results, and zero
  check_bound(-1, 1, 1, f, exact);
  CHECK(f(0) == 1);
  CHECK(f(-0.0f) == 1);
  CHECK(f(infinity) == infinity);
  CHECK(f(-infinity) == 0);
  CHECK(std::isfinite(f(88.7228317f)));  // the largest argument whose result is a float
  CHECK(f(std::nextafter(88.7228317f, 100.0f)) == infinity);
  CHECK(f(1000) == infinity);
  CHECK(f(-1000) == 0);
  CHECK(f(std::numeric_limits<float>::max()) == infinity);
  CHECK(f(-std::numeric_limits<float>::max()) == 0);
  CHECK(std::isnan(f(not_a_number)));
}

TEST_CASE("exp_below is exp, except for results that are not normal numbers") {
  const auto f = [](float x) { return math::exp_below(x); };
  const auto same = [](double x) { return double(math::exp(float(x))); };
  check_bound(-87.33f, 1, 0, f, same);
  CHECK(f(-0.0f) == 1);
  CHECK(f(-87.7f) == 0);
  CHECK(f(-88.5f) == 0);
  CHECK(f(-1000) == 0);
  CHECK(f(-std::numeric_limits<float>::max()) == 0);
  CHECK(f(-infinity) == 0);
  CHECK(std::isnan(f(not_a_number)));
  CHECK(std::isnan(f(-not_a_number)));
  CHECK(math::exp_below(-700.0) == elementary::exp(-700.0));
}

TEST_CASE("log") {
  const auto f = [](float x) { return math::log(x); };
  const auto exact = [](double x) { return std::log(x); };
  check_bound(0x1p-149f, 0x1p-126f, 2, f, exact);
  check_bound(0x1p-126f, std::numeric_limits<float>::max(), 2, f, exact);
  check_bound(0.5f, 2, 2, f, exact);
  CHECK(f(1) == 0);
  CHECK(f(0) == -infinity);
  CHECK(f(-0.0f) == -infinity);
  CHECK(f(infinity) == infinity);
  CHECK(std::isnan(f(-1)));
  CHECK(std::isnan(f(-0x1p-149f)));
  CHECK(std::isnan(f(-infinity)));
  CHECK(std::isnan(f(not_a_number)));
}

TEST_CASE("tanh") {
  const auto f = [](float x) { return math::tanh(x); };
  const auto exact = [](double x) { return std::tanh(x); };
  check_bound(-20, 20, 2, f, exact);
  check_bound(-0.625f, 0.625f, 2, f, exact);
  CHECK(f(0) == 0);
  CHECK(std::signbit(f(-0.0f)));
  CHECK(f(0x1p-149f) == 0x1p-149f);
  CHECK(f(infinity) == 1);
  CHECK(f(-infinity) == -1);
  CHECK(std::isnan(f(not_a_number)));
  CHECK(worst_over(
            -20, 20, [&](float x) { return f(x) + f(-x); }, [](double) { return 0.0; })
            .error == 0);
}

TEST_CASE("functions of the C library") {
  const float most = std::numeric_limits<float>::max();
  check_bound(
      -20, 88, 2, [](float x) { return math::expm1(x); }, [](double x) { return std::expm1(x); });
  check_bound(
      -0.99999f, most, 2, [](float x) { return math::log1p(x); },
      [](double x) { return std::log1p(x); });
  check_bound(
      0x1p-149f, most, 2, [](float x) { return math::log2(x); },
      [](double x) { return std::log2(x); });
  check_bound(
      0x1p-149f, most, 2, [](float x) { return math::log10(x); },
      [](double x) { return std::log10(x); });
  CHECK(math::log2(0.125f) == -3);
  CHECK(math::log10(1000.0f) == 3);
  check_bound(
      -5, 5, 2, [](float x) { return math::erf(x); }, [](double x) { return std::erf(x); });
  check_bound(
      0, most, 0.5, [](float x) { return math::sqrt(x); }, [](double x) { return std::sqrt(x); });
  for (const float exponent : {-2.0f, -0.5f, 0.0f, 0.3f, 1.0f, 3.0f})
    check_bound(
        0x1p-40f, 0x1p40f, 2, [=](float x) { return math::pow(x, exponent); },
        [=](double x) { return std::pow(x, double(exponent)); });
  CHECK(std::isnan(math::sqrt(-1.0f)));
  CHECK(math::abs(-2.5f) == 2.5f);
  CHECK_FALSE(std::signbit(math::abs(-0.0f)));
  CHECK(math::copysign(2.0f, -0.0f) == -2.0f);
}

TEST_CASE("double is core/math.h") {
  for (const double x : {-700.0, -1.5, -1e-9, 0.25, 1.0, 30.0, 700.0}) {
    CHECK(math::exp(x) == elementary::exp(x));
    CHECK(math::tanh(x) == elementary::tanh(x));
    CHECK(math::expm1(x) == elementary::expm1(x));
    CHECK(math::erf(x) == elementary::erf(x));
    CHECK(math::abs(x) == std::abs(x));
    CHECK(math::log(std::abs(x)) == elementary::log(std::abs(x)));
    CHECK(math::log2(std::abs(x)) == elementary::log2(std::abs(x)));
    CHECK(math::log10(std::abs(x)) == elementary::log10(std::abs(x)));
    CHECK(math::sqrt(std::abs(x)) == std::sqrt(std::abs(x)));
    CHECK(math::pow(std::abs(x), 1.5) == elementary::pow(std::abs(x), 1.5));
  }
}

}  // namespace halftone::test::math_test
