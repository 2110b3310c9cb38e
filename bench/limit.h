// The least time that a training step could take on a machine: its arithmetic at the machine's
// rate, plus its memory traffic at the machine's bandwidth. It is not a lower bound (a cache can
// save traffic between two passes, and both can overlap), but it means the same on every machine.
// docs/performance.md lists its terms.
#pragma once

#include <map>

#include <halftone/amp/training.h>
#include <halftone/lab/workload_data.h>

#include "machine.h"

namespace halftone::bench {

/// The arithmetic and the traffic that a step needs at least.
struct StepNeeds {
  std::map<DType, double> gflop;  // of products, by the dtype they multiply
  double bytes = 0;               // each byte read or written, counted once
};

/// Runs one step of the training under observation. Bytes: the update reads and writes parameters,
/// all tensors stored with them, and the optimizer's state. Gradients are written and read. Forward
/// and backward each read the weights. Tensors kept from forward to backward are written and read.
/// Inputs are read twice.
StepNeeds needs_of_step(lab::SyntheticWorkload& work, amp::Training& training);

struct Limit {
  double arithmetic_ms = 0, memory_ms = 0;
  double ms() const { return arithmetic_ms + memory_ms; }
};
Limit limit_on(const Machine& machine, const StepNeeds& needs);

}  // namespace halftone::bench
