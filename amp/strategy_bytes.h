// What a strategy will cost, before it is chosen: the bytes of a model's weights and of what an
// optimizer keeps for them. Predicted from shapes; the ledger counts the same while training.
#pragma once

#include <halftone/amp/strategy.h>
#include <halftone/nn/module.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

struct StrategyBytes {
  int64_t parameter = 0;
  int64_t beside = 0;    // masters, remainders, compensation
  int64_t gradient = 0;  // between backward and step
  int64_t optimizer_state = 0;

  int64_t total() const { return parameter + beside + gradient + optimizer_state; }
};

/// For a model under any strategy, or none; with the optimizer's own options, but without a state
/// dtype that they ask for. Frozen parameters have no gradients and no state. Of so many ranks that
/// share out the optimizer (distributed/shards.h), the one with most: what it keeps of gradients
/// are then sums, f32 (f64), of its part.
StrategyBytes predicted_bytes(const Strategy& strategy, nn::Module& model,
                              optim::Optimizer& optimizer, int ranks = 1);

}  // namespace halftone::amp
