// Instructions whose results PTX bounds but does not define (.approx). They give the nearest
// number, or, with HALFTONE_PTX_NUDGE=1, one with the largest error that "PTX ISA" allows, always
// the same for the same number, as on a GPU. ex2 at whole numbers is exact: NVIDIA's own expf
// relies on it.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include <halftone/core/files.h>

#include "arithmetic.h"

namespace halftone::ptx {

namespace {

bool nudges() {
  static const bool on = environment_variable("HALFTONE_PTX_NUDGE") != nullptr;
  return on;
}

/// Returns a number within `most` units in the last place of x.
float nudged(float x, int most) {
  if (!nudges() || !std::isnormal(x)) return x;
  const uint32_t bits = bits_as<uint32_t>(x);
  const uint32_t mixed = (bits ^ bits >> 15) * 2246822519u;
  const int off = int((mixed >> 13) % unsigned(2 * most + 1)) - most;
  const float moved = bits_as<float>(uint32_t(int64_t(bits) + off));
  return std::isnormal(moved) ? moved : x;
}

template <class T> T flushed(T x) {
  return std::fabs(x) < std::numeric_limits<T>::min() ? std::copysign(T(0), x) : x;
}

float power_of_two(float x) {
  const float y = float(std::exp2(double(x)));
  return x == std::floor(x) ? y : nudged(y, 2);
}
struct Ex2 {
  float operator()(float x) const { return power_of_two(x); }
};
struct Ex2Ftz {
  float operator()(float x) const { return flushed(power_of_two(flushed(x))); }
};
struct RcpFtz {
  float operator()(float x) const { return flushed(nudged(1.0f / flushed(x), 1)); }
};
/// Uses only the upper halves of the bits: about 20 bits are right.
struct RcpFtzOfDouble {
  double operator()(double x) const {
    constexpr uint64_t upper = 0xffffffff00000000;
    const double short_x = flushed(bits_as<double>(bits_as<uint64_t>(x) & upper));
    return bits_as<double>(bits_as<uint64_t>(flushed(1.0 / short_x)) & upper);
  }
};
/// Divisors above 2^126 give 0.
struct DivApprox {
  float operator()(float a, float b) const {
    const float quotient = a / b;
    if (std::fabs(b) > 0x1p126f && std::isfinite(b) && std::isfinite(a))
      return std::copysign(0.0f, quotient);
    return nudged(quotient, 2);
  }
};

}  // namespace

void add_approximations(Operations& all) {
  add_unary<Ex2, F32>(all, "ex2.approx.");
  add_unary<Ex2Ftz, F32>(all, "ex2.approx.ftz.");
  add_unary<RcpFtz, F32>(all, "rcp.approx.ftz.");
  add_unary<RcpFtzOfDouble, F64>(all, "rcp.approx.ftz.");
  add_binary<DivApprox, F32>(all, "div.approx.");
}

}  // namespace halftone::ptx
