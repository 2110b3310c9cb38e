// The two training runs that tests/training_test.cpp and tests/steady_steps.cpp share: a network of
// three linear layers and a convolutional one, on synthetic data, driven by a loader.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <halftone/halftone.h>

namespace halftone::test {

inline constexpr int64_t training_steps = 50, training_batch = 16;

struct TrainingCase {
  std::unique_ptr<nn::Layer> model;
  std::shared_ptr<const data::Dataset> dataset;
  std::string strategy = "fp32";
};

/// Seeds the default generator, then makes "mlp" or "lenet".
inline TrainingCase make_training_case(std::string_view name, uint64_t seed) {
  manual_seed(seed);
  const bool images = name == "lenet";
  const int64_t count = training_steps * training_batch;
  const Tensor inputs = images ? randn({count, 1, 28, 28}) : randn({count, 64});
  auto dataset = std::make_shared<data::TensorDataset>(inputs, randint(0, 10, {count}));
  if (images) return {std::make_unique<nn::models::LeNet>(), std::move(dataset)};
  // Dropout draws random numbers in every step: they must repeat as well.
  return {std::make_unique<nn::Sequential>(nn::Linear(64, 96), nn::Gelu(), nn::Dropout(0.1),
                                           nn::Linear(96, 96), nn::Relu(), nn::Linear(96, 10)),
          std::move(dataset)};
}

/// Trains one epoch of training_steps steps; calls after_step(step from 1, loss) while the batch
/// lives.
inline void train_case(TrainingCase& run, data::DataLoaderOptions options,
                       const std::function<void(int64_t, double)>& after_step) {
  options.batch_size = training_batch, options.shuffle = true;
  optim::AdamW optimizer(run.model->parameters(), {.lr = 1e-3});
  amp::Training training = amp::apply(amp::Policy::named(run.strategy), *run.model, optimizer);
  data::DataLoader loader(run.dataset, options);
  int64_t step = 0;
  for (auto [inputs, targets] : loader) {
    double value = 0;
    {
      const Tensor loss = cross_entropy(training.forward(*run.model, inputs), targets);
      training.zero_grad();
      training.backward(loss);
      training.step();
      value = loss.item();
    }
    after_step(++step, value);
  }
}

}  // namespace halftone::test
