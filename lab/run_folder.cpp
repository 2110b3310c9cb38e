// Reads runs on disk.
#include <halftone/lab/run_folder.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/summary.h>
#include <halftone/lab/table.h>
#include <halftone/amp/policy.h>

namespace halftone::lab {

using nlohmann::json;

namespace {

/// Reads {"-31": 17} into counts that begin at `lowest`. Returns false for an invalid key or count.
bool read_bins(const json& bins, int lowest, double* counts, int size) {
  for (const auto& [key, count] : bins.items()) {
    int exponent = 0;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), exponent);
    if (read.ec != std::errc() || read.ptr != key.data() + key.size()) return false;
    if (exponent < lowest || exponent >= lowest + size || !count.is_number()) return false;
    const double value = count.get<double>();
    if (!(value >= 0) || !std::isfinite(value)) return false;
    counts[exponent - lowest] = value;
  }
  return true;
}

std::optional<policy::ProbeRow> survey_row_of(const json& line) {
  const auto step = count_in(line, "step");
  const auto role = policy::role_named(text_in(line, "role"));
  if (!step || !role || !number_in(line, "count")) return {};
  policy::ProbeRow row;
  row.step = *step, row.site = text_in(line, "site"), row.role = *role;
  row.input = std::size_t(count_in(line, "input").value_or(0));
  row.quantizer = text_in(line, "quantizer");
  row.scale = number_in(line, "scale").value_or(0);
  row.ideal = number_in(line, "ideal").value_or(0);
  row.loss_scale = number_in(line, "loss_scale").value_or(1);
  each_sum([&](const char* name, SumKind, double& x) { x = number_in(line, name).value_or(0); },
           row.survey.sums);
  const json& flips = object_in(line, "flips");
  row.flips = {.count = number_in(flips, "count").value_or(0),
               .flipped = number_in(flips, "flipped").value_or(0),
               .returned = number_in(flips, "returned").value_or(0)};
  if (!read_bins(object_in(line, "binades"), Survey::lowest_exponent, row.survey.binade.data(),
                 Survey::binades))
    return {};
  return row;
}

policy::UpdateSums update_sums_of(const json& object) {
  policy::UpdateSums result;
  const auto read = [&](const char* name) { return number_in(object, name).value_or(0); };
  result.count = read("count"), result.lost = read("lost");
  result.du = read("du"), result.uu = read("uu"), result.ww = read("ww");
  return result;
}

std::optional<policy::UpdateRow> update_row_of(const json& line) {
  const auto step = count_in(line, "step");
  if (!step) return {};
  policy::UpdateRow row;
  row.step = *step, row.parameter = text_in(line, "parameter"), row.form = text_in(line, "form");
  row.state = text_in(line, "state");
  row.stored = update_sums_of(object_in(line, "stored"));
  row.seen = update_sums_of(object_in(line, "seen"));
  if (!read_bins(object_in(line, "by_ulp"), policy::UpdateRow::lowest_bin, row.by_ulp.data(),
                 policy::UpdateRow::bins))
    return {};
  return row;
}

/// Splits a line at commas and removes quotes around cells.
std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  for (;;) {
    const std::size_t end = std::min(line.find(','), line.size());
    std::string_view cell = line.substr(0, end);
    while (!cell.empty() && std::string_view(" \t\r\"").find(cell.back()) != cell.npos)
      cell.remove_suffix(1);
    while (!cell.empty() && std::string_view(" \t\"").find(cell.front()) != cell.npos)
      cell.remove_prefix(1);
    cells.push_back(cell);
    if (end == line.size()) return cells;
    line.remove_prefix(end + 1);
  }
}

constexpr const char* files_of_runs[] = {"summary.json", "metrics.jsonl", "metrics.csv",
                                         "probe.jsonl",  "resolved.json", "compare.json"};

std::vector<std::filesystem::path> searches_in(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    if (entry.path().filename().string().ends_with("search.json") && entry.is_regular_file(ignored))
      found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}
}  // namespace

RunFolder::RunFolder(std::string_view op, std::filesystem::path path)
    : op_(op), path_(std::move(path)) {
  std::error_code ignored;
  if (!path_.has_filename()) path_ = path_.parent_path();  // "runs/x/"
  is_file_ = std::filesystem::is_regular_file(path_, ignored);
  const std::string kind = path_.extension().string();
  if (is_file_ && kind != ".csv" && kind != ".jsonl")
    fail<FormatError>(op, path_.string(),
                      ": a file that is neither .csv nor .jsonl. Give folders "
                      "of runs, or metrics with columns step and loss.");
  if (!is_file_ && !is_run(path_))
    fail<FormatError>(op, path_.string(),
                      ": it has no runs. Give folders that `halftone-lab run --out` made.");
}

bool RunFolder::is_run(const std::filesystem::path& folder) {
  return !searches_in(folder).empty() || std::ranges::any_of(files_of_runs, [&](const char* file) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(folder / file, ignored);
  });
}

bool RunFolder::was_trained() const {
  return is_file_ || has("summary.json") || has("metrics.jsonl") || has("metrics.csv") ||
         has("probe.jsonl") || has("resolved.json");
}

std::string RunFolder::name() const {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path_, error).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

bool RunFolder::has(const char* file) const {
  std::error_code ignored;
  return !is_file_ && std::filesystem::is_regular_file(path_ / file, ignored);
}

std::vector<std::filesystem::path> RunFolder::searches() const {
  return is_file_ ? std::vector<std::filesystem::path>{} : searches_in(path_);
}

void RunFolder::note_skipped(int64_t lines, const char* file) {
  if (lines > 0)
    notes_.push_back((is_file_ ? path_ : path_ / file).string() + ": " + std::to_string(lines) +
                     (lines == 1 ? " line was" : " lines were") +
                     " skipped, for what is in them could not be read.");
}

void RunFolder::note_missing(const char* file, const char* what) {
  if (has("summary.json"))
    notes_.push_back((path_ / file).string() + " is missing, so " + what + '.');
}

void RunFolder::require_own_policy() {
  const auto summary = this->summary();
  if (!summary) return;
  if (has("policy.json")) require_policy(op_, path_, summary->texts.at("policy_hash"));
  else note_missing("policy.json", "the policy's hash was not checked");
}

std::optional<RunSummary> RunFolder::summary() const {
  if (!has("summary.json")) return {};
  const json file = read_json(op_, path_ / "summary.json");
  of_file(op_, path_ / "summary.json",
          [&] { static_cast<void>(read_summary(JsonValue(op_, "", Json(file)))); });
  RunSummary result;
  const auto keep = [&](const std::string& name, const json& value) {
    if (value.is_string()) result.texts[name] = value.get<std::string>();
    else if (value.is_number() && std::isfinite(value.get<double>()))
      result.numbers[name] = value.get<double>();
  };
  for (const auto& [key, value] : file.items()) {
    keep(key, value);
    if (value.is_object() && key != "bytes_at_peak")
      for (const auto& [inner, member] : value.items()) keep(key + "." + inner, member);
  }
  for (const auto& [use, bytes] : object_in(file, "bytes_at_peak").items())
    if (bytes.is_number() && bytes.get<double>() >= 0)
      result.bytes_at_peak.emplace_back(use, bytes.get<double>());
  return result;
}

void RunFolder::each_metrics_line(const std::function<void(const MetricsLine&)>& use) {
  if (is_file_ ? path_.extension() == ".csv" : !has("metrics.jsonl")) {
    if (is_file_ || has("metrics.csv")) read_csv_metrics(use);
    else note_missing("metrics.jsonl", "the metrics of the run's steps are left out");
    return;
  }
  note_skipped(each_json_line(op_, is_file_ ? path_ : path_ / "metrics.jsonl",
                              [&](const json& line) {
                                MetricsLine numbers;
                                for (const auto& [key, value] : line.items())
                                  if (value.is_number() && std::isfinite(value.get<double>()))
                                    numbers[key] = value.get<double>();
                                if (!numbers.contains("step")) return false;
                                use(numbers);
                                return true;
                              }),
               "metrics.jsonl");
}

void RunFolder::read_csv_metrics(const std::function<void(const MetricsLine&)>& use) {
  const std::filesystem::path file = is_file_ ? path_ : path_ / "metrics.csv";
  const std::string text = files::read_text(op_, file, std::size_t(1) << 28);
  std::vector<std::string> heads;
  int64_t skipped = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const auto cells = cells_of(std::string_view(text).substr(at, end - at));
    at = end + 1;
    if (heads.empty()) {
      heads.assign(cells.begin(), cells.end());
      if (std::ranges::find(heads, "step") == heads.end())
        fail<FormatError>(op_, file.string(),
                          ": no column is called step. Give a first line such as step,loss.");
      continue;
    }
    MetricsLine numbers;
    for (std::size_t i = 0; i < std::min(cells.size(), heads.size()); ++i)
      if (const auto number = number_of(cells[i])) numbers[heads[i]] = *number;
    if (numbers.contains("step")) use(numbers);
    else skipped += cells.size() > 1 || !cells[0].empty();
  }
  note_skipped(skipped, "metrics.csv");
}

void RunFolder::each_probe_line(const std::function<void(const policy::ProbeRow&)>& survey,
                                const std::function<void(const policy::UpdateRow&)>& update) {
  if (!has("probe.jsonl")) {
    if (auto summary = this->summary(); summary && summary->numbers["probe"] > 0)
      note_missing("probe.jsonl", "the telemetry of the run is left out");
    return;
  }
  note_skipped(each_json_line(op_, path_ / "probe.jsonl",
                              [&](const json& line) {
                                if (line.contains("site")) {
                                  const auto row = survey_row_of(line);
                                  if (row) survey(*row);
                                  return row.has_value();
                                }
                                const auto row = update_row_of(line);
                                if (row && line.contains("parameter")) update(*row);
                                return row && line.contains("parameter");
                              }),
               "probe.jsonl");
}

std::vector<RecordedSite> RunFolder::resolved() {
  std::vector<RecordedSite> result;
  if (!has("resolved.json")) {
    note_missing("resolved.json", "the treatment of the run's sites is left out");
    return result;
  }
  const json file = read_json(op_, path_ / "resolved.json");
  for (const json& site : array_in(file, "sites")) {
    if (text_in(site, "site").empty()) continue;
    RecordedSite row{text_in(site, "site"), text_in(site, "computes_in"), {}};
    for (const auto& [role, quantizer] : object_in(site, "roles").items())
      if (quantizer.is_string()) row.roles.emplace_back(role, quantizer.get<std::string>());
    result.push_back(std::move(row));
  }
  return result;
}

std::vector<RecordedSwitch> RunFolder::switches() {
  std::vector<RecordedSwitch> result;
  if (!has("switches.jsonl")) return result;
  const json rules = has("resolved.json")
                         ? array_in(read_json(op_, path_ / "resolved.json"), "rules")
                         : json::array();
  note_skipped(
      each_json_line(op_, path_ / "switches.jsonl",
                     [&](const json& line) {
                       const auto step = count_in(line, "step"), rule = count_in(line, "rule");
                       const std::string site = text_in(line, "site");
                       if (!step || !rule || site.empty()) return false;
                       const auto at = std::size_t(*rule);
                       const std::string name =
                           at < rules.size() && rules[at].is_string() ? rules[at] : json("");
                       result.push_back({*step, name.empty() ? "rule " + std::to_string(at) : name,
                                         site, line.value("on", json(false)) == json(true)});
                       return true;
                     }),
      "switches.jsonl");
  return result;
}

SweepCell RunFolder::cell() const {
  SweepCell cell;
  if (!has("cell.json")) return cell;
  const json file = read_json(op_, path_ / "cell.json");
  cell.policy = text_in(file, "policy");
  for (const auto& [axis, value] : object_in(file, "axes").items())
    if (value.is_string()) cell.values[axis] = value.get<std::string>();
  return cell;
}

namespace {
/// Returns the place of the run's policy in the command that trained it; 0 if no file says it.
double order_of(const RunFolder& folder) {
  try {
    const auto summary = folder.summary();
    if (!summary) return 0;
    const auto order = summary->numbers.find("order");
    return order == summary->numbers.end() ? 0 : order->second;
  } catch (const FormatError&) { return 0; }  // run_folders() reads the file again and reports it
}

/// Keeps the first of several paths to one run.
void keep_first_of_each(std::vector<RunFolder>& folders) {
  std::set<std::filesystem::path> seen;
  std::erase_if(folders, [&](const RunFolder& folder) {
    std::error_code error;
    const std::filesystem::path whole = std::filesystem::canonical(folder.path(), error);
    return !seen.insert(error ? folder.path() : whole).second;
  });
}
}  // namespace

std::optional<double> number_of(std::string_view cell) {
  double value = 0;
  const auto read = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (read.ec != std::errc() || read.ptr != cell.data() + cell.size() || !std::isfinite(value))
    return {};
  return value;
}

std::vector<RunFolder> run_folders(std::string_view op,
                                   const std::vector<std::filesystem::path>& paths,
                                   std::vector<std::string>& notes) {
  std::vector<RunFolder> result;
  std::string first_mistake;
  for (const std::filesystem::path& path : paths) {
    try {
      result.emplace_back(op, path);
      if (result.back().was_trained()) continue;  // a folder may have only a comparison
    } catch (const FormatError& error) {
      std::error_code ignored;
      if (!std::filesystem::is_directory(path, ignored)) throw;
      if (first_mistake.empty()) first_mistake = error.what();
    }
    std::vector<std::filesystem::path> inner;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(path, error))
      if (RunFolder::is_run(entry.path())) inner.push_back(entry.path());
    std::ranges::sort(inner);
    std::vector<std::pair<double, RunFolder>> ordered;
    for (const std::filesystem::path& run : inner) {
      RunFolder folder(op, run);
      const double order = order_of(folder);
      ordered.emplace_back(order, std::move(folder));
    }
    std::ranges::stable_sort(ordered, {}, &std::pair<double, RunFolder>::first);
    for (auto& [order, folder] : ordered) result.push_back(std::move(folder));
    if (inner.empty() && !RunFolder::is_run(path))
      notes.push_back(path.string() + ": it has no runs.");
  }
  if (result.empty() && !first_mistake.empty()) throw FormatError(first_mistake);
  keep_first_of_each(result);
  for (RunFolder& folder : result) folder.require_own_policy();
  return result;
}

void refuse_file(std::string_view op, const std::filesystem::path& file, std::string_view problem) {
  fail<FormatError>(std::string(op), printable(file.string()), ": ",
                    printable(std::string(problem)));
}

JsonValue wanted(const JsonValue& object, std::string_view key) {
  if (!object.is_object()) object.refuse("expected an object.");
  const auto found = object.find(key);
  if (!found) object.refuse("the entry \"", key, "\" is missing.");
  return *found;
}

void require_policy(std::string_view op, const std::filesystem::path& folder,
                    std::string_view policy_hash) {
  const std::filesystem::path file = folder / "policy.json";
  of_file(op, file, [&] {
    if (const std::string there = policy::hash(policy::read(file)); there != policy_hash)
      fail<FormatError>("policy", "its hash is ", there, ", and that of the run's policy ",
                        policy_hash, ".");
  });
}

}  // namespace halftone::lab
