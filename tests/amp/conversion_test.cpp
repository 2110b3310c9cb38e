// States of one strategy loaded under another. Weights are exact to the bit if the bits exist, also
// tied, frozen and renamed ones. A load that would lose bits, or does not fit, is refused.
#include "cases.h"

#include <halftone/core/backend.h>

namespace halftone::test::conversion_test {
namespace {

using amp::Convert;
using amp::Strategy;
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
      for (std::size_t i = 0; i < 4; ++i) {
        const auto weight = [i](StrategyCase& run) {
          return run.training.masters() ? run.training.masters()->weight(i)
                                        : run.model->parameters()[i].detach();
        };
        CHECK(same_bits(weight(source), weight(target)));
      }
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
Strategy customised(std::string name, WeightForm form, DType weights = bf16) {
  Strategy strategy;
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
  for (const Strategy& other :
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
    Strategy strategy = Strategy::named("o2-bf16");
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
      StrategyCase source(Strategy::named(from), tied_model(), 1),
          target(Strategy::named(to), tied_model(), 2);
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

  explicit Frozen(const Strategy& strategy)
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
  Strategy masters_everywhere = Strategy::named("o2-bf16");
  masters_everywhere.keep_batch_norm = false;
  Frozen source(Strategy::named("fp32")), target(masters_everywhere);
  source.training.forward(source.model, randn({8, 4}));  // changes the running statistics
  const auto refused = [&](const std::string& name) {
    const auto before = copy_of(target.training.state_dict());
    std::string message;
    try {
      target.training.load_state_dict(copy_of(source.training.state_dict()), Convert::lossless);
    } catch (const UsageError& error) { message = error.what(); }
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
  StrategyCase source(Strategy::named("fp32"), model(), 1),
      target(Strategy::named("o2-fp16"), model(), 2);
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
    std::string message;
    try {
      target.training.load_state_dict(state, Convert::rounding);
    } catch (const Error& error) { message = error.what(); }
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
  StrategyCase source(Strategy::named("fp32"), tied_model(), 1),
      target(Strategy::named("o2-bf16"), tied_model(), 2);
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
    try {
      target.training.load_state_dict(state);
    } catch (const Error& error) { return std::string(error.what()); }
    return std::string();
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
