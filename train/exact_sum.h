// A sum that depends on its terms but not on their order, so that metrics have the same bits
// however batches are shared among processes.
#pragma once

#include <cmath>

namespace halftone::train {

/// A double and its rounding error, about 106 bits together. Sums of the same terms in two orders
/// round to the same double, unless a bit beyond those 106 decides. The algorithms are the
/// error-free sum of Knuth (1969) and the error-free product of Dekker (1971). An infinite or NaN
/// sum stays infinite or NaN.
class ExactSum {
 public:
  constexpr ExactSum() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a double is an exact sum
  constexpr ExactSum(double value, double rest = 0) : value_(value), rest_(rest) {}
  // NOLINTNEXTLINE(google-explicit-constructor): and converts back to a double
  constexpr operator double() const { return value_; }
  constexpr double rest() const { return rest_; }

  ExactSum& operator+=(const ExactSum& x) {
    const double sum = value_ + x.value_, from = sum - value_;
    const double lost = (value_ - (sum - from)) + (x.value_ - from);
    return *this = rounded(sum, lost + rest_ + x.rest_);
  }

  static ExactSum product(double a, double b) { return rounded(a * b, std::fma(a, b, -(a * b))); }
  ExactSum squared() const {
    const ExactSum high = product(value_, value_);
    return rounded(high, high.rest() + 2 * value_ * rest_);
  }
  ExactSum operator/(double x) const {
    const double high = value_ / x;
    return rounded(high, (std::fma(-high, x, value_) + rest_) / x);
  }
  ExactSum operator-() const { return {-value_, -rest_}; }

 private:
  static ExactSum rounded(double value, double rest) {
    const double sum = value + rest;
    return std::isfinite(sum) ? ExactSum(sum, rest - (sum - value)) : ExactSum(value, 0);
  }

  double value_ = 0, rest_ = 0;
};

}  // namespace halftone::train
