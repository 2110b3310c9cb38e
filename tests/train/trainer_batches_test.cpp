// Steps of several batches in one process: the results of several processes, by hand and by a
// Trainer; and their fate when a training resumes.
#include "trainer_cases.h"

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
