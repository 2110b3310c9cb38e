// What is predicted of a strategy is what the ledger counts, to the byte.
#include <halftone/amp/strategy_bytes.h>

#include "strategy_cases.h"

namespace halftone::test {
namespace {

TEST_CASE("predicted bytes are those of the ledger, batch norm and frozen weights included") {
  for (const std::string_view name : amp::Strategy::names()) {
    CAPTURE(name);
    const MemoryReport before = memory_report();
    const amp::Strategy strategy = amp::Strategy::named(name);
    manual_seed(1);
    auto layers = std::make_unique<nn::Sequential>(nn::Linear(24, 40), nn::BatchNorm1d(40),
                                                   nn::Relu(), nn::Linear(40, 10));
    StrategyCase run(strategy, std::move(layers), 1);
    const amp::StrategyBytes predicted = amp::predicted_bytes(strategy, *run.model, run.adamw);
    run.step();
    const MemoryReport now = memory_report();
    const auto counted = [&](std::initializer_list<MemoryUse> uses) {
      int64_t sum = 0;
      for (const MemoryUse use : uses) sum += now.now_of(use) - before.now_of(use);
      return sum;
    };
    using Use = MemoryUse;
    int64_t buffers = 0;
    for (const auto& [path, x] : run.model->named_buffers()) buffers += x.bytes();
    CHECK(counted({Use::parameter}) == predicted.parameter + buffers);
    CHECK(counted({Use::master_weight, Use::compensation}) == predicted.beside);
    CHECK(counted({Use::gradient}) == predicted.gradient);
    CHECK(counted({Use::optimizer_state}) == predicted.optimizer_state);
  }
}

TEST_CASE("what an optimizer keeps decides on its bytes") {
  const auto state = [](auto&& optimizer, nn::Module& model) {
    return amp::predicted_bytes(amp::Strategy::named("fp32"), model, optimizer).optimizer_state;
  };
  const auto model = StrategyCase::mlp(1);
  const auto parameters = model->parameters();
  CHECK(state(optim::Sgd(parameters, {.lr = 0.1}), *model) == 0);
  CHECK(state(optim::Sgd(parameters, {.lr = 0.1, .momentum = 0.9}), *model) == 4 * 1410);
  CHECK(state(optim::Adam(parameters), *model) == 8 * 1410);
}

}  // namespace
}  // namespace halftone::test
