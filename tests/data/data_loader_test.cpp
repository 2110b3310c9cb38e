// DataLoader: order, completeness, the worker (early break, exceptions, memory),
// resuming.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <ranges>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

#include <unistd.h>

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <halftone/halftone.h>

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
    CHECK(MESSAGE_OF(FormatError, for (const Batch& batch
                                       : loader) seen += int(batch.targets.size(0))) ==
          "[Failing] sample 7 is bad. Leave it out.");
    CHECK(seen == 6);
    DataLoader at_once(Failing(0), {.prefetch = prefetch});
    CHECK(contains(MESSAGE_OF(FormatError, at_once.begin()), "sample 0 is bad"));
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
  CHECK(MESSAGE_OF(UsageError, DataLoader(counting(1), {.batch_size = 0})) ==
        "[DataLoader] batch_size is 0. Use 1 or more.");
  CHECK(MESSAGE_OF(UsageError, DataLoader(counting(1), {.prefetch = -1})) ==
        "[DataLoader] prefetch is -1. Use 0 for no thread, or a number of batches up to 65536.");
  CHECK(MESSAGE_OF(UsageError, DataLoader(std::shared_ptr<const Dataset>())) ==
        "[DataLoader] the dataset is a null pointer. Pass a dataset.");
  CHECK(MESSAGE_OF(UsageError, DataLoader(counting(1)).set_epoch(-1)) ==
        "[DataLoader] epoch is -1. Count epochs from 0.");
}

}  // namespace halftone::test::data_loader_test

// A loader that resumes in the middle of an epoch: it gives the batches of a full epoch, and does
// not collate the skipped ones.

namespace halftone::test::data_loader_resume_test {

using data::Batch, data::DataLoader, data::DataLoaderOptions, data::Dataset, data::EpochKey;

namespace {
/// Sample numbers as targets, numbers drawn from (seed, epoch, sample) as inputs; counts calls.
struct Counted final : Dataset {
  std::shared_ptr<std::atomic<int>> calls = std::make_shared<std::atomic<int>>(0);

  int64_t size() const override { return 43; }
  Batch batch(std::span<const int64_t> indices) const override {
    return batch_in_epoch(indices, {});
  }
  Batch batch_in_epoch(std::span<const int64_t> indices, const EpochKey& key) const override {
    ++*calls;
    std::vector<double> numbers;
    for (const int64_t sample : indices) {
      const auto words = Philox::words(key.seed + 1000 * uint64_t(key.epoch), uint64_t(sample));
      numbers.push_back(double(words[0]));
    }
    const Shape shape{int64_t(indices.size())};
    return {from_vector(numbers, shape, f64), from_span<int64_t>(indices, shape, i64)};
  }
};

struct Seen {
  std::vector<double> inputs;
  std::vector<int64_t> targets;
  bool operator==(const Seen&) const = default;
};

std::vector<Seen> walk(DataLoader& loader) {
  std::vector<Seen> seen;
  for (const auto& [inputs, targets] : loader)
    seen.push_back({inputs.to_vector<double>(), targets.to_vector<int64_t>()});
  return seen;
}
}  // namespace

TEST_CASE("DataLoader.resume: the batches of a full epoch, none of the skipped collated") {
  for (const int workers : {0, 1, 3}) {
    for (const bool shuffle : {false, true}) {
      for (const bool drop_last : {false, true}) {
        const DataLoaderOptions options{.batch_size = 5,
                                        .shuffle = shuffle,
                                        .drop_last = drop_last,
                                        .workers = workers,
                                        .seed = 7};
        DataLoader whole(Counted(), options);
        walk(whole), walk(whole);
        const std::vector<Seen> third = walk(whole), fourth = walk(whole);
        for (int64_t done = 0; done <= whole.size(); ++done) {
          CAPTURE(workers);
          CAPTURE(done);
          const Counted dataset;
          DataLoader loader(dataset, options);
          loader.resume(2, done);
          const std::vector<Seen> rest = walk(loader);
          CHECK(rest == std::vector<Seen>(third.begin() + done, third.end()));
          CHECK(*dataset.calls == whole.size() - done);
          CHECK(walk(loader) == fourth);  // later epochs are whole
        }
      }
    }
  }
}

TEST_CASE("DataLoader.resume refuses positions that the epoch does not have") {
  DataLoader loader(Counted(), {.batch_size = 5, .shuffle = true});
  const std::vector<Seen> first = walk(loader);
  loader.resume(0, 4);
  CHECK(MESSAGE_OF(UsageError, loader.resume(1, 10)) ==
        "[DataLoader] batches_done is 10 of an epoch of 9. Resume with the dataset, batch_size and "
        "drop_last that the position was counted with.");
  CHECK(contains(MESSAGE_OF(UsageError, loader.resume(1, -1)), "batches_done is -1"));
  CHECK(contains(MESSAGE_OF(UsageError, loader.resume(-1, 2)), "epoch is -1"));
  CHECK(walk(loader) == std::vector<Seen>(first.begin() + 4, first.end()));
  loader.resume(3, 4);
  loader.set_epoch(0);  // forgets the position
  CHECK(walk(loader) == first);
}

}  // namespace halftone::test::data_loader_resume_test

// Shares of a loader: each rank's batches, by number, and all of them together.

namespace halftone::test::data_loader_share_test {
namespace {

using data::DataLoader;
using data::DataLoaderOptions;
using data::LoaderShare;

constexpr int64_t samples = 39, batch_size = 2, batches = 20;

std::vector<double> firsts_of(DataLoader loader, int64_t done = 0) {
  loader.resume(1, done);
  std::vector<double> firsts;
  for (const data::Batch& batch : loader) firsts.push_back(batch.inputs.at({0, 0}));
  return firsts;
}

TEST_CASE("DataLoader: shares are the batches of the whole, by their number in the group") {
  const data::TensorDataset dataset(cast(reshape(arange(samples), {samples, 1}), f32),
                                    zeros({samples}, i64));
  for (const int workers : {0, 2}) {
    DataLoaderOptions options{
        .batch_size = batch_size, .shuffle = true, .workers = workers, .seed = 4};
    const DataLoader whole(dataset, options);
    REQUIRE(whole.size() == batches);
    const std::vector<double> all = firsts_of(whole);
    for (const auto& [of, group] :
         {std::pair<int64_t, int64_t>{1, 1}, {2, 2}, {3, 3}, {2, 6}, {4, 7}, {3, 20}, {5, 50}})
      for (int64_t rank = 0; rank < of; ++rank)
        for (const int64_t done : {int64_t(0), group, 2 * group, batches}) {
          if (done > batches) continue;
          CAPTURE(of);
          CAPTURE(group);
          CAPTURE(rank);
          CAPTURE(done);
          options.share = {.rank = rank, .of = of, .group = group};
          const DataLoader own = whole.with_options(options);
          CHECK(own.size() == batches);
          std::vector<double> expected;
          for (int64_t j = done; j < batches; ++j)
            if (j % group % of == rank) expected.push_back(all[std::size_t(j)]);
          CHECK(firsts_of(own, done) == expected);
        }
  }
}

TEST_CASE("DataLoader: shares that do not exist") {
  const auto refused = [](const LoaderShare& share) {
    return MESSAGE_OF(UsageError, DataLoader(data::TensorDataset(zeros({4, 1}), zeros({4}, i64)),
                                             {.batch_size = 1, .share = share}));
  };
  CHECK(refused({.rank = 2, .of = 2, .group = 2}) ==
        "[DataLoader] the share is {rank 2, of 2, group 2}. Use ranks from 0 to of - 1, and groups "
        "of at least one batch for each.");
  CHECK(refused({.rank = 0, .of = 2, .group = 1}).starts_with("[DataLoader] the share is"));
  CHECK(refused({.rank = -1}).starts_with("[DataLoader] the share is"));
}

}  // namespace
}  // namespace halftone::test::data_loader_share_test

// Several workers: the same batches as without workers, exceptions at their batches, early ends,
// and at most the promised number of batches in memory.

namespace halftone::test::data_loader_workers_test {

using data::Batch, data::DataLoader, data::Dataset, data::EpochKey;

namespace {
/// Random numbers as inputs, sample numbers as targets; slow at some samples, so that workers
/// overtake each other.
struct Noise final : Dataset {
  struct Calls {
    std::atomic<int> batches{0};
    std::atomic<int> now{0}, most{0};
  };
  int64_t bad = -1;
  std::shared_ptr<Calls> calls = std::make_shared<Calls>();

  int64_t size() const override { return 61; }
  Batch batch(std::span<const int64_t> indices) const override {
    return batch_in_epoch(indices, {});
  }
  Batch batch_in_epoch(std::span<const int64_t> indices, const EpochKey& key) const override {
    const int now = ++calls->now;
    for (int most = calls->most; now > most && !calls->most.compare_exchange_weak(most, now);) {}
    ++calls->batches;
    if (indices[0] % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const Tensor inputs = empty({int64_t(indices.size())}, i64);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] == bad) {
        --calls->now;
        fail<FormatError>("Noise", "sample ", bad, " is bad. Leave it out.");
      }
      Generator random = key.generator_for(indices[i]);
      inputs.data<int64_t>()[i] = int64_t(random.next() >> 1);
    }
    --calls->now;
    return {inputs, from_span<int64_t>(indices, {int64_t(indices.size())}, i64)};
  }
};

using Values = std::vector<std::vector<int64_t>>;

Values epoch_of(DataLoader& loader) {
  Values values;
  for (const auto& [inputs, targets] : loader) {
    values.push_back(inputs.to_vector<int64_t>());
    values.push_back(targets.to_vector<int64_t>());
  }
  return values;
}
}  // namespace

TEST_CASE("batches do not depend on the number of workers") {
  DataLoader plain(Noise(), {.batch_size = 4, .shuffle = true, .workers = 0, .seed = 5});
  const Values first = epoch_of(plain), second = epoch_of(plain);
  CHECK(first.size() == 2 * 16);
  CHECK(first != second);
  for (const int workers : {1, 2, 4, 40})
    for (const int prefetch : {0, 1, 3}) {
      CAPTURE(workers);
      CAPTURE(prefetch);
      DataLoader loader(
          Noise(),
          {.batch_size = 4, .shuffle = true, .workers = workers, .prefetch = prefetch, .seed = 5});
      CHECK(epoch_of(loader) == first);
      CHECK(epoch_of(loader) == second);
    }
}

TEST_CASE("the content of a random sample depends on seed, epoch and sample") {
  const auto value = [](uint64_t seed, int64_t epoch, int64_t sample) {
    return EpochKey{seed, epoch}.generator_for(sample).next();
  };
  CHECK(value(1, 2, 3) == value(1, 2, 3));
  std::set<uint64_t> values;
  for (uint64_t seed = 0; seed < 4; ++seed)
    for (int64_t epoch = 0; epoch < 4; ++epoch)
      for (int64_t sample = 0; sample < 64; ++sample) values.insert(value(seed, epoch, sample));
  CHECK(values.size() == 4 * 4 * 64);
  CHECK(value(0, 0, 0) == 9999804923671263865u);  // a fixed number: it is part of the interface

  // A sample is the same in every order and every batch.
  DataLoader rows(Noise(), {.batch_size = 1, .workers = 0, .seed = 9});
  DataLoader shuffled(Noise(), {.batch_size = 7, .shuffle = true, .workers = 0, .seed = 9});
  std::vector<std::pair<int64_t, int64_t>> one, other;
  for (DataLoader* loader : {&rows, &shuffled})
    for (const auto& [inputs, targets] : *loader)
      for (int64_t i = 0; i < targets.size(0); ++i)
        (loader == &rows ? one : other)
            .emplace_back(targets.data<int64_t>()[i], inputs.data<int64_t>()[i]);
  std::ranges::sort(other);
  CHECK(one == other);
}

TEST_CASE("workers collate at the same time") {
  const Noise dataset;
  DataLoader loader(dataset, {.batch_size = 1, .workers = 4});
  epoch_of(loader);
  CHECK(dataset.calls->most > 1);
  CHECK(dataset.calls->most <= 4);
  CHECK(dataset.calls->batches == 61);
}

TEST_CASE("an exception comes out at its batch, in any order of workers") {
  for (const int workers : {0, 1, 2, 4}) {
    for (const int64_t bad : {0, 7, 60}) {
      CAPTURE(workers);
      Noise dataset;
      dataset.bad = bad;
      DataLoader loader(dataset, {.batch_size = 2, .workers = workers, .prefetch = 3});
      int64_t seen = 0;
      CHECK(MESSAGE_OF(FormatError, for (const Batch& batch
                                         : loader) seen += batch.targets.size(0)) ==
            "[Noise] sample " + std::to_string(bad) + " is bad. Leave it out.");
      CHECK(seen == bad / 2 * 2);
    }
  }
}

TEST_CASE("an iterator that threw throws again") {
  Noise dataset;
  dataset.bad = 4;
  for (const int workers : {0, 3}) {
    DataLoader loader(dataset, {.batch_size = 2, .workers = workers});
    auto iterator = loader.begin();
    ++iterator;
    for (int repeat = 0; repeat < 3; ++repeat) CHECK(!MESSAGE_OF(FormatError, ++iterator).empty());
  }
}

TEST_CASE("an early end stops all workers") {
  for (int repeat = 0; repeat < 20; ++repeat) {
    const Noise dataset;
    {
      DataLoader loader(dataset, {.batch_size = 1, .workers = 4, .prefetch = 2});
      auto iterator = loader.begin();
      for (int i = 0; i < repeat; ++i) ++iterator;
    }
    const int calls = dataset.calls->batches;
    CHECK(calls <= 1 + repeat + 4 * 2);
    CHECK(dataset.calls->now == 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(dataset.calls->batches == calls);
  }
}

TEST_CASE("workers run ahead by prefetch batches each, no further") {
  const Noise dataset;
  const MemoryReport before = memory_report();
  {
    DataLoader loader(dataset, {.batch_size = 2, .workers = 3, .prefetch = 2});
    auto iterator = loader.begin();
    for (int wait = 0; wait < 2000 && dataset.calls->batches < 7; ++wait)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(dataset.calls->batches == 7);
    CHECK(memory_report().now_of(MemoryUse::input) - before.now_of(MemoryUse::input) ==
          7 * 2 * 2 * 8);
    CHECK(iterator->inputs.storage()->use() == MemoryUse::input);
  }
  CHECK(memory_report().now == before.now);
}

TEST_CASE("an iterator outlives the loader and moves") {
  std::optional<DataLoader::Iterator> iterator;
  {
    DataLoader loader(Noise(), {.batch_size = 8, .workers = 2});
    iterator = loader.begin();
  }
  DataLoader::Iterator moved = std::move(*iterator);
  int64_t samples = 0;
  for (; moved != std::default_sentinel; ++moved) samples += moved->targets.size(0);
  CHECK(samples == 61);
}

TEST_CASE("DataLoader explains an invalid number of workers") {
  for (const int workers : {-1, 1025})
    CHECK(MESSAGE_OF(UsageError, DataLoader(Noise(), {.workers = workers})) ==
          "[DataLoader] workers is " + std::to_string(workers) +
              ". Use 0 for no thread, or a number of threads up to 1024.");
}

TEST_CASE(
    "if not all workers can be made, the others are stopped, and the error says how many there "
    "were") {
  std::stop_source stop;
  std::atomic<int> running{0};
  const auto wait = [&] {
    ++running;
    std::mutex mutex;
    std::condition_variable_any never;
    std::unique_lock lock(mutex);
    never.wait(lock, stop.get_token(), [] { return false; });
    --running;
  };
  for (const int possible : {0, 1, 2}) {
    CAPTURE(possible);
    stop = std::stop_source();
    int made = 0;
    const auto make = [&](std::function<void()> run) {
      if (made == possible)
        throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
      ++made;
      return data::make_thread(std::move(run));
    };
    CHECK(MESSAGE_OF(UsageError, data::make_workers(3, wait, stop, make))
              .starts_with("[DataLoader] the system made " + std::to_string(possible) +
                           " of 3 worker threads: "));
    CHECK(running == 0);
  }
}

TEST_CASE("a DataLoader says that the system makes no more threads") {
  const rlim_t most = 2;  // of the user, with the process itself
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // it used to wait forever
    const rlimit limit{most, most};
    // Root has no limits, and other users may have processes: use a separate user, if possible.
    const bool alone = geteuid() == 0 && setuid(54321) == 0;
    if (setrlimit(RLIMIT_NPROC, &limit) != 0) _exit(3);
    DataLoader loader(Noise(), {.batch_size = 8, .workers = 4});
    try {
      loader.begin();
    } catch (const UsageError& error) {
      const std::string_view made =
          alone ? " made 1 of 4 worker threads: " : " of 4 worker threads: ";
      _exit(contains(error.what(), made) ? 0 : 2);
    }
    _exit(1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("an iterator at its end refuses to continue") {
  for (const int workers : {0, 2}) {
    DataLoader loader(Noise(), {.batch_size = 61, .workers = workers});
    DataLoader::Iterator iterator = loader.begin();
    ++iterator;
    CHECK(iterator == std::default_sentinel);
    CHECK(contains(MESSAGE_OF(UsageError, ++iterator), "[DataLoader] ++ after the last batch"));
  }
}

}  // namespace halftone::test::data_loader_workers_test

// TensorDataset and ByteImages: the content of a batch, and refusals of the constructors.

namespace halftone::test::tensor_dataset_test {

using data::Batch, data::ByteImages, data::TensorDataset;

TEST_CASE("TensorDataset collates rows in the requested order") {
  const TensorDataset dataset(from({{1.0, 2}, {3, 4}, {5, 6}}), from({10, 20, 30}, i64));
  CHECK(dataset.size() == 3);
  const std::vector<int64_t> indices{2, 0, 2};
  const auto [x, y] = dataset.batch(indices);
  CHECK(x.shape() == Shape{3, 2});
  CHECK(x.to_vector<float>() == std::vector<float>{5, 6, 1, 2, 5, 6});
  CHECK(y.dtype() == i64);
  CHECK(y.to_vector<int64_t>() == std::vector<int64_t>{30, 10, 30});
  CHECK(dataset.batch({}).inputs.shape() == Shape{0, 2});
}

TEST_CASE("TensorDataset accepts strided tensors and every dtype") {
  const Tensor x = views::transpose(from({{1, 2, 3}, {4, 5, 6}}, bf16), 0, 1);  // [3, 2]
  const TensorDataset dataset(x, ones({3}, boolean));
  const std::vector<int64_t> indices{1};
  const Batch batch = dataset.batch(indices);
  CHECK(batch.inputs.dtype() == bf16);
  CHECK(batch.inputs.to_vector<float>() == std::vector<float>{2, 5});
  CHECK(batch.targets.dtype() == boolean);
}

TEST_CASE("TensorDataset explains invalid arguments") {
  CHECK(MESSAGE_OF(ShapeError, TensorDataset(zeros({3, 2}), zeros({4}, i64))) ==
        "[TensorDataset] numbers of samples differ: inputs are [3, 2] f32, targets are [4] i64; "
        "inputs.size(0) must "
        "equal targets.size(0).");
  CHECK(MESSAGE_OF(ShapeError, TensorDataset(scalar(1), zeros({1}))) ==
        "[TensorDataset] inputs have no first dimension: they must be [samples, ...]. Pass a "
        "tensor of rank 1 or "
        "more.");
  CHECK(contains(MESSAGE_OF(ShapeError, TensorDataset(zeros({1}), Tensor())),
                 "targets have no first"));
  for (const int64_t index : {int64_t(-1), int64_t(3), INT64_MAX}) {
    const TensorDataset dataset(zeros({3, 2}), zeros({3}));
    CHECK(MESSAGE_OF(UsageError, dataset.batch({&index, 1})) ==
          "[Dataset] there is no sample " + std::to_string(index) +
              ": the dataset has 3. Number samples from 0 to size() - 1.");
  }
}

TEST_CASE("ByteImages normalizes per channel") {
  // Two images of two channels, 1 x 2 pixels.
  const Tensor images = from_vector<uint8_t>({0, 255, 51, 102, 1, 2, 3, 4}, {2, 2, 1, 2}, u8);
  const ByteImages dataset(images, from({1, 0}, i64),
                           {.mean = {0.5, 0}, .std = {0.25, 2}, .class_names = {"a", "b"}});
  const std::vector<int64_t> indices{0};
  const auto [x, y] = dataset.batch(indices);
  CHECK(x.shape() == Shape{1, 2, 1, 2});
  CHECK(x.to_vector<float>() ==
        std::vector<float>{-2.0f, 2.0f, (51 / 255.0f) / 2, (102 / 255.0f) / 2});
  CHECK(y.to_vector<int64_t>() == std::vector<int64_t>{1});

  const ByteImages plain(images, from({1, 0}, i64));
  CHECK(plain.batch(indices).inputs.to_vector<float>()[1] == 1.0f);
}

TEST_CASE("ByteImages explains invalid arguments") {
  const Tensor images = zeros({2, 1, 4, 4}, u8), labels = zeros({2}, i64);
  CHECK(contains(MESSAGE_OF(ShapeError, ByteImages(zeros({2, 1, 4, 4}), labels)),
                 "[ByteImages] images and labels do not fit: images are [2, 1, 4, 4] f32, labels "
                 "are [2] i64"));
  CHECK(
      contains(MESSAGE_OF(ShapeError, ByteImages(images, zeros({3}, i64))), "labels are [3] i64"));
  CHECK(contains(MESSAGE_OF(ShapeError, ByteImages(images, Tensor())), "undefined"));
  CHECK(MESSAGE_OF(UsageError, ByteImages(images, labels, {.mean = {1, 2, 3}})) ==
        "[ByteImages] 3 values of mean for images of 1 channels. Give one value per channel.");
  CHECK(contains(MESSAGE_OF(UsageError, ByteImages(images, labels, {.std = {0}})),
                 "cannot normalize channel 0: mean is 0, std is 0"));
  CHECK(
      MESSAGE_OF(UsageError, ByteImages(images, from({0, 2}, i64), {.class_names = {"a", "b"}})) ==
      "[ByteImages] label out of range: sample 1 has label 2 of 2 classes. Number classes from 0.");
}

}  // namespace halftone::test::tensor_dataset_test
