// The cost of a strategy, before it is chosen: the bytes of weights and optimizer tensors.
// Predicted from shapes; the ledger counts the same bytes in training.
#pragma once

#include <halftone/amp/strategy.h>
#include <halftone/nn/module.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

struct StrategyBytes {
  int64_t parameter = 0;
  int64_t companion = 0;  // masters, remainders, compensation
  int64_t gradient = 0;   // between backward and step
  int64_t optimizer_state = 0;

  int64_t total() const { return parameter + companion + gradient + optimizer_state; }
};

/// Predicts for a model under any strategy, or none; with the optimizer's own options, except for a
/// state dtype in them. Frozen parameters have no gradients and no state. For several ranks that
/// share out the optimizer (distributed/shards.h), returns the bytes of the rank with the most; its
/// gradients are then sums, f32 (f64), of its part.
StrategyBytes predicted_bytes(const Strategy& strategy, nn::Module& model,
                              optim::Optimizer& optimizer, int ranks = 1);

}  // namespace halftone::amp
