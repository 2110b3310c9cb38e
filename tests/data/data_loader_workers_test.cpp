// Several workers: the same batches as without workers, exceptions at their batches, early ends,
// and at most the promised number of batches in memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <system_error>
#include <thread>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/data/data_loader.h>

#include "../support.h"

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
      CHECK(message_of<FormatError>([&] {
              for (const Batch& batch : loader) seen += batch.targets.size(0);
            }) == "[Noise] sample " + std::to_string(bad) + " is bad. Leave it out.");
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
    for (int repeat = 0; repeat < 3; ++repeat)
      CHECK(!message_of<FormatError>([&] { ++iterator; }).empty());
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
    CHECK(message_of<UsageError>([&] { DataLoader(Noise(), {.workers = workers}); }) ==
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
    CHECK(message_of<UsageError>([&] { data::make_workers(3, wait, stop, make); })
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
    CHECK(contains(message_of<UsageError>([&] { ++iterator; }),
                   "[DataLoader] ++ after the last batch"));
  }
}

}  // namespace halftone::test::data_loader_workers_test
