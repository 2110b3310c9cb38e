// Run folders may come from anywhere, so every value in them is checked.
#include <halftone/lab/recorded_run.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/json_input.h>
#include <halftone/lab/run_files/summary_fields.h>
#include <halftone/lab/run_folder.h>
#include <halftone/lab/workloads/choices.h>
#include <halftone/policy/probe.h>

namespace halftone::lab {

namespace {
using policy::Json, policy::JsonValue;

/// Returns a choice by name; "" for null, which means the workload's own.
std::string choice_in(const JsonValue& value, std::span<const std::string_view> names) {
  if (value.is_null()) return "";
  const std::string name = value.text();
  if (std::ranges::find(names, name) == names.end()) value.refuse_unknown("choice", name, names);
  return name;
}

/// Reads a summary whose fields have been checked.
void read_summary(const JsonValue& summary, RecordedRun& run) {
  const Json& fields = summary.json();
  RunOptions& o = run.options;
  o.workload = fields["workload"].get<std::string>();
  o.seeds = {fields["seed"].get<uint64_t>()};
  o.steps = fields["steps"].get<int64_t>();
  o.choices.lr = fields["lr"].get<double>();
  o.choices.optimizer = choice_in(wanted(wanted(summary, "optimizer"), "named"), optimizer_names());
  o.choices.schedule = choice_in(wanted(wanted(summary, "schedule"), "named"), schedule_names());
  if (const JsonValue from = wanted(summary, "from"); !from.is_null()) {
    o.choices.from = from.json()["path"].get<std::string>();
    run.from_hash = from.json()["hash"].get<std::string>();
  }
  run.weights_hash = fields["weights_hash"].get<std::string>();
  if (const auto portable = summary.find("portable_bits"); portable && !portable->is_null())
    run.portable_bits = portable->boolean();
}

/// Returns the content of summary.json with its fields checked.
Json checked_summary(std::string_view op, const std::filesystem::path& file) {
  return of_file(op, file, [&] {
    const std::string text = files::read_text(op, file, std::size_t(1) << 20);
    if (!Json::accept(text)) fail<FormatError>("summary", "it is not JSON.");
    Json summary = policy::parsed_json(std::string(op), text);
    require_fields(JsonValue(std::string(op), "", summary));
    return summary;
  });
}
}  // namespace

RecordedRun read_run(std::string_view op, const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "summary.json";
  if (!std::filesystem::is_regular_file(file))
    refuse_file(op, file,
                "the file is missing. Give the folder of a run, as halftone-lab run --out leaves "
                "it.");
  RecordedRun run;
  run.summary = checked_summary(op, file);
  of_file(op, file, [&] { read_summary(JsonValue(std::string(op), "", run.summary), run); });
  require_policy(op, folder, run.summary["policy_hash"].get<std::string>());
  run.options.policies = {(folder / "policy.json").string()};
  return run;
}

void require_finished_run(std::string_view op, const std::filesystem::path& folder) {
  const Json summary = checked_summary(op, folder / "summary.json");
  std::vector<const char*> names{"policy.json", "resolved.json", "metrics.jsonl"};
  if (summary.value("probe", 0) > 0) names.push_back("probe.jsonl");
  std::error_code ignored;
  for (const char* name : names)
    if (!std::filesystem::is_regular_file(folder / name, ignored))
      refuse_file(op, folder / name,
                  "the file is missing, although the run is finished. Put it back, or remove the "
                  "folder: then this run is done again.");
  require_policy(op, folder, summary["policy_hash"].get<std::string>());
}

std::vector<std::string> add_telemetry(std::string_view op, const std::filesystem::path& folder,
                                       RunResult& run) {
  RunFolder files(op, folder);
  policy::WorstRows worst;
  files.each_probe_line([&](const policy::ProbeRow& row) { worst.add({row}, {}); },
                        [&](const policy::UpdateRow& row) { worst.add({}, {row}); });
  run.worst_underflow = worst.underflow, run.worst_site = worst.underflow_at;
  run.least_sqnr = worst.sqnr, run.least_sqnr_site = worst.sqnr_at;
  run.updates = worst.stored;
  return files.notes();
}

std::optional<RunResult> finished_run(std::string_view op, const std::filesystem::path& folder,
                                      const std::string& policy, uint64_t seed) {
  const std::filesystem::path file = folder / "summary.json";
  std::error_code error;
  if (!std::filesystem::exists(file, error) && !error) return {};
  const nlohmann::json summary = read_json(op, file);
  const auto needed = [&](const char* name) {
    const std::optional<double> value = number_in(summary, name);
    if (value) return *value;
    if (summary.contains(name) && summary[name].is_null()) return std::nan("");  // the run diverged
    fail<FormatError>(op, file.string(), " has no number \"", name,
                      "\". Remove the folder, and this run is done again.");
  };
  const auto optional = [&](const char* name) {
    return summary.contains(name) ? needed(name) : std::nan("");
  };
  if (summary.contains("skipped_steps") && !count_in(summary, "skipped_steps"))
    fail<FormatError>(op, file.string(),
                      " has no count \"skipped_steps\". Remove the folder, and this run is done "
                      "again.");
  return RunResult{.policy = policy,
                   .seed = seed,
                   .loss = needed("loss"),
                   .late_loss = optional("late_loss"),
                   .validation_loss = optional("validation_loss"),
                   .validation_accuracy = optional("validation_accuracy"),
                   .milliseconds = needed("milliseconds_per_step"),
                   .skipped = count_in(summary, "skipped_steps").value_or(0),
                   .least_sqnr = std::numeric_limits<double>::infinity(),
                   .summary = summary.dump(),
                   .was_there = true};
}

void require_same_settings(std::string_view op, const std::filesystem::path& file,
                           const policy::Json& settings) {
  std::string now;
  try {
    now = settings.dump();
  } catch (const nlohmann::json::exception&) {
    fail<UsageError>(op, "the workload or another option is not UTF-8. Write it in UTF-8.");
  }
  std::error_code error;
  if (!std::filesystem::exists(file, error) && !error) return files::replace(op, file, now);
  const std::string before = files::read_text(op, file, std::size_t(1) << 20);
  if (!is_json_object(before))
    fail<FormatError>(op, file.string(),
                      " is damaged: it is not a JSON object. Remove it if all runs in the folder "
                      "have the options of this command; otherwise choose another --out.");
  if (before != now)
    fail<UsageError>(op, file.parent_path().string(), " was begun with ", shortened(before, 1000),
                     " and not ", now, ". Choose another --out.");
}

}  // namespace halftone::lab
