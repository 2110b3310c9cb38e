// The facts with which a recorded run was made, and the run that a folder records.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/lab/run.h>
#include <halftone/lab/summary.h>
#include <halftone/lab/workload.h>
#include <halftone/core/json_value.h>
#include <halftone/amp/policy.h>

namespace halftone::lab {

/// The version of the library: "1.0.0".
std::string version();

/// The commit that this library was built from, with "-dirty" if files differed from it; "" if
/// unknown.
extern const char* const built_from_commit;

/// Returns 16 hexadecimal digits: the hash of a dataset's samples as Dataset::batch() gives them,
/// before random transforms. Takes all samples, or 65,536 evenly spread ones.
std::string hash_of(const data::Dataset& dataset);
/// Returns a hash of the names and tensors: 16 hexadecimal digits.
std::string hash_of(const optim::NamedTensors& state);

/// Sets the summary's optimizer, schedule, clipping, batch and data. Call it before the first step:
/// `optimizer` must have its initial options.
void identify_training(Summary& summary, const Workload& workload, const Choices& choices,
                       const optim::Optimizer& optimizer, const data::DataLoader& train,
                       const data::DataLoader* validation, int64_t steps);
/// Sets the summary's version, commit, compiler, backend, kernels, threads and processor.
void identify_place(Summary& summary);

/// Returns the fields in which two identities differ, each as "threads: 2 there, 1 here".
std::vector<std::string> differences(const Json& there, const Json& here);

// A note if a policy runs on a model that it was not made for.

/// Writes a line to `out` if the policy's entry "for" names models, but not the workload's model.
void note_other_model(std::ostream& out, const amp::Policy& policy, const std::string& workload,
                      const std::vector<NamedWorkload>& own);

/// Writes a line to `out` if the workload trains on noise: then losses of policies say little.
void note_noise(std::ostream& out, const std::string& workload,
                const std::vector<NamedWorkload>& own);

// Reads a run folder, to repeat the run or to reuse its results.

/// A run on disk, with everything that is needed to repeat it.
struct RecordedRun {
  Study study{};   // the run's policy, setup and seed, without a folder for files
  Summary said{};  // summary.json, its known entries
  Json summary{};  // summary.json, also with unknown entries
};
/// Reads a run folder. Throws FormatError "[op] FILE: problem. Remedy." for content that no run
/// writes, and if the hash of policy.json is not the one in summary.json.
RecordedRun read_run(std::string_view op, const std::filesystem::path& folder);

/// Returns the results of a finished run, without telemetry; nullopt if the folder has no summary.
/// Throws FormatError "[op] ..." for a damaged one.
std::optional<RunResult> finished_run(std::string_view op, const std::filesystem::path& folder,
                                      const std::string& policy, uint64_t seed);

/// Checks the folder of a finished run: every field of summary.json, the hash of policy.json, and
/// that resolved.json, metrics.jsonl and (if the run had a probe) probe.jsonl exist. Reads no
/// weights. Throws FormatError "[op] ...".
void require_finished_run(std::string_view op, const std::filesystem::path& folder);

/// Adds to `run` what the probe of a finished run measured: its worst tensors and its lost updates.
/// Changes nothing without probe.jsonl. Returns notes about lines that could not be read.
std::vector<std::string> add_telemetry(std::string_view op, const std::filesystem::path& folder,
                                       RunResult& run);

/// Writes the settings that all runs of a folder share to `file`. If the file exists, compares the
/// two instead. Throws UsageError if they differ or are not UTF-8, FormatError for a damaged file,
/// both as "[op] ...".
void require_same_settings(std::string_view op, const std::filesystem::path& file,
                           const Json& settings);

}  // namespace halftone::lab
