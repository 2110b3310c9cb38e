// Lesson 14: how errors spread. You will see the four numbers that `halftone-lab compare` prints
// for each tensor, computed by hand: the error of one rounding over its prediction, the error of
// one operation, its amplification, and the distance from a run in f32. You will see that errors
// add up as roots of sums of squares, and which operations amplify them.
#include <cmath>
#include <cstdio>
#include <string>

#include <halftone/halftone.h>

#include "output.h"

namespace ht = halftone;

namespace {

/// ||y - x|| / ||x||, in f64.
double error(const ht::Tensor& x, const ht::Tensor& y) {
  const ht::Tensor exact = ht::cast(x, ht::f64), difference = ht::cast(y, ht::f64) - exact;
  return std::sqrt(ht::sum(ht::square(difference)).item() / ht::sum(ht::square(exact)).item());
}

/// The error that a format of p significand bits predicts for one rounding. If significands are
/// log-uniform, the error of p = 1 is sqrt(3 / (96 ln 2)) = 0.2123.
double predicted(int significand_bits) {
  return std::sqrt(3 / (96 * std::log(2.0))) * std::ldexp(1.0, 1 - significand_bits);
}
const double unit = predicted(8);  // bf16

ht::Tensor in_bf16(const ht::Tensor& x) { return ht::quantize(x, "bf16"); }

void one_rounding() {
  std::printf("1. rounding: the error of one rounding over its prediction\n\n");
  std::printf("%-34s %-6s %10s %10s %9s\n", "tensor", "to", "error", "predicted", "rounding");
  const ht::Tensor normal = ht::randn({1000, 1000});
  const auto line = [](const char* what, const ht::Tensor& x, const char* format) {
    const double got = error(x, ht::quantize(x, format)),
                 wanted = predicted(ht::number_format_named(format)->significand_bits);
    std::printf("%-34s %-6s %10.2e %10.2e %9.2f\n", what, format, got, wanted, got / wanted);
  };
  for (const char* format : {"bf16", "f16", "e4m3"}) line("normal numbers", normal, format);
  line("the same times 1e-7: subnormal", normal * 1e-7, "f16");
  line("the same times 300: saturates", normal * 300, "e4m3");
  line("one number, 1.0039: near a tie", ht::full({1000}, 1.0039), "bf16");
  std::printf(
      "\nA ratio near 1 says that the format does what it can. A large one has a cause: numbers\n"
      "below or above its range, a scale that is wrong, or numbers that are not spread.\n");
}

/// Prints the error of one operation on operands in bf16, and its amplification.
template <class Operation>
void line(const char* what, const ht::Tensor& a, const ht::Tensor& b, const Operation& operation) {
  const ht::Tensor exact = operation(a, b), short_operands = operation(in_bf16(a), in_bf16(b));
  const double local = error(exact, in_bf16(short_operands));
  const double operands = std::hypot(error(a, in_bf16(a)), error(b, in_bf16(b)));
  std::printf("%-46s %10.2e %10.2f\n", what, local, local / std::hypot(operands, unit));
}

void one_operation() {
  std::printf("\n2. local and amplification: one operation, operands and result in bf16\n\n");
  std::printf("%-46s %10s %13s\n", "operation", "local", "amplification");
  const ht::Tensor a = ht::randn({256, 512}), b = ht::randn({512, 256}), c = ht::randn({256, 512});
  line("a b, 512 terms", a, b, [](const auto& x, const auto& y) { return ht::matmul(x, y); });
  line("a + c", a, c, [](const auto& x, const auto& y) { return x + y; });
  line("a c", a, c, [](const auto& x, const auto& y) { return x * y; });
  line("sum of |a| over 512: errors average", a, b,
       [](const auto& x, const auto&) { return ht::sum(ht::abs(x), {1}); });
  line("(a + 100) - mean: cancels 100", a + 100, b,
       [](const auto& x, const auto&) { return x - ht::mean(x, {1}, true); });
  line("exp(10 a): an absolute error becomes relative", a * 10, b,
       [](const auto& x, const auto&) { return ht::exp(x); });
  line("softmax(10 a)", a * 10, b, [](const auto& x, const auto&) { return ht::softmax(x, 1); });
  std::printf(
      "\nlocal: the distance from the same operation on exact operands. amplification: local over\n"
      "the root of the sum of squares of what came in and of the result's own rounding. A product\n"
      "has about 1, however many terms it has. A subtraction of near numbers and exp have more.\n");
}

/// A chain of products: both runs, the errors by depth, and the prediction.
void a_chain() {
  std::printf("\n3. twin: the distance from the run in f32, over 64 layers\n\n");
  std::printf("%6s %14s %22s %14s\n", "layer", "products only", "3 roundings, predicted",
              "with tanh");
  ht::manual_seed(0);
  const ht::Tensor start = ht::randn({128, 256});
  ht::Tensor exact = start, rounded = start, exact_tanh = start, rounded_tanh = start;
  const int layers = 64;
  for (int layer = 1; layer <= layers; ++layer) {
    const ht::Tensor w = ht::randn({256, 256}) / 16;  // keeps the size: 1 / sqrt(256)
    exact = ht::matmul(exact, w);
    rounded = in_bf16(ht::matmul(in_bf16(rounded), in_bf16(w)));
    exact_tanh = ht::tanh(ht::matmul(exact_tanh, w));
    rounded_tanh = in_bf16(ht::tanh(ht::matmul(in_bf16(rounded_tanh), in_bf16(w))));
    // The result of a layer is already in bf16: its cast as an operand does not round.
    const double roundings = 2.0 * layer + 1;
    if ((layer & (layer - 1)) == 0)
      std::printf("%6d %14.2e %22.2e %14.2e\n", layer, error(exact, rounded),
                  unit * std::sqrt(roundings), error(exact_tanh, rounded_tanh));
  }
  std::printf(
      "\nIndependent errors add up as squares: 64 layers err 8 times as much as one, not 64 "
      "times.\n"
      "So a run drifts from its twin slowly, and a difference from the twin alone proves no "
      "fault.\n"
      "The first tensor whose rounding or amplification is large is the one to look at.\n");
}

}  // namespace

int main() {
  ht::manual_seed(0);
  one_rounding();
  one_operation();
  a_chain();
  std::printf(
      "\nFor every tensor of a model, forward and backward:\n"
      "  halftone-lab compare te_delayed_hybrid --workload gpt_tiny\n");
  return after_output();
}

// Conclusion. An error has three parts: what a rounding adds, what an operation makes of it, and
// what the layers before have added up. `compare` separates them, so that the first wrong tensor is
// found even if all later ones differ.
//
// Exercises
// 1 (pencil). A number is uniform between two neighbors of spacing s. Derive the root mean square
//   error of nearest rounding, s / sqrt(12), and of stochastic rounding, s / sqrt(6).
// 2 (predict). Replace bf16 by f16 in part 3. By which factor do all errors shrink? Why not in the
//   row of subnormal numbers in part 1?
// 3 (implement). Add gelu(a), a / c and layer_norm(a + 100) to part 2. Sort them by amplification
//   before you run.
// 4 (design). A rounding has a ratio of 30 in one layer. List the measurements that tell a stale
//   scale from an outlier. Then read `halftone-lab compare --help` and docs/telemetry.md.
