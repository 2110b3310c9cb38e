// Whole models against PyTorch: weights loaded by name, the logits of one batch, and the losses and
// gradient norms of ten training steps with AdamW on the same batches, in f32, on every CPU
// backend.
#include <halftone/nn/models/models.h>
#include <halftone/nn/state_dict.h>
#include <halftone/optim/optim.h>

#include "fixture.h"

namespace halftone::test::models_test {
namespace {

// Two f32 trainings diverge slowly: each step adds to the last one's rounding errors.
constexpr double relative_tolerance = 1e-4;

/// Images are stored as bytes.
Tensor batch(const NamedTensors& stored, int64_t step) {
  return cast(select(stored.at("x"), 0, step), f32) / 256;
}

void compare_training(const std::map<std::string, NamedTensors>& cases, const std::string& name,
                      nn::Layer& model, double lr) {
  const NamedTensors& stored = cases.at(name);
  const nn::LoadReport report = nn::load_state_dict(model, cases.at(name + "/state"));
  CHECK(report.missing.empty());
  CHECK(report.unexpected.empty());

  const Tensor logits = stored.at("logits"), logits_after = stored.at("logits_after");
  CHECK(difference(model(batch(stored, 0)), logits,
                   relative_tolerance * largest_magnitude(logits)) == "");
  const std::vector<double> losses = stored.at("losses").to_vector<double>(),
                            norms = stored.at("norms").to_vector<double>();
  optim::AdamW optimizer(model.parameters(), {.lr = lr});
  for (std::size_t step = 0; step < losses.size(); ++step) {
    CAPTURE(step);
    const Tensor targets = select(stored.at("t"), 0, int64_t(step));
    const Tensor loss = cross_entropy(model(batch(stored, int64_t(step))), targets);
    optimizer.zero_grad();
    loss.backward();
    const Tensor total = optim::clip_grad_norm(model.parameters(), facts(f32).max);
    optimizer.step();
    CHECK(std::abs(loss.item() - losses[step]) <= relative_tolerance * losses[step]);
    CHECK(std::abs(total.item() - norms[step]) <= relative_tolerance * norms[step]);
  }
  // Adam divides by the root of a gradient's square: if a gradient is only rounding error, its step
  // is as well.
  CHECK(difference(model(batch(stored, 0)), logits_after,
                   10 * relative_tolerance * largest_magnitude(logits_after)) == "");
}

}  // namespace

TEST_CASE("pytorch: training of models") {
  const auto cases = load_cases("model");
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    CAPTURE(backend);
    nn::Sequential mlp = nn::models::mlp({20, 64, 32, 10});
    compare_training(cases, "mlp", mlp, 1e-2);
    nn::models::LeNet lenet;
    compare_training(cases, "lenet", lenet, 1e-3);
  }
}

}  // namespace halftone::test::models_test
