// The correct implementations and the mutants of task 15.
#include "grade.h"

#include "mutants.h"

#include TASK

namespace {

using Span = std::span<const float>;

float left_to_right(Span a, Span b) {
  float sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}
float right_to_left(Span a, Span b) {
  float sum = 0;
  for (std::size_t i = a.size(); i-- > 0;) sum += a[i] * b[i];
  return sum;
}
float eight_lanes(Span a, Span b) {
  float lanes[8] = {}, sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) lanes[i % 8] += a[i] * b[i];
  for (const float lane : lanes) sum += lane;
  return sum;
}
float fused(Span a, Span b) {
  float sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum = std::fma(a[i], b[i], sum);
  return sum;
}
float in_f64(Span a, Span b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double(a[i]) * b[i];
  return float(sum);
}
/// The sum with a function applied to each product, and one to the sum after every `block` terms.
template <class OfProduct, class OfSum>
float changed(Span a, Span b, std::size_t block, OfProduct product, OfSum sum_of) {
  float sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += product(a[i] * b[i]);
    if ((i + 1) % block == 0) sum = sum_of(sum);
  }
  return sum;
}
float same_number(float x) { return x; }
float bf16(float x) { return numbers::bf16(x); }
float f16(float x) { return numbers::rounded(x, 11, -14, 65504, true); }

const std::vector<grade::Named<Dot>> correct{{"f32, from the left", left_to_right},
                                             {"f32, from the right", right_to_left},
                                             {"f32, eight lanes", eight_lanes},
                                             {"f32, fused multiply-add", fused},
                                             {"f64", in_f64}};
const std::vector<grade::Named<Dot>> mutants{
    {"the sum is bf16", [](Span a, Span b) { return changed(a, b, 1, same_number, bf16); }},
    {"the sum is rounded to bf16 after each block of 256",
     [](Span a, Span b) { return changed(a, b, 256, same_number, bf16); }},
    {"products are rounded to bf16",
     [](Span a, Span b) { return changed(a, b, 1, bf16, same_number); }},
    {"the result is rounded to 11 bits, as in TF32",
     [](Span a, Span b) { return numbers::rounded(left_to_right(a, b), 11, -126, 1e38); }},
    {"without products the result is NaN",
     [](Span a, Span b) { return a.empty() ? std::nanf("") : left_to_right(a, b); }},
    {"the result is rounded to bf16", [](Span a, Span b) { return bf16(left_to_right(a, b)); }},
    {"the sum is f16", [](Span a, Span b) { return changed(a, b, 1, same_number, f16); }},
    {"large products are infinite, as in f16",
     [](Span a, Span b) {
       return changed(
           a, b, 1,
           [](float p) {
             return std::fabs(p) >= 65520 ? p * std::numeric_limits<float>::infinity() : p;
           },
           same_number);
     }},
    {"small products are 0, as in f16",
     [](Span a, Span b) {
       return changed(
           a, b, 1, [](float p) { return std::fabs(p) < 0x1p-25f ? 0 : p; }, same_number);
     }},
    {"the last product of an odd number is left out",
     [](Span a, Span b) {
       const std::size_t n = a.size() / 2 * 2;
       return left_to_right(a.first(n), b.first(n));
     }},
    {"the rest after vectors of 8 is left out if there are more than 64",
     [](Span a, Span b) {
       const std::size_t n = a.size() > 64 ? a.size() / 8 * 8 : a.size();
       return left_to_right(a.first(n), b.first(n));
     }},
    {"the sign of a product is that of a",
     [](Span a, Span b) {
       float sum = 0;
       for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * std::fabs(b[i]);
       return sum;
     }},
    {"products beyond number 32768 are left out: a 16-bit index",
     [](Span a, Span b) {
       const std::size_t n = std::min<std::size_t>(a.size(), 32768);
       return left_to_right(a.first(n), b.first(n));
     }},
    {"NaN counts as 0",
     [](Span a, Span b) {
       return changed(
           a, b, 1, [](float p) { return std::isnan(p) ? 0 : p; }, same_number);
     }},
};

}  // namespace

void grade::tests() {
  group("correct implementations are accepted", "sums",
        "A tolerance relative to the result fails for right code when terms cancel.",
        [] { judge(accepts, correct, true); });
  group("mutants are rejected", "sums",
        "A short product does not test accumulation (docs/exercises.md, break 7).",
        [] { judge(accepts, mutants, false); });
}
