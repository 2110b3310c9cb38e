// halftone-lab gate.
#include <halftone/core/json_value.h>
#include <halftone/lab/commands/commands.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <optional>

#include <halftone/core/device.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/run.h>
#include <halftone/lab/table.h>
#include <halftone/amp/policy.h>

namespace halftone::lab {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// A new folder for files, removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (fs::temp_directory_path() / "halftone-gate-XXXXXX").string();
    if (!mkdtemp(name.data()))
      fail<UsageError>("gate", "cannot make a folder in ", fs::temp_directory_path().string(),
                       ". Give one by --out.");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// "0.14 %", or a number in the loss's units.
std::string difference_text(double difference, const Bound& bound) {
  return bound.relative ? fixed(100 * bound.shown(difference), 2) + " %" : number(difference, 3);
}

/// Losses of one seed under both policies, as far as they are known.
struct Pair {
  std::optional<RunResult> policy{}, reference{};
  bool complete() const { return policy && reference; }
};

double loss_of(const RunResult& run, const std::string& metric) {
  return metric == "validation" ? run.validation_loss : run.late_loss;
}

class Pairs {
 public:
  /// policies: the tested one and the reference.
  Pairs(const GateOptions& options, const std::array<amp::Policy, 2>& policies,
        const std::vector<NamedWorkload>& own, fs::path out, std::ostream& progress)
      : options_(options),
        policy_{label_of(policies[0], policies), policies[0], options.setup},
        reference_{label_of(policies[1], policies), policies[1], options.setup},
        out_(std::move(out)),
        progress_(progress),
        jobs_("gate", options.jobs > 0 ? options.jobs : cpu_threads()) {
    for (const char* folder : {"policy", "reference", "logs"})
      files::make_directories("gate", out_ / folder);
    Json settings = json_of(options.setup);
    settings.erase("probe");
    settings["policy"] = policy::hash(policy_.policy);
    settings["reference"] = policy::hash(reference_.policy);
    settings["portable_bits"] = portable_bits();
    require_same_settings("gate", out_ / "gate.json", settings);
    for (const Cell* cell : {&policy_, &reference_}) require_fit(*cell, own);
  }

  /// Trains until `count` pairs are complete; false if time is over or a signal came.
  bool train(int64_t count) {
    while (std::ssize(pairs_) < count) {
      pairs_.emplace_back();
      for (const bool reference : {true, false}) add({pairs_.size() - 1, reference});
    }
    while (jobs_.left() > 0) {
      if (minutes() > options_.max_minutes) {
        progress_ << "stopped after " << number(minutes(), 3) << " min" << std::endl;
        return false;
      }
      if (const auto ended = jobs_.next(1)) finish(*ended);
      if (Jobs::stopped()) {
        progress_ << "stopped by a signal" << std::endl;
        return false;
      }
    }
    return true;
  }

  /// Returns the differences of complete pairs by seed, up to the first incomplete one.
  std::vector<double> differences(const std::string& metric) const {
    std::vector<double> result;
    for (const Pair& pair : pairs_) {
      if (!pair.complete()) break;
      result.push_back(difference_of(pair, metric));
    }
    return result;
  }
  const std::vector<Pair>& all() const { return pairs_; }
  const std::string& name_of(bool reference) const {
    return (reference ? reference_ : policy_).name;
  }
  double minutes() const {
    return std::chrono::duration<double>(Clock::now() - began_).count() / 60;
  }
  bool has_validation() const {
    return !pairs_.empty() && pairs_[0].reference &&
           !std::isnan(pairs_[0].reference->validation_loss);
  }

 private:
  struct Run {
    std::size_t pair;
    bool reference;
  };

  double difference_of(const Pair& pair, const std::string& metric) const {
    const double loss = loss_of(*pair.policy, metric), reference = loss_of(*pair.reference, metric);
    const bool chosen = metric == options_.metric;
    if (chosen && options_.within.relative && (loss <= 0 || reference <= 0))
      fail<UsageError>("gate", "the losses from seed ", pair.policy->seed, " are ", loss, " and ",
                       reference,
                       ", and a bound in percent needs losses above 0. Give it in the loss's "
                       "units, for example --within 0.01.");
    return options_.within.difference(loss, reference);
  }
  uint64_t seed_of(const Run& run) const { return options_.seed + run.pair; }

  /// Takes the result of a run that is finished, and trains the others.
  void add(const Run& run) {
    const std::string kind = run.reference ? "reference" : "policy";
    Job job = job_of(run.reference ? reference_ : policy_, seed_of(run), out_ / kind);
    if (auto before = finished_run("gate", job.folder, job.cell.name, job.seed))
      return take(run, *std::move(before));
    const std::string log = kind + '-' + std::to_string(job.seed) + ".log";
    jobs_.add(std::move(job), out_ / "logs" / log);
    runs_.push_back(run);
  }

  void take(const Run& run, RunResult result) {
    // A training that diverged has finished, and its metric is infinite or NaN.
    if (const double loss = loss_of(result, options_.metric); run.reference && !std::isfinite(loss))
      fail<UsageError>("gate", "the reference ", reference_.name, " has no finite ",
                       options_.metric, " from seed ", result.seed, ": ", loss,
                       ". Use another reference, or --metric late-loss.");
    Pair& pair = pairs_[run.pair];
    (run.reference ? pair.reference : pair.policy) = std::move(result);
  }

  void finish(const Jobs::Ended& ended) {
    const Run run = runs_[ended.number];
    if (!ended.result)
      fail<UsageError>("gate", "a run of ", name_of(run.reference),
                       " failed: ", printable(ended.problem));
    take(run, *ended.result);
    const Pair& pair = pairs_[run.pair];
    if (!pair.complete()) return;
    ++trained_;
    const auto left =
        double(std::ranges::count_if(pairs_, [](const Pair& p) { return !p.complete(); }));
    progress_ << "seed " << seed_of(run) << ": "
              << difference_text(difference_of(pair, options_.metric), options_.within);
    if (left > 0) progress_ << "; " << time_left(60 * minutes() / double(trained_) * left);
    progress_ << std::endl;
  }

  const GateOptions& options_;
  Cell policy_, reference_;
  fs::path out_;
  std::ostream& progress_;
  Jobs jobs_;
  std::vector<Pair> pairs_{};
  std::vector<Run> runs_{};  // of the jobs
  int64_t trained_ = 0;
  Clock::time_point began_ = Clock::now();
};

int exit_of(Verdict verdict) {
  return verdict == Verdict::undecided ? exit_undecided
         : verdict == Verdict::worse   ? exit_no
                                       : exit_yes;
}

Json json_of(const Interval& d, const Bound& bound) {
  const auto number = [&bound](double x) {
    return std::isfinite(x) ? Json(bound.shown(x)) : Json();
  };
  return {{"mean", number(d.mean)},
          {"low", number(d.mean - d.half)},
          {"high", number(d.mean + d.half)}};
}

Json json_of(const GateOptions& options, const GateAnswer& answer, const Pairs& pairs) {
  Json seeds = Json::array();
  for (std::size_t i = 0; i < pairs.all().size(); ++i) {
    const Pair& pair = pairs.all()[i];
    if (!pair.complete()) break;
    seeds.push_back({{"seed", pair.policy->seed},
                     {"policy",
                      {{"late_loss", pair.policy->late_loss},
                       {"validation_loss", pair.policy->validation_loss}}},
                     {"reference",
                      {{"late_loss", pair.reference->late_loss},
                       {"validation_loss", pair.reference->validation_loss}}}});
  }
  Json json{{"format", 1},
            {"verdict", name(answer.verdict)},
            {"policy", pairs.name_of(false)},
            {"reference", pairs.name_of(true)},
            {"workload", options.setup.workload},
            {"steps", options.setup.steps},
            {"metric", options.metric},
            {"within", options.within.value},
            {"relative", options.within.relative},
            {"difference", json_of(answer.difference, options.within)},
            {"pairs", answer.pairs},
            {"first", answer.first},
            {"asked", answer.asked},
            {"would_decide", answer.would_decide},
            {"unseen_share", answer.pairs > 0 ? Json(unseen_share(answer.pairs)) : Json()},
            {"jump", answer.jump == 0 ? Json() : Json(options.within.shown(answer.jump))},
            {"minutes", pairs.minutes()}};
  for (const char* metric : {"late-loss", "validation"})
    if (metric == std::string("late-loss") || pairs.has_validation())
      json[metric] = json_of(interval_of(pairs.differences(metric)), options.within);
  json["seeds"] = std::move(seeds);
  return json;
}

std::string interval_text(const Interval& d, const Bound& bound) {
  return difference_text(d.mean, bound) + " +- " + difference_text(d.half, bound);
}

}  // namespace

int run_gate(const GateOptions& options, const std::vector<NamedWorkload>& own,
             std::ostream& progress) {
  Gate gate(options.within.of_differences(), options.first, options.pairs);
  if (!(options.max_minutes > 0))
    fail<UsageError>("gate", options.max_minutes, " minutes. Use more than 0.");
  require_json(options.json);
  const std::array<amp::Policy, 2> policies{policy::named_or_read(options.policy),
                                            policy::named_or_read(options.reference)};
  note_other_model(progress, policies[0], options.setup.workload, own);
  name_workload(words_next_to(options.json), options.setup.workload, own);
  std::optional<TemporaryFolder> temporary;
  if (options.out.empty()) temporary.emplace();
  Pairs pairs(options, policies, own, temporary ? temporary->path() : options.out, progress);
  std::vector<double> differences;
  bool goes_on = true, diverged = false;
  while (goes_on && !diverged) {
    const int64_t wanted = gate.wanted(differences);
    if (wanted <= std::ssize(differences)) break;
    if (!differences.empty())
      progress << "the spread of " << differences.size() << " pairs asks for " << wanted
               << std::endl;
    goes_on = pairs.train(wanted);
    differences = pairs.differences(options.metric);
    diverged = std::ranges::any_of(differences, [](double d) { return !std::isfinite(d); });
  }
  GateAnswer answer = gate.answer(differences);
  if (diverged) answer.verdict = Verdict::worse, answer.would_decide = 0;
  std::ostream& words = words_next_to(options.json);
  words << options.setup.workload << ", " << options.setup.steps
        << " steps: " << pairs.name_of(false) << " against " << pairs.name_of(true) << ", "
        << options.metric << '\n'
        << text_of(answer, options.within) << ", " << fixed(pairs.minutes(), 1) << " min\n";
  if (diverged) words << "the policy's loss is not finite from at least one seed\n";
  const std::string other = options.metric == "validation" ? "late-loss" : "validation";
  if (answer.pairs > 1 && (other == "late-loss" || pairs.has_validation()))
    words << "by " << other << ": "
          << interval_text(interval_of(pairs.differences(other)), options.within) << '\n';
  write_json(options.json, json_of(options, answer, pairs).dump(1) + "\n");
  return exit_of(answer.verdict);
}

Work add_gate(CLI::App& app, const Context& context) {
  struct Options {
    GateOptions gate{};
    std::string within = "0.5%";
  };
  auto options = std::make_shared<Options>();
  GateOptions& gate = options->gate;
  gate.setup.workload = context.workload;
  add_policy(app, gate.policy);
  app.add_option("--reference", gate.reference, "the policy it is compared with")
      ->capture_default_str();
  app.add_option(
         "--within", options->within,
         "bound on the difference of the losses: 0.5% is relative, 0.01 is in the loss's units")
      ->capture_default_str();
  app.add_option("--metric", gate.metric,
                 "late-loss (mean of the last tenth of the steps) or validation")
      ->capture_default_str()
      ->check(CLI::IsMember({"late-loss", "validation"}));
  add_workload(app, gate.setup.workload, context);
  app.add_option("--steps", gate.setup.steps, "steps of each training")
      ->capture_default_str()
      ->check(whole_number(1, most_steps));
  add_choices(app, gate.setup.choices);
  app.add_option("--first", gate.first, "pairs that estimate the spread")
      ->capture_default_str()
      ->check(CLI::Range(2, 1000));
  app.add_option("--pairs", gate.pairs, "trains exactly this many pairs; default: by their spread")
      ->check(CLI::Range(2, 1000000));
  app.add_option("--max-minutes", gate.max_minutes, "stops after this time")
      ->capture_default_str()
      ->check(positive_number());
  app.add_option("--jobs", gate.jobs,
                 "trainings at once, which share the threads; default: one per thread")
      ->check(whole_number(1, most_jobs));
  add_seed(app, gate.seed);
  app.add_option("--out", gate.out,
                 "keeps the runs in this folder, and reads those that are finished");
  add_json(app, gate.json);
  return [options, &context] {
    options->gate.within = bound_of(options->within);
    return run_gate(options->gate, context.own, std::cerr);
  };
}

}  // namespace halftone::lab
