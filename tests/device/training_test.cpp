// Training on a GPU: the losses of the CPU under every strategy, its bytes, and no waits.
#include "device_cases.h"
#include "gpu.h"

namespace halftone::test::training_test {
namespace {

/// The two runs differ by rounding, which each step passes on to the next.
double tolerance_of(const std::string& strategy) {
  if (strategy == "fp32") return 2e-4;
  return strategy.find("bf16") != std::string::npos ? 4 * epsilon(bf16) : 8 * epsilon(f16);
}

void check_losses(const std::string& kind, const std::string& strategy, Device gpu, int steps) {
  INFO(kind, ", ", strategy);
  const std::vector<double> here = DeviceCase(kind, strategy, Device::cpu()).losses(steps),
                            there = DeviceCase(kind, strategy, gpu).losses(steps);
  for (std::size_t i = 0; i < here.size(); ++i)
    CHECK(there[i] == doctest::Approx(here[i]).epsilon(tolerance_of(strategy)));
}

TEST_CASE("losses on the GPU are those on the CPU, under every strategy") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (const std::string_view strategy : amp::Strategy::names())
    check_losses("mlp", std::string(strategy), *gpu, 5);
}

TEST_CASE("every kind of model trains on the GPU as on the CPU") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (const char* strategy : {"fp32", "amp-bf16", "amp-fp16"}) {
    check_losses("lenet", strategy, *gpu, 2);
    check_losses("gpt", strategy, *gpu, 3);
  }
  check_losses("resnet", "fp32", *gpu, 2);
}

TEST_CASE("the ledger of the GPU has the bytes of the CPU's, use by use") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  using Use = MemoryUse;
  for (const char* strategy : {"fp32", "amp-bf16", "o2-bf16", "full-bf16", "split-bf16"}) {
    INFO(std::string(strategy));
    const auto at_rest = [&](Device device) {
      DeviceCase run("lenet", strategy, device);
      run.losses(2);
      const MemoryReport report = memory_report(device);
      std::vector<int64_t> bytes;
      for (const Use use : {Use::parameter, Use::master_weight, Use::compensation, Use::gradient})
        bytes.push_back(report.now_of(use));
      return bytes;
    };
    CHECK(at_rest(*gpu) == at_rest(Device::cpu()));
  }
  CHECK(memory_report(*gpu).total_now == 0);
}

TEST_CASE("a hundred steps with loss scaling and clipping do not wait for the device once") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  DeviceCase run("gpt", "amp-fp16", *gpu);
  run.losses(2, true);
  Backend& backend = backend_for(*gpu);
  const int64_t before = backend.waits();
  for (int i = 0; i < 100; ++i) run.step(true);
  CHECK(backend.waits() == before);
  CHECK(std::isfinite(run.step(true).item()));
  CHECK(backend.waits() > before);
}

TEST_CASE("an overflow on the GPU skips the step and lowers the scale, as on the CPU") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  for (const Device device : {Device::cpu(), *gpu}) {
    CAPTURE(device.kind == DeviceKind::cuda);
    DeviceCase run("mlp", "amp-fp16", device);
    run.step();
    const double scale = run.training->scaler().scale_value();
    const optim::NamedTensors before = [&] {
      optim::NamedTensors copy;
      for (const auto& [name, x] : run.model->named_parameters()) copy[name] = x.clone();
      return copy;
    }();
    run.inputs = run.inputs * 1e30;  // infinite in f16
    run.step();
    CHECK(run.training->skipped_steps() == 1);
    CHECK(run.training->scaler().scale_value() == scale / 2);
    for (const auto& [name, x] : run.model->named_parameters())
      CHECK(equal_bits(x, before.at(name)));
  }
}

TEST_CASE("a state saved on the GPU continues on the CPU") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  DeviceCase there("mlp", "o2-bf16", *gpu), here("mlp", "o2-bf16", Device::cpu());
  there.losses(3);
  here.training->load_state_dict(there.training->state_dict());
  const double next = there.losses(1)[0];
  CHECK(here.losses(1)[0] == doctest::Approx(next).epsilon(tolerance_of("o2-bf16")));
}

TEST_CASE("a loader delivers its batches to the GPU") {
  const auto gpu = gpu_or_skip();
  if (!gpu) return;
  const data::TensorDataset numbers(arange(100), arange(100));
  int64_t sum_of_all = 0;
  for (auto [inputs, targets] : data::DataLoader(numbers, {.batch_size = 32, .device = *gpu})) {
    CHECK(inputs.device() == *gpu);
    for (const int64_t x : inputs.to_vector<int64_t>()) sum_of_all += x;
  }
  CHECK(sum_of_all == 4950);
}

}  // namespace
}  // namespace halftone::test::training_test
