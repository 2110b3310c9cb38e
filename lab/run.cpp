// Uses one Trainer per run, with a monitor if telemetry is wanted.
#include <halftone/lab/run.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <ostream>
#include <set>
#include <sstream>

#include <halftone/core/files.h>
#include <halftone/core/memory_ledger.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/policy_note.h>
#include <halftone/lab/recorded_run.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/statistics.h>
#include <halftone/lab/table.h>
#include <halftone/policy/policy.h>
#include <halftone/policy/resolved/resolved_table.h>
#include <halftone/policy/telemetry/worst_rows.h>
#include <halftone/train/environment.h>
#include <halftone/train/trainer.h>
#include <halftone/train/checkpoints/training_directory.h>

namespace halftone::lab {

namespace {

using Clock = std::chrono::steady_clock;

/// Collects the losses and times of steps, and the results of a probe.
class Watcher final : public train::Callback {
 public:
  explicit Watcher(int64_t every) : every_(every) {}
  void on_fit_start(train::Trainer& trainer) override {
    if (every_ > 0) probe_.emplace(trainer.training(), policy::ProbeOptions{.every = every_});
  }
  void on_batch_start(train::Trainer&, data::Batch&) override { began_ = Clock::now(); }
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
  void on_fit_end(train::Trainer&) override { probe_.reset(); }

  std::vector<double> losses{}, seconds{};
  std::string lines{};  // lines of probe.jsonl
  policy::WorstRows worst{};

 private:
  int64_t every_;
  std::optional<policy::Probe> probe_{};
  Clock::time_point began_{};
};

double tail_mean(const std::vector<double>& values) {
  const std::size_t count = std::max<std::size_t>(1, values.size() / 10);
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(values.end() - std::ptrdiff_t(count), values.end(), 0.0) / double(count);
}

/// Returns everything in summary.json: the settings, the environment and the results.
policy::Json summary_of(const RunOptions& options, const RunResult& result,
                        const policy::Json& settings) {
  policy::Json summary{{"format", 1}, {"policy", result.policy}};
  summary["policy_hash"] = result.policy_hash, summary["resolved_hash"] = result.resolved_hash;
  summary.update(settings);
  summary.update(identity_of_place());
  summary.update(policy::Json{{"loss", result.loss},
                              {"milliseconds_per_step", result.milliseconds},
                              {"skipped_steps", result.skipped},
                              {"weights_hash", result.weights_hash},
                              {"probe", options.probe},
                              {"environment", train::environment_of({})}});
  policy::Json memory;
  const MemoryReport report = memory_report();
  for (int use = 0; use < memory_use_count; ++use)
    memory[std::string(name(MemoryUse(use)))] = report.at_peak[std::size_t(use)];
  summary["bytes_at_peak"] = std::move(memory);
  return summary;
}

void write_folder(const std::filesystem::path& folder, const RunResult& result,
                  const policy::PolicyFile& file, const policy::PolicySession& session,
                  const std::string* probe_lines) {
  const auto put = [&](const char* name, const std::string& text) {
    files::replace("run", folder / name, text);
  };
  put("policy.json", policy::write(file));
  put("resolved.json", policy::resolved_json(session));
  if (probe_lines) put("probe.jsonl", *probe_lines);
  put("summary.json", result.summary);
}

/// Returns the policy's name: "x" for "policies/x.json".
std::string short_name(const std::string& policy) {
  return policy.ends_with(".json") ? std::filesystem::path(policy).stem().string() : policy;
}

/// Returns the result of an earlier finished run; nullopt if there is none. Throws UsageError if
/// its settings differ.
std::optional<RunResult> done_already(const std::filesystem::path& folder, const RunResult& run,
                                      const policy::Json& settings, int64_t probe) {
  auto done = finished_run("run", folder, run.policy, run.seed);
  if (!done) return {};
  const policy::Json summary = policy::parsed_json("run", done->summary);
  policy::Json there;
  for (const auto& [name, value] : settings.items())
    there[name] = summary.value(name, policy::Json());
  std::vector<std::string> others = differences(there, settings);
  if (const policy::Json probed = summary.value("probe", policy::Json());
      probe > 0 && probed != probe)
    others.push_back(
        "probe: " + probed.dump(-1, ' ', false, policy::Json::error_handler_t::replace) +
        " there, " + std::to_string(probe) + " here");
  if (!others.empty())
    fail<UsageError>("run", "there is a run of other settings in ", folder.string(), ": ",
                     policy::printable(others.front()), ". Choose another folder, or remove it.");
  return done;
}

struct NamedPolicy {
  std::string name;
  policy::PolicyFile file;
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

RunResult run_one(const RunOptions& options, const std::vector<NamedWorkload>& own,
                  const NamedPolicy& named, uint64_t seed) {
  const policy::PolicyFile& file = named.file;
  const Choices& choices = options.choices;
  Workload work = make_workload(options.workload, seed, own);
  choose(work, choices);
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(work);
  const auto watcher = std::make_shared<Watcher>(options.probe);
  RunResult result{.policy = named.name, .seed = seed};
  std::filesystem::path folder;
  if (!options.out.empty())
    folder = options.out / (options.workload + "-" + result.policy + "-" + std::to_string(seed));
  result.policy_hash = policy::hash(file);
  const data::DataLoader loader = work.train();
  std::optional<data::DataLoader> validation;
  if (work.validation) validation = work.validation();
  policy::Json from;
  optim::NamedTensors state;
  if (!choices.from.empty()) {
    state = trained_state(choices.from);
    from = {{"path", std::filesystem::absolute(choices.from).string()}, {"hash", hash_of(state)}};
  }
  policy::Json settings{{"policy_hash", result.policy_hash},
                        {"workload", options.workload},
                        {"seed", seed},
                        {"steps", options.steps},
                        {"lr", work.lr}};
  settings.update(identity_of_training(work, choices, *optimizer, loader,
                                       validation ? &*validation : nullptr, options.steps));
  settings["from"] = from;
  if (!folder.empty())
    if (auto done = done_already(folder, result, settings, options.probe)) return *done;
  const bool files = !folder.empty();
  if (files && !options.set_aside)
    if (const auto left = train::left_by_training(folder); !left.empty())
      fail<UsageError>("run", "an unfinished run has left ", left.front(), " in ", folder.string(),
                       ". Pass --set-aside to move it to old-1 there, choose another folder, or "
                       "remove it.");
  train::Trainer trainer(work.task, *optimizer,
                         {.strategy = policy::watched_strategy_of(file),
                          .max_steps = options.steps,
                          .clip_norm = work.clip_norm,
                          .schedule = work.schedule,
                          .validate_every_epochs = 0,
                          .sanity_check_batches = 0,
                          .directory = folder,
                          .checkpoints = files ? train::CheckpointOptions{.every_epochs = 0}
                                               : train::CheckpointOptions{},
                          .set_aside = files && options.set_aside,
                          .csv = false,
                          .json_lines = files,
                          .log_every_steps = std::max<int64_t>(1, options.steps / 100),
                          .progress_bar = false,
                          .model_summary = false,
                          .callbacks = {watcher}});
  if (!choices.from.empty()) start_from(state, trainer.training());
  reset_peak_memory();
  trainer.fit(loader);
  policy::PolicySession& session = policy::session_of(trainer.training());
  session.require_all_rules_used();
  result.loss =
      validation ? trainer.validate(*validation).at("val/loss") : tail_mean(watcher->losses);
  result.milliseconds = 1e3 * median(watcher->seconds);
  result.skipped = trainer.training().skipped_steps();
  result.worst_underflow = watcher->worst.underflow;
  result.worst_site = watcher->worst.underflow_at;
  result.least_sqnr = watcher->worst.sqnr, result.least_sqnr_site = watcher->worst.sqnr_at;
  result.updates = watcher->worst.stored;
  result.resolved_hash = policy::resolved_hash(session);
  result.weights_hash = hash_of(work.model->parameters());
  result.summary = summary_of(options, result, settings).dump(1) + "\n";
  if (files)
    write_folder(folder, result, file, session, options.probe > 0 ? &watcher->lines : nullptr);
  return result;
}
}  // namespace

std::vector<RunResult> run(const RunOptions& options, const std::vector<NamedWorkload>& own,
                           std::ostream& progress) {
  if (options.steps < 1 || options.probe < 0 || options.policies.empty() || options.seeds.empty())
    fail<UsageError>("run", options.policies.size(), " policies, ", options.seeds.size(),
                     " seeds, ", options.steps, " steps, a probe every ", options.probe,
                     ". Use at least one of each, and a probe every 0 (none) or more steps.");
  const std::vector<NamedPolicy> policies = read_all(options.policies);
  if (std::set(options.seeds.begin(), options.seeds.end()).size() != options.seeds.size())
    fail<UsageError>("run", "a seed is given twice among ", options.seeds.size(),
                     ". A run is repeated by the same command, not by another seed of its number.");
  for (const NamedPolicy& policy : policies)
    note_other_model(progress, policy.file, options.workload, own);
  std::vector<RunResult> results;
  for (const uint64_t seed : options.seeds)
    for (const NamedPolicy& policy : policies) {
      results.push_back(run_one(options, own, policy, seed));
      const RunResult& r = results.back();
      progress << r.policy << ", seed " << seed << (r.was_there ? ": is there, loss " : ": loss ")
               << number(r.loss) << ", " << number(r.milliseconds, 3) << " ms per step";
      if (r.skipped > 0) progress << ", " << r.skipped << " steps skipped";
      progress << std::endl;
    }
  return results;
}

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
  const std::vector<const RunResult*> base = of(policies.front());
  Table table({"policy", "loss", "against " + policies.front() + ", 95 %", "ms/step", "skipped",
               "updates lost", "worst underflow", "", "least SQNR", ""});
  for (const std::string& policy : policies) {
    const std::vector<const RunResult*> own = of(policy);
    std::vector<double> losses, shares, times;
    int64_t skipped = 0;
    policy::UpdateSums updates;
    const RunResult *under = own.front(), *noisy = own.front();
    for (std::size_t i = 0; i < own.size(); ++i) {
      losses.push_back(own[i]->loss), times.push_back(own[i]->milliseconds);
      const auto twin = std::ranges::find(base, own[i]->seed, &RunResult::seed);
      if (twin != base.end()) shares.push_back(own[i]->loss / (*twin)->loss - 1);
      skipped += own[i]->skipped;
      updates.add(own[i]->updates);
      if (own[i]->worst_underflow > under->worst_underflow) under = own[i];
      if (own[i]->least_sqnr < noisy->least_sqnr) noisy = own[i];
    }
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

}  // namespace halftone::lab
