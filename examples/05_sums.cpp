// Lesson 5: sums. You will see a sum that stops at 256, how the error of a sum depends on its order
// and on the format of its accumulator, the bounds that predict it, and what a matrix product does.
// --pictures DIR draws the errors.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include <halftone/halftone.h>

#include "drawing.h"

namespace ht = halftone;

namespace {

float in_bf16(float x) { return float(ht::BFloat16(x)); }
float in_f32(float x) { return x; }
using Round = float (*)(float);

float in_order(std::span<const float> x, Round round) {
  float sum = 0;
  for (const float term : x) sum = round(sum + term);
  return sum;
}

/// Adds the sums of both halves: every term passes log2(n) additions, not n.
float pairwise(std::span<const float> x, Round round) {
  if (x.size() == 1) return x[0];
  const std::size_t half = x.size() / 2;
  return round(pairwise(x.first(half), round) + pairwise(x.subspan(half), round));
}

/// Kahan (1965): `lost` is what the last addition rounded away.
float kahan(std::span<const float> x, Round round) {
  float sum = 0, lost = 0;
  for (const float term : x) {
    const float wanted = round(term - lost), next = round(sum + wanted);
    lost = round(round(next - sum) - wanted);
    sum = next;
  }
  return sum;
}

struct Way {
  const char* name;
  float (*sum)(std::span<const float>);
  std::vector<double> errors{};  // by n
};

/// The relative error of each way for n = 16, 64, ... 2^20: the root mean square of 8 samples.
void measure(std::vector<Way>& ways, std::vector<double>& counts) {
  for (int log_n = 4; log_n <= 20; log_n += 2) {
    const int64_t n = int64_t(1) << log_n;
    counts.push_back(double(n));
    for (Way& way : ways) way.errors.push_back(0);
    for (int sample = 0; sample < 8; ++sample) {
      ht::manual_seed(uint64_t(sample));
      const auto x = ht::cast(ht::rand({n}), ht::bf16).to_vector<float>();
      double exact = 0;
      for (const float term : x) exact += double(term);
      for (Way& way : ways) way.errors.back() += std::pow(double(way.sum(x)) / exact - 1, 2) / 8;
    }
    for (Way& way : ways) way.errors.back() = std::sqrt(way.errors.back());
  }
}

std::vector<Way> errors(std::vector<double>& counts) {
  std::vector<Way> ways{
      {"bf16, in order", [](std::span<const float> x) { return in_order(x, in_bf16); }},
      {"bf16, pairwise", [](std::span<const float> x) { return pairwise(x, in_bf16); }},
      {"bf16, Kahan", [](std::span<const float> x) { return kahan(x, in_bf16); }},
      {"f32, rounded to bf16",
       [](std::span<const float> x) { return in_bf16(in_order(x, in_f32)); }},
      {"f32, in order", [](std::span<const float> x) { return in_order(x, in_f32); }},
      {"f32, pairwise", [](std::span<const float> x) { return pairwise(x, in_f32); }}};
  measure(ways, counts);
  std::printf("\nrelative error of the sum of n numbers between 0 and 1\n%-22s", "n");
  for (std::size_t i = 0; i < counts.size(); i += 2) std::printf("%10.0f", counts[i]);
  std::printf("\n");
  for (const Way& way : ways) {
    std::printf("%-22s", way.name);
    for (std::size_t i = 0; i < counts.size(); i += 2) std::printf("%10.1e", way.errors[i]);
    std::printf("\n");
  }
  const double u = std::ldexp(1.0, -8);  // half of the spacing of bf16 at 1
  std::printf("%-22s", "bound, bf16 in order");
  for (std::size_t i = 0; i < counts.size(); i += 2) std::printf("%10.1e", counts[i] * u);
  std::printf("\n%-22s", "bound, bf16 pairwise");
  for (std::size_t i = 0; i < counts.size(); i += 2)
    std::printf("%10.1e", std::log2(counts[i]) * u);
  std::printf(
      "\n\nThe bounds are n u and log2(n) u, with u = 2^-8; errors of random signs grow only as "
      "their\n"
      "roots. In bf16 in order the terms are lost once the sum is 512 times as large: an error "
      "near\n"
      "1 means that nearly nothing was added. Kahan's sum fails when\n"
      "n u^2 exceeds 1. One rounding of an f32 sum costs at most u.\n");
  return ways;
}

/// The largest error of a product, relative to its largest element.
double error_of(const ht::Tensor& got, const ht::Tensor& exact) {
  return (ht::max(ht::abs(ht::cast(got, ht::f64) - exact)).item() / ht::max(ht::abs(exact)).item());
}

/// C = A B has sums over k = 4096. Products of two bf16 numbers are exact in f32.
void products() {
  ht::manual_seed(0);
  const ht::Tensor a = ht::cast(ht::rand({8, 4096}), ht::bf16),
                   b = ht::cast(ht::rand({4096, 8}), ht::bf16);
  const ht::Tensor exact = ht::matmul(ht::cast(a, ht::f64), ht::cast(b, ht::f64));
  const auto xs = a.to_vector<float>(), ys = b.to_vector<float>();
  std::vector<double> by_hand;
  for (std::size_t i = 0; i < 8; ++i)
    for (std::size_t j = 0; j < 8; ++j) {
      float sum = 0;
      for (std::size_t k = 0; k < 4096; ++k) sum = in_bf16(sum + xs[i * 4096 + k] * ys[k * 8 + j]);
      by_hand.push_back(double(sum));
    }
  std::printf("\na product of bf16 matrices, 4096 terms an element\n");
  std::printf("  the library: f32 sums, one rounding       error %.1e\n",
              error_of(ht::matmul(a, b), exact));
  std::printf("  by hand, every sum rounded to bf16        error %.1e\n",
              error_of(ht::from_vector(by_hand, {8, 8}), exact));
}

void run(const std::string& pictures) {
  float sum = 0;
  for (int i = 0; i < 4096; ++i) sum = in_bf16(sum + 1);
  std::printf("the sum of 4096 ones in bf16: %g, because bf16 has no 257\n", double(sum));
  std::vector<double> counts;
  const std::vector<Way> ways = errors(counts);
  products();
  svg::Plot plot{.title = "A bf16 sum in order loses its terms; in pairs, or in f32, it does not",
                 .x = {.label = "terms", .logarithmic = true},
                 .y = {.label = "relative error", .logarithmic = true},
                 .width = 640};
  for (std::size_t i = 0; i < ways.size(); ++i) {
    plot.curves.push_back({.name = ways[i].name, .points = {}, .style = int(i)});
    for (std::size_t k = 0; k < counts.size(); ++k)
      plot.curves.back().points.push_back({counts[k], ways[i].errors[k]});
  }
  write_picture(pictures, "sums", plot);
}

}  // namespace

int main(int argc, char** argv) {
  std::string pictures;
  Program program("Shows the errors of sums by order and accumulator.");
  add_pictures(program, pictures);
  return program.run(argc, argv, [&] { run(pictures); });
}

// Conclusion. The format of the accumulator matters more than the format of the terms. Sum in f32,
// round once; if the sum itself must be short, add in pairs, or store what additions lose. Hardware
// and this library sum products of 16-bit numbers in f32.
//
// Exercises
// 1 (pencil). All terms are 1. At which sum does f16 stop, and how many terms does a pairwise sum
//   in f16 add up exactly?
// 2 (predict). Sort the numbers in ascending order before the sum "bf16, in order". Does its error
//   at n = 1024 change, and why? Then do it.
// 3 (implement). Tasks 5 and 15 of examples/exercises/: predict the error of a sum; test a dot
// product. 4 (design). A loss is a mean over a million elements in f16. Where do you put the
// division, and
//   what can overflow or underflow in each case?
