// Compares a model of nn/models/ with the same model in PyTorch, from the results of
// tests/fixtures/pytorch/model_fixtures.py: logits in f32 and in bf16 throughout, and the losses of
// training in f32 and under autocast.
#pragma once

#include <halftone/amp/amp.h>
#include <halftone/nn/state_dict.h>
#include <halftone/optim/optim.h>

#include "fixture.h"

namespace halftone::test {

struct WholeModel {
  double lr;  // as in the fixture
  int depth;  // consecutive roundings: layers with weights
};

/// The reference, which is slow, runs only the first steps.
inline constexpr std::size_t steps_of_reference = 4;
inline std::size_t steps_on(std::string_view backend, const Tensor& losses) {
  const auto all = std::size_t(losses.numel());
  return backend == "reference" ? std::min(all, steps_of_reference) : all;
}

/// Two f32 trainings diverge slowly: each step adds to the last one's rounding errors.
inline constexpr double logits_tolerance = 1e-4, losses_tolerance = 1e-3;
/// Under autocast every activation is rounded to bf16, whose epsilon is 8e-3, and errors average.
inline constexpr double bf16_losses_tolerance = 2e-2;

/// Returns batch `index` modulo their number. Images are stored as bytes.
inline Tensor batch_of(const NamedTensors& stored, std::size_t index) {
  const Tensor x = stored.at("x");
  const Tensor batch = select(x, 0, int64_t(index) % x.size(0));
  return x.dtype() == u8 ? cast(batch, f32) / 256 : batch;
}

/// Trains from the stored weights; compares the loss before each step.
template <class Model>
void compare_losses(const NamedTensors& stored, const NamedTensors& state, Model& model, double lr,
                    std::string_view strategy, const Tensor& wanted, double relative) {
  nn::load_state_dict(model, state);
  model.train();
  optim::AdamW optimizer(model.parameters(), {.lr = lr});
  amp::Training training = amp::apply(amp::Strategy::named(strategy), model, optimizer);
  const std::vector<double> losses = wanted.to_vector<double>();
  for (std::size_t step = 0; step < steps_on(backend_for(wanted).name(), wanted); ++step) {
    CAPTURE(strategy);
    CAPTURE(step);
    const Tensor t = stored.at("t");
    const Tensor targets = select(t, 0, int64_t(step) % t.size(0));
    training.zero_grad();
    const Tensor loss = cross_entropy(training.forward(model, batch_of(stored, step)), targets);
    training.backward(loss);
    CHECK(training.step());
    CHECK(std::abs(loss.item() / losses[step] - 1) <= relative);
  }
}

template <class Model>
void compare_whole_model(const std::map<std::string, NamedTensors>& cases, const std::string& name,
                         Model& model, const WholeModel& facts) {
  CAPTURE(name);
  const NamedTensors &stored = cases.at(name), &state = cases.at(name + "/state");
  const nn::LoadReport report = nn::load_state_dict(model, state);
  CHECK(report.missing.empty());
  CHECK(report.unexpected.empty());

  const auto compare_logits = [&](const char* key, double relative) {
    CAPTURE(key);
    const Tensor want = stored.at(key);
    const NoGrad no_grad;
    model.eval();
    const Tensor x = batch_of(stored, 0);
    const DType dtype = model.parameters()[0].dtype();
    const Tensor got = model(is_floating(x.dtype()) ? cast(x, dtype) : x);
    CHECK(got.dtype() == want.dtype());
    CHECK(difference(got, want, relative * largest_magnitude(want)) == "");
  };
  compare_logits("eval", logits_tolerance);
  const Tensor losses = stored.at("losses");
  compare_losses(stored, state, model, facts.lr, "fp32", losses, losses_tolerance);
  if (steps_on(backend_for(losses).name(), losses) == std::size_t(losses.numel()))
    compare_logits("after", 10 * losses_tolerance);
  if (stored.contains("losses_bf16"))
    compare_losses(stored, state, model, facts.lr, "amp-bf16", stored.at("losses_bf16"),
                   bf16_losses_tolerance);
  nn::load_state_dict(model, state);
  model.to(bf16);
  compare_logits("eval_bf16", epsilon(bf16) * std::sqrt(double(facts.depth)));
}

}  // namespace halftone::test
