// The slot that keeps running statistics equal on several processes. While it is filled, batch norm
// passes its measured statistics to it instead of updating its running statistics. They are updated
// later, in the order of the batches. Per thread, like the caster's slot.
#pragma once

#include <utility>

#include <halftone/core/language.h>
#include <halftone/core/tensor.h>

namespace halftone {

/// The statistics that a batch norm measured on one batch.
struct BatchStatistics {
  Tensor running_mean, running_var;  // the buffers to update
  Tensor mean, variance;             // the batch's values, in statistics_dtype(); unbiased
  double momentum = 0;
};

/// Returns the dtype of a batch's statistics: f32 for short running ones, so that a variance beyond
/// f16's range is rounded only after the momentum is applied.
inline DType statistics_dtype(const Tensor& running) { return running.dtype() == f64 ? f64 : f32; }

class StatisticsSink {
 public:
  virtual ~StatisticsSink() = default;
  virtual void measured(const BatchStatistics& batch) = 0;
  /// Reports that a layer has seen a batch: `batches`, an i64 scalar on the host, must count it.
  virtual void counted(const Tensor& batches) = 0;
  /// Returns whether statistics are dropped, so that no layer needs to know their weight.
  virtual bool drops() const { return false; }
};

/// Drops statistics: for passes that repeat another pass.
struct NoStatistics final : StatisticsSink {
  void measured(const BatchStatistics&) override {}
  void counted(const Tensor&) override {}
  bool drops() const override { return true; }
};

using StatisticsSlot = Slot<StatisticsSink*>;
using StatisticsScope = StatisticsSlot::Scope;
inline StatisticsSink* active_statistics_sink() { return StatisticsSlot::current(); }

/// Updates running statistics with one batch, as batch norm does: r += momentum (x - r).
void move_running_statistics(const BatchStatistics& batch);

}  // namespace halftone
