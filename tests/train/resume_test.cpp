// A training that stopped in the middle of an epoch and resumed from its checkpoint ends with the
// bits of one that never stopped, under every strategy.
#include <halftone/train/checkpoint.h>

#include <doctest/doctest.h>

#include <optional>

#include <halftone/train/checkpoints.h>

#include "../amp/cases.h"
#include "../support.h"

namespace halftone::test::resume_test {
namespace {
constexpr int64_t steps = 14, saved_after = 8;  // of epochs of 6 batches

/// A training with a schedule, dropout and a shuffled loader.
struct Run {
  std::unique_ptr<nn::Layer> model;
  optim::AdamW adamw;
  amp::Training training;
  optim::LrScheduler scheduler;
  data::DataLoader loader;
  train::CheckpointState at{};

  static std::unique_ptr<nn::Layer> network(uint64_t seed, int64_t width) {
    manual_seed(seed);
    return std::make_unique<nn::Sequential>(nn::Linear(12, width), nn::Relu(), nn::Dropout(0.2),
                                            nn::Linear(width, 4));
  }
  static data::DataLoader make_loader() {
    manual_seed(99);
    return data::DataLoader(data::TensorDataset(randn({46, 12}), randint(0, 4, {46})),
                            {.batch_size = 8, .shuffle = true, .seed = 3});
  }
  explicit Run(std::string_view strategy, uint64_t seed = 1, int64_t width = 20)
      : model(network(seed, width)),
        adamw(model->parameters(), {.lr = 1e-2}),
        training(amp::apply(amp::Strategy::named(strategy), *model, adamw)),
        scheduler(training.optimizer(), optim::LrSchedule::cosine(steps)),
        loader(make_loader()) {
    manual_seed(seed + 7);
  }

  /// Continues up to a step; calls `done` after it, while the loader is within its epoch.
  void train_to(
      int64_t last, const std::function<void()>& done = [] {}) {
    while (at.step < last) {
      for (auto [inputs, targets] : loader) {
        training.zero_grad();
        training.backward(cross_entropy(training.forward(*model, inputs), targets));
        if (training.step()) scheduler.step();
        ++at.step, ++at.batches;
        if (at.step == last) return done();
      }
      ++at.epoch, at.batches = 0;
    }
  }
  void resume(const std::filesystem::path& path) {
    at = train::load_training(path, training, &scheduler);
    loader.resume(at.epoch, at.batches);
  }
};
}  // namespace

TEST_CASE("resume: the same bits as without a stop") {
  for (const std::string_view strategy : amp::Strategy::names()) {
    CAPTURE(strategy);
    const TemporaryDirectory root;
    Run whole(strategy);
    whole.train_to(steps);
    const auto expected = copy_of(whole.training.state_dict());

    const std::filesystem::path path = root / "step";
    {
      Run first(strategy);
      first.train_to(saved_after,
                     [&] { save_training(path, first.training, first.at, &first.scheduler); });
    }
    Run second(strategy, 55);  // other weights, another generator: all must be restored
    second.resume(path);
    CHECK(second.at.step == saved_after);
    CHECK(second.at.epoch == 1);
    CHECK(second.at.batches == 2);
    second.train_to(steps);
    CHECK(second.scheduler.steps() == whole.scheduler.steps());
    CHECK(second.training.optimizer().lr(0) == whole.training.optimizer().lr(0));
    CHECK(same_state(copy_of(second.training.state_dict()), expected));
  }
}

TEST_CASE("resume: another model, strategy or schedule is refused, and nothing has changed") {
  const TemporaryDirectory root;
  {
    Run run("o2-bf16");
    run.train_to(3);
    save_training(root / "o2", run.training, run.at, &run.scheduler);
    save_training(root / "bare", run.training, run.at);
  }
  const auto refused = [&](Run& run, const std::filesystem::path& path,
                           optim::LrScheduler* scheduler) {
    run.train_to(2);
    const auto before = copy_of(run.training.state_dict());
    const double lr = run.training.optimizer().lr(0);
    const auto steps_before = run.scheduler.steps();
    std::string message;
    try {
      train::load_training(path, run.training, scheduler);
    } catch (const Error& error) { message = error.what(); }
    CHECK(message != "");
    CHECK(same_state(copy_of(run.training.state_dict()), before));
    CHECK(run.training.optimizer().lr(0) == lr);
    CHECK(run.scheduler.steps() == steps_before);
    return message;
  };
  Run wider("o2-bf16", 1, 24), plain("fp32"), split("split-bf16"), same("o2-bf16", 4);
  refused(wider, root / "o2", &wider.scheduler);
  refused(plain, root / "o2", &plain.scheduler);
  refused(split, root / "o2", &split.scheduler);
  CHECK(test::contains(refused(same, root / "o2", nullptr), "a schedule without a scheduler"));
  CHECK(test::contains(refused(same, root / "bare", &same.scheduler), "no schedule"));
  CHECK(test::contains(refused(same, root / "missing", &same.scheduler), "cannot open"));
  train::load_training(root / "bare", same.training);
  CHECK(train::load_training(root / "o2", plain.training, &plain.scheduler, amp::Convert::lossless)
            .step == 3);
}

}  // namespace halftone::test::resume_test
