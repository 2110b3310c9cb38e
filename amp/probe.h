// Telemetry: statistics of the tensors and updates of a training under a policy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/amp/training.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/formats/survey.h>
#include <halftone/core/named_tensors.h>
#include <halftone/core/update_rules.h>
#include <halftone/nn/module.h>
#include <halftone/optim/optimizer.h>
#include <halftone/amp/rules.h>
#include <halftone/amp/session.h>

namespace halftone::policy {

// Attaches an observer to a training.

/// Makes `observer` watch a training's passes until this object is destroyed. A training without a
/// session gets one without rules, which remains and counts steps from `steps` on. The observation
/// may outlive the training. Throws UsageError, in the name of `where`, if another observer is
/// installed and `replaces` is false.
class Observation {
 public:
  Observation(std::string_view where, amp::Training& training, std::shared_ptr<Observer> observer,
              bool replaces = false, int64_t steps = 0);
  ~Observation();
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;
  /// Returns the training's session; null when the training has been destroyed.
  std::shared_ptr<Session> session() const { return session_.lock(); }

 private:
  std::weak_ptr<Session> session_{};
  std::shared_ptr<Observer> before_{};
};

// Finds the tensor that overflowed and caused a skipped step.

/// The first tensor, in the order of computation, that is not finite.
struct Overflow {
  std::string site;  // "" for the loss itself, times its scale
  std::string op;    // "linear"
  Role role = Role::output;
  DType dtype = f32;
  /// The number of elements that are not finite, and of all elements.
  int64_t bad = 0, elements = 0;
  /// The largest finite magnitudes: of the inputs or the cast tensor, and of this tensor.
  double largest_in = 0, largest_out = 0;
  bool cast = false;     // a cast to `dtype` caused it
  bool arrived = false;  // it was in the inputs: data, weights, or a sum of gradients
  bool backward = false;
  double loss_scale = 1;
  /// The loss scale, halved until everything is finite; 0: no smaller scale helps.
  double enough = 0;
};
/// Prints "transformer.h.3.mlp.c_proj/linear.0, grad_input: 12 of 65,536 values are beyond f16's
/// 65504; ...", and a remedy.
std::ostream& operator<<(std::ostream& out, const Overflow& overflow);

/// Runs `loss` again, forward (through training.forward()) and backward, with the random numbers
/// and the loss scale of the last pass, and checks every tensor. Call it after step() and before
/// the next forward(). Returns nothing for a pass without overflow. Weights, gradients, buffers,
/// random numbers and the session are unchanged afterwards; histories of delayed scaling are those
/// after the step. Slow: it waits after each operation, and tries smaller scales until one fits.
std::optional<Overflow> explain_overflow(amp::Training& training,
                                         const std::function<Tensor()>& loss);

// The actual change of the weights in a step, compared with the intended one: updates that were
// lost or changed because the weight's format could not hold them. The same for states on grids.

/// Sums over updates, in f64, which add up over steps and parameters. u: the update before
/// rounding, in f32; w and w': the weight before and after the step. UpdateRow has them for the
/// weight as stored (with masters, remainders and compensation), and as forward sees it.
struct UpdateSums {
  double count = 0;               // u other than 0
  double lost = 0;                // updates with w' = w
  double du = 0, uu = 0, ww = 0;  // sums of (w' - w) u, u u, w w
  void add(const UpdateSums& other);
  /// Returns lost / count; NaN if count is 0.
  double lost_share() const;
  /// Returns sum (w' - w) u / sum u u: 1 if steps have their intended effect; COLLAGE's effective
  /// descent (Yu et al. 2024).
  double effective_descent() const;
  /// Returns |u| / |w|, by norms.
  double update_ratio() const;
};

struct UpdateRow {
  int64_t step = 0;       // number of steps before this one
  std::string parameter;  // its name in the model
  std::string state{};    // a state of that parameter ("exp_avg") instead of itself: u is then the
                          // step's change before the state was rounded to its grid
  std::string form;       // core/update_rules.h
  DType dtype = f32;      // the dtype that forward sees
  UpdateSums stored{}, seen{};
  /// A histogram of the sizes of updates u in units of ulp(w), the spacing of the parameter's dtype
  /// or grid at the weight w: by_ulp[i] counts those with log2(|u| / ulp(w)) in [k, k + 1), where
  /// k = lowest_bin + i. Rounding w to nearest loses updates with k below -1. The first and
  /// the last bin also count all updates beyond them. Empty for grids with scales, whose spacing
  /// differs from block to block.
  static constexpr int lowest_bin = -40, bins = 64;
  std::array<double, bins> by_ulp{};
};

/// Watches the updates of one model, in the thread that created it. Masters outside of the model
/// (Policy::fused_master off) are not watched.
class UpdateProbe final : public optim::UpdateWatcher {
 public:
  explicit UpdateProbe(const nn::Module& model) : parameters_(model.named_parameters()) {}
  /// Asks for rows of the next step, which has the number `step`.
  void ask(int64_t step) { asked_ = true, step_ = step; }
  /// Returns the rows of the step; call it after the step. Waits for a GPU.
  std::vector<UpdateRow> collect();

  /// Returns whether rows were asked for; false while a step is captured.
  bool wants() const override;
  Tensor weight_of(const UpdateSlot& slot) override;
  void updating(const UpdateSlot& slot, const Tensor& weight, const Tensor& unrounded) override;
  void rounding(std::string_view state, const Tensor& x, const Quantizer& quantizer) override;

 private:
  struct Watched {
    std::string name;
    WeightForm form;
    Tensor parameter, companion;                      // handles
    Tensor weight, unrounded, forward;                // before; intended; as forward saw it
    std::array<Tensor, 3> states{}, states_before{};  // handles; copies
    std::optional<Quantizer> grid{};
  };
  struct WatchedState {
    std::string parameter, name;
    Tensor state, before, unrounded;  // a handle; copies
    Quantizer grid;
  };
  nn::Named<Tensor> parameters_;  // handles, which follow the model
  bool asked_ = false;
  int64_t step_ = 0;
  std::vector<Watched> watched_{};
  std::vector<WatchedState> states_{};
  optim::UpdateWatch watch_{this};
};

// Oscillation of rounded weights: numbers that moved to another point of their grid and back while
// the optimizer meant to go somewhere (arXiv 2502.20853).

/// Counts over the numbers of a weight at three sampled steps in a row: a, b and now c, each as
/// forward used it, after rounding. Two numbers are different points of the grid if they differ by
/// more than half the smallest relative distance of neighbors: small changes of a scale do not
/// count. Counts add up over steps and weights.
struct WeightFlips {
  double count = 0;     // numbers with three samples
  double flipped = 0;   // c is another point than b
  double returned = 0;  // a to b to c = a: flipped, and flipped back
  void merge(const WeightFlips& other);
  /// Return flipped / count and returned / count; NaN if count is 0.
  double flipped_share() const;
  double oscillation() const;
};

/// Returns half the smallest distance of neighbors on the grid, relative to the larger of them:
/// 2^-(p + 1) for p significand bits; for a table, it is found from the table's numbers.
double half_spacing(const Quantizer& quantizer);

/// Counts flips from three samples of equal length.
WeightFlips flips_of(const std::vector<float>& a, const std::vector<float>& b,
                     const std::vector<float>& c, double half_spacing);

/// The last two samples of each weight, on the host.
class WeightHistory {
 public:
  /// Adds a sample of the weight that is input `input` of a site, and returns its flips; none
  /// before the third sample or after a change of length.
  WeightFlips add(const std::string& site, std::size_t input, const Quantizer& quantizer,
                  std::vector<float> values);
  /// Returns the samples as f32 vectors, "older.INPUT.SITE" and "last.INPUT.SITE".
  NamedTensors state() const;
  /// Restores these samples; ignores other entries.
  void load(const NamedTensors& state);

 private:
  struct Samples {
    std::vector<float> older{}, last{};
  };
  std::map<std::pair<std::string, std::size_t>, Samples> samples_{};
};

// Telemetry of a training: statistics of its tensors and of each rounding, by site and role, in
// sampled steps. docs/telemetry.md defines every number.
//
//   policy::Probe probe(training, {.every = 50});
//   ... train ...
//   std::cout << probe;          // the worst sites
//   probe.save("probe.jsonl");

struct ProbeOptions {
  /// Observes steps first, first + every, ... up to last. Steps are calls of Training::step(),
  /// skipped ones included.
  int64_t every = 50, first = 0, last = std::numeric_limits<int64_t>::max();
  std::string path = "**";    // of modules, a pattern as in rules
  std::vector<Role> roles{};  // none: all
  bool updates = true;        // records updates of parameters, and flips of rounded weights
};

/// A tensor of one site in one sampled step, over all its passes.
struct ProbeRow {
  int64_t step = 0;
  std::string site;
  Role role = Role::input;
  std::size_t input = 0;  // its number, if it is one of several inputs; else 0
  std::string quantizer;  // or the dtype that a region casts to; "" without rounding
  double scale = 0;       // the scale, if it was computed from earlier steps; 0: it was not
  double ideal = 0;       // the scale that the tensor itself would have needed then
  double loss_scale = 1;
  Survey survey{};
  WeightFlips flips{};  // only of rounded weights, from the third sampled step on
};

class Probe {
 public:
  /// Watches a training until it is destroyed; create it in the thread that trains. Watching
  /// changes no bit of any result. `steps`: the number that the training has taken before. Throws
  /// UsageError for options out of range, and if another observer watches.
  explicit Probe(amp::Training& training, ProbeOptions options = {}, int64_t steps = 0);
  ~Probe();
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  /// Return rows in the order of computation, step by step. rows() waits for a GPU.
  const std::vector<ProbeRow>& rows() const;
  const std::vector<UpdateRow>& updates() const;
  /// Return and restore the last two samples of each rounded weight in finished steps: a new probe
  /// that loads them counts flips as the old one would have.
  NamedTensors history() const;
  void load_history(const NamedTensors& history);
  /// Drops the rows, whose memory grows with the sampled steps.
  void clear();
  /// Writes a JSON object per line: rows, then updates. Throws FormatError if it cannot write.
  void save(const std::filesystem::path& path) const;

 private:
  class Recorder;
  std::shared_ptr<Recorder> recorder_;
  Observation observation_;
};

/// Prints the ten rows with the most nonzero values rounded to 0, and the ten of the lowest SQNR.
std::ostream& operator<<(std::ostream& out, const Probe& probe);
/// Returns the lines that save() writes.
std::string json_lines(const std::vector<ProbeRow>& rows, const std::vector<UpdateRow>& updates);

// A summary of many rows of a probe: the tensor that loses most of its nonzero values, the one with
// the lowest SQNR, and the share of updates that were lost.

struct WorstRows {
  double underflow = 0;  // the largest share of a tensor that became 0
  double sqnr = std::numeric_limits<double>::infinity();  // the smallest, in dB
  std::string underflow_at{}, sqnr_at{};  // "site role"; empty if nothing was rounded
  UpdateSums stored{};                    // of all parameters

  /// Adds rows; rows without a rounding are ignored.
  void add(const std::vector<ProbeRow>& rows, const std::vector<UpdateRow>& updates);
};

}  // namespace halftone::policy
