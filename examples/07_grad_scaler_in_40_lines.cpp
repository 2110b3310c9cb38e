// Lesson 7: a GradScaler in 40 lines. You will see the four methods of a loss scaler written out,
// that a training with them has the bits of the library's GradScaler, and how overflow, skipped
// steps, growth, unscaling and accumulation work. --pictures DIR draws the life of a loss scale.
#include <array>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include <halftone/halftone.h>

#include "drawing.h"

namespace ht = halftone;

namespace {

/// Multiplies the loss by a scale, and divides the gradients by it before the update.
class Scaler {
 public:
  Scaler(double scale, int growth_interval) : scale_(scale), growth_interval_(growth_interval) {}

  ht::Tensor scale(const ht::Tensor& loss) const { return loss * scale_; }

  /// Divides gradients by the scale, once per step, and notes infinities and NaN.
  void unscale(const ht::optim::Optimizer& optimizer) {
    if (unscaled_) throw std::logic_error("unscale() called twice: call update() once per step.");
    const ht::NoGrad no_grad;
    for (ht::Tensor p : optimizer.parameters()) {
      if (!p.grad().defined()) continue;
      p.set_grad(p.grad() * (1 / scale_));  // exact: the scale is a power of two
      overflowed_ |= !bool(ht::all(ht::isfinite(p.grad())).item());
    }
    unscaled_ = true;
  }

  /// Updates the weights, unless a gradient overflowed. Returns whether it did.
  bool step(ht::optim::Optimizer& optimizer) {
    if (!unscaled_) unscale(optimizer);
    if (!overflowed_) optimizer.step();
    return !overflowed_;
  }

  /// Overflow halves the scale; a long run of clean steps doubles it.
  void update() {
    if (overflowed_) scale_ /= 2, clean_steps_ = 0;
    else if (++clean_steps_ == growth_interval_) scale_ *= 2, clean_steps_ = 0;
    unscaled_ = overflowed_ = false;
  }

  double scale_value() const { return scale_; }
  int clean_steps() const { return clean_steps_; }

 private:
  double scale_;
  int growth_interval_, clean_steps_ = 0;
  bool unscaled_ = false, overflowed_ = false;
};

struct Batch {
  ht::Tensor x, labels;
};

/// The label is the largest of the first four numbers.
Batch batch_of(int64_t count) {
  const ht::Tensor x = ht::randn({count, 16});
  return {x, ht::argmax(ht::slice(x, 1, 0, 4), 1)};
}

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

/// Trains with the library's GradScaler and with the one above, side by side. Returns the scale of
/// each step, negative if the step was skipped.
std::vector<double> side_by_side(int steps, double scale, int growth_interval, bool prints) {
  std::vector<double> life;
  ht::manual_seed(0);
  ht::nn::Sequential mine = ht::nn::models::mlp({16, 32, 4});
  ht::manual_seed(0);
  ht::nn::Sequential other = ht::nn::models::mlp({16, 32, 4});
  ht::optim::Sgd my_sgd(mine.parameters(), {.lr = 0.1}), other_sgd(other.parameters(), {.lr = 0.1});
  Scaler my_scaler(scale, growth_interval);
  ht::amp::GradScaler other_scaler({.init_scale = scale, .growth_interval = growth_interval});
  if (prints)
    std::printf("%4s %7s %24s %9s %7s\n", "step", "scale", "largest |scale * grad|", "weights",
                "clean");
  for (int step = 0; step < steps; ++step) {
    const Batch batch = batch_of(32);
    const double now = my_scaler.scale_value();
    my_sgd.zero_grad(), other_sgd.zero_grad();
    my_scaler.scale(loss_of(mine, batch)).backward();
    const double largest = largest_gradient(mine);
    const bool stepped = my_scaler.step(my_sgd);
    my_scaler.update();  // once per step, in every case
    other_scaler.scale(loss_of(other, batch)).backward();
    other_scaler.step(other_sgd);
    other_scaler.update();
    life.push_back(stepped ? now : -now);
    if (prints)
      std::printf("%4d    2^%.0f %24s %9s %7d\n", step, std::log2(now), shown(largest, 0).c_str(),
                  stepped ? "moved" : "stayed", my_scaler.clean_steps());
  }
  int64_t unequal = my_scaler.scale_value() != other_scaler.scale_value() ? 1 : 0;
  for (std::size_t i = 0; i < mine.parameters().size(); ++i)
    unequal += int64_t(ht::sum(ht::cast(ht::not_equal(mine.parameters()[i].detach(),
                                                      other.parameters()[i].detach()),
                                        ht::f64))
                           .item());
  std::printf("\nafter %d steps, weights and scale that differ from the library's: %ld\n", steps,
              long(unequal));
  return life;
}

void twenty_steps() {
  side_by_side(20, 0x1p24, 4, true);
  std::printf(
      "clean: steps since the scale last changed. Four of them (PyTorch: 2000) double it, until "
      "it\n"
      "is too large again: the largest usable scale costs a skipped step now and then. Gradients "
      "of\n"
      "weights are f32 here. The overflows are in gradients of activations.\n");
}

/// Between backward and step, gradients are `scale` times too large: unscale them before clipping.
void unscaling() {
  ht::manual_seed(0);
  ht::nn::Sequential model = ht::nn::models::mlp({16, 32, 4});
  ht::optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  Scaler scaler(1024, 2000);
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
  } catch (const std::logic_error& error) { std::printf("  once more: %s\n", error.what()); }
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
    Scaler scaler(1024, 2000);
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
      "\nupdate() between micro-batches would add gradients of different scales: call it once per\n"
      "step. The library's amp::GradScaler has the same methods, and amp::apply() (lesson 26) has\n"
      "them in one object. On a GPU its check stays on the device, so that the host does not "
      "wait.\n");
}

void draw(const std::string& pictures) {
  svg::Plot plot{
      .title = "A loss scale doubles after 50 clean steps, and halves where one overflows",
      .x = {.label = "step"},
      .y = {.label = "log2 of the scale"},
      .width = 640};
  plot.curves.push_back({.name = "scale", .points = {}, .staircase = true, .shapes = false});
  const std::vector<double> life = side_by_side(1000, 0x1p24, 50, false);
  for (std::size_t step = 0; step < life.size(); ++step) {
    const svg::Point at{double(step), std::log2(std::abs(life[step]))};
    plot.curves.front().points.push_back(at);
    if (life[step] < 0) plot.curves.push_back({.name = "skipped step", .points = {at}, .style = 1});
  }
  write_picture(pictures, "scale-life", plot);
}

void run(const std::string& pictures) {
  twenty_steps();
  unscaling();
  accumulation();
  if (!pictures.empty()) draw(pictures);
}

}  // namespace

int main(int argc, char** argv) {
  std::string pictures;
  Program program("Trains with a loss scaler of 40 lines.");
  add_pictures(program, pictures);
  return program.run(argc, argv, [&] { run(pictures); });
}

// Conclusion. A dynamic loss scale tests its own limit: it grows until a step overflows, and that
// step is lost, not the training. The order of a step is scale, backward, unscale, clip, step,
// update.
//
// Exercises
// 1 (pencil). The scale starts at 65536 and the largest one without overflow is 2^20. After how
//   many steps is it reached with an interval of 2000, and which share of the steps after that is
//   lost?
// 2 (predict). In step(), take the update even if a gradient overflowed. What do the next rows of
//   the table show? (Break 4 of docs/exercises.md.)
// 3 (implement). Tasks 6 and 7 of examples/exercises/: the next state of a scaler; unscale, clip,
// skip. 4 (design). A model has one loss whose gradients overflow in every fifth step. Design a
// rule of
//   hysteresis that does not halve the scale each time, and say what it costs.
