// Lesson 7: a loss scaler by hand. You will see the four methods of a GradScaler in your own loop:
// a scale that is too large skips a step and is halved; after enough clean steps it is doubled. You
// will also see how unscaling, clipping and accumulation work with it.
#include <array>
#include <cmath>
#include <cstdio>
#include <string>

#include <halftone/halftone.h>

#include "output.h"

namespace ht = halftone;

namespace {

struct Batch {
  ht::Tensor x, labels;
};
Batch batch_of(int64_t count) { return {ht::randn({count, 16}), ht::randint(0, 4, {count})}; }

/// Returns the loss under f16 autocast: gradients of activations are f16, whose largest number is
/// 65504.
ht::Tensor loss_of(ht::nn::Sequential& model, const Batch& batch) {
  return ht::amp::autocast(ht::f16,
                           [&] { return ht::cross_entropy(model(batch.x), batch.labels); });
}

double largest_gradient(const ht::nn::Sequential& model) {
  double largest = 0;
  for (const ht::Tensor& p : model.parameters())
    for (const double g : p.grad().to_vector<double>())
      largest = std::isnan(g) || largest < std::abs(g) ? std::abs(g) : largest;
  return largest;
}

std::string shown(double largest, int decimals) {
  if (!std::isfinite(largest)) return "overflow";
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, largest);
  return text.data();
}

/// Shows overflow, skipped step and smaller scale; then clean steps and growth; and so on.
void twenty_steps() {
  ht::manual_seed(0);
  ht::nn::Sequential model = ht::nn::models::mlp({16, 32, 4});
  ht::optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  ht::amp::GradScaler scaler({.init_scale = 0x1p24, .growth_interval = 4});
  std::printf("%4s %7s %24s %9s %7s\n", "step", "scale", "largest |scale * grad|", "weights",
              "clean");
  for (int step = 0; step < 20; ++step) {
    const double scale = scaler.scale_value();
    sgd.zero_grad();
    scaler.scale(loss_of(model, batch_of(32))).backward();
    const double largest = largest_gradient(model);
    const bool stepped = scaler.step(sgd);  // checks, and divides by the scale inside the update
    scaler.update();                        // once per step, in every case
    std::printf("%4d    2^%.0f %24s %9s %7ld\n", step, std::log2(scale), shown(largest, 0).c_str(),
                stepped ? "moved" : "stayed", long(scaler.loss_scale().growth_tracker));
  }
  std::printf(
      "\nclean: steps since the scale last changed. Four of them (PyTorch: 2000) double it, until\n"
      "it is too large again: the largest usable scale costs a skipped step now and then.\n"
      "Gradients of weights are f32 here. The overflows are in gradients of activations.\n");
}

/// Between backward and step, gradients are `scale` times too large: unscale them before clipping.
void unscaling() {
  ht::manual_seed(0);
  ht::nn::Sequential model = ht::nn::models::mlp({16, 32, 4});
  ht::optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  ht::amp::GradScaler scaler({.init_scale = 1024});
  const Batch batch = batch_of(32);
  ht::cross_entropy(model(batch.x), batch.labels).backward();
  std::printf("\nlargest gradient in f32, no scaler   %.6f\n", largest_gradient(model));
  sgd.zero_grad();
  scaler.scale(loss_of(model, batch)).backward();
  std::printf("  in f16, after backward             %.6f\n", largest_gradient(model));
  scaler.unscale(sgd);
  std::printf("  after unscale: clip here           %.6f\n", largest_gradient(model));
  try {
    scaler.unscale(sgd);
  } catch (const ht::UsageError& error) { std::printf("  once more: %s\n", error.what()); }
  ht::optim::clip_grad_norm(model.parameters(), 1.0);
  scaler.step(sgd);
  scaler.update();
}

/// Four micro-batches make one step: one scale for all, and one overflow check of their sum.
void accumulation() {
  std::printf("\n%-34s %18s %9s %8s\n", "four micro-batches of 8, one step", "largest gradient",
              "weights", "scale");
  for (const bool poisoned : {false, true}) {
    ht::manual_seed(0);
    ht::nn::Sequential model = ht::nn::models::mlp({16, 32, 4});
    ht::optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    ht::amp::GradScaler scaler({.init_scale = 1024});
    const Batch whole = batch_of(32);
    for (int64_t i = 0; i < 4; ++i) {
      Batch part{ht::slice(whole.x, 0, 8 * i, 8 * i + 8),
                 ht::slice(whole.labels, 0, 8 * i, 8 * i + 8)};
      if (poisoned && i == 2) part.x = part.x * 1e5;  // larger than f16's largest number
      scaler.scale(loss_of(model, part) / 4).backward();
    }
    scaler.unscale(sgd);
    const double largest = largest_gradient(model);
    const bool stepped = scaler.step(sgd);
    scaler.update();
    std::printf("%-34s %18s %9s %8.0f\n", poisoned ? "  the third has inputs of 1e5" : "  as above",
                shown(largest, 6).c_str(), stepped ? "moved" : "stayed", scaler.scale_value());
  }
  std::printf(
      "\nupdate() between micro-batches would add gradients of different scales: call it "
      "once per step.\nht::amp::apply() has these methods in one object: lesson 26.\n");
}

}  // namespace

int main() {
  twenty_steps();
  unscaling();
  accumulation();
  return after_output();
}
