// Two GPUs in one program (HALFTONE_EMULATED_DEVICES=2): each call reaches its own device, and not
// the one that was used last.
#include <doctest/doctest.h>

#include <thread>

#include <halftone/halftone.h>

#include "emulator.h"

namespace halftone::test {
namespace {

struct Trained {
  double loss;
  std::vector<float> weights;
  bool operator==(const Trained&) const = default;
};

/// A few steps on a device; between them the other device does other work.
Trained trained_on(Device device, Device other, bool captured) {
  manual_seed(7);
  nn::Sequential model(nn::Linear(20, 16), nn::Gelu(), nn::Linear(16, 4));
  model.to(device);
  optim::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  if (captured) optimizer.publish_rates();
  const auto step = [&](const std::vector<Tensor>& in) {
    optimizer.zero_grad();
    const Tensor loss = mean(square(amp::autocast(bf16, [&] { return model(in[0]); })));
    loss.backward();
    optimizer.step();
    return loss;
  };
  CapturedStep replayed(step);
  Tensor there = ones({30}).to(other);
  Tensor loss;
  for (int i = 0; i < 5; ++i) {
    const Tensor x = randn({8, 20}).to(device);
    loss = captured ? replayed({x}) : step({x});
    there = there * 2.0;
  }
  CHECK(there.to_vector<float>() == std::vector<float>(30, 32));
  return {loss.item(), model.parameters()[0].to_vector<float>()};
}

TEST_CASE("two GPUs") {
  if (emulation::devices() < 2) return;
  const Device first = Device::cuda(0), second = Device::cuda(1);
  for (const bool captured : {false, true}) {
    CAPTURE(captured);
    const Trained there = trained_on(second, first, captured);
    CHECK(there == trained_on(first, second, captured));
    std::thread([&] { CHECK(trained_on(second, first, captured) == there); }).join();
  }
  // Inputs that go through the stream of copies, and tensors from one device to the other.
  const MemoryScope scope(MemoryUse::input);
  for (const Device device : {second, first, second}) {
    const Tensor large = randn({600, 1000});
    CHECK(large.to(device).to(first).to(second).to_vector<float>() == large.to_vector<float>());
  }
  CHECK_THROWS_AS(ones({3}).to(first) + ones({3}).to(second), Error);
  CHECK_THROWS_AS(ones({3}).to(Device::cuda(emulation::devices())), DeviceError);
}

TEST_CASE("after an illegal access an allocation reports the access, and not a lack of memory") {
  const Device gpu = Device::cuda();
  const Tensor x = ones({5}).to(gpu);
  emulation::break_device(true);
  std::string said;
  try {
    const Tensor y = empty({int64_t(40) << 20}, f32, gpu);
  } catch (const DeviceError& error) { said = error.what(); }
  emulation::break_device(false);
  CHECK(said.find("[cuda] allocating failed: ") == 0);
  CHECK(said.find("compute-sanitizer") != std::string::npos);
  CHECK((x + x).to_vector<float>() == std::vector<float>(5, 2));
}

}  // namespace
}  // namespace halftone::test
