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
#include <halftone/lab/workload.h>
#include <halftone/core/json_value.h>
#include <halftone/core/record.h>
#include <halftone/amp/policy.h>

namespace halftone::lab {

/// The version of the library: "1.0.0".
std::string version();

/// The numbers of an object, in its order.
template <class T> using Named = std::vector<std::pair<std::string, T>>;

/// summary.json: what identifies a run (everything that its weights depend on), and its results.
/// docs/telemetry.md has the fields. A text that is unknown is "", a number NaN; both are null in
/// files.
struct Summary {
  std::string policy{}, policy_hash{}, resolved_hash{}, workload{};
  uint64_t seed = 0;
  int64_t steps = 0;
  double lr = 0;
  struct {
    std::string named{}, type{};  // the choice of the command; the class
    Json options = Json::object();
  } optimizer{};
  struct {
    std::string named{}, hash{};
  } schedule{};
  double clip_norm = 0;
  int64_t batch = 0;
  struct {
    std::string hash{};
    int64_t samples = 0;
    bool shuffle = false, drop_last = false;
    uint64_t seed = 0;
    std::optional<std::string> validation_hash{};
    std::optional<int64_t> validation_samples{};
  } data{};
  /// The state that the run began with; empty: a fresh model.
  struct Origin {
    std::string path{}, hash{};
    bool operator==(const Origin&) const = default;
  } from{};
  std::string version{}, commit{}, compiler{}, backend{}, kernels{};
  int64_t threads = 0;
  std::string processor{};
  bool portable_bits = false;

  double loss = 0, late_loss = 0, validation_loss = 0, validation_accuracy = 0;
  int64_t parameters = 0, tokens = 0;
  Named<double> operands{};  // {"weight_bits", 4.25}, ...
  double milliseconds_per_step = 0;
  int64_t skipped_steps = 0;
  std::string weights_hash{};
  int64_t probe = 0, probe_from = 0;
  std::string environment{};
  Named<int64_t> bytes_at_peak{};
  std::size_t order = 0;  // of the policy in the command
};
void describe(Record& r, Summary& summary);

/// Returns the fields of summary.json that identify the run, in their order.
std::span<const std::string_view> identity_fields();
/// Those of them that are known before the run begins.
std::span<const std::string_view> settings_fields();

/// Reads summary.json. The fields that every version wrote must exist, and all known ones must have
/// their type and range. Throws FormatError of `json`'s place.
Summary read_summary(const JsonValue& json);

/// The commit that this library was built from, with "-dirty" if files had changed since; "" if git
/// did not know it.
extern const char* const built_from_commit;

/// Hashes the samples of a dataset as Dataset::batch() gives them, before random transforms. Takes
/// all samples, or 65,536 evenly spread ones if there are more. Returns 16 hexadecimal digits.
std::string hash_of(const data::Dataset& dataset);
/// Hashes names and tensors.
std::string hash_of(const optim::NamedTensors& state);

/// Sets optimizer, schedule, clipping, batch and data, as before the first step; `optimizer` must
/// have its initial options.
void identify_training(Summary& summary, const Workload& workload, const Choices& choices,
                       const optim::Optimizer& optimizer, const data::DataLoader& train,
                       const data::DataLoader* validation, int64_t steps);
/// Sets version, commit, compiler, backend, kernels, threads and processor of this process.
void identify_place(Summary& summary);

/// Lists the fields in which two identities differ, each as "threads: 2 there, 1 here".
std::vector<std::string> differences(const Json& there, const Json& here);

// A note if a policy runs on a model that it was not made for.

/// Writes a line if the policy's "for" names models and the workload's model is not among them or
/// has no name.
void note_other_model(std::ostream& out, const amp::Policy& policy, const std::string& workload,
                      const std::vector<NamedWorkload>& own);

/// Writes a line if the workload trains on noise, where losses of policies say little.
void note_noise(std::ostream& out, const std::string& workload,
                const std::vector<NamedWorkload>& own);

// Reads a run folder, to repeat the run or to reuse its results.

/// A run on disk, with everything that is needed to repeat it.
struct RecordedRun {
  Study study{};  // the run's policy and seed; writes nothing
  Summary said{};
  Json summary{};  // the file, with entries of later programs
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
                           const Json& settings);

}  // namespace halftone::lab
