// A batch under two policies: where do they part, and is that what their formats predict?
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <halftone/amp/strategy.h>
#include <halftone/lab/workloads/workload.h>
#include <halftone/policy/rules/site.h>

namespace halftone::lab {

/// A tensor of the candidate's run. NaN: does not apply, or cannot be said.
struct Deviation {
  static constexpr double none = std::numeric_limits<double>::quiet_NaN();
  std::string site;
  policy::Role role = policy::Role::output;
  std::size_t input = 0;
  int64_t elements = 0;
  /// The relative error that its quantizer or cast made, sqrt(sum e^2 / sum x^2), over what its
  /// format predicts: 0.2123 2^(1 - p) for significands of p bits.
  double rounding = none;
  /// Of results and gradients: the relative difference from the same operation in f32 on operands
  /// that nobody rounded.
  double local = none;
  /// local over the root of the sum of the squares of its operands' errors and of its own rounding.
  double amplification = none;
  /// The relative difference from the reference's run, over up to 65,536 fixed elements.
  double twin = none;
  std::string reason{};  // in words, where something is not as predicted
};

struct CompareOptions {
  double rounding = 4, amplification = 4;  // beyond them a tensor deviates
  uint64_t seed = 0;
  /// Called before the candidate's pass: for planted faults.
  std::function<void(amp::Training&)> prepare{};
};

struct Comparison {
  std::vector<Deviation> rows{};  // in the order of computation
  int first = -1;                 // the first that deviates; -1: none does
  double reference_loss = 0, candidate_loss = 0;
};

/// One forward and backward pass of the workload's example under both, from the same weights and
/// random numbers.
Comparison compare(const std::function<Workload()>& make, const amp::Strategy& reference,
                   const amp::Strategy& candidate, const CompareOptions& options = {});

/// A line per tensor that was rounded or computed from what was; the first deviation is marked.
std::string table_of(const Comparison& comparison);

/// The same, and every row, for programs (docs/telemetry.md); NaN is null.
struct ComparedNames {
  std::string policy, reference, workload;
};
std::string json_of(const Comparison& comparison, const ComparedNames& names, uint64_t seed);

}  // namespace halftone::lab
