// Lesson 16: what does fp4 do to a matrix? You will see the fifteen numbers of e2m1, why a scale
// per block of 16 or 32 makes them usable, how one outlier harms its block, and what rotations and
// stochastic rounding change.
#include <cmath>
#include <cstdio>
#include <iostream>

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
  for (const char* name : {"bf16", "fp8_tensor", "mxfp8", "e2m1", "fp4 per tensor", "mxfp4",
                           "nvfp4", "nvfp4 rotated"}) {
    const std::string_view word = name;
    ht::Quantizer quantizer = *ht::quantizer_named(word == "fp4 per tensor"  ? "fp8_tensor"
                                                   : word == "nvfp4 rotated" ? "nvfp4"
                                                                             : name);
    if (word == "fp4 per tensor") quantizer.grid = ht::formats::e2m1;
    if (word == "nvfp4 rotated") quantizer.hadamard = 16, quantizer.hadamard_signs = 0x9e37;
    // Blocks run along the last dimension, which must be the one that the product sums over: for
    // `a` it is, for `b` after a transpose.
    const ht::Tensor qa = ht::quantize(a, quantizer),
                     qb = ht::transpose(ht::quantize(ht::transpose(b, 0, 1), quantizer), 0, 1);
    std::printf("  %-42s %8.2f %10.1f %10.1f\n", name, quantizer.bits_per_element(),
                signal_to_noise(a, qa),
                signal_to_noise(exact, ht::cast(ht::matmul(qa, qb), ht::f64)));
  }
  std::printf("\n");
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
  print_means();
}

}  // namespace

int main(int argc, char** argv) {
  Program program("Shows what four-bit numbers do to a matrix and to a product.");
  return program.run(argc, argv, run);
}
