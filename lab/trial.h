// What a policy does to a training, measured without one: gradients and losses of fixed batches
// from fixed weights, against a reference's, and what a pass costs.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include <halftone/lab/workloads/workload.h>
#include <halftone/policy/file/policy_file.h>

namespace halftone::lab {

struct Measurement {
  /// ||g - g_reference|| / ||g_reference|| over the gradients of all parameters and batches;
  /// infinite if one is not finite.
  double error = 0;
  /// ||g - g_base|| / ||g_reference||: what it adds to the policy that set_base() was told of.
  double added = 0;
  double loss_error = 0;    // mean |loss - reference's| over the mean of the reference's
  double milliseconds = 0;  // of forward and backward, the least of the passes
  /// What is kept from forward to backward: activations and casts, quantized tensors as if their
  /// formats were native (elements at their bits, and the scales of blocks).
  double bytes = 0;
  /// Bits of an operand of a product, weighted by the product's operations.
  double bits = 0;
};

struct TrialOptions {
  int batches = 4;
  int64_t warm_up = 20;  // steps of training under the reference before anything is measured
  int rounds = 1;        // each batch so many times, for `milliseconds`
  uint64_t seed = 0;
};

class Trial {
 public:
  /// Trains a model of `make` for a little while under `reference`, and keeps its weights, the
  /// batches that follow, and their gradients. Throws UsageError for a workload without
  /// batches, and where the reference's gradients are 0 or not finite.
  Trial(std::function<Workload()> make, const amp::Strategy& reference, TrialOptions options = {});

  /// What `added` is held against, from now on.
  Measurement set_base(const policy::PolicyFile& base);
  /// Throws what the policy and its passes throw: an operation that does not run in a dtype.
  Measurement measure(const policy::PolicyFile& policy) const;
  /// The weights and buffers that everything is measured at.
  const NamedTensors& weights() const { return weights_; }

 private:
  struct Pass {
    std::vector<float> gradients{};
    std::vector<double> losses{};
    Measurement cost{};
  };
  Pass run(const amp::Strategy& strategy) const;
  Measurement measured(const Pass& pass) const;

  std::function<Workload()> make_;
  TrialOptions options_;
  NamedTensors weights_{};
  std::vector<data::Batch> batches_{};
  Pass reference_{}, base_{};
  double size_ = 0;  // of the reference's gradients
};

}  // namespace halftone::lab
