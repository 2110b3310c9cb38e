// Lesson 6: the strategies compared, on real images. You will see what mixed precision costs and
// brings: one model is trained from the same weights on the same batches under every strategy, and
// the table at the end shows bytes by use, time, and accuracy side by side.
#include <omp.h>

#include <chrono>
#include <iostream>

#include "comparison.h"
#include "fashion.h"
#include "program.h"

namespace ht = halftone;

namespace {

struct Arguments {
  std::vector<std::string> strategies{"fp32",      "amp-bf16", "o2-bf16",
                                      "full-bf16", "amp-fp16", "split-bf16"};
  std::string data, model = "lenet", policy = "pytorch-cuda", device = "cpu", json;
  int64_t epochs = 3, batch = 128, limit = 0;
  double lr = 2e-3;
  uint64_t seed = 0;
  int threads = omp_get_max_threads();
};

void add_flags(CLI::App& app, Arguments& to) {
  app.add_option("--strategies", to.strategies, "any of amp/strategy.h, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--model", to.model)
      ->check(CLI::IsMember({"lenet", "mlp"}))
      ->capture_default_str();
  app.add_option("--policy", to.policy, "preset of the amp strategies (o1-fp16 has its own)")
      ->capture_default_str();
  app.add_option("--data", to.data, "directory of Fashion-MNIST; default: the usual places");
  app.add_option("--epochs", to.epochs)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--batch", to.batch)->check(CLI::Range(1, 60000))->capture_default_str();
  app.add_option("--lr", to.lr, "highest rate of AdamW")->check(CLI::PositiveNumber);
  app.add_option("--seed", to.seed, "of weights and shuffling");
  app.add_option("--threads", to.threads)->check(CLI::Range(1, 1024));
  app.add_option("--limit", to.limit, "use only the first images of each split")
      ->check(CLI::PositiveNumber);
  add_device_flag(app, to.device);
  app.add_option("--json", to.json, "file for the figures")->take_last();
}

std::unique_ptr<ht::nn::Layer> make_model(const std::string& name) {
  if (name == "lenet") return std::make_unique<ht::nn::models::LeNet>();
  return std::make_unique<ht::nn::Sequential>(ht::nn::Flatten(),
                                              ht::nn::models::mlp({784, 1024, 1024, 10}));
}

Measured measure(const ht::amp::Strategy& strategy, const ht::data::ByteImages& images,
                 const ht::data::ByteImages& test_images, const Arguments& a) {
  using Clock = std::chrono::steady_clock;
  const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
  ht::manual_seed(a.seed);
  const ht::Device device = ht::device_named(a.device);
  const auto model = make_model(a.model);
  model->to(device);
  ht::optim::AdamW adamw(model->parameters(), {.lr = a.lr, .weight_decay = 0.05});
  ht::amp::Training training = ht::amp::apply(strategy, *model, adamw);
  ht::data::DataLoader loader(
      images, {.batch_size = a.batch, .shuffle = true, .seed = a.seed, .device = device});
  const int64_t steps = a.epochs * loader.size();
  const auto cosine = ht::optim::LrSchedule::cosine(steps, 0.01);
  ht::optim::LrScheduler schedule(training.optimizer(), cosine);

  std::cout << strategy << std::endl;
  std::vector<double> times;
  double loss_sum = 0;
  ht::train::ProgressBar progress(
      {.epochs = a.epochs, .steps_per_epoch = loader.size(), .interval = 200, .unit = "images"});
  ht::train::RunningMean loss_mean;
  ht::train::TopKAccuracy accuracy;
  ht::reset_peak_memory(device);
  const auto start = Clock::now();
  for (int64_t epoch = 0; epoch < a.epochs; ++epoch) {
    progress.begin_epoch(), loss_mean.reset(), accuracy.reset();
    loss_sum = 0;
    for (auto [inputs, labels] : loader) {
      const auto before = Clock::now();
      training.zero_grad();
      const ht::Tensor logits = training.forward(*model, inputs);
      const ht::Tensor loss = ht::cross_entropy(logits, labels);
      training.backward(loss);
      if (training.step()) schedule.step();  // on a GPU this waits, so the time is the step's
      times.push_back(1e3 * seconds(Clock::now() - before));
      loss_sum += loss.item();
      loss_mean.update(loss, double(inputs.size(0)));
      accuracy.update(logits, labels);
      progress.step(inputs.size(0), [&](const auto& show) {
        show("loss", loss_mean.value());
        show("accuracy", accuracy.value(), ht::train::Shown::percent);
        if (training.strategy().scales_loss)
          show("scale", training.scaler().scale_value(), ht::train::Shown::count);
        show("skipped", double(training.skipped_steps()), ht::train::Shown::count);
      });
    }
  }
  Measured m{.workload = a.model, .strategy = strategy.name};
  m.train_s = seconds(Clock::now() - start), m.memory = ht::memory_report(device);
  m.device = a.device, m.threads = a.threads, m.epochs = a.epochs, m.batch = a.batch,
  m.steps = int64_t(times.size());
  m.parameters = model->parameter_count(), m.skipped_steps = training.skipped_steps();
  using Use = ht::MemoryUse;
  m.parameter_ratio = double(m.memory.now_of(Use::parameter) + m.memory.now_of(Use::master_weight) +
                             m.memory.now_of(Use::compensation)) /
                      double(4 * m.parameters);
  std::ranges::sort(times);
  m.ms = times[times.size() / 2], m.min_ms = times.front();
  m.final_loss = loss_sum / double(loader.size());
  m.final_scale = training.scaler().scale_value();
  model->eval();
  m.test_accuracy =
      accuracy_of([&](const ht::Tensor& inputs) { return training.forward(*model, inputs); },
                  test_images, device);
  return m;
}

void run(const Arguments& arguments) {
  using ht::data::Split;
  std::vector<ht::amp::Strategy> strategies;
  for (const std::string& name : arguments.strategies) {
    strategies.push_back(ht::amp::Strategy::named(name));
    if (strategies.back().policy == "pytorch-cuda") strategies.back().policy = arguments.policy;
  }
  if (!arguments.json.empty()) require_writable(arguments.json);
  ht::amp::Policy::preset(arguments.policy);  // an unknown one is an error before the training
  const ht::data::ByteImages images = fashion_images(Split::train, arguments.data, arguments.limit),
                             test_images =
                                 fashion_images(Split::test, arguments.data, arguments.limit);
  std::cout << arguments.model << " on Fashion-MNIST: " << images.size() << " training and "
            << test_images.size() << " test images, " << arguments.epochs << " epochs each, "
            << arguments.threads << " threads\n\n";
  std::vector<Measured> all;
  for (const ht::amp::Strategy& strategy : strategies)
    all.push_back(measure(strategy, images, test_images, arguments));
  print_table(all);
  if (!arguments.json.empty()) write_json(all, arguments.json);
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Trains one model under several precision strategies and compares them.");
  add_flags(app, arguments);
  return run_program(app, argc, argv, [&] {
    omp_set_num_threads(arguments.threads);
    run(arguments);
  });
}
