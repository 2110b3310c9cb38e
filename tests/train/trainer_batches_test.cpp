// Steps of several batches in one process: the results of several processes, by hand and by a
// Trainer; and their fate when a training resumes.
#include "trainer_cases.h"

#include <cmath>
#include <set>

namespace halftone::test::trainer_batches_test {
namespace {

using train::Trainer;

constexpr int64_t batches = 5;  // of 16 samples, the last of 8

optim::NamedTensors by_hand(const std::string& strategy, int64_t of_step, int64_t epochs) {
  TrainerCase c;
  amp::Training training =
      amp::apply(amp::Strategy::named(strategy), c.model, c.adamw, distributed::Options{});
  data::DataLoader loader = trainer_loader();
  for (int64_t epoch = 0, number = 0; epoch < epochs; ++epoch) {
    loader.set_epoch(epoch);
    auto next = loader.begin();
    for (int64_t batch = 0; batch < batches;) {
      const int64_t behind = std::min(batch + of_step, batches);
      const auto samples = double(std::min(behind * 16, trainer_samples) - batch * 16);
      training.zero_grad();
      for (; batch < behind; ++batch, ++number) {
        training.begin_batch(number);
        const Tensor loss = cross_entropy(training.forward(c.model, next->inputs), next->targets);
        training.backward(loss * (double(next->inputs.size(0)) / samples));
        ++next;
      }
      training.step();
    }
    training.begin_batch(number);
  }
  return copy_of(training.state_dict());
}

TEST_CASE("Trainer: steps of several batches have the bits of the loop by hand") {
  for (const char* strategy : {"fp32", "amp-fp16", "o2-bf16", "full-bf16-sr"}) {
    CAPTURE(strategy);
    TrainerRun run({.precision = strategy, .max_epochs = 2, .accumulate_batches = 3});
    CHECK(run.trainer.fit(trainer_loader()).steps == 4);
    CHECK(same_state(run.state(), by_hand(strategy, 3, 2)));
  }
}

/// Returns how far the steps of small batches are from steps of one large batch, as a share of the
/// largest update. Four steps of 24 samples.
double distance(const Tensor& inputs, const Tensor& targets, int64_t parts,
                const std::function<train::Task(nn::Layer&)>& task_of, bool tokens = false) {
  std::vector<double> weights[3];
  double losses[2];
  for (int i = 0; i < 2; ++i) {
    manual_seed(5);
    nn::Sequential model = tokens ? nn::Sequential(nn::Embedding(7, 6), nn::Linear(6, 7))
                                  : nn::Sequential(nn::Linear(12, 8), nn::Gelu(), nn::Linear(8, 4));
    optim::Sgd sgd(model.parameters(), {.lr = 0.5});
    if (i == 0) weights[2] = model.parameters().back().to_vector<double>();
    // A batch without labels has the mean NaN, but the step's is finite.
    const auto policy =
        std::make_shared<train::NanPolicy>(train::NanPolicyOptions{.action = train::OnNan::fail});
    Trainer trainer(
        task_of(model), sgd,
        quiet({.max_epochs = 1, .accumulate_batches = i == 0 ? 1 : parts, .callbacks = {policy}}));
    const data::DataLoader loader(data::TensorDataset(inputs, targets),
                                  {.batch_size = i == 0 ? 24 : 24 / parts});
    const auto result = trainer.fit(loader);
    CHECK(result.steps == 4);
    losses[i] = result.metrics.at("train/loss_epoch");
    weights[i] = model.parameters().back().to_vector<double>();
  }
  CHECK(losses[1] == doctest::Approx(losses[0]).epsilon(64 * epsilon(f32)));
  double most = 0, update = 0;
  for (std::size_t k = 0; k < weights[0].size(); ++k) {
    most = std::max(most, std::abs(weights[0][k] - weights[1][k]));
    update = std::max(update, std::abs(weights[0][k] - weights[2][k]));
  }
  return most / update;
}

TEST_CASE("Trainer: a step's loss is the mean over the terms of all its batches") {
  manual_seed(3);
  const Tensor x = randn({96, 12});
  std::vector<int64_t> labels = randint(0, 4, {96}).to_vector<int64_t>();
  for (std::size_t i = 0; i < 96; ++i)
    if (i % 24 < 10 || i % 24 == 20) labels[i] = -100;  // the first batch of 8 has no label
  const Tensor y = from_vector(labels, {96}, i64);
  const double near = 256 * epsilon(f32);
  const auto plain = [](nn::Layer& model) { return train::classification(model); };
  CHECK(distance(x, y, 2, plain) < near);
  CHECK(distance(x, y, 3, plain) < near);
  const auto weighted = [](nn::Layer& model) {
    return train::classification(
        model, {.loss = {.weight = from({0.1, 3, 1, 0}), .label_smoothing = 0.1}});
  };
  CHECK(distance(x, y, 3, weighted) < near);
  const auto bits = [](nn::Layer& model) {  // a mean over a mask, with its count
    train::Task task{.model = model};
    task.forward = [&model](const Tensor& in) { return model(in); };
    task.loss = [](const Tensor& outputs, const Tensor& targets) {
      const Tensor counts = cast(targets > 0, f32);
      return sum(square(outputs - targets) * counts) / sum(counts);
    };
    task.count = [](const Tensor& targets) { return sum(cast(targets > 0, f64)); };
    return task;
  };
  CHECK(distance(x, randn({96, 4}), 4, bits) < near);
  const Tensor tokens = randint(0, 7, {96, 5});
  const Tensor next = where(rand({96, 5}) < 0.4, full({}, -100, i64), tokens);
  CHECK(distance(
            tokens, next, 4, [](nn::Layer& m) { return train::language_modeling(m); }, true) <
        near);
  nn::Sequential model(nn::Linear(12, 4));
  CHECK_THROWS_WITH_AS(
      train::classification(model, {.loss = {.reduction = LossReduction::sum}}),
      "[classification] the loss is not a mean, so losses of several batches cannot be joined. Use "
      "LossReduction::mean.",
      UsageError);
}

TEST_CASE("Trainer: random numbers that a callback draws do not return in the model") {
  const auto hooks = std::make_shared<Hooks>();
  std::vector<double> drawn;
  hooks->batch = [&](data::Batch&) { drawn.push_back(rand({}).item()); };
  TrainerRun run({.max_epochs = 1, .accumulate_batches = 3, .callbacks = {hooks}});
  std::vector<double> later;
  run.trainer.fit(trainer_loader());
  CHECK(std::set(drawn.begin(), drawn.end()).size() == 5);
}

TEST_CASE("Trainer: a wire also applies in steps of one batch, by options or by a policy") {
  amp::Strategy strategy = amp::Strategy::named("fp32");
  strategy.wire = distributed::WireFormat::named("f8_e4m3-sr");
  const auto weights = [](train::TrainerOptions options) {
    options.max_epochs = 1;
    TrainerRun run(std::move(options));
    run.trainer.fit(trainer_loader());
    return copy_of(nn::state_dict(run.parts.model));
  };
  const auto lossless = weights({.distributed = {.wire = distributed::WireFormat::named("f32")}});
  const auto rounded = weights({.distributed = {.wire = strategy.wire}});
  CHECK(!same_state(lossless, rounded));
  CHECK(same_state(weights({.strategy = strategy}), rounded));
  const distributed::Options own{.wire = distributed::WireFormat{}};
  CHECK(same_state(weights({.strategy = strategy, .distributed = own}), lossless));
  TrainerCase c;
  amp::Training training(strategy, c.model, c.adamw);
  CHECK(message_of<UsageError>([&] { training.step(); }) ==
        "[Training.step] under fp32 gradients travel in f8_e4m3-sr to a sum, and here nothing is "
        "summed up. Call train_together() before the first step, also for one process.");
}

TEST_CASE("Trainer: their gradients are summed in f32, for any dtype of the weights") {
  // 256 + 1 is 256 in bf16: gradients of 1 from 16 batches, after one of 256, would be lost.
  nn::Sequential model(nn::Linear(1, 1, {.bias = false}));
  optim::Sgd sgd(model.parameters(), {.lr = 1});
  amp::Training training =
      amp::apply(amp::Strategy::named("full-bf16"), model, sgd, distributed::Options{});
  for (int64_t batch = 0; batch < 17; ++batch)
    training.backward(sum(training.forward(model, full({1, 1}, batch == 0 ? 256 : 1))));
  training.gather_gradients();
  const Tensor gradient = model.parameters()[0].grad();
  CHECK(gradient.dtype() == f32);
  CHECK(gradient.item() == 272);
}

TEST_CASE("Trainer: a training that resumes keeps the batches of its steps") {
  const TemporaryDirectory directory;
  const auto options = [&](int64_t accumulate, int64_t max_steps) {
    return train::TrainerOptions{.max_epochs = 2,
                                 .max_steps = max_steps,
                                 .accumulate_batches = accumulate,
                                 .directory = directory.path(),
                                 .resume = true};
  };
  TrainerRun alone({.max_epochs = 2, .accumulate_batches = 3});
  alone.trainer.fit(trainer_loader());
  TrainerRun begun(options(3, 1));
  CHECK(begun.trainer.fit(trainer_loader()).steps == 1);

  // In the middle of an epoch other numbers of batches are refused.
  TrainerRun other(options(2, 0));
  CHECK(message_of<UsageError>([&] { other.trainer.fit(trainer_loader()); }) ==
        "[Trainer] the training is in the middle of an epoch whose steps have 3 batches; "
        "accumulate_batches is 2. Go on with 3.");
  TrainerRun rest(options(0, 0));
  CHECK(rest.trainer.fit(trainer_loader()).steps == 4);
  CHECK(same_state(rest.state(), alone.state()));
}

TEST_CASE("Trainer: the number of batches per step may change between two epochs") {
  const TemporaryDirectory directory;
  for (const auto& [accumulate, epochs, steps] :
       {std::tuple<int64_t, int64_t, int64_t>{3, 1, 2}, {2, 2, 5}, {0, 3, 8}}) {
    TrainerRun run({.max_epochs = epochs,
                    .accumulate_batches = accumulate,
                    .directory = directory.path(),
                    .resume = true});
    CHECK(run.trainer.fit(trainer_loader()).steps == steps);
  }
}

TEST_CASE("Trainer: a loader that delivers a share is refused") {
  TrainerRun run({.max_epochs = 1});
  CHECK(message_of<UsageError>([&] {
          run.trainer.fit(trainer_loader({.batch_size = 16, .share = {0, 2, 2}}));
        }) ==
        "[Trainer] the loader delivers a share of the batches. Leave it whole: the Trainer shares "
        "them out.");
}

}  // namespace
}  // namespace halftone::test::trainer_batches_test
