// Trainings that are stopped at random events, by signals, by exceptions and without a word, and
// started again until they end: with the weights, logs and checkpoints of one that never stopped.
#include "trainer_cases.h"

#include <cstdlib>
#include <fstream>
#include <random>
#include <set>

#include <signal.h>

#include <nlohmann/json.hpp>

#include <halftone/train/callbacks.h>
#include <halftone/train/checkpoints.h>

namespace halftone::test::random_stops_test {
namespace {

namespace fs = std::filesystem;
using train::Trainer;
using train::TrainerOptions;

/// Ends a training at once, as a killed process does.
struct Killed {};

enum class Stop { none, signal, exception, kill };

/// Counts events, and stops at one of them.
struct Stopper {
  Stop how = Stop::none;
  int64_t events_left = 0;
  bool happened = false;
  void event() {
    if (how == Stop::none || events_left-- != 0) return;
    happened = true;
    if (how == Stop::signal) raise(SIGTERM);
    else if (how == Stop::exception) fail<UsageError>("stopper", "the event is here. Go on.");
    else throw Killed{};
  }
};

/// Has events in all hooks, numbers of its own, and may wish to stop. One of two: the other comes
/// after it.
struct Eventful final : train::Callback {
  Stopper& stopper;
  std::string name;
  int64_t wishes_at = -1;
  double sum = 0;  // saved
  Eventful(Stopper& s, std::string n, int64_t wish)
      : stopper(s), name(std::move(n)), wishes_at(wish) {}

  void on_fit_start(Trainer&) override { stopper.event(); }
  void on_batch_start(Trainer&, data::Batch&) override { stopper.event(); }
  bool on_loss(Trainer&, const Tensor&) override {
    stopper.event();
    return true;
  }
  bool drops_steps() const override { return true; }
  void on_log(Trainer& trainer) override {
    stopper.event();
    trainer.log(name + "/log", sum);
  }
  void on_validation_end(Trainer& trainer) override {
    stopper.event();
    trainer.log(name + "/validation", sum += trainer.metric("val/loss"));
  }
  void on_step_end(Trainer& trainer) override {
    stopper.event();
    trainer.log(name + "/step", sum += 1);
    if (trainer.position().step == wishes_at) trainer.stop(name + " wishes it");
  }
  void on_epoch_end(Trainer& trainer) override {
    stopper.event();
    trainer.log(name + "/epoch", sum += 0.25);
  }
  void on_fit_end(Trainer&) override { stopper.event(); }
  std::shared_ptr<void> during_validation(Trainer&) override {
    stopper.event();
    return nullptr;
  }
  std::map<std::string, double> state() const override { return {{"sum", sum}}; }
  void load_state(const std::map<std::string, double>& state) override { sum = state.at("sum"); }
};

/// Options drawn from a seed.
struct Plan {
  TrainerOptions options{};
  bool validates = false, averages = false, stops_early = false, plateau = false, monitors = false;
  int64_t wish = -1, patience = 1;

  explicit Plan(std::mt19937& random) {
    const auto draw = [&](int64_t below) { return int64_t(random() % uint64_t(below)); };
    constexpr std::array precisions{"fp32", "amp-fp16", "o2-bf16", "full-bf16-sr", "split-bf16"};
    TrainerOptions& o = options;
    o.precision = precisions[std::size_t(draw(precisions.size()))];
    o.accumulate_batches = 1 + draw(3);
    o.max_epochs = 2 + draw(2), o.max_steps = draw(2) ? 0 : 4 + draw(6);
    validates = draw(4) != 0;
    o.validate_every_epochs = draw(3), o.validate_every_steps = validates ? draw(4) : 0;
    o.sanity_check_batches = draw(2);
    validates = validates && (o.validate_every_epochs > 0 || o.validate_every_steps > 0);
    o.checkpoints = {.every_epochs = draw(3), .every_steps = draw(4), .keep_last = 1 + draw(3)};
    o.log_every_steps = 1 + draw(3);
    o.train_metrics = draw(2) == 0;
    o.clip_norm = double(draw(2));
    if (validates) {
      o.checkpoints.keep_best = draw(3);
      stops_early = draw(3) == 0, patience = 1 + draw(2);
      plateau = draw(3) == 0;
    }
    if (draw(3) == 0)
      wish = 1 + draw(6), o.min_steps = o.max_steps ? 0 : draw(10), o.min_epochs = draw(3);
    averages = draw(2) == 0, monitors = draw(3) == 0;
    if (!plateau && draw(2) == 0)
      o.schedule = [](int64_t) { return optim::LrSchedule::cosine(12); };
    o.json_lines = true, o.csv = false;
  }

  TrainerOptions in(const fs::path& directory, Stopper& stopper) const {
    TrainerOptions o = options;
    o.directory = directory, o.resume = true, o.exit_on_signal = false;
    o.callbacks = {std::make_shared<Eventful>(stopper, "a", -1)};
    if (averages)
      o.callbacks.push_back(
          std::make_shared<train::WeightAverage>(train::WeightAverageOptions{.decay = 0.5}));
    if (stops_early)
      o.callbacks.push_back(std::make_shared<train::EarlyStopping>(
          train::EarlyStoppingOptions{.patience = int(patience)}));
    if (plateau) o.callbacks.push_back(std::make_shared<train::LrOnPlateau>());
    if (monitors)
      o.callbacks.push_back(
          std::make_shared<train::PrecisionMonitor>(policy::ProbeOptions{.every = 2}));
    o.callbacks.push_back(std::make_shared<train::LearningRateMonitor>());
    o.callbacks.push_back(std::make_shared<Eventful>(stopper, "b", wish));
    return o;
  }
};

/// The rows of a log, by step; a repeated row replaces the one before it. Without times.
std::map<int64_t, nlohmann::json> rows_in(const fs::path& path) {
  std::map<int64_t, nlohmann::json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    nlohmann::json row = nlohmann::json::parse(line);
    row.erase("time"), row.erase("wall_time");
    rows[row.at("step").get<int64_t>()] = row;
  }
  return rows;
}

/// The lines of a probe, without the repetitions.
std::set<std::string> lines_in(const fs::path& path) {
  std::set<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.insert(line);
  return lines;
}

/// The numbers of all checkpoints, by name, without the times.
std::map<std::string, std::map<std::string, double>> checkpoints_in(const fs::path& root) {
  std::map<std::string, std::map<std::string, double>> all;
  for (const auto& found : train::valid_checkpoints(root)) {
    auto numbers = found.state.numbers;
    numbers.erase("state.seconds");
    // The plan alone may end on another word: an end that is due anyway is part of the plan.
    all["step " + std::to_string(found.state.step)] = numbers;
  }
  return all;
}

struct Result {
  train::FitResult fit;
  optim::NamedTensors state;
  int stops = 0;
};

/// The loader of a case whose loss counts as an event.
train::Task eventful(train::Task task, Stopper& stopper) {
  task.loss = [loss = task.loss, &stopper](const Tensor& outputs, const Tensor& targets) {
    stopper.event();
    return loss(outputs, targets);
  };
  return task;
}

Result trained(const Plan& plan, const fs::path& directory, std::mt19937* random) {
  Result result;
  for (int start = 0;; ++start) {
    REQUIRE(start < 60);
    Stopper stopper;
    const auto next_stop = [&] {
      stopper = {};
      if (!random || result.stops >= 8) return;
      stopper.how = Stop(1 + (*random)() % 3);
      stopper.events_left = int64_t((*random)() % 60);
    };
    next_stop();
    // With a checkpoint, other weights and another generator, which resuming replaces.
    const bool resumes = train::latest_checkpoint(directory / "checkpoints").has_value();
    TrainerCase parts(resumes ? uint64_t(100 + start) : 1);
    Trainer trainer(eventful(parts.task(), stopper), parts.adamw,
                    quiet(plan.in(directory, stopper)));
    const data::DataLoader loader = trainer_loader(),
                           validation = trainer_loader({.batch_size = 9, .seed = 3});
    for (bool same_trainer = true; same_trainer;) {
      bool ended = false;
      try {
        result.fit = plan.validates ? trainer.fit(loader, validation) : trainer.fit(loader);
        ended = result.fit.signal == 0;
      } catch (const Killed&) {
      } catch (const UsageError& error) {
        REQUIRE(std::string(error.what()) == "[stopper] the event is here. Go on.");
      }
      if (ended) {
        result.state = copy_of(trainer.training().state_dict());
        return result;
      }
      ++result.stops;
      // Half of the programs call fit() again, the others start again.
      same_trainer = stopper.how != Stop::kill && (*random)() % 2 == 0;
      if (same_trainer) next_stop();
    }
  }
}

TEST_CASE("random stops: the weights, logs and checkpoints of a training that never stopped") {
  const char* const wanted = std::getenv("HALFTONE_RANDOM_STOPS");
  const int64_t trainings = wanted ? std::atoll(wanted) : 60;
  int64_t stops = 0;
  for (int64_t seed = 1; seed <= trainings; ++seed) {
    CAPTURE(seed);
    std::mt19937 random{uint32_t(seed)};
    const Plan plan(random);
    const TemporaryDirectory directory;
    const Result whole = trained(plan, directory / "whole", nullptr);
    const Result parts = trained(plan, directory / "parts", &random);
    stops += parts.stops;
    CAPTURE(plan.options.precision);
    CAPTURE(plan.options.accumulate_batches);
    CHECK(parts.fit.reason == whole.fit.reason);
    CHECK(parts.fit.steps == whole.fit.steps);
    CHECK(parts.fit.epochs == whole.fit.epochs);
    CHECK(parts.fit.metrics == whole.fit.metrics);
    CHECK(same_state(parts.state, whole.state));
    CHECK(rows_in(directory / "parts/metrics.jsonl") == rows_in(directory / "whole/metrics.jsonl"));
    CHECK(checkpoints_in(directory / "parts/checkpoints") ==
          checkpoints_in(directory / "whole/checkpoints"));
    if (plan.monitors)
      CHECK(lines_in(directory / "parts/probe.jsonl") == lines_in(directory / "whole/probe.jsonl"));
  }
  CHECK(stops >= trainings);
  MESSAGE(stops << " stops in " << trainings << " trainings");
}

}  // namespace
}  // namespace halftone::test::random_stops_test
