// A summary of many rows of a probe: the tensor that loses most of its nonzero values, the one with
// the lowest SQNR, and the share of updates that were lost.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include <halftone/policy/telemetry/probe.h>

namespace halftone::policy {

struct WorstRows {
  double underflow = 0;  // the largest share of a tensor that became 0
  double sqnr = std::numeric_limits<double>::infinity();  // the smallest, in dB
  std::string underflow_at{}, sqnr_at{};  // "site role"; empty if nothing was rounded
  UpdateSums stored{};                    // of all parameters

  /// Adds rows; rows without a rounding are ignored.
  void add(const std::vector<ProbeRow>& rows, const std::vector<UpdateRow>& updates);
};

}  // namespace halftone::policy
