// Lesson 16: what does fp4 do to a matrix? You will see the fifteen numbers of e2m1, why a scale
// per block of 16 or 32 makes them usable, how one outlier harms its block, why a rotation can make
// that worse, and what stochastic rounding changes.
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

#include <halftone/halftone.h>

#include "program.h"

namespace ht = halftone;

namespace {

double root_mean_square(const ht::Tensor& x) {
  return std::sqrt(ht::mean(ht::cast(x, ht::f64) * ht::cast(x, ht::f64)).item());
}

/// Returns the signal to noise of y as an approximation of x, in decibels; 6 dB are one bit.
double signal_to_noise(const ht::Tensor& x, const ht::Tensor& y) {
  return 20 * std::log10(root_mean_square(x) / root_mean_square(y - x));
}

void print_numbers() {
  std::printf("e2m1 has these numbers, and their negatives:");
  for (int64_t i = 0; i < ht::count_of_numbers(ht::formats::e2m1); ++i)
    std::printf(" %g", ht::number_at(ht::formats::e2m1, i));
  std::printf("\n\n");
}

/// Rounds both operands of a product to a grid, and computes the product in f32.
void print_table(const char* title, const ht::Tensor& a, const ht::Tensor& b) {
  const ht::Tensor exact = ht::matmul(ht::cast(a, ht::f64), ht::cast(b, ht::f64));
  std::printf("%s\n  %-42s %8s %10s %10s\n", title, "quantizer", "bits", "a, dB", "a b, dB");
  for (const std::string_view name : {"bf16", "fp8_tensor", "mxfp8", "e2m1", "fp4 per tensor",
                                      "mxfp4", "mxfp4 rotated", "nvfp4", "nvfp4 rotated"}) {
    const bool per_tensor = name == "fp4 per tensor", rotated = name.ends_with(" rotated");
    ht::Quantizer quantizer = *ht::quantizer_named(per_tensor ? "fp8_tensor"
                                                   : rotated  ? name.substr(0, 5)
                                                              : name);
    if (per_tensor) quantizer.grid = ht::formats::e2m1;
    if (rotated) quantizer.hadamard = 16, quantizer.hadamard_signs = 0x9e37;
    // Blocks run along the last dimension, which must be the one that the product sums over: for
    // `a` it is, for `b` after a transpose.
    const ht::Tensor qa = ht::quantize(a, quantizer),
                     qb = ht::transpose(ht::quantize(ht::transpose(b, 0, 1), quantizer), 0, 1);
    std::printf("  %-42s %8.2f %10.1f %10.1f\n", std::string(name).c_str(),
                quantizer.bits_per_element(), signal_to_noise(a, qa),
                signal_to_noise(exact, ht::cast(ht::matmul(qa, qb), ht::f64)));
  }
  std::printf("\n");
}

/// Compares blocks of 16 with one outlier, as they are and rotated: the errors of the outlier and
/// of its 15 neighbors, in units of a neighbor's size.
void print_outlier_blocks() {
  std::printf("4096 blocks of 16, whose first number is an outlier of the given size, in nvfp4:\n");
  std::printf("  %7s | %26s | %26s\n", "", "as they are", "rotated");
  std::printf("  %7s |%9s%9s%9s |%9s%9s%9s\n", "outlier", "outlier", "others", "all, dB", "outlier",
              "others", "all, dB");
  for (const double size : {1.0, 4.0, 15.0, 60.0}) {
    ht::Tensor x = ht::randn({4096, 16});
    const ht::Tensor first = ht::arange(0, 16, 1) < 1;
    x = ht::where(first, ht::full({}, size), x);
    std::printf("  %7.0f |", size);
    for (const int64_t rotated : {0, 16}) {
      ht::Quantizer quantizer = *ht::quantizer_named("nvfp4");
      quantizer.hadamard = rotated, quantizer.hadamard_signs = 0x9e37;
      const ht::Tensor y = ht::quantize(x, quantizer), error = y - x;
      std::printf("%9.2f%9.2f%9.1f%s", root_mean_square(ht::slice(error, 1, 0, 1)),
                  root_mean_square(ht::slice(error, 1, 1, 16)), signal_to_noise(x, y),
                  rotated == 0 ? " |" : "\n");
    }
  }
  std::printf(
      "\nWhy the rotation lowers nvfp4 from 24.9 to 20.7 dB above: the scale of a block puts its "
      "largest\n"
      "number at 6, so that an outlier of 60 is stored nearly exactly, and it is nearly all of "
      "the\n"
      "signal. Its neighbors become 0: their error, 0.98, is their whole size. A rotation turns "
      "the\n"
      "outlier into 16 numbers of 15 that all err like normal numbers, about 20 dB. Rotated back,\n"
      "the outlier errs by 3.7 and each neighbor by 1.5: more than if it were lost. The rotation\n"
      "helps mxfp4, whose scales are powers of two: there the outlier is not exact without it.\n"
      "So the decibels of a matrix say which numbers are exact, not whether the small ones are "
      "left.\n\n");
}

/// Prints means of many roundings of one number: stochastic rounding keeps the mean, nearest does
/// not.
void print_means() {
  const ht::Tensor x = ht::full({100000}, 2.3);
  ht::Quantizer nearest = *ht::quantizer_named("e2m1"), stochastic = nearest;
  stochastic.rounding = ht::Rounding::stochastic;
  std::printf("the mean of 100,000 roundings of 2.3: nearest %.3f, stochastic %.3f\n",
              ht::mean(ht::quantize(x, nearest)).item(),
              ht::mean(ht::quantize(x, stochastic)).item());
}

void run() {
  ht::manual_seed(0);
  print_numbers();
  const ht::Tensor a = ht::randn({256, 512}), b = ht::randn({512, 256});
  print_table("Roughly normal numbers, as in a trained layer:", a, b);
  const ht::Tensor channel = ht::where(ht::less(ht::rand({512}), ht::full({}, 0.01)),
                                       ht::full({}, 60.0), ht::full({}, 1.0));
  print_table("One column in a hundred is 60 times as large, as in activations of transformers:",
              a * channel, b);
  print_outlier_blocks();
  print_means();
}

}  // namespace

int main(int argc, char** argv) {
  Program program("Shows what four-bit numbers do to a matrix and to a product.");
  return program.run(argc, argv, run);
}

// Conclusion. Four bits are enough if few numbers share a scale. An outlier costs its block the
// small numbers. Rotations spread that cost over the block: whether they help depends on the
// scale's format and on which numbers matter. Stochastic rounding makes errors average out over
// steps.
//
// Exercises
// 1 (pencil). A block of 16 has one number of 60 and 15 numbers of size 1. What does it store with
//   the scale 10? From which size on does a neighbor survive?
// 2 (predict). Two outliers of 60 in one block: does the rotation help now? And with 16 of them?
//   Then change print_outlier_blocks().
// 3 (implement). Tasks 10 and 11 of examples/exercises/: MXFP8 and NVFP4, blocks and scales.
// 4 (design). Outliers stay in the same columns during a training. Design a format that stores
//   these columns in 8 bits and the others in 4, and count its bits per element.
