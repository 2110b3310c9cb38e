// Starting, waiting, and signals.
#include <halftone/lab/run.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <ostream>
#include <set>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <sys/prctl.h>
#include <sys/wait.h>

#include <halftone/core/device.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/core/memory.h>
#include <halftone/lab/fit.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/identity.h>
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

volatile std::sig_atomic_t stopped_by = 0;
constexpr std::array stop_signals{SIGINT, SIGTERM, SIGHUP};

/// The process that started this one.
const std::string parent_variable = "HALFTONE_LAB_PARENT";

/// Also there if the file has been replaced since the program started.
constexpr const char* own_program = "/proc/self/exe";

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

struct StopSignals::Before {
  std::array<struct sigaction, stop_signals.size()> actions{};
};

StopSignals::StopSignals() : before_(std::make_unique<Before>()) {
  stopped_by = 0;
  struct sigaction action {};
  action.sa_handler = [](int signal) { stopped_by = signal; };
  for (std::size_t i = 0; i < stop_signals.size(); ++i)
    sigaction(stop_signals[i], &action, &before_->actions[i]);
}
StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < stop_signals.size(); ++i)
    sigaction(stop_signals[i], &before_->actions[i], nullptr);
}
bool StopSignals::came() { return stopped_by != 0; }

void Processes::start(std::size_t id, const std::vector<std::string>& words,
                      const std::filesystem::path& log) {
  std::vector<std::string> arguments{"halftone-lab"}, variables;
  arguments.insert(arguments.end(), words.begin(), words.end());
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
  running_[process] = id;
}

/// Looks again and again: a signal that comes just before a wait would be seen after it.
std::optional<Processes::Ended> Processes::wait(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  while (!StopSignals::came()) {
    int status = 0;
    const auto found = running_.find(waitpid(-1, &status, WNOHANG));
    if (found == running_.end()) {
      if (std::chrono::duration<double>(Clock::now() - began).count() > seconds)
        return Ended{none, true};
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      continue;
    }
    const Ended ended{found->second, WIFEXITED(status) && WEXITSTATUS(status) == 0};
    running_.erase(found);
    return ended;
  }
  return {};
}

void Processes::end_all() {
  for (const auto& [process, id] : running_) kill(process, SIGTERM);
  for (const auto& [process, id] : running_) waitpid(process, nullptr, 0);
  running_.clear();
}

void end_with_parent() {
  const char* const parent = std::getenv(parent_variable.c_str());
  if (!parent || !*parent) return;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (std::to_string(getppid()) != parent) std::raise(SIGTERM);  // it has ended before the call
}

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
  explicit Watcher(const RunOptions& options)
      : probe_options_{.every = options.probe, .first = options.probe_from} {
    if (options.trace > 0) tracer = std::make_shared<Tracer>(options.trace);
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

/// Returns the formats of operands: {"weight_bits": 4.25, "weight_exponent": 2, ...}.
Json json_of(const policy::Session& session) {
  Json json;
  const auto formats = operand_formats(session);
  for (std::size_t i = 0; i < operand_roles; ++i) {
    const std::string role(operand_role_names[i]);
    json[role + "_bits"] = formats[i].bits, json[role + "_exponent"] = formats[i].exponent;
    json[role + "_fraction"] = formats[i].fraction, json[role + "_block"] = formats[i].block;
  }
  return json;
}

/// Returns everything in summary.json: the settings, the environment and the results.
Json summary_of(const RunOptions& options, const RunResult& result, const Json& settings,
                int64_t parameters, int64_t tokens, const policy::Session& session) {
  Json summary{{"format", 1}, {"policy", result.policy}};
  summary["policy_hash"] = result.policy_hash, summary["resolved_hash"] = result.resolved_hash;
  summary.update(settings);
  summary.update(identity_of_place());
  const auto number = [](double x) { return std::isnan(x) ? Json() : Json(x); };
  summary.update(Json{{"loss", result.loss},
                      {"late_loss", result.late_loss},
                      {"validation_loss", number(result.validation_loss)},
                      {"validation_accuracy", number(result.validation_accuracy)},
                      {"parameters", parameters},
                      {"tokens", tokens},
                      {"operands", json_of(session)},
                      {"milliseconds_per_step", result.milliseconds},
                      {"skipped_steps", result.skipped},
                      {"weights_hash", result.weights_hash},
                      {"probe", options.probe},
                      {"probe_from", options.probe_from},
                      {"environment", train::environment_of({})}});
  Json memory;
  const MemoryReport report = memory_report();
  for (int use = 0; use < memory_use_count; ++use)
    memory[std::string(name(MemoryUse(use)))] = report.at_peak[std::size_t(use)];
  summary["bytes_at_peak"] = std::move(memory);
  return summary;
}

void write_folder(const std::filesystem::path& folder, const RunResult& result,
                  const amp::Policy& file, const policy::Session& session,
                  const std::string* probe_lines, const Tracer* tracer) {
  const auto put = [&](const char* name, const std::string& text) {
    files::replace("run", folder / name, text);
  };
  put("policy.json", policy::write(file));
  put("resolved.json", policy::resolved_json(session));
  if (probe_lines) put("probe.jsonl", *probe_lines);
  if (tracer) put("trace.jsonl", tracer->lines());
  put("summary.json", result.summary);
}

/// Returns the policy's name: "x" for "amp/policies/x.json".
std::string short_name(const std::string& policy) {
  return policy.ends_with(".json") ? std::filesystem::path(policy).stem().string() : policy;
}

/// Returns the result of an earlier finished run; nullopt if there is none. Throws UsageError if
/// its settings differ.
std::optional<RunResult> done_already(const std::filesystem::path& folder, const RunResult& run,
                                      const Json& settings, const RunOptions& options) {
  auto done = finished_run("run", folder, run.policy, run.seed);
  if (!done) return {};
  require_finished_run("run", folder);
  const Json summary = parsed_json("run", done->summary);
  Json there;
  for (const auto& [name, value] : settings.items()) there[name] = summary.value(name, Json());
  if (summary.value("portable_bits", Json(false)) != Json(portable_bits()))
    fail<UsageError>("run", "the run in ", folder.string(), portable_bits() ? " has no" : " has",
                     " portable bits. Choose another folder, or remove it.");
  std::vector<std::string> others = differences(there, settings);
  const auto require = [&](const char* name, const Json& there, int64_t here) {
    if (options.probe > 0 && there != here)
      others.push_back(std::string(name) + ": " +
                       there.dump(-1, ' ', false, Json::error_handler_t::replace) + " there, " +
                       std::to_string(here) + " here");
  };
  require("probe", summary.value("probe", Json()), options.probe);
  require("probe_from", summary.value("probe_from", Json(0)), options.probe_from);
  if (options.trace > 0 && !std::filesystem::exists(folder / "trace.jsonl"))
    others.push_back("trace: none there, " + std::to_string(options.trace) + " here");
  if (!others.empty())
    fail<UsageError>("run", "there is a run of other settings in ", folder.string(), ": ",
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

struct NamedPolicy {
  std::string name;
  amp::Policy file;
};

/// Reads all policies. Throws UsageError if two have the same name.
std::vector<NamedPolicy> read_all(const std::vector<std::string>& policies) {
  std::vector<NamedPolicy> read;
  for (const std::string& policy : policies) {
    read.push_back({short_name(policy), policy::named_or_read(policy)});
    if (std::ranges::count(read, read.back().name, &NamedPolicy::name) > 1)
      fail<UsageError>("run", "two policies are called ", read.back().name,
                       ". Give each once, in files of different names.");
  }
  return read;
}

/// Everything that a run needs before it trains.
struct Prepared {
  Workload work;
  std::unique_ptr<optim::Optimizer> optimizer{};
  std::optional<data::DataLoader> train{}, validation{};
  optim::NamedTensors state{};  // of --from
  Json settings{};
  std::filesystem::path folder{};  // empty: no files
  std::size_t order = 0;           // of the policy in the command
  RunResult result{};
  std::optional<RunResult> done{};  // the run was finished before
};

Prepared prepared(const RunOptions& options, const std::vector<NamedWorkload>& own,
                  const NamedPolicy& named, uint64_t seed) {
  const Choices& choices = options.choices;
  Prepared p{.work = make_workload(options.workload, seed, own)};
  choose(p.work, choices);
  p.optimizer = optimizer_of(p.work);
  p.result = {.policy = named.name, .seed = seed, .policy_hash = policy::hash(named.file)};
  if (!options.out.empty()) p.folder = options.out / run_name(options.workload, named.name, seed);
  p.train = p.work.train();
  if (p.work.validation) p.validation = p.work.validation();
  Json from;
  if (!choices.from.empty()) {
    p.state = trained_state(choices.from);
    from = {{"path", std::filesystem::absolute(choices.from).string()}, {"hash", hash_of(p.state)}};
  }
  p.settings = {{"policy_hash", p.result.policy_hash},
                {"workload", options.workload},
                {"seed", seed},
                {"steps", options.steps},
                {"lr", p.work.lr}};
  p.settings.update(identity_of_training(p.work, choices, *p.optimizer, *p.train,
                                         p.validation ? &*p.validation : nullptr, options.steps));
  p.settings["from"] = from;
  if (p.folder.empty()) return p;
  p.done = done_already(p.folder, p.result, p.settings, options);
  if (p.done || options.set_aside) return p;
  if (const auto left = train::left_by_training(p.folder); !left.empty())
    fail<UsageError>("run", "an unfinished run has left ", left.front(), " in ", p.folder.string(),
                     ". Set .set_aside to move it to old-1 there, choose another folder, or "
                     "remove it.");
  return p;
}

/// The policy's strategy with random numbers of its own for each seed of a run. Seed 0 has those of
/// the policy.
amp::Policy strategy_for(const amp::Policy& file, uint64_t seed) {
  amp::Policy strategy = policy::watched(file);
  strategy.run_seed = seed * 0x9e3779b97f4a7c15;  // odd, so that no two seeds give the same
  return strategy;
}

/// Trains; nullopt if a signal ended the training.
std::optional<RunResult> trained(const RunOptions& options, Prepared p, const amp::Policy& file) {
  RunResult& result = p.result;
  const bool files = !p.folder.empty();
  const auto watcher = std::make_shared<Watcher>(options);
  train::Trainer trainer(p.work.task, *p.optimizer,
                         {.strategy = strategy_for(file, result.seed),
                          .max_steps = options.steps,
                          .clip_norm = p.work.clip_norm,
                          .schedule = p.work.schedule,
                          .validate_every_epochs = 0,
                          .sanity_check_batches = 0,
                          .directory = p.folder,
                          .checkpoints = files ? train::CheckpointOptions{.every_epochs = 0}
                                               : train::CheckpointOptions{},
                          .set_aside = files && options.set_aside,
                          .csv = false,
                          .json_lines = files,
                          .log_every_steps = std::max<int64_t>(1, options.steps / 100),
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
  Json summary = summary_of(options, result, p.settings, p.work.model->parameter_count(),
                            watcher->tokens, session);
  summary["order"] = p.order;
  result.summary = summary.dump(1) + "\n";
  if (files)
    write_folder(p.folder, result, file, session, options.probe > 0 ? &watcher->lines : nullptr,
                 watcher->tracer.get());
  return result;
}
}  // namespace

std::string run_name(const std::string& workload, const std::string& policy, uint64_t seed) {
  return workload + "-" + short_name(policy) + "-" + std::to_string(seed);
}

std::vector<RunResult> run(const RunOptions& options, const std::vector<NamedWorkload>& own,
                           std::ostream& progress) {
  if (options.trace < 0 || (options.trace > 0 && (options.probe > 0 || options.out.empty())))
    fail<UsageError>("run", "a trace every ", options.trace, " steps, a probe every ",
                     options.probe,
                     ". A trace needs --out, and no probe: one observer watches at a time.");
  if (options.steps > most_steps)
    fail<UsageError>("run", "there are ", options.steps, " steps. Use at most ", most_steps, ".");
  if (options.steps < 1 || options.probe < 0 || options.probe_from < 0 ||
      options.policies.empty() || options.seeds.empty())
    fail<UsageError>("run", options.policies.size(), " policies, ", options.seeds.size(),
                     " seeds, ", options.steps, " steps, a probe every ", options.probe,
                     ". Use at least one of each, and a probe every 0 (none) or more steps.");
  const std::vector<NamedPolicy> policies = read_all(options.policies);
  if (std::set(options.seeds.begin(), options.seeds.end()).size() != options.seeds.size())
    fail<UsageError>("run", "a seed is given twice among ", options.seeds.size(),
                     ". A run is repeated by the same command, not by another seed of its number.");
  for (const NamedPolicy& policy : policies)
    note_other_model(progress, policy.file, options.workload, own);
  if (!options.out.empty() && options.seeds.size() * policies.size() > 1)
    for (const uint64_t seed : options.seeds)
      for (const NamedPolicy& policy : policies)
        static_cast<void>(prepared(options, own, policy, seed));  // throws what is wrong
  std::vector<RunResult> results;
  for (const uint64_t seed : options.seeds)
    for (const NamedPolicy& policy : policies) {
      Prepared p = prepared(options, own, policy, seed);
      p.order = std::size_t(&policy - policies.data());
      if (p.done) read_telemetry(p.folder, *p.done, progress);
      std::optional<RunResult> result =
          p.done ? p.done : trained(options, std::move(p), policy.file);
      if (!result) return results;
      const RunResult& r = results.emplace_back(*std::move(result));
      progress << r.policy << ", seed " << seed
               << (r.was_there ? ": already trained, loss " : ": loss ") << number(r.loss) << ", "
               << number(r.milliseconds, 3) << " ms per step";
      if (r.skipped > 0) progress << ", " << r.skipped << " steps skipped";
      progress << std::endl;
      if (options.after) options.after(r);
    }
  return results;
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
