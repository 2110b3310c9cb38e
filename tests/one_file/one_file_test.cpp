// examples/one_file.cpp computes what the library computes: numbers, random words, weight forms and
// loss scales to the bit, and the losses of 100 steps within a tolerance.
#define ONE_FILE_WITHOUT_MAIN
#include "examples/one_file.cpp"

#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <string_view>

#include <halftone/amp/policy.h>
#include <halftone/core/update_rules.h>
#include <halftone/halftone.h>

namespace halftone::test::one_file_test {
namespace {

/// Floats of every exponent and sign, with fractions that are difficult for rounding: ties, and
/// their neighbors.
std::vector<float> hard_floats() {
  std::vector<float> result;
  for (uint32_t upper = 0; upper < 0x10000; ++upper)
    for (const uint32_t lower :
         {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xf000u, 0xffffu})
      result.push_back(std::bit_cast<float>(upper << 16 | lower));
  return result;
}

TEST_CASE("one file: rounding and widening") {
  int wrong = 0;
  for (const float x : hard_floats()) {
    wrong += one_file::to_bf16(x) != BFloat16(x).bits;
    wrong += !std::isnan(x) && one_file::to_f16(x) != Float16(x).bits;
    wrong += std::isnan(x) && !std::isnan(one_file::from_f16(one_file::to_f16(x)));
  }
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = uint16_t(bits);
    const auto same = [](float a, float b) {
      return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
    };
    wrong += !same(one_file::from_bf16(half), float(BFloat16::from_bits(half)));
    wrong += !same(one_file::from_f16(half), float(Float16::from_bits(half)));
  }
  CHECK(wrong == 0);
}

TEST_CASE("one file: random words") {
  for (uint64_t i = 0; i < 100; ++i) {
    const uint64_t seed = i * 0x9e3779b97f4a7c15u, counter = i << (i % 40);
    CHECK(one_file::random_words(seed, counter) == Philox::words(seed, counter));
  }
}

/// The number of floats for which a form of the file stores, or reads, other bits than the library.
template <class Form> int differences(one_file::Form form) {
  int wrong = 0;
  uint32_t random = 0;
  for (const float weight : hard_floats()) {
    if (!std::isfinite(weight)) continue;
    random = random * 1664525 + 1013904223;
    const auto chance = uint16_t(random >> 16);
    const auto rounded = float(BFloat16(weight));
    const KeptWeight<float> kept = Form::encode(weight, rounded, chance);
    const one_file::Stored stored = one_file::encode(form, weight, one_file::bf16, chance);
    const float read = Form::decode(kept.parameter, kept.companion);
    const float read_here = one_file::decode(form, stored);
    wrong += std::memcmp(&kept.parameter, &stored.parameter, sizeof(float)) != 0;
    const bool has_companion = one_file::companion_dtype(form).has_value();
    wrong += has_companion && std::memcmp(&kept.companion, &stored.companion, sizeof(float)) != 0;
    wrong += std::memcmp(&read, &read_here, sizeof(float)) != 0 && !std::isnan(read);
  }
  return wrong;
}

TEST_CASE("one file: weight forms") {
  CHECK(differences<form::Plain>(one_file::Form::plain) == 0);
  CHECK(differences<form::Master>(one_file::Form::master) == 0);
  CHECK(differences<form::SplitRounded>(one_file::Form::split) == 0);
  CHECK(differences<form::Kahan>(one_file::Form::kahan) == 0);
  CHECK(differences<form::Stochastic>(one_file::Form::stochastic) == 0);
}

TEST_CASE("one file: loss scales") {
  one_file::LossScaler scaler{.enabled = true, .growth_interval = 3};
  amp::LossScale scale{.options = {.growth_interval = 3}};
  for (int step = 0; step < 100; ++step) {
    const bool overflowed = one_file::random_words(0, uint64_t(step))[0] % 5 == 0;
    scaler.update(overflowed), scale = amp::next(scale, overflowed);
    CHECK(scaler.value() == scale.scale);
  }
}

struct Net final : nn::Layer {
  nn::Linear first{784, 64}, second{64, 64}, third{64, 10};
  Tensor forward(const Tensor& images) const override {
    Tensor x = relu(first(views::contiguous(images).reshape({images.size(0), 784})));
    x = relu(second(x));
    return third(relu(second(x)));
  }
  void describe(nn::Fields& field) override {
    field("first", first), field("second", second), field("third", third);
  }
};

std::vector<nn::Parameter*> parameters_of(Net& net) {
  return {&net.first.weight, &net.first.bias,   &net.second.weight,
          &net.second.bias,  &net.third.weight, &net.third.bias};
}

one_file::Tensor copied(const Tensor& x) {
  const bool is_row = x.rank() == 1;
  return {one_file::f32, is_row ? 1 : int(x.size(0)), int(x.size(-1)),
          x.detach().to_vector<float>()};
}

/// One training of the library and one of the file, from the same weights.
struct Pair {
  Net net;
  one_file::Training file;
  std::unique_ptr<optim::Optimizer> optimizer;
  amp::Training training;

  Pair(const one_file::Strategy& strategy, bool adam, double lr,
       const amp::LossScaleOptions& scale = {})
      : file(strategy, {.is_adam = adam, .lr = float(lr)}, initial_weights()),
        optimizer(optimizer_named(adam, lr)),
        training(amp::apply(with(strategy, scale), net, *optimizer)) {
    file.scaler.scale = float(scale.init_scale);
    file.scaler.growth_interval = int(scale.growth_interval);
  }
  std::vector<one_file::Tensor> initial_weights() {
    std::vector<one_file::Tensor> result;
    for (const nn::Parameter* x : parameters_of(net)) result.push_back(copied(*x));
    return result;
  }
  std::unique_ptr<optim::Optimizer> optimizer_named(bool adam, double lr) {
    if (adam) return std::make_unique<optim::Adam>(net.parameters(), optim::AdamOptions{.lr = lr});
    return std::make_unique<optim::Sgd>(net.parameters(),
                                        optim::SgdOptions{.lr = lr, .momentum = 0.9});
  }
  static amp::Policy with(const one_file::Strategy& strategy, const amp::LossScaleOptions& scale) {
    amp::Policy result = amp::Policy::named(strategy.name);
    result.loss_scale = scale;
    return result;
  }

  /// The difference of the losses of one step. Without `updates` the library does not change its
  /// weights.
  double step(const data::Batch& batch, bool updates = true) {
    const Tensor images = views::contiguous(batch.inputs).reshape({batch.inputs.size(0), 784});
    std::vector<int> labels;
    for (const int64_t label : batch.targets.to_vector<int64_t>()) labels.push_back(int(label));
    const double by_file = double(file.step(copied(images), labels));
    const Tensor loss = cross_entropy(training.forward(net, images), batch.targets);
    training.zero_grad();
    training.backward(loss);
    if (updates) training.step();
    return std::abs(by_file - loss.item());
  }
};

/// 100 batches of 32 images.
const std::vector<data::Batch>& batches() {
  static const std::vector<data::Batch> result = [] {
    const data::ByteImages images = data::fashion_mnist({.split = data::Split::test});
    std::vector<data::Batch> list;
    for (const data::Batch& batch : data::DataLoader(images, {.batch_size = 32, .shuffle = true}))
      if (list.size() < 100) list.push_back(batch);
    return list;
  }();
  return result;
}

/// Calls f(strategy, adam) for each strategy with each optimizer.
template <class F> void each_training(F f) {
  for (const one_file::Strategy& strategy : one_file::strategies)
    for (const bool adam : {true, false}) {
      CAPTURE(strategy.name);
      CAPTURE(adam);
      f(strategy, adam);
    }
}

/// The f32 weights, in any form.
one_file::Floats weights_of(const one_file::Parameter& p, one_file::Form form) {
  one_file::Floats weights = p.node->value.load(), companions = p.companion.load();
  companions.resize(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = one_file::decode(form, {weights[i], companions[i]});
  return weights;
}

TEST_CASE("one file: the weights after 100 updates are the library's, to the bit") {
  const CpuBackendScope scope("reference");  // its updates are compiled without fused multiply-add
  each_training([](const one_file::Strategy& strategy, bool adam) {
    manual_seed(1);
    Pair pair(strategy, adam, 1e-3, {.init_scale = 1});
    for (int step = 0; step < 100; ++step) {
      for (std::size_t i = 0; nn::Parameter * x : parameters_of(pair.net)) {
        const Tensor gradient = cast(randn(x->shape()) * 0.01, x->dtype());
        x->set_grad(gradient);
        one_file::Node& node = *pair.file.parameters[i++].node;
        node.gradient = node.value.like(cast(gradient, f32).to_vector<float>());
      }
      pair.training.optimizer().step();
      pair.file.update_all();
    }
    for (std::size_t i = 0; i < pair.file.parameters.size(); ++i) {
      const one_file::Floats weights = weights_of(pair.file.parameters[i], strategy.form);
      CHECK(weights == pair.training.weight(i).to_vector<float>());
    }
  });
}

/// The dtype that the products of a strategy read.
DType computes_in(const one_file::Strategy& s) {
  const one_file::Dtype dtype = s.autocast.value_or(s.weights);
  return dtype == one_file::f32 ? f32 : dtype == one_file::f16 ? f16 : bf16;
}

/// The root mean square of the differences, over that of the library's numbers.
double relative_error(const one_file::Floats& by_file, const std::vector<float>& by_library) {
  double error = 0, size = 0;
  for (std::size_t i = 0; i < by_file.size(); ++i) {
    const double expected = double(by_library[i]), difference = double(by_file[i]) - expected;
    error += difference * difference, size += expected * expected;
  }
  return std::sqrt(error / size);
}

// Sums in another order have other last bits of f32. A rounding to 16 bits seldom shows that, and
// then changes one number by a whole spacing. An extra or a missing rounding would change all
// numbers by a fifth of epsilon, in every batch; so the test uses the best of three.
TEST_CASE("one file: gradients of a step") {
  for (const one_file::Strategy& strategy : one_file::strategies) {
    CAPTURE(strategy.name);
    std::array<double, 6> errors{1, 1, 1, 1, 1, 1};
    for (std::size_t batch = 0; batch < 3; ++batch) {
      manual_seed(batch);
      Pair pair(strategy, true, 1e-3);
      pair.step(batches()[batch], false);
      for (std::size_t i = 0; const nn::Parameter* x : parameters_of(pair.net)) {
        const one_file::Floats by_file = pair.file.parameters[i].node->gradient.load();
        const double error = relative_error(by_file, cast(x->grad(), f32).to_vector<float>());
        errors[i] = std::min(errors[i], error), ++i;
      }
    }
    const DType dtype = computes_in(strategy);
    const double tolerance = dtype == f32 ? 16 * epsilon(f32) : epsilon(dtype) / 16;
    for (const double error : errors) CHECK(error <= tolerance);
  }
}

/// A number that changes by a spacing changes all later losses, those of f16 as much as those of
/// bf16. With the small learning rates below, the training does not magnify it.
double tolerance_of_losses(const one_file::Strategy& strategy) {
  return computes_in(strategy) == f32 ? 64 * epsilon(f32) : 2 * epsilon(bf16);
}

TEST_CASE("one file: losses of 100 steps") {
  each_training([](const one_file::Strategy& strategy, bool adam) {
    manual_seed(1);
    Pair pair(strategy, adam, adam ? 3e-4 : 3e-3);
    double largest = 0;
    for (const data::Batch& batch : batches()) {
      const double difference = pair.step(batch);
      CHECK(difference <= tolerance_of_losses(strategy));
      largest = std::max(largest, difference);
    }
    std::printf("%-16s %-5s largest difference of 100 losses %.1e\n", strategy.name.c_str(),
                adam ? "Adam" : "SGD", largest);
  });
}

TEST_CASE("one file: steps that overflow are skipped, and the loss scale changes") {
  manual_seed(1);
  const one_file::Strategy& strategy = one_file::strategies.at(2);
  REQUIRE(strategy.scales_loss);
  Pair pair(strategy, true, 3e-4, {.init_scale = 0x1p24, .growth_interval = 4});
  for (int steps = 0; const data::Batch& batch : batches()) {
    CHECK(pair.step(batch) <= tolerance_of_losses(strategy));
    CHECK(pair.file.scaler.skipped_steps == pair.training.skipped_steps());
    CHECK(double(pair.file.scaler.scale) == pair.training.scaler().scale_value());
    if (++steps == 30) break;
  }
  CHECK(pair.training.skipped_steps() > 4);
}

TEST_CASE("one file: a weight that is used twice is cast once") {
  manual_seed(1);
  Pair pair(one_file::strategies.at(1), true, 1e-3);
  REQUIRE(one_file::strategies.at(1).autocast);
  one_file::Tape tape;
  pair.file.forward(tape, one_file::Tensor(one_file::f32, 1, 784, one_file::Floats(784)));
  CHECK(tape.cast_cache.size() == pair.file.parameters.size());
  CHECK(tape.steps.size() ==
        6 + 1 + 4 + 3 + 1);  // casts of weights, of images; linear; relu; a cast
}

TEST_CASE("one file: bytes") {
  each_training([](const one_file::Strategy& strategy, bool adam) {
    manual_seed(1);
    Pair pair(strategy, adam, 1e-3);
    const amp::Policy named = amp::Policy::named(strategy.name);
    const amp::StrategyBytes expected = amp::predicted_bytes(named, pair.net, *pair.optimizer);
    pair.step(batches().front());
    amp::StrategyBytes counted;
    for (const one_file::Parameter& p : pair.file.parameters) {
      counted.parameter += p.node->value.bytes(), counted.companion += p.companion.bytes();
      counted.gradient += p.node->gradient.bytes();
      counted.optimizer_state += p.first.bytes() + p.second.bytes();
    }
    CHECK(counted.parameter == expected.parameter);
    CHECK(counted.companion == expected.companion);
    CHECK(counted.gradient == expected.gradient);
    CHECK(counted.optimizer_state == expected.optimizer_state);
  });
}

}  // namespace
}  // namespace halftone::test::one_file_test
