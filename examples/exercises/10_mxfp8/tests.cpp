// Hidden tests of task 10. The oracle searches for the scale: the only power of two under which the
// largest magnitude is in [256, 512).
#include "grade.h"

#include TASK

namespace {

constexpr float inf = std::numeric_limits<float>::infinity(),
                nan32 = std::numeric_limits<float>::quiet_NaN();

int exponent_of(std::span<const float> block) {
  double a = 0;
  for (const float x : block) {
    if (!std::isfinite(x)) return 0;
    a = std::max(a, std::fabs(double(x)));
  }
  int e = -127;
  while (e < 127 && a / std::ldexp(1.0, e) >= 512) ++e;
  return e;
}

std::vector<float> block_of(float largest, uint64_t seed = 1) {
  grade::Random random{seed};
  std::vector<float> block(32);
  for (float& x : block) x = largest * float(2 * random.uniform() - 1);
  block[random.word() % 32] = random.word() & 1 ? largest : -largest;
  return block;
}

void check_code(const std::vector<float>& block, const char* text, double a) {
  grade::input("scale_code of a block %s %.9g (%a)", text, a, a);
  grade::same(scale_code(block), exponent_of(block) + 127, "code");
}

void check(const std::vector<float>& x, const char* text) {
  grade::input("mx_quantize: %d numbers, %s", int(x.size()), text);
  const Mxfp8 q = mx_quantize(x);
  grade::same(q.scales.size(), x.size() / 32, "count of scales");
  grade::same(q.elements.size(), x.size(), "count of elements");
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::span<const float> block(&x[i / 32 * 32], 32);
    const int e = exponent_of(block);
    grade::input("mx_quantize: %d numbers, %s. Element %d is %.9g, its scale must be 2^%d",
                 int(x.size()), text, int(i), double(x[i]), e);
    grade::same(q.scales[i / 32], e + 127, "code of the block");
    grade::same(q.elements[i], numbers::e4m3(std::ldexp(double(x[i]), -e)), "element");
  }
}

}  // namespace

void grade::tests() {
  group("the examples of task.h", "blocks", "E - 8 puts the largest magnitude between 256 and 512.",
        [] {
          for (const float a : {1.0f, 1.9f, 448.0f, 449.0f, 0x1p-130f, 0.0f})
            check_code(block_of(a), "with largest magnitude", a);
        });
  group("the code of the scale", "blocks",
        "A scale that is twice too large costs one of four bits.", [] {
          for (int e = -126; e <= 127; ++e) {
            const float power = std::ldexp(1.0f, e);
            check_code(block_of(power, uint64_t(e + 200)), "with largest magnitude", power);
            if (e > -126)
              check_code(block_of(std::nextafterf(power, 0), uint64_t(e + 500)),
                         "with largest magnitude", std::nextafterf(power, 0));
          }
        });
  group("the largest is a magnitude", "blocks",
        "Half of all blocks have a negative largest number.", [] {
          std::vector<float> block(32, 0.01f);
          block[5] = -100;
          check_code(block, "of 0.01 with one", -100);
        });
  group("tiny, huge and zero blocks", "blocks", "A code that wraps around turns 2^-130 into 2^126.",
        [] {
          for (const float a : {0x1p-120f, 0x1p-126f, 0x1p-149f, 3.4e38f})
            check_code(block_of(a), "with largest magnitude", a);
          check_code(std::vector<float>(32, 0.0f), "of zeros, largest", 0);
        });
  group("elements", "blocks", "One large element makes 31 others imprecise, not a whole tensor.",
        [] {
          std::vector<float> x;
          for (const float a : {1.0f, 1e-5f, 496.0f, 3e10f, 0.0f, 511.0f, 7e-38f, 0x1.fp100f})
            for (const float y : block_of(a, uint64_t(x.size()))) x.push_back(y);
          check(x, "eight blocks of different sizes");
          check({}, "none");
          static std::size_t count;
          for (const std::size_t n : {1, 16, 31, 33, 48}) {
            count = n;
            input("mx_quantize of %d numbers", int(count));
            throws([] { mx_quantize(std::vector<float>(count)); }, "not a multiple of 32");
          }
        });
  group("infinity and NaN", "blocks",
        "They must show after quantization, or at least not damage other blocks.", [] {
          for (const float bad : {inf, -inf, nan32})
            for (const std::size_t at : {std::size_t(0), std::size_t(31)}) {
              std::vector<float> block = block_of(1000);
              block[at] = bad;
              check_code(block, "of numbers up to 1000 with one", bad);
              check(block, "up to 1000, with one that is not finite");
            }
        });
  group("mx_dequantize", "blocks",
        "A file may have any scale, also one that this rule never gives.", [] {
          for (int code = 0; code < 255; ++code) {
            Mxfp8 q{{127, uint8_t(code)}, std::vector<float>(64, 0x1p-9f)};
            q.elements[40] = -1.5f, q.elements[41] = -0.0f;
            const std::vector<float> y = mx_dequantize(q);
            input("a block with code 127, and one with code %d", code);
            same(y.size(), 64, "count"), same(y[31], 0x1p-9f, "of 2^-9 in the first");
            same(y[32], std::ldexp(0x1p-9f, code - 127), "of 2^-9 in the second");
            same(y[40], std::ldexp(-1.5f, code - 127), "of -1.5"), same(y[41], -0.0f, "of -0");
          }
        });
  group("there and back", "blocks",
        "The error of an element is at most 1/16 of it, plus 2^-10 of the scale.", [] {
          std::vector<float> x;
          for (int e = -125; e < 126; e += 5)
            for (const float y : block_of(std::ldexp(1.7f, e), uint64_t(e + 999))) x.push_back(y);
          for (const float y : block_of(0x1.8p-140f)) x.push_back(y);
          const Mxfp8 q = mx_quantize(x);
          const std::vector<float> y = mx_dequantize(q);
          input("mx_dequantize(mx_quantize(x)) of %d numbers", int(x.size()));
          same(y.size(), x.size(), "count");
          for (std::size_t i = 0; i < x.size(); ++i) {
            const double scale = std::ldexp(1.0, exponent_of(std::span(&x[i / 32 * 32], 32)));
            input("mx_dequantize(mx_quantize(x)): %.9g with the scale %g", double(x[i]), scale);
            near(y[i], double(numbers::e4m3(x[i] / scale)) * scale, 0);
          }
        });
}
