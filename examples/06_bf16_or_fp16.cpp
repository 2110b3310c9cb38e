// Lesson 6: bf16 or f16? Both use two bytes. You will see the sizes of a training's gradients, how
// many of them f16 cannot represent, which loss scale the histogram suggests, and that training
// fails without a scale and succeeds with it. bf16 has the range of f32 and needs none.
#include <cmath>
#include <iostream>
#include <optional>

#include "fashion.h"

namespace ht = halftone;

namespace {

struct Arguments {
  std::string data, device = "cpu";
  int64_t limit = 12000, epochs = 2;
};

/// The weight of an auxiliary loss: its gradients are small, like those of a mean over all pixels
/// of a batch.
constexpr double loss_weight = 1e-5;

/// A trained model, and the probe's counts for the gradients of the three layers' outputs.
struct Run {
  ht::nn::Sequential model;
  std::vector<ht::Survey> gradients{3};

  Run() : model((ht::manual_seed(0), ht::nn::models::mlp({784, 256, 128, 10}))) {}
};

struct Images {
  ht::data::ByteImages train, test;
  ht::Device device;
};

/// Trains a new model, prints its accuracy, and returns it.
Run train(const char* what, const ht::amp::Policy& strategy, const Images& images, int64_t epochs,
          bool watched = false) {
  Run run;
  run.model.to(images.device);
  ht::optim::AdamW adamw(run.model.parameters(), {.lr = 1e-3, .eps = 1e-15});
  ht::amp::Training training = ht::amp::apply(strategy, run.model, adamw);
  std::optional<ht::policy::Probe> probe;
  if (watched) probe.emplace(training, ht::policy::ProbeOptions{.every = 10, .updates = false});
  ht::data::DataLoader loader(
      images.train, {.batch_size = 128, .shuffle = true, .seed = 0, .device = images.device});
  const auto logits = [&](const ht::Tensor& x) {
    return training.forward([&](const ht::Tensor& in) { return run.model(ht::flatten(in, 1, -1)); },
                            x);
  };
  for (int64_t epoch = 0; epoch < epochs; ++epoch)
    for (auto [inputs, labels] : loader) {
      training.zero_grad();
      training.backward(ht::cross_entropy(logits(inputs), labels) * loss_weight);
      training.step();
    }
  if (probe)
    for (const ht::policy::ProbeRow& row : probe->rows())
      for (int layer = 0; layer < 3; ++layer)
        if (row.site == std::to_string(2 * layer) + "/linear.0" &&
            row.role == ht::policy::Role::grad_output)
          run.gradients[std::size_t(layer)].merge(row.survey);
  std::printf("%-34s test accuracy %6.2f %%", what,
              100 * accuracy_of(logits, images.test, images.device));
  const double scale = training.scaler().scale_value();
  std::printf(strategy.scales_loss ? ", scale at the end %g\n" : "\n", scale);
  return run;
}

void print_histogram(const Run& run) {
  std::printf("\ngradients of the three layers' outputs in f32, share per two binades:\n\n");
  for (int e = -52; e <= -16; e += 2) {
    std::printf("  2^%-4d", e);
    for (const ht::Survey& survey : run.gradients) {
      const double share = survey.share_below(e + 2) - survey.share_below(e);
      std::printf(" %5.1f %% %-12s", 100 * share,
                  std::string(std::size_t(share * 36), '#').c_str());
    }
    std::printf(
        "%s\n",
        e == -24 ? "  <- f16's smallest number is 6.0e-8; smaller ones (rows above) become 0 or it"
                 : "");
  }
}

/// Returns the power of two that lifts all but a thousandth of every layer's gradients above the
/// numbers that f16 rounds to zero. The room of f16's range above the gradients limits it.
double predicted_scale(const Run& run) {
  int lift = -100, room = 100;
  for (const ht::Survey& survey : run.gradients) {
    lift = std::max(lift, survey.sufficient_lift(ht::formats::f16).value_or(0));
    room = std::min(room, 15 - std::ilogb(survey.sums.largest));
  }
  return std::ldexp(1.0, std::min(lift, room));
}

void run(const Arguments& arguments) {
  using ht::data::Split;
  const Images images{fashion_images(Split::train, arguments.data, arguments.limit),
                      fashion_images(Split::test, arguments.data, arguments.limit),
                      ht::device_named(arguments.device)};
  ht::amp::Policy f16 = ht::amp::Policy::named("amp-fp16");
  const ht::amp::Policy f32 = ht::amp::Policy::named("fp32"), dynamic = f16,
                        bf16 = ht::amp::Policy::named("amp-bf16");
  const Run wide = train("f32", f32, images, arguments.epochs, true);
  print_histogram(wide);
  std::printf("\nrounded to zero by f16:");
  for (const ht::Survey& survey : wide.gradients)
    std::printf("  %.1f %%", 100 * survey.would_underflow(ht::formats::f16));
  const double scale = predicted_scale(wide);
  std::printf("\na loss scale of %g = 2^%d would avoid that\n\n", scale, std::ilogb(scale));

  train("bf16, no loss scale", bf16, images, arguments.epochs);
  f16.scales_loss = false;
  train("f16, no loss scale", f16, images, arguments.epochs);
  f16.scales_loss = true, f16.loss_scale = {.init_scale = scale, .dynamic = false};
  train("f16, the scale predicted above", f16, images, arguments.epochs);
  train("f16, dynamic loss scale", dynamic, images, arguments.epochs);
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  Program program("Shows the sizes of gradients, and the loss scale that f16 needs for them.");
  program.flag("--data", arguments.data, "directory of Fashion-MNIST; default: the usual places");
  program.flag("--limit", arguments.limit, "images used").positive();
  program.flag("--epochs", arguments.epochs).within(1, 100);
  program.device(arguments.device);
  return program.run(argc, argv, [&] { run(arguments); });
}

// Conclusion. f16 loses gradients at its small end, and one power of two repairs that for all
// layers. bf16 needs no scale and has three bits less. A dynamic scale finds the power of two by
// itself: lesson 7 writes one.
//
// Exercises
// 1 (pencil). The smallest f16 number is 2^-24. Which loss scale lifts gradients of 2^-38 to it,
//   and how large may the largest gradient be, so that it does not overflow?
// 2 (predict). Set loss_weight to 1. Which rows of the histogram are below the mark now, and what
//   does f16 without a scale reach?
// 3 (implement). Print the share that e5m2 and e4m3 round to zero as well. Is one scale for all
//   three layers enough there?
