// Hidden tests of task 4. The oracles: f64 for the nearest bf16, plain f32 sums for split weights,
// an f64 sum for Kahan's.
#include "grade.h"

#include TASK

namespace {

void check_split(uint32_t bits) {
  const float w = std::bit_cast<float>(bits);
  grade::input("w = %.9g (bits 0x%08x)", double(w), bits);
  const Split s = split(w);
  const double high = std::bit_cast<float>(uint32_t(s.high) << 16),
               down = std::bit_cast<float>(bits & 0xffff0000);
  const double up = std::bit_cast<float>((bits & 0xffff0000) + 0x10000);
  const double error = std::fabs(high - w), best = std::min(std::fabs(w - down), std::fabs(up - w));
  if (std::isfinite(up))
    grade::holds(error == best, "high is the nearest bf16", "high = " + grade::shown(float(high)));
  grade::same_bits((uint32_t(s.high) << 16) + uint32_t(int32_t(s.low)), bits, 8,
                   "(high << 16) + low");
  grade::same_bits(std::bit_cast<uint32_t>(join(s)), bits, 8, "bits of join(split(w))");
}

}  // namespace

void grade::tests() {
  group("the examples of task.h", "weight_forms", "They are the four cases of the lower half.", [] {
    const std::pair<uint32_t, Split> examples[] = {{0x3f800000, {0x3f80, 0}},
                                                   {0x3f8020c5, {0x3f80, 8389}},
                                                   {0x3f80e560, {0x3f81, -6816}},
                                                   {0x3f808000, {0x3f81, -32768}}};
    for (const auto& [bits, expected] : examples) {
      input("split(%.9g) (bits 0x%08x)", double(std::bit_cast<float>(bits)), bits);
      const Split s = split(std::bit_cast<float>(bits));
      same_bits(s.high, expected.high, 4, "high");
      same(s.low, expected.low, "low");
    }
    input("kahan_add(1, 0, 0.001)");
    uint16_t weight = 0x3f80, compensation = 0;
    kahan_add(weight, compensation, 0.001f);
    same_bits(weight, 0x3f80, 4, "weight");
    same_bits(compensation, 0x3a83, 4, "compensation");
  });
  group("split and join restore every bit", "weight_forms",
        "If one bit is lost, a training under split-bf16 is no longer one with f32 weights.", [] {
          for (const uint32_t upper : {0x3f80u, 0xbf80u, 0x3fffu, 0xc0ffu, 0u, 0x8000u, 0x7fu})
            for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
              check_split(upper << 16 | low);
          Random random{4};
          for (int i = 0; i < 20000; ++i) {
            const uint32_t bits = random.word();
            if ((bits & 0x7f800000) != 0x7f800000) check_split(bits);
          }
          for (const uint32_t bits : {0x7f7fffffu, 0xff7fffffu, 0x7f7f8000u}) check_split(bits);
        });
  group("a split weight follows f32 to the bit", "weight_forms",
        "Late updates are smaller than the spacing of bf16; the low half collects them.", [] {
          Random random{5};
          for (const float start : {1.0f, -0.37f, 1e-20f}) {
            float plain = start;
            Split s = split(start);
            for (int i = 0; i < 3000; ++i) {
              const float update = start * 1e-3f * float(random.uniform() - 0.4);
              plain += update;
              split_add(s, update);
              input("a weight of %g after %d random updates of 1e-3 of it or less", double(start),
                    i + 1);
              same(join(s), plain, "join(s)");
            }
          }
        });
  group("one Kahan step is its formula", "weight_forms",
        "The compensation must come from the rounded weight: it is what the rounding cut off.", [] {
          Random random{6};
          for (int i = 0; i < 20000; ++i) {
            uint16_t weight = numbers::bf16_bits(random.spread(-6, 3));
            uint16_t compensation = numbers::bf16_bits(numbers::from_bf16(weight) *
                                                       float(random.uniform() - 0.5) / 128);
            if (i % 4 == 0) compensation = 0;  // and a sum that is halfway
            const float w = numbers::from_bf16(weight), c = numbers::from_bf16(compensation),
                        half = std::ldexp(1.0f, std::ilogb(w) - 8),
                        update = i % 4 == 0 ? half : random.spread(-16, 0);
            const float sum = (w + c) + update, next = numbers::bf16(sum);
            input("weight = %.9g, compensation = %.9g, update = %.9g", double(w), double(c),
                  double(update));
            kahan_add(weight, compensation, update);
            same_bits(weight, numbers::bf16_bits(next), 4, "weight");
            same_bits(compensation, numbers::bf16_bits(sum - next), 4, "compensation");
          }
        });
  group("Kahan's sum of small updates", "weight_forms",
        "10000 updates of 1e-4 to a weight of 1: bf16 alone stays at 1.", [] {
          for (const double sign : {1.0, -1.0}) {
            uint16_t weight = 0x3f80, compensation = 0;
            for (int i = 1; i <= 10000; ++i) {
              kahan_add(weight, compensation, float(sign * 1e-4));
              const double got =
                  double(numbers::from_bf16(weight)) + numbers::from_bf16(compensation);
              input("weight 1 and %d updates of %g: weight + compensation", i, sign * 1e-4);
              near(got, 1 + sign * 1e-4 * i, 0.05, "the sum");
            }
          }
        });
}
