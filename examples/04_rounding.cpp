// Lesson 4: rounding. You will see seven ways to round one number, nearest even written with the
// bits of an f32, how two roundings err where one does not, and why stochastic rounding lets a sum
// grow that nearest rounding stops. --pictures DIR draws roundings as staircases.
#include <bit>
#include <cmath>
#include <cstdio>
#include <string>

#include <halftone/halftone.h>

#include "drawing.h"

namespace ht = halftone;

namespace {

/// Rounds one number to a format. Stochastic rounding draws from the default generator.
double rounded(double x, const ht::NumberFormat& format, ht::Rounding rounding) {
  return ht::quantize(ht::full({}, x), ht::Quantizer{.grid = format, .rounding = rounding}).item();
}

void seven_ways() {
  const double numbers[] = {2.3, 2.5, 3.5, -2.3, 5.0, 0.2, 9.0};
  std::printf("to e2m1, which has 0 0.5 1 1.5 2 3 4 6\n%-14s", "");
  for (const double x : numbers) std::printf("%7.1f", x);
  std::printf("\n");
  for (int i = 0; i < ht::rounding_count; ++i) {
    std::printf("%-14s", std::string(ht::name(ht::Rounding(i))).c_str());
    for (const double x : numbers)
      std::printf("%7.1f", rounded(x, ht::formats::e2m1, ht::Rounding(i)));
    std::printf("\n");
  }
  std::printf(
      "\n2.5 is halfway between 2 and 3. Nearest even takes the neighbor whose last bit is 0, so "
      "that\n"
      "ties go up as often as down. 9 is beyond the largest number: e2m1 has no infinity, it\n"
      "saturates. The last line is drawn at random.\n");
}

/// bf16 is the upper half of an f32. Adding half of the last place that stays, less one bit if that
/// place is even, carries exactly when nearest even rounds up. For finite x.
float nearest_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u);
}

void by_hand() {
  const ht::Tensor x = ht::randn({1000000});
  const auto given = x.to_vector<float>(), library = ht::cast(x, ht::bf16).to_vector<float>();
  int64_t equal = 0;
  double largest = 0;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const float mine = nearest_bf16(given[i]);
    equal += mine == library[i] ? 1 : 0;
    largest = std::max(largest, std::abs(double(mine) / double(given[i]) - 1));
  }
  std::printf(
      "\nthe two lines of nearest_bf16() on a million numbers: %ld equal to the library's cast,\n"
      "largest relative error %.6f; half of the spacing at 1 is 2^-8 = %.6f\n",
      long(equal), largest, std::ldexp(1.0, -8));
}

void twice() {
  const double x = 1 + std::ldexp(1.0, -8) + std::ldexp(1.0, -20);
  using enum ht::Rounding;
  std::printf("\nx = 1 + 2^-8 + 2^-20, a little above the middle of two bf16 numbers\n");
  std::printf("  to bf16                                  %.7f\n",
              rounded(x, ht::formats::bf16, nearest_even));
  std::printf(
      "  to tf32, then to bf16                    %.7f: the first one made a tie\n",
      rounded(rounded(x, ht::formats::tf32, nearest_even), ht::formats::bf16, nearest_even));
  std::printf("  to tf32 by to_odd, then to bf16          %.7f\n",
              rounded(rounded(x, ht::formats::tf32, to_odd), ht::formats::bf16, nearest_even));
}

/// Adds 0.001 ten thousand times to 1 in bf16, where the spacing is 0.0078 and grows.
double sum_of_steps(ht::Rounding rounding, uint64_t seed) {
  ht::manual_seed(seed);
  const ht::Quantizer bf16{.grid = ht::formats::bf16, .rounding = rounding};
  ht::Tensor sum = ht::ones({});
  for (int step = 0; step < 10000; ++step) sum = ht::quantize(sum + 0.001, bf16);
  return sum.item();
}

void stochastic() {
  const ht::Tensor x = ht::full({100000}, 2.3);
  using enum ht::Rounding;
  const auto mean = [&](ht::Rounding rounding) {
    const ht::Quantizer e2m1{.grid = ht::formats::e2m1, .rounding = rounding};
    return ht::mean(ht::quantize(x, e2m1)).item();
  };
  std::printf("\nmean of 100,000 roundings of 2.3 to e2m1: nearest %.3f, stochastic %.3f\n",
              mean(nearest_even), mean(stochastic));
  std::printf("1 + 10,000 times 0.001 in bf16: nearest %.4g; stochastic, five seeds:",
              sum_of_steps(nearest_even, 0));
  for (uint64_t seed = 0; seed < 5; ++seed) std::printf(" %.4g", sum_of_steps(stochastic, seed));
  std::printf(
      "\nNearest rounding loses every step, because 0.001 is less than half of a spacing. "
      "Stochastic\n"
      "rounding goes up with the probability (x - below) / spacing: right on average, with a "
      "spread.\n");
}

/// Returns the roundings of x from 0 to 7, in steps of 1/32.
svg::Curve curve_of(const std::string& name, ht::Rounding rounding, int style, int draws = 1) {
  svg::Curve curve{
      .name = name, .points = {}, .style = style, .staircase = draws == 1, .shapes = false};
  for (int i = 0; i <= 7 * 32; ++i) {
    double sum = 0;
    for (int k = 0; k < draws; ++k) sum += rounded(i / 32.0, ht::formats::e2m1, rounding);
    curve.points.push_back({i / 32.0, sum / draws});
  }
  return curve;
}

void run(const std::string& pictures) {
  ht::manual_seed(0);
  seven_ways();
  by_hand();
  twice();
  stochastic();
  if (pictures.empty()) return;
  using enum ht::Rounding;
  write_picture(pictures, "rounding",
                {.title = "Rounding to e2m1: the mean of stochastic results follows the number",
                 .x = {.label = "number"},
                 .y = {.label = "result"},
                 .curves = {curve_of("nearest even", nearest_even, 0),
                            curve_of("toward zero", toward_zero, 1),
                            curve_of("stochastic, mean of 100", stochastic, 2, 100)},
                 .width = 640});
}

}  // namespace

int main(int argc, char** argv) {
  std::string pictures;
  Program program("Shows roundings to short formats.");
  add_pictures(program, pictures);
  return program.run(argc, argv, [&] { run(pictures); });
}

// Conclusion. Nearest even is the right rounding of a single number: it errs by half a spacing at
// most. If many small numbers are added to a large one, its errors do not cancel. Stochastic
// rounding errs by up to a spacing, but on average not at all. Round once, or to odd before.
//
// Exercises
// 1 (pencil). x is a quarter of the way from a number to the next. What are mean and variance of
//   its stochastic rounding, in spacings?
// 2 (predict). In the sum of 10,000 steps, replace 0.001 by 0.005. What does nearest rounding give?
//   Where does it stop? Then run it.
// 3 (implement). Task 3 of examples/exercises/: stochastic rounding with exactly the right
// probability.
