// DataLoader: order, completeness, the worker (early break, exceptions, memory),
// resuming.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <ranges>
#include <thread>

#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/random.h>
#include <halftone/data/data_loader.h>
#include <halftone/data/dataset.h>

#include "../support.h"

namespace halftone::test::data_loader_test {

using data::Batch, data::DataLoader, data::DataLoaderOptions, data::Dataset, data::TensorDataset;

static_assert(std::ranges::input_range<DataLoader>);

namespace {
/// Sample i is ([2 i, 2 i + 1], i).
TensorDataset counting(int64_t samples) {
  std::vector<int64_t> inputs(std::size_t(2 * samples)), targets(static_cast<std::size_t>(samples));
  std::iota(inputs.begin(), inputs.end(), 0);
  std::iota(targets.begin(), targets.end(), 0);
  return {from_vector(inputs, {samples, 2}, f32), from_vector(targets, {samples}, i64)};
}

using Order = std::vector<std::vector<int64_t>>;

/// The targets of one epoch, batch by batch.
Order epoch_of(DataLoader& loader) {
  Order order;
  for (const auto& [inputs, targets] : loader) {
    CHECK(inputs.size(0) == targets.size(0));
    CHECK(inputs.at({0, 1}) == 2 * targets.at({0}) + 1);
    order.push_back(targets.to_vector<int64_t>());
  }
  return order;
}

std::vector<int64_t> flat(const Order& order) {
  std::vector<int64_t> all;
  for (const auto& batch : order) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

/// Fails at one sample; counts the requested batches.
struct Failing final : Dataset {
  int64_t bad;
  std::shared_ptr<std::atomic<int>> calls = std::make_shared<std::atomic<int>>(0);

  explicit Failing(int64_t bad_sample) : bad(bad_sample) {}
  int64_t size() const override { return 100; }
  Batch batch(std::span<const int64_t> indices) const override {
    ++*calls;
    if (std::ranges::find(indices, bad) != indices.end())
      fail<FormatError>("Failing", "sample ", bad, " is bad. Leave it out.");
    const Tensor targets = from_span<int64_t>(indices, {int64_t(indices.size())}, i64);
    return {targets, targets};
  }
};
}  // namespace

TEST_CASE("DataLoader delivers every sample once, in order or shuffled") {
  for (const int prefetch : {0, 1, 2, 100}) {
    for (const bool shuffle : {false, true}) {
      DataLoader loader(counting(23), {.batch_size = 5, .shuffle = shuffle, .prefetch = prefetch});
      CHECK(loader.size() == 5);
      const Order order = epoch_of(loader);
      REQUIRE(order.size() == 5);
      CHECK(order[4].size() == 3);
      std::vector<int64_t> all = flat(order), sorted = all;
      std::ranges::sort(sorted);
      std::vector<int64_t> expected(23);
      std::iota(expected.begin(), expected.end(), 0);
      CHECK(sorted == expected);
      CHECK((all == expected) == !shuffle);
    }
  }
}

TEST_CASE("DataLoader can drop a last batch that is not full") {
  DataLoader loader(counting(23), {.batch_size = 5, .drop_last = true});
  CHECK(loader.size() == 4);
  CHECK(epoch_of(loader).size() == 4);
  DataLoader exact(counting(20), {.batch_size = 5, .drop_last = true});
  CHECK(epoch_of(exact).size() == 4);
  DataLoader none(counting(3), {.batch_size = 5, .drop_last = true});
  CHECK(none.size() == 0);
  CHECK(epoch_of(none).empty());
  DataLoader empty_dataset(counting(0), {.batch_size = 5});
  CHECK(empty_dataset.size() == 0);
  CHECK(epoch_of(empty_dataset).empty());
}

TEST_CASE("DataLoader's order depends on seed and epoch only") {
  const auto loader_with = [](int prefetch, uint64_t seed) {
    return DataLoader(counting(50),
                      {.batch_size = 8, .shuffle = true, .prefetch = prefetch, .seed = seed});
  };
  DataLoader one = loader_with(0, 7), two = loader_with(2, 7), other = loader_with(2, 8);
  const Order first = epoch_of(one), second = epoch_of(one);
  CHECK(first != second);
  CHECK(epoch_of(two) == first);
  CHECK(epoch_of(two) == second);
  CHECK(epoch_of(other) != first);

  DataLoader resumed = loader_with(2, 7);
  resumed.set_epoch(1);
  CHECK(epoch_of(resumed) == second);
  resumed.set_epoch(0);
  CHECK(epoch_of(resumed) == first);

  DataLoader small(counting(8), {.shuffle = true,
                                 .seed = 0});  // fixed numbers: the order is part of the interface
  CHECK(flat(epoch_of(small)) == std::vector<int64_t>{3, 5, 1, 6, 7, 4, 2, 0});
}

TEST_CASE("DataLoader without a seed follows manual_seed()") {
  const auto first_order = [](uint64_t seed) {
    manual_seed(seed);
    DataLoader loader(counting(50), {.batch_size = 8, .shuffle = true});
    return epoch_of(loader);
  };
  CHECK(first_order(1) == first_order(1));
  CHECK(first_order(1) != first_order(2));
  // Each loader draws its own seed, which options() returns; reading it again gives the same.
  manual_seed(1);
  const DataLoader one(counting(50), {.batch_size = 8, .shuffle = true}),
      two(counting(50), {.batch_size = 8, .shuffle = true});
  CHECK(one.drew_seed());
  CHECK(one.options().seed.value() != two.options().seed.value());
  CHECK(one.options().seed.value() < uint64_t(1) << 53);
  DataLoader again = one.with_options(one.options());
  CHECK(again.drew_seed());
  CHECK(epoch_of(again) == first_order(1));
  // A given seed is used, and draws nothing.
  manual_seed(1);
  const DataLoader given(counting(50), {.shuffle = true, .seed = 0});
  CHECK_FALSE(given.drew_seed());
  CHECK(given.options().seed == 0);
  CHECK(default_generator().state().offset == 0);
}

TEST_CASE("a const DataLoader is iterated as another, and counts its epochs") {
  const DataLoader loader(counting(20), {.batch_size = 8, .shuffle = true, .seed = 4});
  static_assert(std::ranges::input_range<const DataLoader>);
  std::vector<Order> epochs(2);
  for (Order& epoch : epochs)
    for (const auto& batch : loader) epoch.push_back(batch.targets.to_vector<int64_t>());
  DataLoader same(counting(20), {.batch_size = 8, .shuffle = true, .seed = 4});
  CHECK(epochs[0] == epoch_of(same));
  CHECK(epochs[1] == epoch_of(same));
  CHECK(epochs[0] != epochs[1]);
}

TEST_CASE("DataLoader works as a temporary and with structured bindings") {
  int64_t samples = 0;
  for (auto [inputs, targets] : DataLoader(counting(10), {.batch_size = 4, .shuffle = true})) {
    samples += targets.size(0);
    CHECK(inputs.dtype() == f32);
  }
  CHECK(samples == 10);
  const auto shared = std::make_shared<const TensorDataset>(counting(4));
  CHECK(DataLoader(shared).size() == 4);
}

TEST_CASE("leaving DataLoader's loop early stops the worker") {
  const Failing dataset(-1);
  DataLoader loader(dataset, {.batch_size = 2, .prefetch = 3});
  for (int repeat = 0; repeat < 20; ++repeat) {
    *dataset.calls = 0;
    int seen = 0;
    for (const Batch& batch : loader) {
      CHECK(batch.targets.to_vector<int64_t>() == std::vector<int64_t>{2 * seen, 2 * seen + 1});
      if (++seen == 2) break;
    }
    const int calls = *dataset.calls;  // the worker has been joined
    CHECK(calls <= 2 + 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(*dataset.calls == calls);
  }
}

TEST_CASE("DataLoader's worker runs ahead by `prefetch` batches, no further") {
  const Failing dataset(-1);
  DataLoader loader(dataset, {.batch_size = 1, .prefetch = 3});
  auto iterator = loader.begin();
  for (int wait = 0; wait < 2000 && *dataset.calls < 4; ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(*dataset.calls == 4);  // that of the loop and three waiting
  CHECK(iterator->targets.item() == 0);
}

TEST_CASE("an exception of the dataset comes out of the loop, after the batches before it") {
  for (const int prefetch : {0, 2}) {
    DataLoader loader(Failing(7), {.batch_size = 2, .prefetch = prefetch});
    int seen = 0;
    CHECK(message_of<FormatError>([&] {
            for (const Batch& batch : loader) seen += int(batch.targets.size(0));
          }) == "[Failing] sample 7 is bad. Leave it out.");
    CHECK(seen == 6);
    DataLoader at_once(Failing(0), {.prefetch = prefetch});
    CHECK(contains(message_of<FormatError>([&] { at_once.begin(); }), "sample 0 is bad"));
  }
}

TEST_CASE("DataLoader charges batches to the inputs and frees all memory") {
  for (const int prefetch : {0, 2}) {
    DataLoader loader(counting(64), {.batch_size = 8, .prefetch = prefetch});
    const MemoryReport before = memory_report();
    constexpr int64_t batch_bytes = 8 * (2 * 4 + 8);
    for (auto [inputs, targets] : loader) {
      const int64_t held =
          memory_report().now_of(MemoryUse::input) - before.now_of(MemoryUse::input);
      CHECK(held >= batch_bytes);
      CHECK(held <= (1 + prefetch) * batch_bytes);
      CHECK(inputs.storage()->use() == MemoryUse::input);
    }
    CHECK(memory_report().now == before.now);
  }
}

TEST_CASE("after the first batches DataLoader takes no memory from the system") {
  DataLoader loader(counting(512), {.batch_size = 8, .drop_last = true});
  epoch_of(loader);
  const int64_t before = cache_statistics().system_allocations;
  for (auto [inputs, targets] : loader) CHECK(targets.size(0) == 8);
  CHECK(cache_statistics().system_allocations - before <=
        2 * 2);  // at most: it ran further ahead than before
}

TEST_CASE("DataLoader explains invalid arguments") {
  CHECK(message_of<UsageError>([] { DataLoader(counting(1), {.batch_size = 0}); }) ==
        "[DataLoader] batch_size is 0. Use 1 or more.");
  CHECK(message_of<UsageError>([] { DataLoader(counting(1), {.prefetch = -1}); }) ==
        "[DataLoader] prefetch is -1. Use 0 for no thread, or a number of batches up to 65536.");
  CHECK(message_of<UsageError>([] { DataLoader(std::shared_ptr<const Dataset>()); }) ==
        "[DataLoader] the dataset is a null pointer. Pass a dataset.");
  CHECK(message_of<UsageError>([] { DataLoader(counting(1)).set_epoch(-1); }) ==
        "[DataLoader] epoch is -1. Count epochs from 0.");
}

}  // namespace halftone::test::data_loader_test
