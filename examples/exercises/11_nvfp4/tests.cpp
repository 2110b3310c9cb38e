// Hidden tests of task 11. The oracle searches the fifteen numbers of e2m1 and lists those of e4m3.
// A quotient may be rounded in f32 or in f64, so a number is right if it is nearest within 1e-5.
#include "grade.h"

#include TASK

namespace {

std::vector<double> listed(int significand_bits, int min_exponent, double max) {
  const int per_binade = 1 << (significand_bits - 1);
  std::vector<double> all;
  for (int i = 0; i < per_binade; ++i)
    all.push_back(std::ldexp(i, min_exponent - significand_bits + 1));
  for (int e = min_exponent; all.back() < max; ++e)
    for (int i = per_binade; i < 2 * per_binade && all.back() < max; ++i)
      all.push_back(std::ldexp(i, e - significand_bits + 1));
  return all;
}

/// Fails unless `got` is a number of the grid, and none of them is clearly nearer to x.
void nearest(double got, double x, const std::vector<double>& grid, const char* what) {
  double best = std::numeric_limits<double>::infinity(), nearest_one = 0;
  bool member = false;
  for (const double size : grid)
    for (const double y : {size, -size}) {
      member |= y == got;
      if (std::fabs(x - y) < best) best = std::fabs(x - y), nearest_one = y;
    }
  if (!member || std::fabs(x - got) > best + 1e-5 * std::fabs(x))
    grade::fail(std::string(what) + " = " + grade::shown(nearest_one) + ", the nearest to " +
                    grade::shown(x),
                std::string(what) + " = " + grade::shown(got));
}

double largest(std::span<const float> x) {
  double a = 0;
  for (const float y : x) a = std::max(a, std::fabs(double(y)));
  return a;
}

void check(const std::vector<float>& x, const char* text) {
  static const std::vector<double> e4m3 = listed(4, -6, 448), e2m1 = listed(2, 0, 6);
  grade::input("%d numbers: %s", int(x.size()), text);
  const Nvfp4 q = nvfp4_quantize(x);
  const double A = largest(x), s = A == 0 ? 1 : A / (448 * 6);
  grade::near(q.tensor_scale, s, 1e-6 * s, "tensor_scale");
  grade::same(q.block_scales.size(), x.size() / 16, "count of block scales");
  grade::same(q.elements.size(), x.size(), "count of elements");
  const std::vector<float> back = nvfp4_dequantize(q);
  grade::same(back.size(), x.size(), "count of numbers from nvfp4_dequantize");
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double a = largest(std::span(x).subspan(i / 16 * 16, 16)), b = q.block_scales[i / 16];
    grade::input("%d numbers: %s. Block %d with largest magnitude %.9g, tensor_scale %.9g",
                 int(x.size()), text, int(i / 16), a, s);
    nearest(b, a / 6 / s, e4m3, "block scale");
    grade::input("%d numbers: %s. Element %d is %.9g, tensor_scale %.9g, block scale %g",
                 int(x.size()), text, int(i), double(x[i]), s, b);
    nearest(q.elements[i], b == 0 ? 0 : x[i] / (b * s), e2m1, "element");
    grade::near(back[i], q.elements[i] * b * s, 1e-5 * std::fabs(x[i]), "after nvfp4_dequantize");
  }
}

std::vector<float> normal(std::size_t count, double size, uint64_t seed) {
  grade::Random random{seed};
  std::vector<float> x(count);
  for (float& y : x)
    y = float(size * std::sqrt(-2 * std::log(1 - random.uniform())) *
              std::cos(6.283185307 * random.uniform()));
  return x;
}

}  // namespace

void grade::tests() {
  group("the example of task.h", "fp4",
        "The largest number of the tensor becomes 6 * 448 * s exactly.", [] {
          std::vector<float> x(16);
          x[0] = 6, x[1] = -3, x[2] = 1;
          check(x, "6, -3, 1, 0, ...");
        });
  group("normal numbers", "fp4",
        "Without the factor 6 or the rounded scale the error is twice as large.", [] {
          check(normal(1600, 1, 1), "normal");
          check(normal(1600, 0.02, 2), "normal, 0.02 of that");
          const std::vector<float> x = normal(16000, 1, 3), y = nvfp4_dequantize(nvfp4_quantize(x));
          double signal = 0, noise = 0;
          for (std::size_t i = 0; i < x.size(); ++i)
            signal += x[i] * x[i], noise += (x[i] - y[i]) * (x[i] - y[i]);
          input("16000 normal numbers, signal to noise in dB");
          near(10 * std::log10(signal / noise), 20.4, 0.4);  // docs/number_formats.md
        });
  group("blocks of different sizes", "fp4",
        "An outlier must not take the bits of other blocks: that is why blocks have scales.", [] {
          std::vector<float> x;
          for (int i = 0; i < 18; ++i)  // down to subnormal scales
            for (const float y : normal(16, std::ldexp(1.0, -i), uint64_t(i + 10))) x.push_back(y);
          check(x, "blocks of which each is half of the one before");
          x = normal(64, 1, 4);
          x[40] = -500;
          check(x, "normal with one of -500");
        });
  group("very small and very large tensors", "fp4",
        "e4m3 scales alone end at 2^-9: gradients of 1e-6 would become zero.", [] {
          for (const double size : {1e-6, 1e-30, 1e6, 1e30}) {
            char text[40];
            std::snprintf(text, sizeof text, "normal times %g", size);
            check(normal(160, size, 5), text);
          }
        });
  group("zeros", "fp4", "0 / 0 is NaN, and a NaN in a weight spreads in one step.", [] {
    check(std::vector<float>(32, 0.0f), "zeros");
    std::vector<float> x = normal(48, 1, 6);
    for (std::size_t i = 16; i < 32; ++i) x[i] = 0;
    check(x, "a block of zeros between two others");
    for (std::size_t i = 16; i < 32; ++i) x[i] = 1e-8f;
    check(x, "a block of 1e-8, whose scale rounds to 0, between two normal ones");
    check({}, "none");
  });
  group("counts", "fp4", "A scale that covers too many elements is one outlier for all of them.",
        [] {
          static std::size_t count;
          for (const std::size_t n : {1, 8, 15, 17, 24, 40}) {
            count = n;
            input("nvfp4_quantize of %d numbers", int(count));
            throws([] { nvfp4_quantize(std::vector<float>(count, 1.0f)); }, "not a multiple of 16");
          }
        });
}
