// Reads a run folder, to repeat the run or to reuse its results.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/lab/run.h>
#include <halftone/policy/json_value.h>

namespace halftone::lab {

/// A run on disk, with everything that is needed to repeat it.
struct RecordedRun {
  RunOptions options{};  // for the run's policy and seed; writes nothing
  std::string weights_hash{}, from_hash{};
  policy::Json summary{};
  bool portable_bits = false;  // whether the run had them
};
/// Reads a run folder. Throws FormatError "[op] FILE: problem. Remedy." for content that no run
/// writes, and if the policy file does not match the summary.
RecordedRun read_run(std::string_view op, const std::filesystem::path& folder);

/// Returns the results of a finished run, without telemetry; nullopt if the folder has no summary.
/// Throws FormatError in the name of `op`.
std::optional<RunResult> finished_run(std::string_view op, const std::filesystem::path& folder,
                                      const std::string& policy, uint64_t seed);

/// Checks the folder of a finished run: every field of summary.json, the hash of policy.json, and
/// that resolved.json, metrics.jsonl and (if the run had a probe) probe.jsonl exist. Reads no
/// weights. Throws FormatError in the name of `op`.
void require_finished_run(std::string_view op, const std::filesystem::path& folder);

/// Adds what the probe of a finished run measured: its worst tensors and its lost updates. Changes
/// nothing without probe.jsonl. Returns notes about lines that could not be read.
std::vector<std::string> add_telemetry(std::string_view op, const std::filesystem::path& folder,
                                       RunResult& run);

/// Writes the settings that all runs of a folder share to `file`, or compares them with those that
/// are there. Throws UsageError in the name of `op` for others, and for text that is not UTF-8.
void require_same_settings(std::string_view op, const std::filesystem::path& file,
                           const policy::Json& settings);

}  // namespace halftone::lab
