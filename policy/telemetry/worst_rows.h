// What of many rows of a probe is worth a line: the tensor that loses most of what is not 0, the
// one with the least signal to noise, the share of updates that were lost.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include <halftone/policy/telemetry/probe.h>

namespace halftone::policy {

struct WorstRows {
  double underflow = 0;  // the largest share of a tensor that became 0
  double sqnr = std::numeric_limits<double>::infinity();  // the least, in dB
  std::string underflow_at{}, sqnr_at{};  // "site role"; empty where nothing was rounded
  UpdateSums stored{};                    // of all parameters

  /// Rows where nothing rounds count for nothing.
  void add(const std::vector<ProbeRow>& rows, const std::vector<UpdateRow>& updates);
};

}  // namespace halftone::policy
