// The float functions of core/math.h against the C library in double, over a dense sweep of all
// floats. Errors are counted in units in the last place of the exact result.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include <omp.h>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

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

// core/math.h against the C library in long double, whose errors are far smaller.

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
  CHECK(worst(tan, std::tan, -10, 10) < bound);
  CHECK(worst(tan, std::tan, -60, 60, true) < bound);
  CHECK(worst(asin, std::asin, -1, 1) < bound);
  CHECK(worst(asin, std::asin, -60, 0, true) < bound);
  CHECK(worst(acos, std::acos, -1, 1) < bound);
  CHECK(worst(atan, std::atan, -3, 3) < bound);
  CHECK(worst(atan, std::atan, -60, 60, true) < bound);
  CHECK(worst(sinh, std::sinh, -4, 4) < bound);
  CHECK(worst(sinh, std::sinh, -60, 9.4, true) < bound);
  CHECK(worst(cosh, std::cosh, -710.4, 710.4) < bound);
  CHECK(worst(exp2, std::exp2, -1022, 1023.9) < bound);
  CHECK(log2(8) == 3);
  CHECK(exp2(-3) == 0.125);
  CHECK(log10(1000) == 3);
  // 10^22 is exact, and its sine is known to be hard.
  CHECK(sin(1e22) == doctest::Approx(-0.8522008497671888));
}

TEST_CASE("erfinv is the inverse of erf, within four units in the last place") {
  const auto exact = [](long double x) {  // one of Newton's steps doubles the number of right bits
    const long double z = elementary::erfinv(double(x));
    const long double off = x < 0.5L ? std::erf(z) - x : (1 - x) - std::erfc(z);
    return z - off * std::sqrt(std::acos(-1.0L)) / 2 * std::exp(z * z);
  };
  CHECK(worst(elementary::erfinv, exact, 0, 1) < 4);
  CHECK(worst(elementary::erfinv, exact, -60, 0, true) < 4);
  CHECK(elementary::erfinv(1 - 0x1p-53) == doctest::Approx(5.863584748755168));
}

TEST_CASE("angles of points are within two and a half units in the last place") {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> exponent(-30, 30), sign(-1, 1);
  double most = 0;
  for (int i = 0; i < 20'000; ++i) {
    const double y = std::copysign(std::exp2(exponent(random)), sign(random)),
                 x = std::copysign(std::exp2(exponent(random)), sign(random));
    most = std::max(most, units(elementary::atan2(y, x), std::atan2(static_cast<long double>(y),
                                                                    static_cast<long double>(x))));
  }
  CHECK(most < 2.5);
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
    CHECK(same(elementary::tan(x), std::tan(x)));
    CHECK(same(elementary::asin(x), std::asin(x)));
    CHECK(same(elementary::acos(x), std::acos(x)));
    CHECK(same(elementary::atan(x), std::atan(x)));
    CHECK(same(elementary::sinh(x), std::sinh(x)));
    CHECK(same(elementary::cosh(x), std::cosh(x)));
    CHECK(same(elementary::exp2(x), std::exp2(x)));
    if (std::abs(x) > 1) CHECK(std::isnan(elementary::erfinv(x)));
    if (std::abs(x) == 1) CHECK(elementary::erfinv(x) == x * infinity);
    if (x == 0) CHECK(same(elementary::erfinv(x), x));
    for (const double y : values) {
      INFO("y = ", y);
      CHECK(same(elementary::pow(x, y), std::pow(x, y)));
      CHECK(same(elementary::atan2(x, y), std::atan2(x, y)));
    }
  }
}

}  // namespace
}  // namespace halftone::test::elementary_test

// Philox 4x32-10 against the known answers of its authors, and the generators built on it.

namespace halftone::test::random_test {
namespace {

using Words = std::array<uint32_t, 4>;

/// The published algorithm with all 128 bits of the counter (halftone's leaves the upper 64 at 0).
Words philox(Words c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) k[0] += 0x9E3779B9, k[1] += 0xBB67AE85;
    const uint64_t p0 = uint64_t(0xD2511F53) * c[0], p1 = uint64_t(0xCD9E8D57) * c[2];
    c = {uint32_t(p1 >> 32) ^ c[1] ^ k[0], uint32_t(p1), uint32_t(p0 >> 32) ^ c[3] ^ k[1],
         uint32_t(p0)};
  }
  return c;
}

struct Moments {
  double mean = 0, variance = 0, skewness = 0, kurtosis = 0, low = 0, high = 0;
};
Moments moments_of(const Tensor& x) {
  const std::vector<double> values = x.to_vector<double>();
  Moments m;
  const double n = double(values.size());
  for (const double v : values) m.mean += v / n;
  for (const double v : values) m.variance += (v - m.mean) * (v - m.mean) / n;
  for (const double v : values) {
    const double z = (v - m.mean) / std::sqrt(m.variance);
    m.skewness += z * z * z / n, m.kurtosis += z * z * z * z / n;
  }
  const auto [low, high] = std::ranges::minmax(values);
  m.low = low, m.high = high;
  return m;
}

constexpr int64_t many = 200'000;
const double root = std::sqrt(double(many));

TEST_CASE("no integer is below 0") {
  Generator generator(1);
  CHECK_THROWS_WITH_AS(generator.below(0),
                       "[Generator.below] no integer is below 0. Pass a bound of 1 or more.",
                       UsageError);
  CHECK(generator.below(1) == 0);
}

}  // namespace

TEST_CASE("Philox: the known answers of Random123") {
  CHECK(Philox::words(0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  // The others count beyond 64 bits: they check the reference, and the reference checks halftone's.
  CHECK(philox({}, {}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  uint64_t seed = 1, counter = ~uint64_t(0);
  for (int i = 0; i < 1000; ++i) {
    CHECK(Philox::words(seed, counter) == philox({uint32_t(counter), uint32_t(counter >> 32), 0, 0},
                                                 {uint32_t(seed), uint32_t(seed >> 32)}));
    seed = seed * 6364136223846793005u + 1442695040888963407u,
    counter = counter * 2862933555777941757u + 3037000493u;
  }
}

TEST_CASE("words to floats on [0, 1)") {
  CHECK(Philox::uniform(0) == 0.0f);
  CHECK(Philox::uniform(~0u) == 1 - 0x1p-24f);
  CHECK(Philox::uniform(0x80000000u) == 0.5f);
}

TEST_CASE("a generator returns disjoint ranges, and repeats from a state") {
  Generator generator(42);
  const RandomKey a = generator.reserve(5), b = generator.reserve(1), c = generator.reserve(0),
                  d = generator.reserve(4);
  CHECK(a.seed == 42);
  CHECK(a.offset == 0);
  CHECK(b.offset == 2);  // four numbers per counter
  CHECK(c.offset == 3);
  CHECK(d.offset == 3);
  CHECK(generator.state().offset == 4);
  const RandomKey state = generator.state();
  Generator copy = generator;
  const uint64_t first = generator.next(), second = generator.next();
  CHECK(first != second);
  CHECK(copy.next() == first);
  generator.set_state(state);
  CHECK(generator.next() == first);
  CHECK(generator.next() == second);
  CHECK(Generator(42).next() != Generator(43).next());
}

TEST_CASE("below() covers its range evenly") {
  Generator generator(1);
  CHECK(generator.below(1) == 0);
  std::array<int, 7> counts{};
  constexpr int draws = 70'000;
  for (int i = 0; i < draws; ++i) ++counts.at(generator.below(7));
  double chi_squared = 0;
  for (const int count : counts)
    chi_squared += (count - draws / 7.0) * (count - draws / 7.0) / (draws / 7.0);
  CHECK(chi_squared < 38);  // six degrees of freedom: once in a million
  // With a bound of 3 * 2^62 a plain remainder would fall into the lower third twice as often as
  // elsewhere.
  int lower = 0;
  for (int i = 0; i < draws; ++i) lower += generator.below(uint64_t(3) << 62) < (uint64_t(1) << 62);
  CHECK(std::abs(lower - draws / 3.0) < 5 * std::sqrt(draws * 2.0 / 9));
}

TEST_CASE("uniform, normal and integer tensors") {
  manual_seed(9);
  const Moments u = moments_of(rand({many}));
  CHECK(u.low >= 0);
  CHECK(u.high < 1);
  CHECK(u.low < 20 / double(many));
  CHECK(u.high > 1 - 20 / double(many));
  CHECK(std::abs(u.mean - 0.5) < 5 * std::sqrt(1 / 12.0) / root);
  CHECK(std::abs(u.variance - 1 / 12.0) < 5 * std::sqrt(1 / 180.0) / root);
  CHECK(std::abs(u.kurtosis - 1.8) < 0.03);

  const Moments n = moments_of(randn({many}));
  CHECK(std::abs(n.mean) < 5 / root);
  CHECK(std::abs(n.variance - 1) < 5 * std::sqrt(2.0) / root);
  CHECK(std::abs(n.skewness) < 5 * std::sqrt(6.0) / root);
  CHECK(std::abs(n.kurtosis - 3) < 5 * std::sqrt(24.0) / root);
  CHECK(n.high > 4);
  CHECK(n.high < 7);
  CHECK(n.low < -4);

  const Moments i = moments_of(randint(-3, 4, {many}));
  CHECK(i.low == -3);
  CHECK(i.high == 3);
  CHECK(std::abs(i.mean) < 5 * 2 / root);
  CHECK(std::abs(i.variance - 4) < 5 * 4 / root);
  for (const DType dtype : {f64, f16, bf16}) {
    CAPTURE(name(dtype));
    const Moments short_uniform = moments_of(rand({many}, dtype));
    // Rounding to a short format may give 1, but not more.
    CHECK(short_uniform.low >= 0);
    CHECK(short_uniform.high <= 1);
    CHECK(std::abs(short_uniform.mean - 0.5) < 5 * std::sqrt(1 / 12.0) / root + epsilon(dtype));
    CHECK(std::abs(moments_of(randn({many}, dtype)).variance - 1) <
          5 * std::sqrt(2.0) / root + epsilon(dtype));
  }
}

TEST_CASE("normal() and bernoulli() of tensors have their means and deviations") {
  manual_seed(10);
  const Moments n = moments_of(normal(3, 2, {many}));
  CHECK(std::abs(n.mean - 3) < 5 * 2 / root);
  CHECK(std::abs(n.variance - 4) < 5 * 4 * std::sqrt(2.0) / root);
  const Tensor mean = reshape(from({-1.0, 2.0}), {2, 1}), std = from({0.0, 3.0});
  const Tensor x = normal(expand(mean, {2, 2}), std);
  CHECK(x.at({0, 0}) == -1);
  CHECK(x.at({1, 0}) == 2);
  CHECK(x.at({0, 1}) != -1);
  CHECK(normal(mean, 0).to_vector<double>() == std::vector<double>{-1, 2});
  CHECK(normal(5, zeros({2}, bf16)).to_vector<double>() == std::vector<double>{5, 5});
  CHECK(normal(zeros({3, 1}), ones({2}, f64)).dtype() == f64);
  const Moments wide = moments_of(normal(full({many}, 1), 0.5));
  CHECK(std::abs(wide.mean - 1) < 5 * 0.5 / root);
  CHECK(std::abs(wide.variance - 0.25) < 5 * 0.25 * std::sqrt(2.0) / root);

  for (const double p : {0.0, 0.25, 1.0}) {
    const Moments b = moments_of(bernoulli(full({many}, p)));
    CHECK(std::abs(b.mean - p) <= 5 * std::sqrt(p * (1 - p)) / root + 1e-9);
  }
  CHECK(bernoulli(ones({2}, bf16)).dtype() == bf16);
  CHECK_FALSE(bernoulli(full({2}, 0.5).set_requires_grad()).requires_grad());
  CHECK_THROWS_WITH_AS(bernoulli(from({0.5, 1.5})),
                       "[bernoulli] probabilities are from 0.5 to 1.5. They must be on [0, 1].",
                       UsageError);
  CHECK_THROWS_AS(bernoulli(from({std::nan("")})), UsageError);
  CHECK_THROWS_AS(bernoulli(from({1})), DTypeError);
  CHECK_THROWS_WITH_AS(normal(ones({2}), from({1, -2.0})),
                       "[normal] the least std is -2. None may be negative.", UsageError);
  CHECK_THROWS_WITH_AS(normal(0, -1, {2}), "[normal] std is -1. It must not be negative.",
                       UsageError);
}

TEST_CASE("randperm() gives every order equally often") {
  manual_seed(11);
  std::array<int, 6> counts{};
  constexpr int draws = 12'000;
  for (int i = 0; i < draws; ++i) {
    const std::vector<int64_t> order = randperm(3).to_vector<int64_t>();
    ++counts.at(std::size_t(2 * order[0] + (order[1] > order[2])));
  }
  double chi_squared = 0;
  for (const int count : counts)
    chi_squared += (count - draws / 6.0) * (count - draws / 6.0) / (draws / 6.0);
  CHECK(chi_squared < 36);  // five degrees of freedom: once in a million
  std::vector<int64_t> sorted = randperm(1000, i32).to_vector<int64_t>();
  std::ranges::sort(sorted);
  for (std::size_t i = 0; i < sorted.size(); ++i) CHECK(sorted[i] == int64_t(i));
  CHECK(randperm(0).shape() == Shape{0});
  CHECK_THROWS_WITH_AS(randperm(-1), "[randperm] n is -1. It must not be negative.", UsageError);
}

TEST_CASE("multinomial() draws categories by their probabilities") {
  manual_seed(12);
  const std::vector<double> weights{0, 1, 3, 0, 6, 0};
  const Tensor p = from_vector(weights, {6}, f32);
  const auto frequencies = [](const Tensor& drawn) {
    std::vector<double> share(6);
    for (const int64_t c : drawn.to_vector<int64_t>())
      share.at(std::size_t(c)) += 1 / double(drawn.numel());
    return share;
  };
  constexpr int draws = 20'000;
  // A first draw without replacement has the same frequencies: each row draws one.
  for (const Tensor& drawn : {multinomial(p, draws, true), multinomial(expand(p, {draws, 6}), 1),
                              multinomial(expand(cast(p, bf16), {2, 6}), draws / 2, true)}) {
    CHECK(drawn.dtype() == i64);
    const std::vector<double> share = frequencies(drawn);
    for (std::size_t c = 0; c < 6; ++c) {
      const double q = weights[c] / 10;
      CHECK(std::abs(share[c] - q) <= 5 * std::sqrt(q * (1 - q) / draws));
    }
  }
  // Without replacement all three come, category 2 after category 4 in 0.6 * 3 / 4 of the rows.
  const Tensor orders = multinomial(expand(p, {draws, 6}), 3);
  CHECK(orders.shape() == Shape{draws, 3});
  const std::vector<int64_t> order = orders.to_vector<int64_t>();
  int after = 0;
  for (std::size_t i = 0; i < order.size(); i += 3) {
    std::array three{order[i], order[i + 1], order[i + 2]};
    after += three[0] == 4 && three[1] == 2;
    std::ranges::sort(three);
    CHECK(three == std::array<int64_t, 3>{1, 2, 4});
  }
  CHECK(std::abs(after / double(draws) - 0.45) < 5 * std::sqrt(0.45 * 0.55 / draws));
  CHECK(multinomial(zeros({0, 2}), 2).shape() == Shape{0, 2});
  const auto refused = [](const Tensor& x, int64_t n, bool replacement, const char* part) {
    CHECK_THROWS_WITH_AS(multinomial(x, n, replacement), doctest::Contains(part), Error);
  };
  refused(p, 4, false, "[multinomial] 4 samples without replacement from 3 categories");
  refused(p, 7, false, "[multinomial] 7 samples of 6 categories.");
  refused(p, 0, true, "[multinomial] 0 samples of 6 categories.");
  refused(from({1, -0.5}), 1, true, "[multinomial] a probability is -0.5.");
  refused(from({1, INFINITY}), 1, true, "[multinomial] a probability is inf.");
  refused(from({NAN, 1.0}), 1, false, "[multinomial] a probability is nan.");
  refused(zeros({2}), 1, true, "[multinomial] the probabilities of a row add up to 0.");
  refused(full({2}, 1e308, f64), 1, true, "add up to inf.");
  refused(ones({1, 1, 1}), 1, true, "[multinomial] [1, 1, 1] f32 has rank 3.");
  refused(from({1, 2}), 1, true, "[multinomial] needs f64, f32, f16 or bf16");
}

TEST_CASE("same seed, same numbers: for any number of threads and on any CPU backend") {
  const auto draw = [] {
    manual_seed(123);
    std::vector<double> all;
    const Tensor weights = full({50}, 0.5);
    for (const Tensor& x : {rand({4099}), randn({4099}), randint(0, 1000, {4099}), rand({5}, bf16),
                            randperm(99), multinomial(weights, 20), multinomial(weights, 20, true),
                            bernoulli(weights), normal(weights, weights)})
      for (const double value : x.to_vector<double>()) all.push_back(value);
    return all;
  };
  const std::vector<double> expected = draw();
  CHECK(draw() == expected);
  const int threads = omp_get_max_threads();
  for (const int count : {1, 2, 5}) {
    omp_set_num_threads(count);
    CHECK(draw() == expected);
  }
  omp_set_num_threads(threads);
  const CpuBackendScope scope("reference");
  CHECK(draw() == expected);
}

TEST_CASE("element i uses word i % 4 of counter offset + i / 4") {
  manual_seed(77);
  default_generator().reserve(12);
  const std::vector<float> values = rand({11}).to_vector<float>();
  for (std::size_t i = 0; i < values.size(); ++i)
    CHECK(values[i] == Philox::uniform(Philox::words(77, 3 + i / 4)[i % 4]));
  CHECK(default_generator().state().offset == 6);
}

TEST_CASE("consecutive calls differ, and every thread has its own generator") {
  manual_seed(5);
  const std::vector<double> a = rand({100}).to_vector<double>(),
                            b = rand({100}).to_vector<double>();
  std::set<double> different(a.begin(), a.end());
  different.insert(b.begin(), b.end());
  CHECK(different.size() > 190);
  const RandomKey before = default_generator().state();
  std::thread([] { rand({100}); }).join();
  CHECK(default_generator().state().offset == before.offset);
}

}  // namespace halftone::test::random_test
