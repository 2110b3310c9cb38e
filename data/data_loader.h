// Batches of a dataset in order or shuffled, collated ahead of the training loop by worker threads:
//   for (auto [images, labels] : DataLoader(fashion_mnist(), {.batch_size = 128}))
// An epoch's batches depend only on the dataset, batch_size, shuffle, drop_last, seed and the
// epoch's number, never on threads. A loader without a seed draws one; manual_seed() determines it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include <halftone/data/dataset.h>

namespace halftone::data {

/// One rank's batches in steps that several processes share: in each `group` of batches (counted
/// from the epoch's first) those with number rank, rank + of, rank + 2 of, ...
struct LoaderShare {
  int64_t rank = 0, of = 1;
  int64_t group = 1;  // batches of a step, at least `of`

  bool operator==(const LoaderShare&) const = default;
};

struct DataLoaderOptions {
  int64_t batch_size = 1;
  bool shuffle = false;
  bool drop_last = false;  // leave out a last batch that is not full
  int workers = 1;         // threads that collate; 0: the loop collates
  int prefetch = 2;        // batches collated ahead per worker; 0: the loop collates
  /// Seeds the shuffles and the dataset's random transforms. If absent, the constructor of the
  /// loader draws a seed from the default generator, so it follows manual_seed(); options() then
  /// returns it.
  std::optional<uint64_t> seed{};
  Device device{};      // where batches go; copies to a GPU overlap with the loop
  LoaderShare share{};  // which batches; size() and resume() count all of them
};

class DataLoader {
 public:
  class Iterator;

  explicit DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options = {});
  /// Stores the dataset, so a temporary can be passed.
  template <std::derived_from<Dataset> D>
  explicit DataLoader(D dataset, DataLoaderOptions options = {})
      : DataLoader(std::shared_ptr<const Dataset>(std::make_shared<D>(std::move(dataset))),
                   options) {}

  /// Returns the number of batches in an epoch. Throws UsageError for a dataset of negative size.
  int64_t size() const;
  const Dataset& dataset() const { return *dataset_; }
  const DataLoaderOptions& options() const { return options_; }
  /// Returns whether the constructor drew options().seed.
  bool drew_seed() const { return drew_seed_; }
  /// Returns a loader of the same dataset with other options, at its first epoch.
  DataLoader with_options(DataLoaderOptions options) const;
  /// Sets the number of the epoch that the next begin() starts; begin() counts on from there. Use
  /// it to resume a training.
  void set_epoch(int64_t epoch);
  /// Makes the next begin() continue in the middle of this epoch, as if `batches_done` batches had
  /// been delivered; they are not collated. If all are done, no batch is left. Later epochs are
  /// complete. Throws UsageError for a position that the epoch does not have; then nothing has
  /// changed.
  void resume(int64_t epoch, int64_t batches_done);

  /// Starts an epoch: draws its order and starts its workers. Epochs are independent of each other
  /// and of the loader. It also advances a const loader to the next epoch; only one thread at a
  /// time may call it. Throws UsageError if the system cannot create all of these threads; then
  /// none of them is left.
  Iterator begin() const;
  std::default_sentinel_t end() const { return {}; }

 private:
  class Epoch;

  std::shared_ptr<const Dataset> dataset_;
  DataLoaderOptions options_;
  bool drew_seed_ = false;
  mutable int64_t epoch_ = 0;
  mutable int64_t batches_done_ = 0;  // of the epoch that the next begin() starts
};

/// Single-pass: walks over one epoch and owns it. Early destruction stops each worker after its
/// present batch. begin() or ++ throws an exception of the dataset at the position of its batch.
class DataLoader::Iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;

  explicit Iterator(std::unique_ptr<Epoch> epoch);
  Iterator(Iterator&&) noexcept;
  Iterator& operator=(Iterator&&) noexcept;
  ~Iterator();

  const Batch& operator*() const { return batch_; }
  const Batch* operator->() const { return &batch_; }
  /// Moves to the next batch, or the end. Throws UsageError at the end.
  Iterator& operator++();
  void operator++(int) { ++*this; }
  bool operator==(std::default_sentinel_t) const { return epoch_ == nullptr; }

 private:
  std::unique_ptr<Epoch> epoch_;  // null after the last batch
  Batch batch_;
};

// The threads that collate for a loader: creates all of them, or throws and leaves none.

/// Starts a thread that runs a function; throws std::system_error if the system refuses.
using ThreadMaker = std::function<std::jthread(std::function<void()>)>;
/// The default maker: std::jthread.
std::jthread make_thread(std::function<void()> run);

/// Makes `count` threads that run `work`, which returns soon after `stop` is requested. If the
/// system refuses one, the existing threads are stopped and joined, and a UsageError in the name of
/// DataLoader says how many could be made. `make`: another maker, for tests.
std::vector<std::jthread> make_workers(int64_t count, const std::function<void()>& work,
                                       std::stop_source& stop,
                                       const ThreadMaker& make = make_thread);

}  // namespace halftone::data
