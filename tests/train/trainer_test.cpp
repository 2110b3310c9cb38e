// Trainer's steps: the bits of the loop by hand under every precision, accumulation, clipping,
// schedules, limits, validation.
#include <cmath>
#include <set>

#include <halftone/halftone.h>

#include "trainer_cases.h"

namespace halftone::test::trainer_test {
namespace {

using train::Trainer;
using train::TrainerOptions;

constexpr int64_t steps_per_epoch = 5;  // 72 samples in batches of 16

/// Three epochs with a schedule and clipping, as amp/training.h shows them.
optim::NamedTensors by_hand(const amp::Policy& strategy) {
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
  for (const std::string_view name : amp::Policy::names()) {
    CAPTURE(name);
    CHECK(same_state(by_trainer(std::string(name)), by_hand(amp::Policy::named(name))));
  }
}

TEST_CASE("Trainer: Lightning's words name strategies") {
  const std::pair<const char*, const char*> words[] = {
      {"64-true", "fp64"},    {"32-true", "fp32"},        {"16-mixed", "amp-fp16"},
      {"16-true", "o3-fp16"}, {"bf16-true", "full-bf16"}, {"bf16-mixed", "amp-bf16"}};
  for (const auto& [word, strategy] : words) {
    CAPTURE(word);
    CHECK(train::strategy_for(word).name == strategy);
    CHECK(same_state(by_trainer(word), by_hand(amp::Policy::named(strategy))));
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
    CHECK(message_of<UsageError>([&] { amp::Policy::named(word); }).ends_with(end));
  }
}

/// Does steps on all samples at once, in accumulated batches of 16 or one of 64.
std::vector<Tensor> accumulated(const amp::Policy& strategy, int64_t batch, int64_t accumulate) {
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
    const amp::Policy strategy = amp::Policy::named(name);
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
  amp::Policy strategy = amp::Policy::named("amp-fp16");
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

// Contradictory options, and data that does not fit them: the message, and nothing changed.

namespace halftone::test::trainer_options_test {
namespace {

using train::Trainer;
using train::TrainerOptions;

/// Returns the constructor's message; the model must be unchanged.
std::string refused(TrainerOptions options) {
  TrainerCase c;
  const auto before = copy_of(nn::state_dict(c.model));
  const std::string message =
      message_of<UsageError>([&] { Trainer(c.task(), c.adamw, quiet(std::move(options))); });
  CHECK(same_state(nn::state_dict(c.model), before));
  return message;
}

TEST_CASE("Trainer: options that contradict each other") {
  CHECK(refused({.precision = "17-mixed", .max_epochs = 1}) ==
        "[Trainer] there is no precision named \"17-mixed\". Did you mean \"16-mixed\"?");
  CHECK(refused({}) ==
        "[Trainer] nothing ends this training. Pass max_epochs, max_steps or max_time.");
  CHECK(refused({.max_epochs = -1}) == "[Trainer] max_epochs is -1. Use 0 or more.");
  CHECK(refused({.max_epochs = 1, .accumulate_batches = -1}) ==
        "[Trainer] accumulate_batches is -1. Use 0 or more.");
  CHECK(refused({.max_epochs = 1, .clip_norm = -1}) ==
        "[Trainer] clip_norm is -1. Use 0 for none, or a positive number.");
  CHECK(refused({.max_epochs = 1, .clip_norm = 1, .clip_value = 1}) ==
        "[Trainer] clip_norm and clip_value contradict each other. Pass one.");
  CHECK(
      refused({.precision = "16-mixed", .strategy = amp::Policy::named("fp32"), .max_epochs = 1}) ==
      "[Trainer] strategy and precision contradict each other. Pass one.");
  CHECK(refused({.fast_dev_run = 1, .overfit_batches = 1}) ==
        "[Trainer] fast_dev_run and overfit_batches contradict each other. Pass one.");
  CHECK(refused({.limit_train_batches = 2, .fast_dev_run = 1}) ==
        "[Trainer] fast_dev_run and limit_train_batches contradict each other. Pass one.");
  CHECK(refused({.max_epochs = 1, .limit_train_batches = 2, .overfit_batches = 1}) ==
        "[Trainer] overfit_batches and limit_train_batches contradict each other. Pass one.");
  CHECK(refused({.max_time = std::chrono::seconds(1),
                 .schedule = [](int64_t n) { return optim::LrSchedule::linear(n); }}) ==
        "[Trainer] a schedule needs to know the number of steps, and max_time alone does not say "
        "it. Pass max_epochs or max_steps as well.");
  CHECK(
      refused({.precision = "o2-fp16", .max_epochs = 1, .clip_value = 1}) ==
      "[Trainer] clip_value needs unscaled gradients, and under o2-fp16 these would be f16, which "
      "underflows. Use clip_norm.");
  CHECK(refused({.max_epochs = 1,
                 .distributed = {.wire = distributed::WireFormat::named("bf16+feedback")},
                 .deterministic = true,
                 .directory = "/tmp"}) ==
        "[Trainer] the wire is bf16+feedback, and what its error feedback keeps is in no "
        "checkpoint, so that a resumed training would get other bits. Leave out deterministic, or "
        "the feedback.");
  CHECK(refused({.max_epochs = 1, .resume = true}) ==
        "[Trainer] resume needs a place for files. Pass directory.");
  CHECK(refused({.max_epochs = 1, .json_lines = true}) ==
        "[Trainer] json_lines needs a place for files. Pass directory.");
  CHECK(refused({.max_epochs = 1, .tensorboard = true}) ==
        "[Trainer] tensorboard needs a place for files. Pass directory.");
  CHECK(refused({.max_epochs = 1, .checkpoints = {.keep_last = 0}}) ==
        "[Trainer] checkpoints.keep_last is 0. Use 1 or more.");
  CHECK(
      refused(
          {.max_epochs = 1, .directory = "none", .checkpoints = {.keep_best = 1}, .monitor = ""}) ==
      "[Trainer] checkpoints.keep_best is 1, but monitor is empty. Name a metric, such as "
      "\"val/loss\".");
  TrainerCase c;
  CHECK(message_of<UsageError>(
            [&] { Trainer(c.task(), c.adamw, {.max_epochs = 1, .output = nullptr}); }) ==
        "[Trainer] output is null. Leave it stdout, or turn progress_bar and model_summary off.");
  CHECK(refused({.max_epochs = 1, .output = nullptr}).empty());  // nothing is shown
  CHECK(refused({.limit_validation_batches = 1, .fast_dev_run = 1}) ==
        "[Trainer] fast_dev_run and limit_validation_batches contradict each other. Pass one.");
  CHECK(refused({.max_epochs = 1, .limit_validation_batches = 1, .overfit_batches = 1}) ==
        "[Trainer] overfit_batches and limit_validation_batches contradict each other. Pass one.");
  CHECK(refused({.max_epochs = 1, .checkpoints = {.every_steps = 5}}) ==
        "[Trainer] checkpoints needs a place for files. Pass directory.");
  CHECK(refused({.max_time = std::chrono::seconds(-1)}) ==
        "[Trainer] max_time is -1. Use 0 for none, or a positive number.");
  CHECK(refused({.max_epochs = 1, .clip_value = std::nan("")}) ==
        "[Trainer] clip_value is nan. Use 0 for none, or a positive number.");
  CHECK(refused({.max_epochs = 1, .callbacks = {nullptr}}) ==
        "[Trainer] a callback is null. Leave it out.");
  CHECK(refused({.max_epochs = 1, .loggers = {nullptr}}) ==
        "[Trainer] a logger is null. Leave it out.");
}

TEST_CASE("Trainer: tasks that lack something, and names that are taken") {
  TrainerCase c;
  const auto made = [&](const train::Task& task) {
    return message_of<UsageError>([&] { Trainer(task, c.adamw, quiet({.max_epochs = 1})); });
  };
  train::Task task{.model = c.model};
  CHECK(made(task) == "[Trainer] the task has no forward. Give it that function.");
  task.forward = [](const Tensor& x) { return x; };
  CHECK(made(task) == "[Trainer] the task has no loss. Give it that function.");
  CHECK(made(train::classification(c.model, {.top_k = {1, 1}})) ==
        "[Trainer] no second metric can be named \"top1\". Choose another name.");
}

TEST_CASE("Trainer: data that does not fit the options") {
  const auto refused = [](const TrainerOptions& options, const data::DataLoader& loader) {
    TrainerRun run(options);
    return message_of<Error>([&] { run.trainer.fit(loader); });
  };
  CHECK(refused({.max_epochs = 1}, trainer_loader({.batch_size = 100, .drop_last = true})) ==
        "[Trainer] the training loader has no batch: 72 samples, batch_size 100. Turn drop_last "
        "off, or make batches smaller.");
  TrainerRun blind({.max_epochs = 1});
  CHECK(message_of<UsageError>([&] {
          blind.trainer.fit(trainer_loader(),
                            trainer_loader({.batch_size = 100, .drop_last = true}));
        }) ==
        "[Trainer] the validation loader has no batch: 72 samples, batch_size 100. Turn drop_last "
        "off, or make batches smaller.");
  CHECK(refused({.max_epochs = 1, .validate_every_steps = 2}, trainer_loader()) ==
        "[Trainer] validate_every_steps needs something to validate on, and a time for it. Pass "
        "fit() a second loader, and validate_every_epochs or validate_every_steps.");
  const TemporaryDirectory directory;
  CHECK(contains(
      refused({.max_epochs = 1, .directory = directory.path(), .checkpoints = {.keep_best = 2}},
              trainer_loader()),
      "[Trainer] checkpoints.keep_best by val/loss needs something to validate on, and "));
  CHECK(refused({.max_epochs = 1}, trainer_loader({.device = Device::cuda(0)})) ==
        "[Trainer] the model is on cpu, the training loader delivers to cuda:0. Give it {.device = "
        "...}, or move the model.");
}

TEST_CASE("callbacks refuse numbers out of range, and unknown metrics") {
  CHECK(message_of<UsageError>([] { train::EarlyStopping({.patience = 0}); }) ==
        "[EarlyStopping] patience is 0. Use 1 or more.");
  CHECK(message_of<UsageError>([] { train::EarlyStopping({.min_delta = -1}); }) ==
        "[EarlyStopping] min_delta is -1. Use 0 or more.");
  CHECK(message_of<UsageError>([] { train::NanPolicy({.every_batches = 0}); }) ==
        "[NanPolicy] patience 10, every_batches 0. Use 1 or more of each.");
  CHECK(message_of<UsageError>([] { train::NanPolicy({.patience = 0}); }) ==
        "[NanPolicy] patience 0, every_batches 1. Use 1 or more of each.");
  const auto stopping =
      std::make_shared<train::EarlyStopping>(train::EarlyStoppingOptions{.metric = "val/los"});
  TrainerRun run({.max_epochs = 1, .callbacks = {stopping}});
  CHECK(message_of<UsageError>([&] { run.trainer.fit(trainer_loader(), trainer_loader()); }) ==
        "[Trainer] there is no metric named \"val/los\". Did you mean \"val/loss\"?");
}

TEST_CASE("Trainer: portable bits are chosen by valid options, and are part of the environment") {
  const PortableBitsScope scope(false);
  CHECK(contains(train::environment_of(Device::cpu()), " threads"));
  CHECK(refused({.max_epochs = -1, .portable_bits = true}) ==
        "[Trainer] max_epochs is -1. Use 0 or more.");
  CHECK_FALSE(portable_bits());
  TrainerCase c;
  const Trainer trainer(c.task(), c.adamw, quiet({.max_epochs = 1, .portable_bits = true}));
  CHECK(portable_bits());
  const std::string environment = train::environment_of(Device::cpu());
  CHECK_FALSE(contains(environment, "threads"));
  if (backend_for(Device::cpu()).name() == "cpu")
    CHECK(contains(environment, ", cpu: portable bits"));
}

}  // namespace
}  // namespace halftone::test::trainer_options_test

// Steps of several batches in one process: the results of several processes, by hand and by a
// Trainer; and their fate when a training resumes.

namespace halftone::test::trainer_batches_test {
namespace {

using train::Trainer;

constexpr int64_t batches = 5;  // of 16 samples, the last of 8

optim::NamedTensors by_hand(const std::string& strategy, int64_t of_step, int64_t epochs) {
  TrainerCase c;
  amp::Training training =
      amp::apply(amp::Policy::named(strategy), c.model, c.adamw, distributed::Options{});
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
  amp::Policy strategy = amp::Policy::named("fp32");
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
      amp::apply(amp::Policy::named("full-bf16"), model, sgd, distributed::Options{});
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
