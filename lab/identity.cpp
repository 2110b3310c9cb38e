// Identities are JSON. A run's identity is written at its end, and compared field by field when the
// run is repeated.
#include <halftone/lab/identity.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <ostream>

#include <halftone/core/backend.h>
#include <halftone/core/device.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/run_folder.h>
#include <halftone/lab/table.h>
#include <halftone/lab/trial.h>
#include <halftone/lab/workload.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/probe.h>
#include <halftone/train/checkpoint.h>

namespace halftone::lab {

namespace {

constexpr std::string_view fields[] = {
    "policy",  "policy_hash", "resolved_hash", "workload",  "seed",    "steps",
    "lr",      "optimizer",   "schedule",      "clip_norm", "batch",   "data",
    "from",    "version",     "commit",        "compiler",  "backend", "kernels",
    "threads", "processor",   "portable_bits"};

/// Hashes the factors of the steps: a schedule is a function, which has no name. If there are more
/// than 2^22 steps, hashes 2^22 that are evenly spaced, so that a long training begins within a
/// second.
std::string hash_of(const optim::LrSchedule& schedule, int64_t steps) {
  constexpr int64_t most = int64_t(1) << 22;
  const int64_t count = std::min(steps, most);
  policy::Fingerprint fingerprint;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t step = steps <= most ? i : int64_t(double(i) * double(steps) / double(most));
    const double factor = schedule.at(step);
    fingerprint.add({reinterpret_cast<const char*>(&factor), sizeof factor});
  }
  return fingerprint.text();
}

std::string processor() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  return "";
}

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }
}  // namespace

std::string version() { return HALFTONE_VERSION; }

std::span<const std::string_view> identity_fields() { return fields; }

// --- what a run is

std::string hash_of(const data::Dataset& dataset) {
  constexpr int64_t most = 65'536, at_a_time = 1024;
  const int64_t size = dataset.size(), count = std::min(size, most);
  policy::Fingerprint fingerprint;
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) {
    indices.push_back(size <= most ? i : int64_t(double(i) * double(size) / double(most)));
    if (int64_t(indices.size()) < at_a_time && i + 1 < count) continue;
    const data::Batch batch = dataset.batch(indices);
    std::vector<Tensor> tensors{batch.inputs};
    if (batch.targets.defined()) tensors.push_back(batch.targets);
    tensors.insert(tensors.end(), batch.more.begin(), batch.more.end());
    fingerprint.add(hash_of(tensors));
    indices.clear();
  }
  return fingerprint.text();
}

std::string hash_of(const optim::NamedTensors& state) {
  policy::Fingerprint fingerprint;
  for (const auto& [name, x] : state) fingerprint.add(name).add(hash_of(std::span(&x, 1)));
  return fingerprint.text();
}

Json identity_of_training(const Workload& work, const Choices& choices,
                          const optim::Optimizer& optimizer, const data::DataLoader& train,
                          const data::DataLoader* validation, int64_t steps) {
  Json settings = Json::object();
  for (const auto& [name, values] : train::option_values(optimizer, nullptr))
    settings[name] = values.size() == 1 ? Json(values[0]) : Json(values);
  const data::DataLoaderOptions& loader = train.options();
  Json data{{"hash", hash_of(train.dataset())},
            {"samples", train.dataset().size()},
            {"shuffle", loader.shuffle},
            {"drop_last", loader.drop_last},
            {"seed", *loader.seed}};
  if (validation) {
    data["validation_hash"] = hash_of(validation->dataset());
    data["validation_samples"] = validation->dataset().size();
  }
  const optim::LrSchedule rates =
      work.schedule ? work.schedule(steps) : optim::LrSchedule::constant();
  return {
      {"optimizer",
       {{"named", text_or_null(choices.optimizer)},
        {"class", optimizer.name()},
        {"options", std::move(settings)}}},
      {"schedule", {{"named", text_or_null(choices.schedule)}, {"hash", hash_of(rates, steps)}}},
      {"clip_norm", work.clip_norm},
      {"batch", loader.batch_size},
      {"data", std::move(data)}};
}

Json identity_of_place() {
  const Backend& backend = backend_for(Device::cpu());
  Json place{{"version", HALFTONE_VERSION},
             {"commit", text_or_null(built_from_commit)},
             {"compiler", __VERSION__}};
  for (const BackendStatus& status : backend_statuses())
    if (status.backend == &backend)
      place["backend"] = status.name, place["kernels"] = status.description;
  place["threads"] = cpu_threads();
  place["processor"] = text_or_null(processor());
  place["portable_bits"] = portable_bits();
  return place;
}

// --- comparing two

namespace {
std::string shown(const Json& value) {
  std::string text = value.is_string() ? value.get<std::string>()
                                       : value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return printable(text);
}

void add_differences(const std::string& name, const Json& there, const Json& here,
                     std::vector<std::string>& lines) {
  if (there == here) return;
  if (there.is_object() && here.is_object()) {
    for (const auto& [key, value] : here.items()) {
      const auto other = there.find(key);
      add_differences(name + '.' + key, other == there.end() ? Json() : *other, value, lines);
    }
    for (const auto& [key, value] : there.items())
      if (!here.contains(key)) add_differences(name + '.' + key, value, Json(), lines);
    return;
  }
  lines.push_back(name + ": " + (there.is_null() ? "unknown" : shown(there)) + " there, " +
                  (here.is_null() ? "unknown" : shown(here)) + " here");
}
}  // namespace

std::vector<std::string> differences(const Json& there, const Json& here) {
  std::vector<std::string> lines;
  for (const std::string_view field : fields) {
    const std::string key(field);
    // The path of a state does not identify it.
    if (key == "from" || key == "policy") continue;
    add_differences(key, there.value(key, Json()), here.value(key, Json()), lines);
  }
  const auto state = [](const Json& run) {
    const Json from = run.value("from", Json());
    return from.is_object() ? from.value("hash", Json()) : Json();
  };
  add_differences("from", state(there), state(here), lines);
  return lines;
}

// Compares the "for" of policy files with the model of a workload.

void note_other_model(std::ostream& out, const amp::Policy& policy, const std::string& workload,
                      const std::vector<NamedWorkload>& own) {
  const std::vector<std::string>& meant = policy.meant_for;
  const std::string model = model_of(workload, own);
  if (meant.empty() || std::ranges::find(meant, model) != meant.end()) return;
  out << "note: " << policy.name << " is for ";
  for (std::size_t i = 0; i < meant.size(); ++i)
    out << (i == 0 ? "" : i + 1 == meant.size() ? " and " : ", ") << meant[i];
  out << ", and " << workload << " trains ";
  if (model.empty()) out << "a model of its own";
  else out << model;
  out << ". Its rules may mean other layers.\n";
}

void note_noise(std::ostream& out, const std::string& workload,
                const std::vector<NamedWorkload>& own) {
  if (trains_on_noise(workload, own))
    out << "note: " << workload
        << " trains on one batch of noise. Its losses are no evidence for or "
           "against a policy.\n";
}

// Run folders may come from anywhere, so every value in them is checked.

namespace {

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
  run.study.seeds = {fields["seed"].get<uint64_t>()};
  Setup& setup = run.study.cells.at(0).setup;
  setup.workload = fields["workload"].get<std::string>();
  setup.steps = fields["steps"].get<int64_t>();
  Choices& choices = setup.choices;
  choices.lr = fields["lr"].get<double>();
  choices.optimizer = choice_in(wanted(wanted(summary, "optimizer"), "named"), optimizer_names());
  choices.schedule = choice_in(wanted(wanted(summary, "schedule"), "named"), schedule_names());
  if (const JsonValue from = wanted(summary, "from"); !from.is_null()) {
    choices.from = from.json()["path"].get<std::string>();
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
    Json summary = parsed_json(std::string(op), text);
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
  RecordedRun run{.study = {.cells = {Cell{}}}};
  run.summary = checked_summary(op, file);
  of_file(op, file, [&] { read_summary(JsonValue(std::string(op), "", run.summary), run); });
  require_policy(op, folder, run.summary["policy_hash"].get<std::string>());
  Cell& cell = run.study.cells[0];
  cell = read_cells({(folder / "policy.json").string()}, cell.setup).at(0);
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
                           const Json& settings) {
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
  // Another version may have written the same settings in another order.
  if (nlohmann::json::parse(before) != nlohmann::json::parse(now))
    fail<UsageError>(op, file.parent_path().string(), " was begun with ", shortened(before, 1000),
                     " and not ", now, ". Choose another --out.");
}

}  // namespace halftone::lab
