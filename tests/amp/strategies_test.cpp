// Whole strategies: they train, resume to the bit, and agree with each other where they should.
// Their tables of bytes, and conversions of their states. Models and optimizers: training_test.cpp.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <sstream>

#include <halftone/amp/policy.h>
#include <halftone/core/backend.h>

#include "../support.h"
#include "cases.h"
#include "support.h"

namespace halftone::test::strategies_test {
namespace {

using amp::Policy;

TEST_CASE("every strategy trains") {
  for (const std::string_view name : Policy::names()) {
    CAPTURE(name);
    StrategyCase run(name);
    const double first = run.step();
    double last = 0;
    for (int i = 0; i < 60; ++i) last = run.step();
    CHECK(last < first / 2);
    CHECK(run.loss().dtype() == (name == "fp64" ? f64 : f32));
  }
}

TEST_CASE("outputs are f32 under every strategy, short weights or not; under fp64 f64") {
  for (const std::string_view name : Policy::names()) {
    StrategyCase run(name);
    const DType wide = name == "fp64" ? f64 : f32;
    CHECK(run.training.forward(*run.model, run.inputs).dtype() == wide);
    // A loss inside the region is computed in f32 from short logits: the same number.
    const Tensor inside = run.training.forward(
        [&](const Tensor& x) { return cross_entropy((*run.model)(x), run.targets); }, run.inputs);
    CHECK(inside.dtype() == wide);
    CHECK(inside.item() == run.loss().item());
  }
}

/// A model with dropout, so that the generator matters as well.
std::unique_ptr<nn::Layer> with_dropout(uint64_t seed) {
  manual_seed(seed);
  return std::make_unique<nn::Sequential>(nn::Linear(24, 40), nn::Relu(), nn::Dropout(0.2),
                                          nn::BatchNorm1d(40), nn::Linear(40, 10));
}

TEST_CASE("a training saved and resumed continues bit for bit") {
  const TemporaryDirectory directory;
  for (const std::string_view name : Policy::names()) {
    CAPTURE(name);
    const auto file = directory / "training.safetensors";
    Policy strategy = Policy::named(name);
    strategy.seed = 7;
    StrategyCase whole(strategy, with_dropout(3), 3);
    manual_seed(11);
    for (int i = 0; i < 4; ++i) whole.step();
    whole.training.save(file);
    for (int i = 0; i < 4; ++i) whole.step();
    const auto wanted = copy_of(whole.training.state_dict());

    StrategyCase resumed(strategy, with_dropout(4), 3);  // other weights, other random numbers
    resumed.step();
    resumed.training.load(file);
    for (int i = 0; i < 4; ++i) resumed.step();
    CHECK(same_state(resumed.training.state_dict(), wanted));
  }
}

TEST_CASE("o2-bf16 and amp-bf16 are the same arithmetic if gradients are rounded alike") {
  // Without biases: their gradients are sums, which are rounded once or twice.
  const auto model = [] {
    manual_seed(5);
    return std::make_unique<nn::Sequential>(nn::Linear(24, 40, {.bias = false}), nn::Relu(),
                                            nn::Linear(40, 10, {.bias = false}));
  };
  StrategyCase o2(Policy::named("o2-bf16"), model(), 5), amp(Policy::named("amp-bf16"), model(), 5);
  for (int i = 0; i < 20; ++i) {
    CHECK(o2.step() == [&] {
      amp.training.zero_grad();
      const Tensor loss = amp.loss();
      amp.training.backward(loss);
      // amp's come straight from the product in f32: here they differ.
      for (Tensor p : amp.model->parameters()) p.set_grad(cast(cast(p.grad(), bf16), f32));
      amp.training.step();
      return loss.item();
    }());
  }
  const std::vector<Tensor> weights = amp.model->parameters();
  for (std::size_t i = 0; i < weights.size(); ++i)
    CHECK(same_bits(o2.training.masters()->weight(i), weights[i].detach()));
}

TEST_CASE("masters start from the f32 weights, not from their bf16 rounding") {
  const auto model = StrategyCase::mlp(1);
  const Tensor original = model->parameters()[0].clone();
  for (const std::string_view name : {"o2-bf16", "o2-fp16", "split-bf16"}) {
    StrategyCase run(name);
    CHECK(same_bits(run.training.masters()->weight(0), original));
  }
}

TEST_CASE("o2 keeps batch norm in f32, affine or not") {
  for (const bool affine : {true, false}) {
    auto model = std::make_unique<nn::Sequential>(
        nn::Linear(24, 8), nn::BatchNorm1d(8, {.affine = affine}), nn::Linear(8, 10));
    StrategyCase run(Policy::named("o2-fp16"), std::move(model), 0);
    for (const auto& [name, x] : nn::state_dict(*run.model))
      if (is_floating(x.dtype())) CHECK(x.dtype() == (name.starts_with("1.") ? f32 : f16));
    run.step();
  }
}

// --- mistakes

TEST_CASE("a state that does not fit is refused, and nothing has changed") {
  StrategyCase run("split-bf16"), other("o2-bf16");
  run.step(), other.step();
  const auto before = copy_of(run.training.state_dict());
  const auto refused = [&](const optim::NamedTensors& state) {
    const std::string message = MESSAGE_OF(Error, run.training.load_state_dict(state));
    CHECK(same_state(before, run.training.state_dict()));
    return message;
  };
  CHECK(refused(other.training.state_dict()) ==
        "[Training.load_state_dict] the state was saved under o2-bf16, this is split-bf16. Pass "
        "Convert::lossless or Convert::rounding to convert it.");
  auto state = copy_of(before);
  state.erase("optimizer.remainder_rounded.1");
  CHECK(refused(state).find("there is no entry \"remainder_rounded.1\"") != std::string::npos);
  state = copy_of(before);
  state["optimizer.remainder_rounded.1"] = zeros({3}, i16);
  CHECK(refused(state).find("\"remainder_rounded.1\" is [3] i16 instead of [40] i16") !=
        std::string::npos);
  state = copy_of(before);
  state["model.0.weight"] = zeros({2, 2}, bf16);
  CHECK(refused(state).find("does not fit the module") != std::string::npos);
  state = copy_of(before);
  state["nonsense"] = zeros({});
  CHECK(refused(state).find("\"nonsense\" is unknown") != std::string::npos);
  state = copy_of(before);
  state["optimizer.state.9.exp_avg"] = zeros({2});
  CHECK(refused(state).find("state.9.exp_avg is unknown") != std::string::npos);
  state = copy_of(before);
  state.erase("strategy");
  CHECK(refused(state).find("there is no entry \"strategy\"") != std::string::npos);
  state = copy_of(before);
  state["generator"] = zeros({5}, i64);
  CHECK(refused(state).find("\"generator\" is [5] i64") != std::string::npos);
}

TEST_CASE("names that do not exist, with the nearest existing name") {
  CHECK_THROWS_WITH_AS(
      Policy::named("amp-bf61"),
      "[Policy] there is no strategy named \"amp-bf61\". Did you mean \"amp-bf16\"?", UsageError);
  CHECK_THROWS_WITH_AS(Policy::named("something else"),
                       doctest::Contains("Known: fp64, fp32, amp-bf16, amp-fp16, o1-fp16"),
                       UsageError);
}

TEST_CASE("running statistics arrive at those of equal batches, under every strategy") {
  const Tensor x = reshape(from({91.0, 93, 99, 101}), {4, 1});
  for (const std::string_view name : Policy::names()) {
    INFO(std::string(name));
    nn::Sequential model(nn::BatchNorm1d(1));
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    amp::Training training(Policy::named(name), model, sgd);
    for (int i = 0; i < 150; ++i) training.forward(model, x);
    const auto& norm = dynamic_cast<const nn::BatchNorm1d&>(model[0]);
    CHECK(norm.running_mean.dtype() == (name == "fp64" ? f64 : f32));
    CHECK(norm.running_mean.item() == doctest::Approx(96).epsilon(1e-5));
    CHECK(norm.running_var.item() == doctest::Approx(68.0 / 3).epsilon(1e-5));
  }
}

TEST_CASE("a strategy prints itself") {
  std::ostringstream text;
  text << Policy::named("o2-fp16");
  CHECK(text.str() ==
        "o2-fp16          weights f16 (master), batch norm f32, loss scale dynamic from 65536");
}

TEST_CASE("a first step in which nothing was cast is reported once") {
  for (const bool inside : {true, false}) {
    nn::Linear model(3, 2);
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    amp::Training training(amp::Policy::named("amp-bf16"), model, sgd);
    const std::string text = told([&] {
      for (int i = 0; i < 2; ++i) {
        training.zero_grad();
        const Tensor x = ones({4, 3});
        training.backward(mean(inside ? training.forward(model, x) : model(x)));
        training.step();
      }
    });
    CHECK(text == (inside ? ""
                          : "[Training] under amp-bf16 nothing was cast to bf16 before the "
                            "first step. Run the model inside of training.forward().\n"));
  }
}

TEST_CASE("inputs keep their digits until the first operation with short weights") {
  for (const std::string_view name : Policy::names()) {
    if (name == "fp64") continue;
    CAPTURE(name);
    StrategyCase run(name);
    const Tensor x = run.inputs * 5 + 2000;
    const auto removes_offset = [&](const Tensor& in) { return (*run.model)((in - 2000) / 5); };
    const Tensor expected = run.training.forward(*run.model, (x - 2000) / 5);
    CHECK(run.training.forward(removes_offset, x).to_vector<float>() ==
          expected.to_vector<float>());
  }
  // Norms and broadcasting operations take f32 inputs with short parameters; products take casts.
  nn::Sequential model(nn::LayerNorm(6), nn::Linear(6, 4), nn::Tanh(), nn::Linear(4, 2));
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  amp::Training training = amp::apply("full-bf16", model, sgd);
  const Tensor far = randn({32, 6}) + 1000;
  const Tensor y = training.forward(model, far);
  const Tensor centered = training.forward(model, far - mean(far, -1, true));
  CHECK(max(abs(y - centered)).item() <= 0.02);
  const Tensor product = training.forward(
      [&](const Tensor& in) { return matmul(in, in.transpose(0, 1)); }, far);  // f32 with f32
  CHECK(product.to_vector<float>() == matmul(far, far.transpose(0, 1)).to_vector<float>());
}

TEST_CASE("a Standardizer keeps its numbers under every strategy") {
  manual_seed(1);
  const Tensor x = randn({64, 3}) + from({2003.7, -1e5, 0.001});
  for (const std::string_view name : Policy::names()) {
    CAPTURE(name);
    nn::Sequential model(nn::Standardizer::of(x), nn::Linear(3, 2));
    const auto first = dynamic_cast<const nn::Standardizer*>(model.named_modules()[1].second);
    REQUIRE(first);
    const std::vector<double> mean = first->mean.to_vector<double>(),
                              std = first->std.to_vector<double>();
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    const amp::Training training = amp::apply(Policy::named(name), model, sgd);
    CHECK(first->mean.to_vector<double>() == mean);
    CHECK(first->std.to_vector<double>() == std);
  }
}

TEST_CASE("an input that is rounded as it is, and loses by that, is reported once") {
  manual_seed(2);
  const Tensor good = randn({64, 3}), bad = cat({good, randn({64, 1}) * 5 + 2000}, 1);
  for (const char* name : {"fp32", "amp-bf16", "o2-bf16", "full-bf16"})
    for (const bool standardizes : {false, true}) {
      nn::Linear model(4, 2);
      const nn::Standardizer first = nn::Standardizer::of(bad);
      optim::Sgd sgd(model.parameters(), {.lr = 0.1});
      amp::Training training = amp::apply(name, model, sgd);
      const auto forward = [&](const Tensor& x) { return model(standardizes ? first(x) : x); };
      const std::string text = told([&] {
        for (int i = 0; i < 2; ++i) training.forward(forward, bad);
      });
      if (standardizes || name == std::string("fp32")) CHECK(text.empty());
      else {
        CHECK(text.starts_with("[Training] under " + std::string(name) +
                               " an input is rounded to bf16 as it is. In column 3 (mean "));
        CHECK(std::ranges::count(text, '\n') == 1);
      }
    }
  nn::Linear model(3, 2);
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  amp::Training training = amp::apply("full-bf16", model, sgd);
  CHECK(told([&] { training.forward(model, good); }).empty());
}

}  // namespace
}  // namespace halftone::test::strategies_test

// The predicted bytes of a strategy equal those of the ledger, to the byte.

namespace halftone::test::strategy_bytes_test {
namespace {

TEST_CASE("predicted bytes are those of the ledger, batch norm and frozen weights included") {
  for (const std::string_view name : amp::Policy::names()) {
    CAPTURE(name);
    const MemoryReport before = memory_report();
    const amp::Policy strategy = amp::Policy::named(name);
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
    return amp::predicted_bytes(amp::Policy::named("fp32"), model, optimizer).optimizer_state;
  };
  const auto model = StrategyCase::mlp(1);
  const auto parameters = model->parameters();
  CHECK(state(optim::Sgd(parameters, {.lr = 0.1}), *model) == 0);
  CHECK(state(optim::Sgd(parameters, {.lr = 0.1, .momentum = 0.9}), *model) == 4 * 1410);
  CHECK(state(optim::Adam(parameters), *model) == 8 * 1410);
  // A row and a column for each weight, [40, 24] and [10, 40], and all of each bias.
  CHECK(state(optim::Adafactor(parameters), *model) == 4 * (40 + 24 + 40 + 10 + 40 + 10));
}

TEST_CASE("predicted bytes of several ranks: of the rank that keeps most") {
  // 64 x 64 + 64 = 4096 + 64 elements. Shards have 1024 elements, the bias is one shard. The first
  // of four ranks has 1024 + 64.
  nn::Linear model(64, 64);
  const std::vector<Tensor> parameters = model.parameters();
  optim::Adam adam(parameters);
  const auto bytes = [&](std::string_view strategy, int ranks, optim::Optimizer& optimizer) {
    return amp::predicted_bytes(amp::Policy::named(strategy), model, optimizer, ranks);
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

// The bytes of every strategy, to the byte, on an MLP: bytes at rest and between steps, and the
// peak of every use. Bytes per parameter with Adam:
//
//                                    fp32  amp   o2  o2 fused  full  kahan  split
//   parameter                           4    4    2         2     2      2      2
//   master, remainder, compensation     -    -    4         4     -      2      2
//   gradient                            4    4    2         2     2      2      2
//   master gradient                     -    -    4         -     -      -      -
//   optimizer state                     8    8    8         8     4      4      8
//   cast cache, forward to backward     -    2    -         -     -      -      -
//   steady                             16   16   16        16     8     10     14
//   peak                               16   18   20        16     8     10     14

namespace halftone::test::ledger_test {
namespace {

using Use = MemoryUse;

/// Bytes per parameter.
struct Expected {
  std::string_view strategy;
  std::optional<DType> state_dtype;  // other than the strategy's
  bool fused_master = true;
  int parameter, companion, gradient, master_gradient, state, cast_cache, steady, peak;
  double ratio;
};

const Expected table[]{
    {"fp64", {}, true, 8, 0, 8, 0, 16, 0, 32, 32, 2.0},
    {"fp32", {}, true, 4, 0, 4, 0, 8, 0, 16, 16, 1.0},
    {"amp-bf16", {}, true, 4, 0, 4, 0, 8, 2, 16, 18, 1.0},
    {"amp-fp16", {}, true, 4, 0, 4, 0, 8, 2, 16, 18, 1.0},
    {"o1-fp16", {}, true, 4, 0, 4, 0, 8, 2, 16, 18, 1.0},
    {"o2-bf16", {}, false, 2, 4, 2, 4, 8, 0, 16, 20, 1.5},
    {"o2-bf16", {}, true, 2, 4, 2, 0, 8, 0, 16, 16, 1.5},
    {"o2-fp16", {}, false, 2, 4, 2, 4, 8, 0, 16, 20, 1.5},
    {"o2-fp16", {}, true, 2, 4, 2, 0, 8, 0, 16, 16, 1.5},
    {"o3-fp16", {}, true, 2, 0, 2, 0, 8, 0, 12, 12, 0.5},
    {"o3-fp16", f16, true, 2, 0, 2, 0, 4, 0, 8, 8, 0.5},
    {"full-bf16", {}, true, 2, 0, 2, 0, 4, 0, 8, 8, 0.5},
    {"full-bf16", f32, true, 2, 0, 2, 0, 8, 0, 12, 12, 0.5},
    {"full-bf16-sr", {}, true, 2, 0, 2, 0, 4, 0, 8, 8, 0.5},
    {"full-bf16-kahan", {}, true, 2, 2, 2, 0, 4, 0, 10, 10, 1.0},
    {"full-bf16-kahan", f32, true, 2, 2, 2, 0, 8, 0, 14, 14, 1.0},
    {"split-bf16", {}, true, 2, 2, 2, 0, 8, 0, 14, 14, 1.0},
    {"split-bf16", bf16, true, 2, 2, 2, 0, 4, 0, 10, 10, 1.0},
};

/// The uses that belong to parameters: without activations, inputs and workspaces.
int64_t of_parameters(const std::array<int64_t, memory_use_count>& bytes) {
  int64_t sum = 0;
  for (const Use use : {Use::parameter, Use::master_weight, Use::gradient, Use::master_gradient,
                        Use::optimizer_state, Use::cast_cache, Use::compensation})
    sum += bytes[std::size_t(use)];
  return sum;
}
int64_t companion(const MemoryReport& report) {
  return report.now_of(Use::master_weight) + report.now_of(Use::compensation);
}

/// Returns the largest sum over parameter uses during two accumulated micro-batches and a step. The
/// ledger's peak includes all bytes, also activations; this one only the parameters'.
class Watch {
 public:
  void look() { largest_ = std::max(largest_, of_parameters(memory_report().now)); }
  int64_t largest() const { return largest_; }

 private:
  int64_t largest_ = 0;
};

/// Reads the ledger whenever an operation of the forward pass runs.
struct Watched final : UserOp {
  static constexpr OpInfo info{"watched", CastClass::as_is};
  Watch* watch;
  explicit Watched(Watch* w) : watch(w) {}
  Tensor forward(const Tensor& x) {
    watch->look();
    return x.clone();
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    watch->look();
    return {dy};
  }
};

TEST_CASE("the ledger of every strategy, to the byte") {
  for (const Expected& e : table) {
    CAPTURE(e.strategy);
    CAPTURE(e.fused_master);
    const MemoryReport empty = memory_report();
    REQUIRE(of_parameters(empty.now) == 0);
    {
      amp::Policy strategy = amp::Policy::named(e.strategy);
      strategy.fused_master = e.fused_master;
      if (e.state_dtype) strategy.state_dtype = e.state_dtype;
      StrategyCase run(strategy);
      const int64_t n = run.model->parameter_count();
      const MemoryReport at_rest = memory_report();
      CHECK(at_rest.now_of(Use::parameter) == e.parameter * n);
      CHECK(companion(at_rest) == e.companion * n);
      CHECK(double(at_rest.now_of(Use::parameter) + companion(at_rest)) == e.ratio * 4 * double(n));

      run.step();  // makes the optimizer's state
      run.training.zero_grad();
      reset_peak_memory();
      Watch watch;
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        const Tensor loss = cross_entropy(
            run.training.forward(
                [&](const Tensor& x) { return apply(Watched(&watch), (*run.model)(x)); },
                run.inputs),
            run.targets);
        run.training.backward(loss);
      }
      run.training.optimizer().gradients();  // as clipping would: makes the masters' gradients
      watch.look();
      run.training.step();
      const MemoryReport after = memory_report();
      CHECK(after.peak_of(Use::parameter) == e.parameter * n);
      CHECK(after.peak_of(Use::master_weight) + after.peak_of(Use::compensation) ==
            e.companion * n);
      CHECK(after.now_of(Use::gradient) == e.gradient * n);
      CHECK(after.peak_of(Use::master_gradient) == e.master_gradient * n);
      CHECK(after.now_of(Use::optimizer_state) == e.state * n);
      CHECK(after.peak_of(Use::cast_cache) == e.cast_cache * n);
      CHECK(of_parameters(after.now) == e.steady * n);
      CHECK(watch.largest() == e.peak * n);
    }
    CHECK(memory_report().now == empty.now);  // nothing remains allocated
  }
}

TEST_CASE("outside the region only the graph holds casts, and backward frees them") {
  StrategyCase run("amp-bf16");
  {
    const Tensor loss = run.loss();
    CHECK(memory_report().now_of(Use::cast_cache) > 0);
    run.training.backward(loss);
    CHECK(memory_report().now_of(Use::cast_cache) == 0);
  }
}

}  // namespace
}  // namespace halftone::test::ledger_test

// States of one strategy loaded under another. Weights are exact to the bit if the bits exist, also
// tied, frozen and renamed ones. A load that would lose bits, or does not fit, is refused.

namespace halftone::test::conversion_test {
namespace {

using amp::Convert;
using amp::Policy;
using doctest::Contains;

const std::vector<std::string_view> exact{"fp32", "o2-bf16", "split-bf16"};

/// Returns parameter i and the tensors that store the rest of its weight.
Tensor weight_of(StrategyCase& run, std::size_t i) {
  amp::MasterWeights* masters = run.training.masters();
  return masters ? masters->weight(i) : cast(run.model->parameters()[i].detach(), f32);
}

TEST_CASE("weights convert between strategies to the bit if the bits exist") {
  const std::vector<std::string_view> full{"fp32", "amp-fp16", "o2-bf16", "split-bf16"};
  for (const std::string_view from : full)
    for (const std::string_view to : full) {
      CAPTURE(from);
      CAPTURE(to);
      StrategyCase source(from), target(to);
      for (int i = 0; i < 5; ++i) source.step();
      target.training.load_state_dict(copy_of(source.training.state_dict()),
                                      from == to ? Convert::refuse : Convert::lossless);
      for (std::size_t i = 0; i < 4; ++i)
        CHECK(same_bits(weight_of(source, i), weight_of(target, i)));
      CHECK(target.adamw.state_dict().at("state.0.step").item() == 5);
      target.step();
    }
}

TEST_CASE("compensated and rounded weights convert upwards; downwards only by rounding") {
  for (const std::string_view from : {"full-bf16-kahan", "full-bf16", "full-bf16-sr"})
    for (const std::string_view to : {"fp32", "o2-bf16", "split-bf16"}) {
      StrategyCase source(from), target(to);
      for (int i = 0; i < 5; ++i) source.step();
      target.training.load_state_dict(copy_of(source.training.state_dict()), Convert::lossless);
      target.step();
    }
  for (const std::string_view to : {"full-bf16", "full-bf16-kahan", "full-bf16-sr", "o3-fp16"}) {
    StrategyCase source("fp32"), target(to);
    source.step();
    const auto before = copy_of(target.training.state_dict());
    const auto state = copy_of(source.training.state_dict());
    CHECK_THROWS_WITH_AS(target.training.load_state_dict(state, Convert::lossless),
                         doctest::Contains("cannot hold what fp32 saved to the bit"), UsageError);
    CHECK(same_state(before, target.training.state_dict()));
    target.training.load_state_dict(state, Convert::rounding);
    target.step();
  }
}

TEST_CASE("f64 holds every weight, and converts to other dtypes by rounding") {
  for (const std::string_view other : {"fp32", "o2-bf16", "split-bf16", "full-bf16-kahan"}) {
    CAPTURE(other);
    StrategyCase narrow(other), wide("fp64");
    for (int i = 0; i < 3; ++i) narrow.step();
    wide.training.load_state_dict(copy_of(narrow.training.state_dict()), Convert::lossless);
    for (std::size_t i = 0; i < 4; ++i)
      CHECK(same_bits(cast(wide.model->parameters()[i].detach(), f32), weight_of(narrow, i)));
    wide.step();
    const auto state = copy_of(wide.training.state_dict());
    CHECK_THROWS_WITH_AS(narrow.training.load_state_dict(state, Convert::lossless),
                         Contains("cannot hold what fp64 saved to the bit"), UsageError);
    narrow.training.load_state_dict(state, Convert::rounding);
    if (other != "full-bf16-kahan")
      for (std::size_t i = 0; i < 4; ++i)
        CHECK(same_bits(cast(wide.model->parameters()[i].detach(), f32), weight_of(narrow, i)));
    narrow.step();
  }
}

/// A strategy that is not in a table.
Policy customised(std::string name, WeightForm form, DType weights = bf16) {
  Policy strategy;
  strategy.name = std::move(name), strategy.form = form, strategy.weights = weights;
  return strategy;
}

TEST_CASE("the form that was saved counts, not the name of the strategy") {
  for (const WeightForm form : {WeightForm::split_rounded, WeightForm::kahan, WeightForm::split}) {
    CAPTURE(name(form));
    for (const char* name : {"full-bf16", "my own"}) {
      StrategyCase source(customised(name, form)), target("fp32");
      for (int i = 0; i < 5; ++i) source.step();
      target.training.load_state_dict(copy_of(source.training.state_dict()), Convert::lossless);
      for (std::size_t i = 0; i < 4; ++i)
        CHECK(same_bits(weight_of(source, i), weight_of(target, i)));
      target.step();
    }
  }
}

TEST_CASE("the same name with another form or other dtypes is another strategy") {
  StrategyCase target("full-bf16");
  for (const Policy& other :
       {customised("full-bf16", WeightForm::kahan), customised("full-bf16", WeightForm::plain, f32),
        customised("full-bf16", WeightForm::plain, f16)}) {
    StrategyCase source(other);
    source.step();
    const auto state = copy_of(source.training.state_dict());
    const auto before = copy_of(target.training.state_dict());
    CHECK_THROWS_WITH_AS(
        target.training.load_state_dict(state),
        "[Training.load_state_dict] the state was saved under full-bf16 with other options, this "
        "is full-bf16. Pass Convert::lossless or Convert::rounding to convert it.",
        UsageError);
    CHECK(same_state(before, target.training.state_dict()));
    target.training.load_state_dict(state, Convert::rounding);
    target.step();
  }
}

TEST_CASE("masters of the plain way convert as fused ones do") {
  for (const std::string_view other : {"fp32", "split-bf16"}) {
    Policy strategy = Policy::named("o2-bf16");
    strategy.fused_master = false;
    StrategyCase plain(strategy), there(other), back(strategy);
    for (int i = 0; i < 5; ++i) plain.step();
    there.training.load_state_dict(copy_of(plain.training.state_dict()), Convert::lossless);
    back.training.load_state_dict(copy_of(there.training.state_dict()), Convert::lossless);
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(same_bits(weight_of(plain, i), weight_of(there, i)));
      CHECK(same_bits(weight_of(plain, i), weight_of(back, i)));
    }
    back.step();
  }
}

// --- tied weights

/// The second layer has the first one's weight.
struct Tied final : nn::Layer {
  nn::Linear first{24, 24}, second{24, 24}, last{24, 10};
  Tied() { second.weight = first.weight; }
  Tensor forward(const Tensor& x) const override { return last(relu(second(relu(first(x))))); }
  void describe(nn::Fields& field) override {
    field("first", first), field("second", second), field("last", last);
  }
};

std::unique_ptr<nn::Layer> tied_model() {
  manual_seed(1);
  return std::make_unique<Tied>();
}

TEST_CASE("tied weights convert under all of their names") {
  for (const std::string_view from : exact)
    for (const std::string_view to : exact) {
      if (from == to) continue;
      CAPTURE(from);
      CAPTURE(to);
      StrategyCase source(Policy::named(from), tied_model(), 1),
          target(Policy::named(to), tied_model(), 2);
      for (int i = 0; i < 5; ++i) source.step();
      target.training.load_state_dict(copy_of(source.training.state_dict()), Convert::lossless);
      for (std::size_t i = 0; i < 5; ++i)
        CHECK(same_bits(weight_of(source, i), weight_of(target, i)));
      const auto state = nn::state_dict(*target.model);
      CHECK(state.at("first.weight").body() == state.at("second.weight").body());
      target.inputs = source.inputs, target.targets = source.targets;
      CHECK(target.loss().item() == doctest::Approx(source.loss().item()).epsilon(epsilon(bf16)));
      target.step();
    }
}

// --- tensors that the optimizer does not own

/// Linear, batch norm, Linear; the optimizer has the last one only, so everything else is frozen.
struct Frozen {
  nn::Sequential model;
  optim::Sgd sgd;
  amp::Training training;

  explicit Frozen(const Policy& strategy)
      : model((manual_seed(3), nn::Linear(4, 4)), nn::BatchNorm1d(4), nn::Linear(4, 2)),
        sgd(last_layer(), {.lr = 0.1}),
        training(amp::apply(strategy, model, sgd)) {}
  std::vector<Tensor> last_layer() const {
    const std::vector<Tensor> all = model.parameters();
    return {all.end() - 2, all.end()};
  }
  Tensor entry(const std::string& name) const { return nn::state_dict(model).at(name); }
  /// Returns all tensors outside of the last layer, with numbers that bf16 represents.
  void make_short() {
    for (auto& [name, x] : nn::state_dict(model))
      if (is_floating(x.dtype()) && !name.starts_with("2.")) {
        Tensor stored = x;
        backend_for(x).copy(cast(x, bf16), stored);
      }
  }
};

TEST_CASE("frozen parameters are rounded only on request, running statistics never") {
  Policy masters_everywhere = Policy::named("o2-bf16");
  masters_everywhere.keep_batch_norm = false;
  Frozen source(Policy::named("fp32")), target(masters_everywhere);
  source.training.forward(source.model, randn({8, 4}));  // changes the running statistics
  const auto refused = [&](const std::string& name) {
    const auto before = copy_of(target.training.state_dict());
    const std::string message = MESSAGE_OF(
        UsageError,
        target.training.load_state_dict(copy_of(source.training.state_dict()), Convert::lossless));
    CHECK(message ==
          "[Training.load_state_dict] o2-bf16 cannot hold what fp32 saved to the bit: "
          "\"model." +
              name + "\" would be rounded. Pass Convert::rounding to accept that.");
    CHECK(same_state(before, target.training.state_dict()));
  };
  refused("0.bias");
  const Tensor mean = source.entry("1.running_mean").clone();
  target.training.load_state_dict(copy_of(source.training.state_dict()), Convert::rounding);
  CHECK(same_bits(target.entry("1.running_mean"), mean));
  source.make_short();
  target.training.load_state_dict(copy_of(source.training.state_dict()), Convert::lossless);
  for (const auto& [name, x] : nn::state_dict(source.model))
    if (is_floating(x.dtype()) && !name.starts_with("2."))
      CHECK(same_bits(cast(target.entry(name), f32), x));
  CHECK(same_bits(target.training.masters()->weight(0), source.entry("2.weight")));
}

TEST_CASE("batch norm that stays f32 converts with its statistics") {
  const auto model = [] {
    return std::make_unique<nn::Sequential>(nn::Linear(24, 8), nn::BatchNorm1d(8),
                                            nn::Linear(8, 10));
  };
  StrategyCase source(Policy::named("fp32"), model(), 1),
      target(Policy::named("o2-fp16"), model(), 2);
  for (int i = 0; i < 3; ++i) source.step();
  target.training.load_state_dict(copy_of(source.training.state_dict()), Convert::lossless);
  for (const char* name : {"1.weight", "1.running_mean", "1.running_var", "1.num_batches_tracked"})
    CHECK(
        same_bits(nn::state_dict(*source.model).at(name), nn::state_dict(*target.model).at(name)));
}

// --- mistakes

TEST_CASE("a state that does not fit is not converted, and nothing has changed") {
  StrategyCase source("full-bf16-kahan"), target("fp32");
  source.step(), target.step();
  const auto good = copy_of(source.training.state_dict());
  const auto before = copy_of(target.training.state_dict());
  const auto refused = [&](const std::string& entry, const Tensor& value) {
    auto state = copy_of(good);
    if (value.defined()) state[entry] = value;
    else state.erase(entry);
    const std::string message =
        MESSAGE_OF(Error, target.training.load_state_dict(state, Convert::rounding));
    CHECK(same_state(before, target.training.state_dict()));
    return message;
  };
  CHECK(refused("optimizer.compensation.0", zeros({3}, bf16)) ==
        "[Training.load_state_dict] \"optimizer.compensation.0\" is [3] bf16, which does not fit "
        "[40, 24] bf16. The state is damaged.");
  CHECK(refused("optimizer.compensation.1", zeros({40})).find("is [40] f32, which does not fit") !=
        std::string::npos);
  CHECK(refused("optimizer.compensation.2", {}) ==
        "[Training.load_state_dict] there is no entry \"optimizer.compensation.2\". Load what a "
        "Training saved.");
  CHECK(refused("model.0.weight", zeros({2, 2}, bf16)) ==
        "[Training.load_state_dict] \"model.0.weight\" is [2, 2] bf16 instead of [40, 24]. Build "
        "the model with the sizes that were saved.");
  CHECK(refused("model.0.weight", zeros({40, 24}, i64)) ==
        "[Training.load_state_dict] \"model.0.weight\" is [40, 24] i64, but weights are saved in "
        "f64, f32, bf16 or f16. The state is damaged.");
  CHECK(
      refused("form", from_vector(std::vector<int64_t>{'k', 'a'}, {2}, u8)) ==
      "[Training.load_state_dict] \"form\" is \"ka\", which is not a form of weights. The state is "
      "damaged, or newer than this library.");
  CHECK(refused("optimizer.state.9.exp_avg", zeros({2})).find("state.9.exp_avg is unknown") !=
        std::string::npos);
}

TEST_CASE("names that this model ties must have been tied in the state") {
  StrategyCase source(Policy::named("fp32"), tied_model(), 1),
      target(Policy::named("o2-bf16"), tied_model(), 2);
  auto state = copy_of(source.training.state_dict());
  state["model.second.weight"] = zeros({24, 24});
  const auto before = copy_of(target.training.state_dict());
  CHECK_THROWS_WITH_AS(target.training.load_state_dict(state, Convert::rounding),
                       Contains("\"model.second.weight\" is not \"model.first.weight\", but the "
                                "model has the two tied"),
                       UsageError);
  CHECK(same_state(before, target.training.state_dict()));
}

TEST_CASE("names of strategy, form and entries in a file are printable in messages") {
  StrategyCase source("fp32"), target("o2-bf16");
  const auto text = [](std::string_view bytes) {
    const std::vector<double> values(bytes.begin(), bytes.end());
    return from_vector(values, {int64_t(values.size())}, u8);
  };
  const auto refused = [&](const std::string& entry, const std::string& value) {
    auto state = copy_of(source.training.state_dict());
    state[entry] = text(value);
    return MESSAGE_OF(Error, target.training.load_state_dict(state));
  };
  CHECK(refused("strategy", "\x1b[2J").find("was saved under \\x1b[2J, this is o2-bf16") !=
        std::string::npos);
  CHECK(refused("strategy", std::string(100'000, 'x')).size() < 300);
  CHECK(refused("form", "\x1b[2J").find("\"form\" is \"\\x1b[2J\", which is not a form") !=
        std::string::npos);
  auto state = copy_of(source.training.state_dict());
  state["\x1b[2J"] = zeros({1});
  CHECK_THROWS_WITH_AS(source.training.load_state_dict(state),
                       "[Training.load_state_dict] the entry \"\\x1b[2J\" is unknown. Load what a "
                       "Training saved.",
                       UsageError);
}

TEST_CASE("a conversion never makes a number infinite, not even by rounding") {
  StrategyCase source("fp32"), target("o3-fp16");
  fill_with(source.model->parameters()[0], 1e6);
  const auto state = copy_of(source.training.state_dict());
  const auto before = copy_of(target.training.state_dict());
  CHECK_THROWS_WITH_AS(target.training.load_state_dict(state, Convert::rounding),
                       Contains("has 1e+06, which f16 cannot hold"), DTypeError);
  CHECK(same_state(before, target.training.state_dict()));

  // The same for masters; a parameter that is infinite already may stay so.
  StrategyCase masters("o2-fp16");
  optim::NamedTensors own = copy_of(masters.training.masters()->state_dict());
  for (const auto& [name, x] : own)
    if (name.starts_with("master.")) fill_with(x, 1e6);
  CHECK_THROWS_WITH_AS(masters.training.masters()->load_state_dict(own),
                       Contains("has 1e+06, which the parameter"), DTypeError);
  for (const Tensor& x : masters.model->parameters()) fill_with(x, 1e6);
  masters.training.masters()->load_state_dict(own);
}

}  // namespace
}  // namespace halftone::test::conversion_test
