// Measures the effect of a policy without a full training: gradients and losses of fixed batches
// from fixed weights, compared with a reference, and the cost of a pass.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include <halftone/lab/workload.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/session.h>

namespace halftone::lab {

struct Measurement {
  /// ||g - g_reference|| / ||g_reference|| over the gradients of all parameters and batches;
  /// infinite if one is not finite.
  double error = 0;
  /// ||g - g_base|| / ||g_reference||: the error that the policy adds to that of set_base()'s
  /// policy.
  double added = 0;
  double loss_error = 0;    // mean |loss - reference's| over the mean of the reference's
  double loss_change = 0;   // mean of (loss - base's) over the mean of the base's
  double loss_moved = 0;    // root mean square of loss - base's, over the same mean
  double milliseconds = 0;  // of forward and backward, the fastest pass
  /// Bytes kept from forward to backward: activations, casts, and quantized tensors as if their
  /// formats were native (elements at their bits, plus the scales of blocks).
  double bytes = 0;
  /// Mean bits of a product's operand, weighted by the product's floating-point operations.
  double bits = 0;
};

struct TrialOptions {
  int batches = 4;
  int64_t warm_up = 20;  // steps of training under the reference before the measurement
  int rounds = 1;        // times that each batch runs, for `milliseconds`
  uint64_t seed = 0;
};

class Trial {
 public:
  /// Trains a model of `make` for a few steps under `reference`. Keeps its weights, the batches
  /// that follow, and their gradients. Throws UsageError for a workload without batches, or if the
  /// reference's gradients are 0 or not finite.
  Trial(std::function<Workload()> make, const amp::Strategy& reference, TrialOptions options = {});

  /// Measures the policy and makes it the base of `added` from now on.
  Measurement set_base(const policy::PolicyFile& base);
  /// Measures a policy. Throws what the policy and its passes throw, for example if an operation
  /// does not run in a dtype.
  Measurement measure(const policy::PolicyFile& policy) const;
  /// Runs forward and backward of each batch once under a policy, watched by `observer`, and calls
  /// after_batch(loss, loss scale).
  void watch(const policy::PolicyFile& policy, const std::shared_ptr<policy::Observer>& observer,
             const std::function<void(double loss, double scale)>& after_batch) const;
  /// Returns the norm of the reference's gradients over all batches.
  double size() const { return size_; }
  /// Returns the weights and buffers at which all policies are measured.
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
  double size_ = 0;  // norm of the reference's gradients
};

}  // namespace halftone::lab
