// Elementwise formulas in float on every instruction set, compared with the same formula in double.
// Errors are counted in units in the last place of the larger of result and input. If a formula
// subtracts (gelu, affine, x - y), floats cannot be more accurate than that.
#include "simd_levels.h"

#include <limits>

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

}  // namespace
}  // namespace halftone::test::simd_formulas_test
