// The formulas of one input, and their list; core/formulas.h describes the members of a formula.
// `saves` says what the derivative reads, so that memory is spent knowingly; y is the output, x the
// input. A formula with integer() also takes integers, in 64 bits. A formula with gradient(dy, x or
// y) multiplies its derivative by dy in an order in which no product leaves T's range too early.
#pragma once

#include <halftone/core/dual.h>
#include <halftone/core/language.h>
#include <halftone/core/math.h>
#include <halftone/core/op_info.h>

namespace halftone {

/// The tensor that backward of a unary operation needs.
enum class Saves : uint8_t { nothing, input, output };
/// The inputs that tests may draw, for functions not defined (or differentiable) everywhere.
struct Domain {
  double low = -3, high = 3;
};

namespace formula {

struct Relu {  // max(x, 0); NaN passes with its gradient, the derivative at 0 is 0
  static constexpr OpInfo info{"relu", CastClass::as_is, cast_reason::chooses};
  static constexpr Saves saves = Saves::output;
  template <class T> HT_HD T forward(T x) const { return x < T(0) ? T(0) : x; }
  template <class T> HT_HD T derivative(T, T y) const { return y <= T(0) ? T(0) : T(1); }
  HT_HD int64_t integer(int64_t x) const { return x < 0 ? 0 : x; }
};
struct LeakyRelu {  // x if positive, else slope * x (Maas et al. 2013)
  static constexpr OpInfo info{"leaky_relu", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::input;
  double slope = 0.01;
  template <class T> HT_HD T forward(T x) const { return x > T(0) ? x : T(slope) * x; }
  template <class T> HT_HD T derivative(T x, T) const { return x > T(0) ? T(1) : T(slope); }
};
struct Gelu {  // x * Phi(x), tanh form of Phi (Hendrycks & Gimpel 2016): (1 + tanh(u)) / 2
  static constexpr OpInfo info{"gelu", CastClass::as_is, cast_reason::bounded};
  static constexpr Saves saves = Saves::input;
  /// Phi and 1 - Phi as sigmoids of 2 u and -2 u: one exp, and no tail is lost in a difference.
  template <class T> struct Halves { T phi, rest; };
  template <class T> HT_HD static Halves<T> halves_of(T x) {
    const T twice_u = T(1.59576912160573073) * (x + T(0.044715) * x * x * x);
    const T e = math::exp_below(-math::abs(twice_u)), large = T(1) / (T(1) + e), small = e * large;
    return {twice_u < T(0) ? small : large, twice_u < T(0) ? large : small};
  }
  template <class T> HT_HD T forward(T x) const { return x * halves_of(x).phi; }
  template <class T> HT_HD T derivative(T x, T) const {
    const Halves<T> h = halves_of(x);
    const T twice_du = T(1.59576912160573073) * (T(1) + T(0.134145) * x * x);
    const T bend = h.phi * h.rest;  // if it is 0, x and the square of x may be infinite
    return bend == T(0) ? h.phi : h.phi + x * bend * twice_du;
  }
};
struct GeluErf {  // x * Phi(x), exact Phi
  static constexpr OpInfo info{"gelu_erf", CastClass::as_is, cast_reason::bounded};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD static T phi(T x) {
    return T(0.5) * (T(1) + math::erf(x * T(0.70710678118654752)));
  }
  template <class T> HT_HD T forward(T x) const { return x * phi(x); }
  template <class T> HT_HD T derivative(T x, T) const {
    return phi(x) + x * T(0.39894228040143268) * math::exp(T(-0.5) * x * x);
  }
};
struct Erf {
  static constexpr OpInfo info{"erf", CastClass::as_is, cast_reason::bounded};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD T forward(T x) const { return math::erf(x); }
  template <class T> HT_HD T derivative(T x, T) const {
    return T(1.1283791670955126) * math::exp(-x * x);
  }
};
struct Sigmoid {
  static constexpr OpInfo info{"sigmoid", CastClass::as_is, cast_reason::bounded};
  static constexpr Saves saves = Saves::output;
  template <class T> HT_HD static T of(T x) { return math::sigmoid(x); }
  template <class T> HT_HD T forward(T x) const { return of(x); }
  template <class T> HT_HD T derivative(T, T y) const { return y * (T(1) - y); }
};
struct LogSigmoid {  // min(x, 0) - log(1 + exp(-|x|))
  static constexpr OpInfo info{"logsigmoid", CastClass::as_is, cast_reason::bounded};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD T forward(T x) const {
    return (x < T(0) ? x : T(0)) - math::log1p(math::exp(-math::abs(x)));
  }
  template <class T> HT_HD T derivative(T x, T) const { return Sigmoid::of(-x); }
};
struct Silu {  // x * sigmoid(x), also called swish
  static constexpr OpInfo info{"silu", CastClass::as_is, cast_reason::bounded};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD T forward(T x) const { return x / (T(1) + math::exp(-x)); }
  template <class T> HT_HD T derivative(T x, T) const {
    const T s = Sigmoid::of(x);
    return s * (T(1) + x * (T(1) - s));
  }
};
struct Tanh {
  static constexpr OpInfo info{"tanh", CastClass::as_is, cast_reason::bounded};
  static constexpr Saves saves = Saves::output;
  template <class T> HT_HD T forward(T x) const { return math::tanh(x); }
  template <class T> HT_HD T derivative(T, T y) const { return T(1) - y * y; }
};
struct Softplus {  // log(1 + exp(beta x)) / beta, and x itself beyond `threshold`, as PyTorch's
  static constexpr OpInfo info{"softplus", CastClass::full_precision, cast_reason::exp_inside};
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
  static constexpr OpInfo info{"exp", CastClass::full_precision, cast_reason::exponential};
  static constexpr Saves saves = Saves::output;
  template <class T> HT_HD T forward(T x) const { return math::exp(x); }
  template <class T> HT_HD T derivative(T, T y) const { return y; }
};
struct Expm1 {
  static constexpr OpInfo info{"expm1", CastClass::full_precision, cast_reason::exponential};
  static constexpr Saves saves = Saves::output;
  template <class T> HT_HD T forward(T x) const { return math::expm1(x); }
  template <class T> HT_HD T derivative(T, T y) const { return y + T(1); }
};
struct Log {
  static constexpr OpInfo info{"log", CastClass::full_precision, cast_reason::steep};
  static constexpr Saves saves = Saves::input;
  static constexpr Domain domain{0.1, 4};
  template <class T> HT_HD T forward(T x) const { return math::log(x); }
  template <class T> HT_HD T derivative(T x, T) const { return T(1) / x; }
  template <class T> HT_HD T gradient(T dy, T x) const { return dy / x; }
};
struct Log2 {
  static constexpr OpInfo info{"log2", CastClass::full_precision, cast_reason::steep};
  static constexpr Saves saves = Saves::input;
  static constexpr Domain domain{0.1, 4};
  template <class T> HT_HD T forward(T x) const { return math::log2(x); }
  template <class T> HT_HD T derivative(T x, T) const { return gradient(T(1), x); }
  template <class T> HT_HD T gradient(T dy, T x) const { return T(1.4426950408889634) * dy / x; }
};
struct Log10 {
  static constexpr OpInfo info{"log10", CastClass::full_precision, cast_reason::steep};
  static constexpr Saves saves = Saves::input;
  static constexpr Domain domain{0.1, 4};
  template <class T> HT_HD T forward(T x) const { return math::log10(x); }
  template <class T> HT_HD T derivative(T x, T) const { return gradient(T(1), x); }
  template <class T> HT_HD T gradient(T dy, T x) const { return T(0.43429448190325183) * dy / x; }
};
struct Log1p {
  static constexpr OpInfo info{"log1p", CastClass::full_precision, cast_reason::steep};
  static constexpr Saves saves = Saves::input;
  static constexpr Domain domain{-0.8, 4};
  template <class T> HT_HD T forward(T x) const { return math::log1p(x); }
  template <class T> HT_HD T derivative(T x, T) const { return T(1) / (T(1) + x); }
};
struct Sqrt {
  static constexpr OpInfo info{"sqrt", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::output;
  static constexpr Domain domain{0.1, 4};
  template <class T> HT_HD T forward(T x) const { return math::sqrt(x); }
  template <class T> HT_HD T derivative(T, T y) const { return T(0.5) / y; }
};
struct Rsqrt {
  static constexpr OpInfo info{"rsqrt", CastClass::full_precision, cast_reason::reciprocal};
  static constexpr Saves saves = Saves::output;
  static constexpr Domain domain{0.1, 4};
  template <class T> HT_HD T forward(T x) const { return T(1) / math::sqrt(x); }
  template <class T> HT_HD T derivative(T, T y) const { return gradient(T(1), y); }
  template <class T> HT_HD T gradient(T dy, T y) const { return T(-0.5) * dy * y * y * y; }
};
struct Reciprocal {
  static constexpr OpInfo info{"reciprocal", CastClass::full_precision, cast_reason::reciprocal};
  static constexpr Saves saves = Saves::output;
  static constexpr Domain domain{0.2, 4};
  template <class T> HT_HD T forward(T x) const { return T(1) / x; }
  template <class T> HT_HD T derivative(T, T y) const { return -y * y; }
  template <class T> HT_HD T gradient(T dy, T y) const { return -(dy * y) * y; }
};
struct PowScalar {  // x ^ exponent; the derivative at exponent 0 is 0, also if x is 0. Integers
                    // have whole exponents of 0 or more
  static constexpr OpInfo info{"pow", CastClass::full_precision, cast_reason::powers};
  static constexpr Saves saves = Saves::input;
  static constexpr Domain domain{0.1, 3};
  double exponent = 3;
  template <class T> HT_HD T forward(T x) const { return power(x, exponent); }
  template <class T> HT_HD T derivative(T x, T) const {
    return exponent == 0 ? T(0) : T(exponent) * power(x, exponent - 1);
  }
  HT_HD int64_t integer(int64_t x) const { return math::wrapped_power(x, int64_t(exponent)); }
  /// Returns x^(e + r) = x^e (1 + r log x), with e the exponent rounded to T and r the remainder.
  template <class T> HT_HD static T power(T x, double exponent) {
    const T rounded = T(exponent), rest = T(exponent - double(rounded)), y = math::pow(x, rounded);
    if (rest == T(0)) return y;  // the same in all of a loop: compilers make two loops of it
    const bool ordinary = x > T(0) && y > T(0) && y - y == T(0) && x - x == T(0);
    return ordinary ? y + y * (rest * math::log(x)) : y;
  }
};
struct Square {
  static constexpr OpInfo info{"square", CastClass::full_precision, cast_reason::powers};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD T forward(T x) const { return x * x; }
  template <class T> HT_HD T derivative(T x, T) const { return T(2) * x; }
  template <class T> HT_HD T gradient(T dy, T x) const { return T(2) * (dy * x); }
  HT_HD int64_t integer(int64_t x) const { return math::wrapped_product(x, x); }
};
struct Abs {  // the derivative at 0 is 0
  static constexpr OpInfo info{"abs", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD T forward(T x) const { return math::abs(x); }
  template <class T> HT_HD T derivative(T x, T) const {
    return x > T(0) ? T(1) : (x < T(0) ? T(-1) : T(0));
  }
  HT_HD int64_t integer(int64_t x) const { return x < 0 ? math::wrapped_product(x, -1) : x; }
};
struct Neg {
  static constexpr OpInfo info{"neg", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::nothing;
  template <class T> HT_HD T forward(T x) const { return -x; }
  template <class T> HT_HD T derivative(T, T) const { return T(-1); }
  HT_HD int64_t integer(int64_t x) const { return math::wrapped_product(x, -1); }
};
struct Clamp {  // to [low, high], one of them may be infinite (absent); NaN passes; the derivative
                // at the bounds is 0, as PyTorch's
  static constexpr OpInfo info{"clamp", CastClass::as_is, cast_reason::chooses};
  static constexpr Saves saves = Saves::input;
  double low = -1.05, high = 1.55;
  template <class T> HT_HD T forward(T x) const {
    return x < T(low) ? T(low) : (x > T(high) ? T(high) : x);
  }
  template <class T> HT_HD T derivative(T x, T) const {
    const bool above = x > T(low) || low < -0x1.fffffffffffffp1023;
    const bool below = x < T(high) || high > 0x1.fffffffffffffp1023;
    return above && below && x == x ? T(1) : T(0);
  }
  HT_HD static int64_t whole(double bound) {
    constexpr int64_t most = 0x7fffffffffffffff;
    return bound >= 0x1p63 ? most : (bound < -0x1p63 ? -most - 1 : int64_t(bound));
  }
  HT_HD int64_t integer(int64_t x) const {
    return x < whole(low) ? whole(low) : (x > whole(high) ? whole(high) : x);
  }
};
struct Affine {  // scale * x + shift: arithmetic of a tensor with numbers
  static constexpr OpInfo info{"affine", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::nothing;
  double scale = 1.5, shift = 0.25;
  template <class T> HT_HD T forward(T x) const { return T(scale) * x + T(shift); }
  template <class T> HT_HD T derivative(T, T) const { return T(scale); }
  HT_HD int64_t integer(int64_t x) const {  // scale and shift are whole numbers
    return math::wrapped_sum(math::wrapped_product(int64_t(scale), x), int64_t(shift));
  }
};
struct Sin {
  static constexpr OpInfo info{"sin", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD T forward(T x) const { return math::sin(x); }
  template <class T> HT_HD T derivative(T x, T) const { return math::cos(x); }
};
struct Cos {
  static constexpr OpInfo info{"cos", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD T forward(T x) const { return math::cos(x); }
  template <class T> HT_HD T derivative(T x, T) const { return -math::sin(x); }
};

// --- steps: constant between their jumps, so their derivative is 0
struct Sign {  // -1, 0 or 1; NaN gives 0, as PyTorch's
  static constexpr OpInfo info{"sign", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::nothing;
  template <class T> HT_HD T forward(T x) const {
    return x > T(0) ? T(1) : (x < T(0) ? T(-1) : T(0));
  }
  template <class T> HT_HD T derivative(T, T) const { return T(0); }
  HT_HD int64_t integer(int64_t x) const { return x > 0 ? 1 : (x < 0 ? -1 : 0); }
};
struct Floor {
  static constexpr OpInfo info{"floor", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::nothing;
  template <class T> HT_HD T forward(T x) const { return math::floor(x); }
  template <class T> HT_HD T derivative(T, T) const { return T(0); }
  HT_HD int64_t integer(int64_t x) const { return x; }
};
struct Ceil {
  static constexpr OpInfo info{"ceil", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::nothing;
  template <class T> HT_HD T forward(T x) const { return math::ceil(x); }
  template <class T> HT_HD T derivative(T, T) const { return T(0); }
  HT_HD int64_t integer(int64_t x) const { return x; }
};
struct Round {  // halves to the even neighbor
  static constexpr OpInfo info{"round", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::nothing;
  template <class T> HT_HD T forward(T x) const { return math::round_even(x); }
  template <class T> HT_HD T derivative(T, T) const { return T(0); }
  HT_HD int64_t integer(int64_t x) const { return x; }
};

// --- more activations
struct Elu {  // scale times: x if positive, else alpha (exp(x) - 1) (Clevert et al. 2016)
  static constexpr OpInfo info{"elu", CastClass::as_is, cast_reason::bounded};
  static constexpr Saves saves = Saves::input;
  double alpha = 1, scale = 1;
  template <class T> HT_HD T forward(T x) const {
    return T(scale) * (x > T(0) ? x : T(alpha) * math::expm1(x));
  }
  template <class T> HT_HD T derivative(T x, T) const {
    return T(scale) * (x > T(0) ? T(1) : T(alpha) * math::exp(x));
  }
};
struct Mish {  // x tanh(log(1 + exp(x))) (Misra 2019); the tanh is n / (n + 2), n = e^2x + 2 e^x
  static constexpr OpInfo info{"mish", CastClass::as_is, cast_reason::bounded};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD static T n_of(T x) {
    const T e = math::exp(x);
    return e * e + T(2) * e;
  }
  template <class T> HT_HD T forward(T x) const {
    const T n = n_of(x);
    return x > T(20) ? x : x * (n / (n + T(2)));
  }
  template <class T> HT_HD T derivative(T x, T) const {
    const T n = n_of(x), share = n / (n + T(2));
    const T slope = T(4) * (n + T(1)) / ((n + T(2)) * (n + T(2)));  // 1 - tanh^2
    return x > T(20) ? T(1) : share + x * slope * Sigmoid::of(x);
  }
};
struct Hardswish {  // x min(max(x + 3, 0), 6) / 6 (Howard et al. 2019)
  static constexpr OpInfo info{"hardswish", CastClass::as_is, cast_reason::bounded};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD T forward(T x) const {
    return x <= T(-3) ? x * T(0) : (x < T(3) ? x * (x + T(3)) / T(6) : x);
  }
  template <class T> HT_HD T derivative(T x, T) const {
    return x <= T(-3) ? T(0) : (x < T(3) ? x / T(3) + T(0.5) : T(1));
  }
};

// --- trigonometric and hyperbolic functions and their inverses, and rarer ones
struct Tan {
  static constexpr OpInfo info{"tan", CastClass::full_precision, cast_reason::steep};
  static constexpr Saves saves = Saves::output;
  static constexpr Domain domain{-1.2, 1.2};
  template <class T> HT_HD T forward(T x) const { return math::tan(x); }
  template <class T> HT_HD T derivative(T, T y) const { return T(1) + y * y; }
};
struct Asin {
  static constexpr OpInfo info{"asin", CastClass::full_precision, cast_reason::steep};
  static constexpr Saves saves = Saves::input;
  static constexpr Domain domain{-0.9, 0.9};
  template <class T> HT_HD T forward(T x) const { return math::asin(x); }
  template <class T> HT_HD T derivative(T x, T) const {
    return T(1) / math::sqrt((T(1) - x) * (T(1) + x));
  }
};
struct Acos {
  static constexpr OpInfo info{"acos", CastClass::full_precision, cast_reason::steep};
  static constexpr Saves saves = Saves::input;
  static constexpr Domain domain{-0.9, 0.9};
  template <class T> HT_HD T forward(T x) const { return math::acos(x); }
  template <class T> HT_HD T derivative(T x, T) const { return -Asin{}.derivative(x, x); }
};
struct Atan {
  static constexpr OpInfo info{"atan", CastClass::as_is, cast_reason::bounded};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD T forward(T x) const { return math::atan(x); }
  template <class T> HT_HD T derivative(T x, T) const { return T(1) / (T(1) + x * x); }
};
struct Sinh {
  static constexpr OpInfo info{"sinh", CastClass::full_precision, cast_reason::exponential};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD T forward(T x) const { return math::sinh(x); }
  template <class T> HT_HD T derivative(T x, T) const { return math::cosh(x); }
};
struct Cosh {
  static constexpr OpInfo info{"cosh", CastClass::full_precision, cast_reason::exponential};
  static constexpr Saves saves = Saves::input;
  template <class T> HT_HD T forward(T x) const { return math::cosh(x); }
  template <class T> HT_HD T derivative(T x, T) const { return math::sinh(x); }
};
struct Exp2 {  // unlike exp on no casting list
  static constexpr OpInfo info{"exp2", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::output;
  template <class T> HT_HD T forward(T x) const { return math::exp2(x); }
  template <class T> HT_HD T derivative(T, T y) const { return y * T(0.69314718055994531); }
};
struct Erfinv {
  static constexpr OpInfo info{"erfinv", CastClass::full_precision, cast_reason::steep};
  static constexpr Saves saves = Saves::output;
  static constexpr Domain domain{-0.9, 0.9};
  template <class T> HT_HD T forward(T x) const { return math::erfinv(x); }
  template <class T> HT_HD T derivative(T, T y) const {
    return T(0.88622692545275801) * math::exp(y * y);
  }
};
struct Logit {  // log(x / (1 - x)); an eps that is not negative limits x to [eps, 1 - eps]
  static constexpr OpInfo info{"logit", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::input;
  static constexpr Domain domain{0.1, 0.9};
  double eps = -1;
  template <class T> HT_HD T forward(T x) const {
    const T high = T(1) - T(eps);
    if (eps >= 0) x = x < T(eps) ? T(eps) : (x > high ? high : x);
    const bool middle = x > T(0.25) && x < T(0.75);  // here the quotient is near 1
    return middle ? math::log1p((x + x - T(1)) / (T(1) - x)) : math::log(x / (T(1) - x));
  }
  template <class T> HT_HD T derivative(T x, T) const { return gradient(T(1), x); }
  template <class T> HT_HD T gradient(T dy, T x) const {
    if (eps >= 0 && (x < T(eps) || x > T(1) - T(eps))) return T(0);
    return x < T(0) || x > T(1) ? T(std::numeric_limits<double>::quiet_NaN())
                                : dy / (x * (T(1) - x));
  }
};
struct Trunc {
  static constexpr OpInfo info{"trunc", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::nothing;
  template <class T> HT_HD T forward(T x) const { return math::trunc(x); }
  template <class T> HT_HD T derivative(T, T) const { return T(0); }
  HT_HD int64_t integer(int64_t x) const { return x; }
};
struct Frac {  // x - trunc(x)
  static constexpr OpInfo info{"frac", CastClass::as_is, cast_reason::rounds_once};
  static constexpr Saves saves = Saves::nothing;
  template <class T> HT_HD T forward(T x) const { return x - math::trunc(x); }
  template <class T> HT_HD T derivative(T, T) const { return T(1); }
};

}  // namespace formula

using UnaryFormulas =
    TypeList<formula::Relu, formula::LeakyRelu, formula::Gelu, formula::GeluErf, formula::Erf,
             formula::Sigmoid, formula::LogSigmoid, formula::Silu, formula::Tanh, formula::Softplus,
             formula::Exp, formula::Expm1, formula::Log, formula::Log2, formula::Log10,
             formula::Log1p, formula::Sqrt, formula::Rsqrt, formula::Reciprocal, formula::PowScalar,
             formula::Square, formula::Abs, formula::Neg, formula::Clamp, formula::Affine,
             formula::Sin, formula::Cos, formula::Sign, formula::Floor, formula::Ceil,
             formula::Round, formula::Elu, formula::Mish, formula::Hardswish, formula::Tan,
             formula::Asin, formula::Acos, formula::Atan, formula::Sinh, formula::Cosh,
             formula::Exp2, formula::Erfinv, formula::Logit, formula::Trunc, formula::Frac>;

}  // namespace halftone
