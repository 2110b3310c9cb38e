// Ten steps of every optimizer on fixed gradients, gradient clipping, and learning-rate schedules
// against PyTorch: tests/fixtures/pytorch/training_fixtures.py has the same options.
#include <halftone/optim/optim.h>

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
  CHECK(cases.size() == table.size() + 2 + 6);  // with the clipping and the schedules below
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
