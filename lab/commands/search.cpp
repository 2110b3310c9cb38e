// Both commands measure each rule of a space alone. search then combines rules and trains the
// result.
#include <halftone/lab/commands/search.h>

#include <algorithm>
#include <iostream>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/commands/flags.h>
#include <halftone/lab/policy_note.h>
#include <halftone/lab/run.h>
#include <halftone/lab/search.h>
#include <halftone/lab/search_space.h>

namespace halftone::lab {

namespace {

/// A base, and the measurements of each rule of a space on top of it.
struct Ranking {
  policy::PolicyFile base;
  Trial trial;
  Measurement of_base;
  std::vector<Candidate> candidates;

  Ranking(const SensitivityOptions& options, const std::vector<NamedWorkload>& own)
      : base(policy::named_or_read(options.policy)),
        trial(trial_of(options, own)),
        of_base(trial.set_base(base)) {
    note_other_model(std::cerr, base, options.workload, own);
    const std::vector<policy::Rule> space = search_space(
        options.space, options.to, base, make_workload(options.workload, options.seed, own));
    if (space.empty())
      fail<UsageError>("search", "no rule of the space \"", options.space, "\" to ", options.to,
                       " changes ", options.policy, ". Try another --space or --to.");
    candidates = sensitivity(trial, base, space, std::cerr);
  }
};

bool all_refused(const std::vector<Candidate>& candidates) {
  return std::ranges::all_of(candidates, [](const Candidate& c) { return !c.refused.empty(); });
}

/// Gives the found policy its file's name, and describes how it was found.
void name_policy(policy::PolicyFile& file, const SearchCommand& command) {
  PlainText about;
  about << made_by_search << command.of.policy << " --space " << command.of.space << " --to "
        << command.of.to << " --objective " << command.objective << " --budget " << command.budget
        << " --workload " << command.of.workload << ": " << file.about;
  file.about = about.str();
  file.base.name = command.out.stem().string();
  file.meant_for.clear();
}

}  // namespace

Trial trial_of(const SensitivityOptions& options, const std::vector<NamedWorkload>& own) {
  return Trial(
      [options, &own] { return make_workload(options.workload, options.seed, own); },
      policy::named_or_loaded(options.reference),
      {.batches = options.batches, .warm_up = options.warm_up, .rounds = 2, .seed = options.seed});
}

std::filesystem::path record_of(std::filesystem::path out) {
  return out.replace_extension(".search.json");
}

void check_place_for(const std::filesystem::path& out) {
  if (out.extension() != ".json")
    fail<UsageError>("search", out.string(),
                     " does not end in .json, as a policy's file does. Add it.");
  if (std::filesystem::exists(out) && !policy::read(out).about.starts_with(made_by_search))
    fail<UsageError>("search", out.string(),
                     " exists, and no earlier search made it. Choose another --out.");
  if (const auto record = record_of(out);
      !std::filesystem::exists(out) && std::filesystem::exists(record))
    fail<UsageError>("search", record.string(),
                     " exists without its policy. Choose another --out.");
  std::error_code error;
  if (out.has_parent_path()) std::filesystem::create_directories(out.parent_path(), error);
  if (error)
    fail<UsageError>("search", "cannot make ", out.parent_path().string(), ": ", error.message(),
                     ". Choose another --out.");
}

int train_found(const RunOptions& options, const std::vector<NamedWorkload>& own,
                std::ostream& words) {
  const std::vector<RunResult> runs = run(options, own, std::cerr);
  if (!runs.empty()) words << '\n' << table_of(runs);
  const std::size_t wanted = options.policies.size() * options.seeds.size();
  if (runs.size() == wanted) return exit_yes;
  std::cerr << "stopped: " << runs.size() << " of " << wanted
            << " trainings are finished; the policies found are written\n";
  return exit_undecided;
}

int run_sensitivity(const SensitivityOptions& options, const std::vector<NamedWorkload>& own) {
  if (!options.menu.empty() || options.one_pass || options.check)
    return run_menu_sensitivity(options, own);
  require_json(options.json);
  std::ostream& words = words_next_to(options.json);
  name_workload(words, options.workload, own, false);
  const Ranking ranking(options, own);
  words << table_of(ranking.candidates, ranking.of_base);
  write_json(options.json, json_of(ranking.candidates, ranking.of_base));
  return all_refused(ranking.candidates) ? exit_no : exit_yes;
}

int run_search(const SearchCommand& command, const std::vector<NamedWorkload>& own) {
  if (!command.of.menu.empty() || !command.bits.empty() || !command.gate.empty())
    return run_menu_search(command, own);
  const SearchOptions options{.objective = objective_named(command.objective),
                              .budget = command.budget};
  if (!command.seeds.empty() && command.out.empty())
    fail<UsageError>("search", "trainings are asked for, but no file for the policy. Add --out.");
  if (!command.out.empty()) check_place_for(command.out);
  require_json(command.of.json);
  std::ostream& words = words_next_to(command.of.json);
  name_workload(words, command.of.workload, own);
  Ranking ranking(command.of, own);
  Found found = search(ranking.trial, ranking.base, ranking.of_base, std::move(ranking.candidates),
                       options, std::cerr);
  words << table_of(found.candidates, found.base) << '\n' << table_of(found, options);
  write_json(command.of.json, json_of(found, options));
  // A policy equal to the base is neither written nor trained.
  if (all_refused(found.candidates) || found.chosen.empty()) return exit_no;
  if (command.out.empty()) return exit_yes;
  name_policy(found.policy, command);
  files::replace("search", command.out, policy::write(found.policy));
  files::replace("search", record_of(command.out), json_of(found, options));
  words << "policy " << policy::hash(found.policy) << ": " << command.out.string() << '\n';
  if (command.seeds.empty()) return exit_yes;
  return train_found({.workload = command.of.workload,
                      .policies = {command.of.policy, command.out.string()},
                      .seeds = command.seeds,
                      .steps = command.steps},
                     own, words);
}

namespace {
/// Adds the flags that sensitivity and search share.
void add_ranking(CLI::App& app, SensitivityOptions& options, const Context& context) {
  options.workload = context.workload;
  app.add_option("policy", options.policy,
                 "the base: a file (x.json), a strategy, or a shipped policy (mxfp8)")
      ->required();
  app.add_option(
         "--space", options.space,
         "ops, modules or roles: one rule for each of them; or the rules of a file (x.json)")
      ->capture_default_str();
  app.add_option("--to", options.to,
                 "rules ask for this: low, bf16, f16, f32, or a quantizer (e4m3, mxfp8, ...)")
      ->capture_default_str();
  app.add_option("--reference", options.reference, "the policy whose gradients are the measure")
      ->capture_default_str();
  app.add_option("--workload", options.workload, context.names)->capture_default_str();
  app.add_option("--warm-up", options.warm_up, "steps of training before the measurement")
      ->capture_default_str()
      ->check(whole_number(0, most_steps));
  app.add_option("--batches", options.batches, "batches whose gradients are compared")
      ->capture_default_str()
      ->check(whole_number(1, 1'000'000));
  app.add_option("--menu", options.menu,
                 "formats (bf16,mxfp8,mxfp4) that each module may get, instead of --space and --to")
      ->delimiter(',');
  add_seed(app, options.seed);
  add_json(app, options.json);
}
}  // namespace

Work add_sensitivity(CLI::App& app, const Context& context) {
  auto options = std::make_shared<SensitivityOptions>();
  add_ranking(app, *options, context);
  app.add_flag("--one-pass", options->one_pass,
               "with --menu: one forward and backward per batch scores all formats");
  app.add_flag("--check", options->check,
               "with --one-pass: also measures each rule alone, and prints the rank correlation");
  return [options, &context] { return run_sensitivity(*options, context.own); };
}

Work add_search(CLI::App& app, const Context& context) {
  auto options = std::make_shared<SearchCommand>();
  add_ranking(app, options->of, context);
  app.add_option("--objective", options->objective, "the cost to reduce: bytes, time, bits")
      ->capture_default_str();
  app.add_option("--budget", options->budget,
                 "relative error of the gradients that the rules may add to the base's")
      ->capture_default_str()
      ->check(positive_number());
  app.add_option("--out", options->out,
                 "writes the policy (x.json); candidates and frontier go to x.search.json");
  add_seeds(app, options->seeds, "trains the base and the result from these seeds: 0..4 or 0,3,7");
  app.add_option("--steps", options->steps, "steps of these trainings")
      ->capture_default_str()
      ->check(whole_number(1, most_steps));
  app.add_option("--bits", options->bits,
                 "with --menu: budgets, in mean bits of an operand's element (4.5,6,8)")
      ->delimiter(',')
      ->check(positive_number());
  app.add_option("--gate", options->gate,
                 "with --menu: gates the policy of the first budget by this bound, such as 0.5%");
  return [options, &context] { return run_search(*options, context.own); };
}

}  // namespace halftone::lab
