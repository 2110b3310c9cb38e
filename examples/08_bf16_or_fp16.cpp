// Lesson 8: bf16 or f16? Both take two bytes. You will see where the gradients of a training lie,
// how many of them f16 cannot hold, which loss scale the histogram asks for, and that training
// fails without one and succeeds with it. bf16 has the range of f32 and needs none.
#include <cmath>
#include <iostream>
#include <map>

#include "fashion.h"
#include "program.h"

namespace ht = halftone;

namespace {

/// Counts the gradients that pass through it by their exponents.
struct Histogram {
  std::map<int, int64_t> counts;
  int64_t zeros = 0, total = 0;

  void add(const ht::Tensor& gradient) {
    for (const double g : gradient.to_vector<double>()) {
      ++total;
      if (g == 0) ++zeros;
      else ++counts[std::ilogb(g)];
    }
  }
  /// The share of the gradients that are not zero which lies below 2^exponent.
  double below(int exponent) const {
    int64_t sum = 0;
    for (const auto& [e, count] : counts)
      if (e < exponent) sum += count;
    return double(sum) / double(total - zeros);
  }
  int largest() const { return counts.rbegin()->first; }
};

/// An operation that does nothing but look at the gradient: dx = dy.
struct Tap final : ht::UserOp {
  static constexpr ht::OpInfo info{"tap", ht::CastClass::as_is};
  Histogram* histogram;
  explicit Tap(Histogram* to) : histogram(to) {}
  ht::Tensor forward(const ht::Tensor& x) { return x.clone(); }
  std::array<ht::Tensor, 1> backward(const ht::Tensor& dy) const {
    histogram->add(dy);
    return {dy};
  }
};

struct Arguments {
  std::string data, device = "cpu";
  int64_t limit = 12000, epochs = 2;
};

/// An auxiliary loss that counts little: its gradients are small, as are those of a mean over the
/// pixels of a batch.
constexpr double loss_weight = 1e-5;

struct Run {
  ht::nn::Sequential model;
  std::vector<Histogram> taps{3};
  bool watched = false;

  Run() : model((ht::manual_seed(0), ht::nn::models::mlp({784, 256, 128, 10}))) {}
  ht::Tensor operator()(const ht::Tensor& images) {
    ht::Tensor x = ht::flatten(images, 1, -1);
    for (int layer = 0, tap = 0; layer < model.size(); ++layer) {
      x = model[layer](x);
      if (watched && layer % 2 == 0) x = ht::apply(Tap(&taps[std::size_t(tap++)]), x);
    }
    return x;
  }
};

struct Images {
  ht::data::ByteImages train, test;
  ht::Device device;
};

/// Trains a new model, says how well, and returns it.
Run train(const char* what, const ht::amp::Strategy& strategy, const Images& images, int64_t epochs,
          bool watched = false) {
  Run run;
  run.watched = watched;
  run.model.to(images.device);
  ht::optim::AdamW adamw(run.model.parameters(), {.lr = 1e-3, .eps = 1e-15});
  ht::amp::Training training = ht::amp::apply(strategy, run.model, adamw);
  ht::data::DataLoader loader(images.train,
                              {.batch_size = 128, .shuffle = true, .device = images.device});
  const auto logits = [&](const ht::Tensor& x) { return training.forward(run, x); };
  for (int64_t epoch = 0; epoch < epochs; ++epoch)
    for (auto [inputs, labels] : loader) {
      training.zero_grad();
      training.backward(ht::cross_entropy(logits(inputs), labels) * loss_weight);
      training.step();
    }
  run.watched = false;
  std::printf("%-34s test accuracy %6.2f %%", what,
              100 * accuracy_of(logits, images.test, images.device));
  const double scale = training.scaler().scale_value();
  std::printf(strategy.scales_loss ? ", scale at the end %g\n" : "\n", scale);
  return run;
}

void print_histogram(const Run& run) {
  std::printf("\ngradients of the three layers' outputs in f32, share per binade:\n\n");
  for (int e = -52; e <= -16; e += 2) {
    std::printf("  2^%-4d", e);
    for (const Histogram& h : run.taps) {
      const double share = h.below(e + 2) - h.below(e);
      std::printf(" %5.1f %% %-12s", 100 * share,
                  std::string(std::size_t(share * 36), '#').c_str());
    }
    std::printf("%s\n", e == -24 ? "  <- f16 begins here, at 6.0e-8; what is above becomes 0" : "");
  }
}

/// The power of two that lifts all but a thousandth of every layer's gradients out of what f16
/// rounds to zero, as far as its range (up to 2^16) has room above them.
double predicted_scale(const Run& run) {
  int lift = 0, room = 60;
  for (const Histogram& h : run.taps) {
    int lowest = h.counts.begin()->first;
    while (h.below(lowest) < 1e-3) ++lowest;
    lift = std::max(lift, -24 - lowest), room = std::min(room, 14 - h.largest());
  }
  return std::ldexp(1.0, std::min(lift, room));
}

void run(const Arguments& arguments) {
  using ht::data::Split;
  const Images images{fashion_images(Split::train, arguments.data, arguments.limit),
                      fashion_images(Split::test, arguments.data, arguments.limit),
                      ht::device_named(arguments.device)};
  ht::amp::Strategy f16 = ht::amp::Strategy::named("amp-fp16");
  const ht::amp::Strategy f32 = ht::amp::Strategy::named("fp32"), dynamic = f16,
                          bf16 = ht::amp::Strategy::named("amp-bf16");
  const Run wide = train("f32", f32, images, arguments.epochs, true);
  print_histogram(wide);
  std::printf("\nrounded to zero by f16:");
  for (const Histogram& h : wide.taps) std::printf("  %.1f %%", 100 * h.below(-25));
  const double scale = predicted_scale(wide);
  std::printf("\na loss scale of %g = 2^%d would keep them\n\n", scale, std::ilogb(scale));

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
  Program program("Where gradients lie, and what f16 needs to hold them.");
  program.flag("--data", arguments.data, "directory of Fashion-MNIST; default: the usual places");
  program.flag("--limit", arguments.limit, "images used").positive();
  program.flag("--epochs", arguments.epochs).within(1, 100);
  program.device(arguments.device);
  return program.run(argc, argv, [&] { run(arguments); });
}
