// The slot of whoever keeps running statistics alike on several processes: while it is filled,
// batch norm hands over what it measured in the place of moving its running statistics, and they
// move later, in the order of the batches. Per thread, as the caster's.
#pragma once

#include <utility>

#include <halftone/core/tensor.h>
#include <halftone/core/thread_slot.h>

namespace halftone {

/// What a batch norm measured on one batch.
struct BatchStatistics {
  Tensor running_mean, running_var;  // the buffers that are to move
  Tensor mean, variance;             // towards these, in statistics_dtype(); unbiased
  double momentum = 0;
};

/// The dtype of a batch's statistics: f32 for short running ones, so that a variance beyond f16's
/// range is rounded only after the momentum.
inline DType statistics_dtype(const Tensor& running) { return running.dtype() == f64 ? f64 : f32; }

class StatisticsSink {
 public:
  virtual ~StatisticsSink() = default;
  virtual void measured(const BatchStatistics& batch) = 0;
  /// A layer has seen a batch: `batches`, an i64 scalar on the host, is to count it.
  virtual void counted(const Tensor& batches) = 0;
};

using StatisticsSlot = Slot<StatisticsSink*>;
using StatisticsScope = StatisticsSlot::Scope;
inline StatisticsSink* active_statistics_sink() { return StatisticsSlot::current(); }

/// Moves running statistics by one batch, as batch norm does: r += momentum (x - r).
void move_running_statistics(const BatchStatistics& batch);

}  // namespace halftone
