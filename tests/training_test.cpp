// Whole training runs: the same seed gives the same losses to the last bit, the order of the data
// does not depend on threads, and from the third step on no memory is requested from the system.
#include <array>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <halftone/core/memory.h>

#include "support.h"
#include "training_cases.h"

namespace halftone {

namespace {

using test::Threads;

std::vector<double> losses_of(std::string_view name, uint64_t seed, int threads, int prefetch) {
  const Threads scope(threads);
  test::TrainingCase run = test::make_training_case(name, seed);
  std::vector<double> losses;
  test::train_case(run, {.prefetch = prefetch, .seed = seed},
                   [&](int64_t, double loss) { losses.push_back(loss); });
  return losses;
}

}  // namespace

TEST_CASE("one seed and one thread count give bit-identical losses") {
  for (const char* name : {"mlp", "lenet"})
    for (const int threads : {1, 2}) {
      CAPTURE(name);
      CAPTURE(threads);
      const std::vector<double> first = losses_of(name, 7, threads, 0);
      REQUIRE(first.size() == std::size_t(test::training_steps));
      CHECK(first == losses_of(name, 7, threads, 2));
      CHECK(first != losses_of(name, 8, threads, 2));
    }
}

TEST_CASE("a training run learns") {
  // The labels are random, so the loss falls only on data of earlier epochs: ten epochs of it.
  test::TrainingCase run = test::make_training_case("mlp", 0);
  double first = 0, last = 0;
  for (int epoch = 0; epoch < 10; ++epoch) {
    double sum = 0;
    test::train_case(run, {.seed = 1}, [&](int64_t, double loss) { sum += loss; });
    (epoch == 0 ? first : last) = sum / double(test::training_steps);
  }
  CHECK(last < 0.8 * first);
}

TEST_CASE("the order of the data depends on the seed alone") {
  const int64_t count = 1000;
  const data::TensorDataset numbers(arange(count), arange(count));
  const auto order = [&](int threads, int prefetch, uint64_t seed) {
    const Threads scope(threads);
    std::vector<int64_t> seen;
    data::DataLoader loader(
        numbers, {.batch_size = 64, .shuffle = true, .prefetch = prefetch, .seed = seed});
    for (int epoch = 0; epoch < 2; ++epoch)
      for (auto [inputs, targets] : loader)
        for (const int64_t number : inputs.to_vector<int64_t>()) seen.push_back(number);
    return seen;
  };
  const std::vector<int64_t> expected = order(1, 0, 3);
  REQUIRE(expected.size() == 2 * std::size_t(count));
  for (const int threads : {1, 2, 5})
    for (const int prefetch : {0, 1, 2, 7}) CHECK(order(threads, prefetch, 3) == expected);
  CHECK(order(1, 0, 4) != expected);
}

TEST_CASE("the ledger and the system's memory are constant after the second step") {
  for (const char* name : {"mlp", "lenet"}) {
    CAPTURE(name);
    test::TrainingCase run = test::make_training_case(name, 0);
    reset_peak_memory();
    MemoryReport second;
    int64_t allocations = 0;
    // Without prefetch: the number of batches that a worker holds in advance would be random.
    test::train_case(run, {.prefetch = 0}, [&](int64_t step, double) {
      const MemoryReport now = memory_report();
      if (step == 2) {
        second = now;
        allocations = cache_statistics().system_allocations;
      } else if (step > 2) {
        CAPTURE(step);
        CHECK(now.now == second.now);
        CHECK(now.total_peak == second.total_peak);
        CHECK(cache_statistics().system_allocations == allocations);
      }
    });
  }
}

TEST_CASE("a training run frees all its bytes") {
  losses_of("lenet", 0, 2, 2);  // backends may keep workspaces and plans from their first use on
  const MemoryReport before = memory_report();
  losses_of("lenet", 0, 2, 2);
  CHECK(memory_report().now == before.now);
}

/// A model, what makes its loss, and its training.
struct FragileRun {
  std::unique_ptr<nn::Layer> model;
  Tensor inputs, targets;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<amp::Training> training;

  FragileRun(std::string_view name, std::string_view strategy, std::string_view rule) {
    manual_seed(3);
    if (name == "gpt") {
      model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
          .vocabulary = 50, .context = 40, .layers = 1, .heads = 2, .width = 32});
      inputs = randint(0, 50, {3, 40}), targets = randint(0, 50, {120});
    } else if (name == "images") {
      model = std::make_unique<nn::Sequential>(
          nn::Conv2d(3, 16, 3), nn::GroupNorm(4, 16), nn::Relu(), nn::MaxPool2d(2),
          nn::Conv2d(16, 16, 3), nn::Relu(), nn::Flatten(), nn::Linear(16 * 5 * 5, 10));
      inputs = randn({8, 3, 16, 16}), targets = randint(0, 10, {8});
    } else {
      model =
          std::make_unique<nn::Sequential>(nn::Linear(100, 300), nn::Gelu(), nn::Linear(300, 20));
      inputs = randn({64, 100}), targets = randint(0, 20, {64});
    }
    if (rule == "sgd")
      optimizer = std::make_unique<optim::Sgd>(
          model->parameters(), optim::SgdOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
    else optimizer = std::make_unique<optim::AdamW>(model->parameters());
    training = std::make_unique<amp::Training>(
        amp::apply(amp::Policy::named(strategy), *model, *optimizer));
  }
  void step() {
    training->zero_grad();
    const Tensor outputs = training->forward(*model, inputs);
    training->backward(
        cross_entropy(reshape(outputs, {targets.size(0), outputs.size(-1)}), targets));
    training->clip_grad_norm(1.0);
    training->step();
  }
  std::vector<std::vector<double>> weights() const {
    std::vector<std::vector<double>> all;
    for (const Tensor& x : model->parameters()) all.push_back(x.to_vector<double>());
    return all;
  }
};

TEST_CASE("every allocation of two steps fails once: an error, and the same weights afterwards") {
  const Threads threads(2);
  for (const auto& [name, strategy, rule, backend] : {std::array{"mlp", "amp-bf16", "sgd", "cpu"},
                                                      {"mlp", "o2-fp16", "adamw", "reference"},
                                                      {"images", "fp32", "adamw", "cpu"},
                                                      {"gpt", "split-bf16", "sgd", "cpu"},
                                                      {"gpt", "fp32", "adamw", "cpu"}}) {
    CAPTURE(name);
    CAPTURE(strategy);
    CAPTURE(backend);
    const CpuBackendScope scope(backend);
    FragileRun whole(name, strategy, rule);
    for (int i = 0; i < 2; ++i) whole.step();
    const auto expected = whole.weights();
    int64_t failures = 0;
    for (int64_t after = 0;; ++after) {
      CAPTURE(after);
      FragileRun run(name, strategy, rule);
      const MemoryReport before = memory_report();
      bool failed = false;
      detail::fail_one_allocation(after);
      for (int i = 0; i < 2; ++i) {
        try {
          run.step();
        } catch (const DeviceError& error) {
          failed = true;
          CHECK(std::string_view(error.what()).find("the system has no more") !=
                std::string_view::npos);
          run.training->zero_grad();
          if (i == 0 && run.optimizer->state_dict().empty())
            CHECK(memory_report().total_now == before.total_now);
          run.step();
        }
      }
      detail::fail_one_allocation(-1);
      if (!failed) break;
      ++failures;
      REQUIRE(run.weights() == expected);
    }
    CHECK(failures > 20);
  }
}

TEST_CASE("memory that runs out in operations of several threads, and in a loader's, is an error") {
  const Threads threads(2);
  const Tensor wide = randn({8, 20000}), a = randn({300, 300});
  const auto survives = [](const auto& call) {
    const auto expected = call();
    for (int64_t after = 0;; ++after) {
      detail::fail_one_allocation(after);
      bool failed = false;
      try {
        call();
      } catch (const DeviceError&) { failed = true; }
      detail::fail_one_allocation(-1);
      CHECK(call() == expected);
      if (!failed) return after;
    }
  };
  const auto values = [](const Tensor& x) { return x.to_vector<double>(); };
  CHECK(survives([&] { return values(argsort(wide)); }) > 1);
  CHECK(survives([&] { return values(softmax(cast(wide, bf16), -1)); }) > 1);
  CHECK(survives([&] { return values(matmul(a, a)); }) > 1);
  CHECK(survives([&] { return values(matmul(cast(a, bf16), cast(a, bf16))); }) > 1);
  CHECK(survives([&] { return values(cumsum(wide, 0)); }) > 1);

  const data::DataLoader loader(data::TensorDataset(arange(40), arange(40)),
                                {.batch_size = 4, .workers = 2});
  CHECK(survives([&] {
          std::vector<double> all;
          for (const data::Batch& batch : loader)
            for (const double x : values(batch.inputs)) all.push_back(x);
          return all;
        }) > 10);
}

}  // namespace halftone
