// Datasets, and the random numbers of an epoch.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <halftone/core/random.h>
#include <halftone/core/tensor.h>

namespace halftone::data {

// Real numbers and permutations from a Generator, for transforms and orders.

/// Returns a number on [0, 1), with 53 random bits.
inline double uniform(Generator& random) { return double(random.next() >> 11) * 0x1p-53; }
/// Returns a number on [low, high).
inline double uniform(Generator& random, double low, double high) {
  return low + (high - low) * uniform(random);
}

/// Shuffles; every order is equally likely (Fisher & Yates; Durstenfeld 1964).
template <class List> void shuffle(List& list, Generator& random) {
  for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[random.below(i)]);
}

// A dataset: a number of samples, and a function that collates any of them into a batch. The
// DataLoader chooses the sample numbers and calls batch_in_epoch(), possibly from several threads.

/// auto [images, labels] = dataset.batch(indices);
struct Batch {
  Tensor inputs, targets;
  /// Further tensors of the samples (a second input, weights of the loss), each along its first
  /// dimension. Structured bindings do not name it.
  std::vector<Tensor> more{};

  /// {inputs, targets}, {inputs} or {first input, others..., targets}; throws UsageError for none.
  static Batch of(std::vector<Tensor> tensors);

  template <std::size_t I> const Tensor& get() const& { return I == 0 ? inputs : targets; }
  template <std::size_t I> Tensor& get() & { return I == 0 ? inputs : targets; }
  template <std::size_t I> Tensor&& get() && { return std::move(I == 0 ? inputs : targets); }
};

/// An epoch of a run. With the number of a sample, it is all that the random transforms of
/// that sample may depend on, so that neither threads nor the order of batches change the
/// sample.
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

/// The same for the numbers 0 to count - 1, if the split is needed before the dataset exists: a
/// `Standardizer` of the training rows only. Equal seeds split a dataset of that size alike.
std::pair<std::vector<int64_t>, std::vector<int64_t>> random_split(int64_t count, double fraction,
                                                                   uint64_t seed = 0);

/// Returns rows of a row-major CPU tensor, in the given order, as [indices.size(), ...].
Tensor take_rows(const Tensor& rows, std::span<const int64_t> indices);

/// Joins tensors of one shape and dtype into a new tensor [k, ...], on the CPU. Throws ShapeError
/// in the name of `op` if they differ; numbers[i] names sample i in the message.
Tensor stack_samples(std::string_view op, std::span<const Tensor> samples,
                     std::span<const int64_t> numbers);

}  // namespace halftone::data
