// Exponential averages of weights over the steps, for quantizers that choose between two neighbors
// on the grid by them (Quantizer::average). As ema_weight of TetraJet (arXiv 2502.20853).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <halftone/core/named_tensors.h>

namespace halftone::policy {

class WeightAverages {
 public:
  /// Returns the average of weight x in a step: f32, of x's shape and device. The first call for a
  /// name sets the average to x. The first call in a later step that `updates` adds x: average =
  /// share average + (1 - share) x. `name`: the use of the weight.
  Tensor average_for(const std::string& name, double share, const Tensor& x, int64_t step,
                     bool updates);

  /// Adds "average.<name>" to a state.
  void add_to(NamedTensors& state) const;
  /// Takes those entries of a state; entries for weights not met yet are kept for them. Throws
  /// UsageError for an entry that is not f32.
  void load(const NamedTensors& state);

 private:
  struct Memory {
    Tensor average{};
    int64_t step = -1;  // of the last update
  };
  std::map<std::string, Memory> memories_;
  NamedTensors waiting_;
};

}  // namespace halftone::policy
