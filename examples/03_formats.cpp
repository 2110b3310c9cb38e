// Lesson 3: formats. You will see the parts of a floating-point number, the table of the formats
// that train networks, the spacing between neighbors in each binade, and what six formats make of
// the same numbers.
#include <bit>
#include <cmath>
#include <cstdio>
#include <string>

#include <halftone/halftone.h>

#include "output.h"

namespace ht = halftone;

namespace {

/// Prints sign, exponent and significand of a normal f32: x = sign 1.fraction 2^exponent.
void take_apart(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  std::string fraction;
  for (int i = 22; i >= 0; --i) fraction += (bits >> i & 1) != 0 ? '1' : '0';
  std::printf("%12g = %c 2^%-4d * 1.%s\n", double(x), bits >> 31 != 0 ? '-' : '+',
              int(bits >> 23 & 0xff) - 127, fraction.c_str());
}

/// A format with p significand bits has every whole number up to 2^p, if its largest one is beyond.
void table_of_formats() {
  std::printf("\n%-6s %4s %4s %12s %12s %12s %12s %12s\n", "format", "bits", "p", "least > 0",
              "least normal", "largest", "1 and next", "whole up to");
  for (const char* name : {"f32", "tf32", "bf16", "f16", "e5m2", "e4m3", "e2m3", "e2m1"}) {
    const ht::NumberFormat f = *ht::number_format_named(name);
    const double normal = std::ldexp(1.0, f.min_exponent),
                 spacing = std::ldexp(1.0, 1 - f.significand_bits),
                 whole = std::min(std::ldexp(1.0, f.significand_bits), double(f.max));
    std::printf("%-6s %4d %4d %12.3g %12.3g %12.5g %12.3g %12.9g\n", name, f.bits,
                f.significand_bits, normal * spacing, normal, double(f.max), spacing, whole);
  }
  std::printf(
      "\np counts the bits of the significand, with the first 1, which is not stored. p decides "
      "how\n"
      "close neighbors are, the exponents decide how far the numbers reach. Two formats of 16 "
      "bits\n"
      "spend them differently: bf16 has the range of f32, f16 has three bits of p more.\n");
}

/// Between two powers of two the spacing is constant; in the next binade it is twice as large.
void binades() {
  std::printf("\nthe numbers of e2m3, a binade per line, 0 and subnormal ones first:\n");
  const ht::NumberFormat f = ht::formats::e2m3;
  double before = 0;
  for (int64_t i = 0; i < ht::count_of_numbers(f); ++i) {
    const double x = ht::number_at(f, i);
    const bool begins = x >= 1 && (before < 1 || std::ilogb(x) > std::ilogb(before));
    std::printf(begins ? "\n  %5.3f" : i == 0 ? "  %5.3f" : " %5.3f", x);
    before = x;
  }
  std::printf(
      "\nEach line has 8 numbers, so the relative distance is about the same everywhere. The\n"
      "subnormal numbers keep the spacing of the binade above them, down to 0.\n");
}

void six_formats() {
  const ht::Tensor exact = ht::from({0.1, 1.001, 257, 1e-7, 70000}, ht::f64);
  std::printf("\n%-8s", "");
  for (const double x : exact.to_vector<double>()) std::printf("%12.6g", x);
  std::printf("\n");
  for (const ht::DType dtype : {ht::f64, ht::f32, ht::f16, ht::bf16, ht::f8_e4m3, ht::f8_e5m2}) {
    std::printf("%-8s", std::string(ht::name(dtype)).c_str());
    // Short floats are storage: a cast rounds to nearest, and kernels compute in f32.
    for (const double x : ht::cast(exact, dtype).to_vector<double>()) std::printf("%12.6g", x);
    std::printf("\n");
  }
}

}  // namespace

int main() {
  std::printf("f32 numbers: sign, exponent, significand\n");
  for (const float x : {1.0f, 0.15625f, 0.1f, -70000.0f, 1e-7f}) take_apart(x);
  table_of_formats();
  binades();
  six_formats();
  std::printf(
      "\nf16 cannot hold 70000, and 1e-7 is off by 19 %%. bf16 holds both, and has neither 1.001\n"
      "nor 257. Mixed precision decides for each tensor which of the two errors it can bear.\n");
  return after_output();
}

// Conclusion. A format is a number of significand bits and a range of exponents. The first sets the
// relative error of a number, the second decides which numbers exist at all.
//
// Exercises
// 1 (pencil). Derive the largest number of f16 from 5 exponent bits and 10 fraction bits, and the
//   largest of e4m3, which has no infinity and reserves one code for NaN.
// 2 (predict). A counter in bf16 starts at 0 and adds 1. At which number does it stay? Then write
//   the loop with ht::BFloat16.
// 3 (implement). Task 2 of examples/exercises/: round to any format, subnormal numbers included.
