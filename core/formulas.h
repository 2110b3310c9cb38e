// Every elementwise operation: one formula, its derivative, its name and its cast class, compiled
// for all backends. A formula is the operation: Unary<formula::Gelu> (autograd/ops/elementwise.h)
// is the graph node, and backends instantiate one generic loop over the lists at the end. T is
// float or double, and a dual number (dual.h) in higher derivatives; short floats are widened
// first. Formulas of one input are in unary_formulas.h.
#pragma once

#include <cstring>
#include <type_traits>

#include <halftone/core/language.h>
#include <halftone/core/unary_formulas.h>

namespace halftone {
namespace formula {

// --- two inputs. `constant_derivative` says that backward reads neither input. A formula with
// integer() also takes integers, in 64 bits.

struct Add {
  static constexpr OpInfo info{"add", CastClass::widest_input, cast_reason::two_inputs};
  static constexpr bool constant_derivative = true;
  template <class T> HT_HD T forward(T a, T b) const { return a + b; }
  template <class T> HT_HD T derivative_a(T, T) const { return T(1); }
  template <class T> HT_HD T derivative_b(T, T) const { return T(1); }
  HT_HD int64_t integer(int64_t a, int64_t b) const { return math::wrapped_sum(a, b); }
};
struct Sub {
  static constexpr OpInfo info{"sub", CastClass::widest_input, cast_reason::two_inputs};
  static constexpr bool constant_derivative = true;
  template <class T> HT_HD T forward(T a, T b) const { return a - b; }
  template <class T> HT_HD T derivative_a(T, T) const { return T(1); }
  template <class T> HT_HD T derivative_b(T, T) const { return T(-1); }
  HT_HD int64_t integer(int64_t a, int64_t b) const {
    return math::wrapped_sum(a, math::wrapped_product(b, -1));
  }
};
struct Mul {
  static constexpr OpInfo info{"mul", CastClass::widest_input, cast_reason::two_inputs};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const { return a * b; }
  template <class T> HT_HD T derivative_a(T, T b) const { return b; }
  template <class T> HT_HD T derivative_b(T a, T) const { return a; }
  HT_HD int64_t integer(int64_t a, int64_t b) const { return math::wrapped_product(a, b); }
};
struct Div {
  static constexpr OpInfo info{"div", CastClass::widest_input, cast_reason::two_inputs};
  static constexpr bool constant_derivative = false;
  static constexpr Domain domain{0.3, 3};
  template <class T> HT_HD T forward(T a, T b) const { return a / b; }
  template <class T> HT_HD T derivative_a(T, T b) const { return T(1) / b; }
  template <class T> HT_HD T derivative_b(T a, T b) const { return -(a / b) / b; }  // no b^2
  template <class T> HT_HD T gradient_a(T dy, T, T b) const { return dy / b; }
};
struct Maximum {  // NaN if either is, and both get the gradient; a tie splits it, as PyTorch's
  static constexpr OpInfo info{"maximum", CastClass::widest_input, cast_reason::two_inputs};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const {
    return a != a ? a : (b != b ? b : (a > b ? a : b));
  }
  template <class T> HT_HD T derivative_a(T a, T b) const {
    return a < b ? T(0) : (a == b ? T(0.5) : T(1));
  }
  template <class T> HT_HD T derivative_b(T a, T b) const {
    return a > b ? T(0) : (a == b ? T(0.5) : T(1));
  }
  HT_HD int64_t integer(int64_t a, int64_t b) const { return a > b ? a : b; }
};
struct Minimum {
  static constexpr OpInfo info{"minimum", CastClass::widest_input, cast_reason::two_inputs};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const {
    return a != a ? a : (b != b ? b : (a < b ? a : b));
  }
  template <class T> HT_HD T derivative_a(T a, T b) const {
    return a > b ? T(0) : (a == b ? T(0.5) : T(1));
  }
  template <class T> HT_HD T derivative_b(T a, T b) const {
    return a < b ? T(0) : (a == b ? T(0.5) : T(1));
  }
  HT_HD int64_t integer(int64_t a, int64_t b) const { return a < b ? a : b; }
};
struct Remainder {  // a - b floor(a / b): has the sign of b
  static constexpr OpInfo info{"remainder", CastClass::widest_input, cast_reason::two_inputs};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD static T floored(T a, T b) {  // floor(a / b), from an exact remainder
    const T rest = math::fmod(a, b);
    T quotient = (a - rest) / b;
    if (rest != T(0) && (b < T(0)) != (rest < T(0))) quotient -= T(1);
    const T whole = math::floor(quotient);
    const T nearest = quotient - whole > T(0.5) ? whole + T(1) : whole;
    return b == T(0) ? a / b : (quotient == T(0) ? math::copysign(T(0), a / b) : nearest);
  }
  template <class T> HT_HD T forward(T a, T b) const {
    const T rest = math::fmod(a, b);
    return rest != T(0) && (b < T(0)) != (rest < T(0)) ? rest + b : rest;
  }
  template <class T> HT_HD T derivative_a(T, T) const { return T(1); }
  template <class T> HT_HD T derivative_b(T a, T b) const { return -floored(a, b); }
  HT_HD int64_t integer(int64_t a, int64_t b) const {
    const int64_t taken = math::wrapped_product(math::floor_quotient(a, b), b);
    return b == 0 ? 0 : math::wrapped_sum(a, math::wrapped_product(taken, -1));
  }
};
struct FloorDivide {  // floor(a / b); constant between its jumps
  static constexpr OpInfo info{"floor_divide", CastClass::widest_input, cast_reason::two_inputs};
  static constexpr bool constant_derivative = true;
  template <class T> HT_HD T forward(T a, T b) const { return Remainder::floored(a, b); }
  template <class T> HT_HD T derivative_a(T, T) const { return T(0); }
  template <class T> HT_HD T derivative_b(T, T) const { return T(0); }
  HT_HD int64_t integer(int64_t a, int64_t b) const { return math::floor_quotient(a, b); }
};
struct Glu {  // a sigmoid(b) (Dauphin et al. 2017)
  static constexpr OpInfo info{"glu", CastClass::as_is, cast_reason::bounded};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const { return a * Sigmoid::of(b); }
  template <class T> HT_HD T derivative_a(T, T b) const { return Sigmoid::of(b); }
  template <class T> HT_HD T derivative_b(T a, T b) const {
    const T s = Sigmoid::of(b);
    return a * s * (T(1) - s);
  }
};
struct Swiglu {  // silu(a) b (Shazeer 2020); PyTorch has it as two operations
  static constexpr OpInfo info{"swiglu", CastClass::widest_input, cast_reason::two_inputs};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const { return Silu{}.forward(a) * b; }
  template <class T> HT_HD T derivative_a(T a, T b) const { return Silu{}.derivative(a, a) * b; }
  template <class T> HT_HD T derivative_b(T a, T) const { return Silu{}.forward(a); }
};
struct Prelu {  // a if positive, else b * a with a learned slope b (He et al. 2015)
  static constexpr OpInfo info{"prelu",
                               CastClass::low_precision,
                               "follows a convolution and may stay in its dtype",
                               {.sums = sums_over_last}};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const { return a > T(0) ? a : b * a; }
  template <class T> HT_HD T derivative_a(T a, T b) const { return a > T(0) ? T(1) : b; }
  template <class T> HT_HD T derivative_b(T a, T) const { return a > T(0) ? T(0) : a; }
};
struct Pow {  // a ^ b; for a = 0 and b >= 0 the derivative by b is 0, as PyTorch's
  static constexpr OpInfo info{"pow", CastClass::full_precision, cast_reason::powers};
  static constexpr bool constant_derivative = false;
  static constexpr Domain domain{0.3, 2};
  template <class T> HT_HD T forward(T a, T b) const { return math::pow(a, b); }
  template <class T> HT_HD T derivative_a(T a, T b) const {
    return b == T(0) ? T(0) : b * math::pow(a, b - T(1));
  }
  template <class T> HT_HD T derivative_b(T a, T b) const {
    return a == T(0) && b >= T(0) ? T(0) : math::pow(a, b) * math::log(a);
  }
  HT_HD int64_t integer(int64_t a, int64_t b) const { return math::wrapped_power(a, b); }
};
struct Atan2 {  // the angle of the point (b, a); derivatives at the origin are 0
  static constexpr OpInfo info{"atan2", CastClass::widest_input, cast_reason::two_inputs};
  static constexpr bool constant_derivative = false;
  static constexpr Domain domain{0.3, 3};
  template <class T> HT_HD T forward(T a, T b) const { return math::atan2(a, b); }
  template <class T> HT_HD T derivative_a(T a, T b) const {
    const T square = a * a + b * b;
    return square == T(0) ? T(0) : b / square;
  }
  template <class T> HT_HD T derivative_b(T a, T b) const { return -derivative_a(b, a); }
};
struct LogAddExp {  // log(exp(a) + exp(b))
  static constexpr OpInfo info{"logaddexp", CastClass::widest_input, cast_reason::two_inputs};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const {
    const T d = a == b ? T(0) : a - b;  // also of infinities
    const T rest = math::log1p(math::exp(-math::abs(d)));
    return d != d ? a + b : (d > T(0) ? a : b) + rest;
  }
  template <class T> HT_HD T derivative_a(T a, T b) const { return Sigmoid::of(a - b); }
  template <class T> HT_HD T derivative_b(T a, T b) const { return Sigmoid::of(b - a); }
};
struct Fmod {  // a - b trunc(a / b): has the sign of a
  static constexpr OpInfo info{"fmod", CastClass::widest_input, cast_reason::two_inputs};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const { return math::fmod(a, b); }
  template <class T> HT_HD T derivative_a(T, T) const { return T(1); }
  template <class T> HT_HD T derivative_b(T a, T b) const { return -math::trunc(a / b); }
  HT_HD int64_t integer(int64_t a, int64_t b) const { return b == 0 || b == -1 ? 0 : a % b; }
};
struct XLogY {  // a log(b), and 0 if a is 0 and b is a number
  static constexpr OpInfo info{"xlogy", CastClass::widest_input, cast_reason::two_inputs};
  static constexpr bool constant_derivative = false;
  static constexpr Domain domain{0.1, 3};
  template <class T> HT_HD T forward(T a, T b) const {
    return a == T(0) && b == b ? T(0) : a * math::log(b);
  }
  template <class T> HT_HD T derivative_a(T a, T b) const {
    return a == T(0) && b <= T(0) ? T(0) : math::log(b);
  }
  template <class T> HT_HD T derivative_b(T a, T b) const { return a / b; }
  template <class T> HT_HD T gradient_a(T dy, T a, T b) const {
    return a == T(0) && b <= T(0) ? T(0) : forward(dy, b);
  }
};

// --- pointwise losses: a is the prediction, b the target

struct SquaredError {
  static constexpr OpInfo info{
      "mse", CastClass::full_precision, cast_reason::loss, {.is_loss = true}};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const { return (a - b) * (a - b); }
  template <class T> HT_HD T derivative_a(T a, T b) const { return T(2) * (a - b); }
  template <class T> HT_HD T derivative_b(T a, T b) const { return T(2) * (b - a); }
};
struct AbsoluteError {
  static constexpr OpInfo info{
      "l1", CastClass::full_precision, cast_reason::loss, {.is_loss = true}};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const { return math::abs(a - b); }
  template <class T> HT_HD T derivative_a(T a, T b) const {
    return a > b ? T(1) : (a < b ? T(-1) : T(0));
  }
  template <class T> HT_HD T derivative_b(T a, T b) const { return -derivative_a(a, b); }
};
struct SmoothL1 {  // quadratic within beta of the target, linear outside (Girshick 2015)
  static constexpr OpInfo info{
      "smooth_l1", CastClass::full_precision, cast_reason::loss, {.is_loss = true}};
  static constexpr bool constant_derivative = false;
  double beta = 1;
  template <class T> HT_HD T forward(T a, T b) const {
    const T d = math::abs(a - b);
    return d < T(beta) ? T(0.5) * d * (d / T(beta)) : d - T(0.5) * T(beta);
  }
  template <class T> HT_HD T derivative_a(T a, T b) const {
    const T d = a - b;
    if (math::abs(d) >= T(beta)) return d > T(0) ? T(1) : (d < T(0) ? T(-1) : T(0));
    return d / T(beta);  // NaN for NaN
  }
  template <class T> HT_HD T derivative_b(T a, T b) const { return -derivative_a(a, b); }
};
struct Huber {  // smooth_l1 times delta: quadratic within delta of the target (Huber 1964)
  static constexpr OpInfo info{
      "huber", CastClass::full_precision, cast_reason::loss, {.is_loss = true}};
  static constexpr bool constant_derivative = false;
  double delta = 1;
  template <class T> HT_HD T forward(T a, T b) const {
    const T d = math::abs(a - b);
    return d < T(delta) ? T(0.5) * d * d : T(delta) * (d - T(0.5) * T(delta));
  }
  template <class T> HT_HD T derivative_a(T a, T b) const {
    const T d = a - b;
    return d > T(delta) ? T(delta) : (d < T(-delta) ? T(-delta) : d);
  }
  template <class T> HT_HD T derivative_b(T a, T b) const { return -derivative_a(a, b); }
};
struct KlDivergence {  // b (log b - a), and 0 if b is 0: a is a logarithm, the target is not
  static constexpr OpInfo info{
      "kl_div", CastClass::full_precision, cast_reason::loss, {.is_loss = true}};
  static constexpr bool constant_derivative = false;
  static constexpr Domain domain{0.1, 2};
  template <class T> HT_HD T forward(T a, T b) const {
    return (b == T(0) ? T(0) : b * math::log(b)) - b * a;
  }
  template <class T> HT_HD T derivative_a(T, T b) const { return -b; }
  template <class T> HT_HD T derivative_b(T a, T b) const { return math::log(b) + T(1) - a; }
};
struct KlDivergenceOfLogs {  // exp(b) (b - a): both are logarithms
  static constexpr OpInfo info{
      "kl_div", CastClass::full_precision, cast_reason::loss, {.is_loss = true}};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const { return math::exp(b) * (b - a); }
  template <class T> HT_HD T derivative_a(T, T b) const { return -math::exp(b); }
  template <class T> HT_HD T derivative_b(T a, T b) const { return math::exp(b) * (b - a + T(1)); }
};
struct BinaryCrossEntropy {  // -b log(a) - (1 - b) log(1 - a); logarithms are at least -100
  static constexpr OpInfo info{
      "binary_cross_entropy",
      CastClass::banned,
      "log of a probability that sigmoid rounded to 0 or 1 is infinite",
      {.instead = "Its input has left the range in which the logarithm of a short float is "
                  "accurate: use bce_with_logits() on the logits, or a disabled region.",
       .is_loss = true}};
  static constexpr bool constant_derivative = false;
  static constexpr Domain domain{0.1, 0.9};
  template <class T> HT_HD static T bounded(T log) { return log < T(-100) ? T(-100) : log; }
  template <class T> HT_HD T forward(T a, T b) const {
    return (b - T(1)) * bounded(math::log1p(-a)) - b * bounded(math::log(a));
  }
  template <class T> HT_HD T derivative_a(T a, T b) const {
    const T product = a * (T(1) - a);
    return (a - b) / (product < T(1e-12f) ? T(1e-12f) : product);  // a float constant, as PyTorch's
  }
  template <class T> HT_HD T derivative_b(T a, T) const {
    return bounded(math::log1p(-a)) - bounded(math::log(a));
  }
};
struct BceWithLogits {  // max(a, 0) - a b + log(1 + exp(-|a|)): the stable form of binary
                        // cross-entropy
  static constexpr OpInfo info{
      "bce_with_logits", CastClass::full_precision, cast_reason::loss, {.is_loss = true}};
  static constexpr bool constant_derivative = false;
  template <class T> HT_HD T forward(T a, T b) const {
    return (a > T(0) ? a : T(0)) - a * b + math::log1p(math::exp(-math::abs(a)));
  }
  template <class T> HT_HD T derivative_a(T a, T b) const { return Sigmoid::of(a) - b; }
  template <class T> HT_HD T derivative_b(T a, T) const { return -a; }
};

// --- comparisons: the result is bool

struct Equal {
  static constexpr OpInfo info{"equal", CastClass::widest_input, cast_reason::two_inputs};
  template <class T> HT_HD bool forward(T a, T b) const { return a == b; }
};
struct NotEqual {
  static constexpr OpInfo info{"not_equal", CastClass::widest_input, cast_reason::two_inputs};
  template <class T> HT_HD bool forward(T a, T b) const { return a != b; }
};
struct Less {
  static constexpr OpInfo info{"less", CastClass::widest_input, cast_reason::two_inputs};
  template <class T> HT_HD bool forward(T a, T b) const { return a < b; }
};
struct LessEqual {
  static constexpr OpInfo info{"less_equal", CastClass::widest_input, cast_reason::two_inputs};
  template <class T> HT_HD bool forward(T a, T b) const { return a <= b; }
};
struct Greater {
  static constexpr OpInfo info{"greater", CastClass::widest_input, cast_reason::two_inputs};
  template <class T> HT_HD bool forward(T a, T b) const { return a > b; }
};
struct GreaterEqual {
  static constexpr OpInfo info{"greater_equal", CastClass::widest_input, cast_reason::two_inputs};
  template <class T> HT_HD bool forward(T a, T b) const { return a >= b; }
};
struct LogicalAnd {  // everything but 0 is true, also NaN
  static constexpr OpInfo info{"logical_and", CastClass::as_is, cast_reason::truth};
  template <class T> HT_HD bool forward(T a, T b) const { return a != T(0) && b != T(0); }
};
struct LogicalOr {
  static constexpr OpInfo info{"logical_or", CastClass::as_is, cast_reason::truth};
  template <class T> HT_HD bool forward(T a, T b) const { return a != T(0) || b != T(0); }
};
struct LogicalXor {
  static constexpr OpInfo info{"logical_xor", CastClass::as_is, cast_reason::truth};
  template <class T> HT_HD bool forward(T a, T b) const { return (a != T(0)) != (b != T(0)); }
};

}  // namespace formula

using BinaryFormulas =
    TypeList<formula::Add, formula::Sub, formula::Mul, formula::Div, formula::Maximum,
             formula::Minimum, formula::Remainder, formula::FloorDivide, formula::Glu,
             formula::Swiglu, formula::Prelu, formula::Pow, formula::SquaredError,
             formula::AbsoluteError, formula::SmoothL1, formula::Huber, formula::KlDivergence,
             formula::KlDivergenceOfLogs, formula::BinaryCrossEntropy, formula::BceWithLogits,
             formula::Atan2, formula::LogAddExp, formula::Fmod, formula::XLogY>;
using CompareFormulas =
    TypeList<formula::Equal, formula::NotEqual, formula::Less, formula::LessEqual, formula::Greater,
             formula::GreaterEqual, formula::LogicalAnd, formula::LogicalOr, formula::LogicalXor>;

/// Return dy times a derivative. If the formula has gradient(), that computes it, in its own order
/// of the products. For one input, s is the saved x or y.
template <class F, class T> HT_HD T gradient_of(const F& f, T dy, T s) {
  if constexpr (requires { f.gradient(dy, s); }) return f.gradient(dy, s);
  else return dy * f.derivative(s, s);
}
template <int input, class F, class T> HT_HD T gradient_of(const F& f, T dy, T a, T b) {
  if constexpr (input == 1) return dy * f.derivative_b(a, b);
  else if constexpr (requires { f.gradient_a(dy, a, b); }) return f.gradient_a(dy, a, b);
  else return dy * f.derivative_a(a, b);
}

/// The inputs (0: a, 1: b) by which a formula of two inputs is differentiated, one after the other.
/// A formula of one input is differentiated by its saved tensor alone. The first derivative is the
/// formula's own, the others are those of dual numbers.
struct Derivatives {
  static constexpr int most = 3;
  int count = 1;
  int by[most]{};
};

namespace detail {
/// Returns df, a formula's first derivative, differentiated once or twice more.
template <class First>
HT_HD double higher(const First& df, const Derivatives& d, double a, double b) {
  using Once = Dual<double>;
  using Twice = Dual<Once>;
  const Once u{a, d.by[1] == 0 ? 1.0 : 0.0}, v{b, d.by[1] == 1 ? 1.0 : 0.0};
  if (d.count == 2) return df(u, v).slope;
  const Twice uu{u, Once(d.by[2] == 0 ? 1.0 : 0.0)}, vv{v, Once(d.by[2] == 1 ? 1.0 : 0.0)};
  return df(uu, vv).slope.slope;
}
}  // namespace detail

/// Return the second or third derivative; d.count says which. For a formula of one input, the first
/// derivative is differentiated by s, the saved x or y that it reads.
template <class F> HT_HD double higher_derivative(const F& f, const Derivatives& d, double s) {
  return detail::higher([&](auto u, auto) { return f.derivative(u, u); }, d, s, 0);
}
template <class F>
HT_HD double higher_derivative(const F& f, const Derivatives& d, double a, double b) {
  if (d.by[0] == 0)
    return detail::higher([&](auto u, auto v) { return f.derivative_a(u, v); }, d, a, b);
  return detail::higher([&](auto u, auto v) { return f.derivative_b(u, v); }, d, a, b);
}

/// Whether a formula also takes integers.
template <class F> inline constexpr bool takes_integers = requires(const F& f) {
  f.integer(int64_t());
}
|| requires(const F& f) { f.integer(int64_t(), int64_t()); };

/// A formula as backends receive it: its index in one of the lists above and its attributes (at
/// most two numbers).
struct FormulaCall {
  int index = 0;
  double attributes[2]{};
};

template <class List, class F> FormulaCall call_of(const F& formula) {
  static_assert(is_in_list<F, List>, "add this formula to its list in core/formulas.h");
  FormulaCall call{index_of<F, List>, {}};
  if constexpr (!std::is_empty_v<F>) {
    static_assert(sizeof(F) <= sizeof call.attributes);
    std::memcpy(call.attributes, &formula, sizeof(F));
  }
  return call;
}

/// Returns the formula of type F with the call's attributes.
template <class F> HT_HD F formula_of(const FormulaCall& call) {
  if constexpr (std::is_empty_v<F>) return F{};
  else if constexpr (sizeof(F) == sizeof(double)) return F{call.attributes[0]};
  else return F{call.attributes[0], call.attributes[1]};
}

}  // namespace halftone
