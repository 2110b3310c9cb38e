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

}  // namespace

std::string version() { return HALFTONE_VERSION; }

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

void identify_training(Summary& summary, const Workload& work, const Choices& choices,
                       const optim::Optimizer& optimizer, const data::DataLoader& train,
                       const data::DataLoader* validation, int64_t steps) {
  summary.optimizer = {.named = choices.optimizer, .type = std::string(optimizer.name())};
  for (const auto& [name, values] : train::option_values(optimizer, nullptr))
    summary.optimizer.options[name] = values.size() == 1 ? Json(values[0]) : Json(values);
  const optim::LrSchedule rates =
      work.schedule ? work.schedule(steps) : optim::LrSchedule::constant();
  summary.schedule = {.named = choices.schedule, .hash = hash_of(rates, steps)};
  const data::DataLoaderOptions& loader = train.options();
  summary.clip_norm = work.clip_norm, summary.batch = loader.batch_size;
  summary.data = {.hash = hash_of(train.dataset()),
                  .samples = train.dataset().size(),
                  .shuffle = loader.shuffle,
                  .drop_last = loader.drop_last,
                  .seed = *loader.seed};
  if (!validation) return;
  summary.data.validation_hash = hash_of(validation->dataset());
  summary.data.validation_samples = validation->dataset().size();
}

void identify_place(Summary& summary) {
  const Backend& backend = backend_for(Device::cpu());
  summary.version = version(), summary.commit = built_from_commit, summary.compiler = __VERSION__;
  for (const BackendStatus& status : backend_statuses())
    if (status.backend == &backend)
      summary.backend = status.name, summary.kernels = status.description;
  summary.threads = cpu_threads();
  summary.processor = processor();
  summary.portable_bits = portable_bits();
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
  for (const std::string_view field : identity_fields()) {
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

/// Returns the content of summary.json.
Json summary_in(std::string_view op, const std::filesystem::path& file) {
  const std::string text = files::read_text(op, file, std::size_t(1) << 20);
  if (!Json::accept(text)) fail<FormatError>("summary", "it is not JSON.");
  return parsed_json(std::string(op), text);
}
}  // namespace

RecordedRun read_run(std::string_view op, const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "summary.json";
  if (!std::filesystem::is_regular_file(file))
    refuse_file(op, file,
                "the file is missing. Give the folder of a run, as halftone-lab run --out leaves "
                "it.");
  RecordedRun run{.study = {.cells = {Cell{}}}};
  of_file(op, file, [&] {
    run.summary = summary_in(op, file);
    const JsonValue json(std::string(op), "", run.summary);
    run.said = read_summary(json);
    Setup& setup = run.study.cells.at(0).setup;
    setup.workload = run.said.workload, setup.steps = run.said.steps;
    setup.choices = {
        .lr = run.said.lr,
        .optimizer = choice_in(wanted(wanted(json, "optimizer"), "named"), optimizer_names()),
        .schedule = choice_in(wanted(wanted(json, "schedule"), "named"), schedule_names())};
    static_cast<void>(wanted(json, "from"));
    setup.choices.from = run.said.from.path;
  });
  run.study.seeds = {run.said.seed};
  require_policy(op, folder, run.said.policy_hash);
  Cell& cell = run.study.cells[0];
  cell = read_cells({(folder / "policy.json").string()}, cell.setup).at(0);
  return run;
}

void require_finished_run(std::string_view op, const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "summary.json";
  const Summary summary = of_file(
      op, file, [&] { return read_summary(JsonValue(std::string(op), "", summary_in(op, file))); });
  std::vector<const char*> names{"policy.json", "resolved.json", "metrics.jsonl"};
  if (summary.probe > 0) names.push_back("probe.jsonl");
  std::error_code ignored;
  for (const char* name : names)
    if (!std::filesystem::is_regular_file(folder / name, ignored))
      refuse_file(op, folder / name,
                  "the file is missing, although the run is finished. Put it back, or remove the "
                  "folder: then this run is done again.");
  require_policy(op, folder, summary.policy_hash);
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
  const Json json(read_json(op, file));
  const JsonValue whole(std::string(op), "", json);
  const Summary summary = of_file(op, file, [&] {
    for (const char* field : {"loss", "milliseconds_per_step"})
      static_cast<void>(wanted(whole, field));
    return Record::read_known(whole, Summary{});
  });
  return RunResult{.policy = policy,
                   .seed = seed,
                   .loss = summary.loss,
                   .late_loss = summary.late_loss,
                   .validation_loss = summary.validation_loss,
                   .validation_accuracy = summary.validation_accuracy,
                   .milliseconds = summary.milliseconds_per_step,
                   .skipped = summary.skipped_steps,
                   .least_sqnr = std::numeric_limits<double>::infinity(),
                   .summary = json.dump(),
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
