// A dataset: a number of samples, and a function that collates any of them into a batch. The
// DataLoader chooses the sample numbers and calls batch(), possibly from its worker thread.
#pragma once

#include <cstdint>
#include <span>

#include <halftone/core/tensor.h>

namespace halftone::data {

/// auto [images, labels] = dataset.batch(indices);
struct Batch {
  Tensor inputs, targets;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  /// These samples, stacked along a new first dimension: fresh tensors on the CPU. Must be safe to
  /// call from several threads at once. Throws UsageError for a number outside [0, size()).
  virtual Batch batch(std::span<const int64_t> indices) const = 0;

 protected:
  Dataset() = default;
  Dataset(const Dataset&) = default;
  Dataset& operator=(const Dataset&) = default;
};

}  // namespace halftone::data
