// Hidden tests of task 1. The oracle searches all bf16 numbers, in f64, for the nearest.
#include "grade.h"

#include TASK

namespace {

double value(uint32_t code) {  // 0x7f80 counts as the number that would follow
  return code == 0x7f80 ? 0x1p128 : double(std::bit_cast<float>(code << 16));
}

uint16_t nearest(float x) {
  const uint32_t sign = std::bit_cast<uint32_t>(x) >> 16 & 0x8000;
  const double size = std::fabs(double(x));
  if (size >= value(0x7f80)) return uint16_t(sign | 0x7f80);
  uint32_t below = 0, above = 0x7f80;
  while (above - below > 1) {
    const uint32_t middle = (below + above) / 2;
    (value(middle) <= size ? below : above) = middle;
  }
  const double down = size - value(below), up = value(above) - size;
  const bool goes_up = up < down || (up == down && (below & 1) == 1);
  return uint16_t(sign | (goes_up ? above : below));
}

void check(uint32_t bits) {
  const float x = std::bit_cast<float>(bits);
  grade::input("x = %.9g (bits 0x%08x)", double(x), bits);
  grade::same_bits(to_bf16(x), nearest(x), 4);
}

}  // namespace

void grade::tests() {
  group("the examples of task.h", "rounding",
        "Nearest even is the rounding of every cast in a training; a cast that errs to one side "
        "moves all weights and sums to that side.",
        [] {
          for (const uint32_t bits : {0x3f800000u, 0x3f808000u, 0x3f818000u, 0x7f7fc99eu})
            check(bits);
        });
  group("numbers between two neighbors go to the nearer one", "rounding",
        "A thousand casts that err to one side err by a thousand times the mean error.", [] {
          Random random{1};
          for (int i = 0; i < 20000; ++i) {
            const uint32_t bits = random.word();
            const uint32_t exponent = bits >> 23 & 0xff;
            if (exponent > 0 && exponent < 0xfe && (bits & 0xffff) != 0x8000) check(bits);
          }
          for (uint32_t low : {0u, 1u, 0x7fffu, 0x8001u, 0xffffu}) check(0x40490000 | low);
        });
  group("halfway cases go to the even neighbor", "rounding",
        "Products of short numbers are often exactly halfway. If all of them go away from zero, "
        "means over a tensor are too large.",
        [] {
          for (uint32_t upper = 0x80; upper < 0x7f7f; upper += 7) check(upper << 16 | 0x8000);
          for (uint32_t upper = 0x8080; upper < 0xff7f; upper += 11) check(upper << 16 | 0x8000);
        });
  group("zero, subnormal numbers and the signs", "rounding",
        "The second moments of Adam are often below 2^-126; a flush to zero changes the update. A "
        "sign that is lost turns 1 / x into the wrong infinity.",
        [] {
          for (const uint32_t bits : {0u, 0x80000000u, 1u, 0x80000001u, 0x7fffu, 0x8000u, 0x8001u,
                                      0x18000u, 0x7f7fffu, 0x7f8000u, 0x7fffffu, 0x800000u})
            check(bits);
          Random random{2};
          for (int i = 0; i < 5000; ++i) check(random.word() & 0x807fffff);
        });
  group("large numbers become infinity where they must", "range",
        "A loss scaler finds an overflow by its infinity. A number that stays finite hides it; one "
        "that becomes infinite too early skips a step.",
        [] {
          for (const uint32_t bits : {0x7f7f0000u, 0x7f7f7fffu, 0x7f7f8000u, 0x7f7fffffu,
                                      0xff7f7fffu, 0xff7f8000u, 0x7f800000u, 0xff800000u})
            check(bits);
        });
  group("NaN stays NaN", "range",
        "NaN says that a step went wrong. If it becomes infinity or zero, the cause is lost; "
        "adding 0x7fff to 0x7fffffff even gives -0.",
        [] {
          for (const uint32_t bits : {0x7fc00000u, 0x7f800001u, 0x7f80ffffu, 0x7fffffffu,
                                      0xffffffffu, 0xff800001u, 0xffc00000u}) {
            const float x = std::bit_cast<float>(bits);
            input("x = NaN (bits 0x%08x)", bits);
            const uint16_t got = to_bf16(x);
            char text[80];
            std::snprintf(text, sizeof text, "0x%04x, which is %s", got,
                          (got & 0x7fff) > 0x7f80 ? "NaN with the other sign" : "not NaN");
            holds((got & 0x7fff) > 0x7f80 && (got & 0x8000) == (bits >> 16 & 0x8000),
                  "NaN: 0x7f81 to 0x7fff, with the sign bit of x", text);
          }
        });
}
