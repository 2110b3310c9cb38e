// Lesson 15: scales for fp8. You will see one gradient over forty steps, as it shrinks, jumps and
// has outliers, in e4m3 under no scale, a current, a delayed and a block scale; why the first step
// of a delayed scale loses everything; and trainings under each. --pictures DIR draws the errors.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <halftone/halftone.h>

#include "drawing.h"

namespace ht = halftone;

namespace {

constexpr int steps = 40, jump = 20, history_length = 10;
constexpr float largest = 448;  // of e4m3

/// Normal numbers; one row in 128 is `outlier` times as large as the others.
ht::Tensor with_outliers(double outlier) {
  const ht::Tensor first = ht::arange(0, 128, 1) < 1;
  const ht::Tensor rows = ht::where(first, ht::full({}, outlier), ht::full({}, 1.0));
  return ht::randn({128, 512}) * ht::unsqueeze(rows, 1);
}

/// A gradient whose size falls by a tenth each step. In step 20 it is 1000 times as large.
ht::Tensor gradient_at(int step) {
  return with_outliers(32) * (1e-4 * std::pow(0.9, step) * (step == jump ? 1000 : 1));
}

double amax_of(const ht::Tensor& x) { return ht::max(ht::abs(x)).item(); }

/// Rounds x times s to e4m3, which saturates, and divides by s. s is a power of two or any number.
/// This lesson multiplies by its scale, as TransformerEngine does. The scale of
/// docs/number_formats.md is 1 / s: a quantizer divides by it.
ht::Tensor scaled(const ht::Tensor& x, double s) { return ht::quantize(x * s, "e4m3") / s; }

/// The largest magnitude of x itself becomes 448. A kernel has to read x twice.
ht::Tensor current(const ht::Tensor& x) { return scaled(x, largest / amax_of(x)); }

/// The scale of the step before, from the largest magnitude of the last ten steps. A kernel knows
/// it before it has computed x, and finds the next largest magnitude on its way.
struct Delayed {
  double scale = 1;
  std::vector<double> history{};
  ht::Tensor operator()(const ht::Tensor& x) {
    const ht::Tensor y = scaled(x, scale);
    history.push_back(amax_of(x));
    if (history.size() > history_length) history.erase(history.begin());
    scale = largest / *std::ranges::max_element(history);
    return y;
  }
};

/// The signal to noise in decibels; 6 dB are one bit. 0: nothing is left of x.
double decibels(const ht::Tensor& x, const ht::Tensor& y) {
  const double noise = ht::sum(ht::square(ht::cast(y - x, ht::f64))).item();
  return 10 * std::log10(ht::sum(ht::square(ht::cast(x, ht::f64))).item() / noise);
}

/// The share of all elements that became 0.
double lost(const ht::Tensor& x, const ht::Tensor& y) {
  const ht::Tensor zero = ht::equal(y, ht::full({}, 0.0));
  return ht::sum(ht::cast(zero, ht::f64)).item() / double(x.numel());
}

std::vector<svg::Curve> forty_steps() {
  const char* const names[] = {"none", "current", "delayed", "blocks of 32"};
  std::vector<svg::Curve> curves;
  for (int i = 0; i < 4; ++i)
    curves.push_back({.name = names[i], .points = {}, .style = i, .shapes = false});
  Delayed delayed;
  ht::manual_seed(0);
  std::printf("%4s %10s |", "step", "largest");
  for (const char* name : names) std::printf(" %18s", name);
  std::printf("\n%4s %10s |%s\n", "", "", " signal to noise, share of the elements that became 0");
  for (int step = 0; step < steps; ++step) {
    const ht::Tensor x = gradient_at(step);
    const ht::Tensor results[] = {ht::quantize(x, "e4m3"), current(x), delayed(x),
                                  ht::quantize(x, "mxfp8")};
    const bool shown = step < 3 || (step >= jump - 1 && step <= jump + 2) ||
                       (step >= jump + 10 && step <= jump + 12);
    if (shown) std::printf("%4d %10.2e |", step, amax_of(x));
    for (std::size_t i = 0; i < 4; ++i) {
      const double db = decibels(x, results[i]);
      curves[i].points.push_back({double(step), db});
      if (shown) std::printf(" %6.1f dB %5.1f %% 0", db, 100 * lost(x, results[i]));
    }
    if (shown) std::printf("\n");
  }
  std::printf(
      "\nnone      e4m3 begins at 0.002: at most the outliers are left.\n"
      "current   the same in each step.\n"
      "delayed   the first step has no history, so that its scale is 1. The jump saturates, since\n"
      "          the scale is from smaller steps; afterwards it is too small for ten steps.\n"
      "blocks    the same in each step, without a second pass over the whole tensor.\n");
  return curves;
}

/// The other rows of a tensor whose first row is large: a scale of the tensor is set by that row.
void outliers() {
  std::printf("\nsignal to noise of the other rows, if one row is N times as large\n");
  std::printf("%10s %12s %12s %14s %12s\n", "N", "e4m3 tensor", "e4m3 blocks", "e2m1 tensor",
              "e2m1 blocks");
  for (const double n : {1.0, 32.0, 2000.0, 100000.0}) {
    const ht::Tensor x = with_outliers(n);
    const auto others = [&](const ht::Quantizer& quantizer) {
      return decibels(ht::slice(x, 0, 1, 128), ht::slice(ht::quantize(x, quantizer), 0, 1, 128));
    };
    const ht::Quantizer e4m3 = *ht::quantizer_named("fp8_tensor"),
                        e2m1{.grid = ht::formats::e2m1, .scaling = ht::Scaling::per_tensor()};
    std::printf("%10.0f %12.1f %12.1f %14.1f %12.1f\n", n, others(e4m3),
                others(*ht::quantizer_named("mxfp8")), others(e2m1),
                others(*ht::quantizer_named("mxfp4")));
  }
  std::printf(
      "\nThe exponents of e4m3 cover outliers of a thousand. e2m1 has two bits of exponent, so "
      "that\n"
      "a scale per tensor leaves nothing of the other rows. Its blocks do not share a row.\n");
}

/// Trains a small network. Its loss has a factor of 1e-6, so that gradients are small; AdamW does
/// not depend on it.
void train(const char* what, const ht::amp::Policy& strategy) {
  ht::manual_seed(0);
  ht::nn::Sequential model = ht::nn::models::mlp({16, 64, 64, 4}),
                     teacher = ht::nn::models::mlp({16, 32, 4});
  ht::optim::AdamW adamw(model.parameters(), {.lr = 3e-3, .eps = 1e-20});
  ht::amp::Training training = ht::amp::apply(strategy, model, adamw);
  std::printf("  %-34s", what);
  for (int step = 0; step < 300; ++step) {
    const ht::Tensor x = ht::randn({64, 16});
    training.zero_grad();
    const ht::Tensor loss = ht::mse(training.forward(model, x), teacher(x).detach());
    training.backward(loss * 1e-6);
    training.step();
    if (step == 0 || (step + 1) % 100 == 0) std::printf("  %8.5f", loss.item());
  }
  std::printf("\n");
}

constexpr const char* unscaled = R"({
  "halftone_policy": 1, "name": "unscaled", "extends": "amp-bf16",
  "rules": [{"match": {"op": "linear", "path": "**"}, "compute": "f32", "result": "bf16",
             "input": "e4m3", "weight": "e4m3", "grad_output": "e5m2"}],
  "loss_scale": "none"
})";

void trainings() {
  std::printf("\nloss of a small network after 1, 100, 200 and 300 steps\n");
  train("bf16", ht::amp::Policy::named("amp-bf16"));
  train("e4m3, gradients e5m2, no scale", ht::policy::read_text(unscaled, "unscaled.json"));
  train("te_current", ht::policy::named_or_read("te_current"));
  train("te_delayed_hybrid", ht::policy::named_or_read("te_delayed_hybrid"));
  train("mxfp8", ht::policy::named_or_read("mxfp8"));
}

void run(const std::string& pictures) {
  omp_set_num_threads(1);  // the tensors are small
  const std::vector<svg::Curve> curves = forty_steps();
  outliers();
  trainings();
  write_picture(
      pictures, "fp8-scales",
      {.title = "Scales from earlier steps fail at first and after a jump; current ones do not",
       .x = {.label = "step"},
       .y = {.label = "dB"},
       .curves = curves,
       .width = 640});
}

}  // namespace

int main(int argc, char** argv) {
  std::string pictures;
  Program program("Shows a gradient in e4m3 under three scalings.");
  add_pictures(program, pictures);
  return program.run(argc, argv, [&] { run(pictures); });
}

// Conclusion. 8 bits need a scale. A current scale costs a second pass over the tensor, a delayed
// one is wrong when sizes change, a block scale costs bits and is local. Formats of 4 bits have
// blocks only: lesson 16.
//
// Exercises
// 1 (pencil). A tensor has the largest magnitude 3. Compute the current scale of e4m3, the MXFP8
//   scale of a block with that magnitude (floor), and the stored number in both.
// 2 (predict). Let Delayed take the latest magnitude in place of the largest of ten. What do the
//   steps 21 to 30 look like? And what happens if the size alternates between two values?
// 3 (implement). Task 12 of examples/exercises/: delayed scaling, and why the first step
// underflows. 4 (design). A scale from history must be saved in checkpoints. What happens after a
// resume
//   without it, and how would you start a first step in place of the scale 1?
