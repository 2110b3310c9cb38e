// Trains each cell in a process of its own, so a crash of one does not end the sweep.
#include <halftone/lab/sweep.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/core/device.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/commands/commands.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/run.h>
#include <halftone/lab/run_folder.h>
#include <halftone/lab/table.h>
#include <halftone/core/json_value.h>
#include <halftone/amp/policy.h>
#include <halftone/train/checkpoint.h>

namespace halftone::lab {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

[[noreturn]] void cannot_use(const fs::path& path, const std::error_code& error) {
  fail<FormatError>("sweep", "cannot use ", path.string(), ": ", error.message(),
                    ". Check the path and its permissions.");
}

bool is_there(const fs::path& path) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  if (error) cannot_use(path, error);
  return there;
}

struct Task {
  const Point* point;
  Job job;
  fs::path log;

  bool is_finished() const { return is_there(job.folder / "summary.json"); }
  RunResult result() const {
    const auto result = finished_run("sweep", job.folder, point->name, job.seed);
    if (!result)
      fail<FormatError>("sweep", job.folder.string(),
                        " has no summary.json. Start the sweep again.");
    return *result;
  }
  /// Writes the place of a finished run in the sweep into its folder, for the report.
  void record() const { files::replace("sweep", job.folder / "cell.json", point->record); }
};

class Sweep {
 public:
  Sweep(const SweepOptions& options, const std::vector<NamedWorkload>& own, std::ostream& progress)
      : options_(options),
        progress_(progress),
        points_(points_of(options.policy, options.axes)),
        baseline_(baseline_of(options.against, options.axes, points_)),
        jobs_("sweep", options.jobs) {
    const std::vector<Cell> cells = cells_of(points_, options.setup, own);
    for (const char* folder : {"policies", "logs"})
      files::make_directories("sweep", options.out / folder);
    lock_.emplace(options.out, "sweep");
    Json settings = json_of(options.setup);  // that are not axes: the runs can be compared
    settings["portable_bits"] = portable_bits();
    require_same_settings("sweep", options.out / "sweep.json", settings);
    for (const uint64_t seed : options.seeds)
      for (std::size_t i = 0; i < cells.size(); ++i) {
        Job job = job_of(cells[i], seed, options.out);
        job.order = i;
        const fs::path log = options.out / "logs" / (job.folder.filename().string() + ".log");
        tasks_.push_back({&points_[i], std::move(job), log});
      }
    for (const Task& task : tasks_)
      if (task.is_finished()) require_same_policy(task);
    require_effects(options.axes, points_, cells);
    for (std::size_t i = 0; i < cells.size(); ++i)
      if (!tasks_[i].is_finished()) require_fit(cells[i], own);
    for (const Point& point : points_) files::replace("sweep", file_of(point), point.policy);
    for (const Task& task : tasks_)
      if (task.is_finished()) task.record();
    for (const Cell& cell : cells) workloads_.insert(cell.setup.workload);
  }

  /// Returns the workload of each cell, each once.
  const std::set<std::string>& workloads() const { return workloads_; }

  /// Runs the tasks. Returns the number of tasks that failed.
  int run() {
    std::vector<const Task*> of_job;
    for (const Task& task : tasks_) {
      if (task.is_finished()) continue;
      put_aside(task.job.folder);
      jobs_.add(task.job, task.log);
      of_job.push_back(&task);
    }
    done_ = tasks_.size() - jobs_.left();
    if (done_ > 0)
      progress_ << done_ << " of " << tasks_.size() << " runs are already done" << std::endl;
    while (const auto ended = jobs_.next()) report(*of_job[ended->number], *ended);
    if (Jobs::stopped())
      progress_ << "stopped; the same command goes on with what is left" << std::endl;
    return failed_;
  }

  /// Returns the runs of complete cells; those of the baseline are the first.
  std::vector<RunResult> results() const {
    std::vector<RunResult> results;
    for (const bool first : {true, false})
      for (const Task& task : tasks_)
        if ((task.point == &baseline_) == first && complete(*task.point))
          results.push_back(task.result());
    return results;
  }

  /// Returns the effects of the axes, if all cells are complete.
  std::string effects(const std::vector<RunResult>& results) const {
    if (results.size() < tasks_.size()) return "";
    return effects_of(options_.axes, points_, baseline_, results);
  }

 private:
  fs::path file_of(const Point& point) const {
    return options_.out / "policies" / (point.name + ".json");
  }

  void require_same_policy(const Task& task) const {
    const fs::path file = file_of(*task.point);
    if (is_there(file) && files::read_text("sweep", file, 1 << 20) != task.point->policy)
      fail<UsageError>("sweep", task.job.folder.string(),
                       " was run under another policy of this name. Choose another --out.");
  }

  bool complete(const Point& point) const {
    return std::ranges::all_of(
        tasks_, [&](const Task& task) { return task.point != &point || task.is_finished(); });
  }

  /// Moves an unfinished run, which has no summary, to unfinished/. Nothing of it is deleted.
  void put_aside(const fs::path& folder) const {
    if (!is_there(folder)) return;
    const train::DirectoryLock lock(folder, "sweep");  // throws if a run is still using the folder
    const fs::path place = options_.out / "unfinished";
    files::make_directories("sweep", place);
    int number = 1;
    const auto name = [&] {
      return place / (folder.filename().string() + "-" + std::to_string(number));
    };
    while (is_there(name())) ++number;
    std::error_code error;
    fs::rename(folder, name(), error);
    if (error) cannot_use(folder, error);
  }

  void report(const Task& task, const Jobs::Ended& ended) {
    ++done_, ++finished_;
    progress_ << '[' << done_ << '/' << tasks_.size() << "] " << task.point->name << ", seed "
              << task.job.seed << ": ";
    if (ended.result) {
      task.record();
      progress_ << "loss " << number(ended.result->loss);
    } else ++failed_, progress_ << "failed: " << printable(ended.problem);
    const double each = seconds() / double(finished_);
    if (jobs_.left() > 0) progress_ << "; " << time_left(each * double(jobs_.left()));
    progress_ << std::endl;
  }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

  const SweepOptions& options_;
  std::ostream& progress_;
  std::optional<train::DirectoryLock> lock_{};
  std::vector<Point> points_;
  const Point& baseline_;
  std::vector<Task> tasks_{};
  std::set<std::string> workloads_{};
  Jobs jobs_;
  std::size_t done_ = 0, finished_ = 0;
  int failed_ = 0;
  Clock::time_point began_ = Clock::now();
};

}  // namespace

int run_sweep(const SweepOptions& options, const std::vector<NamedWorkload>& own,
              std::ostream& progress) {
  if (options.axes.empty() || options.seeds.empty() || options.jobs < 1 || options.out.empty())
    fail<UsageError>("sweep", options.axes.size(), " axes, ", options.seeds.size(), " seeds, ",
                     options.jobs, " jobs, folder \"", options.out.string(),
                     "\". Give at least one --axis, a seed, a job, and --out.");
  require_json(options.json);
  Sweep sweep(options, own, progress);
  for (const std::string& workload : sweep.workloads())
    name_workload(words_next_to(options.json), workload, own);
  const int failed = sweep.run();
  const std::vector<RunResult> results = sweep.results();
  if (!results.empty())
    words_next_to(options.json) << table_of(results) << remarks_on(results)
                                << sweep.effects(results);
  write_json(options.json, json_of(results));
  if (failed > 0) progress << failed << " failed" << std::endl;
  return Jobs::stopped() ? exit_undecided : failed == 0 ? exit_yes : exit_no;
}

Work add_sweep(CLI::App& app, const Context& context) {
  struct Options {
    SweepOptions sweep{};
    std::vector<std::string> axes{};
  };
  auto options = std::make_shared<Options>();
  SweepOptions& sweep = options->sweep;
  sweep.setup.workload = context.workload;
  app.add_option("policy", sweep.policy, "a file (x.json), a strategy, or a shipped policy (mxfp8)")
      ->required();
  app.add_option("--axis", options->axes,
                 "NAME=VALUE,VALUE: a field of the file (quantizers.q.scale.history), or an option "
                 "of run (lr, steps, optimizer, schedule, from, workload); once for each axis. "
                 "A,B=VALUE,VALUE gives several fields the same value")
      ->required()
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--against", sweep.against,
                 "NAME=VALUE,NAME=VALUE: the cell with which others are compared; default: the "
                 "first value of each axis");
  add_seeds(app, sweep.seeds, "seeds of each cell: 0..4 or 0,3,7; default: 0");
  add_training(app, sweep.setup, context);
  app.add_option("--jobs", sweep.jobs, "the number of runs at once")
      ->capture_default_str()
      ->check(whole_number(1, most_jobs));
  app.add_option("--out", sweep.out, "the folder for policies, logs, and a folder for each run")
      ->required();
  add_json(app, sweep.json);
  return [options, &context, &app] {
    for (const std::string& text : options->axes) {
      const Axis& axis = options->sweep.axes.emplace_back(axis_of(text));
      for (const std::string& name : run_options_of(axis))
        if (app.count("--" + name) > 0)
          fail<UsageError>("sweep", "--", name, " and the axis ", in_quotes(text),
                           " set the same option. Leave one of them out.");
    }
    return run_sweep(options->sweep, context.own, std::cerr);
  };
}

// From axes to policy files.

namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 6> run_options{"lr",       "steps", "optimizer",
                                                      "schedule", "from",  "workload"};
constexpr std::size_t most_cells = 10'000;

bool is_run_option(const std::string& name) {
  return std::ranges::find(run_options, name) != run_options.end();
}

std::vector<std::string> split(const std::string& text, char by) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(by, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

/// Splits at commas outside of lists, objects and quoted texts.
std::vector<std::string> split_values(const std::string& text) {
  std::vector<std::string> values(1);
  int depth = 0;
  bool quoted = false, escaped = false;
  for (const char c : text) {
    if (c == '"' && !escaped) quoted = !quoted;
    escaped = quoted && c == '\\' && !escaped;
    if (!quoted) depth += c == '[' || c == '{' ? 1 : c == ']' || c == '}' ? -1 : 0;
    if (c == ',' && depth <= 0 && !quoted) values.emplace_back();
    else values.back() += c;
  }
  return values;
}

/// Replaces characters that are not safe in a file name, and cuts after 60.
std::string plain(std::string text) {
  for (char& c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_' && c != '=' &&
        c != '-' && c != '+')
      c = '_';
  return text.substr(0, 60);
}

/// A policy file as JSON, with its name, which begins those of its cells.
struct Source {
  std::string name;
  Json json;
};

Source source_of(const std::string& policy) {
  if (!policy.ends_with(".json")) {
    const std::string name = policy::named_or_read(policy).name;
    return {name, Json{{"halftone_policy", 1}, {"name", policy}, {"extends", policy}}};
  }
  const std::string name = policy::read(policy).name;
  Json json = Json::parse(files::read_text("sweep", policy, 1 << 20));
  if (const auto base = json.find("extends"); base != json.end() && base->is_string()) {
    const auto& named = base->get_ref<const std::string&>();
    if (named.ends_with(".json"))
      *base = fs::absolute(fs::path(policy).parent_path() / named).string();
  }
  return {name, std::move(json)};
}

/// Parses a number, a list, true, "a text", ... A value that is not valid JSON is a text.
Json value_of(const std::string& text) {
  if (!is_within_limits(text))
    fail<FormatError>("sweep", "the value ", in_quotes(text), " has more than ", most_json_levels,
                      " levels of braces and brackets. Give a simpler one.");
  Json value = Json::parse(text, nullptr, false);
  return value.is_discarded() ? Json(text) : value;
}

/// Returns an option of `run` without spaces around it, and without the quotes of a JSON text.
std::string option_of(const std::string& value) {
  const Json json = value_of(value);
  if (json.is_string() && value.find('"') != std::string::npos) return json.get<std::string>();
  const std::size_t begin = value.find_first_not_of(' '), end = value.find_last_not_of(' ');
  return begin == std::string::npos ? "" : value.substr(begin, end - begin + 1);
}

void set_field(Json& json, const std::string& name, const std::string& value) {
  Json* at = &json;
  const std::vector<std::string> parts = split(name, '.');
  if (parts.size() > most_json_levels)
    fail<FormatError>("sweep", "the field ", in_quotes(name), " is ", parts.size(),
                      " levels deep. A policy has at most ", most_json_levels, ".");
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (at->is_array()) {
      std::size_t place = 0;
      const char* const end = parts[i].data() + parts[i].size();
      const auto read = std::from_chars(parts[i].data(), end, place);
      if (read.ec != std::errc() || read.ptr != end || place >= at->size())
        fail<FormatError>("sweep", name, ": the list there has ", at->size(), " entries, got \"",
                          parts[i], "\". Give a number below.");
      at = &(*at)[place];
    } else if (at->is_object() || at->is_null()) {
      at = &(*at)[parts[i]];  // reading the file later refuses an unknown field
    } else {
      fail<FormatError>("sweep", name, ": the entry before \"", parts[i],
                        "\" is not an object, so it has no fields. Name another field.");
    }
  }
  *at = value_of(value);
}

}  // namespace

Axis axis_of(const std::string& text) {
  const std::size_t equals = text.find('=');
  Axis axis{text.substr(0, equals), {}};
  if (equals != std::string::npos) axis.values = split_values(text.substr(equals + 1));
  if (run_options_of(axis).size() == split(axis.name, ',').size())
    for (std::string& value : axis.values) value = option_of(value);
  if (axis.name.empty() || axis.values.empty() ||
      std::ranges::find(axis.values, "") != axis.values.end())
    fail<UsageError>("sweep", "\"", text, "\" is not an axis. Write NAME=VALUE,VALUE.");
  std::set<Json> meant;
  for (const std::string& value : axis.values) meant.insert(value_of(value));
  if (meant.size() != axis.values.size())
    fail<UsageError>("sweep", "\"", text, "\" has a value twice. Give each once.");
  return axis;
}

std::vector<std::string> run_options_of(const Axis& axis) {
  std::vector<std::string> fields = split(axis.name, ',');
  std::erase_if(fields, [](const std::string& field) { return !is_run_option(field); });
  return fields;
}

namespace {
/// Returns the last name of a field: "history", or "block.1" for an entry of a list.
std::string last_name(const std::string& field) {
  std::size_t begin = field.rfind('.') + 1;  // 0 without a dot
  const bool is_number = field.find_first_not_of("0123456789", begin) == std::string::npos;
  if (begin > 1 && is_number) begin = field.rfind('.', begin - 2) + 1;
  return field.substr(begin);
}
}  // namespace

std::vector<std::string> short_names(const std::vector<Axis>& axes) {
  std::vector<std::string> last, names;
  for (const Axis& axis : axes) {
    std::string& joined = last.emplace_back();
    std::set<std::string> seen;
    for (const std::string& field : split(axis.name, ',')) {
      const std::string end = last_name(field);
      if (seen.insert(end).second) joined += (joined.empty() ? "" : "+") + end;
    }
  }
  for (std::size_t i = 0; i < axes.size(); ++i)
    names.push_back(std::ranges::count(last, last[i]) > 1 ? axes[i].name : last[i]);
  return names;
}

std::vector<Point> points_of(const std::string& policy, const std::vector<Axis>& axes) {
  const Source source = source_of(policy);
  const std::vector<std::string> names = short_names(axes);
  std::size_t count = 1;
  std::set<std::string> fields;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    for (const std::string& field : split(axes[i].name, ','))
      if (!fields.insert(field).second)
        fail<UsageError>("sweep", "two axes have the field ", in_quotes(field),
                         ". Give each field once.");
    count *= axes[i].values.size();
    if (count > most_cells)
      fail<UsageError>("sweep", "the axes have more than ", most_cells, " cells. Give fewer.");
  }
  std::vector<Point> points;
  std::set<std::string> taken;
  for (std::size_t number = 0; number < count; ++number) {
    Point point{.name = plain(source.name), .policy = {}};
    Json json = source.json, record{{"policy", source.name}, {"axes", Json::object()}};
    std::size_t rest = number, below = count;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      below /= axes[i].values.size();
      const std::string& value = axes[i].values[rest / below];
      point.places.push_back(rest / below);
      rest %= below;
      point.name += "-" + plain(names[i] + "=" + value);
      record["axes"][names[i]] = value;
      for (const std::string& field : split(axes[i].name, ','))
        if (is_run_option(field)) point.options.emplace_back("--" + field, option_of(value));
        else set_field(json, field, value);
    }
    while (!taken.insert(point.name).second) point.name += "-" + std::to_string(number);
    json["name"] = point.name;
    try {
      point.policy = json.dump(2) + "\n", point.record = record.dump(2) + "\n";
    } catch (const Json::exception&) {
      fail<FormatError>("sweep", "the fields of the cell ", in_quotes(point.name),
                        " are not UTF-8. Write them in UTF-8.");
    }
    points.push_back(std::move(point));
  }
  return points;
}

// Checks the cells of a sweep before the first training.

namespace {

void require(const CLI::Validator& check, const std::string& option, const std::string& value) {
  if (const std::string mistake = check(value); !mistake.empty())
    fail<UsageError>("sweep", option, ": ", printable(mistake), ". Change this value.");
}

void require_one_of(std::span<const std::string_view> names, std::string_view kind,
                    const std::string& value) {
  if (std::ranges::find(names, value) == names.end())
    fail_unknown_name("sweep", kind, value, names);
}

/// Throws what `run` would throw for the option.
void require_option(const std::string& option, const std::string& value,
                    const std::vector<NamedWorkload>& own) {
  if (option == "--lr") require(positive_number(), option, value);
  else if (option == "--steps") require(whole_number(1, most_steps), option, value);
  else if (option == "--optimizer") require_one_of(optimizer_names(), "optimizer", value);
  else if (option == "--schedule") require_one_of(schedule_names(), "schedule", value);
  else if (option == "--from") static_cast<void>(trained_state(value));
  else if (!workload_named(value, own)) static_cast<void>(make_workload(value, 0, own));
}

/// Sets an option of `run` that require_option() has accepted.
void set_option(Setup& setup, const std::string& option, const std::string& value) {
  if (option == "--lr") setup.choices.lr = *number_of(value);
  else if (option == "--steps") setup.steps = int64_t(*number_of(value));
  else if (option == "--optimizer") setup.choices.optimizer = value;
  else if (option == "--schedule") setup.choices.schedule = value;
  else if (option == "--from") setup.choices.from = value;
  else setup.workload = value;
}

/// Returns a text that is equal for points that train the same: the options, and the policy without
/// its name and remarks.
std::string training_of(const Point& point, amp::Policy file) {
  file.name = "cell", file.about.clear(), file.meant_for.clear();
  std::string text = policy::hash(file);
  for (const auto& [option, value] : point.options) text += '\n' + option + ' ' + value;
  return text + '\n';
}

}  // namespace

std::vector<Cell> cells_of(const std::vector<Point>& points, const Setup& usual,
                           const std::vector<NamedWorkload>& own) {
  std::set<std::pair<std::string, std::string>> options{{"--workload", usual.workload},
                                                        {"--steps", std::to_string(usual.steps)},
                                                        {"--optimizer", usual.choices.optimizer},
                                                        {"--schedule", usual.choices.schedule},
                                                        {"--from", usual.choices.from.string()}};
  std::erase_if(options, [](const auto& option) {
    return option.second.empty() && option.first != "--workload";
  });
  for (const Point& point : points) options.insert(point.options.begin(), point.options.end());
  for (const auto& [option, value] : options) require_option(option, value, own);
  std::vector<Cell> cells;
  for (const Point& point : points) {
    Cell& cell = cells.emplace_back(Cell{point.name, {}, usual});
    cell.policy = policy::read_text(point.policy, point.name);
    for (const auto& [option, value] : point.options) set_option(cell.setup, option, value);
  }
  return cells;
}

void require_effects(const std::vector<Axis>& axes, const std::vector<Point>& points,
                     const std::vector<Cell>& cells) {
  std::vector<std::string> trainings;
  for (std::size_t c = 0; c < cells.size(); ++c)
    trainings.push_back(training_of(points[c], cells[c].policy));
  for (std::size_t i = 0; i < axes.size(); ++i) {
    std::vector<std::string> of_value(axes[i].values.size());
    for (std::size_t c = 0; c < points.size(); ++c) of_value[points[c].places[i]] += trainings[c];
    std::map<std::string, std::string> seen;
    for (std::size_t v = 0; v < of_value.size(); ++v) {
      const auto [other, is_new] = seen.emplace(std::move(of_value[v]), axes[i].values[v]);
      if (!is_new)
        fail<UsageError>("sweep", "the axis ", in_quotes(axes[i].name),
                         " has no effect: the values ", shortened(other->second, 80), " and ",
                         shortened(axes[i].values[v], 80),
                         " give the same policy. Name a field that the policy uses.");
    }
  }
}

// The baseline of a sweep, and the effects of its axes.

namespace {

using Places = std::vector<std::size_t>;

/// Losses by the cell's places and the seed.
using Losses = std::map<std::pair<Places, uint64_t>, double>;

Losses losses_of(const std::vector<Point>& points, const std::vector<RunResult>& runs) {
  Losses losses;
  for (const Point& point : points)
    for (const RunResult& run : runs)
      if (run.policy == point.name) losses[{point.places, run.seed}] = run.loss;
  return losses;
}

std::vector<uint64_t> seeds_in(const std::vector<RunResult>& runs) {
  std::vector<uint64_t> seeds;
  for (const RunResult& run : runs)
    if (std::ranges::find(seeds, run.seed) == seeds.end()) seeds.push_back(run.seed);
  return seeds;
}

/// A value of an axis.
struct Choice {
  std::size_t axis, value;
};

Places with(Places places, const Choice& choice) {
  places[choice.axis] = choice.value;
  return places;
}

std::string text_of(const Interval& interval) {
  return percent(interval.mean) +
         (std::isfinite(interval.half) ? " +- " + percent(interval.half) : "");
}

}  // namespace

const Point& baseline_of(const std::string& text, const std::vector<Axis>& axes,
                         const std::vector<Point>& points) {
  const std::vector<std::string> names = short_names(axes);
  Places wanted(axes.size());
  std::size_t named = 0;
  bool once = true;
  for (std::size_t i = 0; i < axes.size(); ++i)
    for (std::size_t v = 0, found = 0; v < axes[i].values.size(); ++v) {
      // A name follows the start or a comma, and a value ends before a comma or the end.
      const std::string part = names[i] + "=" + axes[i].values[v];
      if (("," + text + ",").find("," + part + ",") == std::string::npos) continue;
      wanted[i] = v, named += part.size() + 1, once = once && ++found == 1;
    }
  if (!once || named != text.size() + !text.empty()) {
    std::string choices;
    for (std::size_t i = 0; i < axes.size(); ++i)
      choices += (i ? "," : "") + names[i] + "=" + axes[i].values.front();
    fail<UsageError>("--against", in_quotes(text), " is not a cell. Give values of axes, such as ",
                     in_quotes(choices), ".");
  }
  return *std::ranges::find(points, wanted, &Point::places);
}

std::string effects_of(const std::vector<Axis>& axes, const std::vector<Point>& points,
                       const Point& baseline, const std::vector<RunResult>& runs) {
  if (axes.size() < 2) return "";
  const Losses losses = losses_of(points, runs);
  const std::vector<uint64_t> seeds = seeds_in(runs);
  const std::vector<std::string> names = short_names(axes);
  std::vector<Choice> choices;  // all values but the baseline's
  for (std::size_t i = 0; i < axes.size(); ++i)
    for (std::size_t v = 0; v < axes[i].values.size(); ++v)
      if (v != baseline.places[i]) choices.push_back({i, v});
  const auto name_of = [&](const Choice& c) {
    return names[c.axis] + "=" + axes[c.axis].values[c.value];
  };
  // The relative change of a cell's loss from its loss with the baseline's value on that axis.
  const auto usual = [&](std::size_t axis) { return Choice{axis, baseline.places[axis]}; };
  const auto change = [&](const Places& places, std::size_t axis, uint64_t seed) {
    return relative_difference(losses.at({places, seed}),
                               losses.at({with(places, usual(axis)), seed}));
  };
  // Over the seeds, the mean of a value over the cells that have all of some choices.
  const auto mean_over_cells = [&](std::initializer_list<Choice> all, auto value) {
    std::vector<double> by_seed;
    for (const uint64_t seed : seeds) {
      double sum = 0;
      int64_t count = 0;
      for (const Point& point : points)
        if (std::ranges::all_of(all,
                                [&](const Choice& c) { return point.places[c.axis] == c.value; }))
          sum += value(point.places, seed), ++count;
      by_seed.push_back(sum / double(count));
    }
    return text_of(interval_of(by_seed));
  };

  Table effects({"value", "effect on the loss, 95 %"});
  for (const Choice& one : choices)
    effects.row({name_of(one), mean_over_cells({one}, [&](const Places& places, uint64_t seed) {
                   return change(places, one.axis, seed);
                 })});
  Table interactions({"both", "beyond the sum of the effects, 95 %"});
  for (const Choice& one : choices)
    for (const Choice& other : choices)
      if (one.axis < other.axis)
        interactions.row({name_of(one) + ", " + name_of(other),
                          mean_over_cells({one, other}, [&](const Places& places, uint64_t seed) {
                            return change(places, one.axis, seed) -
                                   change(with(places, usual(other.axis)), one.axis, seed);
                          })});
  std::ostringstream text;
  text << "\nmean over the other axes, against the value of " << baseline.name << '\n'
       << effects << '\n'
       << interactions;
  return text.str();
}

}  // namespace halftone::lab
