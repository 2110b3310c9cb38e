// summary.json of a run folder: what identifies a run, and its results.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/core/json_value.h>
#include <halftone/core/record.h>

namespace halftone::lab {

/// Values with names, in the order of an object in a file.
template <class T> using Named = std::vector<std::pair<std::string, T>>;

/// The content of summary.json: what identifies a run (everything that its weights depend on), and
/// its results. docs/telemetry.md has the fields. An unknown text is "", an unknown number NaN;
/// both are null in files.
struct Summary {
  std::string policy{}, policy_hash{}, resolved_hash{}, workload{};
  uint64_t seed = 0;
  int64_t steps = 0;
  double lr = 0;
  struct {
    std::string named{}, type{};  // named: the command's option; type: the class's name
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
/// Returns those of identity_fields() that are known before the run begins.
std::span<const std::string_view> settings_fields();

/// Reads summary.json. The fields that every version wrote must exist, and all known fields must
/// have their type and range; otherwise throws FormatError with the place in the file.
Summary read_summary(const JsonValue& json);

}  // namespace halftone::lab
