// Series after an exact reduction of the argument. Compiled without contraction, like all of the
// library but the fast SIMD kernels.
#include <halftone/core/math.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

namespace halftone::elementary {

namespace {
constexpr double infinity = std::numeric_limits<double>::infinity(),
                 not_a_number = std::numeric_limits<double>::quiet_NaN();

/// An unevaluated sum; low is below half a unit in the last place of high.
struct Sum {
  double high, low;
};
/// For |a| >= |b|, or either 0.
Sum exact_sum(double a, double b) {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}
Sum exact_product(double a, double b) {
  const double product = a * b;
  return {product, std::fma(a, b, -product)};
}

constexpr double ln2_high = 0x1.62e42fefa38p-1,
                 ln2_low = 0x1.ef35793c7673p-45;  // 42 bits, the rest
constexpr Sum ln2{0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};
constexpr Sum pi{0x1.921fb54442d18p+1, 0x1.1a62633145c07p-53};
constexpr Sum log2_of_e{0x1.71547652b82fep+0, 0x1.777d0ffda0d24p-56};
constexpr Sum log10_of_e{0x1.bcb7b1526e50ep-2, 0x1.95355baaafad3p-57};

/// Horner's scheme; the first coefficient belongs to the highest power.
template <std::size_t count>
double polynomial(const std::array<double, count>& coefficients, double x) {
  double p = coefficients[0];
  for (std::size_t k = 1; k < count; ++k) p = p * x + coefficients[k];
  return p;
}
/// 1 / n! for n = first, first - step, ..., last; with alternating signs if step is 2.
template <int first, int last, int step> constexpr auto inverse_factorials() {
  std::array<double, std::size_t((first - last) / step + 1)> result{};
  for (std::size_t i = 0; i < result.size(); ++i) {
    double factorial = 1;
    for (int k = 2; k <= first - int(i) * step; ++k) factorial *= k;
    const bool negative = step == 2 && (first - int(i) * step - last) / 2 % 2 == 0;
    result[i] = (negative ? -1 : 1) / factorial;
  }
  return result;
}

/// Returns exp(x + low) for a small low; overflows to infinity, underflows to subnormals and 0.
double exp_of_sum(double x, double low) {
  if (x != x) return x;
  if (x > 710) return infinity;
  if (x < -746) return 0;
  const double n = std::rint(x * log2_of_e.high);
  const double r = (x - n * ln2_high) - n * ln2_low + low;  // |r| <= ln 2 / 2
  constexpr auto taylor = inverse_factorials<13, 2, 1>();
  return std::ldexp(1 + (r + r * r * polynomial(taylor, r)), int(n));
}

/// atanh(s) / s - 1 for |s| < 0.1768
double atanh_tail(double s) {
  constexpr std::array series{1.0 / 25, 1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15,
                              1.0 / 13, 1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
  return s * s * polynomial(series, s * s);
}

/// x = m 2^k with m in [sqrt(1/2), sqrt(2)), for a finite x > 0.
struct Split {
  double m;
  int k;
};
Split split(double x) {
  int k;
  double m = std::frexp(x, &k);
  if (m < 0.70710678118654752) m *= 2, --k;
  return {m, k};
}

/// Returns log(m) for m in [sqrt(1/2), sqrt(2)): 2 atanh((m - 1) / (m + 1)).
Sum log_of_fraction(double m) {
  const double f = m - 1;  // exact
  const Sum d = exact_sum(2, f);
  const double s = f / d.high, rest = (std::fma(-s, d.high, f) - s * d.low) / d.high;
  return exact_sum(2 * s, 2 * rest + 2 * s * atanh_tail(s));
}
Sum log_of(const Split& x) {
  const Sum fraction = log_of_fraction(x.m);
  const Sum whole = exact_sum(x.k * ln2_high, fraction.high);  // k ln2_high is 0 or the larger
  return exact_sum(whole.high, whole.low + (fraction.low + x.k * ln2_low));
}
/// The logarithms outside of (0, infinity).
double log_at_the_edge(double x) { return x == 0 ? -infinity : (x < 0 ? not_a_number : x); }
bool at_the_edge(double x) { return !(x > 0 && x < infinity); }

/// Returns log(x) to a base: `per_e` is the base's logarithm of e, `per_2` that of 2.
double log_to_base(double x, const Sum& per_e) {
  if (at_the_edge(x)) return log_at_the_edge(x);
  const Sum log = log_of(split(x)), product = exact_product(log.high, per_e.high);
  return product.high + (product.low + (log.high * per_e.low + log.low * per_e.high));
}

// 2 / pi in binary, after a word of zeros: bit i of the fraction is bit 64 + i - 1 of the words.
constexpr std::array<uint64_t, 21> two_over_pi{
    0x0000000000000000, 0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041,
    0xfe5163abdebbc561, 0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e,
    0xe88235f52ebb4484, 0xe99c7026b45f7e41, 0x3991d639835339f4, 0x9c845f8bbdf9283b,
    0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7, 0x4f463f669e5fea2d,
    0x7527bac7ebe5f17b, 0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab,
    0xf0cfbc209af4361d};
uint64_t bits_from(int first) {
  const auto word = std::size_t(first / 64);
  const int skipped = first % 64;
  return skipped == 0 ? two_over_pi[word]
                      : two_over_pi[word] << skipped | two_over_pi[word + 1] >> (64 - skipped);
}

/// x = quadrant pi / 2 + angle + low, |angle| <= pi / 4, modulo 2 pi.
struct Angle {
  int quadrant;
  double angle, low;
};
/// After Payne and Hanek 1983: x is m 2^e with 53 bits of m, so of 2 / pi only 192 bits decide x 2
/// / pi modulo 4: those before are multiples of 4, those after are too small.
Angle reduced(double x) {
  if (std::abs(x) <= 0.78539816339744828) return {0, x, 0};
  using Wide = unsigned __int128;
  int e;
  const auto m = uint64_t(std::ldexp(std::frexp(std::abs(x), &e), 53));
  const int first = e - 53 - 2 + 64;  // e - 53 is the exponent of m; at least 9
  const uint64_t high = bits_from(first), middle = bits_from(first + 64),
                 low = bits_from(first + 128);
  const Wide sum = Wide(m) * middle + (Wide(m) * low >> 64);
  const Wide product =
      (Wide(m * high) << 64) + sum;  // modulo 2^128: its upper 2 bits are x 2 / pi mod 4
  int quadrant = int(product >> 126);
  auto fraction = __int128(product << 2);  // of 2^128, as a signed number: in [-1/2, 1/2)
  if (fraction < 0) ++quadrant;
  const double turn = double(fraction), half_pi = 0.5 * pi.high;
  double angle = turn * 0x1p-128 * half_pi;
  double rest = std::fma(turn * 0x1p-128, half_pi, -angle) + turn * 0x1p-128 * (0.5 * pi.low) +
                double(fraction - __int128(turn)) * 0x1p-128 * half_pi;
  if (x < 0) quadrant = -quadrant, angle = -angle, rest = -rest;
  return {quadrant & 3, angle, rest};
}
double sin_of_small(double r) {
  constexpr auto taylor = inverse_factorials<19, 3, 2>();
  return r + r * (r * r * polynomial(taylor, r * r));
}
double cos_of_small(double r) {
  constexpr auto taylor = inverse_factorials<20, 4, 2>();  // -1 / 4!, 1 / 6!, ...
  const double t = r * r, half = 0.5 * t, first = 1 - half;
  // 1 - first - half is the rounding error of `first`.
  return first + ((1 - first - half) - t * t * polynomial(taylor, t));
}
double sin_in(int quadrant, double angle) {
  const double value = quadrant % 2 == 0 ? sin_of_small(angle) : cos_of_small(angle);
  return quadrant < 2 ? value : -value;
}

constexpr double two_over_sqrt_pi = 0x1.20dd750429b6dp+0;
/// erf(x) / (2 / sqrt(pi) x) - 1 for |x| < 1: Taylor's series.
double erf_tail(double x) {
  constexpr auto taylor = [] {  // (-1)^n / (n! (2 n + 1))
    auto result = inverse_factorials<22, 1, 1>();
    for (int n = 22; n >= 1; --n)
      result[std::size_t(22 - n)] *= (n % 2 == 0 ? 1.0 : -1.0) / (2 * n + 1);
    return result;
  }();
  const double t = x * x;
  return t * polynomial(taylor, t);
}
double erf_near_zero(double x) { return two_over_sqrt_pi * (x + x * erf_tail(x)); }
/// exp(x^2) erfc(x) for x from 1 to 6, as a polynomial in (1 / (1 + x) - 9 / 28) 5.6, which is in
/// [-1, 1]: a Chebyshev interpolation of degree 20 in 60 digits, whose error is 2e-19.
constexpr std::array scaled_erfc{
    0x1.ca33d07c9f1d3p-42,  -0x1.034058bc85fc4p-42, -0x1.6caa6da380c62p-38, 0x1.22ba64e3abd12p-36,
    -0x1.b71b3252e0ea7p-37, -0x1.d5bebbbb0655fp-34, 0x1.49d326050a949p-31,  -0x1.77631d47d2604p-30,
    -0x1.8efa2c29d005fp-30, 0x1.95b8cd89f42cfp-26,  -0x1.5920c541aef11p-24, 0x1.42f92e05acd0ep-30,
    0x1.44864fecdf5c9p-20,  -0x1.476bebef839f0p-18, -0x1.6024549f58ef7p-19, 0x1.c400e05e98692p-14,
    -0x1.44c1c4ed12354p-12, -0x1.1c79ce71722c1p-9,  0x1.0dc842a114c33p-6,   0x1.5b1398d137acep-3,
    0x1.f3c36b781d663p-3};
/// 1 - erf(x) for x in [1, 6].
double erfc_far(double x) {
  const double v = (1 / (1 + x) - 9.0 / 28) * 5.6;
  const Sum square = exact_product(x, x);
  return exp_of_sum(-square.high, -square.low) * polynomial(scaled_erfc, v);
}
}  // namespace

double exp(double x) { return exp_of_sum(x, 0); }

double expm1(double x) {
  if (x == 0) return x;  // keeps the sign
  if (!(std::abs(x) < 0.5)) return exp(x) - 1;
  constexpr auto taylor = inverse_factorials<17, 2, 1>();
  return x + x * x * polynomial(taylor, x);
}

double log(double x) {
  if (at_the_edge(x)) return log_at_the_edge(x);
  return log_of(split(x)).high;
}

double log1p(double x) {
  if (x <= -1 || !(x < infinity)) return log_at_the_edge(x == -1 ? 0 : x);
  if (std::abs(x) < 0.25) {
    const double s = x / (2 + x);
    // x - x s is 2 s; the first term is exact.
    return x - s * (x - 2 * atanh_tail(s));
  }
  const double sum = 1 + x, lost = x >= 1 ? 1 - (sum - x) : x - (sum - 1);
  return log(sum) + lost / sum;
}

double log2(double x) {
  if (at_the_edge(x)) return log_at_the_edge(x);
  const auto [m, k] = split(x);
  return k + log_to_base(m, log2_of_e);
}
double log10(double x) { return log_to_base(x, log10_of_e); }

double tanh(double x) {
  const double magnitude = std::abs(x);
  if (magnitude > 20) return std::copysign(1.0, x);
  const double t = expm1(2 * magnitude);
  return x != x ? x : std::copysign(t / (t + 2), x);
}

double erf(double x) {
  const double magnitude = std::abs(x);
  if (x != x || x == 0) return x;
  if (magnitude < 1) return erf_near_zero(x);
  return std::copysign(magnitude > 6 ? 1 : 1 - erfc_far(magnitude), x);
}

double sin(double x) {
  if (!(std::abs(x) < infinity)) return not_a_number;
  if (x == 0) return x;
  const auto [quadrant, angle, low] = reduced(x);
  return sin_in(quadrant, angle);
}
double cos(double x) {
  if (!(std::abs(x) < infinity)) return not_a_number;
  const auto [quadrant, angle, low] = reduced(x);
  return sin_in((quadrant + 1) & 3, angle);
}

double tan(double x) {
  if (!(std::abs(x) < infinity)) return not_a_number;
  if (x == 0) return x;
  const auto [quadrant, angle, low] = reduced(x);
  const double s = sin_of_small(angle), c = cos_of_small(angle);
  const double y = quadrant % 2 == 0 ? s / c : -c / s;
  return y + low * (1 + y * y);
}

double atan(double x) {
  if (x != x || x == 0) return x;
  // atan(x) = atan(c) + atan(s) with |s| below 7 / 16, for c = 0, 1 / 2, 1, 3 / 2, infinity.
  const double m = std::abs(x);
  Sum at_c{0, 0};
  double s = m;
  if (m >= 39.0 / 16) at_c = {pi.high / 2, pi.low / 2}, s = -1 / m;
  else if (m >= 19.0 / 16)
    at_c = {0x1.f730bd281f69bp-1, 0x1.007887af0cbbdp-56}, s = (m - 1.5) / (1 + 1.5 * m);
  else if (m >= 11.0 / 16) at_c = {pi.high / 4, pi.low / 4}, s = (m - 1) / (m + 1);
  else if (m >= 7.0 / 16)
    at_c = {0x1.dac670561bb4fp-2, 0x1.a2b7f222f65e2p-56}, s = (2 * m - 1) / (2 + m);
  constexpr auto taylor = [] {  // (-1)^n / (2 n + 1)
    std::array<double, 22> result{};
    for (int n = 1; n <= 22; ++n)
      result[std::size_t(22 - n)] = (n % 2 == 0 ? 1.0 : -1.0) / (2 * n + 1);
    return result;
  }();
  const double tail = s * (s * s * polynomial(taylor, s * s));
  return std::copysign(at_c.high + (s + (at_c.low + tail)), x);
}

double atan2(double y, double x) {
  if (x != x || y != y) return not_a_number;
  const double a = std::abs(y), b = std::abs(x);
  double angle = 0;                          // of (|x|, |y|)
  if (a == b && a > 0) angle = pi.high / 4;  // also of infinities
  else if (a > 0) angle = b == 0 ? pi.high / 2 : atan(a / b);
  if (!std::signbit(x)) return std::copysign(angle, y);
  return std::copysign(a == b && a > 0 ? 0.75 * pi.high : pi.high - (angle - pi.low), y);
}
double asin(double x) { return atan2(x, std::sqrt(std::fma(-x, x, 1.0))); }
double acos(double x) { return atan2(std::sqrt(std::fma(-x, x, 1.0)), x); }

double sinh(double x) {
  const double m = std::abs(x), t = expm1(m), half = exp(m / 2);
  const double y = m > 709 ? 0.5 * half * half : 0.5 * (t + t / (t + 1));
  return x != x ? x : std::copysign(y, x);
}
double cosh(double x) {
  const double m = std::abs(x), e = exp(m), half = exp(m / 2);
  return m > 709 ? 0.5 * half * half : 0.5 * e + 0.5 / e;
}

double exp2(double x) {
  if (x != x) return x;
  if (x >= 1024) return infinity;
  if (x < -1080) return 0;
  const double n = std::rint(x), r = x - n;
  const Sum power = exact_product(r, ln2.high);
  return std::ldexp(exp_of_sum(power.high, power.low + r * ln2.low), int(n));
}

double erfinv(double x) {
  const double m = std::abs(x), rest = 1 - m;  // exact if m is 1 / 2 or more
  if (x == 0 || !(m < 1)) return x == 0 ? x : (m == 1 ? std::copysign(infinity, x) : not_a_number);
  // Winitzki 2008, to 1/500; each of Halley's steps has the cube of the error before it.
  const double l = log1p(-m * m), half = 4.3307467508 + l / 2;
  double z = std::sqrt(std::sqrt(half * half - l / 0.147) - half);
  for (int step = 0; step < 3; ++step) {
    const Sum line = exact_product(two_over_sqrt_pi, z);
    const double off =
        z < 1 ? (line.high - m) + (line.low + z * 0x1.1ae3a914fed8p-56 + line.high * erf_tail(z))
              : rest - erfc_far(z);
    const double by = off / (two_over_sqrt_pi * exp(-z * z));
    z -= by / (1 + z * by);
  }
  return std::copysign(z, x);
}

double pow(double x, double y) {
  if (y == 0 || x == 1) return 1;
  if (x != x || y != y) return not_a_number;
  const double magnitude = std::abs(x);
  const bool whole = std::floor(y) == y, odd = whole && std::fmod(y, 2) != 0;
  const double sign = std::signbit(x) && odd ? -1 : 1;
  if (std::abs(y) == infinity)
    return magnitude == 1 ? 1 : ((magnitude > 1) == (y > 0) ? infinity : 0);
  if (magnitude == 0 || magnitude == infinity)
    return (magnitude == 0) == (y < 0) ? sign * infinity : sign * 0;
  if (x < 0 && !whole) return not_a_number;
  const Sum log = log_of(split(magnitude));
  const double estimate = y * log.high;
  if (estimate > 710) return sign * infinity;
  if (estimate < -746) return sign * 0;
  const Sum product = exact_product(y, log.high);
  return sign * exp_of_sum(product.high, product.low + y * log.low);
}

}  // namespace halftone::elementary
