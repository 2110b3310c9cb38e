// Identities are JSON. A run's identity is written at its end, and compared field by field when the
// run is repeated.
#include <halftone/lab/identity.h>
#include <halftone/core/device.h>

#include <algorithm>
#include <fstream>

#include <halftone/core/backend.h>
#include <halftone/lab/setting.h>
#include <halftone/policy/policy_file.h>
#include <halftone/train/checkpoint.h>

namespace halftone::lab {

namespace {
using policy::Json;

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
  return policy::printable(text);
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

}  // namespace halftone::lab
