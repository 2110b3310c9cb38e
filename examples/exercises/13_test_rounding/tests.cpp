// The correct implementations and the mutants of task 13.
#include "grade.h"

#include "mutants.h"

#include TASK

namespace {

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
uint16_t right(float x) {
  const uint32_t bits = bits_of(x);
  if (std::isnan(x)) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
uint16_t one_nan(float x) {
  return std::isnan(x) ? uint16_t((bits_of(x) >> 16 & 0x8000) | 0x7fff) : right(x);
}

const std::vector<grade::Named<Rounding>> correct{
    {"adds half a unit to the bits", right},
    {"adds half a unit to the bits, and returns the same NaN for every NaN of a sign", one_nan},
    {"computes in f64", numbers::bf16_bits},
};
const std::vector<grade::Named<Rounding>> mutants{
    {"cuts the lower half off",
     [](float x) { return std::isnan(x) ? right(x) : uint16_t(bits_of(x) >> 16); }},
    {"halfway cases go away from zero",
     [](float x) { return std::isnan(x) ? right(x) : uint16_t((bits_of(x) + 0x8000) >> 16); }},
    {"halfway cases go toward zero",
     [](float x) { return std::isnan(x) ? right(x) : uint16_t((bits_of(x) + 0x7fff) >> 16); }},
    {"looks at the upper 8 of the 16 bits that it removes",
     [](float x) {
       return right(std::isnan(x) ? x : std::bit_cast<float>(bits_of(x) & 0xffffff00));
     }},
    {"the carry stops at the exponent",
     [](float x) {
       const uint32_t upper = bits_of(x) >> 16;
       return (upper & 0x7f) == 0x7f && !std::isnan(x) ? uint16_t(upper) : right(x);
     }},
    {"subnormal numbers become zero",
     [](float x) {
       return std::fabs(x) < 0x1p-126f ? uint16_t(bits_of(x) >> 16 & 0x8000) : right(x);
     }},
    {"-0 becomes 0", [](float x) { return x == 0 ? uint16_t(0) : right(x); }},
    {"saturates in place of infinity",
     [](float x) {
       return std::isfinite(x) && (right(x) & 0x7fff) == 0x7f80 ? uint16_t(right(x) - 1) : right(x);
     }},
    {"infinite from the largest bf16 on, not from the middle above it",
     [](float x) {
       return std::fabs(x) > 0x1.fep127f && !std::isnan(x)
                  ? uint16_t((bits_of(x) >> 16 & 0x8000) | 0x7f80)
                  : right(x);
     }},
    {"infinity loses its sign",
     [](float x) { return std::isinf(x) ? uint16_t(0x7f80) : right(x); }},
    {"NaN loses its sign", [](float x) { return std::isnan(x) ? uint16_t(0x7fc0) : right(x); }},
    {"some NaN become infinity",
     [](float x) { return std::isnan(x) ? uint16_t(bits_of(x) >> 16) : right(x); }},
    {"some NaN become -0 or 0",
     [](float x) { return uint16_t((bits_of(x) + 0x7fff + (bits_of(x) >> 16 & 1)) >> 16); }},
    {"negative numbers lose their sign when they round up to a power of two",
     [](float x) {
       const uint16_t y = right(x);
       return x < 0 && (y & 0x7f) == 0 && (bits_of(x) & 0x7f0000) == 0x7f0000 ? uint16_t(y & 0x7fff)
                                                                              : y;
     }},
};

}  // namespace

void grade::tests() {
  group("correct implementations are accepted", "rounding",
        "A test that fails for right code is switched off, and then it finds nothing.",
        [] { judge(accepts, correct, true); });
  group("mutants are rejected", "rounding",
        "Halfway cases, the ends of the range and NaN are rare among all floats: name them.",
        [] { judge(accepts, mutants, false); });
}
