// Measures how much longer a step of train::Trainer takes than the same step by hand
// (amp/training.h): both train a workload on the same loader, in alternate epochs. Prints medians
// of the epochs' means per step, in microseconds. The progress bar is on, metrics are measured, a
// CSV file is written.
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <set>

#include <CLI/CLI.hpp>

#include "../examples/output.h"
#include <halftone/halftone.h>
#include <halftone/lab/workload_data.h>

namespace ht = halftone;

namespace {
struct Options {
  std::vector<std::string> workloads{"mlp_tiny", "lenet"};
  std::string strategy = "fp32";
  int threads = 2, rounds = 21;
  double seconds = 0.5;  // per epoch, about
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Returns a loader of `batches` times the workload's batch.
ht::data::DataLoader loader_of(const ht::lab::SyntheticWorkload& w, int64_t batches) {
  const int64_t n = w.inputs.size(0);
  ht::Shape inputs = w.inputs.shape(), targets = w.targets.shape();
  inputs[0] = targets[0] = n * batches;
  const std::vector<ht::Tensor> x(std::size_t(batches), w.inputs),
      y(std::size_t(batches), w.targets);
  return ht::data::DataLoader(ht::data::TensorDataset(ht::cat(x, 0), ht::cat(y, 0)),
                              {.batch_size = n});
}

class Timer {
 public:
  double microseconds() const {
    return std::chrono::duration<double, std::micro>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

struct Epochs {
  ht::lab::SyntheticWorkload w;
  ht::optim::AdamW adamw;
  explicit Epochs(const std::string& name)
      : w(ht::lab::make_synthetic(name)), adamw(w.model->parameters(), {.lr = 1e-4}) {}
};

void measure(const std::string& name, const Options& o, const std::filesystem::path& work) {
  Epochs hand(name), trained(name);
  const auto strategy = ht::amp::Policy::named(o.strategy);
  ht::amp::Training training = ht::amp::apply(strategy, *hand.w.model, hand.adamw);
  std::FILE* const nowhere = std::fopen("/dev/null", "w");
  ht::train::TrainerOptions options{.strategy = strategy,
                                    .max_epochs = 1,
                                    .directory = work / name,
                                    .checkpoints = {.every_epochs = 0},
                                    .model_summary = false,
                                    .output = nowhere};
  const auto step = [&](const ht::Tensor& inputs, const ht::Tensor& targets) {
    training.zero_grad();
    training.backward(ht::lab::logits_loss(training.forward(*hand.w.model, inputs), targets));
    training.step();
  };
  for (int i = 0; i < 5; ++i) step(hand.w.inputs, hand.w.targets);
  const Timer one;
  for (int i = 0; i < 10; ++i) step(hand.w.inputs, hand.w.targets);
  const int64_t batches = std::max<int64_t>(4, int64_t(o.seconds * 1e7 / one.microseconds()));
  ht::data::DataLoader loader = loader_of(hand.w, batches);

  // Measures the time between the first and the last step, inside one fit() of all rounds.
  struct Clocked final : ht::train::Callback {
    std::function<void()> by_hand;
    std::vector<double> per_step{};
    std::optional<Timer> timer{};
    int64_t steps = 0;
    void on_step_end(ht::train::Trainer&) override {
      if (!timer) timer.emplace(), steps = 0;
      else ++steps;
    }
    void on_epoch_end(ht::train::Trainer&) override {
      per_step.push_back(timer->microseconds() / double(steps));
      timer.reset();
      by_hand();
    }
  };
  const auto clocked = std::make_shared<Clocked>();
  std::vector<double> hand_per_step;
  clocked->by_hand = [&] {
    std::optional<Timer> timer;
    int64_t steps = 0;
    for (auto [inputs, targets] : loader) {
      step(inputs, targets);
      if (!timer) timer.emplace();
      else ++steps;
    }
    hand_per_step.push_back(timer->microseconds() / double(steps));
  };
  options.callbacks = {clocked}, options.max_epochs = o.rounds;
  ht::train::Trainer trainer(ht::train::classification(*trained.w.model), trained.adamw, options);
  trainer.fit(loader);
  std::fclose(nowhere);

  std::vector<double> differences;
  for (std::size_t i = 0; i < hand_per_step.size(); ++i)
    differences.push_back(clocked->per_step[i] - hand_per_step[i]);
  const double by_hand = median(hand_per_step), extra = median(differences);
  std::printf("%-10s %-10s by hand %9.1f us  Trainer %9.1f us  more by %7.1f us, %5.2f %%\n",
              name.c_str(), o.strategy.c_str(), by_hand, median(clocked->per_step), extra,
              100 * extra / by_hand);
}
}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Compares a Trainer's steps with the same loop by hand.");
  app.add_option("--workload", options.workloads, "classification workloads, by commas")
      ->delimiter(',');
  app.add_option("--strategy", options.strategy)->capture_default_str();
  app.add_option("--threads", options.threads)->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  app.add_option("--seconds", options.seconds, "per round")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  omp_set_num_threads(options.threads);
  const std::filesystem::path work =
      std::filesystem::temp_directory_path() / ("trainer_cost-" + std::to_string(getpid()));
  try {
    for (const std::string& name : options.workloads) measure(name, options, work);
  } catch (const ht::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  std::error_code ignored;
  std::filesystem::remove_all(work, ignored);
  return after_output();
}
