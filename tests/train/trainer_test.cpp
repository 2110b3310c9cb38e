// Trainer's steps: the bits of the loop by hand under every precision, accumulation, clipping,
// schedules, limits, validation.
#include "trainer_cases.h"

#include <cmath>

#include <halftone/train/task.h>

namespace halftone::test::trainer_test {
namespace {

using train::Trainer;
using train::TrainerOptions;

constexpr int64_t steps_per_epoch = 5;  // 72 samples in batches of 16

/// Three epochs with a schedule and clipping, as amp/training.h shows them.
optim::NamedTensors by_hand(const amp::Strategy& strategy) {
  TrainerCase c;
  amp::Training training = amp::apply(strategy, c.model, c.adamw);
  optim::LrScheduler scheduler(training.optimizer(),
                               optim::LrSchedule::cosine(3 * steps_per_epoch));
  data::DataLoader loader = trainer_loader();
  for (int epoch = 0; epoch < 3; ++epoch)
    for (auto [inputs, labels] : loader) {
      training.zero_grad();
      training.backward(cross_entropy(training.forward(c.model, inputs), labels));
      training.clip_grad_norm(0.5);
      if (training.step()) scheduler.step();
    }
  return copy_of(training.state_dict());
}

optim::NamedTensors by_trainer(std::string precision) {
  TrainerRun run({.precision = std::move(precision),
                  .max_epochs = 3,
                  .clip_norm = 0.5,
                  .schedule = [](int64_t steps) { return optim::LrSchedule::cosine(steps); }});
  const train::FitResult result = run.trainer.fit(trainer_loader(), trainer_loader());
  CHECK(result.steps == 3 * steps_per_epoch);
  CHECK(result.epochs == 3);
  CHECK(result.reason == "max_epochs is reached");
  return run.state();
}

TEST_CASE("Trainer: a metric that does not exist is an error that lists the metrics") {
  TrainerRun run({.max_epochs = 1});
  const train::FitResult result = run.trainer.fit(trainer_loader());
  CHECK(result.metrics.at("train/loss_epoch") > 0);
  const std::string message = message_of<UsageError>([&] { result.metrics.at("val/top1"); });
  CHECK(contains(message, "[metrics] there is no number \"val/top1\" among: "));
  CHECK(contains(message, "train/loss_epoch"));
  CHECK(message.ends_with(". Those of val/ come from validation: pass fit() a second loader."));
  const train::MetricValues validated = run.trainer.validate(trainer_loader());
  CHECK(message_of<UsageError>([&] {
          validated.at("val/top7");
        }).ends_with(". Ask for one of these."));
  CHECK(message_of<UsageError>([] { train::MetricValues().at("lr"); }) ==
        "[metrics] there is no number \"lr\" among: none. Ask for one of these.");
}

TEST_CASE("Trainer: the bits of the loop by hand, under every strategy, validated or not") {
  for (const std::string_view name : amp::Strategy::names()) {
    CAPTURE(name);
    CHECK(same_state(by_trainer(std::string(name)), by_hand(amp::Strategy::named(name))));
  }
}

TEST_CASE("Trainer: Lightning's words name strategies") {
  const std::pair<const char*, const char*> words[] = {
      {"64-true", "fp64"},    {"32-true", "fp32"},        {"16-mixed", "amp-fp16"},
      {"16-true", "o3-fp16"}, {"bf16-true", "full-bf16"}, {"bf16-mixed", "amp-bf16"}};
  for (const auto& [word, strategy] : words) {
    CAPTURE(word);
    CHECK(train::strategy_for(word).name == strategy);
    CHECK(same_state(by_trainer(word), by_hand(amp::Strategy::named(strategy))));
  }
  CHECK(message_of<UsageError>([] { train::strategy_for("bf16-mixd"); }) ==
        "[Trainer] there is no precision named \"bf16-mixd\". Did you mean \"bf16-mixed\"?");
  for (const auto& [word, strategy] : {std::pair("16", "amp-fp16"),
                                       {"fp16", "amp-fp16"},
                                       {"bf16", "amp-bf16"},
                                       {"32", "fp32"},
                                       {"64", "fp64"}}) {
    const std::string end =
        std::string("named \"") + word + "\". Did you mean \"" + strategy + "\"?";
    CHECK(message_of<UsageError>([&] { train::strategy_for(word); }).ends_with(end));
    CHECK(message_of<UsageError>([&] { amp::Strategy::named(word); }).ends_with(end));
  }
}

/// Does steps on all samples at once, in accumulated batches of 16 or one of 64.
std::vector<Tensor> accumulated(const amp::Strategy& strategy, int64_t batch, int64_t accumulate) {
  manual_seed(1);
  nn::Sequential model(nn::Linear(12, 20), nn::Gelu(), nn::Linear(20, 4));
  optim::Sgd sgd(model.parameters(), {.lr = 0.1, .momentum = 0.9});
  Trainer trainer(train::classification(model), sgd,
                  quiet({.strategy = strategy, .max_steps = 6, .accumulate_batches = accumulate}));
  const train::FitResult result = trainer.fit(trainer_loader({.batch_size = batch, .seed = 3}));
  CHECK(result.steps == 6);
  CHECK(result.epochs == 3);  // a step of 64 samples, and one of the other 8
  CHECK(trainer.training().skipped_steps() == 0);
  return model.parameters();
}

TEST_CASE("Trainer: 4 batches of 16, accumulated, equal one of 64") {
  for (const char* name : {"fp64", "fp32", "amp-fp16", "amp-bf16", "o2-fp16"}) {
    CAPTURE(name);
    const amp::Strategy strategy = amp::Strategy::named(name);
    const auto small = accumulated(strategy, 16, 4), large = accumulated(strategy, 64, 1);
    // Sums of the same numbers in another order, rounded once or in four parts; the dtype of
    // autocast or of the weights determines the error. Six steps with a rate of 0.1 and momentum
    // 0.9.
    const DType rounds = strategy.autocast.value_or(strategy.weights);
    const double unit = epsilon(rounds);
    for (std::size_t i = 0; i < small.size(); ++i) {
      const auto a = small[i].to_vector<double>(), b = large[i].to_vector<double>();
      for (std::size_t k = 0; k < a.size(); ++k) CHECK(std::abs(a[k] - b[k]) <= 4 * unit);
    }
  }
}

TEST_CASE("Trainer: a last step of fewer and smaller batches is the mean over its samples") {
  // 72 samples: steps of 32 + 32 + 8 in batches of 8 are those of batches of 32.
  const auto weights = [](int64_t batch, int64_t accumulate) {
    TrainerRun run({.precision = "64-true", .max_epochs = 2, .accumulate_batches = accumulate});
    run.parts.model.eval();  // batch norm and dropout depend on batches, not on steps
    run.trainer.fit(trainer_loader({.batch_size = batch}));
    return run.parts.model.parameters();
  };
  const auto small = weights(8, 4), large = weights(32, 1), uneven = weights(20, 2);
  const auto forty = weights(40, 1);
  for (std::size_t i = 0; i < small.size(); ++i) {
    const auto a = small[i].to_vector<double>(), b = large[i].to_vector<double>();
    const auto c = uneven[i].to_vector<double>(), d = forty[i].to_vector<double>();
    for (std::size_t k = 0; k < a.size(); ++k) {
      CHECK(a[k] == doctest::Approx(b[k]).epsilon(1e-9));
      CHECK(c[k] == doctest::Approx(d[k]).epsilon(1e-9));  // 20 + 20, then 20 + 12
    }
  }
}

TEST_CASE("Trainer: a skipped step advances no schedule") {
  amp::Strategy strategy = amp::Strategy::named("amp-fp16");
  strategy.loss_scale.init_scale = 0x1p+40;  // overflows until it has been halved often enough
  TrainerRun run({.strategy = strategy, .max_steps = 40, .schedule = [](int64_t steps) {
                    return optim::LrSchedule::linear(steps);
                  }});
  run.trainer.fit(trainer_loader());
  const int64_t skipped = run.trainer.training().skipped_steps();
  CHECK(skipped > 5);
  CHECK(skipped < 40);
  CHECK(run.parts.adamw.lr() == 1e-2 * optim::LrSchedule::linear(40).at(40 - skipped));
}

TEST_CASE("Trainer: gradients are clipped by value, unscaled") {
  for (const char* precision : {"32-true", "16-mixed"}) {
    double largest = 0;
    const auto hooks = std::make_shared<Hooks>();
    TrainerRun run(
        {.precision = precision, .max_steps = 1, .clip_value = 1e-3, .callbacks = {hooks}});
    hooks->step_end = [&](Trainer&) {
      for (const Tensor& x : run.parts.model.parameters())
        for (const double g : x.grad().to_vector<double>())
          largest = std::max(largest, std::abs(g));
    };
    run.trainer.fit(trainer_loader());
    CHECK(float(largest) == 1e-3f);
  }
}

TEST_CASE("Trainer: the first limit ends the training") {
  const auto ended = [](TrainerOptions options) {
    return TrainerRun(std::move(options)).trainer.fit(trainer_loader());
  };
  CHECK(ended({.max_epochs = 2, .max_steps = 7}).steps == 7);
  CHECK(ended({.max_epochs = 2, .max_steps = 7}).reason == "max_steps is reached");
  CHECK(ended({.max_epochs = 1, .max_steps = 7}).steps == steps_per_epoch);
  using namespace std::chrono_literals;
  const train::FitResult timed = ended({.max_epochs = 1000000, .max_time = 50ms});
  CHECK(timed.reason == "max_time is over");
  CHECK(timed.steps > 0);
  TrainerRun again({.max_epochs = 2});
  again.trainer.fit(trainer_loader());
  CHECK(again.trainer.fit(trainer_loader()).steps == 2 * steps_per_epoch);  // all steps are done
  CHECK(ended({.max_steps = 2, .limit_train_batches = 1}).epochs == 2);
}

TEST_CASE("Trainer: validation evaluates all samples, and changes nothing") {
  TrainerRun run({.max_epochs = 2});
  auto& norm = dynamic_cast<nn::BatchNorm1d&>(run.parts.model[1]);
  norm.training = false;  // frozen by its owner
  int validations = 0;
  const auto hooks = std::make_shared<Hooks>();
  TrainerCase c;
  Trainer trainer(c.task(), c.adamw,
                  quiet({.max_epochs = 2, .validate_every_steps = 2, .callbacks = {hooks}}));
  hooks->validation_end = [&](Trainer& t) {
    ++validations;
    const NoGrad no_grad;
    t.model().eval();
    double loss = 0, correct = 0;
    for (auto [inputs, labels] : trainer_loader()) {
      const Tensor logits = t.training().forward(c.model, inputs);
      loss += cross_entropy(logits, labels).item() * double(inputs.size(0));
      const auto best = argmax(logits, -1).to_vector<int64_t>(),
                 wanted = labels.to_vector<int64_t>();
      for (std::size_t i = 0; i < best.size(); ++i) correct += best[i] == wanted[i] ? 1 : 0;
    }
    t.model().train();
    CHECK(t.metric("val/loss") == doctest::Approx(loss / trainer_samples).epsilon(1e-6));
    CHECK(t.metric("val/top1") == correct / trainer_samples);
  };
  trainer.fit(trainer_loader(), trainer_loader());
  CHECK(validations == 6);  // after steps 2, 4, 5, 6, 8, 10
  run.trainer.fit(trainer_loader(), trainer_loader());
  CHECK_FALSE(norm.training);
  CHECK(run.parts.model[3].training);
}

TEST_CASE("Trainer: the sanity check finds a broken validation before the first step") {
  TrainerRun run({.max_epochs = 1});
  const data::DataLoader broken(data::TensorDataset(randn({4, 13}), randint(0, 4, {4})));
  CHECK_THROWS_AS(run.trainer.fit(trainer_loader(), broken), ShapeError);
  CHECK(run.trainer.position().step == 0);
}

TEST_CASE("Trainer: fast_dev_run and overfit_batches") {
  const TemporaryDirectory directory;
  std::vector<std::vector<double>> seen;
  const auto hooks = std::make_shared<Hooks>();
  hooks->batch = [&](data::Batch& batch) { seen.push_back(batch.inputs.to_vector<double>()); };
  TrainerRun quick(
      {.max_epochs = 50, .fast_dev_run = 2, .directory = directory / "none", .callbacks = {hooks}});
  CHECK(quick.trainer.fit(trainer_loader(), trainer_loader()).steps == 2);
  CHECK(quick.trainer.metric("val/loss") > 0);
  CHECK_FALSE(std::filesystem::exists(directory / "none"));

  seen.clear();
  TrainerRun over({.max_epochs = 60, .overfit_batches = 2, .callbacks = {hooks}});
  const auto result = over.trainer.fit(trainer_loader());
  CHECK(result.steps == 120);
  CHECK(result.metrics.at("val/top1") == 1);  // learned by heart
  for (std::size_t i = 2; i < seen.size(); ++i) CHECK(seen[i] == seen[i % 2]);
}

TEST_CASE("Trainer: batches beyond a limit are not fetched") {
  struct Broken final : data::Dataset {
    data::TensorDataset good{randn({64, 12}), randint(0, 4, {64})};
    int64_t size() const override { return 64; }
    data::Batch batch(std::span<const int64_t> indices) const override {
      for (const int64_t i : indices)
        if (i >= 32) fail<FormatError>("broken", "sample ", i, ". Mend it.");
      return good.batch(indices);
    }
  };
  const data::DataLoader loader(Broken{}, {.batch_size = 16});
  TrainerRun run({.max_epochs = 2, .limit_train_batches = 2, .limit_validation_batches = 2});
  CHECK(run.trainer.fit(loader, loader).steps == 4);
  TrainerRun quick({.fast_dev_run = 2});
  CHECK(quick.trainer.fit(loader, loader).steps == 2);
}

TEST_CASE("Trainer: the order of hooks, and their position") {
  struct Order final : train::Callback {
    std::string order{};
    void on_validation_end(Trainer&) override { order += 'V'; }
    void on_step_end(Trainer& t) override {
      order += 's' + std::to_string(t.position().step);
      CHECK(t.position().epoch == t.position().step / steps_per_epoch);
      CHECK(t.position().batches == t.position().step % steps_per_epoch);
    }
    void on_epoch_end(Trainer&) override { order += "E "; }
  };
  const auto order = std::make_shared<Order>();
  TrainerRun run({.max_epochs = 2, .validate_every_steps = 2, .callbacks = {order}});
  run.trainer.fit(trainer_loader(), trainer_loader());
  CHECK(order->order == "s1Vs2s3Vs4Vs5E Vs6s7Vs8s9Vs10E ");
}

TEST_CASE("Trainer: after an exception fit() continues, and a step counts as a whole") {
  const auto hooks = std::make_shared<Hooks>();
  int64_t batches = 0;
  hooks->batch = [&](data::Batch&) {
    if (++batches == 6) fail<UsageError>("test", "enough. Go on.");
  };
  TrainerRun run({.max_epochs = 2, .accumulate_batches = 2, .callbacks = {hooks}});
  CHECK_THROWS_AS(run.trainer.fit(trainer_loader({.batch_size = 8})), UsageError);
  CHECK(run.trainer.position().step == 2);
  CHECK(run.trainer.position().batches == 4);
  CHECK(message_of<UsageError>([&] { run.trainer.fit(trainer_loader()); }) ==
        "[Trainer] the training is in the middle of an epoch whose batch_size is 8; that of "
        "this loader is 16. Go on with the loader that it had.");
  CHECK(run.trainer.fit(trainer_loader({.batch_size = 8})).steps == 10);

  // At an epoch's last step: the epoch still ends.
  int64_t steps = 0;
  const auto ends = std::make_shared<Hooks>();
  ends->step_end = [&](Trainer&) {
    if (++steps == steps_per_epoch) fail<UsageError>("test", "enough. Go on.");
  };
  TrainerRun again({.max_epochs = 2, .callbacks = {ends}});
  CHECK_THROWS_AS(again.trainer.fit(trainer_loader()), UsageError);
  CHECK(again.trainer.fit(trainer_loader()).epochs == 2);
}

TEST_CASE("Trainer: an epoch's means weigh the counted targets, for any batches") {
  const auto measured = [](int64_t batch) {
    manual_seed(4);
    nn::models::Gpt gpt({.vocabulary = 7, .context = 4, .layers = 1, .heads = 1, .width = 8});
    optim::AdamW adamw(gpt.parameters(), {.lr = 1e-2});
    const Tensor tokens = randint(0, 7, {12, 4});
    Tensor next = tokens.clone();
    for (int64_t i = 0; i < 48; ++i)
      if (i < 20 || i % 3 == 0) next.data<int64_t>()[i] = -100;  // whole rows, and some elsewhere
    Trainer trainer(train::language_modeling(gpt), adamw, quiet({.max_epochs = 1}));
    return trainer.validate(
        data::DataLoader(data::TensorDataset(tokens, next), {.batch_size = batch}));
  };
  const auto one = measured(1), all = measured(12);
  CHECK(one.at("val/loss") == doctest::Approx(all.at("val/loss")).epsilon(1e-6));
  CHECK(one.at("val/perplexity") == doctest::Approx(all.at("val/perplexity")).epsilon(1e-6));
}

TEST_CASE("Trainer: a user's task, and the predefined ones") {
  manual_seed(5);
  nn::Sequential model(nn::Linear(12, 1));
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  const Tensor inputs = randn({64, 12}), targets = matmul(inputs, randn({12, 1}));
  const data::DataLoader loader(data::TensorDataset(inputs, targets), {.batch_size = 16});
  Trainer trainer(train::regression(model), sgd, quiet({.max_epochs = 100}));
  CHECK(trainer.fit(loader, loader).metrics.at("val/loss") < 1e-6);

  nn::models::Gpt gpt({.vocabulary = 7, .context = 4, .layers = 1, .heads = 1, .width = 8});
  optim::AdamW adamw(gpt.parameters(), {.lr = 1e-2});
  const Tensor tokens = randint(0, 7, {10, 4});
  const data::DataLoader text(data::TensorDataset(tokens, tokens), {.batch_size = 5});
  Trainer language(train::language_modeling(gpt), adamw, quiet({.max_epochs = 2}));
  const auto metrics = language.fit(text, text).metrics;
  CHECK(metrics.at("val/perplexity") == doctest::Approx(std::exp(metrics.at("val/loss"))));
}

}  // namespace
}  // namespace halftone::test::trainer_test
