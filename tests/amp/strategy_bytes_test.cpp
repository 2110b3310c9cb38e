// The predicted bytes of a strategy equal those of the ledger, to the byte.
#include <halftone/amp/strategy.h>

#include "../support.h"
#include "cases.h"

namespace halftone::test::strategy_bytes_test {
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
    CHECK(counted({Use::master_weight, Use::compensation}) == predicted.companion);
    CHECK(counted({Use::gradient}) == predicted.gradient);
    CHECK(counted({Use::optimizer_state}) == predicted.optimizer_state);
  }
}

TEST_CASE("the tensors that an optimizer keeps determine its bytes") {
  const auto state = [](auto&& optimizer, nn::Module& model) {
    return amp::predicted_bytes(amp::Strategy::named("fp32"), model, optimizer).optimizer_state;
  };
  const auto model = StrategyCase::mlp(1);
  const auto parameters = model->parameters();
  CHECK(state(optim::Sgd(parameters, {.lr = 0.1}), *model) == 0);
  CHECK(state(optim::Sgd(parameters, {.lr = 0.1, .momentum = 0.9}), *model) == 4 * 1410);
  CHECK(state(optim::Adam(parameters), *model) == 8 * 1410);
}

TEST_CASE("predicted bytes of several ranks: of the rank that keeps most") {
  // 64 x 64 + 64 = 4096 + 64 elements. Shards have 1024 elements, the bias is one shard. The first
  // of four ranks has 1024 + 64.
  nn::Linear model(64, 64);
  const std::vector<Tensor> parameters = model.parameters();
  optim::Adam adam(parameters);
  const auto bytes = [&](std::string_view strategy, int ranks, optim::Optimizer& optimizer) {
    return amp::predicted_bytes(amp::Strategy::named(strategy), model, optimizer, ranks);
  };
  const amp::StrategyBytes of_four = bytes("split-bf16", 4, adam);
  CHECK(of_four.parameter == 2 * 4160);
  CHECK(of_four.companion == 2 * 1088);
  CHECK(of_four.gradient == 4 * 1088);
  CHECK(of_four.optimizer_state == 8 * 1088);
  CHECK(bytes("fp64", 4, adam).gradient == 8 * 1088);
  CHECK(bytes("split-bf16", 1, adam).gradient == 2 * 4160);
  optim::Lamb lamb(parameters);  // not sharded: whole sums
  CHECK(bytes("o2-bf16", 4, lamb).gradient == 4 * 4160);
  CHECK(bytes("o2-bf16", 4, lamb).companion == 4 * 4160);
  CHECK(message_of<UsageError>([&] { bytes("fp32", 0, adam); }) ==
        "[predicted_bytes] of 0 ranks. Use 1 or more.");
}

}  // namespace
}  // namespace halftone::test::strategy_bytes_test
