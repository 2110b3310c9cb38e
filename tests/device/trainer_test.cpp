// A Trainer on a GPU: the bits of the loop by hand, no wait in a step, and a resumed run.
#include "../train/trainer_cases.h"
#include "gpu.h"

namespace halftone::test::trainer_test {
namespace {

using train::Trainer;
using train::TrainerOptions;

optim::NamedTensors on_host(const optim::NamedTensors& state) {
  optim::NamedTensors copy;
  for (const auto& [name, x] : state) copy[name] = x.clone().to(Device::cpu());
  return copy;
}

struct OnDevice {
  TrainerCase parts{};
  data::DataLoader loader;
  explicit OnDevice(Device device)
      : loader(trainer_loader({.batch_size = 16, .shuffle = true, .seed = 3, .device = device})) {
    parts.model.to(device);
  }
  optim::NamedTensors fit(TrainerOptions options, data::DataLoader validation) {
    Trainer trainer(parts.task(), parts.adamw, quiet(std::move(options)));
    trainer.fit(loader, std::move(validation));
    return on_host(trainer.training().state_dict());
  }
};

TEST_CASE("a Trainer on the GPU has the bits of the loop by hand there, resumed or not") {
  const auto gpu = test::gpu_or_skip();
  if (!gpu) return;
  for (const char* name : {"fp32", "amp-fp16", "o2-bf16"}) {
    CAPTURE(name);
    OnDevice hand(*gpu);
    amp::Training training =
        amp::apply(amp::Strategy::named(name), hand.parts.model, hand.parts.adamw);
    optim::LrScheduler scheduler(training.optimizer(), optim::LrSchedule::cosine(10));
    for (int epoch = 0; epoch < 2; ++epoch)
      for (auto [inputs, labels] : hand.loader) {
        training.zero_grad();
        training.backward(cross_entropy(training.forward(hand.parts.model, inputs), labels));
        training.clip_grad_norm(0.5);
        if (training.step()) scheduler.step();
      }
    const auto expected = on_host(training.state_dict());
    const TemporaryDirectory directory;
    const auto options = [&](int64_t steps) {
      return TrainerOptions{.precision = name,
                            .max_steps = steps,
                            .clip_norm = 0.5,
                            .schedule = [](int64_t) { return optim::LrSchedule::cosine(10); },
                            .directory = directory.path(),
                            .resume = true};
    };
    OnDevice first(*gpu), second(*gpu);
    first.fit(options(7), first.loader);
    CHECK(same_state(second.fit(options(10), second.loader), expected));
  }
}

TEST_CASE("a Trainer's steps do not wait for the GPU, only its logging does") {
  const auto gpu = test::gpu_or_skip();
  if (!gpu) return;
  const Backend& backend = backend_for(*gpu);
  const auto hooks = std::make_shared<Hooks>();
  std::vector<int64_t> waits;
  hooks->step_end = [&](Trainer&) { waits.push_back(backend.waits()); };
  OnDevice run(*gpu);
  Trainer trainer(run.parts.task(), run.parts.adamw,
                  quiet({.precision = "16-mixed",
                         .max_steps = 16,  // an epoch has 18
                         .accumulate_batches = 2,
                         .clip_norm = 1,
                         .log_every_steps = 16,
                         .callbacks = {hooks}}));
  trainer.fit(run.loader.with_options({.batch_size = 2, .workers = 0, .device = *gpu}));
  REQUIRE(waits.size() == 16);
  for (std::size_t i = 2; i + 1 < waits.size(); ++i) CHECK(waits[i] == waits[1]);
  CHECK(waits[15] > waits[14]);
}

}  // namespace
}  // namespace halftone::test::trainer_test
