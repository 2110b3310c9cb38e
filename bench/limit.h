// The least time a training step could take on a machine: its arithmetic at the machine's rate, and
// what must move through memory at the machine's bandwidth, one after the other. Not a proof (what
// a cache keeps between two passes moves less, and both can overlap), but a measure that means the
// same on every machine; docs/performance.md says of what it consists.
#pragma once

#include <map>

#include <halftone/amp/training.h>
#include <halftone/lab/workloads/synthetic.h>

#include "machine.h"

namespace halftone::bench {

/// What a step cannot do without.
struct StepNeeds {
  std::map<DType, double> gflop;  // of products, by the dtype they multiply
  double bytes = 0;               // read and written, each once
};

/// Runs one step of the training, watched. Bytes: parameters, all that is kept of them, and the
/// optimizer's state are read and written by the update; gradients are written and read; weights
/// are read by forward and by backward; what forward keeps for backward is written and read; inputs
/// are read twice.
StepNeeds needs_of_step(lab::SyntheticWorkload& work, amp::Training& training);

struct Limit {
  double arithmetic_ms = 0, memory_ms = 0;
  double ms() const { return arithmetic_ms + memory_ms; }
};
Limit limit_on(const Machine& machine, const StepNeeds& needs);

}  // namespace halftone::bench
