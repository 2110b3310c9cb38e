// A dataset: a number of samples, and a function that collates any of them into a batch. The
// DataLoader chooses the sample numbers and calls batch_in_epoch(), possibly from several threads.
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <halftone/core/random.h>
#include <halftone/core/tensor.h>

namespace halftone::data {

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
