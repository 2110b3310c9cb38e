// Lesson 6: the strategies compared, on real images. You will see what mixed precision costs and
// brings: one model is trained from the same weights on the same batches under every strategy, and
// the table at the end shows bytes by use, time, and accuracy side by side.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <optional>

#include <halftone/core/kernel_identity.h>

#include "comparison.h"
#include "comparison_page.h"
#include "fashion.h"
#include "optimizers.h"
#include "program.h"

namespace ht = halftone;

namespace {

struct Arguments : TrainingFlags {
  std::vector<std::string> strategies{"fp32",      "amp-bf16", "o2-bf16",
                                      "full-bf16", "amp-fp16", "split-bf16"};
  std::string model = "lenet", optimizer = "adamw", policy = "pytorch-cuda", json{}, html{};
};

std::unique_ptr<ht::nn::Layer> make_model(const std::string& name) {
  if (name == "lenet") return std::make_unique<ht::nn::models::LeNet>();
  return std::make_unique<ht::nn::Sequential>(ht::nn::Flatten(),
                                              ht::nn::models::mlp({784, 1024, 1024, 10}));
}

/// Times a step from its batch to its update; its loss; and what the first one casts.
struct Stopwatch final : ht::train::Callback {
  using Clock = std::chrono::steady_clock;
  Clock::time_point start{};
  std::vector<double> milliseconds{}, losses{};
  std::optional<ht::amp::PrecisionLog> log{};  // reads what is cast: for a step
  std::vector<ht::amp::PrecisionLog::Entry> casts{};

  void on_batch_start(ht::train::Trainer&, ht::data::Batch&) override {
    if (losses.empty()) log.emplace();
    start = Clock::now();
  }
  void on_step_end(ht::train::Trainer& trainer) override {
    losses.push_back(trainer.step_loss());  // waits for a GPU, so that the time is the step's
    if (log) casts = log->entries(), log.reset();
    milliseconds.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
};

Measured measure(const ht::amp::Strategy& strategy, const ht::data::ByteImages& images,
                 const ht::data::ByteImages& test_images, const Arguments& a) {
  ht::manual_seed(a.seed);
  const ht::Device device = ht::device_named(a.device);
  const auto model = make_model(a.model);
  model->to(device);
  const auto optimizer = make_optimizer(a.optimizer, model->parameters(), a.lr);
  const auto stopwatch = std::make_shared<Stopwatch>();
  std::cout << strategy << std::endl;
  ht::train::Trainer trainer(
      ht::train::classification(*model), *optimizer,
      {.strategy = strategy,
       .max_epochs = a.epochs,
       .schedule = [](int64_t steps) { return ht::optim::LrSchedule::cosine(steps, 0.01); },
       .log_every_steps = 200,
       .model_summary = false,
       .callbacks = {stopwatch}});
  ht::reset_peak_memory(device);
  const ht::train::FitResult result = trainer.fit(ht::data::DataLoader(
      images, {.batch_size = a.batch, .shuffle = true, .seed = a.seed, .device = device}));

  Measured m{.workload = a.model, .strategy = strategy.name};
  m.train_s = result.seconds, m.memory = ht::memory_report(device);
  m.device = a.device, m.threads = ht::cpu_threads(), m.epochs = a.epochs, m.batch = a.batch,
  m.steps = result.steps;
  m.parameters = model->parameter_count(), m.skipped_steps = trainer.training().skipped_steps();
  using Use = ht::MemoryUse;
  m.parameter_ratio = double(m.memory.now_of(Use::parameter) + m.memory.now_of(Use::master_weight) +
                             m.memory.now_of(Use::compensation)) /
                      double(4 * m.parameters);
  std::vector<double>& times = stopwatch->milliseconds;
  std::ranges::sort(times);
  m.ms = times[times.size() / 2], m.min_ms = times.front();
  m.losses = stopwatch->losses, m.casts = stopwatch->casts;
  m.final_loss = result.metrics.at("train/loss_epoch");
  m.final_scale = trainer.training().scaler().scale_value();
  const ht::data::DataLoader tests(test_images, {.batch_size = 500, .device = device});
  m.test_accuracy = trainer.validate(tests).at("val/top1");
  return m;
}

void run(const Arguments& arguments) {
  using ht::data::Split;
  if (arguments.epochs == 0)
    ht::fail<ht::UsageError>("--epochs", "0 epochs leave nothing to compare. Give 1 or more.");
  std::vector<ht::amp::Strategy> strategies;
  for (const std::string& name : arguments.strategies) {
    strategies.push_back(ht::policy::named_or_loaded(name));
    if (strategies.back().policy == "pytorch-cuda") strategies.back().policy = arguments.policy;
  }
  // Fails before the training rather than after it.
  if (!arguments.json.empty()) ht::files::require_replaceable("--json", arguments.json);
  if (!arguments.html.empty()) ht::files::require_replaceable("--html", arguments.html);
  ht::amp::CastPolicy::preset(arguments.policy);  // an unknown one is an error before the training
  const ht::data::ByteImages images = fashion_images(Split::train, arguments.data, arguments.limit),
                             test_images =
                                 fashion_images(Split::test, arguments.data, arguments.limit);
  std::cout << arguments.model << " on Fashion-MNIST: " << images.size() << " training and "
            << test_images.size() << " test images, " << arguments.epochs << " epochs each, "
            << ht::cpu_threads() << " threads\n\n";
  std::vector<Measured> all;
  for (const ht::amp::Strategy& strategy : strategies)
    all.push_back(measure(strategy, images, test_images, arguments));
  print_table(all);
  if (!arguments.json.empty()) write_json(all, arguments.json);
  if (arguments.html.empty()) return;
  ht::files::replace("--html", arguments.html, comparison_page(all));
  std::cout << "\nreport: " << arguments.html << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  Program program("Trains one model under several precision strategies and compares them.");
  program.training(arguments);
  program.list("--strategies", arguments.strategies,
               "any of amp/strategy.h, or files of policies (x.json), separated by commas");
  program.flag("--model", arguments.model).one_of({"lenet", "mlp"});
  program.flag("--optimizer", arguments.optimizer).one_of(optimizer_names());
  program.flag("--policy", arguments.policy, "preset of the amp strategies (o1-fp16 has its own)");
  program.flag("--json", arguments.json, "file for the figures");
  program.flag("--html", arguments.html, "file for a page with the same and more, to look at");
  return program.run(argc, argv, [&] { run(arguments); });
}
