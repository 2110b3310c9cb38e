// Both commands measure each rule of a space alone. search then combines rules and trains the
// result.
#include <halftone/core/json_value.h>
#include <halftone/lab/commands/commands.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <sstream>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/run.h>
#include <halftone/lab/search.h>
#include <halftone/lab/table.h>
#include <halftone/lab/trial.h>

namespace halftone::lab {

namespace {

struct SensitivityOptions {
  std::string policy;  // the base: a file, or a strategy's name
  std::string reference = "fp32", workload{}, space = "ops", to = "low";
  int64_t warm_up = 20;
  int batches = 4;
  uint64_t seed = 0;
  std::string json{};        // empty: none; -: standard output
  std::string by = "trial";  // or hessian: one more ranking, of sensitivity alone
  int64_t probes = 32;       // random vectors per batch, for the traces of the Hessian
  // --- formats for each module, instead of `space` and `to`
  std::vector<std::string> menu{};
  bool one_pass = false;  // scores by one pass, not by a trial for each rule
  bool check = false;     // with one_pass: also a trial for each rule, and the correlation
};

struct SearchCommand {
  SensitivityOptions of{};
  std::string objective = "bytes";
  double budget = 0.02;
  std::filesystem::path out{};    // the policy's file, x.json; x.search.json gets candidates and
                                  // frontier
  std::vector<uint64_t> seeds{};  // seeds to train the base and the found policy from; empty: none
  int64_t steps = 300;
  std::vector<double> bits{};  // with a menu: the budgets, mean bits of an operand's element
  std::string gate{};          // a bound such as "0.5%"; empty: no gate
};

int run_sensitivity(const SensitivityOptions& options, const std::vector<NamedWorkload>& own);
int run_search(const SearchCommand& command, const std::vector<NamedWorkload>& own);
/// The same with a menu (lab/search.h).
int run_menu_sensitivity(const SensitivityOptions& options, const std::vector<NamedWorkload>& own);
int run_menu_search(const SearchCommand& command, const std::vector<NamedWorkload>& own);

/// The measure of sensitivity and search: the workload's batches under the reference.
Trial trial_of(const SensitivityOptions& options, const std::vector<NamedWorkload>& own);
/// Trains the base and found policies, and prints the table. Returns 3 if a signal stopped it.
int train_found(const Study& study, const std::vector<NamedWorkload>& own, std::ostream& words);
constexpr std::string_view made_by_search = "halftone-lab search ";
/// Throws UsageError before minutes of work unless the policy can be written to `out`, and replaces
/// only the policy of an earlier search.
void check_place_for(const std::filesystem::path& out);
/// Returns the record's path: x.search.json for x.json.
std::filesystem::path record_of(std::filesystem::path out);

/// A base, and the measurements of each rule of a space on top of it.
struct Ranking {
  amp::Policy base;
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
void name_policy(amp::Policy& file, const SearchCommand& command) {
  PlainText about;
  about << made_by_search << command.of.policy << " --space " << command.of.space << " --to "
        << command.of.to << " --objective " << command.objective << " --budget " << command.budget
        << " --workload " << command.of.workload << ": " << file.about;
  file.about = about.str();
  file.name = command.out.stem().string();
  file.meant_for.clear();
}

Trial trial_of(const SensitivityOptions& options, const std::vector<NamedWorkload>& own) {
  return Trial(
      [options, &own] { return make_workload(options.workload, options.seed, own); },
      policy::named_or_read(options.reference),
      {.batches = options.batches, .warm_up = options.warm_up, .rounds = 2, .seed = options.seed});
}

/// Scores candidates by the Hessian as well, if asked to. Prints and writes them.
int show_sensitivity(const SensitivityOptions& options, const Trial& trial, const amp::Policy& base,
                     const Measurement& of_base, std::vector<Candidate> candidates,
                     std::ostream& words) {
  const bool by_hessian = options.by == "hessian";
  if (by_hessian) {
    std::cerr << "traces of the Hessian, " << options.probes << " probes per batch" << std::endl;
    add_hessian_scores(trial, base, candidates, options.probes);
  }
  words << table_of(candidates, of_base);
  if (by_hessian) {
    const HessianCheck check = check_hessian_scores(candidates);
    words << check.scored << " of " << candidates.size()
          << " rules round parameters; Spearman's rank correlation of the Hessian's scores with "
             "one trial each: "
          << fixed(check.of_gradients, 3) << " of what they add to gradients, "
          << fixed(check.of_loss, 3) << " of the loss\n";
  }
  write_json(options.json, json_of(candidates, of_base));
  return all_refused(candidates) ? exit_no : exit_yes;
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

int train_found(const Study& study, const std::vector<NamedWorkload>& own, std::ostream& words) {
  const std::vector<RunResult> runs = run(study, own, std::cerr);
  if (!runs.empty()) words << '\n' << table_of(runs);
  const std::size_t wanted = study.cells.size() * study.seeds.size();
  if (runs.size() == wanted) return exit_yes;
  std::cerr << "stopped: " << runs.size() << " of " << wanted
            << " trainings are finished; the policies found are written\n";
  return exit_undecided;
}

int run_sensitivity(const SensitivityOptions& options, const std::vector<NamedWorkload>& own) {
  if (options.by != "trial" && options.by != "hessian")
    fail_unknown_name("sensitivity", "ranking", options.by,
                      std::vector<std::string_view>{"trial", "hessian"});
  if (options.by == "hessian" && options.one_pass)
    fail<UsageError>("sensitivity",
                     "--by hessian and --one-pass are two predictions. Give one of them.");
  if (!options.menu.empty() || options.one_pass || options.check)
    return run_menu_sensitivity(options, own);
  require_json(options.json);
  std::ostream& words = words_next_to(options.json);
  name_workload(words, options.workload, own, false);
  Ranking ranking(options, own);
  return show_sensitivity(options, ranking.trial, ranking.base, ranking.of_base,
                          std::move(ranking.candidates), words);
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
  return train_found(
      {.cells = read_cells({command.of.policy, command.out.string()},
                           {.workload = command.of.workload, .steps = command.steps}),
       .seeds = command.seeds},
      own, words);
}

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
  app.add_option("--by", options->by,
                 "trial: one measurement per rule; hessian: also the loss's curvature times the "
                 "squared error of weights")
      ->capture_default_str();
  app.add_option("--probes", options->probes,
                 "with --by hessian: random vectors per batch, for the traces of the Hessian")
      ->capture_default_str()
      ->check(whole_number(2, 1'000'000));
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

// sensitivity and search with a menu: formats for each module, scored by one pass.

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

std::string signed_percent(double share) {
  return (share > 0 ? "+" : "") + fixed(100 * share, 3) + " %";
}

/// A base, and the scores of each module under each format.
struct MenuRanking {
  amp::Policy base;
  Trial trial;
  Measurement of_base;
  Menu menu{};
  double seconds = 0;  // of the one pass

  MenuRanking(const SensitivityOptions& options, const std::vector<NamedWorkload>& own)
      : base(policy::named_or_read(options.policy)),
        trial(trial_of(options, own)),
        of_base(trial.set_base(base)) {
    note_other_model(std::cerr, base, options.workload, own);
    const Workload example = make_workload(options.workload, options.seed, own);
    const Clock::time_point began = Clock::now();
    menu = menu_of(trial, base, example, options.menu);
    seconds = seconds_since(began);
  }
};

void require_menu(std::string_view command, const SensitivityOptions& options) {
  if (options.menu.empty())
    fail<UsageError>(command,
                     "there is no menu. Add --menu with formats, such as bf16,mxfp8,mxfp4.");
  for (std::size_t i = 0; i < options.menu.size(); ++i)
    if (std::ranges::count(options.menu, options.menu[i]) > 1)
      fail<UsageError>(command, in_quotes(options.menu[i]), " is on the menu twice. Give it once.");
}

std::string table_of(const Menu& menu) {
  std::vector<const OnePassScore*> order;
  for (const OnePassScore& score : menu.scores) order.push_back(&score);
  std::ranges::stable_sort(order, {}, &OnePassScore::added);
  Table table({"module", "format", "bits", "adds to gradients", "changes loss"});
  for (const OnePassScore* score : order)
    table.row({score->path, score->format, number(score->bits), percent(score->added),
               fixed(100 * score->loss_change, 4) + " %"});
  std::ostringstream text;
  text << table;
  return text.str();
}

Json json_of(const Menu& menu) {
  Json list = Json::array();
  for (const OnePassScore& score : menu.scores)
    list.push_back({{"module", score.path},
                    {"format", score.format},
                    {"bits", score.bits},
                    {"flops", score.flops},
                    {"added", score.added},
                    {"loss_change", score.loss_change}});
  return list;
}

/// Measures each rule alone and prints how well one pass ranks them.
Json check_scores(const MenuRanking& ranking, std::ostream& words) {
  const Clock::time_point began = Clock::now();
  const std::vector<Candidate> alone =
      measured_alone(ranking.trial, ranking.base, ranking.menu, std::cerr);
  const double seconds = seconds_since(began);
  std::vector<double> scores, added, losses, changes;
  Table table({"rule", "one pass", "alone", "loss, one pass", "loss, alone"});
  std::size_t next = 0;
  for (std::size_t i = 0; i < ranking.menu.scores.size(); ++i)
    for (std::size_t k = 0; k < ranking.menu.rules[i].size(); ++k, ++next) {
      const Candidate& candidate = alone[next];
      if (!candidate.refused.empty()) continue;
      const OnePassScore& score = ranking.menu.scores[i];
      scores.push_back(score.added), added.push_back(candidate.measured.added);
      losses.push_back(score.loss_change), changes.push_back(candidate.measured.loss_moved);
      table.row({candidate.rule.name, percent(score.added), percent(candidate.measured.added),
                 fixed(100 * score.loss_change, 4) + " %",
                 fixed(100 * candidate.measured.loss_moved, 4) + " %"});
    }
  const double of_gradients = spearman(scores, added), of_losses = spearman(losses, changes);
  words << '\n'
        << table << scores.size()
        << " rules; Spearman's rank correlation with one trial each: " << fixed(of_gradients, 3)
        << " of what they add to gradients, " << fixed(of_losses, 3) << " of the loss\n"
        << "one pass " << fixed(ranking.seconds, 2) << " s, one trial each " << fixed(seconds, 2)
        << " s: " << fixed(seconds / ranking.seconds, 1) << " times faster\n";
  return {{"rules", scores.size()},
          {"spearman", of_gradients},
          {"spearman_of_loss", of_losses},
          {"seconds", ranking.seconds},
          {"seconds_alone", seconds}};
}

std::filesystem::path file_of_budget(const std::filesystem::path& out, double bits) {
  std::filesystem::path path = out;
  return path.replace_filename(out.stem().string() + "-" + exact(bits) + "bits.json");
}

void name_point(MenuPoint& point, const SearchCommand& command, const std::filesystem::path& file) {
  PlainText about;
  about << made_by_search << command.of.policy << " --menu ";
  for (const std::string& format : command.of.menu)
    about << (&format == &command.of.menu.front() ? "" : ",") << format;
  about << " --bits " << point.budget << " --workload " << command.of.workload;
  if (!point.policy.about.empty()) about << ": " << point.policy.about;
  point.policy.about = about.str();
  point.policy.name = file.stem().string();
  point.policy.meant_for.clear();
}

/// "12 mxfp8, 5 mxfp4"
std::string counted(const Menu& menu, const MenuPoint& point) {
  std::string text;
  for (const std::string& format : menu.formats)
    if (const auto count = std::ranges::count(point.formats, format); count > 0)
      text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + format;
  return text;
}

Json json_of(const Menu& menu, const MenuPoint& point, const std::string& file) {
  Json formats = Json::object();
  for (std::size_t i = 0; i < menu.paths.size(); ++i) formats[menu.paths[i]] = point.formats[i];
  return {{"budget", point.budget > 0 ? Json(point.budget) : Json()},
          {"bits", point.bits},
          {"predicted", point.predicted},
          {"added", point.measured.added},
          {"predicted_loss_change", point.predicted_loss},
          {"loss_change", point.measured.loss_change},
          {"file", file.empty() ? Json() : Json(file)},
          {"formats", formats}};
}

int run_menu_sensitivity(const SensitivityOptions& options, const std::vector<NamedWorkload>& own) {
  require_menu("sensitivity", options);
  if (options.check && !options.one_pass)
    fail<UsageError>("sensitivity",
                     "--check compares one pass with a trial for each rule. Add --one-pass.");
  require_json(options.json);
  std::ostream& words = words_next_to(options.json);
  name_workload(words, options.workload, own, false);
  const MenuRanking ranking(options, own);
  if (!options.one_pass)
    return show_sensitivity(options, ranking.trial, ranking.base, ranking.of_base,
                            measured_alone(ranking.trial, ranking.base, ranking.menu, std::cerr),
                            words);
  Json json{{"format", 1}};
  words << table_of(ranking.menu) << ranking.menu.paths.size() << " modules, "
        << ranking.menu.formats.size() << " formats, " << fixed(ranking.seconds, 2) << " s\n";
  json["menu"] = json_of(ranking.menu);
  if (options.check) json["check"] = check_scores(ranking, words);
  write_json(options.json, json.dump(1) + "\n");
  return exit_yes;
}

int run_menu_search(const SearchCommand& command, const std::vector<NamedWorkload>& own) {
  require_menu("search", command.of);
  if (command.bits.empty())
    fail<UsageError>("search", "there is a menu, but no budget. Add --bits, such as 4.5,6,8.");
  if (!command.gate.empty() && command.out.empty())
    fail<UsageError>("search", "a gate is asked for, but no file for the policy. Add --out.");
  if (!command.seeds.empty() && command.out.empty())
    fail<UsageError>("search", "trainings are asked for, but no file for the policy. Add --out.");
  const Bound within = command.gate.empty() ? Bound{} : bound_of(command.gate);
  std::vector<std::filesystem::path> files;
  for (const double bits : command.bits) {
    files.push_back(command.out.empty() ? "" : file_of_budget(command.out, bits));
    if (!command.out.empty()) check_place_for(files.back());
  }
  require_json(command.of.json);
  std::ostream& words = words_next_to(command.of.json);
  name_workload(words, command.of.workload, own);
  const MenuRanking ranking(command.of, own);
  std::vector<MenuPoint> points =
      menu_frontier(ranking.trial, ranking.base, ranking.menu, command.bits, std::cerr);
  Table table({"budget", "bits", "adds to gradients: predicted", "measured",
               "changes loss: predicted", "measured", "modules", "file"});
  Json list = Json::array();
  for (std::size_t i = 0; i < points.size(); ++i) {
    MenuPoint& point = points[i];
    const std::string file = i < files.size() ? files[i].string() : "";
    table.row({point.budget > 0 ? exact(point.budget) : "for all", fixed(point.bits, 2),
               percent(point.predicted), percent(point.measured.added),
               "± " + fixed(100 * point.predicted_loss, 3) + " %",
               signed_percent(point.measured.loss_change), counted(ranking.menu, point), file});
    list.push_back(json_of(ranking.menu, point, file));
    if (file.empty()) continue;
    name_point(point, command, files[i]);
    files::replace("search", files[i], policy::write(point.policy));
  }
  words
      << table
      << "bits: the mean of the operands' elements, weighted by the products' floating-point "
         "operations\npredictions are of first order: on steep problems the measured change of the "
         "loss is many times larger\n";
  const Json json{{"format", 1}, {"menu", json_of(ranking.menu)}, {"points", list}};
  write_json(command.of.json, json.dump(1) + "\n");
  if (!command.out.empty()) files::replace("search", record_of(command.out), json.dump(1) + "\n");
  if (!command.seeds.empty() && !command.out.empty()) {
    std::vector<std::string> policies{command.of.policy};
    for (const std::filesystem::path& file : files) policies.push_back(file.string());
    const Setup setup{.workload = command.of.workload, .steps = command.steps};
    const Study study{.cells = read_cells(policies, setup), .seeds = command.seeds};
    if (const int code = train_found(study, own, words); code != exit_yes) return code;
  }
  if (command.gate.empty()) return exit_yes;
  GateOptions gate{
      .policy = files.front().string(), .reference = command.of.policy, .within = within};
  gate.setup.workload = command.of.workload, gate.setup.steps = command.steps;
  gate.seed = command.of.seed;
  words << '\n';
  return run_gate(gate, own, std::cerr);
}

// Prints the result of a search: tables for people, JSON for the report.

constexpr double mebibyte = 1 << 20;

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

std::string signed_number(double value, int digits) {
  return (value > 0 ? "+" : "") + fixed(value, digits);
}

Json json_of(const Measurement& measured) {
  return {{"error", measured.error},           {"added", measured.added},
          {"loss_error", measured.loss_error}, {"milliseconds", measured.milliseconds},
          {"bytes", measured.bytes},           {"bits", measured.bits}};
}

Json json_of(const HessianScore& score) {
  Json parameters = Json::array();
  for (const RoundedParameter& parameter : score.parameters) {
    const ParameterTrace& curvature = parameter.curvature;
    parameters.push_back({{"name", curvature.name},
                          {"elements", curvature.elements},
                          {"trace", curvature.trace.trace},
                          {"low", curvature.trace.low},
                          {"high", curvature.trace.high},
                          {"squared_error", parameter.squared_error}});
  }
  return {{"score", score.score},
          {"low", score.low},
          {"high", score.high},
          {"parameters", std::move(parameters)}};
}

Json json_of(const std::vector<Candidate>& candidates) {
  Json list = Json::array();
  for (const Candidate& candidate : candidates) {
    Json one{{"name", candidate.rule.name}};
    if (candidate.refused.empty()) one.update(json_of(candidate.measured));
    else one["refused"] = candidate.refused;
    if (candidate.hessian) one["hessian"] = json_of(*candidate.hessian);
    list.push_back(std::move(one));
  }
  return list;
}

const char* word_of(Objective objective) {
  switch (objective) {
    case Objective::bytes: return "bytes";
    case Objective::time: return "time";
    case Objective::bits: return "bits";
  }
  return "";
}

}  // namespace

std::string table_of(const std::vector<Candidate>& candidates, const Measurement& base) {
  const bool scored = std::ranges::any_of(
      candidates, [](const Candidate& candidate) { return candidate.hessian.has_value(); });
  std::vector<const Candidate*> order;
  for (const Candidate& candidate : candidates) order.push_back(&candidate);
  std::ranges::stable_sort(order, {}, [&](const Candidate* candidate) {
    const double infinite = std::numeric_limits<double>::infinity();
    if (scored) return candidate->hessian ? candidate->hessian->score : infinite;
    return candidate->refused.empty() ? candidate->measured.added : infinite;
  });
  std::vector<std::string> names{"rule", "adds to gradients", "loss error",
                                 "ms",   "kept MiB",          "bits"};
  if (scored) names.insert(names.end(), {"Hessian's score", "95 %"});
  Table table(names);
  table.row({"(the base)", percent(base.error), number(base.loss_error, 2),
             fixed(base.milliseconds, 2), fixed(base.bytes / mebibyte, 2), fixed(base.bits, 2)});
  for (const Candidate* candidate : order) {
    const Measurement& measured = candidate->measured;
    std::vector<std::string> row{candidate->rule.name};
    if (!candidate->refused.empty()) row.push_back(candidate->refused);
    else
      row.insert(row.end(), {percent(measured.added), number(measured.loss_error, 2),
                             signed_number(measured.milliseconds - base.milliseconds, 2),
                             signed_number((measured.bytes - base.bytes) / mebibyte, 2),
                             signed_number(measured.bits - base.bits, 2)});
    if (const auto& score = candidate->hessian)
      row.insert(row.end(), {number(score->score, 3),
                             number(score->low, 3) + " to " + number(score->high, 3)});
    table.row(row);
  }
  std::ostringstream text;
  text << table;
  return text.str();
}

std::string table_of(const Found& found, const SearchOptions& options) {
  const double whole = cost_of(found.base, options.objective);
  const auto share = [&](const Measurement& measured) {
    return percent(whole > 0 ? cost_of(measured, options.objective) / whole - 1 : 0);
  };
  Table frontier({"rules", "last one", "predicted", "measured", word_of(options.objective)});
  for (const FrontierPoint& point : found.frontier)
    frontier.row({std::to_string(point.names.size()), point.names.back(), percent(point.predicted),
                  percent(point.measured.added), share(point.measured)});
  std::ostringstream text;
  text << "the frontier: what the first rules add to the gradients' error together, and what they "
          "save\n"
       << frontier << "\nchosen: " << joined(found.chosen) << '\n';
  if (!found.dropped.empty()) text << "dropped: " << joined(found.dropped) << '\n';
  text << "error added: predicted " << percent(found.predicted) << ", measured "
       << percent(found.measured.added) << ", budget " << percent(options.budget)
       << "; against the reference " << percent(found.measured.error) << ", of the base "
       << percent(found.base.error)
       << "\nkept from forward to backward: " << fixed(found.base.bytes / mebibyte, 2) << " -> "
       << fixed(found.measured.bytes / mebibyte, 2) << " MiB; pass "
       << fixed(found.base.milliseconds, 2) << " -> " << fixed(found.measured.milliseconds, 2)
       << " ms; bits of operands " << fixed(found.base.bits, 2) << " -> "
       << fixed(found.measured.bits, 2) << '\n';
  return text.str();
}

std::string json_of(const std::vector<Candidate>& candidates, const Measurement& base) {
  return Json{{"format", 1}, {"base", json_of(base)}, {"candidates", json_of(candidates)}}.dump(1) +
         "\n";
}

std::string json_of(const Found& found, const SearchOptions& options) {
  Json json{{"format", 1},
            {"objective", word_of(options.objective)},
            {"budget", options.budget},
            {"base", json_of(found.base)},
            {"predicted", found.predicted},
            {"measured", json_of(found.measured)},
            {"chosen", found.chosen},
            {"dropped", found.dropped}};
  json["candidates"] = json_of(found.candidates);
  json["frontier"] = Json::array();
  for (const FrontierPoint& point : found.frontier) {
    Json one{{"names", point.names}, {"predicted", point.predicted}};
    one.update(json_of(point.measured));
    json["frontier"].push_back(std::move(one));
  }
  return json.dump(1) + "\n";
}

}  // namespace halftone::lab
