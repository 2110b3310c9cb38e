// Ten steps of every optimizer on fixed gradients, gradient clipping, and learning-rate schedules
// against PyTorch: tests/fixtures/pytorch/training_fixtures.py has the same options.
#include <fstream>

#include <nlohmann/json.hpp>

#include <halftone/halftone.h>

#include "fixture.h"

namespace halftone::test::optimizers_test {

using namespace halftone::optim;

namespace {

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const std::vector<Tensor>&)>;

template <class O, class Options> MakeOptimizer with(Options options) {
  return [options](const std::vector<Tensor>& parameters) {
    return std::make_unique<O>(parameters, options);
  };
}

/// Two groups of one parameter each.
template <class O, class Options> MakeOptimizer with_groups(Options first, Options second) {
  return [=](const std::vector<Tensor>& p) {
    return std::make_unique<O>(
        std::vector<ParameterGroup<Options>>{{{p[0]}, first}, {{p[1]}, second}});
  };
}

/// Row `step` of a matrix, in `dtype`.
Tensor row(const Tensor& matrix, int64_t step, DType dtype) {
  return cast(select(matrix, 0, step), dtype);
}

void compare_steps(const NamedTensors& stored, const MakeOptimizer& make, DType dtype) {
  const std::vector<std::string> suffixes =
      stored.contains("p") ? std::vector<std::string>{""} : std::vector<std::string>{"0", "1"};
  std::vector<Tensor> parameters;
  for (const auto& suffix : suffixes)
    parameters.push_back(cast(stored.at("p" + suffix), dtype).clone().set_requires_grad());
  const auto optimizer = make(parameters);
  const int64_t steps = stored.at("g" + suffixes[0]).size(0);
  REQUIRE(steps == 10);
  for (int64_t step = 0; step < steps; ++step) {
    CAPTURE(step);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      parameters[i].set_grad(row(stored.at("g" + suffixes[i]), step, dtype));
    optimizer->step();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const Tensor after = row(stored.at("after" + suffixes[i]), step, f64);
      CHECK(difference(parameters[i], after,
                       tolerance(dtype, step + 1, largest_magnitude(after))) == "");
    }
  }
}

}  // namespace

TEST_CASE("pytorch: optimizers over ten steps") {
  const auto cases = load_cases("optimizer");
  const NAdamOptions nadam{
      .lr = 0.05, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1, .momentum_decay = 0.3};
  NAdamOptions nadam_decoupled = nadam;
  nadam_decoupled.momentum_decay = 4e-3, nadam_decoupled.decoupled_weight_decay = true;
  const RAdamOptions radam{.lr = 0.05, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1};
  RAdamOptions radam_decoupled = radam;
  radam_decoupled.decoupled_weight_decay = true;
  const AdafactorOptions adafactor{
      .lr = 0.5, .beta2_decay = -0.5, .eps = {1e-2, 0.3}, .d = 1.25, .weight_decay = 0.1};
  AdafactorOptions adafactor_maximize = adafactor;
  adafactor_maximize.maximize = true;
  const std::map<std::string, MakeOptimizer> table{
      {"sgd", with<Sgd>(SgdOptions{.lr = 0.1})},
      {"sgd_decay", with<Sgd>(SgdOptions{.lr = 0.1, .weight_decay = 0.2})},
      {"sgd_momentum", with<Sgd>(SgdOptions{.lr = 0.1, .momentum = 0.9})},
      {"sgd_dampening",
       with<Sgd>(SgdOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.01})},
      {"sgd_nesterov",
       with<Sgd>(SgdOptions{.lr = 0.1, .momentum = 0.8, .weight_decay = 0.01, .nesterov = true})},
      {"adam", with<Adam>(AdamOptions{})},
      {"adam_options",
       with<Adam>(AdamOptions{.lr = 0.05, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.1})},
      {"adamw", with<AdamW>(AdamWOptions{})},
      {"adamw_options", with<AdamW>(AdamWOptions{
                            .lr = 0.05, .betas = {0.8, 0.95}, .eps = 1e-3, .weight_decay = 0.3})},
      {"rmsprop", with<Rmsprop>(RmspropOptions{})},
      {"rmsprop_options",
       with<Rmsprop>(RmspropOptions{.lr = 0.02, .alpha = 0.9, .eps = 1e-3, .weight_decay = 0.1})},
      {"rmsprop_centered",
       with<Rmsprop>(RmspropOptions{.lr = 0.02, .alpha = 0.9, .centered = true})},
      {"rmsprop_momentum", with<Rmsprop>(RmspropOptions{.lr = 0.02, .momentum = 0.7})},
      {"rmsprop_everything",
       with<Rmsprop>(
           RmspropOptions{.lr = 0.02, .weight_decay = 0.1, .momentum = 0.7, .centered = true})},
      {"groups_adamw",
       with_groups<AdamW>(AdamWOptions{.lr = 0.1}, AdamWOptions{.lr = 0.01, .weight_decay = 0.5})},
      {"groups_sgd",
       with_groups<Sgd>(SgdOptions{.lr = 0.1, .momentum = 0.9}, SgdOptions{.lr = 0.3})},
      {"adagrad", with<Adagrad>(AdagradOptions{})},
      {"adagrad_options", with<Adagrad>(AdagradOptions{.lr = 0.1,
                                                       .lr_decay = 0.2,
                                                       .weight_decay = 0.1,
                                                       .initial_accumulator_value = 0.3,
                                                       .eps = 1e-3})},
      {"nadam", with<NAdam>(NAdamOptions{})},
      {"nadam_options", with<NAdam>(nadam)},
      {"nadam_decoupled", with<NAdam>(nadam_decoupled)},
      {"radam", with<RAdam>(RAdamOptions{})},
      {"radam_options", with<RAdam>(radam)},
      {"radam_decoupled", with<RAdam>(radam_decoupled)},
      {"adafactor", with<Adafactor>(AdafactorOptions{.eps = {1e-7, 1e-3}})},
      {"adafactor_vector", with<Adafactor>(adafactor)},
      {"adafactor_matrix", with<Adafactor>(adafactor)},
      {"adafactor_kernel", with<Adafactor>(adafactor)},
      {"adafactor_maximize", with<Adafactor>(adafactor_maximize)},
  };
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    for (const auto& [name, make] : table) {
      for (const DType dtype : {f64, f32}) {
        CAPTURE(backend);
        CAPTURE(name);
        CAPTURE(facts(dtype).name);
        compare_steps(cases.at(name), make, dtype);
      }
    }
  }
  CHECK(cases.size() == table.size() + 2 + 6 + 5);  // with clipping, schedules and L-BFGS below
}

TEST_CASE("pytorch: L-BFGS on Rosenbrock's function") {
  const auto cases = load_cases("optimizer");
  const std::map<std::string, LbfgsOptions> table{
      {"plain", {.lr = 0.002, .max_iter = 8}},
      {"wolfe", {.max_iter = 7, .history_size = 3, .strong_wolfe = true}},
      {"wolfe_long", {.lr = 20, .max_eval = 9, .strong_wolfe = true}},
      {"maximize", {.strong_wolfe = true, .maximize = true}},
      {"converged", {.max_iter = 100, .strong_wolfe = true}},
  };
  for (const auto& [name, options] : table) {
    CAPTURE(name);
    const NamedTensors& stored = cases.at("lbfgs_" + name);
    const Tensor a = from({-1.25, 0.5}, f64).set_requires_grad(),
                 b = from({1.0, 2.0}, f64).reshape(2, 1).set_requires_grad();
    auto optimizer = std::make_unique<Lbfgs>(std::vector{a, b}, options);
    std::vector<double> losses;
    const auto closure = [&] {
      optimizer->zero_grad();
      const Tensor x = cat({a, b.reshape(2)}), left = slice(x, 0, 0, 3), right = slice(x, 0, 1, 4);
      Tensor loss = sum(100 * square(right - square(left)) + square(1 - left));
      if (options.maximize) loss = -loss;
      loss.backward();
      losses.push_back(loss.item());
      return loss;
    };
    for (int step = 0; step < 3; ++step) {
      const std::size_t before = losses.size();
      const double first = optimizer->step(closure).item();
      CHECK(first == losses.at(before));
      // The state can be moved to another optimizer.
      const NamedTensors state = optimizer->state_dict();
      optimizer = std::make_unique<Lbfgs>(std::vector{a, b});
      optimizer->load_state_dict(state);
    }
    const std::vector<double> wanted = stored.at("losses").to_vector<double>();
    REQUIRE(losses.size() == wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i)
      CHECK(losses[i] == doctest::Approx(wanted[i]).epsilon(1e-6));
    CHECK(difference(cat({a.detach(), b.detach().reshape(2)}), stored.at("p"), 1e-6) == "");
  }
}

TEST_CASE("pytorch: clip_grad_norm") {
  const auto cases = load_cases("optimizer");
  for (const auto& [name, limit] : {std::pair{"clip_active", 0.5}, std::pair{"clip_idle", 100.0}}) {
    CAPTURE(name);
    const NamedTensors& stored = cases.at(name);
    std::vector<Tensor> parameters;
    for (const char* gradient : {"g0", "g1", "g2"}) {
      const Tensor g = cast(stored.at(gradient), f32);
      parameters.push_back(zeros(g.shape()).set_requires_grad());
      parameters.back().set_grad(g.clone());
    }
    const Tensor total = clip_grad_norm(parameters, limit);
    const double allowed = tolerance(f32, 12 + 5 + 1, largest_magnitude(total));
    CHECK(difference(total, stored.at("norm"), allowed) == "");
    for (std::size_t i = 0; i < parameters.size(); ++i)
      CHECK(difference(parameters[i].grad(), stored.at("clipped" + std::to_string(i)), allowed) ==
            "");
  }
}

TEST_CASE("pytorch: learning-rate schedules") {
  const auto cases = load_cases("optimizer");
  const std::map<std::string, LrSchedule> table{
      {"lr_step", LrSchedule::step_decay(7, 0.5)},
      {"lr_cosine", LrSchedule::cosine(29, 0.05)},
      {"lr_linear", LrSchedule::linear(12, 0.25)},
      {"lr_warm_up", LrSchedule::warm_up(5)},
      {"lr_warm_up_cosine", LrSchedule::warm_up(5, LrSchedule::cosine(25))},
      {"lr_warm_up_step", LrSchedule::warm_up(5, LrSchedule::step_decay(10))},
  };
  for (const auto& [name, schedule] : table) {
    CAPTURE(name);
    const std::vector<double> rates = cases.at(name).at("rates").to_vector<double>();
    const Tensor parameter = zeros({1}).set_requires_grad();
    Sgd optimizer({parameter}, {.lr = 1});
    LrScheduler scheduler(optimizer, schedule);
    for (std::size_t step = 0; step < rates.size(); ++step) {
      CAPTURE(step);
      // PyTorch multiplies step by step, halftone evaluates a formula: as many roundings as steps.
      CHECK(std::abs(schedule.at(int64_t(step)) - rates[step]) <=
            tolerance(f64, int64_t(step) + 1, 1));
      CHECK(optimizer.lr() == schedule.at(int64_t(step)));
      scheduler.step();
    }
  }
}

}  // namespace halftone::test::optimizers_test

// Whole training runs in mixed precision against PyTorch: the same MLP from the same weights on the
// same batch, 20 steps, under five strategies with two optimizers
// (tests/fixtures/pytorch/amp_training_fixtures.py).

namespace halftone::test::amp_training_test {
namespace {

/// A mode of the fixture and the strategy with the same arithmetic. `loss` is the allowed relative
/// difference of losses. They end near exp(-5): the gap of two logits is 5, and rounding it once,
/// by half a spacing, changes the loss by 5/2 epsilon of itself. In f32 only the order of sums
/// differs. Under autocast PyTorch rounds the gradients of weights to bf16, halftone does not. In
/// bf16 throughout it rounds the optimizer's state after each of its operations, halftone once per
/// step: so twice as much.
struct Mode {
  const char *pytorch, *strategy;
  DType arithmetic;  // of products, and so of the gradients
  double loss;
};
const Mode modes[]{{"fp32", "fp32", f32, 1e-5},
                   {"autocast_bf16", "amp-bf16", bf16, 2.5 * 0x1p-7},
                   {"autocast_f16", "amp-fp16", f16, 2.5 * 0x1p-10},
                   {"bf16", "full-bf16", bf16, 5 * 0x1p-7},
                   {"o2_bf16", "o2-bf16", bf16, 2.5 * 0x1p-7}};

nlohmann::json settings() {
  std::ifstream file(fixtures_directory() + "/amp_training.json");
  return nlohmann::json::parse(file);
}

std::unique_ptr<optim::Optimizer> optimizer_of(const std::string& name, const nlohmann::json& o,
                                               const std::vector<Tensor>& parameters) {
  if (name == "adamw")  // weight decay 0.01: the default of both
    return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions{.lr = o.at("lr")});
  return std::make_unique<optim::Sgd>(
      parameters, optim::SgdOptions{.lr = o.at("lr"), .momentum = o.at("momentum")});
}

using Cases = std::map<std::string, NamedTensors>;

struct Run {
  nn::Sequential model;
  std::unique_ptr<optim::Optimizer> optimizer;
  amp::Training training;

  Run(const Cases& stored, const nlohmann::json& json, const std::string& name,
      const char* strategy)
      : model(loaded(json, stored)),
        optimizer(optimizer_of(name, json.at("optimizers").at(name), model.parameters())),
        training(amp::apply(amp::Policy::named(strategy), model, *optimizer)) {}

  static nn::Sequential loaded(const nlohmann::json& json, const Cases& stored) {
    nn::Sequential model = nn::models::mlp(json.at("sizes").get<std::vector<int64_t>>());
    nn::load_state_dict(model, stored.at("initial"));
    return model;
  }
  double step(const Tensor& x, const Tensor& targets) {
    training.zero_grad();
    const Tensor loss = cross_entropy(training.forward(model, x), targets);
    training.backward(loss);
    CHECK(training.step());
    return loss.item();
  }
};

/// Compares final weights (masters, if they exist). The error of their movement is that of four
/// roundings: of input, weight, activation and gradient. In f32, where Adam's quotient of small
/// sums is visible as well, it is the tolerance of a sum over the steps. Weights that are
/// themselves rounded in every step drift by half a spacing times the root of the number of steps.
void compare_weights(Run& run, const Cases& stored, const std::string& key, const Mode& mode) {
  const amp::MasterWeights* masters = run.training.masters();
  const NamedTensors& wanted = stored.at(key + (masters ? "/final/master" : "/final"));
  const double steps = double(stored.at(key).at("losses").numel());
  std::size_t index = 0;
  for (const auto& [name, parameter] : run.model.named_parameters()) {
    CAPTURE(name);
    const Tensor want = wanted.at(name);
    const double movement = largest_magnitude(want - stored.at("initial").at(name));
    double allowed = 4 * epsilon(mode.arithmetic) * movement;
    if (mode.arithmetic == f32) allowed = tolerance(f32, int64_t(steps), movement);
    if (!masters && parameter.dtype() == bf16)
      allowed += std::sqrt(steps) * epsilon(bf16) / 2 * largest_magnitude(want);
    const Tensor weight = masters ? masters->weight(index) : cast(parameter.detach(), f32);
    CHECK(difference(weight, want, allowed) == "");
    CHECK(allowed < movement / 4);  // a trained model differs from an untrained one by more
    ++index;
  }
}

}  // namespace

TEST_CASE("pytorch: training in mixed precision") {
  const nlohmann::json json = settings();
  CHECK(json.at("cases").size() == 2 * std::size(modes));
  const Cases stored = load_cases("amp_training");
  const Tensor x = stored.at("x").at("x"), targets = stored.at("t").at("t");
  for (const std::string_view backend : {"reference", "cpu"})
    for (const auto& optimizer : json.at("optimizers").items())
      for (const Mode& mode : modes) {
        const CpuBackendScope scope(backend);
        const std::string key = optimizer.key() + '_' + mode.pytorch;
        CAPTURE(backend);
        CAPTURE(key);
        const nlohmann::json& record = json.at("cases").at(key);
        Run run(stored, json, optimizer.key(), mode.strategy);
        const std::vector<double> losses = stored.at(key).at("losses").to_vector<double>();
        REQUIRE(losses.size() == json.at("steps").get<std::size_t>());
        for (std::size_t step = 0; step < losses.size(); ++step) {
          CAPTURE(step);
          CHECK(std::abs(run.step(x, targets) / losses[step] - 1) <= mode.loss);
          if (record.contains("scales"))
            CHECK(run.training.scaler().scale_value() == record.at("scales")[step]);
        }
        compare_weights(run, stored, key, mode);
      }
}

}  // namespace halftone::test::amp_training_test
