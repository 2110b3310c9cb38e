// The simplest dataset: sample i is row i of two tensors.
#pragma once

#include <concepts>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/data/dataset.h>

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
