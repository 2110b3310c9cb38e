// halftone-lab gate: trains pairs until the difference of two policies is known well enough.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>

#include <halftone/lab/gate.h>
#include <halftone/lab/run.h>

namespace halftone::lab {

struct GateOptions {
  std::string policy{}, reference = "amp-bf16", metric = "late-loss";
  Bound within{};
  RunOptions run{};              // workload, seeds (the first one), steps, choices, and out
  int64_t first = 8, pairs = 0;  // pairs: exactly that many; 0: by their spread
  double max_minutes = 20;
  int jobs = 0;  // 0: as many as this machine has threads for
  std::string json{};
};

/// Trains pairs in processes of this program's own command `run`, and prints the answer. Runs that
/// are finished in `run.out` are not trained again; without it files are temporary. Throws
/// UsageError for a folder of other settings. Returns 0 for equivalent or better, 1 for worse, 3
/// for undecided or after a signal. Throws UsageError for a run that fails, for a reference that
/// diverges, and for a relative bound if a loss is not above 0.
int run_gate(const GateOptions& options, const std::vector<NamedWorkload>& own,
             std::ostream& progress);

}  // namespace halftone::lab
