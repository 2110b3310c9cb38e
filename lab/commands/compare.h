// Compares one batch under two policies: where do they diverge, and do their formats predict it?
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <halftone/amp/strategy.h>
#include <halftone/lab/workload.h>
#include <halftone/policy/rules.h>

namespace halftone::lab {

/// A tensor of the candidate's run. NaN: the number does not apply or cannot be computed.
struct Deviation {
  static constexpr double none = std::numeric_limits<double>::quiet_NaN();
  std::string site;
  policy::Role role = policy::Role::output;
  std::size_t input = 0;
  int64_t elements = 0;
  /// The relative error of the tensor's quantizer or cast, sqrt(sum e^2 / sum x^2), divided by the
  /// prediction of its format: 0.2123 2^(1 - p) for significands of p bits. None for tables and for
  /// functions of the program.
  double rounding = none;
  /// For results and gradients: the relative difference from the same operation in f32 on operands
  /// that were not rounded.
  double local = none;
  /// `local` divided by the root of the sum of squares of its operands' errors and its own
  /// rounding.
  double amplification = none;
  /// The relative difference from the reference's run, over up to 65,536 fixed elements.
  double twin = none;
  std::string reason{};  // says what deviates from the prediction; empty: nothing does
};

struct CompareOptions {
  double rounding = 4, amplification = 4;  // a tensor above one of them deviates
  uint64_t seed = 0;
  /// Called before the candidate's pass: for planted faults.
  std::function<void(amp::Training&)> prepare{};
};

struct Comparison {
  std::vector<Deviation> rows{};  // in the order of computation
  int first = -1;                 // the first that deviates; -1: none does
  double reference_loss = 0, candidate_loss = 0;
};

/// Runs one forward and backward pass of the workload's example under each policy, from the same
/// weights and random numbers. Returns the deviations of the candidate's tensors.
Comparison compare(const std::function<Workload()>& make, const amp::Strategy& reference,
                   const amp::Strategy& candidate, const CompareOptions& options = {});

/// Returns a line per tensor that was rounded or computed from rounded tensors. Marks the first
/// deviation.
std::string table_of(const Comparison& comparison);

struct ComparedNames {
  std::string policy, reference, workload;
};
/// Returns the comparison with all rows as JSON, for programs (docs/telemetry.md); NaN becomes
/// null.
std::string json_of(const Comparison& comparison, const ComparedNames& names, uint64_t seed);

}  // namespace halftone::lab
