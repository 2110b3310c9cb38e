// A run's folder, read again: to repeat the run, and to take it for done.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <halftone/lab/run.h>
#include <halftone/policy/file/json_value.h>

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

/// The results of a finished run, without telemetry; nullopt if the folder has no summary. Throws
/// FormatError in the name of `op`.
std::optional<RunResult> finished_run(std::string_view op, const std::filesystem::path& folder,
                                      const std::string& policy, uint64_t seed);

}  // namespace halftone::lab
