// Run folders may come from anywhere, so every value in them is checked.
#include <halftone/lab/recorded_run.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <halftone/core/files.h>
#include <halftone/core/quoted.h>
#include <halftone/lab/workloads/choices.h>
#include <halftone/lab/json_input.h>
#include <halftone/policy/file/policy_file.h>

namespace halftone::lab {

namespace {
using policy::Json, policy::JsonValue;

constexpr std::string_view damaged =
    " It is damaged, or of another program: make it anew with halftone-lab run.";

[[noreturn]] void refuse(const std::filesystem::path& file, std::string_view what) {
  fail<FormatError>("rerun", policy::printable(file.string()), ": ",
                    policy::printable(std::string(what)));
}

/// Calls `read`; its errors name the file.
template <class Read> auto of_file(const std::filesystem::path& file, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    std::string_view message = error.what();
    if (const std::size_t end = message.find("] "); message.starts_with('[') && end < message.npos)
      message.remove_prefix(end + 2);
    refuse(file, std::string(message) + std::string(damaged));
  }
}

JsonValue wanted(const JsonValue& object, std::string_view key) {
  if (!object.is_object()) object.refuse("expected an object.");
  const auto found = object.find(key);
  if (!found) object.refuse("the entry \"", key, "\" is missing.");
  return *found;
}

uint64_t seed_of(const JsonValue& value) {
  if (!value.json().is_number_unsigned())
    value.refuse("expected a whole number from 0 to 2^64 - 1.");
  return value.json().get<uint64_t>();
}

std::string hash_in(const JsonValue& value) {
  const std::string text = value.text();
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    value.refuse("expected 16 hexadecimal digits, got \"", text.substr(0, 40), "\".");
  return text;
}

/// Returns a choice by name; "" for null, which means the workload's own.
std::string choice_in(const JsonValue& value, std::span<const std::string_view> names) {
  if (value.is_null()) return "";
  const std::string name = value.text();
  if (std::ranges::find(names, name) == names.end()) value.refuse_unknown("choice", name, names);
  return name;
}

constexpr int64_t most_steps = int64_t(1) << 40;

void read_summary(const JsonValue& summary, RecordedRun& run) {
  if (const int64_t format = wanted(summary, "format").integer(0, 1'000'000); format != 1)
    summary.refuse("the format is ", format, ", and this program reads 1.");
  RunOptions& o = run.options;
  o.workload = wanted(summary, "workload").text();
  o.seeds = {seed_of(wanted(summary, "seed"))};
  o.steps = wanted(summary, "steps").integer(1, most_steps);
  const JsonValue lr = wanted(summary, "lr");
  o.choices.lr = lr.number();
  if (!(o.choices.lr > 0)) lr.refuse("expected a number above 0, got ", o.choices.lr, '.');
  o.choices.optimizer = choice_in(wanted(wanted(summary, "optimizer"), "named"), optimizer_names());
  o.choices.schedule = choice_in(wanted(wanted(summary, "schedule"), "named"), schedule_names());
  if (const JsonValue from = wanted(summary, "from"); !from.is_null()) {
    const JsonValue path = wanted(from, "path");
    o.choices.from = path.text();
    if (o.choices.from.empty()) path.refuse("expected a path, got \"\".");
    run.from_hash = hash_in(wanted(from, "hash"));
  }
  run.weights_hash = hash_in(wanted(summary, "weights_hash"));
  hash_in(wanted(summary, "policy_hash"));
  if (const auto portable = summary.find("portable_bits"); portable && !portable->is_null())
    run.portable_bits = portable->boolean();
}
}  // namespace

RecordedRun read_run(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "summary.json", policy = folder / "policy.json";
  if (!std::filesystem::is_regular_file(file))
    refuse(file,
           "there is no such file. Give the folder of a run, as halftone-lab run --out leaves "
           "it.");
  RecordedRun run;
  of_file(file, [&] {
    const std::string text = files::read_text("rerun", file, std::size_t(1) << 20);
    if (!Json::accept(text)) fail<FormatError>("rerun", "it is no JSON.");
    run.summary = policy::parsed_json("rerun", text);
    read_summary(JsonValue("rerun", "", run.summary), run);
  });
  of_file(policy, [&] {
    const std::string there = policy::hash(policy::read(policy));
    if (const std::string& said = run.summary["policy_hash"].get_ref<const std::string&>();
        there != said)
      fail<FormatError>("rerun", "its hash is ", there, ", and that of the run's policy ", said,
                        ".");
  });
  run.options.policies = {policy.string()};
  return run;
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
    return number_in(summary, name).value_or(std::nan(""));
  };
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
  if (before != now)
    fail<UsageError>(op, file.parent_path().string(), " was begun with ", shortened(before, 1000),
                     " and not ", now, ". Choose another --out.");
}

}  // namespace halftone::lab
