// Elementwise formulas in float on every instruction set, compared with the same formula in double,
// and at the ends of each dtype's range, compared with long double. Errors are counted in units in
// the last place of the larger of result and input. If a formula subtracts (gelu, affine, x - y),
// floats cannot be more accurate than that.
#include "simd_levels.h"

#include <functional>
#include <iomanip>
#include <limits>
#include <map>
#include <sstream>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

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

TEST_CASE("exp, log, tanh and roots are accurate to two units over their whole range") {
  each_level([](const simd::Kernels& k) {
    check_units<formula::Exp>(k, -87, 88, 2);
    check_units<formula::Exp>(k, -1e-3, 1e-3, 2);
    check_units<formula::Log>(k, 1e-30, 1e-20, 2);
    check_units<formula::Log>(k, 0.5, 2, 2);
    check_units<formula::Log>(k, 1, 1e30, 2);
    check_units<formula::Log2>(k, 1e-30, 1e30, 2);
    check_units<formula::Log10>(k, 1e-30, 1e30, 2);
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
