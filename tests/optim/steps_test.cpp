// Steps that the update itself may skip, step counts on the device, and rates for captured steps.
// They give the numbers of an optimizer that the host controls.
#include <cstring>
#include <functional>
#include <memory>

#include <doctest/doctest.h>

#include <halftone/amp/master_weights.h>
#include <halftone/autograd/ops.h>
#include <halftone/backends/reference/reference.h>
#include <halftone/backends/registry.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/optim/optim.h>

#include "../amp/cases.h"
#include "../amp/own_optimizer.h"

namespace halftone::test::device_steps_test {
namespace {

using Parameters = std::vector<Tensor>;
using Make = std::function<std::unique_ptr<optim::Optimizer>(const Parameters&)>;

struct Named {
  const char* name;
  Make make;
};
template <class O, class Options> Make of(const Options& options) {
  return [=](const Parameters& p) { return std::make_unique<O>(p, options); };
}
const std::vector<Named> optimizers{
    {"Sgd", of<optim::Sgd>(optim::SgdOptions{.lr = 0.5})},
    {"Sgd, momentum",
     of<optim::Sgd>(optim::SgdOptions{.lr = 0.5, .momentum = 0.9, .dampening = 0.5})},
    {"Adam", of<optim::Adam>(optim::AdamOptions{.lr = 0.1})},
    {"AdamW", of<optim::AdamW>(optim::AdamWOptions{.lr = 0.1})},
    {"Rmsprop",
     of<optim::Rmsprop>(optim::RmspropOptions{.lr = 0.1, .momentum = 0.5, .centered = true})}};

/// Two parameters under an optimizer, with or without a form of weights, and numbered gradients.
struct Run {
  Parameters parameters;
  std::unique_ptr<optim::Optimizer> inner;
  std::unique_ptr<amp::MasterWeights> masters;

  Run(const Make& make, std::optional<WeightForm> form, bool fused = true) {
    manual_seed(3);
    for (const int64_t n : {30, 7})
      parameters.push_back(cast(randn({n}), form ? bf16 : f32).set_requires_grad());
    inner = make(parameters);
    if (form)
      masters = std::make_unique<amp::MasterWeights>(
          *inner, amp::MasterWeightsOptions{.form = *form, .fused = fused});
  }
  optim::Optimizer& optimizer() { return masters ? *masters : *inner; }
  void give(int step) {
    manual_seed(uint64_t(100 + step));
    for (Tensor& x : parameters) x.set_grad(cast(randn(x.shape()), x.dtype()));
    if (step % 3 == 2) parameters[1].set_grad({});  // its count stays one lower
  }
  optim::NamedTensors state() {
    optim::NamedTensors all = copy_of(optimizer().state_dict());
    for (std::size_t i = 0; i < parameters.size(); ++i)
      all["parameter" + std::to_string(i)] = parameters[i].detach().clone();
    all.erase("rounding");  // counts skipped steps as well
    return all;
  }
};

template <class Test> void every_run(const Test& test) {
  using enum WeightForm;
  for (const Named& named : optimizers)
    for (const std::optional<WeightForm> form :
         {std::optional<WeightForm>{}, {master}, {split}, {split_rounded}, {kahan}, {stochastic}})
      for (const bool fused : {true, false}) {
        if (!fused && form != master) continue;
        INFO(named.name, ", ", form ? std::string(name(*form)) : "plain", fused ? "" : ", apex");
        test([&] { return Run(named.make, form, fused); }, form);
      }
}

TEST_CASE("a skip that is 0 changes no bit of a step, and another one changes nothing") {
  every_run([](const auto& make, std::optional<WeightForm> form) {
    Run run = make(), wanted = make();
    const Tensor half = scalar(0.5);
    for (int step = 0; step < 9; ++step) {
      const bool skipped = step == 0 || step == 4 || step == 5;
      // Stochastic rounding draws numbers for skipped steps as well: only clean runs agree.
      if (form == WeightForm::stochastic && skipped) continue;
      run.give(step), wanted.give(step);
      const auto before = run.state();
      run.optimizer().step({.factor = step % 2 ? half : Tensor{}, .skip = scalar(skipped ? 1 : 0)});
      if (skipped) CHECK(same_state(run.state(), before));
      else if (step % 2) wanted.optimizer().step({.factor = half});
      else wanted.optimizer().step();
      CHECK(same_state(run.state(), wanted.state()));
    }
    run.give(20), wanted.give(20);  // and plain steps continue to count
    run.optimizer().step(), wanted.optimizer().step();
    CHECK(same_state(run.state(), wanted.state()));
  });
}

TEST_CASE("device counts start from the host's, and from loaded states") {
  every_run([](const auto& make, std::optional<WeightForm>) {
    Run run = make(), wanted = make(), resumed = make();
    const auto both = [&](int step, Run& lazy) {
      lazy.give(step), wanted.give(step);
      lazy.optimizer().step({.skip = zeros({})}), wanted.optimizer().step();
    };
    run.give(0), wanted.give(0);
    run.optimizer().step(), wanted.optimizer().step();
    both(1, run), both(2, run);
    CHECK(same_state(run.state(), wanted.state()));
    resumed.optimizer().load_state_dict(copy_of(run.optimizer().state_dict()));
    for (std::size_t i = 0; i < 2; ++i)
      backend_for(Device::cpu()).copy(run.parameters[i], resumed.parameters[i]);
    both(3, resumed);
    CHECK(same_state(resumed.state(), wanted.state()));
    // Loading restores the counts of an optimizer that has some.
    run.optimizer().load_state_dict(copy_of(resumed.optimizer().state_dict()));
    CHECK(same_state(run.optimizer().state_dict(), resumed.optimizer().state_dict()));
  });
}

TEST_CASE("a state of nothing but skipped steps is that of no steps") {
  for (const Named& named : optimizers) {
    Run run(named.make, {}), fresh(named.make, {});
    run.give(0);
    run.optimizer().step({.skip = ones({})});
    CHECK(same_state(run.optimizer().state_dict(), fresh.optimizer().state_dict()));
    run.optimizer().load_state_dict(copy_of(run.optimizer().state_dict()));
  }
}

TEST_CASE("momentum that is turned on after steps on the device begins as in a first step") {
  const auto made = [] {
    return Run(of<optim::Sgd>(optim::SgdOptions{.lr = 0.5, .dampening = 0.5}), {});
  };
  Run run = made(), wanted = made();
  for (int step = 0; step < 4; ++step) {
    run.give(step), wanted.give(step);
    if (step == 2)
      for (Run* r : {&run, &wanted}) dynamic_cast<optim::Sgd&>(*r->inner).options().momentum = 0.9;
    run.optimizer().step({.skip = zeros({})}), wanted.optimizer().step();
    CHECK(same_state(run.state(), wanted.state()));
  }
}

TEST_CASE("counts are optimizer state, 8 bytes each, and exist only if they are used") {
  const auto held = [] { return memory_report().now_of(MemoryUse::optimizer_state); };
  const int64_t before = held();
  Run run(of<optim::AdamW>(optim::AdamWOptions{}), {});
  run.give(0);
  run.optimizer().step();
  CHECK(held() - before == 37 * 8);
  run.optimizer().step({.skip = zeros({})});
  CHECK(held() - before == 37 * 8 + 2 * 8);
  run.optimizer().publish_rates();
  CHECK(held() - before == 37 * 8 + 2 * 8 + 8);
}

TEST_CASE("an optimizer of a user reads the flag by itself") {
  Tensor w = ones({2}).set_requires_grad();
  OwnOptimizer own({w});
  w.set_grad(ones({2}));
  own.step({.factor = scalar(2), .skip = ones({})});
  CHECK(w.at({0}) == 1);
  CHECK(w.grad().at({0}) == 1);
  own.step({.factor = scalar(2), .skip = zeros({})});
  CHECK(w.at({0}) == 0);
  Tensor narrow = ones({2}, bf16).set_requires_grad();
  OwnOptimizer inner({narrow});
  amp::MasterWeights masters(inner, {.fused = false});
  narrow.set_grad(ones({2}, bf16));
  masters.step({.skip = ones({})});
  CHECK(narrow.at({0}) == 1);
  masters.step({.skip = zeros({})});
  CHECK(narrow.at({0}) == 0.5);
}

// --- captures

/// Reports that it records, while it runs, and stores the calls that it got.
struct Recording final : ReferenceBackend {
  bool on = false;
  std::vector<Tensor> rates, counts;
  bool capturing() const override { return on; }
  void update(std::span<UpdateSlot> slots, const UpdateCall& call) override {
    rates.push_back(call.device_lr);
    for (const UpdateSlot& slot : slots) counts.push_back(slot.steps);
    ReferenceBackend::update(slots, call);
  }
};

TEST_CASE("captured steps read rate and counts from the device, others the rate from the host") {
  Recording backend;
  const CpuBackendReplacement scope(backend);
  Run run(of<optim::AdamW>(optim::AdamWOptions{.lr = 0.1}), {});
  auto& adamw = dynamic_cast<optim::AdamW&>(run.optimizer());
  run.give(0);
  adamw.step();
  CHECK_FALSE(backend.rates.at(0).defined());
  CHECK_FALSE(backend.counts.at(0).defined());
  backend.on = true;
  CHECK_THROWS_WITH_AS(adamw.step(), doctest::Contains("[AdamW] a step under capture reads its"),
                       UsageError);
  CHECK_THROWS_WITH_AS(adamw.step({.skip = zeros({})}),
                       doctest::Contains("[AdamW] a step under capture needs state"), UsageError);
  backend.on = false;
  adamw.publish_rates();
  backend.on = true, backend.rates.clear(), backend.counts.clear();
  adamw.step();
  const Tensor rate = backend.rates.at(0);
  CHECK(rate.item() == 0.1);
  CHECK(backend.counts.at(0).item() == 2);
  backend.on = false;
  // The values that a replay reads after the rate has changed.
  adamw.set_lr(0.25);
  CHECK(rate.item() == 0.25);
  adamw.options().lr = 0.5;
  CHECK(rate.item() == 0.25);
  adamw.publish_rates();
  CHECK(rate.item() == 0.5);
  adamw.load_state_dict(copy_of(adamw.state_dict()));
  CHECK(rate.item() == 0.5);
  backend.on = true;
  adamw.set_lr(0.75);
  CHECK(rate.item() == 0.75);
}

TEST_CASE("a captured step makes no state") {
  Recording backend;
  const CpuBackendReplacement scope(backend);
  Run run(of<optim::AdamW>(optim::AdamWOptions{.lr = 0.1}), {});
  run.optimizer().publish_rates();
  run.give(0);
  backend.on = true;
  CHECK_THROWS_WITH_AS(run.optimizer().step(),
                       doctest::Contains("Call publish_rates() and take a step before"),
                       UsageError);
}

}  // namespace
}  // namespace halftone::test::device_steps_test
