// Measures the effect of a policy without a full training: gradients and losses of fixed batches
// from fixed weights, compared with a reference, and the cost of a pass.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/amp/training.h>
#include <halftone/autograd/curvature.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/tensor.h>
#include <halftone/lab/workload.h>
#include <halftone/nn/conv.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/module.h>
#include <halftone/nn/rnn.h>
#include <halftone/optim/optimizer.h>
#include <halftone/optim/optimizers.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/session.h>

namespace halftone::lab {

struct Measurement {
  /// ||g - g_reference|| / ||g_reference|| over the gradients of all parameters and batches;
  /// infinite if one is not finite.
  double error = 0;
  /// ||g - g_base|| / ||g_reference||: the error that the policy adds to that of the base, the
  /// policy given to set_base().
  double added = 0;
  double loss_error = 0;    // mean of |loss - reference's| / mean of |reference's|
  double loss_change = 0;   // mean of (loss - base's) / mean of |base's|
  double loss_moved = 0;    // root mean square of (loss - base's) / mean of |base's|
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
  int rounds = 1;        // how often each batch runs; `milliseconds` is of the fastest pass
  uint64_t seed = 0;
};

/// The trace of the loss's Hessian with respect to one parameter.
struct ParameterTrace {
  std::string name;
  int64_t elements = 0;
  autograd::TraceEstimate trace{};
};

/// The tensor that one operation uses for a parameter: its cast or quantized value, or itself.
struct ParameterUse {
  std::string parameter;
  std::string place;  // the operation's site, and the number of its input
  Tensor value{};
};

class Trial {
 public:
  /// Trains a model of `make` for options.warm_up steps under `reference`. Keeps its weights, the
  /// batches that follow, and the reference's gradients of these batches. Throws UsageError for
  /// options out of range, a workload without batches, and gradients that are 0 or not finite.
  Trial(std::function<Workload()> make, const amp::Policy& reference, TrialOptions options = {});

  /// Measures a policy, and makes it the base of later measurements (Measurement::added).
  Measurement set_base(const amp::Policy& base);
  /// Measures a policy. Throws what the policy and its passes throw, for example if an operation
  /// does not run in a dtype.
  Measurement measure(const amp::Policy& policy) const;
  /// Runs forward and backward of each batch once under a policy, watched by `observer`. Calls
  /// after_batch(loss, loss scale) after each batch.
  void watch(const amp::Policy& policy, const std::shared_ptr<policy::Observer>& observer,
             const std::function<void(double loss, double scale)>& after_batch) const;
  /// Returns for each parameter that requires a gradient, in the model's order, an estimate of the
  /// trace of the Hessian of the batches' mean loss, under the reference: from `probes` random
  /// vectors per batch, with intervals for these batches alone. Throws as hutchinson_trace().
  std::vector<ParameterTrace> traces(int64_t probes) const;
  /// Returns each use of a parameter in a pass under `policy`, with the tensor that it uses.
  std::vector<ParameterUse> uses_of_parameters(const amp::Policy& policy) const;
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
  struct Prepared;  // a model with the kept weights under a policy
  /// Returns the loss of a batch, always with the same random numbers for the same batch.
  Tensor loss_of_batch(Prepared& prepared, std::size_t batch) const;
  Pass run(const amp::Policy& strategy) const;
  Measurement measured(const Pass& pass) const;

  std::function<Workload()> make_;
  TrialOptions options_;
  amp::Policy reference_policy_;
  NamedTensors weights_{};
  std::vector<data::Batch> batches_{};
  Pass reference_{}, base_{};
  double size_ = 0;  // norm of the reference's gradients
};

// Helpers that several experiments use: a policy in a line, a model of plain weights, hashes.

/// Returns the policy of the file {"name": name, "extends": extends, more...}, see
/// docs/policy_files.md.
///   policy_of("nearest", "amp-bf16", R"("optimizer": {"parameters": "bf16"})")
amp::Policy policy_of(std::string_view name, std::string_view extends, std::string_view more);

/// Returns the FNV-1a hash of dtypes, shapes and bits, as 16 hexadecimal digits.
std::string hash_of(std::span<const Tensor> tensors);

/// A model with one vector of weights, to test updates alone; the experiment writes the gradients.
struct Weights final : nn::Module {
  nn::Parameter w;
  explicit Weights(const Tensor& initial) : w(initial) {}
  void describe(nn::Fields& field) override { field("w", w); }
};

/// Returns sqrt(mean x^2).
double root_mean_square(std::span<const double> x);

/// Returns 10 log10(sum x^2 / sum (x - y)^2), computed in f64.
double signal_to_noise(const Tensor& x, const Tensor& y);

// A hash of every tensor of sampled steps, so that two runs can be compared by place: which
// operation's result differs first?

/// A tensor in a sampled step: an operation's input, or its result as the next operation gets it.
struct TraceRow {
  int64_t step = 0;
  std::string site;
  policy::Role role = policy::Role::input;
  std::size_t input = 0;  // its number among the operation's inputs; otherwise 0
  std::string dtype;
  Shape shape{};
  std::string hash;             // FNV-1a 64 of dtype, shape and bits
  double root_mean_square = 0;  // in f64; not finite if an element is not

  /// Returns whether the rows have the same step, site, role and input.
  bool same_place(const TraceRow& other) const;
};

/// Records the tensors of steps 0, every, 2 every, ... of a training. Does not change its bits.
class Tracer final : public policy::Observer {
 public:
  explicit Tracer(int64_t every) : every_(every) {}
  bool begin_pass(int64_t step) override;
  void tensor(const policy::Seen& seen, const Tensor& before, const Tensor& after) override;
  /// Returns the text of trace.jsonl: a JSON object per row, in the order of computation.
  std::string lines() const;
  const std::vector<TraceRow>& rows() const { return rows_; }

 private:
  int64_t every_, step_ = 0;
  std::vector<TraceRow> rows_{};
};

/// Reads trace.jsonl. Throws FormatError "[op] ..." for a file that cannot be read and for a line
/// that is not a row.
std::vector<TraceRow> read_trace(std::string_view op, const std::filesystem::path& path);

/// Returns the numbers of the steps that occur in a trace.
std::set<int64_t> steps_of(const std::vector<TraceRow>& rows);

/// The first row in which two traces differ.
struct TraceDifference {
  std::size_t row = 0;                      // its index; all rows before it are equal
  std::optional<TraceRow> there{}, here{};  // absent after the end of a trace
};
/// Compares two traces row by row. Returns nullopt if they are equal.
std::optional<TraceDifference> first_difference(const std::vector<TraceRow>& there,
                                                const std::vector<TraceRow>& here);
/// Returns a text such as "step 3, h.0/linear.0, output [16, 64] bf16: other bits; root mean
/// squares 0.5 and 0.500001 differ by 2e-06".
std::string text_of(const TraceDifference& difference);

}  // namespace halftone::lab
