// sensitivity and search with a menu: formats for each module, scored by one pass.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/commands/flags.h>
#include <halftone/lab/commands/gate.h>
#include <halftone/lab/commands/search.h>
#include <halftone/lab/menu.h>
#include <halftone/lab/policy_note.h>
#include <halftone/lab/run.h>
#include <halftone/lab/statistics.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

std::string signed_percent(double share) {
  return (share > 0 ? "+" : "") + fixed(100 * share, 3) + " %";
}

/// A base, and the scores of each module under each format.
struct MenuRanking {
  policy::PolicyFile base;
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
  point.policy.base.name = file.stem().string();
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

}  // namespace

int run_menu_sensitivity(const SensitivityOptions& options, const std::vector<NamedWorkload>& own) {
  require_menu("sensitivity", options);
  if (options.check && !options.one_pass)
    fail<UsageError>("sensitivity",
                     "--check compares one pass with a trial for each rule. Add --one-pass.");
  require_json(options.json);
  std::ostream& words = words_next_to(options.json);
  name_workload(words, options.workload, own, false);
  const MenuRanking ranking(options, own);
  Json json{{"format", 1}};
  if (!options.one_pass) {
    const std::vector<Candidate> alone =
        measured_alone(ranking.trial, ranking.base, ranking.menu, std::cerr);
    words << lab::table_of(alone, ranking.of_base);
    write_json(options.json, lab::json_of(alone, ranking.of_base));
    return std::ranges::any_of(alone, [](const Candidate& c) { return c.refused.empty(); })
               ? exit_yes
               : exit_no;
  }
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
    RunOptions run_options{.workload = command.of.workload,
                           .policies = {command.of.policy},
                           .seeds = command.seeds,
                           .steps = command.steps};
    for (const std::filesystem::path& file : files) run_options.policies.push_back(file.string());
    if (const int code = train_found(run_options, own, words); code != exit_yes) return code;
  }
  if (command.gate.empty()) return exit_yes;
  GateOptions gate{
      .policy = files.front().string(), .reference = command.of.policy, .within = within};
  gate.run.workload = command.of.workload, gate.run.steps = command.steps;
  gate.run.seeds = {command.of.seed};
  words << '\n';
  return run_gate(gate, own, std::cerr);
}

}  // namespace halftone::lab
