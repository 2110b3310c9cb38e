// The tool compare_strategies: strategies compared, on real images. You will see what mixed
// precision costs and brings: one model is trained from the same weights on the same batches under
// every strategy, and the table at the end shows bytes by use, time, and accuracy side by side.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>

#include <halftone/core/files.h>
#include <halftone/core/device.h>
#include <halftone/lab/report/page.h>
#include <nlohmann/json.hpp>

#include "fashion.h"

namespace ht = halftone;

namespace {

struct Arguments : TrainingFlags {
  std::vector<std::string> strategies{"fp32",     "amp-bf16",   "o2-bf16",    "full-bf16",
                                      "amp-fp16", "split-bf16", "stored_8bit"};
  std::string model = "lenet", optimizer = "adamw", policy = "pytorch-cuda", json{}, html{};
};

struct Measured {
  std::string workload, strategy, device = "cpu";
  int64_t threads = 0, epochs = 0, batch = 0, steps = 0, parameters = 0, skipped_steps = 0;
  double parameter_ratio = 0;  // bytes at rest of parameters, masters and compensation, over 4 each
  double ms = 0, min_ms = 0;   // of a step: forward, backward, update, without loading data
  double final_loss = 0, test_accuracy = 0, train_s = 0, final_scale = 1;
  ht::MemoryReport memory{};
  std::vector<double> losses{};                       // of the steps
  std::vector<ht::amp::PrecisionLog::Entry> casts{};  // of the first step
};

double mebibytes(int64_t bytes) { return double(bytes) / 1048576; }

/// Speed-ups are over the strategy fp32, where it was run.
void print_table(const std::vector<Measured>& all) {
  using Use = ht::MemoryUse;
  const auto fp32 = std::ranges::find(all, "fp32", &Measured::strategy);
  std::printf("\n%-16s %5s |%7s %7s %7s %7s %7s %7s %7s %7s |%8s %6s |%7s %5s %8s\n", "", "at",
              "para-", "next to", "gradi-", "optim.", "casts", "activ-", "work-", "sum", "ms per",
              "speed", "test", "skip-", "loss");
  std::printf("%-16s %5s |%7s %7s %7s %7s %7s %7s %7s %7s |%8s %6s |%7s %5s %8s\n", "strategy",
              "rest", "meters", "them", "ents", "state", "", "ations", "space", "", "step", "up",
              "%", "ped", "scale");
  for (const Measured& m : all) {
    double sum = 0;
    std::string bytes;
    for (const std::vector<Use>& uses : {std::vector<Use>{Use::parameter},
                                         {Use::master_weight, Use::compensation},
                                         {Use::gradient, Use::master_gradient},
                                         {Use::optimizer_state},
                                         {Use::cast_cache},
                                         {Use::activation},
                                         {Use::workspace, Use::communication}}) {
      double mib = 0;
      for (const Use use : uses) mib += mebibytes(m.memory.at_peak_of(use));
      char cell[16];
      std::snprintf(cell, sizeof cell, "%7.2f ", mib);
      bytes += cell, sum += mib;
    }
    char speed_up[16] = "-";
    if (fp32 != all.end()) std::snprintf(speed_up, sizeof speed_up, "%.2fx", fp32->ms / m.ms);
    std::printf("%-16s %4.2fx |%s%7.2f |%8.2f %6s |%7.2f %5ld %8g\n", m.strategy.c_str(),
                m.parameter_ratio, bytes.c_str(), sum, m.ms, speed_up, 100 * m.test_accuracy,
                long(m.skipped_steps), m.final_scale);
  }
  std::printf(
      "\nMiB at the moment of the highest total, without the data set.\nat rest: bytes of "
      "parameters with masters, remainders and compensation, over those of f32 parameters.\n");
}

/// [last step, mean loss] of as many steps as make about a hundred points.
nlohmann::ordered_json about_hundred_means(const std::vector<double>& losses) {
  nlohmann::ordered_json points = nlohmann::ordered_json::array();
  const std::size_t width = losses.size() / 100 + 1;
  for (std::size_t from = 0; from < losses.size(); from += width) {
    const std::size_t to = std::min(from + width, losses.size());
    double sum = 0;
    for (std::size_t step = from; step < to; ++step) sum += losses[step];
    points.push_back({double(to), sum / double(to - from)});
  }
  return points;
}

nlohmann::ordered_json as_json(const Measured& m) {
  using Use = ht::MemoryUse;
  nlohmann::ordered_json bytes;
  for (const Use use : {Use::parameter, Use::master_weight, Use::gradient, Use::master_gradient,
                        Use::optimizer_state, Use::compensation})
    bytes[std::string(ht::name(use))] = m.memory.peak_of(use);
  for (const Use use : {Use::activation, Use::cast_cache, Use::workspace})
    bytes[std::string(ht::name(use)) + "_peak"] = m.memory.peak_of(use);
  nlohmann::ordered_json at_peak = nlohmann::ordered_json::object();
  for (int i = 0; i < ht::memory_use_count; ++i)
    at_peak[std::string(ht::name(Use(i)))] = m.memory.at_peak[std::size_t(i)];
  nlohmann::ordered_json casts = nlohmann::ordered_json::array();
  for (const auto& cast : m.casts)
    casts.push_back({{"op", cast.op},
                     {"runs_in", cast.runs_in},
                     {"casts", cast.casts},
                     {"cache_hits", cast.cache_hits},
                     {"to_zero", cast.to_zero},
                     {"to_infinity", cast.to_infinity}});
  return {{"workload", m.workload},
          {"strategy", m.strategy},
          {"device", m.device},
          {"threads", m.threads},
          {"ms", m.ms},
          {"min_ms", m.min_ms},
          {"samples_per_s", double(m.batch) / m.ms * 1e3},
          {"n", m.steps},
          {"params", m.parameters},
          {"loss", m.final_loss},
          {"peak_bytes", m.memory.total_peak},
          {"bytes", bytes},
          {"parameter_ratio", m.parameter_ratio},
          {"epochs", m.epochs},
          {"test_accuracy", m.test_accuracy},
          {"final_loss", m.final_loss},
          {"train_s", m.train_s},
          {"skipped_steps", m.skipped_steps},
          {"final_scale", m.final_scale},
          {"batch", m.batch},
          {"at_peak", at_peak},
          {"losses", about_hundred_means(m.losses)},
          {"casts", casts}};
}

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

Measured measure(const ht::amp::Policy& strategy, const ht::data::ByteImages& images,
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
  std::vector<ht::amp::Policy> strategies;
  for (const std::string& name : arguments.strategies) {
    strategies.push_back(ht::policy::named_or_read(name));
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
  for (const ht::amp::Policy& strategy : strategies)
    all.push_back(measure(strategy, images, test_images, arguments));
  print_table(all);
  nlohmann::ordered_json measured = nlohmann::ordered_json::array();
  for (const Measured& m : all) measured.push_back(as_json(m));
  if (!arguments.json.empty())
    ht::files::replace("--json", arguments.json, measured.dump(2) + '\n');
  if (arguments.html.empty()) return;
  ht::files::replace("--html", arguments.html, ht::lab::strategy_page(measured));
  std::cout << "\nreport: " << arguments.html << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  Program program("Trains one model under several precision strategies and compares them.");
  program.training(arguments);
  program.list("--strategies", arguments.strategies,
               "any of amp/policy.h, or files of policies (x.json), separated by commas");
  program.flag("--model", arguments.model).one_of({"lenet", "mlp"});
  program.flag("--optimizer", arguments.optimizer).one_of(optimizer_names());
  program.flag("--policy", arguments.policy, "preset of the amp strategies (o1-fp16 has its own)");
  program.flag("--json", arguments.json, "file for the figures");
  program.flag("--html", arguments.html, "file for a page with the same and more, to look at");
  return program.run(argc, argv, [&] { run(arguments); });
}
