// A run's folder, read again: for `halftone-lab rerun`.
#pragma once

#include <filesystem>
#include <string>

#include <halftone/lab/run.h>
#include <halftone/policy/json_value.h>

namespace halftone::lab {

/// A run on disk, as far as it takes to repeat it.
struct RecordedRun {
  RunOptions options{};  // of its one policy and seed; writes nothing
  std::string weights_hash{}, from_hash{};
  policy::Json summary{};
};
/// Throws FormatError "[rerun] FILE: what. What to do." for what no run has written, and for a
/// policy other than that of the summary.
RecordedRun read_run(const std::filesystem::path& folder);

}  // namespace halftone::lab
