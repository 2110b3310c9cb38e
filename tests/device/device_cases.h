// Small models of every kind on a device, under a strategy, for the tests of this folder.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

namespace halftone::test {

struct DeviceCase {
  std::unique_ptr<nn::Layer> model;
  Tensor inputs, targets;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<amp::Training> training;

  /// kind: mlp (with dropout), lenet, gpt, or resnet. The same numbers on every device.
  DeviceCase(const std::string& kind, const std::string& strategy, Device device) {
    manual_seed(3);
    if (kind == "mlp") {
      model = std::make_unique<nn::Sequential>(nn::Linear(20, 33), nn::Gelu(), nn::Dropout(0.2),
                                               nn::Linear(33, 10));
      inputs = randn({17, 20}), targets = randint(0, 10, {17});
    } else if (kind == "lenet") {
      model = std::make_unique<nn::models::LeNet>();
      inputs = randn({3, 1, 28, 28}), targets = randint(0, 10, {3});
    } else if (kind == "resnet") {
      model = std::make_unique<nn::models::ResNet>(
          nn::models::resnet18({.classes = 5, .width = 8, .cifar_stem = true}));
      inputs = randn({2, 3, 16, 16}), targets = randint(0, 5, {2});
    } else {
      model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
          .vocabulary = 30, .context = 12, .layers = 2, .heads = 2, .width = 16});
      inputs = randint(0, 30, {2, 12}), targets = randint(0, 30, {2, 12});
    }
    model->to(device);
    inputs = inputs.to(device), targets = targets.to(device);
    optimizer =
        std::make_unique<optim::AdamW>(model->parameters(), optim::AdamWOptions{.lr = 3e-3});
    training = std::make_unique<amp::Training>(
        amp::apply(policy::named_or_read(strategy), *model, *optimizer));
    manual_seed(4);
  }

  Tensor step(bool clips = false) {
    training->zero_grad();
    const Tensor logits = training->forward(*model, inputs);
    const Tensor loss = cross_entropy(flatten(logits, 0, -2), flatten(targets));
    training->backward(loss);
    if (clips) training->clip_grad_norm(1.0);
    training->step();
    return loss;
  }
  std::vector<double> losses(int steps, bool clips = false) {
    std::vector<double> values;
    for (int i = 0; i < steps; ++i) values.push_back(step(clips).item());
    return values;
  }
};

/// Returns the bits of a tensor on any device.
inline bool equal_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(Device::cpu()).clone(), y = b.to(Device::cpu()).clone();
  return x.dtype() == y.dtype() && x.shape() == y.shape() &&
         std::memcmp(x.raw_data(), y.raw_data(), std::size_t(x.bytes())) == 0;
}
inline bool equal_bits(const optim::NamedTensors& a, const optim::NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, x] : a)
    if (!b.contains(name) || !equal_bits(x, b.at(name))) return false;
  return true;
}

// Tests of features that only a GPU has. On a machine without a GPU each test prints its name and
// that it was skipped; the emulated GPU of tests/cuda_emulation runs them all.

/// Returns the first GPU. Without a GPU it returns none and prints that with the name of the test.
inline std::optional<Device> gpu_or_skip() {
  for (const BackendStatus& status : backend_statuses())
    if (status.name == "cuda" && status.backend) return Device::cuda();
  const doctest::TestCaseData* const running = doctest::getContextOptions()->currentTest;
  MESSAGE("skipped, there is no GPU: ", std::string(running ? running->m_name : "?"));
  return std::nullopt;
}

}  // namespace halftone::test
