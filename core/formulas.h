// Every elementwise operation: one formula, its derivative, its name and its cast class, compiled
// for all backends. A formula is the operation: Unary<formula::Gelu> (autograd/ops/elementwise.h)
// is the graph node, and backends instantiate one generic loop over the lists at the end. T is
// float or double; short floats are widened before. `saves` says what the derivative reads, so that
// memory is spent knowingly; y is the output, x the input.
#pragma once

#include <cstring>
#include <type_traits>

#include <halftone/core/math.h>
#include <halftone/core/op_info.h>
#include <halftone/core/type_list.h>

namespace halftone {

/// What backward needs of a unary operation.
enum class Saves : uint8_t { nothing, input, output };
/// Which inputs tests may draw, where a function is not defined (or not differentiable) everywhere.
struct Domain {
  double low = -3, high = 3;
};

namespace formula {

struct Relu {  // max(x, 0); NaN passes, the derivative at 0 is 0
  static constexpr OpInfo info{"relu", CastClass::as_is};
  static constexpr Saves saves = Saves::output;
  template <class T> HT_HD T forward(T x) const { return x < T(0) ? T(0) : x; }
  template <class T> HT_HD T derivative(T, T y) const { return y > T(0) ? T(1) : T(0); }
};
struct LeakyRelu {  // x if positive, else slope * x (Maas et al. 2013)
  static constexpr OpInfo info{"leaky_relu", CastClass::as_is};
  static constexpr Saves saves = Saves::input;
  double slope = 0.01;
  template <class T> HT_HD T forward(T x) const { return x > T(0) ? x : T(slope) * x; }
  template <class T> HT_HD T derivative(T x, T) const { return x > T(0) ? T(1) : T(slope); }
};
struct Gelu {  // x * Phi(x), tanh form of Phi (Hendrycks & Gimpel 2016)
  static constexpr OpInfo info{"gelu", CastClass::as_is};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD static T tanh_term(T x) {
    return math::tanh(T(0.79788456080286536) * (x + T(0.044715) * x * x * x));
  }
  template <class T> HT_HD T forward(T x) const { return T(0.5) * x * (T(1) + tanh_term(x)); }
  template <class T> HT_HD T derivative(T x, T) const {
    const T t = tanh_term(x);
    const T du = T(0.79788456080286536) * (T(1) + T(0.134145) * x * x);
    return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * du;
  }
};
struct GeluErf {  // x * Phi(x), exact Phi
  static constexpr OpInfo info{"gelu_erf", CastClass::as_is};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD static T phi(T x) {
    return T(0.5) * (T(1) + math::erf(x * T(0.70710678118654752)));
  }
  template <class T> HT_HD T forward(T x) const { return x * phi(x); }
  template <class T> HT_HD T derivative(T x, T) const {
    return phi(x) + x * T(0.39894228040143268) * math::exp(T(-0.5) * x * x);
  }
};
struct Sigmoid {
  static constexpr OpInfo info{"sigmoid", CastClass::as_is};
  static constexpr Saves saves = Saves::output;
  template <class T> HT_HD static T of(T x) { return T(1) / (T(1) + math::exp(-x)); }
  template <class T> HT_HD T forward(T x) const { return of(x); }
  template <class T> HT_HD T derivative(T, T y) const { return y * (T(1) - y); }
};
struct Silu {  // x * sigmoid(x), also called swish
  static constexpr OpInfo info{"silu", CastClass::as_is};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD T forward(T x) const { return x / (T(1) + math::exp(-x)); }
  template <class T> HT_HD T derivative(T x, T) const {
    const T s = Sigmoid::of(x);
    return s * (T(1) + x * (T(1) - s));
  }
};
struct Tanh {
  static constexpr OpInfo info{"tanh", CastClass::as_is};
  static constexpr Saves saves = Saves::output;
  template <class T> HT_HD T forward(T x) const { return math::tanh(x); }
  template <class T> HT_HD T derivative(T, T y) const { return T(1) - y * y; }
};
struct Softplus {  // log(1 + exp(beta x)) / beta, and x itself beyond `threshold`, as PyTorch's
  static constexpr OpInfo info{"softplus", CastClass::full_precision};
  static constexpr Saves saves = Saves::input;
  double beta = 1, threshold = 20;
  template <class T> HT_HD T forward(T x) const {
    const T z = T(beta) * x;
    return z > T(threshold) ? x : math::log1p(math::exp(z)) / T(beta);
  }
  template <class T> HT_HD T derivative(T x, T) const {
    const T z = T(beta) * x;
    return z > T(threshold) ? T(1) : Sigmoid::of(z);
  }
};
struct Exp {
  static constexpr OpInfo info{"exp", CastClass::full_precision};
  static constexpr Saves saves = Saves::output;
  template <class T> HT_HD T forward(T x) const { return math::exp(x); }
  template <class T> HT_HD T derivative(T, T y) const { return y; }
};
struct Expm1 {
  static constexpr OpInfo info{"expm1", CastClass::full_precision};
  static constexpr Saves saves = Saves::output;
  template <class T> HT_HD T forward(T x) const { return math::expm1(x); }
  template <class T> HT_HD T derivative(T, T y) const { return y + T(1); }
};
struct Log {
  static constexpr OpInfo info{"log", CastClass::full_precision};
  static constexpr Saves saves = Saves::input;
  static constexpr Domain domain{0.1, 4};
  template <class T> HT_HD T forward(T x) const { return math::log(x); }
  template <class T> HT_HD T derivative(T x, T) const { return T(1) / x; }
};
struct Log1p {
  static constexpr OpInfo info{"log1p", CastClass::full_precision};
  static constexpr Saves saves = Saves::input;
  static constexpr Domain domain{-0.8, 4};
  template <class T> HT_HD T forward(T x) const { return math::log1p(x); }
  template <class T> HT_HD T derivative(T x, T) const { return T(1) / (T(1) + x); }
};
struct Sqrt {
  static constexpr OpInfo info{"sqrt", CastClass::as_is};
  static constexpr Saves saves = Saves::output;
  static constexpr Domain domain{0.1, 4};
  template <class T> HT_HD T forward(T x) const { return math::sqrt(x); }
  template <class T> HT_HD T derivative(T, T y) const { return T(0.5) / y; }
};
struct Rsqrt {
  static constexpr OpInfo info{"rsqrt", CastClass::full_precision};
  static constexpr Saves saves = Saves::output;
  static constexpr Domain domain{0.1, 4};
  template <class T> HT_HD T forward(T x) const { return T(1) / math::sqrt(x); }
  template <class T> HT_HD T derivative(T, T y) const { return T(-0.5) * y * y * y; }
};
struct Reciprocal {
  static constexpr OpInfo info{"reciprocal", CastClass::full_precision};
  static constexpr Saves saves = Saves::output;
  static constexpr Domain domain{0.2, 4};
  template <class T> HT_HD T forward(T x) const { return T(1) / x; }
  template <class T> HT_HD T derivative(T, T y) const { return -y * y; }
};
struct PowScalar {  // x ^ exponent; the derivative at exponent 0 is 0, also where x is 0
  static constexpr OpInfo info{"pow", CastClass::full_precision};
  static constexpr Saves saves = Saves::input;
  static constexpr Domain domain{0.1, 3};
  double exponent = 3;
  template <class T> HT_HD T forward(T x) const { return math::pow(x, T(exponent)); }
  template <class T> HT_HD T derivative(T x, T) const {
    return exponent == 0 ? T(0) : T(exponent) * math::pow(x, T(exponent - 1));
  }
};
struct Square {
  static constexpr OpInfo info{"square", CastClass::full_precision};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD T forward(T x) const { return x * x; }
  template <class T> HT_HD T derivative(T x, T) const { return T(2) * x; }
};
struct Abs {  // the derivative at 0 is 0
  static constexpr OpInfo info{"abs", CastClass::as_is};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD T forward(T x) const { return math::abs(x); }
  template <class T> HT_HD T derivative(T x, T) const {
    return x > T(0) ? T(1) : (x < T(0) ? T(-1) : T(0));
  }
};
struct Neg {
  static constexpr OpInfo info{"neg", CastClass::as_is};
  static constexpr Saves saves = Saves::nothing;
  template <class T> HT_HD T forward(T x) const { return -x; }
  template <class T> HT_HD T derivative(T, T) const { return T(-1); }
};
struct Clamp {  // to [low, high]; NaN passes; the derivative at the bounds is 0, as PyTorch's
  static constexpr OpInfo info{"clamp", CastClass::as_is};
  static constexpr Saves saves = Saves::input;
  double low = -1.05, high = 1.55;
  template <class T> HT_HD T forward(T x) const {
    return x < T(low) ? T(low) : (x > T(high) ? T(high) : x);
  }
  template <class T> HT_HD T derivative(T x, T) const {
    return x > T(low) && x < T(high) ? T(1) : T(0);
  }
};
struct Affine {  // scale * x + shift: arithmetic of a tensor with numbers
  static constexpr OpInfo info{"affine", CastClass::as_is};
  static constexpr Saves saves = Saves::nothing;
  double scale = 1.5, shift = 0.25;
  template <class T> HT_HD T forward(T x) const { return T(scale) * x + T(shift); }
  template <class T> HT_HD T derivative(T, T) const { return T(scale); }
};

// --- two inputs. `constant_derivative` says that backward reads neither input.

struct Add {
  static constexpr OpInfo info{"add", CastClass::widest_input};
  static constexpr bool constant_derivative = true;
  template <class T> HT_HD T forward(T a, T b) const { return a + b; }
  template <class T> HT_HD T derivative_a(T, T) const { return T(1); }
  template <class T> HT_HD T derivative_b(T, T) const { return T(1); }
};
struct Sub {
  static constexpr OpInfo info{"sub", CastClass::widest_input};
  static constexpr bool constant_derivative = true;
  template <class T> HT_HD T forward(T a, T b) const { return a - b; }
  template <class T> HT_HD T derivative_a(T, T) const { return T(1); }
  template <class T> HT_HD T derivative_b(T, T) const { return T(-1); }
};
struct Mul {
  static constexpr OpInfo info{"mul", CastClass::widest_input};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const { return a * b; }
  template <class T> HT_HD T derivative_a(T, T b) const { return b; }
  template <class T> HT_HD T derivative_b(T a, T) const { return a; }
};
struct Div {
  static constexpr OpInfo info{"div", CastClass::widest_input};
  static constexpr bool constant_derivative = false;
  static constexpr Domain domain{0.3, 3};
  template <class T> HT_HD T forward(T a, T b) const { return a / b; }
  template <class T> HT_HD T derivative_a(T, T b) const { return T(1) / b; }
  template <class T> HT_HD T derivative_b(T a, T b) const { return -a / (b * b); }
};
struct Maximum {  // NaN if either is; a tie splits the gradient, as PyTorch's
  static constexpr OpInfo info{"maximum", CastClass::widest_input};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const {
    return a != a ? a : (b != b ? b : (a > b ? a : b));
  }
  template <class T> HT_HD T derivative_a(T a, T b) const {
    return a > b ? T(1) : (a == b ? T(0.5) : T(0));
  }
  template <class T> HT_HD T derivative_b(T a, T b) const {
    return a < b ? T(1) : (a == b ? T(0.5) : T(0));
  }
};
struct Minimum {
  static constexpr OpInfo info{"minimum", CastClass::widest_input};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const {
    return a != a ? a : (b != b ? b : (a < b ? a : b));
  }
  template <class T> HT_HD T derivative_a(T a, T b) const {
    return a < b ? T(1) : (a == b ? T(0.5) : T(0));
  }
  template <class T> HT_HD T derivative_b(T a, T b) const {
    return a > b ? T(1) : (a == b ? T(0.5) : T(0));
  }
};
struct Pow {  // a ^ b; where a is 0 the derivative by b is 0, as PyTorch's
  static constexpr OpInfo info{"pow", CastClass::full_precision};
  static constexpr bool constant_derivative = false;
  static constexpr Domain domain{0.3, 2};
  template <class T> HT_HD T forward(T a, T b) const { return math::pow(a, b); }
  template <class T> HT_HD T derivative_a(T a, T b) const {
    return b == T(0) ? T(0) : b * math::pow(a, b - T(1));
  }
  template <class T> HT_HD T derivative_b(T a, T b) const {
    return a == T(0) && b >= T(0) ? T(0) : math::pow(a, b) * math::log(a);
  }
};

// --- pointwise losses: a is the prediction, b the target

struct SquaredError {
  static constexpr OpInfo info{"mse", CastClass::full_precision};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const { return (a - b) * (a - b); }
  template <class T> HT_HD T derivative_a(T a, T b) const { return T(2) * (a - b); }
  template <class T> HT_HD T derivative_b(T a, T b) const { return T(2) * (b - a); }
};
struct AbsoluteError {
  static constexpr OpInfo info{"l1", CastClass::full_precision};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const { return math::abs(a - b); }
  template <class T> HT_HD T derivative_a(T a, T b) const {
    return a > b ? T(1) : (a < b ? T(-1) : T(0));
  }
  template <class T> HT_HD T derivative_b(T a, T b) const { return -derivative_a(a, b); }
};
struct SmoothL1 {  // quadratic within beta of the target, linear outside (Girshick 2015)
  static constexpr OpInfo info{"smooth_l1", CastClass::full_precision};
  static constexpr bool constant_derivative = false;
  double beta = 1;
  template <class T> HT_HD T forward(T a, T b) const {
    const T d = math::abs(a - b);
    return d < T(beta) ? T(0.5) * d * d / T(beta) : d - T(0.5) * T(beta);
  }
  template <class T> HT_HD T derivative_a(T a, T b) const {
    const T d = a - b;
    return math::abs(d) < T(beta) ? d / T(beta) : (d > T(0) ? T(1) : (d < T(0) ? T(-1) : T(0)));
  }
  template <class T> HT_HD T derivative_b(T a, T b) const { return -derivative_a(a, b); }
};
struct BceWithLogits {  // max(a, 0) - a b + log(1 + exp(-|a|)): the stable form of binary
                        // cross-entropy
  static constexpr OpInfo info{"bce_with_logits", CastClass::full_precision};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const {
    return (a > T(0) ? a : T(0)) - a * b + math::log1p(math::exp(-math::abs(a)));
  }
  template <class T> HT_HD T derivative_a(T a, T b) const { return Sigmoid::of(a) - b; }
  template <class T> HT_HD T derivative_b(T a, T) const { return -a; }
};

// --- comparisons: the result is bool

struct Equal {
  static constexpr OpInfo info{"equal", CastClass::widest_input};
  template <class T> HT_HD bool forward(T a, T b) const { return a == b; }
};
struct NotEqual {
  static constexpr OpInfo info{"not_equal", CastClass::widest_input};
  template <class T> HT_HD bool forward(T a, T b) const { return a != b; }
};
struct Less {
  static constexpr OpInfo info{"less", CastClass::widest_input};
  template <class T> HT_HD bool forward(T a, T b) const { return a < b; }
};
struct LessEqual {
  static constexpr OpInfo info{"less_equal", CastClass::widest_input};
  template <class T> HT_HD bool forward(T a, T b) const { return a <= b; }
};
struct Greater {
  static constexpr OpInfo info{"greater", CastClass::widest_input};
  template <class T> HT_HD bool forward(T a, T b) const { return a > b; }
};
struct GreaterEqual {
  static constexpr OpInfo info{"greater_equal", CastClass::widest_input};
  template <class T> HT_HD bool forward(T a, T b) const { return a >= b; }
};

}  // namespace formula

using UnaryFormulas =
    TypeList<formula::Relu, formula::LeakyRelu, formula::Gelu, formula::GeluErf, formula::Sigmoid,
             formula::Silu, formula::Tanh, formula::Softplus, formula::Exp, formula::Expm1,
             formula::Log, formula::Log1p, formula::Sqrt, formula::Rsqrt, formula::Reciprocal,
             formula::PowScalar, formula::Square, formula::Abs, formula::Neg, formula::Clamp,
             formula::Affine>;
using BinaryFormulas =
    TypeList<formula::Add, formula::Sub, formula::Mul, formula::Div, formula::Maximum,
             formula::Minimum, formula::Pow, formula::SquaredError, formula::AbsoluteError,
             formula::SmoothL1, formula::BceWithLogits>;
using CompareFormulas = TypeList<formula::Equal, formula::NotEqual, formula::Less,
                                 formula::LessEqual, formula::Greater, formula::GreaterEqual>;

/// A formula as backends receive it: its place in one of the lists above and its attributes (at
/// most two numbers).
struct FormulaCall {
  int index = 0;
  double attributes[2]{};
};

template <class List, class F> FormulaCall call_of(const F& formula) {
  static_assert(contains<F, List>, "add this formula to its list in core/formulas.h");
  FormulaCall call{index_of<F, List>, {}};
  if constexpr (!std::is_empty_v<F>) {
    static_assert(sizeof(F) <= sizeof call.attributes);
    std::memcpy(call.attributes, &formula, sizeof(F));
  }
  return call;
}

/// The formula of that type with the call's attributes.
template <class F> HT_HD F formula_of(const FormulaCall& call) {
  if constexpr (std::is_empty_v<F>) return F{};
  else if constexpr (sizeof(F) == sizeof(double)) return F{call.attributes[0]};
  else return F{call.attributes[0], call.attributes[1]};
}

}  // namespace halftone
