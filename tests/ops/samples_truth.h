// The definition of each formula: truth(), the value in f64 through the C library, and kinks(), the
// points without a derivative.
#pragma once

#include "ops/samples_case.h"

namespace halftone::test {

inline double logistic(double x) { return 1 / (1 + std::exp(-x)); }

inline double truth(formula::Relu, double x) { return x > 0 ? x : 0; }
inline double truth(formula::LeakyRelu f, double x) { return x > 0 ? x : f.slope * x; }
inline double truth(formula::Gelu, double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * std::pow(x, 3))));
}
inline double truth(formula::GeluErf, double x) { return x / 2 * std::erfc(-x / std::sqrt(2)); }
inline double truth(formula::Erf, double x) { return std::erf(x); }
inline double truth(formula::LogSigmoid, double x) { return -std::log1p(std::exp(-x)); }
inline double truth(formula::Sigmoid, double x) { return logistic(x); }
inline double truth(formula::Silu, double x) { return x * logistic(x); }
inline double truth(formula::Tanh, double x) { return std::tanh(x); }
inline double truth(formula::Softplus f, double x) {
  return x * f.beta > f.threshold ? x : std::log1p(std::exp(f.beta * x)) / f.beta;
}
inline double truth(formula::Exp, double x) { return std::exp(x); }
inline double truth(formula::Expm1, double x) { return std::expm1(x); }
inline double truth(formula::Log, double x) { return std::log(x); }
inline double truth(formula::Log2, double x) { return std::log2(x); }
inline double truth(formula::Log10, double x) { return std::log10(x); }
inline double truth(formula::Log1p, double x) { return std::log1p(x); }
inline double truth(formula::Sqrt, double x) { return std::sqrt(x); }
inline double truth(formula::Rsqrt, double x) { return 1 / std::sqrt(x); }
inline double truth(formula::Reciprocal, double x) { return 1 / x; }
inline double truth(formula::PowScalar f, double x) { return std::pow(x, f.exponent); }
inline double truth(formula::Square, double x) { return x * x; }
inline double truth(formula::Abs, double x) { return std::abs(x); }
inline double truth(formula::Neg, double x) { return -x; }
inline double truth(formula::Clamp f, double x) { return std::min(std::max(x, f.low), f.high); }
inline double truth(formula::Affine f, double x) { return f.scale * x + f.shift; }

inline double truth(formula::Sin, double x) { return std::sin(x); }
inline double truth(formula::Cos, double x) { return std::cos(x); }
inline double truth(formula::Sign, double x) { return double(x > 0) - double(x < 0); }
inline double truth(formula::Floor, double x) { return std::floor(x); }
inline double truth(formula::Ceil, double x) { return std::ceil(x); }
inline double truth(formula::Round, double x) { return std::nearbyint(x); }
inline double truth(formula::Elu f, double x) {
  return f.scale * (x > 0 ? x : f.alpha * std::expm1(x));
}
inline double truth(formula::Mish, double x) { return x * std::tanh(std::log1p(std::exp(x))); }
inline double truth(formula::Hardswish, double x) {
  return x * std::min(std::max(x + 3, 0.0), 6.0) / 6;
}

inline double truth(formula::Add, double a, double b) { return a + b; }
inline double truth(formula::Sub, double a, double b) { return a - b; }
inline double truth(formula::Mul, double a, double b) { return a * b; }
inline double truth(formula::Div, double a, double b) { return a / b; }
inline double truth(formula::Maximum, double a, double b) { return std::fmax(a, b); }
inline double truth(formula::Minimum, double a, double b) { return std::fmin(a, b); }
inline double truth(formula::Remainder, double a, double b) { return a - b * std::floor(a / b); }
inline double truth(formula::FloorDivide, double a, double b) { return std::floor(a / b); }
inline double truth(formula::Glu, double a, double b) { return a * logistic(b); }
inline double truth(formula::Prelu, double a, double b) { return a > 0 ? a : a * b; }
inline double truth(formula::Pow, double a, double b) { return std::pow(a, b); }
inline double truth(formula::SquaredError, double a, double b) { return std::pow(a - b, 2); }
inline double truth(formula::AbsoluteError, double a, double b) { return std::abs(a - b); }
inline double truth(formula::SmoothL1 f, double a, double b) {
  const double d = std::abs(a - b);
  return d < f.beta ? d * d / (2 * f.beta) : d - f.beta / 2;
}
inline double truth(formula::Huber f, double a, double b) {
  const double d = std::abs(a - b);
  return d < f.delta ? d * d / 2 : f.delta * (d - f.delta / 2);
}
inline double truth(formula::KlDivergence, double a, double b) { return b * (std::log(b) - a); }
inline double truth(formula::KlDivergenceOfLogs, double a, double b) {
  return std::exp(b) * (b - a);
}
inline double truth(formula::BinaryCrossEntropy, double a, double b) {
  return -b * std::log(a) - (1 - b) * std::log(1 - a);
}
inline double truth(formula::BceWithLogits, double a, double b) {
  return -b * std::log(logistic(a)) - (1 - b) * std::log(1 - logistic(a));
}

inline bool truth(formula::Equal, double a, double b) { return a == b; }
inline bool truth(formula::NotEqual, double a, double b) { return a != b; }
inline bool truth(formula::Less, double a, double b) { return a < b; }
inline bool truth(formula::LessEqual, double a, double b) { return a <= b; }
inline bool truth(formula::Greater, double a, double b) { return a > b; }
inline bool truth(formula::GreaterEqual, double a, double b) { return a >= b; }
inline bool truth(formula::LogicalAnd, double a, double b) { return a != 0 && b != 0; }
inline bool truth(formula::LogicalOr, double a, double b) { return a != 0 || b != 0; }
inline bool truth(formula::LogicalXor, double a, double b) { return (a != 0) != (b != 0); }

template <class F> std::vector<double> kinks(const F&) { return {}; }
inline std::vector<double> kinks(const formula::Relu&) { return {0}; }
inline std::vector<double> kinks(const formula::LeakyRelu&) { return {0}; }
inline std::vector<double> kinks(const formula::Abs&) { return {0}; }
inline std::vector<double> kinks(const formula::Prelu&) { return {0}; }
inline std::vector<double> kinks(const formula::Clamp& f) { return {f.low, f.high}; }
inline std::vector<double> kinks(const formula::Sign&) { return {0}; }
inline std::vector<double> kinks(const formula::Floor&) { return {-3, -2, -1, 0, 1, 2, 3}; }
inline std::vector<double> kinks(const formula::Ceil&) { return {-3, -2, -1, 0, 1, 2, 3}; }
inline std::vector<double> kinks(const formula::Round&) {
  return {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5};
}
inline std::vector<double> kinks(const formula::Elu&) { return {0}; }
inline std::vector<double> kinks(const formula::Hardswish&) { return {-3, 3}; }

}  // namespace halftone::test
