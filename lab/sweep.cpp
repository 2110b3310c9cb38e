// Starts processes, orders them and reports on them. Each cell runs this program's own command
// `run`, so a crash of a cell does not end the sweep.
#include <halftone/lab/sweep.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <iostream>
#include <optional>

#include <nlohmann/json.hpp>

#include <halftone/core/device.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/commands/flags.h>
#include <halftone/lab/processes.h>
#include <halftone/lab/recorded_run.h>
#include <halftone/lab/run.h>
#include <halftone/lab/table.h>
#include <halftone/policy/json_value.h>
#include <halftone/policy/policy_file.h>
#include <halftone/train/durable_files.h>

namespace halftone::lab {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct Task {
  const Cell* cell;
  uint64_t seed;
  fs::path policy, folder, log;
};

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

bool is_finished(const Task& task) { return is_there(task.folder / "summary.json"); }

RunResult result_of(const Task& task) {
  const auto result = finished_run("sweep", task.folder, task.cell->name, task.seed);
  if (!result)
    fail<FormatError>("sweep", task.folder.string(),
                      " has no summary.json. Start the sweep again.");
  return *result;
}

class Sweep {
 public:
  Sweep(const SweepOptions& options, const std::vector<NamedWorkload>& own, std::ostream& progress)
      : options_(options),
        progress_(progress),
        cells_(cells_of(options.policy, options.axes)),
        baseline_(baseline_of(options.against, options.axes, cells_)),
        processes_("sweep", options.jobs) {
    require_options(options.run, cells_, own);
    for (const char* folder : {"policies", "logs"})
      files::make_directories("sweep", options.run.out / folder);
    lock_.emplace(options.run.out, "sweep");
    require_same_options();
    for (const uint64_t seed : options.run.seeds)
      for (const Cell& cell : cells_) {
        const std::string name =
            cell.workload(options.run.workload) + "-" + cell.name + "-" + std::to_string(seed);
        tasks_.push_back({&cell, seed, options.run.out / "policies" / (cell.name + ".json"),
                          options.run.out / name, options.run.out / "logs" / (name + ".log")});
      }
    for (const Task& task : tasks_)
      if (is_finished(task)) require_same_policy(task);
    std::vector<policy::PolicyFile> policies;
    for (const Task& task : tasks_)
      if (task.seed == options.run.seeds.front()) {
        files::replace("sweep", task.policy, task.cell->policy);
        policies.push_back(policy::read(task.policy));
      }
    require_effects(options.axes, cells_, policies);
    for (const Task& task : tasks_)
      if (is_finished(task)) record_cell(task);
  }

  /// Returns the workload of each cell, each once.
  std::vector<std::string> workloads() const {
    std::vector<std::string> names;
    for (const Cell& cell : cells_)
      if (const std::string& name = cell.workload(options_.run.workload);
          std::ranges::find(names, name) == names.end())
        names.push_back(name);
    return names;
  }

  /// Runs the tasks. Returns the number of tasks that failed.
  int run() {
    const StopSignals signals;
    std::deque<const Task*> waiting;
    for (const Task& task : tasks_)
      if (!is_finished(task)) waiting.push_back(&task);
    done_ = tasks_.size() - waiting.size();
    if (done_ > 0)
      progress_ << done_ << " of " << tasks_.size() << " runs are already done" << std::endl;
    to_do_ = waiting.size();
    while (!waiting.empty() || !processes_.empty()) {
      if (!waiting.empty() && !processes_.full()) {
        start(*waiting.front());
        waiting.pop_front();
      } else if (const auto ended = processes_.wait()) {
        report(*ended);
      } else {
        processes_.end_all();
        progress_ << "stopped; the same command goes on with what is left" << std::endl;
        break;
      }
    }
    return failed_;
  }

  /// Returns the runs of complete cells; those of the baseline are the first.
  std::vector<RunResult> results() const {
    std::vector<RunResult> results;
    for (const bool first : {true, false})
      for (const Task& task : tasks_)
        if ((task.cell == &baseline_) == first && complete(*task.cell))
          results.push_back(result_of(task));
    return results;
  }

  /// Returns the effects of the axes, if all cells are complete.
  std::string effects(const std::vector<RunResult>& results) const {
    if (results.size() < tasks_.size()) return "";
    return effects_of(options_.axes, cells_, baseline_, results);
  }

 private:
  /// Requires the options that are not axes to be those of the folder's earlier runs, so that its
  /// runs can be compared.
  void require_same_options() const {
    const RunOptions& run = options_.run;
    policy::Json settings{{"workload", run.workload},
                          {"steps", run.steps},
                          {"probe", run.probe},
                          {"portable_bits", portable_bits()},
                          {"lr", run.choices.lr},
                          {"optimizer", run.choices.optimizer},
                          {"schedule", run.choices.schedule},
                          {"from", run.choices.from.string()}};
    if (run.probe_from > 0) settings["probe_from"] = run.probe_from;
    require_same_settings("sweep", run.out / "sweep.json", settings);
  }

  static void require_same_policy(const Task& task) {
    if (is_there(task.policy) &&
        files::read_text("sweep", task.policy, 1 << 20) != task.cell->policy)
      fail<UsageError>("sweep", task.folder.string(),
                       " was run under another policy of this name. Choose another --out.");
  }

  /// Writes the place of a finished run in the sweep into its folder, for the report.
  static void record_cell(const Task& task) {
    files::replace("sweep", task.folder / "cell.json", task.cell->record);
  }

  bool complete(const Cell& cell) const {
    return std::ranges::all_of(
        tasks_, [&](const Task& task) { return task.cell != &cell || is_finished(task); });
  }

  std::vector<std::string> command_of(const Task& task) const {
    std::vector<std::string> words{
        "run",          task.policy.string(),
        "--workload",   task.cell->workload(options_.run.workload),
        "--seeds",      std::to_string(task.seed),
        "--probe",      std::to_string(options_.run.probe),
        "--probe-from", std::to_string(options_.run.probe_from),
        "--threads",    std::to_string(std::max(1, cpu_threads() / options_.jobs)),
        "--out",        options_.run.out.string()};
    const auto add = [&](const std::string& name, const std::string& value) {
      words.push_back(name), words.push_back(value);
    };
    for (const auto& [name, value] : task.cell->options)
      if (name != "--workload") add(name, value);
    const auto unless_an_axis = [&](const std::string& name, const std::string& value) {
      if (!value.empty() && std::ranges::find(words, name) == words.end()) add(name, value);
    };
    const RunOptions& run = options_.run;
    unless_an_axis("--steps", std::to_string(run.steps));
    unless_an_axis("--lr", run.choices.lr > 0 ? exact(run.choices.lr) : "");
    unless_an_axis("--optimizer", run.choices.optimizer);
    unless_an_axis("--schedule", run.choices.schedule);
    unless_an_axis("--from", run.choices.from.string());
    return words;
  }

  /// Moves an unfinished run, which has no summary, to unfinished/. Nothing of it is deleted.
  void put_aside(const fs::path& folder) const {
    if (!is_there(folder)) return;
    const train::DirectoryLock lock(folder, "sweep");  // throws if a run is still using the folder
    const fs::path place = options_.run.out / "unfinished";
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

  void start(const Task& task) {
    put_aside(task.folder);
    processes_.start(std::size_t(&task - tasks_.data()), command_of(task), task.log);
  }

  void report(const Processes::Ended& ended) {
    const Task& task = tasks_[ended.id];
    ++done_, ++finished_;
    progress_ << '[' << done_ << '/' << tasks_.size() << "] " << task.cell->name << ", seed "
              << task.seed << ": ";
    if (ended.succeeded) {
      record_cell(task);
      progress_ << "loss " << number(result_of(task).loss);
    } else ++failed_, progress_ << "failed: " << policy::printable(last_line("sweep", task.log));
    const double each = seconds() / double(finished_);
    if (finished_ < to_do_) progress_ << "; " << time_left(each * double(to_do_ - finished_));
    progress_ << std::endl;
  }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

  const SweepOptions& options_;
  std::ostream& progress_;
  std::optional<train::DirectoryLock> lock_{};
  std::vector<Cell> cells_;
  const Cell& baseline_;
  std::vector<Task> tasks_{};
  Processes processes_;
  std::size_t done_ = 0, finished_ = 0, to_do_ = 0;
  int failed_ = 0;
  Clock::time_point began_ = Clock::now();
};

}  // namespace

int run_sweep(const SweepOptions& options, const std::vector<NamedWorkload>& own,
              std::ostream& progress) {
  if (options.axes.empty() || options.run.seeds.empty() || options.jobs < 1 ||
      options.run.out.empty())
    fail<UsageError>("sweep", options.axes.size(), " axes, ", options.run.seeds.size(), " seeds, ",
                     options.jobs, " jobs, folder \"", options.run.out.string(),
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
  return StopSignals::came() ? exit_undecided : failed == 0 ? exit_yes : exit_no;
}

Work add_sweep(CLI::App& app, const Context& context) {
  struct Options {
    SweepOptions sweep{};
    std::vector<std::string> axes{};
  };
  auto options = std::make_shared<Options>();
  RunOptions& run = options->sweep.run;
  run.workload = context.workload;
  app.add_option("policy", options->sweep.policy,
                 "a file (x.json), a strategy, or a shipped policy (mxfp8)")
      ->required();
  app.add_option("--axis", options->axes,
                 "NAME=VALUE,VALUE: a field of the file (quantizers.q.scale.history), or an option "
                 "of run (lr, steps, optimizer, schedule, from, workload); once for each axis. "
                 "A,B=VALUE,VALUE gives several fields the same value")
      ->required()
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--against", options->sweep.against,
                 "NAME=VALUE,NAME=VALUE: the cell with which others are compared; default: the "
                 "first value of each axis");
  add_seeds(app, run.seeds, "seeds of each cell: 0..4 or 0,3,7; default: 0");
  add_training(app, run, context);
  app.add_option("--jobs", options->sweep.jobs, "the number of runs at once")
      ->capture_default_str()
      ->check(whole_number(1, most_jobs));
  app.add_option("--out", run.out, "the folder for policies, logs, and a folder for each run")
      ->required();
  add_json(app, options->sweep.json);
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

}  // namespace halftone::lab
