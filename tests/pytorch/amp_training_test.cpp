// Whole training runs in mixed precision against PyTorch: the same MLP from the same weights on the
// same batch, 20 steps, under five strategies with two optimizers
// (tests/fixtures/pytorch/amp_training_fixtures.py).
#include <fstream>

#include <nlohmann/json.hpp>

#include <halftone/amp/amp.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/nn.h>
#include <halftone/optim/optim.h>

#include "fixture.h"

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
        training(amp::apply(amp::Strategy::named(strategy), model, *optimizer)) {}

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
