// core/math.h against the C library in long double, whose errors are far smaller.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include <halftone/core/math.h>

namespace halftone::test::elementary_test {
namespace {

using Function = double (*)(double);
using Exact = long double (*)(long double);

/// The error of `got` in units in the last place of the exact result.
double units(double got, long double exact) {
  if (got == double(exact)) return 0;
  int exponent = 0;
  std::frexp(exact, &exponent);
  const long double unit = std::max(std::ldexp(1.0L, exponent - 53), 0x1p-1074L);
  return double(std::abs(got - exact) / unit);
}

/// Arguments from low to high: evenly spread, or evenly spread powers of two.
double worst(Function f, Exact exact, double low, double high, bool powers = false) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> some(low, high);
  double most = 0;
  for (int i = 0; i < 20'000; ++i) {
    const double x = powers ? std::exp2(some(random)) : some(random);
    most = std::max(most, units(f(x), exact(x)));
  }
  return most;
}

TEST_CASE("elementary functions are within two and a half units in the last place") {
  using namespace halftone::elementary;
  constexpr double bound = 2.5;
  CHECK(worst(exp, std::exp, -708, 709) < bound);
  CHECK(worst(expm1, std::expm1, -3, 3) < bound);
  CHECK(worst(expm1, std::expm1, -60, 2, true) < bound);
  CHECK(worst(log, std::log, -1022, 1023, true) < bound);
  CHECK(worst(log, std::log, 0.5, 2) < bound);
  CHECK(worst(log1p, std::log1p, -0.99, 3) < bound);
  CHECK(worst(log1p, std::log1p, -60, 60, true) < bound);
  CHECK(worst(log2, std::log2, 0.5, 2) < bound);
  CHECK(worst(log10, std::log10, -1022, 1023, true) < bound);
  CHECK(worst(tanh, std::tanh, -4, 4) < bound);
  CHECK(worst(tanh, std::tanh, -60, 5, true) < bound);
  CHECK(worst(erf, std::erf, -6, 6) < bound);
  CHECK(worst(erf, std::erf, -60, 0, true) < bound);
  CHECK(worst(sin, std::sin, -10, 10) < bound);
  CHECK(worst(sin, std::sin, -60, 60, true) < bound);
  CHECK(worst(cos, std::cos, -10, 10) < bound);
  CHECK(worst(cos, std::cos, -60, 60, true) < bound);
  CHECK(log2(8) == 3);
  CHECK(log10(1000) == 3);
  // 10^22 is exact, and its sine is known to be hard.
  CHECK(sin(1e22) == doctest::Approx(-0.8522008497671888));
}

TEST_CASE("powers are within two and a half units in the last place") {
  std::mt19937_64 random(4);
  std::uniform_real_distribution<double> base(-40, 40), exponent(-25, 25);
  double most = 0;
  for (int i = 0; i < 20'000; ++i) {
    const double x = std::exp2(base(random)), y = exponent(random);
    most = std::max(most, units(elementary::pow(x, y), std::pow(static_cast<long double>(x), y)));
  }
  CHECK(most < 2.5);
}

TEST_CASE("elementary functions have the C library's special cases") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double values[] = {0.0, -0.0,     1,         -1,           2,     -2,     0.5,    -0.5,   3,
                           -3,  infinity, -infinity, std::nan(""), 1e300, -1e300, 1e-320, -1e-320};
  const auto same = [](double a, double b) {
    if (a != a || b != b) return a != a && b != b;
    return std::signbit(a) == std::signbit(b) && (a == b || std::abs(a - b) <= 1e-15 * std::abs(b));
  };
  for (const double x : values) {
    INFO("x = ", x);
    CHECK(same(elementary::exp(x), std::exp(x)));
    CHECK(same(elementary::expm1(x), std::expm1(x)));
    CHECK(same(elementary::log(x), std::log(x)));
    CHECK(same(elementary::log1p(x), std::log1p(x)));
    CHECK(same(elementary::log2(x), std::log2(x)));
    CHECK(same(elementary::log10(x), std::log10(x)));
    CHECK(same(elementary::tanh(x), std::tanh(x)));
    CHECK(same(elementary::erf(x), std::erf(x)));
    CHECK(same(elementary::sin(x), std::sin(x)));
    CHECK(same(elementary::cos(x), std::cos(x)));
    for (const double y : values) {
      INFO("y = ", y);
      CHECK(same(elementary::pow(x, y), std::pow(x, y)));
    }
  }
}

}  // namespace
}  // namespace halftone::test::elementary_test
