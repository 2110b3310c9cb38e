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

constexpr int64_t most_counts = int64_t(1) << 53;

// --- entries of summary.json

/// A text; null: unknown.
void fact(Record& r, std::string_view name, std::string& x) {
  r.entry(
      name, x, {}, [](const JsonValue& v) { return v.is_null() ? "" : v.text(); },
      [](const std::string& text) { return text.empty() ? Json() : Json(text); });
}

template <class Text> void hash(Record& r, std::string_view name, Text& x) {
  r.entry(name, x, {}, [](const JsonValue& v) {
    const std::string text = v.text();
    if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
      v.refuse("expected 16 hexadecimal digits, got \"", text.substr(0, 40), "\".");
    return text;
  });
}

void seed(Record& r, std::string_view name, uint64_t& x) {
  r.entry(name, x, {}, [](const JsonValue& v) {
    if (!v.json().is_number_unsigned()) v.refuse("expected a whole number from 0 to 2^64 - 1.");
    return v.json().get<uint64_t>();
  });
}

double size_in(const JsonValue& v) {
  const double x = v.number();
  if (!(x >= 0)) v.refuse("expected a number from 0, got ", x, '.');
  return x;
}

/// A number of the results; null: the run diverged, or had no validation data.
void result(Record& r, std::string_view name, double& x, double (*read)(const JsonValue&)) {
  r.entry(
      name, x, {}, [=](const JsonValue& v) { return v.is_null() ? std::nan("") : read(v); },
      [](double value) { return std::isnan(value) ? Json() : Json(value); });
}

template <class T>
void named(Record& r, std::string_view name, Named<T>& x, T (*read)(const JsonValue&)) {
  r.entry(
      name, x, {},
      [=](const JsonValue& v) {
        if (!v.is_object()) v.refuse("expected an object.");
        Named<T> numbers;
        for (const JsonValue& member : v.members())
          numbers.emplace_back(member.key(), read(member));
        return numbers;
      },
      [](const Named<T>& numbers) {
        Json object = Json::object();
        for (const auto& [key, value] : numbers) object[key] = value;
        return object;
      });
}

void origin(Record& r, Summary::Origin& x) {
  r.entry(
      "from", x, {},
      [](const JsonValue& v) {
        Summary::Origin from;
        if (v.is_null()) return from;
        if (from.path = wanted(v, "path").text(); from.path.empty())
          wanted(v, "path").refuse("expected a path, got \"\".");
        static_cast<void>(wanted(v, "hash"));
        from = Record::read_known(v, from);
        return from;
      },
      [](const Summary::Origin& from) { return from.path.empty() ? Json() : Record::write(from); });
}

void describe_settings(Record& r, Summary& s) {
  hash(r, "policy_hash", s.policy_hash);
  r.text("workload", s.workload);
  seed(r, "seed", s.seed);
  r.integer("steps", s.steps, 1, most_steps);
  r.entry("lr", s.lr, {}, [](const JsonValue& v) {
    if (const double lr = v.number(); lr > 0) return lr;
    v.refuse("expected a number above 0, got ", v.number(), '.');
  });
  r.group("optimizer", "an optimizer", [&](Record& inner) {
    fact(inner, "named", s.optimizer.named);
    fact(inner, "class", s.optimizer.type);
    inner.entry("options", s.optimizer.options, {}, [](const JsonValue& v) { return v.json(); });
  });
  r.group("schedule", "a schedule", [&](Record& inner) {
    fact(inner, "named", s.schedule.named);
    fact(inner, "hash", s.schedule.hash);
  });
  r.entry("clip_norm", s.clip_norm, {}, size_in);
  r.integer("batch", s.batch, 0, most_counts);
  r.group("data", "data", [&](Record& inner) {
    fact(inner, "hash", s.data.hash);
    inner.integer("samples", s.data.samples, 0, most_counts);
    inner.flag("shuffle", s.data.shuffle);
    inner.flag("drop_last", s.data.drop_last);
    seed(inner, "seed", s.data.seed);
    hash(inner, "validation_hash", s.data.validation_hash);
    inner.integer("validation_samples", s.data.validation_samples, 0, most_counts);
  });
  origin(r, s.from);
}

void describe_identity(Record& r, Summary& s) {
  r.text("policy", s.policy);
  hash(r, "resolved_hash", s.resolved_hash);
  describe_settings(r, s);
  fact(r, "version", s.version);
  fact(r, "commit", s.commit);
  fact(r, "compiler", s.compiler);
  fact(r, "backend", s.backend);
  fact(r, "kernels", s.kernels);
  r.integer("threads", s.threads, 0, most_counts);
  fact(r, "processor", s.processor);
  r.entry("portable_bits", s.portable_bits, {},
          [](const JsonValue& v) { return !v.is_null() && v.boolean(); });
}

template <auto body> std::span<const std::string_view> names_of() {
  static const auto list = Record::names([](Record& r) {
    Summary scratch;
    body(r, scratch);
  });
  return list;
}

/// Every version wrote these fields.
constexpr std::string_view required_fields[] = {
    "format", "policy",    "policy_hash",           "workload",      "seed",        "steps", "lr",
    "loss",   "late_loss", "milliseconds_per_step", "skipped_steps", "weights_hash"};
}  // namespace

void describe(Record& r, Summary::Origin& from) {
  r.text("path", from.path);
  hash(r, "hash", from.hash);
}

void describe(Record& r, Summary& s) {
  int64_t format = 1;
  r.entry("format", format, {}, [](const JsonValue& v) {
    if (const int64_t there = v.integer(0, 1'000'000); there != 1)
      v.refuse("the format is ", there, ", and this program reads 1.");
    return int64_t(1);
  });
  describe_identity(r, s);
  result(r, "loss", s.loss, [](const JsonValue& v) { return v.number(); });
  result(r, "late_loss", s.late_loss, [](const JsonValue& v) { return v.number(); });
  result(r, "validation_loss", s.validation_loss, [](const JsonValue& v) { return v.number(); });
  result(r, "validation_accuracy", s.validation_accuracy,
         [](const JsonValue& v) { return v.number(); });
  r.integer("parameters", s.parameters, 0, most_counts);
  r.integer("tokens", s.tokens, 0, most_counts);
  named(r, "operands", s.operands, size_in);
  result(r, "milliseconds_per_step", s.milliseconds_per_step, size_in);
  r.integer("skipped_steps", s.skipped_steps, 0, most_counts);
  hash(r, "weights_hash", s.weights_hash);
  r.integer("probe", s.probe, 0, most_counts);
  r.integer("probe_from", s.probe_from, 0, most_counts);
  fact(r, "environment", s.environment);
  named<int64_t>(r, "bytes_at_peak", s.bytes_at_peak,
                 [](const JsonValue& v) { return v.integer(0, most_counts); });
  r.integer("order", s.order, 0, most_counts);
}

Summary read_summary(const JsonValue& json) {
  for (const std::string_view field : required_fields) static_cast<void>(wanted(json, field));
  return Record::read_known(json, Summary{});
}

std::string version() { return HALFTONE_VERSION; }

std::span<const std::string_view> identity_fields() { return names_of<describe_identity>(); }
std::span<const std::string_view> settings_fields() { return names_of<describe_settings>(); }

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
