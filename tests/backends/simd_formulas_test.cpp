// Elementwise formulas in float on every instruction set, compared with the same formula in double,
// and at the ends of each dtype's range, compared with long double. Errors are counted in units in
// the last place of the larger of result and input. If a formula subtracts (gelu, affine, x - y),
// floats cannot be more accurate than that.
#include <algorithm>
#include <functional>
#include <iomanip>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

#include "simd_levels.h"

namespace halftone::test::simd_formulas_test {
namespace {

template <class F> constexpr Domain domain_of() {
  if constexpr (requires { F::domain; }) return F::domain;
  else return {-3, 3};
}

/// The allowed error of each formula in units: a few for polynomials and chained divisions.
constexpr double most_units = 8;

/// Values over the formula's domain, and over ten times of it if it is defined everywhere.
template <class F> std::vector<float> inputs_for() {
  Numbers numbers(7);
  const Domain d = domain_of<F>();
  std::vector<float> x = numbers.many(5000, d.low, d.high);
  if (d.low == -3) {
    const std::vector<float> far = numbers.many(5000, -30, 30),
                             near = numbers.many(2000, -1e-3, 1e-3);
    x.insert(x.end(), far.begin(), far.end());
    x.insert(x.end(), near.begin(), near.end());
  }
  return x;
}

template <class F> void check_unary(const simd::Kernels& k) {
  INFO("formula ", std::string(F::info.name));
  const F f{};
  const std::vector<float> x = inputs_for<F>();
  std::vector<float> y(x.size()), dx(x.size());
  const FormulaCall call = call_of<UnaryFormulas>(f);
  k.unary(call, x.data(), y.data(), int64_t(x.size()));
  const auto value = [&](std::size_t i) { return f.forward(double(x[i])); };
  const auto bound = [&](std::size_t i) {
    return most_units * float_spacing(std::max(std::abs(value(i)), std::abs(double(x[i]))));
  };
  CHECK(first_beyond(y, value, bound) == "");

  // The derivative at exactly the saved float, times one, so that only the derivative is measured.
  const std::vector<float>& saved = F::saves == Saves::output ? y : x;
  const std::vector<float> dy(x.size(), 1.0f);
  k.unary_backward(call, saved.data(), dy.data(), dx.data(), int64_t(x.size()));
  const auto slope = [&](std::size_t i) {
    return f.derivative(double(saved[i]), double(saved[i]));
  };
  const auto slope_bound = [&](std::size_t i) {
    return most_units *
           float_spacing(std::max({std::abs(slope(i)), std::abs(double(saved[i])), 1.0}));
  };
  CHECK(first_beyond(dx, slope, slope_bound) == "");
}

template <class F> void check_binary(const simd::Kernels& k) {
  INFO("formula ", std::string(F::info.name));
  Numbers numbers(8);
  const Domain d = domain_of<F>();
  const std::vector<float> a = numbers.many(5000, d.low, d.high),
                           b = numbers.many(5000, d.low, d.high);
  std::vector<float> y(a.size());
  const F f{};
  const FormulaCall call = call_of<BinaryFormulas>(f);
  const auto scale = [&](std::size_t i, double result) {
    return std::max({std::abs(result), std::abs(double(a[i])), std::abs(double(b[i])),
                     std::abs(double(a[i]) * double(b[i]))});
  };
  const auto value = [&](std::size_t i) { return f.forward(double(a[i]), double(b[i])); };
  k.binary(call, a.data(), b.data(), y.data(), int64_t(a.size()));
  CHECK(first_beyond(y, value, [&](std::size_t i) {
          return most_units * float_spacing(scale(i, value(i)));
        }) == "");
  const std::vector<float> dy(a.size(), 1.0f);
  for (const int input : {0, 1}) {
    const auto slope = [&](std::size_t i) {
      return input == 0 ? f.derivative_a(double(a[i]), double(b[i]))
                        : f.derivative_b(double(a[i]), double(b[i]));
    };
    k.binary_backward(call, input, a.data(), b.data(), dy.data(), y.data(), int64_t(a.size()));
    CHECK(first_beyond(y, slope, [&](std::size_t i) {
            return most_units * float_spacing(std::max(scale(i, slope(i)), 1.0));
          }) == "");
  }
}

TEST_CASE("unary formulas and their derivatives are within some units of double") {
  each_level([](const simd::Kernels& k) {
    for_each_type(UnaryFormulas{}, [&]<class F>() { check_unary<F>(k); });
  });
}

TEST_CASE("binary formulas and their derivatives are within some units of double") {
  each_level([](const simd::Kernels& k) {
    for_each_type(BinaryFormulas{}, [&]<class F>() { check_binary<F>(k); });
  });
}

/// The elementary functions alone, relative to their own result.
template <class F> void check_units(const simd::Kernels& k, double low, double high, double units) {
  INFO("formula ", std::string(F::info.name), " on [", low, ", ", high, "]");
  Numbers numbers(9);
  const std::vector<float> x = numbers.many(20000, low, high);
  std::vector<float> y(x.size());
  k.unary(call_of<UnaryFormulas>(F{}), x.data(), y.data(), int64_t(x.size()));
  const auto value = [&](std::size_t i) { return F{}.forward(double(x[i])); };
  CHECK(first_beyond(y, value, [&](std::size_t i) { return units * float_spacing(value(i)); }) ==
        "");
}

TEST_CASE("exp, log, tanh, roots and others are accurate to two units over their whole range") {
  each_level([](const simd::Kernels& k) {
    check_units<formula::Exp>(k, -87, 88, 2);
    check_units<formula::Exp>(k, -1e-3, 1e-3, 2);
    check_units<formula::Log>(k, 1e-30, 1e-20, 2);
    check_units<formula::Log>(k, 0.5, 2, 2);
    check_units<formula::Log>(k, 1, 1e30, 2);
    check_units<formula::Log2>(k, 1e-30, 1e30, 2);
    check_units<formula::Log10>(k, 1e-30, 1e30, 2);
    check_units<formula::Tan>(k, -1e6, 1e6, 1);
    check_units<formula::Asin>(k, -1, 1, 1);
    check_units<formula::Acos>(k, -1, 1, 1);
    check_units<formula::Atan>(k, -1e3, 1e3, 1);
    check_units<formula::Sinh>(k, -89, 89, 1);
    check_units<formula::Cosh>(k, -89, 89, 1);
    check_units<formula::Exp2>(k, -125, 127, 1);
    check_units<formula::Erfinv>(k, -1, 1, 1);
    check_units<formula::Logit>(k, 0, 1, 4);
    check_units<formula::Tanh>(k, -12, 12, 2);
    check_units<formula::Tanh>(k, -0.01, 0.01, 2);
    check_units<formula::Sqrt>(k, 0, 1e20, 1);
    check_units<formula::Rsqrt>(k, 1e-10, 1e10, 2);
    check_units<formula::Reciprocal>(k, 1e-10, 1e10, 1);
    check_units<formula::Sigmoid>(k, -80, 80, 4);
    check_units<formula::Silu>(k, -80, 80, 4);
  });
}

TEST_CASE("infinities, NaN and zeros give the results of double") {
  const float inf = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x{inf,    -inf,    nan,    0.0f, -0.0f, inf,    -inf, nan, 0.0f,
                             200.0f, -200.0f, 1e-42f, nan,  1e38f, -1e38f, 3.0f, nan};
  each_level([&](const simd::Kernels& k) {
    for_each_type(TypeList<formula::Relu, formula::Exp, formula::Log, formula::Tanh,
                           formula::Sigmoid, formula::Sqrt, formula::Abs, formula::Neg,
                           formula::Clamp, formula::Reciprocal, formula::Expm1>{},
                  [&]<class F>() {
                    INFO("formula ", std::string(F::info.name));
                    std::vector<float> y(x.size());
                    k.unary(call_of<UnaryFormulas>(F{}), x.data(), y.data(), int64_t(x.size()));
                    const auto value = [&](std::size_t i) {
                      return double(float(F{}.forward(double(x[i]))));
                    };
                    CHECK(first_beyond(y, value, [&](std::size_t i) {
                            return 2 * float_spacing(std::isfinite(value(i)) ? value(i) : 0);
                          }) == "");
                  });
  });
}

TEST_CASE("elementwise kernels of any length touch nothing else, also in place") {
  Numbers numbers(10);
  const std::vector<float> a = numbers.many(9100), b = numbers.many(9100);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : lengths()) {
      std::vector<float> y(a);
      k.binary(call_of<BinaryFormulas>(formula::Add{}), y.data() + 1, b.data() + 1, y.data() + 1,
               n);
      k.scale(2, y.data() + 1, n);
      k.accumulate(b.data() + 1, y.data() + 1, n);
      bool right = true;
      for (std::size_t i = 0; i < y.size(); ++i) {
        const bool inside = i >= 1 && int64_t(i) <= n;
        right =
            right && (inside ? std::abs(double(y[i]) - (2 * double(a[i]) + 3 * double(b[i]))) < 4e-6
                             : y[i] == a[i]);
      }
      CHECK_MESSAGE(right, n, " elements");
    }
  });
}

TEST_CASE("lerp moves towards its target") {
  const std::vector<float> x{1, 2, 3, 4, 5, 6, 7, 8, 9};
  each_level([&](const simd::Kernels& k) {
    std::vector<float> y(9, 1.0f);
    k.lerp(x.data(), 0.25f, y.data(), 9);
    for (std::size_t i = 0; i < 9; ++i) CHECK(y[i] == 1 + 0.25f * (x[i] - 1));
  });
}

// --- the ends of the range, through both backends, against long double

using Wide = long double;
struct ExactFormula {
  std::function<Wide(Wide)> value;
  std::function<Wide(Wide, Wide)> slope;  // of x and y; y is the saved one
};

/// Every formula with its default attributes.
const std::map<std::string_view, ExactFormula>& exact_formulas() {
  static const auto sigmoid = [](Wide x) { return 1 / (1 + std::exp(-x)); };
  static const auto phi = [](Wide x) { return std::erfc(-x / std::sqrt(Wide(2))) / 2; };
  static const Wide pi = std::acos(Wide(-1)), c = std::sqrt(8 / pi);
  static const auto gelu_share = [](Wide x) { return sigmoid(c * (x + 0.044715L * x * x * x)); };
  static const auto none = [](Wide, Wide) { return Wide(0); };
  static const auto is_inf = [](Wide x) { return std::isinf(x); };
  static const auto mish_tanh = [](Wide x) {
    return x > 100 ? Wide(1) : std::tanh(std::log1p(std::exp(x)));
  };
  static const std::map<std::string_view, ExactFormula> all{
      {"relu", {[](Wide x) { return x < 0 ? 0 : x; }, [](Wide, Wide y) { return y <= 0 ? 0 : 1; }}},
      {"leaky_relu",
       {[](Wide x) { return x > 0 ? x : 0.01L * x; },
        [](Wide x, Wide) { return x > 0 ? 1 : 0.01L; }}},
      {"gelu",
       {[](Wide x) { return is_inf(x) && x < 0 ? NAN : x * gelu_share(x); },
        [](Wide x, Wide) {
          const Wide s = gelu_share(x), r = s * gelu_share(-x);
          return r == 0 ? s : s + x * r * c * (1 + 0.134145L * x * x);
        }}},
      {"gelu_erf",
       {[](Wide x) { return is_inf(x) && x < 0 ? NAN : x * phi(x); },
        [](Wide x, Wide) { return phi(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * pi); }}},
      {"erf",
       {[](Wide x) { return std::erf(x); },
        [](Wide x, Wide) { return 2 / std::sqrt(pi) * std::exp(-x * x); }}},
      {"sigmoid", {sigmoid, [](Wide, Wide y) { return y * (1 - y); }}},
      {"logsigmoid",
       {[](Wide x) { return std::min(x, Wide(0)) - std::log1p(std::exp(-std::abs(x))); },
        [](Wide x, Wide) { return sigmoid(-x); }}},
      {"silu",
       {[](Wide x) { return x / (1 + std::exp(-x)); },
        [](Wide x, Wide) { return sigmoid(x) * (1 + x * sigmoid(-x)); }}},
      {"tanh", {[](Wide x) { return std::tanh(x); }, [](Wide, Wide y) { return 1 - y * y; }}},
      {"softplus",
       {[](Wide x) { return x > 20 ? x : std::log1p(std::exp(x)); },
        [](Wide x, Wide) { return x > 20 ? 1 : sigmoid(x); }}},
      {"exp", {[](Wide x) { return std::exp(x); }, [](Wide, Wide y) { return y; }}},
      {"expm1", {[](Wide x) { return std::expm1(x); }, [](Wide, Wide y) { return y + 1; }}},
      {"log", {[](Wide x) { return std::log(x); }, [](Wide x, Wide) { return 1 / x; }}},
      {"log2",
       {[](Wide x) { return std::log2(x); },
        [](Wide x, Wide) { return 1 / (x * std::log(Wide(2))); }}},
      {"log10",
       {[](Wide x) { return std::log10(x); },
        [](Wide x, Wide) { return 1 / (x * std::log(Wide(10))); }}},
      {"log1p", {[](Wide x) { return std::log1p(x); }, [](Wide x, Wide) { return 1 / (1 + x); }}},
      {"sqrt", {[](Wide x) { return std::sqrt(x); }, [](Wide, Wide y) { return 0.5L / y; }}},
      {"rsqrt",
       {[](Wide x) { return 1 / std::sqrt(x); }, [](Wide, Wide y) { return -0.5L * y * y * y; }}},
      {"reciprocal", {[](Wide x) { return 1 / x; }, [](Wide, Wide y) { return -y * y; }}},
      {"pow", {[](Wide x) { return x * x * x; }, [](Wide x, Wide) { return 3 * x * x; }}},
      {"square", {[](Wide x) { return x * x; }, [](Wide x, Wide) { return 2 * x; }}},
      {"abs",
       {[](Wide x) { return std::abs(x); },
        [](Wide x, Wide) { return x > 0   ? 1
                                  : x < 0 ? -1
                                          : 0; }}},
      {"neg", {[](Wide x) { return -x; }, [](Wide, Wide) { return -1; }}},
      {"clamp",
       {[](Wide x) { return x < -1.05L  ? -1.05L
                            : x > 1.55L ? 1.55L
                                        : x; },
        [](Wide x, Wide) { return x > -1.05L && x < 1.55L ? 1 : 0; }}},
      {"affine", {[](Wide x) { return 1.5L * x + 0.25L; }, [](Wide, Wide) { return 1.5L; }}},
      {"sin", {[](Wide x) { return std::sin(x); }, [](Wide x, Wide) { return std::cos(x); }}},
      {"cos", {[](Wide x) { return std::cos(x); }, [](Wide x, Wide) { return -std::sin(x); }}},
      {"sign", {[](Wide x) { return x > 0   ? 1
                                    : x < 0 ? -1
                                            : 0; }, none}},
      {"floor", {[](Wide x) { return std::floor(x); }, none}},
      {"ceil", {[](Wide x) { return std::ceil(x); }, none}},
      {"round", {[](Wide x) { return std::rint(x); }, none}},
      {"tan", {[](Wide x) { return std::tan(x); }, [](Wide, Wide y) { return 1 + y * y; }}},
      {"asin",
       {[](Wide x) { return std::asin(x); },
        [](Wide x, Wide) { return 1 / std::sqrt((1 - x) * (1 + x)); }}},
      {"acos",
       {[](Wide x) { return std::acos(x); },
        [](Wide x, Wide) { return -1 / std::sqrt((1 - x) * (1 + x)); }}},
      {"atan", {[](Wide x) { return std::atan(x); }, [](Wide x, Wide) { return 1 / (1 + x * x); }}},
      {"sinh", {[](Wide x) { return std::sinh(x); }, [](Wide x, Wide) { return std::cosh(x); }}},
      {"cosh", {[](Wide x) { return std::cosh(x); }, [](Wide x, Wide) { return std::sinh(x); }}},
      {"exp2",
       {[](Wide x) { return std::exp2(x); }, [](Wide, Wide y) { return y * std::log(Wide(2)); }}},
      {"erfinv",  // at 0, 1 and tiny numbers
       {[](Wide x) {
          return std::abs(x) > 1 ? NAN : std::abs(x) == 1 ? x * INFINITY : x * std::sqrt(pi) / 2;
        },
        [](Wide, Wide y) { return std::sqrt(pi) / 2 * std::exp(y * y); }}},
      {"logit",
       {[](Wide x) { return std::log(x / (1 - x)); },
        [](Wide x, Wide) { return x < 0 || x > 1 ? NAN : 1 / (x * (1 - x)); }}},
      {"trunc", {[](Wide x) { return std::trunc(x); }, none}},
      {"frac", {[](Wide x) { return x - std::trunc(x); }, [](Wide, Wide) { return 1; }}},
      {"elu",
       {[](Wide x) { return x > 0 ? x : std::expm1(x); },
        [](Wide x, Wide) { return x > 0 ? 1 : std::exp(x); }}},
      {"mish",
       {[](Wide x) { return x * mish_tanh(x); },
        [](Wide x, Wide) {
          const Wide t = mish_tanh(x);
          return x > 100 ? 1 : t + x * (1 - t) * (1 + t) * sigmoid(x);
        }}},
      {"hardswish",
       {[](Wide x) { return x <= -3 ? x * 0
                            : x < 3 ? x * (x + 3) / 6
                                    : x; },
        [](Wide x, Wide) { return x <= -3 ? 0
                                  : x < 3 ? x / 3 + 0.5L
                                          : 1; }}}};
  return all;
}

/// Numbers at which products, squares and quotients leave the range of a dtype, and beyond.
std::vector<double> ends_of(DType dtype) {
  const DTypeFacts& f = facts(dtype);
  const double normal = f.smallest_subnormal / epsilon(dtype);
  std::vector<double> x{0,
                        1,
                        20,
                        100,
                        f.max,
                        f.max / 2,
                        std::sqrt(f.max),
                        normal,
                        normal * 1.5,
                        f.smallest_subnormal,
                        normal / 8,
                        std::numeric_limits<double>::infinity()};
  if (f.max > 1e20) x.push_back(1e20), x.push_back(1e-25);
  for (std::size_t i = 0, n = x.size(); i < n; ++i) x.push_back(-x[i]);
  x.push_back(std::numeric_limits<double>::quiet_NaN());
  return x;
}

/// Returns "" or what is wrong with a result of the formula at x.
std::string judged(DType dtype, std::string_view name, Wide x, Wide exact, Wide got) {
  const DTypeFacts& f = facts(dtype);
  const bool wide = dtype == f64;
  const Wide units = 8 * epsilon(wide ? f64 : f32) + (size_of(dtype) == 2 ? epsilon(dtype) : 0);
  // Tails of functions that approach 0 are differences near 1, or flushed below 2^-126.
  const Wide least = std::abs(x) >= 1 ? Wide(epsilon(wide ? f64 : f32)) * epsilon(wide ? f64 : f32)
                                      : Wide(f.smallest_subnormal);
  const Wide slack = units * std::abs(exact) + std::max(least, Wide(f.smallest_subnormal));
  bool right = std::isnan(exact) ? std::isnan(got) : std::abs(got - exact) <= slack;
  if (std::abs(exact) + slack >= f.max)
    right = right || got == std::copysign(Wide(INFINITY), exact);
  // A derivative beyond the range is infinite also next to a small gradient, as PyTorch's.
  if (name == "pow" && std::isinf(got)) right = right || std::abs(exact) * 0x1p10 >= f.max;
  // At infinities x times 0 is NaN, as PyTorch's.
  if (std::isinf(x) && std::isnan(got))
    right = right || name == "gelu_erf" || name == "silu" || name == "mish";
  if (right) return {};
  std::ostringstream text;
  text << std::setprecision(17) << "at " << x << ": " << got << " instead of " << exact;
  return text.str();
}

TEST_CASE("formulas and their gradients at the ends of each dtype's range") {
  for (const std::string_view backend : {"reference", "cpu"})
    for (const DType dtype : {f64, f32, bf16, f16})
      for_each_type(UnaryFormulas{}, [&]<class F>() {
        const CpuBackendScope scope(backend);
        INFO(std::string(backend), ' ', std::string(name(dtype)), ' ', std::string(F::info.name));
        const ExactFormula& exact = exact_formulas().at(F::info.name);
        const Tensor x = from_vector(ends_of(dtype), {int64_t(ends_of(dtype).size())}, dtype);
        Tensor y = empty_like(x);
        Backend& b = backend_for(x);
        b.unary(call_of<UnaryFormulas>(F{}), x, y);
        const std::vector<double> in = x.to_vector<double>(), out = y.to_vector<double>();
        for (std::size_t i = 0; i < in.size(); ++i)
          CHECK(judged(dtype, F::info.name, in[i], exact.value(in[i]), out[i]) == "");
        for (const double factor : {1.0, 0x1p-10}) {
          const Tensor dy = full(x.shape(), factor, dtype);
          const Tensor saved = F::saves == Saves::nothing  ? Tensor()
                               : F::saves == Saves::output ? y
                                                           : x;
          Tensor dx = empty_like(x);
          b.unary_backward(call_of<UnaryFormulas>(F{}), saved, dy, dx);
          const std::vector<double> slopes = dx.to_vector<double>();
          for (std::size_t i = 0; i < in.size(); ++i)
            CHECK(judged(dtype, F::info.name, in[i], factor * exact.slope(in[i], out[i]),
                         slopes[i]) == "");
        }
      });
}

}  // namespace
}  // namespace halftone::test::simd_formulas_test

// Sums, maxima, row kernels and pooling kernels of every instruction set, compared with double.

namespace halftone::test::simd_reductions_test {
namespace {

constexpr double eps = 0x1p-23;

double magnitude(const std::vector<float>& x, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += std::abs(double(x[std::size_t(i)]));
  return total;
}
/// Float sums within blocks of 4096 over at least 16 ways: up to 256 + 16 additions in a row.
double sum_bound(double terms_magnitude) { return 272 * eps / 2 * terms_magnitude; }

TEST_CASE("sums of any length") {
  Numbers numbers(20);
  const std::vector<float> x = numbers.many(9001, -1, 3);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : lengths()) {
      INFO(n, " elements");
      double sum = 0, squares = 0;
      for (int64_t i = 0; i < n; ++i)
        sum += double(x[std::size_t(i)]), squares += std::pow(double(x[std::size_t(i)]), 2);
      CHECK(std::abs(k.sum(x.data(), n) - sum) <= sum_bound(magnitude(x, n)));
      CHECK(std::abs(k.sum_of_squares(x.data(), n) - squares) <= sum_bound(squares));
    }
  });
}

TEST_CASE("squares that float does not hold are summed in double") {
  Numbers numbers(24);
  for (const double scale : {1e-44, 1e-38, 1e-25, 1e-19, 1e18, 1e19, 1e38}) {
    INFO("numbers of ", scale);
    std::vector<float> x = numbers.many(9001, -1, 3);
    for (float& value : x) value = float(double(value) * scale);
    double squares = 0;
    for (const float value : x) squares += double(value) * double(value);
    each_level([&](const simd::Kernels& k) {
      CHECK(std::abs(k.sum_of_squares(x.data(), 9001) - squares) <= sum_bound(squares));
    });
  }
}

TEST_CASE("a long sum of ones is exact, far beyond where float stops counting") {
  const std::vector<float> ones((1 << 24) + 4099, 1.0f);
  each_level([&](const simd::Kernels& k) {
    CHECK(k.sum(ones.data(), int64_t(ones.size())) == double(ones.size()));
  });
}

TEST_CASE("the largest and the smallest element, at every position; NaN wins") {
  Numbers numbers(21);
  const float inf = std::numeric_limits<float>::infinity();
  each_level([&](const simd::Kernels& k) {
    CHECK(k.max(nullptr, 0) == -inf);
    CHECK(k.min(nullptr, 0) == inf);
    for (const int64_t n : {1, 2, 15, 16, 17, 63, 129, 1000}) {
      const std::vector<float> x = numbers.many(n, -9, -1);
      for (const auto place : {std::size_t(0), std::size_t(n / 2), std::size_t(n - 1)}) {
        std::vector<float> y = x;
        y[place] = -0.5f;
        CHECK(k.max(y.data(), n) == -0.5f);
        y[place] = -10;
        CHECK(k.min(y.data(), n) == -10);
        y[place] = std::numeric_limits<float>::quiet_NaN();
        CHECK(std::isnan(k.max(y.data(), n)));
        CHECK(std::isnan(k.min(y.data(), n)));
      }
    }
  });
}

TEST_CASE("extremes of columns continue from earlier values; NaN wins and stays") {
  Numbers numbers(25);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x = numbers.many(40 * 200);
  x[3 * 200 + 5] = nan;
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : {1, 3, 16, 64, 65, 131})
      for (const int64_t rows : {0, 1, 3, 37}) {
        std::vector<float> most(std::size_t(n) + 1, 0.0f), least = most;
        most[0] = nan;
        k.max_rows(x.data(), rows, 200, n, most.data());
        k.min_rows(x.data(), rows, 200, n, least.data());
        CHECK(std::isnan(most[0]));
        for (std::size_t j = 1; j <= std::size_t(n); ++j) {
          float largest = 0, smallest = 0;
          bool any_nan = false;
          for (int64_t i = 0; i < rows && int64_t(j) < n; ++i) {
            const float v = x[std::size_t(i * 200) + j];
            largest = std::max(largest, v), smallest = std::min(smallest, v);
            any_nan = any_nan || std::isnan(v);
          }
          const bool same = any_nan ? std::isnan(most[j]) && std::isnan(least[j])
                                    : most[j] == largest && least[j] == smallest;
          INFO(n, " columns, ", rows, " rows, column ", j);
          CHECK(same);
        }
      }
  });
}

TEST_CASE("columns are summed with any row stride") {
  Numbers numbers(22);
  const std::vector<float> x = numbers.many(40 * 200);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : {1, 3, 16, 64, 65, 131})
      for (const int64_t rows : {0, 1, 2, 37}) {
        std::vector<float> y(std::size_t(n) + 1, -1.0f);
        k.add_rows(x.data(), rows, 200, n, y.data());
        const auto truth = [&](std::size_t j) {
          double total = 0;
          for (int64_t i = 0; i < rows; ++i) total += double(x[std::size_t(i * 200) + j]);
          return int64_t(j) < n ? total : -1;
        };
        CHECK(first_beyond(y, truth, [&](std::size_t) { return 38 * eps * 2 * 37; }) == "");
      }
  });
}

// --- rows

std::vector<double> exact_softmax(const std::vector<float>& x, bool logarithm) {
  double top = *std::max_element(x.begin(), x.end()), total = 0;
  for (const float v : x) total += std::exp(double(v) - top);
  std::vector<double> y;
  for (const float v : x)
    y.push_back(logarithm ? double(v) - top - std::log(total) : std::exp(double(v) - top) / total);
  return y;
}

TEST_CASE("softmax, its logarithm and its backward") {
  Numbers numbers(23);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : {1, 2, 10, 16, 33, 1000, 5000})
      for (const bool logarithm : {false, true}) {
        INFO(n, " elements, logarithm ", logarithm);
        const std::vector<float> x = numbers.many(n, -8, 8), dy = numbers.many(n);
        std::vector<float> y(x.size()), dx(x.size());
        k.softmax(x.data(), n, logarithm, y.data());
        const std::vector<double> truth = exact_softmax(x, logarithm);
        // exp(x - top) magnifies the rounding of its argument, which is up to 16; the logarithm is
        // a difference of such values.
        const auto bound_of = [&](std::size_t i) {
          return (32 + std::sqrt(double(n))) * eps * (logarithm ? 1 : truth[i]);
        };
        CHECK(first_beyond(
                  y, [&](std::size_t i) { return truth[i]; }, bound_of) == "");
        k.softmax_backward(y.data(), dy.data(), n, logarithm, dx.data());
        double sum = 0;
        for (std::size_t i = 0; i < x.size(); ++i)
          sum += logarithm ? double(dy[i]) : double(dy[i]) * double(y[i]);
        const auto gradient = [&](std::size_t i) {
          return logarithm ? double(dy[i]) - std::exp(double(y[i])) * sum
                           : double(y[i]) * (double(dy[i]) - sum);
        };
        const double bound = (4 + std::sqrt(double(n))) * eps * (2 + std::abs(sum));
        CHECK(first_beyond(dx, gradient, [&](std::size_t) { return bound; }) == "");
      }
  });
}

TEST_CASE("sums of exponentials, also of infinities") {
  const float inf = std::numeric_limits<float>::infinity();
  Numbers numbers(24);
  each_level([&](const simd::Kernels& k) {
    const auto log_sum_exp = [&](const std::vector<float>& x) {
      float shift;
      const float sum = k.exp_sum(x.data(), int64_t(x.size()), &shift);
      return double(shift) + std::log(double(sum));
    };
    for (const int64_t n : {1, 7, 64, 1000}) {
      const std::vector<float> x = numbers.many(n, 90, 110);
      double total = 0;
      for (const float v : x) total += std::exp(double(v) - 100);
      CHECK(log_sum_exp(x) == doctest::Approx(100 + std::log(total)).epsilon(4 * eps));
    }
    CHECK(log_sum_exp({-inf, -inf, -inf}) == -inf);
    CHECK(log_sum_exp({1, inf, 2}) == inf);
    CHECK(log_sum_exp({-inf, 0, -inf}) == 0);
    CHECK(std::isnan(log_sum_exp({1, std::nanf(""), 2})));
  });
}

TEST_CASE("sums along rows do not get worse with their length") {
  // Tenths, which floats cannot represent: each addition to a long sum would round in the same
  // direction.
  const int64_t n = 1 << 20;
  const std::vector<float> x(std::size_t(n), 0.1f), ones(std::size_t(n), 1.0f);
  each_level([&](const simd::Kernels& k) {
    const double expected = double(0.1f) * double(n);
    CHECK(k.dot(x.data(), ones.data(), n) == doctest::Approx(expected).epsilon(8 * eps));
    float mean, total;
    double variance = 0, squares = 0, sum = 0;
    k.moments(x.data(), n, &mean, &variance);
    CHECK(mean == doctest::Approx(double(0.1f)).epsilon(8 * eps));
    const int64_t rows = 4096;
    k.add_rows(x.data(), rows, 1, 1, &total);
    CHECK(total == doctest::Approx(double(0.1f) * double(rows)).epsilon(16 * eps));
    const float zero = 0;
    k.channel_moments(x.data(), &zero, rows, 1, &sum, &squares);
    CHECK(sum == doctest::Approx(double(0.1f) * double(rows)).epsilon(16 * eps));
    CHECK(squares == doctest::Approx(double(0.1f) * double(0.1f) * double(rows)).epsilon(16 * eps));
  });
}

TEST_CASE("moments far from zero, and normalization by them") {
  Numbers numbers(25);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : {1, 5, 32, 33, 1000}) {
      const std::vector<float> x = numbers.many(n, 99, 101), w = numbers.many(n),
                               b = numbers.many(n);
      double mean = 0, variance = 0;
      for (const float v : x) mean += double(v) / double(n);
      for (const float v : x) variance += std::pow(double(v) - mean, 2) / double(n);
      float m;
      double v = 0;
      k.moments(x.data(), n, &m, &v);
      // The mean is rounded at 100; the variance contains the square of that rounding.
      CHECK(std::abs(double(m) - mean) <= (2 + std::sqrt(double(n))) * eps * 100);
      CHECK(std::abs(double(v) - variance) <= (2 + std::sqrt(double(n))) * eps * (variance + 1));
      std::vector<float> y(x.size());
      k.normalize(x.data(), 100, 0.5f, w.data(), b.data(), y.data(), n);
      const auto truth = [&](std::size_t i) {
        return (double(x[i]) - 100) * 0.5 * double(w[i]) + double(b[i]);
      };
      CHECK(first_beyond(y, truth, [](std::size_t) { return 4 * eps * 3; }) == "");
      k.normalize(x.data(), 100, 0.5f, nullptr, nullptr, y.data(), n);
      CHECK(first_beyond(
                y, [&](std::size_t i) { return (double(x[i]) - 100) * 0.5; },
                [](std::size_t) { return eps; }) == "");
    }
  });
}

// --- images

TEST_CASE("the maximum of pixels keeps the position of the first, and NaN wins") {
  const float nan = std::nanf("");
  const std::vector<float> a{1, 5, 2, nan, 0}, b{3, 5, 1, 7, nan}, c{2, 6, 2, nan, 9};
  const float* const pixels[] = {a.data(), b.data(), c.data()};
  const uint8_t places[] = {0, 4, 8};
  each_level([&](const simd::Kernels& k) {
    std::vector<float> y(5), dx(5);
    std::vector<uint8_t> argmax(5);
    k.max_of_pixels(pixels, places, 3, 5, y.data(), argmax.data());
    CHECK(std::vector<float>(y.begin(), y.begin() + 3) == std::vector<float>{3, 6, 2});
    CHECK(std::isnan(y[3]));
    CHECK(std::isnan(y[4]));
    CHECK(argmax == std::vector<uint8_t>{4, 8, 0, 0, 4});
    const std::vector<float> dy{1, 2, 3, 4, 5};
    k.select_place(dy.data(), argmax.data(), 4, 5, dx.data());
    CHECK(dx == std::vector<float>{1, 0, 0, 0, 5});
  });
}

TEST_CASE("transposition of any size, inside larger matrices") {
  Numbers numbers(27);
  const std::vector<float> x = numbers.many(50 * 60);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t rows : {1, 15, 16, 33})
      for (const int64_t columns : {1, 16, 17, 40}) {
        std::vector<float> y(60 * 50, -1.0f);
        k.transpose(x.data(), 60, y.data(), 50, rows, columns);
        bool right = true;
        for (int64_t j = 0; j < 60; ++j)
          for (int64_t i = 0; i < 50; ++i) {
            const bool inside = i < rows && j < columns;
            right = right &&
                    y[std::size_t(j * 50 + i)] == (inside ? x[std::size_t(i * 60 + j)] : -1.0f);
          }
        CHECK_MESSAGE(right, rows, " x ", columns);
        std::vector<uint16_t> shorts(50 * 60);
        std::iota(shorts.begin(), shorts.end(), uint16_t(0));
        std::vector<uint16_t> turned(60 * 50, 0xffff);
        k.transpose_shorts(shorts.data(), 60, turned.data(), 50, rows, columns);
        for (int64_t j = 0; j < columns; ++j)
          for (int64_t i = 0; i < rows; ++i)
            right = right && turned[std::size_t(j * 50 + i)] == shorts[std::size_t(i * 60 + j)];
        CHECK_MESSAGE(right, rows, " x ", columns, " short floats");
        CHECK(std::count(turned.begin(), turned.end(), 0xffff) == 60 * 50 - rows * columns);
      }
  });
}

}  // namespace
}  // namespace halftone::test::simd_reductions_test
