// Whole training runs: the same seed gives the same losses to the last bit, the order of the data
// does not depend on threads, and from the third step on no memory is requested from the system.
#include <vector>

#include <doctest/doctest.h>

#include <halftone/core/caching_allocator.h>

#include "threads.h"
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

}  // namespace halftone
