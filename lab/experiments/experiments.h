// Experiments on mixed precision that docs/experiments.md describes, and what several of them
// share.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/amp/training.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/formats/survey.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/run.h>
#include <halftone/amp/policy.h>

namespace halftone::lab {

// Output of an experiment: a table, followed by its checks.

/// Receives an experiment's output: its table, followed by one line per check. A line has "ok" or
/// "MISSED", the name of the check, the value, and the bar (what the value is compared with).
class Findings {
 public:
  explicit Findings(std::ostream& out, bool thorough = false) : thorough_(thorough), out_(out) {}
  /// Returns the stream for tables and remarks.
  std::ostream& out() { return out_; }
  /// Returns whether the experiment may take minutes: it then uses more seeds.
  bool thorough() const { return thorough_; }

  // --- checks; NaN never passes
  void within(std::string_view what, double value, double least, double most);
  void at_least(std::string_view what, double value, double least);
  void at_most(std::string_view what, double value, double most);
  void equal(std::string_view what, std::string_view value, std::string_view wanted);
  void different(std::string_view what, std::string_view value, std::string_view other);
  void exactly(std::string_view what, double value, double wanted);

  struct Check {
    std::string what, value, bar;
    bool passes;
  };
  const std::vector<Check>& checks() const { return checks_; }
  int missed() const { return missed_; }
  int checked() const { return int(checks_.size()); }

 private:
  void say(std::string_view what, const std::string& value, const std::string& bar, bool right);
  bool thorough_;
  std::ostream& out_;
  std::vector<Check> checks_{};
  int missed_ = 0;
};

// Experiments: published results about short numbers. Each is a program of one page that prints its
// results and whether they match the publication. `halftone-lab experiment E3` runs one.

struct Experiment {
  std::string_view name;   // "E3"
  std::string_view claim;  // one or two sentences, with their source
  void (*run)(Findings& findings);
};

/// Returns all experiments, by number.
std::span<const Experiment> experiments();
/// Returns the experiment with this name. Throws UsageError for other names, and suggests the
/// nearest.
const Experiment& experiment_named(std::string_view name);

}  // namespace halftone::lab

// The experiments; each file has those of one subject. Numbers are those of docs/experiments.md.

namespace halftone::lab::found {

extern const Experiment e1, e2, e3, e4, e5, e6, e7, e8, e9, e10, e11, e12, e13, e14, e15, e16, e17,
    e18, e19, e20, e21, e22, e23, e24, e25, e26, e27, e28;

}  // namespace halftone::lab::found

// Trainings of several policies from the same seeds, as a table of an experiment.

namespace halftone::lab {

/// Thrown by an experiment whose trainings a signal has stopped, because it has no result.
struct Stopped : Error {
  using Error::Error;
};

/// Returns a cell for each policy, under its own name.
std::vector<Cell> cells_of(const std::vector<amp::Policy>& policies, const Setup& setup);

/// Runs all trainings, without files. Throws Stopped after SIGINT, SIGTERM or SIGHUP.
std::vector<RunResult> all_runs(const Study& study);

/// Trains a workload under each policy from each seed. Runs with the same seed begin with the same
/// weights and see the same batches.
class PairedRuns {
 public:
  /// Runs all trainings and prints a table: each policy's late loss, and its difference from the
  /// first policy's. The seeds are 0 to `seeds` - 1. Throws Stopped like all_runs().
  PairedRuns(Findings& found, const Setup& setup, const std::vector<amp::Policy>& policies,
             std::size_t seeds);

  /// Returns the mean relative difference of a policy's late losses from those of the policy
  /// `base`, with its 95 % interval. `policy`, `base`: indices in the list of policies.
  Interval difference(std::size_t policy, std::size_t base = 0) const;

 private:
  const RunResult& run(std::size_t policy, std::size_t seed) const;
  std::size_t policies_, seeds_;
  std::vector<RunResult> runs_;
};

/// Returns "+0.31 % +- 0.20 %".
std::string signed_percent(const Interval& interval);

// Hashes the decisions of rounding: the formula of core/formats/number_format.h on a million floats
// gives the same hash with every compiler, flag and CPU. tests/lab/scripts/compiled_rounding.cmake
// compiles it with other flags.

constexpr uint64_t rounding_hash_everywhere = 0xa2a445215a3eecf5u;

/// Generates floats of all sizes: their bits come from a linear congruential generator.
class AnyFloats {
 public:
  float next() { return std::bit_cast<float>(next_bits()); }
  uint32_t next_bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return uint32_t(state_ >> 32);
  }

 private:
  uint64_t state_ = 18;
};

/// Returns the FNV-1a hash of the results of round(format, x, rounding, random bits) for AnyFloats
/// x, all formats below and all roundings. `round`: round_to(), or a function to compare with it.
template <class Round> uint64_t rounding_hash(const Round& round) {
  constexpr NumberFormat all[]{formats::bf16, formats::f16,  formats::e5m2, formats::e4m3,
                               formats::e2m3, formats::e2m1, formats::int8};
  AnyFloats floats;
  uint64_t hash = 14695981039346656037u;
  for (int i = 0; i < 20'000; ++i)
    for (const NumberFormat& format : all)
      for (int r = 0; r <= int(Rounding::stochastic); ++r) {  // those of the record
        const float x = floats.next();
        if ((std::bit_cast<uint32_t>(x) & 0x7fffffffu) > 0x7f800000u) continue;  // NaN stays NaN
        const float y = round(format, x, Rounding(r), floats.next_bits());
        hash = (hash ^ std::bit_cast<uint32_t>(y)) * 1099511628211u;
      }
  return hash;
}

// A training with gradients of any small size, for E7 and the picture of the loss scale.

struct SmallGradientRun {
  double accuracy = 0, untrained = 0;  // accuracies after and before the training
  Survey output_gradients{};           // all three layers together
  std::vector<Survey> gradients{};     // one for each layer and each kind of gradient
};

/// Trains an MLP of widths 64-128-64-10 to classify ten clusters of random vectors, in 300 steps of
/// AdamW. The loss is multiplied by `loss_weight`. Gradients are surveyed every tenth step.
SmallGradientRun train_small_gradients(const amp::Policy& strategy, double loss_weight);

/// Returns the policy amp-fp16 with another loss scale, given in the syntax of policy files.
amp::Policy f16_with(const std::string& loss_scale);

}  // namespace halftone::lab
