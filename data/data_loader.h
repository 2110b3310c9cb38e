// Datasets, and the loader that makes batches of them.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <halftone/core/random.h>
#include <halftone/core/tensor.h>

namespace halftone::data {

// Datasets, and the random numbers of an epoch.

// Real numbers and permutations from a Generator, for transforms and orders.

/// Returns a random number on [0, 1), with 53 random bits.
inline double uniform(Generator& random) { return double(random.next() >> 11) * 0x1p-53; }
/// Returns a random number from low to high; rounding can make it high.
inline double uniform(Generator& random, double low, double high) {
  return low + (high - low) * uniform(random);
}

/// Shuffles a list; every order is equally likely (Fisher & Yates; Durstenfeld 1964).
template <class List> void shuffle(List& list, Generator& random) {
  for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[random.below(i)]);
}

// A dataset: a number of samples, and a function that collates any of them into a batch. The
// DataLoader chooses the sample numbers and calls batch_in_epoch(), possibly from several threads.

/// Samples that a dataset collated: `auto [images, labels] = dataset.batch(indices);`
struct Batch {
  Tensor inputs, targets;
  /// Further tensors of the samples (a second input, weights of the loss), each along its first
  /// dimension. Structured bindings do not name it.
  std::vector<Tensor> more{};

  /// Takes {inputs, targets}, {inputs} or {first input, others..., targets}; UsageError for {}.
  static Batch of(std::vector<Tensor> tensors);

  template <std::size_t I> const Tensor& get() const& { return I == 0 ? inputs : targets; }
  template <std::size_t I> Tensor& get() & { return I == 0 ? inputs : targets; }
  template <std::size_t I> Tensor&& get() && { return std::move(I == 0 ? inputs : targets); }
};

/// An epoch of a run. With the number of a sample, it is all that the random transforms of that
/// sample may depend on, so that neither threads nor the order of batches change the sample.
struct EpochKey {
  uint64_t seed = 0;
  int64_t epoch = 0;

  /// Returns a separate generator for each (seed, epoch, sample).
  Generator generator_for(int64_t sample) const {
    // Words 2 and 3 of the block whose words 0 and 1 make the order of the epoch.
    const auto of_epoch = Philox::words(seed, ~uint64_t(epoch));
    const auto of_sample =
        Philox::words(uint64_t(of_epoch[2]) << 32 | of_epoch[3], uint64_t(sample));
    return Generator(uint64_t(of_sample[0]) << 32 | of_sample[1]);
  }
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  /// Returns these samples, stacked along a new first dimension: fresh tensors on the CPU. Must be
  /// safe to call from several threads at once. Throws UsageError for a number outside [0, size()).
  virtual Batch batch(std::span<const int64_t> indices) const = 0;
  /// Returns the samples of this epoch; the DataLoader calls this function. A dataset with random
  /// transforms overrides it and draws only from key.generator_for(sample); its batch() is then
  /// this function with the key {}. Other datasets do not override it.
  virtual Batch batch_in_epoch(std::span<const int64_t> indices, const EpochKey& key) const {
    static_cast<void>(key);
    return batch(indices);
  }

 protected:
  Dataset() = default;
  Dataset(const Dataset&) = default;
  Dataset& operator=(const Dataset&) = default;
};

}  // namespace halftone::data

// A batch usually binds as a pair.
template <>
struct std::tuple_size<halftone::data::Batch> : std::integral_constant<std::size_t, 2> {};
template <std::size_t I> struct std::tuple_element<I, halftone::data::Batch> {
  using type = halftone::Tensor;
};

// The simplest dataset: sample i is row i of two tensors.

namespace halftone::data {

class TensorDataset final : public Dataset {
 public:
  /// inputs [n, ...] and targets [n, ...] on the CPU, any dtypes. Shares their storage if they are
  /// row-major, otherwise copies them.
  TensorDataset(const Tensor& inputs, const Tensor& targets);
  /// Takes any number of tensors, in the order of Batch::of(): {inputs, ..., targets}.
  explicit TensorDataset(std::vector<Tensor> tensors);

  int64_t size() const override { return tensors_.front().size(0); }
  Batch batch(std::span<const int64_t> indices) const override;

  const Tensor& inputs() const { return tensors_.front(); }
  const Tensor& targets() const { return tensors_.back(); }

 private:
  std::vector<Tensor> tensors_;  // one or more
};

/// Some samples of another dataset, in any order: torch.utils.data.Subset. Random transforms see
/// the sample numbers of that dataset.
class Subset final : public Dataset {
 public:
  /// Throws UsageError for numbers that the dataset does not have.
  Subset(std::shared_ptr<const Dataset> whole, std::vector<int64_t> numbers);
  template <std::derived_from<Dataset> D>
  Subset(D whole, std::vector<int64_t> numbers)
      : Subset(std::shared_ptr<const Dataset>(std::make_shared<D>(std::move(whole))),
               std::move(numbers)) {}

  int64_t size() const override { return int64_t(numbers_.size()); }
  Batch batch(std::span<const int64_t> indices) const override;
  Batch batch_in_epoch(std::span<const int64_t> indices, const EpochKey& key) const override;

 private:
  std::vector<int64_t> numbers_of(std::span<const int64_t> indices) const;

  std::shared_ptr<const Dataset> whole_;
  std::vector<int64_t> numbers_;
};

/// Returns two disjoint parts by a shuffle with this seed: `fraction` of the samples, rounded down,
/// and the rest. As torch's random_split. Throws UsageError unless 0 <= fraction <= 1.
std::pair<Subset, Subset> random_split(std::shared_ptr<const Dataset> whole, double fraction,
                                       uint64_t seed = 0);
template <std::derived_from<Dataset> D>
std::pair<Subset, Subset> random_split(D whole, double fraction, uint64_t seed = 0) {
  return random_split(std::shared_ptr<const Dataset>(std::make_shared<D>(std::move(whole))),
                      fraction, seed);
}

/// Returns the sample numbers of such a split of `count` samples, for use before the dataset exists
/// (a `Standardizer` of the training rows only). Equal seeds split a dataset of that size alike.
std::pair<std::vector<int64_t>, std::vector<int64_t>> random_split(int64_t count, double fraction,
                                                                   uint64_t seed = 0);

/// Returns rows of a row-major CPU tensor, in the given order, as [indices.size(), ...].
Tensor take_rows(const Tensor& rows, std::span<const int64_t> indices);

/// Joins tensors of one shape and dtype into a new tensor [k, ...], on the CPU. Throws ShapeError
/// in the name of `op` if they differ; numbers[i] names sample i in the message.
Tensor stack_samples(std::string_view op, std::span<const Tensor> samples,
                     std::span<const int64_t> numbers);

// Batches of a dataset in order or shuffled, collated ahead of the training loop by worker threads:
//   for (auto [images, labels] : DataLoader(fashion_mnist(), {.batch_size = 128}))
// An epoch's batches depend only on the dataset, batch_size, shuffle, drop_last, seed and the
// epoch's number, never on threads. A loader without a seed draws one; manual_seed() determines it.

/// The batches of one rank if several processes share each step. A step has `group` consecutive
/// batches of the epoch; of these the rank gets numbers `rank`, `rank + of`, `rank + 2 of`, ...
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
  LoaderShare share{};  // the batches of this rank; size() and resume() count all batches
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
  /// Makes the next begin() continue in the middle of this epoch, after `batches_done` batches,
  /// which are not collated. If all are done, no batch is left. Later epochs are complete. Throws
  /// UsageError for a position that the epoch does not have; then nothing has changed.
  void resume(int64_t epoch, int64_t batches_done);

  /// Starts an epoch: draws its order and starts its workers. Epochs are independent of each other
  /// and of the loader. It also advances a const loader to the next epoch; only one thread at a
  /// time may call it. Throws UsageError if the system cannot create all worker threads; then none
  /// of them is left.
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

/// Walks over one epoch once, and owns it. Early destruction stops each worker after its present
/// batch. If the dataset throws for a batch, begin() or ++ throws that error on reaching the batch.
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
