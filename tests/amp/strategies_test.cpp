// Whole strategies: they train, resume to the bit, and agree with each other where they should.
// Conversions of their states: conversion_test.cpp. Models and optimizers: apply_test.cpp.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "cases.h"
#include "support.h"

namespace halftone::test::strategies_test {
namespace {

using amp::Strategy;

TEST_CASE("every strategy trains") {
  for (const std::string_view name : Strategy::names()) {
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
  for (const std::string_view name : Strategy::names()) {
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
  for (const std::string_view name : Strategy::names()) {
    CAPTURE(name);
    const auto file = directory / "training.safetensors";
    Strategy strategy = Strategy::named(name);
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
  StrategyCase o2(Strategy::named("o2-bf16"), model(), 5),
      amp(Strategy::named("amp-bf16"), model(), 5);
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
    StrategyCase run(Strategy::named("o2-fp16"), std::move(model), 0);
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
    std::string message;
    try {
      run.training.load_state_dict(state);
    } catch (const Error& error) { message = error.what(); }
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
      Strategy::named("amp-bf61"),
      "[Strategy] there is no strategy named \"amp-bf61\". Did you mean \"amp-bf16\"?", UsageError);
  CHECK_THROWS_WITH_AS(Strategy::named("something else"),
                       doctest::Contains("Known: fp64, fp32, amp-bf16, amp-fp16, o1-fp16"),
                       UsageError);
}

TEST_CASE("running statistics arrive at those of equal batches, under every strategy") {
  const Tensor x = reshape(from({91.0, 93, 99, 101}), {4, 1});
  for (const std::string_view name : Strategy::names()) {
    INFO(std::string(name));
    nn::Sequential model(nn::BatchNorm1d(1));
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    amp::Training training(Strategy::named(name), model, sgd);
    for (int i = 0; i < 150; ++i) training.forward(model, x);
    const auto& norm = dynamic_cast<const nn::BatchNorm1d&>(model[0]);
    CHECK(norm.running_mean.dtype() == (name == "fp64" ? f64 : f32));
    CHECK(norm.running_mean.item() == doctest::Approx(96).epsilon(1e-5));
    CHECK(norm.running_var.item() == doctest::Approx(68.0 / 3).epsilon(1e-5));
  }
}

TEST_CASE("a strategy prints itself") {
  std::ostringstream text;
  text << Strategy::named("o2-fp16");
  CHECK(text.str() ==
        "o2-fp16          weights f16 (master), batch norm f32, loss scale dynamic from 65536");
}

TEST_CASE("a first step in which nothing was cast is reported once") {
  std::ostringstream told;
  std::streambuf* const before = std::cerr.rdbuf(told.rdbuf());
  for (const bool inside : {true, false}) {
    nn::Linear model(3, 2);
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    amp::Training training(amp::Strategy::named("amp-bf16"), model, sgd);
    for (int i = 0; i < 2; ++i) {
      training.zero_grad();
      const Tensor x = ones({4, 3});
      training.backward(mean(inside ? training.forward(model, x) : model(x)));
      training.step();
    }
    CHECK(told.str() == (inside ? ""
                                : "[Training] under amp-bf16 nothing was cast to bf16 before the "
                                  "first step. Run the model inside of training.forward().\n"));
  }
  std::cerr.rdbuf(before);
}

TEST_CASE("inputs keep their digits until the first operation with short weights") {
  for (const std::string_view name : Strategy::names()) {
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
  for (const std::string_view name : Strategy::names()) {
    CAPTURE(name);
    nn::Sequential model(nn::Standardizer::of(x), nn::Linear(3, 2));
    const auto first = dynamic_cast<const nn::Standardizer*>(model.named_modules()[1].second);
    REQUIRE(first);
    const std::vector<double> mean = first->mean.to_vector<double>(),
                              std = first->std.to_vector<double>();
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    const amp::Training training = amp::apply(Strategy::named(name), model, sgd);
    CHECK(first->mean.to_vector<double>() == mean);
    CHECK(first->std.to_vector<double>() == std);
  }
}

TEST_CASE("an input that is rounded as it is, and loses by that, is reported once") {
  std::ostringstream told;
  std::streambuf* const before = std::cerr.rdbuf(told.rdbuf());
  manual_seed(2);
  const Tensor good = randn({64, 3}), bad = cat({good, randn({64, 1}) * 5 + 2000}, 1);
  for (const char* name : {"fp32", "amp-bf16", "o2-bf16", "full-bf16"})
    for (const bool standardizes : {false, true}) {
      nn::Linear model(4, 2);
      const nn::Standardizer first = nn::Standardizer::of(bad);
      optim::Sgd sgd(model.parameters(), {.lr = 0.1});
      amp::Training training = amp::apply(name, model, sgd);
      const auto forward = [&](const Tensor& x) { return model(standardizes ? first(x) : x); };
      for (int i = 0; i < 2; ++i) training.forward(forward, bad);
      const std::string text = told.str();
      told.str("");
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
  training.forward(model, good);
  CHECK(told.str().empty());
  std::cerr.rdbuf(before);
}

}  // namespace
}  // namespace halftone::test::strategies_test
