// The simplest dataset: sample i is row i of two tensors.
#pragma once

#include <string_view>

#include <halftone/data/dataset.h>

namespace halftone::data {

class TensorDataset final : public Dataset {
 public:
  /// inputs [n, ...] and targets [n, ...] on the CPU, any dtypes. Shares their storage if they are
  /// row-major, copies them if not.
  TensorDataset(const Tensor& inputs, const Tensor& targets);

  int64_t size() const override { return inputs_.size(0); }
  Batch batch(std::span<const int64_t> indices) const override;

  const Tensor& inputs() const { return inputs_; }
  const Tensor& targets() const { return targets_; }

 private:
  Tensor inputs_, targets_;
};

/// Rows of a row-major CPU tensor, in the given order, as a new tensor [indices.size(), ...].
Tensor take_rows(const Tensor& rows, std::span<const int64_t> indices);

/// Tensors of one shape and dtype as a new tensor [k, ...], on the CPU. Throws ShapeError in the
/// name of `op` if they differ; numbers[i] names sample i in the message.
Tensor stack_samples(std::string_view op, std::span<const Tensor> samples,
                     std::span<const int64_t> numbers);

}  // namespace halftone::data
