// Dual numbers: a value and its derivative by one variable. A formula computed with Dual<double> in
// place of double gives its derivative as well, and with Dual<Dual<double>> the derivative of that:
// this is where the higher derivatives of the formulas come from (core/formulas.h).
#pragma once

#include <halftone/core/math.h>

namespace halftone {

template <class T> struct Dual {
  T value{}, slope{};

  Dual() = default;
  HT_HD explicit Dual(double constant) : value(constant), slope(0) {}
  HT_HD Dual(T v, T s) : value(v), slope(s) {}
  HT_HD explicit operator double() const { return double(value); }

  // Comparisons look at values: a formula takes the branch that it takes for doubles.
  HT_HD friend bool operator==(Dual a, Dual b) { return a.value == b.value; }
  HT_HD friend bool operator!=(Dual a, Dual b) { return a.value != b.value; }
  HT_HD friend bool operator<(Dual a, Dual b) { return a.value < b.value; }
  HT_HD friend bool operator>(Dual a, Dual b) { return a.value > b.value; }
  HT_HD friend bool operator<=(Dual a, Dual b) { return a.value <= b.value; }
  HT_HD friend bool operator>=(Dual a, Dual b) { return a.value >= b.value; }

  HT_HD friend Dual operator-(Dual a) { return {-a.value, -a.slope}; }
  HT_HD friend Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.slope + b.slope}; }
  HT_HD friend Dual operator-(Dual a, Dual b) { return {a.value - b.value, a.slope - b.slope}; }
  HT_HD friend Dual operator*(Dual a, Dual b) {
    return {a.value * b.value, a.slope * b.value + a.value * b.slope};
  }
  HT_HD friend Dual operator/(Dual a, Dual b) {
    const T quotient = a.value / b.value;
    return {quotient, (a.slope - quotient * b.slope) / b.value};
  }
  HT_HD Dual& operator+=(Dual b) { return *this = *this + b; }
  HT_HD Dual& operator-=(Dual b) { return *this = *this - b; }
};

namespace math {

// The chain rule of every function that formulas call.

template <class T> HT_HD Dual<T> sqrt(Dual<T> x) {
  const T y = sqrt(x.value);
  return {y, x.slope / (y + y)};
}
template <class T> HT_HD Dual<T> abs(Dual<T> x) { return x < Dual<T>(0) ? -x : x; }
template <class T> HT_HD Dual<T> exp(Dual<T> x) {
  const T y = exp(x.value);
  return {y, x.slope * y};
}
template <class T> HT_HD Dual<T> exp_below(Dual<T> x) { return exp(x); }
template <class T> HT_HD Dual<T> expm1(Dual<T> x) {
  return {expm1(x.value), x.slope * exp(x.value)};
}
template <class T> HT_HD Dual<T> log(Dual<T> x) { return {log(x.value), x.slope / x.value}; }
template <class T> HT_HD Dual<T> log1p(Dual<T> x) {
  return {log1p(x.value), x.slope / (T(1) + x.value)};
}
template <class T> HT_HD Dual<T> sigmoid(Dual<T> x) {
  const T y = sigmoid(x.value);
  return {y, x.slope * y * (T(1) - y)};
}
template <class T> HT_HD Dual<T> tanh(Dual<T> x) {
  const T y = tanh(x.value);
  return {y, x.slope * (T(1) - y * y)};
}
template <class T> HT_HD Dual<T> erf(Dual<T> x) {
  return {erf(x.value), x.slope * T(1.1283791670955126) * exp(-x.value * x.value)};
}
template <class T> HT_HD Dual<T> cos(Dual<T> x);
template <class T> HT_HD Dual<T> sin(Dual<T> x) { return {sin(x.value), x.slope * cos(x.value)}; }
template <class T> HT_HD Dual<T> cos(Dual<T> x) { return {cos(x.value), -x.slope * sin(x.value)}; }
template <class T> HT_HD Dual<T> cosh(Dual<T> x);
template <class T> HT_HD Dual<T> sinh(Dual<T> x) {
  return {sinh(x.value), x.slope * cosh(x.value)};
}
template <class T> HT_HD Dual<T> cosh(Dual<T> x) {
  return {cosh(x.value), x.slope * sinh(x.value)};
}
/// The slope is x's part plus y's part. x's part is 0 where y is 0, and y's part is 0 where y's
/// slope is 0: without these rules, 0 times infinity would make them NaN.
template <class T> HT_HD Dual<T> pow(Dual<T> x, Dual<T> y) {
  const T power = pow(x.value, y.value);
  const T by_base = y.value == T(0) ? T(0) : x.slope * y.value * pow(x.value, y.value - T(1));
  const T by_exponent = y.slope == T(0) ? T(0) : y.slope * power * log(x.value);
  return {power, by_base + by_exponent};
}

// Step functions, whose slope is 0 between their jumps, and fmod.

template <class T> HT_HD Dual<T> floor(Dual<T> x) { return {floor(x.value), T(0)}; }
template <class T> HT_HD Dual<T> trunc(Dual<T> x) { return {trunc(x.value), T(0)}; }
template <class T> HT_HD Dual<T> copysign(Dual<T> magnitude, Dual<T> sign) {
  return {copysign(magnitude.value, sign.value), T(0)};
}
template <class T> HT_HD Dual<T> fmod(Dual<T> x, Dual<T> y) {
  const T rest = fmod(x.value, y.value);
  return {rest, x.slope - (x.value - rest) / y.value * y.slope};
}

}  // namespace math
}  // namespace halftone
