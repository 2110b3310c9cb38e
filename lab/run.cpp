#include <halftone/lab/run.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <omp.h>
#include <spawn.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/wait.h>

#include <halftone/core/device.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/core/record.h>
#include <halftone/lab/fit.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/lab.h>
#include <halftone/lab/table.h>
#include <halftone/lab/trial.h>
#include <halftone/core/json_value.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/probe.h>
#include <halftone/amp/resolved.h>
#include <halftone/amp/rules.h>
#include <halftone/amp/session.h>
#include <halftone/train/checkpoints.h>
#include <halftone/train/trainer.h>

namespace halftone::lab {

namespace {

/// The process that started this one.
const std::string parent_variable = "HALFTONE_LAB_PARENT";

/// Also there if the file has been replaced since the program started.
constexpr const char* own_program = "/proc/self/exe";

}  // namespace

void end_with_parent() {
  const char* const parent = std::getenv(parent_variable.c_str());
  if (!parent || !*parent) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (std::to_string(getppid()) != parent) std::raise(SIGTERM);  // it has ended before the call
}

std::string time_left(double seconds) {
  const bool minutes = seconds >= 120;
  return "about " + number(std::ceil(minutes ? seconds / 60 : seconds)) +
         (minutes ? " min left" : " s left");
}

// Uses one Trainer per run, with a monitor if telemetry is wanted.

namespace {

using Clock = std::chrono::steady_clock;

/// Collects the losses and times of steps, and the results of a probe.
class Watcher final : public train::Callback {
 public:
  explicit Watcher(const Setup& setup)
      : probe_options_{.every = setup.probe, .first = setup.probe_from} {
    if (setup.trace > 0) tracer = std::make_shared<Tracer>(setup.trace);
  }
  void on_fit_start(train::Trainer& trainer) override {
    if (tracer) observation_.emplace("run", trainer.training(), tracer);
    if (probe_options_.every > 0) probe_.emplace(trainer.training(), probe_options_);
  }
  void on_batch_start(train::Trainer&, data::Batch& batch) override {
    began_ = Clock::now();
    const bool of_tokens = batch.inputs.dtype() == i64;
    tokens += of_tokens ? batch.inputs.numel() : batch.inputs.size(0);
  }
  bool on_loss(train::Trainer&, const Tensor& loss) override {
    losses.push_back(loss.item());
    return true;
  }
  void on_step_end(train::Trainer&) override {
    seconds.push_back(std::chrono::duration<double>(Clock::now() - began_).count());
    if (!probe_) return;
    lines += policy::json_lines(probe_->rows(), probe_->updates());
    worst.add(probe_->rows(), probe_->updates());
    probe_->clear();
  }
  void on_fit_end(train::Trainer&) override { probe_.reset(), observation_.reset(); }

  std::vector<double> losses{}, seconds{};
  int64_t tokens = 0;   // read so far; samples, if the inputs are not tokens
  std::string lines{};  // lines of probe.jsonl
  policy::WorstRows worst{};
  std::shared_ptr<Tracer> tracer{};

 private:
  policy::ProbeOptions probe_options_;
  std::optional<policy::Probe> probe_{};
  std::optional<policy::Observation> observation_{};
  Clock::time_point began_{};
};

/// A NaN without its sign, which would be printed: -nan.
double without_sign_of_nan(double value) {
  return std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : value;
}

double tail_mean(const std::vector<double>& values) {
  const std::size_t count = std::max<std::size_t>(1, values.size() / 10);
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(values.end() - std::ptrdiff_t(count), values.end(), 0.0) / double(count);
}

/// Returns the formats of operands: {"weight_bits", 4.25}, {"weight_exponent", 2}, ...
Named<double> operands_of(const policy::Session& session) {
  Named<double> all;
  const auto formats = operand_formats(session);
  for (std::size_t i = 0; i < operand_roles; ++i) {
    const std::string role(operand_role_names[i]);
    all.emplace_back(role + "_bits", formats[i].bits);
    all.emplace_back(role + "_exponent", formats[i].exponent);
    all.emplace_back(role + "_fraction", formats[i].fraction);
    all.emplace_back(role + "_block", formats[i].block);
  }
  return all;
}

/// Adds the results to what identifies the run.
void add_results(Summary& summary, const Setup& setup, const RunResult& result) {
  summary.policy = result.policy, summary.resolved_hash = result.resolved_hash;
  summary.loss = result.loss, summary.late_loss = result.late_loss;
  summary.validation_loss = result.validation_loss;
  summary.validation_accuracy = result.validation_accuracy;
  summary.milliseconds_per_step = result.milliseconds, summary.skipped_steps = result.skipped;
  summary.weights_hash = result.weights_hash;
  summary.probe = setup.probe, summary.probe_from = setup.probe_from;
  summary.environment = train::environment_of({});
  const MemoryReport report = memory_report();
  for (int use = 0; use < memory_use_count; ++use)
    summary.bytes_at_peak.emplace_back(name(MemoryUse(use)), report.at_peak[std::size_t(use)]);
}

void write_folder(const std::filesystem::path& folder, const RunResult& result,
                  const amp::Policy& file, const policy::Session& session,
                  const std::string* probe_lines, const Tracer* tracer) {
  const auto put = [&](const char* name, const std::string& text) {
    files::replace("run", folder / name, text);
  };
  put("policy.json", policy::write(file));
  put("resolved.json", policy::resolved_json(session));
  const auto follows = [](const policy::Rule& rule) { return rule.match.when.has_value(); };
  if (std::ranges::any_of(session.rules().rules, follows))
    put("switches.jsonl", policy::json_lines(session.switched()));
  if (probe_lines) put("probe.jsonl", *probe_lines);
  if (tracer) put("trace.jsonl", tracer->lines());
  put("summary.json", result.summary);
}

/// Returns the result of an earlier finished run, which must have these settings. Throws UsageError
/// for others.
RunResult done_already(const Job& job, RunResult done, const Summary& wanted) {
  const Setup& setup = job.cell.setup;
  require_finished_run("run", job.folder);
  const Json summary = parsed_json("run", done.summary);
  const Json all = Record::write(wanted);
  Json there, here;
  for (const std::string_view field : settings_fields()) {
    const std::string name(field);
    there[name] = summary.value(name, Json()), here[name] = all[name];
  }
  if (summary.value("portable_bits", Json(false)) != Json(portable_bits()))
    fail<UsageError>("run", "the run in ", job.folder.string(),
                     portable_bits() ? " has no" : " has",
                     " portable bits. Choose another folder, or remove it.");
  std::vector<std::string> others = differences(there, here);
  const auto require = [&](const char* name, const Json& there, int64_t here) {
    if (setup.probe > 0 && there != here)
      others.push_back(std::string(name) + ": " +
                       there.dump(-1, ' ', false, Json::error_handler_t::replace) + " there, " +
                       std::to_string(here) + " here");
  };
  require("probe", summary.value("probe", Json()), setup.probe);
  require("probe_from", summary.value("probe_from", Json(0)), setup.probe_from);
  if (setup.trace > 0 && !std::filesystem::exists(job.folder / "trace.jsonl"))
    others.push_back("trace: none there, " + std::to_string(setup.trace) + " here");
  if (!others.empty())
    fail<UsageError>("run", "there is a run of other settings in ", job.folder.string(), ": ",
                     printable(others.front()), ". Choose another folder, or remove it.");
  return done;
}

/// Reads the telemetry of a finished run into its result. Reports what is missing in its folder.
void read_telemetry(const std::filesystem::path& folder, RunResult& run, std::ostream& progress) {
  for (const std::string& note : add_telemetry("run", folder, run))
    progress << printable(note) << '\n';
  std::error_code ignored;
  if (!std::filesystem::exists(folder / "checkpoints", ignored))
    progress << printable((folder / "checkpoints").string())
             << " is missing: no run can start from this one.\n";
}

/// Everything that a run needs before it trains.
struct Prepared {
  Workload work;
  std::unique_ptr<optim::Optimizer> optimizer{};
  std::optional<data::DataLoader> train{}, validation{};
  optim::NamedTensors state{};  // of --from
  Summary summary{};            // what is known before the run
};

Prepared prepared(const Job& job, const std::vector<NamedWorkload>& own) {
  const Setup& setup = job.cell.setup;
  Prepared p{.work = make_workload(setup.workload, job.seed, own)};
  choose(p.work, setup.choices);
  p.optimizer = optimizer_of(p.work);
  p.train = p.work.train();
  if (p.work.validation) p.validation = p.work.validation();
  Summary& summary = p.summary;
  if (const auto& path = setup.choices.from; !path.empty()) {
    p.state = trained_state(path);
    summary.from = {std::filesystem::absolute(path).string(), hash_of(p.state)};
  }
  summary.policy_hash = policy::hash(job.cell.policy), summary.workload = setup.workload;
  summary.seed = job.seed, summary.steps = setup.steps, summary.lr = p.work.lr;
  summary.order = job.order;
  identify_training(summary, p.work, setup.choices, *p.optimizer, *p.train,
                    p.validation ? &*p.validation : nullptr, setup.steps);
  identify_place(summary);
  return p;
}

/// Returns the result in the job's folder if the run is finished. Throws UsageError for a folder of
/// other settings, or with files of an unfinished run that are not to be set aside.
std::optional<RunResult> result_before(const Job& job, const std::vector<NamedWorkload>& own) {
  if (job.folder.empty()) return {};
  if (auto done = finished_run("run", job.folder, job.cell.name, job.seed))
    return done_already(job, *std::move(done), prepared(job, own).summary);
  if (job.set_aside) return {};
  if (const auto left = train::left_by_training(job.folder); !left.empty())
    fail<UsageError>("run", "an unfinished run has left ", left.front(), " in ",
                     job.folder.string(),
                     ". Set .set_aside to move it to old-1 there, choose another folder, or "
                     "remove it.");
  return {};
}

/// The policy's strategy with random numbers of its own for each seed of a run. Seed 0 has those of
/// the policy.
amp::Policy strategy_for(const amp::Policy& file, uint64_t seed) {
  amp::Policy strategy = policy::watched(file);
  strategy.run_seed = seed * 0x9e3779b97f4a7c15;  // odd, so that no two seeds give the same
  return strategy;
}

/// Trains; nullopt if a signal ended the training.
std::optional<RunResult> trained(const Job& job, const std::vector<NamedWorkload>& own) {
  const Setup& setup = job.cell.setup;
  Prepared p = prepared(job, own);
  RunResult result{.policy = job.cell.name, .seed = job.seed};
  result.policy_hash = p.summary.policy_hash;
  const bool files = !job.folder.empty();
  const auto watcher = std::make_shared<Watcher>(setup);
  train::Trainer trainer(p.work.task, *p.optimizer,
                         {.strategy = strategy_for(job.cell.policy, job.seed),
                          .max_steps = setup.steps,
                          .clip_norm = p.work.clip_norm,
                          .schedule = p.work.schedule,
                          .validate_every_epochs = 0,
                          .sanity_check_batches = 0,
                          .directory = job.folder,
                          .checkpoints = files ? train::CheckpointOptions{.every_epochs = 0}
                                               : train::CheckpointOptions{},
                          .set_aside = files && job.set_aside,
                          .csv = false,
                          .json_lines = files,
                          .log_every_steps = std::max<int64_t>(1, setup.steps / 100),
                          .progress_bar = false,
                          .model_summary = false,
                          .callbacks = {watcher},
                          .exit_on_signal = false});
  if (!p.state.empty()) start_from(p.state, trainer.training());
  reset_peak_memory();
  if (trainer.fit(*p.train).signal != 0) return {};
  policy::Session& session = policy::session_of(trainer.training());
  session.require_all_rules_used();
  result.late_loss = without_sign_of_nan(tail_mean(watcher->losses));
  result.validation_loss = result.validation_accuracy = std::nan("");
  if (p.validation) {
    const train::MetricValues metrics = trainer.validate(*p.validation);
    result.validation_loss = without_sign_of_nan(metrics.at("val/loss"));
    if (const auto top = metrics.find("val/top1"); top != metrics.end())
      result.validation_accuracy = top->second;
  }
  result.loss = p.validation ? result.validation_loss : result.late_loss;
  result.milliseconds = 1e3 * median(watcher->seconds);
  result.skipped = trainer.training().skipped_steps();
  result.worst_underflow = watcher->worst.underflow;
  result.worst_site = watcher->worst.underflow_at;
  result.least_sqnr = watcher->worst.sqnr, result.least_sqnr_site = watcher->worst.sqnr_at;
  result.updates = watcher->worst.stored;
  result.resolved_hash = policy::resolved_hash(session);
  result.weights_hash = hash_of(p.work.model->parameters());
  p.summary.parameters = p.work.model->parameter_count(), p.summary.tokens = watcher->tokens;
  p.summary.operands = operands_of(session);
  add_results(p.summary, setup, result);
  result.summary = Record::write(p.summary).dump(1) + "\n";
  if (files)
    write_folder(job.folder, result, job.cell.policy, session,
                 setup.probe > 0 ? &watcher->lines : nullptr, watcher->tracer.get());
  return result;
}

void report(const RunResult& r, std::ostream& progress) {
  progress << r.policy << ", seed " << r.seed
           << (r.was_there ? ": already trained, loss " : ": loss ") << number(r.loss) << ", "
           << number(r.milliseconds, 3) << " ms per step";
  if (r.skipped > 0) progress << ", " << r.skipped << " steps skipped";
  progress << std::endl;
}

void require_valid(const Study& study) {
  const Setup setup = study.cells.empty() ? Setup{} : study.cells.front().setup;
  if (setup.trace < 0 || (setup.trace > 0 && (setup.probe > 0 || study.out.empty())))
    fail<UsageError>("run", "a trace every ", setup.trace, " steps, a probe every ", setup.probe,
                     ". A trace needs --out, and no probe: one observer watches at a time.");
  if (setup.steps > most_steps)
    fail<UsageError>("run", "there are ", setup.steps, " steps. Use at most ", most_steps, ".");
  if (setup.steps < 1 || setup.probe < 0 || setup.probe_from < 0 || study.cells.empty() ||
      study.seeds.empty())
    fail<UsageError>("run", study.cells.size(), " policies, ", study.seeds.size(), " seeds, ",
                     setup.steps, " steps, a probe every ", setup.probe,
                     ". Use at least one of each, and a probe every 0 (none) or more steps.");
  if (std::set(study.seeds.begin(), study.seeds.end()).size() != study.seeds.size())
    fail<UsageError>("run", "a seed is given twice among ", study.seeds.size(),
                     ". A run is repeated by the same command, not by another seed of its number.");
}
}  // namespace

std::string run_name(const std::string& workload, const std::string& policy, uint64_t seed) {
  std::string name = policy;
  std::ranges::replace(name, '/', '_');
  return workload + "-" + name + "-" + std::to_string(seed);
}

std::string label_of(const amp::Policy& policy, std::span<const amp::Policy> all) {
  const std::string hash = policy::hash(policy);
  const bool shared = std::ranges::any_of(all, [&](const amp::Policy& other) {
    return other.name == policy.name && policy::hash(other) != hash;
  });
  return shared ? policy.name + "-" + hash.substr(0, 8) : policy.name;
}

std::vector<Cell> read_cells(const std::vector<std::string>& policies, const Setup& setup) {
  std::vector<amp::Policy> files;
  for (const std::string& policy : policies) files.push_back(policy::named_or_read(policy));
  std::vector<Cell> cells;
  for (const amp::Policy& file : files) {
    cells.push_back({label_of(file, files), file, setup});
    if (std::ranges::count(cells, cells.back().name, &Cell::name) > 1)
      fail<UsageError>("run", "the policy ", cells.back().name, " is given twice. Give it once.");
  }
  return cells;
}

Job job_of(const Cell& cell, uint64_t seed, const std::filesystem::path& out) {
  Job job{.cell = cell, .seed = seed};
  if (!out.empty()) job.folder = out / run_name(cell.setup.workload, cell.name, seed);
  return job;
}

void require_fit(const Cell& cell, const std::vector<NamedWorkload>& own) {
  if (cell.policy.rules.rules.empty()) return;
  const Workload work = make_workload(cell.setup.workload, 0, own);
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  amp::Training training = training_of(policy::watched(cell.policy), work, *optimizer);
  begin_step(training, 0);
  training.backward(loss_of(work, training, example_of(work)));
  policy::session_of(training).require_all_rules_used();
}

std::vector<RunResult> run(const Study& study, const std::vector<NamedWorkload>& own,
                           std::ostream& progress) {
  require_valid(study);
  for (const Cell& cell : study.cells)
    note_other_model(progress, cell.policy, cell.setup.workload, own);
  std::vector<Job> jobs;
  std::vector<std::optional<RunResult>> done;
  for (const uint64_t seed : study.seeds)
    for (const Cell& cell : study.cells) {
      Job& job = jobs.emplace_back(job_of(cell, seed, study.out));
      job.set_aside = study.set_aside, job.order = std::size_t(&cell - study.cells.data());
      done.push_back(result_before(job, own));
    }
  for (std::size_t i = 0; jobs.size() > 1 && i < study.cells.size(); ++i)
    if (!done[i]) require_fit(study.cells[i], own);
  std::vector<RunResult> results;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (done[i]) read_telemetry(jobs[i].folder, *done[i], progress);
    std::optional<RunResult> result = done[i] ? done[i] : trained(jobs[i], own);
    if (!result) return results;
    report(results.emplace_back(*std::move(result)), progress);
    if (study.after) study.after(results.back());
  }
  return results;
}

// Jobs in processes: each reads its job from a file.

namespace {
void path(Record& r, std::string_view name, std::filesystem::path& path) {
  r.entry(
      name, path, {}, [](const JsonValue& v) { return std::filesystem::path(v.text()); },
      [](const std::filesystem::path& x) { return Json(x.string()); });
}

}  // namespace

static void describe(Record& r, Setup& setup) {
  r.text("workload", setup.workload);
  r.integer("steps", setup.steps, 1, most_steps);
  r.number("lr", setup.choices.lr);
  r.text("optimizer", setup.choices.optimizer);
  r.text("schedule", setup.choices.schedule);
  path(r, "from", setup.choices.from);
  r.integer("probe", setup.probe, 0, most_steps);
  r.integer("probe_from", setup.probe_from, 0, most_steps, setup.probe_from > 0);
  r.integer("trace", setup.trace, 0, most_steps, setup.trace > 0);
}

namespace {
/// A job as a process gets it.
struct Order {
  Job job{};  // without its policy
  Json policy{};
  int threads = 1;
};

void describe(Record& r, Order& order) {
  Job& job = order.job;
  r.text("name", job.cell.name);
  r.entry("policy", order.policy, {}, [](const JsonValue& v) { return v.json(); });
  r.group("setup", "a setup", [&](Record& setup) { describe(setup, job.cell.setup); });
  r.entry("seed", job.seed, {}, [](const JsonValue& v) {
    if (!v.json().is_number_unsigned()) v.refuse("a seed is a whole number. Write one.");
    return v.json().get<uint64_t>();
  });
  path(r, "folder", job.folder);
  r.integer("threads", order.threads, 1, 1024);
}

Job read_job(const std::filesystem::path& file, int& threads) {
  const std::string where = "run " + file.string();
  const Json json = parsed_json(where, files::read_text("run", file, std::size_t(1) << 24));
  Order order = Record::read(JsonValue(where, "", json), "a job", Order{});
  if (order.job.folder.empty() || !order.policy.is_object())
    JsonValue(where, "", json).refuse("a job has a folder and a policy. Start the command again.");
  order.job.cell.policy = policy::read_text(order.policy.dump(), "of the job");
  threads = order.threads;
  return std::move(order.job);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// Returns the last line of a log, without hints to --help: the error of a program that failed.
std::string last_line(std::string_view op, const std::filesystem::path& log) {
  std::string text;
  try {
    text = files::read_text(op, log, 1 << 24);
  } catch (const Error&) { return "its log cannot be read"; }
  std::string line;
  for (std::istringstream lines(text); std::getline(lines, text);)
    if (!text.empty() && !text.starts_with("Run with --help")) line = text;
  return line;
}
}  // namespace

Json json_of(const Setup& setup) { return Record::write(setup); }

std::size_t Jobs::add(Job job, std::filesystem::path log) {
  entries_.push_back({std::move(job), std::move(log)});
  waiting_.push_back(entries_.size() - 1);
  return entries_.size() - 1;
}

void Jobs::start(std::size_t number) {
  const auto& [job, log] = entries_[number];
  const std::filesystem::path file = std::filesystem::path(log).replace_extension(".json");
  const Order order{job, parsed_json(op_, policy::write(job.cell.policy)),
                    std::max(1, cpu_threads() / at_once_)};
  files::replace(op_, file, Record::write(order).dump(1) + "\n");
  std::vector<std::string> arguments{"halftone-lab", std::string(job_command), file.string()},
      variables;
  for (char** variable = environ; *variable; ++variable) variables.emplace_back(*variable);
  variables.push_back(parent_variable + ('=' + std::to_string(getpid())));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t process = 0;
  const int error = posix_spawn(&process, own_program, &actions, nullptr,
                                pointers(arguments).data(), pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0)
    fail<UsageError>(op_, "cannot start ", own_program, ": ", std::strerror(error),
                     ". Try fewer --jobs.");
  running_[process] = number;
}

/// Looks again and again: a signal that comes just before a wait would be seen after it.
std::optional<Jobs::Ended> Jobs::next(double seconds) {
  const auto began = Clock::now();
  while (left() > 0 && !stopped()) {
    if (!waiting_.empty() && int(running_.size()) < at_once_) {
      start(waiting_.front());
      waiting_.pop_front();
      continue;
    }
    int status = 0;
    const auto found = running_.find(waitpid(-1, &status, WNOHANG));
    if (found == running_.end()) {
      if (std::chrono::duration<double>(Clock::now() - began).count() > seconds) return {};
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    Ended ended{.number = found->second, .result = {}, .problem = {}};
    running_.erase(found);
    const auto& [job, log] = entries_[ended.number];
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
      ended.result = finished_run(op_, job.folder, job.cell.name, job.seed);
    if (!ended.result) ended.problem = last_line(op_, log);
    return ended;
  }
  return {};
}

Jobs::~Jobs() {
  for (const auto& [process, number] : running_) kill(process, SIGTERM);
  for (const auto& [process, number] : running_) waitpid(process, nullptr, 0);
}

int run_job(const std::filesystem::path& file, const std::vector<NamedWorkload>& own) {
  int threads = 1;
  Job job = read_job(file, threads);
  job.set_aside = true;
  omp_set_num_threads(threads);
  const std::optional<RunResult> result = trained(job, own);
  if (!result) return exit_undecided;
  report(*result, std::cout);
  return exit_yes;
}

// Results of trainings: a table for people, JSON for programs.

namespace {
/// The difference that claims about number formats are about.
constexpr double claimed = 0.005;

/// A line if the seeds cannot tell a difference of half a percent.
std::string seeds_remark(const std::string& policy, const std::vector<double>& shares) {
  if (shares.size() < 2)
    return policy + ": one seed gives no interval. Use at least two, for example --seeds 0..7.\n";
  const double half = interval_of(shares).half;
  if (!(half > claimed) || !std::isfinite(half)) return "";
  const int64_t needed = pairs_needed(deviation_of(shares), std::ssize(shares), claimed);
  return policy + ": +- " + percent(half) + ", too few seeds for 0.5 %: about " +
         std::to_string(needed) + " needed (halftone-lab gate trains as many).\n";
}
}  // namespace

namespace {
/// The relative differences of a policy's losses from the first policy's, paired by seed.
std::vector<double> differences_of(const std::vector<RunResult>& runs, const std::string& policy) {
  std::vector<double> shares;
  for (const RunResult& own : runs)
    for (const RunResult& base : runs)
      if (own.policy == policy && base.policy == runs.front().policy && own.seed == base.seed)
        shares.push_back(relative_difference(own.loss, base.loss));
  return shares;
}
}  // namespace

std::string table_of(const std::vector<RunResult>& runs) {
  std::vector<std::string> policies;
  for (const RunResult& r : runs)
    if (std::ranges::find(policies, r.policy) == policies.end()) policies.push_back(r.policy);
  const auto of = [&](const std::string& policy) {
    std::vector<const RunResult*> own;
    for (const RunResult& r : runs)
      if (r.policy == policy) own.push_back(&r);
    return own;
  };
  Table table({"policy", "loss", "against " + policies.front() + ", 95 %", "ms/step", "skipped",
               "updates lost", "worst underflow", "", "least SQNR", ""});
  for (const std::string& policy : policies) {
    const std::vector<const RunResult*> own = of(policy);
    std::vector<double> losses, times;
    int64_t skipped = 0;
    policy::UpdateSums updates;
    const RunResult *under = own.front(), *noisy = own.front();
    for (std::size_t i = 0; i < own.size(); ++i) {
      losses.push_back(own[i]->loss), times.push_back(own[i]->milliseconds);
      skipped += own[i]->skipped;
      updates.add(own[i]->updates);
      if (own[i]->worst_underflow > under->worst_underflow) under = own[i];
      if (own[i]->least_sqnr < noisy->least_sqnr) noisy = own[i];
    }
    const std::vector<double> shares = differences_of(runs, policy);
    const Interval difference = interval_of(shares);
    const bool paired = policy != policies.front() && !shares.empty();
    std::string against = paired ? percent(difference.mean) : "";
    if (!against.empty() && std::isfinite(difference.half))
      against += " +- " + percent(difference.half);
    const bool watched = std::isfinite(noisy->least_sqnr);
    table.row({policy, number(interval_of(losses).mean), against, number(median(times), 3),
               std::to_string(skipped), updates.count > 0 ? percent(updates.lost_share()) : "",
               watched ? percent(under->worst_underflow) : "", under->worst_site,
               watched ? fixed(noisy->least_sqnr, 1) + " dB" : "", noisy->least_sqnr_site});
  }
  std::ostringstream text;
  text << table;
  return text.str();
}

std::string remarks_on(const std::vector<RunResult>& runs) {
  std::string remarks;
  std::vector<std::string> seen;
  for (const RunResult& r : runs) {
    if (std::ranges::find(seen, r.policy) != seen.end()) continue;
    seen.push_back(r.policy);
    const std::vector<double> shares = differences_of(runs, r.policy);
    if (r.policy != runs.front().policy && !shares.empty())
      remarks += seeds_remark(r.policy, shares);
  }
  return remarks;
}

std::string json_of(const std::vector<RunResult>& runs) {
  Json all = Json::array();
  for (const RunResult& run : runs) all.push_back(parsed_json("run", run.summary));
  return Json{{"format", 1}, {"runs", std::move(all)}}.dump(1) + "\n";
}

// Lists and ranges of seeds.

namespace {
constexpr std::size_t most_seeds = 10'000;

uint64_t seed_in(const std::string& text, const std::string& all) {
  uint64_t seed = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, seed);
  if (text.empty() || read.ec != std::errc() || read.ptr != end)
    fail<UsageError>("--seeds", in_quotes(all),
                     ": a seed is a whole number from 0 to 2^64 - 1, got ", in_quotes(text),
                     ". Write 0..4 or 0,3,7.");
  return seed;
}
}  // namespace

std::vector<uint64_t> seeds_of(const std::string& text) {
  std::vector<uint64_t> seeds;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    at = end + 1;
    const std::size_t dots = part.find("..");
    const uint64_t first = seed_in(part.substr(0, dots), text);
    const uint64_t last = dots == std::string::npos ? first : seed_in(part.substr(dots + 2), text);
    if (last < first || last - first >= most_seeds)
      fail<UsageError>("--seeds", in_quotes(part), " is not a range of at most ", most_seeds,
                       " seeds. Write first..last.");
    for (uint64_t i = 0; i <= last - first; ++i) seeds.push_back(first + i);
  }
  if (std::set(seeds.begin(), seeds.end()).size() != seeds.size())
    fail<UsageError>("--seeds", in_quotes(text), " has a seed twice. Give each once.");
  return seeds;
}

}  // namespace halftone::lab
