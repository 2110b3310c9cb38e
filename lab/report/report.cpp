// The page, the data of its panels, and panels on choices and errors.
#include <halftone/lab/report/report.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <iterator>
#include <map>
#include <numbers>
#include <optional>
#include <set>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/draw.h>
#include <halftone/lab/fit.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/report/page.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

namespace {

struct Panel {
  const char *anchor, *title;
  std::string (*content)(const ReportData&);
};
constexpr Panel panels[] = {
    {"summary", "Summary", summary_panel},
    {"losses", "Losses", loss_panel},
    {"memory", "Memory", memory_panel},
    {"resolved", "What each tensor gets", resolved_panel},
    {"sites", "Sites and roles", site_panel},
    {"errors", "The parts of errors", error_panel},
    {"steps", "Sites over steps", step_panel},
    {"exponents", "Sizes of numbers", histogram_panel},
    {"updates", "Updates", update_panel},
    {"scales", "Scales", scale_panel},
    {"comparison", "Against the reference, in order of computation", comparison_panel},
    {"search", "Sensitivity and search", search_panel},
    {"strategies", "Strategies compared", strategy_panel},
    {"definitions", "Definitions", definition_panel}};

std::string counted(std::size_t count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

std::string heading(const ReportData& data) {
  std::size_t runs = 0, policies = 0;
  for (const ReportGroup& group : data.groups)
    if (!group.is_file) runs += group.runs.size(), ++policies;
  std::string text = counted(runs, "run", "runs") + ", " + counted(policies, "policy", "policies");
  for (const auto& groups : data.by_workload())
    if (!groups.front()->workload.empty())
      text += ", " + html::shortened(groups.front()->workload, 60);
  return text;
}

}  // namespace

std::string absent(std::string_view what, std::string_view command) {
  return html::element("p", "class=\"absent\"",
                       html::escaped(what) + ". It is made by " +
                           html::element("code", "", html::escaped(command))) +
         "\n";
}

std::string defined(std::string_view shown, std::string_view anchor) {
  return html::element("a", "href=\"#def-" + std::string(anchor) + "\"", html::escaped(shown));
}

std::string report(const ReportOptions& options) {
  const ReportData data = read_report_data(options);
  std::string links, sections;
  int number = 0;
  for (const Panel& panel : panels) {
    const std::string title = std::to_string(++number) + ". " + panel.title;
    links += html::element("a", "href=\"#" + std::string(panel.anchor) + "\"", title) + "\n";
    sections += html::element("section", "id=\"" + std::string(panel.anchor) + "\"",
                              "\n" + html::element("h2", "", title) + "\n" + panel.content(data)) +
                "\n";
  }
  std::string top = html::element("h1", "", "halftone: what number formats did to these runs") +
                    "\n" + paragraph(heading(data));
  if (!data.notes.empty())
    top += html::element("p", "class=\"absent\"",
                         "Something could not be read: see " +
                             html::element("a", "href=\"#notes\"", "what was left out") + ".");
  return html::document(
      "halftone report",
      html::element("header", "", "\n" + top + html::element("nav", "", "\n" + links)) + "\n" +
          html::element("main", "", "\n" + sections));
}

int run_report(const ReportOptions& options) {
  files::require_replaceable("report", options.output);
  const std::string page = report(options);
  files::replace("report", options.output, page);
  std::cout << "report: " << options.output.string() << std::endl;
  return 0;
}

// Reads run folders into groups.

namespace {

/// Settings that may differ between runs of one policy, by their names in summaries.
constexpr const char* settings[] = {
    "workload",       "steps",     "lr",        "batch",       "optimizer.named", "optimizer.class",
    "schedule.named", "from.hash", "clip_norm", "policy_hash", "resolved_hash"};

std::string setting_of(const RunSummary& summary, const char* name) {
  const auto text = summary.texts.find(name);
  if (text != summary.texts.end()) return text->second;
  const auto value = summary.numbers.find(name);
  return value == summary.numbers.end() ? "" : number(value->second);
}

/// Returns the settings in which runs of one policy differ. A resolved table has the run's seed, so
/// only tables of runs with the same seed are compared.
std::map<std::string, std::vector<std::string>> varying(const std::vector<ReportRun>& runs,
                                                        const std::vector<std::string>& policies) {
  std::map<std::string, std::map<std::string, std::set<std::string>>> seen;     // policy, setting
  std::map<std::pair<std::string, std::string>, std::set<std::string>> tables;  // policy, seed
  std::set<std::string> other_tables;                                           // policies
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunSummary& summary = runs[i].summary;
    for (const char* name : settings) seen[policies[i]][name].insert(setting_of(summary, name));
    auto& of_seed = tables[{policies[i], setting_of(summary, "seed")}];
    of_seed.insert(setting_of(summary, "resolved_hash"));
    if (of_seed.size() > 1) other_tables.insert(policies[i]);
  }
  std::map<std::string, std::vector<std::string>> result;
  for (const auto& [policy, names] : seen) {
    std::vector<std::string>& own = result[policy];
    for (const char* name : settings) {
      // A different resolved table adds nothing if another listed setting already differs.
      const bool differs = std::string_view(name) == "resolved_hash"
                               ? other_tables.contains(policy) && own.empty()
                               : names.at(name).size() > 1;
      if (differs) own.push_back(name);
    }
  }
  return result;
}

void read_metrics(RunFolder& folder, ReportRun& run) {
  folder.each_metrics_line([&](const MetricsLine& line) {
    const auto of = [&](std::initializer_list<const char*> names) -> std::optional<double> {
      for (const char* name : names)
        if (const auto found = line.find(name); found != line.end()) return found->second;
      return {};
    };
    const double step = line.at("step");
    if (const auto loss = of({"train/loss", "loss", "train_loss"}))
      run.losses.push_back({step, *loss});
    if (const auto scale = of({"train/loss_scale", "loss_scale"}))
      run.loss_scales.push_back({step, *scale});
    if (const auto skipped = of({"train/skipped_steps"})) run.skipped.push_back({step, *skipped});
  });
}

void read_probe(RunFolder& folder, ReportGroup& group) {
  std::set<std::string> known(group.sites.begin(), group.sites.end());
  const bool first = group.runs.size() == 1;
  folder.each_probe_line(
      [&](const policy::ProbeRow& row) {
        if (known.insert(row.site).second) group.sites.push_back(row.site);
        ReportTensor& tensor = group.tensors[{row.site, row.role}];
        tensor.survey.merge(row.survey);
        tensor.flips.merge(row.flips);
        if (!row.quantizer.empty()) {
          tensor.quantizer = row.quantizer;
          tensor.by_step[row.step].merge(row.survey.sums);
        }
        if (first && row.scale > 0 && row.ideal > 0)
          tensor.scales.try_emplace(row.step, row.scale, row.ideal);
      },
      [&](const policy::UpdateRow& row) {
        if (!row.state.empty()) return;  // no panel shows rows of the optimizer's state
        group.updates[row.step].add(row.stored);
        group.stored.add(row.stored), group.seen.add(row.seen);
        for (std::size_t i = 0; i < row.by_ulp.size(); ++i) group.by_ulp[i] += row.by_ulp[i];
      });
}

/// Returns the group with the label; creates it if necessary.
ReportGroup& group_of(ReportData& data, const std::string& label) {
  const auto found = std::ranges::find(data.groups, label, &ReportGroup::label);
  if (found != data.groups.end()) return *found;
  data.groups.push_back({.label = label, .policy = {}, .workload = {}});
  return data.groups.back();
}

void put_reference_first(ReportData& data, const std::string& reference) {
  if (reference.empty()) return;
  const auto is = [&](const ReportGroup& g) {
    return g.policy == reference || g.label == reference;
  };
  if (std::ranges::none_of(data.groups, is))
    fail<UsageError>("report", "no run is of ", reference, ". Name a policy of these runs.");
  std::stable_partition(data.groups.begin(), data.groups.end(), is);  // clang 14 has none in ranges
}

}  // namespace

const ReportTensor* ReportGroup::tensor(const std::string& site, policy::Role role) const {
  const auto found = tensors.find({site, role});
  return found == tensors.end() ? nullptr : &found->second;
}

std::vector<double> ReportGroup::numbers(const std::string& name) const {
  std::vector<double> result;
  for (const ReportRun& run : runs)
    if (const auto found = run.summary.numbers.find(name); found != run.summary.numbers.end())
      result.push_back(found->second);
  return result;
}

std::vector<double> ReportGroup::numbers_beside(const std::vector<const ReportGroup*>& groups,
                                                const std::string& name) const {
  const auto has = [&](const ReportGroup& group, const auto& seed) {
    return std::ranges::any_of(group.runs, [&](const ReportRun& run) {
      return run.seed == seed && run.summary.numbers.contains(name);
    });
  };
  std::vector<double> shared;
  for (const ReportRun& run : runs)
    if (run.summary.numbers.contains(name) &&
        std::ranges::all_of(groups, [&](const ReportGroup* group) {
          return group->is_file || group->numbers(name).empty() || has(*group, run.seed);
        }))
      shared.push_back(run.summary.numbers.at(name));
  return shared.empty() ? numbers(name) : shared;
}

std::vector<double> ReportGroup::paired(const ReportGroup& base, const std::string& name) const {
  std::vector<double> result;
  for (const ReportRun& run : runs) {
    const auto other = std::ranges::find(base.runs, run.seed, &ReportRun::seed);
    if (!run.seed || other == base.runs.end()) continue;
    const auto mine = run.summary.numbers.find(name), theirs = other->summary.numbers.find(name);
    if (mine != run.summary.numbers.end() && theirs != other->summary.numbers.end() &&
        theirs->second != 0)
      result.push_back((mine->second - theirs->second) / std::abs(theirs->second));
  }
  return result;
}

std::vector<std::vector<const ReportGroup*>> ReportData::by_workload() const {
  std::vector<std::vector<const ReportGroup*>> result;
  for (const ReportGroup& group : groups) {
    if (group.is_file) continue;
    const auto same = [&](const auto& list) { return list.front()->workload == group.workload; };
    const auto found = std::ranges::find_if(result, same);
    if (found != result.end()) found->push_back(&group);
    else result.push_back({&group});
  }
  if (result.empty()) result.emplace_back();
  for (const ReportGroup& group : groups)
    if (group.is_file)
      for (auto& list : result) list.push_back(&group);
  if (result.front().empty()) result.clear();
  return result;
}

ReportData read_report_data(const ReportOptions& options) {
  ReportData data;
  std::vector<std::filesystem::path> paths;
  for (const std::filesystem::path& path : options.paths) {
    if (path.extension() != ".json") {
      paths.push_back(path);
      continue;
    }
    const nlohmann::json file = read_json_document("report", path);
    if (is_strategy_list(file)) data.strategies.push_back(path);
    else if (!file.is_object()) static_cast<void>(read_json("report", path));  // throws
    else if (file.contains("candidates") || file.contains("points")) data.searches.push_back(path);
    else if (file.contains("rows")) data.comparisons.push_back(path);
    else if (options.paths.size() > 1)
      data.notes.push_back(path.string() + ": neither a comparison nor a search.");
    else
      fail<FormatError>("report", path.string(),
                        ": neither a comparison nor a search. Give what `halftone-lab compare "
                        "--json`, `halftone-lab search` or `compare_strategies --json` wrote, or a "
                        "run's folder.");
  }
  std::vector<RunFolder> folders = run_folders("report", paths, data.notes);
  for (const RunFolder& folder : folders) {
    if (folder.has("compare.json")) data.comparisons.push_back(folder.path() / "compare.json");
    std::ranges::move(folder.searches(), std::back_inserter(data.searches));
  }
  std::erase_if(folders, [](const RunFolder& folder) { return !folder.was_trained(); });
  std::vector<ReportRun> runs;
  std::vector<std::string> policies;
  for (const RunFolder& folder : folders) {
    ReportRun run{.folder = folder.name(), .seed = {}};
    run.summary = folder.summary().value_or(RunSummary{});
    if (const auto seed = run.summary.numbers.find("seed"); seed != run.summary.numbers.end())
      run.seed = int64_t(std::clamp(seed->second, -9e15, 9e15));
    const auto policy = run.summary.texts.find("policy");
    policies.push_back(policy == run.summary.texts.end() ? run.folder : policy->second);
    runs.push_back(std::move(run));
  }
  const auto differing = varying(runs, policies);
  for (std::size_t i = 0; i < folders.size(); ++i) {
    std::string label = policies[i];
    for (const std::string& name : differing.at(policies[i]))
      label += ", " + name + " " + setting_of(runs[i].summary, name.c_str());
    ReportGroup& group = group_of(data, label);
    group.policy = policies[i], group.is_file = folders[i].is_file();
    group.workload = setting_of(runs[i].summary, "workload");
    read_metrics(folders[i], runs[i]);
    group.runs.push_back(std::move(runs[i]));
    read_probe(folders[i], group);
    if (group.resolved.empty()) group.resolved = folders[i].resolved();
    if (group.cell.values.empty()) group.cell = folders[i].cell();
    for (const std::string& note : folders[i].notes()) data.notes.push_back(note);
  }
  put_reference_first(data, options.reference);
  for (std::size_t i = 0; i < data.groups.size(); ++i) data.groups[i].style = int(i);
  return data;
}

Survey survey_of(const SurveySums& sums) {
  Survey survey;
  survey.sums = sums;
  return survey;
}

// Figures of panel 1: which policy is better, and what its bits buy.

namespace {

constexpr std::size_t most_curves = 10;  // in one figure, each with a color of its own

/// Short names of groups in figures. A sweep's cell is named by the axes that differ, each by its
/// last words that no other axis ends with: "w.format=int4, x.format=int3".
class ShortNames {
 public:
  explicit ShortNames(const std::vector<const ReportGroup*>& groups) {
    std::map<std::string, std::set<std::string>> values;
    std::set<std::string> policies;
    for (const ReportGroup* group : groups) {
      policies.insert(group->cell.values.empty() ? group->policy : group->cell.policy);
      for (const auto& [axis, value] : group->cell.values) values[axis].insert(value);
    }
    several_policies_ = policies.size() > 1;
    for (const auto& [axis, all] : values)
      if (all.size() > 1) axes_[axis] = axis;
    for (auto& [axis, name] : axes_) name = last_words(axis);
  }
  /// Returns the axes that differ, with their short names.
  const std::map<std::string, std::string>& axes() const { return axes_; }
  /// Returns the group's name without one of the axes ("": with all).
  std::string of(const ReportGroup& group, const std::string& without = "") const {
    const SweepCell& cell = group.cell;
    if (axes_.empty() || cell.values.empty() || group.label != group.policy) return group.label;
    std::string text = several_policies_ ? cell.policy : "";
    for (const auto& [axis, value] : cell.values)
      if (const auto found = axes_.find(axis); found != axes_.end() && axis != without)
        text += (text.empty() ? "" : ", ") + found->second + "=" + value;
    return text.empty() ? group.label : text;
  }

 private:
  /// Returns the end of the axis's name, from a dot on, that no other axis ends with; else the
  /// name.
  std::string last_words(const std::string& axis) const {
    for (std::size_t dot = axis.rfind('.'); dot != std::string::npos && dot > 0;
         dot = axis.rfind('.', dot - 1)) {
      const std::string end = axis.substr(dot);
      if (end.find_first_not_of("0123456789", 1) == std::string::npos) continue;  // of a list
      const auto ends_so = [&](const auto& other) {
        return other.first != axis && other.first.ends_with(end);
      };
      if (std::ranges::none_of(axes_, ends_so)) return end.substr(1);
    }
    return axis;
  }

  bool several_policies_ = false;
  std::map<std::string, std::string> axes_{};  // short name by name
};

/// The differences of all groups from the first, paired by seed, with 95 % intervals.
std::string difference_forest(const std::vector<const ReportGroup*>& groups,
                              const ShortNames& names) {
  const ReportGroup& base = *groups.front();
  svg::Forest forest{.title = "final loss against " + names.of(base),
                     .unit = "%",
                     .axis = "difference in percent, 95 % interval",
                     .rows = {}};
  for (const ReportGroup* group : groups) {
    const std::vector<double> paired = group->paired(base, "loss");
    if (group == &base || paired.empty()) continue;
    const Interval interval = interval_of(paired);
    forest.rows.push_back(
        {names.of(*group), 100 * interval.mean, 100 * interval.half, group->style});
  }
  return forest.rows.empty() ? "" : svg::draw(forest);
}

/// Mean bits of the operands of a group's products, of all roles alike; NaN if no run recorded
/// them.
double bits_of(const ReportGroup& group) {
  double sum = 0;
  for (const std::string_view role : operand_role_names)
    sum += median(group.numbers("operands." + std::string(role) + "_bits"));
  return sum / double(operand_roles);
}

/// The loss of each group over its bits. The line joins the groups of which no other has fewer bits
/// and a lower loss (the Pareto front).
std::string bits_and_losses(const std::vector<const ReportGroup*>& groups,
                            const ShortNames& names) {
  svg::Plot plot{.title = "final loss over bits of operands"};
  plot.x.label = "mean bits of weights, inputs and gradients of results", plot.y.label = "loss";
  std::vector<svg::Point> all;
  for (const ReportGroup* group : groups) {
    const svg::Point point{bits_of(*group),
                           interval_of(group->numbers_beside(groups, "loss")).mean};
    if (!std::isfinite(point.x) || !std::isfinite(point.y)) continue;
    all.push_back(point);
    plot.curves.push_back({.name = names.of(*group), .points = {point}, .style = group->style});
  }
  if (all.size() < 2 || std::ranges::all_of(all, [&](auto& p) { return p.x == all[0].x; }))
    return "";
  std::ranges::sort(all, {}, [](const svg::Point& p) { return std::pair(p.x, p.y); });
  svg::Curve front{.name = "no other has fewer bits and a lower loss",
                   .points = {},
                   .style = 7,
                   .staircase = true,
                   .shapes = false};
  for (const svg::Point& p : all)
    if (front.points.empty() || p.y < front.points.back().y) front.points.push_back(p);
  if (front.points.back().x < all.back().x)
    front.points.push_back({all.back().x, front.points.back().y});
  plot.curves.push_back(std::move(front));
  return svg::draw(plot);
}

/// Draws the losses over the values of one axis of a sweep, a curve for each setting of the others.
std::string losses_over(const std::string& axis, const std::vector<const ReportGroup*>& groups,
                        const ShortNames& names) {
  std::map<std::string, std::map<double, Interval>> curves;
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const ReportGroup* group : groups) {
    const auto value = group->cell.values.find(axis);
    if (value == group->cell.values.end()) continue;
    const std::optional<double> number = number_of(value->second);
    const std::vector<double> losses = group->numbers("loss");
    if (!number || losses.empty()) continue;
    curves[names.of(*group, axis)][*number] = interval_of(losses);
    low = std::min(low, *number), high = std::max(high, *number);
  }
  const std::string& shown = names.axes().at(axis);
  svg::Plot plot{.title = "final loss over " + shown};
  plot.x = {.label = shown, .logarithmic = low > 0 && high >= 8 * low}, plot.y.label = "loss";
  for (const auto& [name, points] : curves) {
    if (points.size() < 2) continue;
    if (plot.curves.size() == most_curves) {
      plot.title += ", the first " + std::to_string(most_curves) + " settings";
      break;
    }
    const int style = int(plot.curves.size());
    svg::Curve curve{.name = name, .points = {}, .style = style};
    svg::Band band{.name = name + ": 95 % interval of the mean",
                   .x = {},
                   .low = {},
                   .high = {},
                   .style = style};
    for (const auto& [x, loss] : points) {
      curve.points.push_back({x, loss.mean});
      if (!std::isfinite(loss.half)) continue;
      band.x.push_back(x);
      band.low.push_back(loss.mean - loss.half), band.high.push_back(loss.mean + loss.half);
    }
    if (band.x.size() > 1) plot.bands.push_back(std::move(band));
    plot.curves.push_back(std::move(curve));
  }
  return plot.curves.empty() ? "" : svg::draw(plot);
}

}  // namespace

std::string choice_figures(const std::vector<const ReportGroup*>& groups) {
  const ShortNames names(groups);
  std::vector<std::string> drawings{difference_forest(groups, names),
                                    bits_and_losses(groups, names)};
  for (const auto& [axis, name] : names.axes())
    if (drawings.size() < 8) drawings.push_back(losses_over(axis, groups, names));
  return figures(drawings);
}

// Panel 6: what the errors of roundings consist of, one line per policy and role.

using html::escaped;

namespace {

constexpr std::size_t most_lines = 100;
constexpr double stalls_below = std::numbers::sqrt3;

/// The rounded tensors of one role under one policy.
struct RoleErrors {
  std::size_t tensors = 0, below = 0;  // all; gradients below the line
  /// Sums over tensors, where the errors of each are divided by its sum of x^2.
  double whole = 0;
  ErrorParts parts{};
  double least = HUGE_VAL;  // of norm_to_noise
  std::string least_at{};
  policy::WeightFlips flips{};

  /// Returns the root of the mean squared relative error.
  double size() const { return std::sqrt(whole / double(tensors)); }

  void add(const std::string& site, policy::Role role, const ReportTensor& tensor) {
    const SurveySums& s = tensor.survey.sums;
    const ErrorParts own = tensor.survey.error_parts();
    if (!(s.sum_x2 > 0) || std::isnan(own.scale)) return;
    ++tensors, whole += s.sum_e2 / s.sum_x2;
    parts.scale += own.scale / s.sum_x2, parts.dead_zone += own.dead_zone / s.sum_x2;
    parts.grid += own.grid / s.sum_x2, parts.saturation += own.saturation / s.sum_x2;
    flips.merge(tensor.flips);
    if (!policy::is_gradient(role)) return;
    const double ratio = tensor.survey.norm_to_noise();
    if (ratio < stalls_below) ++below;
    if (ratio < least) least = ratio, least_at = site;
  }
};

std::string share_text(double part, double whole) {
  return whole > 0 ? fixed(100 * part / whole, 1) : "-";
}

std::vector<std::string> line_of(const std::string& label, policy::Role role,
                                 const RoleErrors& errors) {
  std::vector<std::string> cells{
      escaped(html::shortened(label, 60)), std::string(policy::name(role)),
      std::isfinite(errors.least) ? escaped(html::shortened(errors.least_at, 60)) : "",
      std::to_string(errors.tensors), fixed(100 * errors.size(), 2)};
  for (const double part :
       {errors.parts.scale, errors.parts.dead_zone, errors.parts.grid, errors.parts.saturation})
    cells.push_back(share_text(part, errors.whole));
  cells.push_back(std::isfinite(errors.least) ? number(errors.least, 3) : "");
  cells.push_back(policy::is_gradient(role) ? std::to_string(errors.below) : "");
  const bool flips = errors.flips.count > 0;
  cells.push_back(flips ? fixed(100 * errors.flips.flipped_share(), 2) : "");
  cells.push_back(flips ? fixed(100 * errors.flips.oscillation(), 2) : "");
  return cells;
}

/// Returns the first number in the path of a site's module, which is the number of its block or
/// layer.
std::optional<int> block_of(const std::string& site) {
  const std::string path = site.substr(0, site.find('/'));
  for (std::size_t at = 0; at < path.size(); ++at)
    if (const std::size_t digits = number_at(path, at); digits > 0 && digits < 6)
      return std::stoi(path.substr(at, digits));
  return {};
}

/// Draws the relative error of the sites of one block over the block's number, for one role.
std::string errors_by_block(const std::vector<const ReportGroup*>& groups, policy::Role role) {
  svg::Plot plot{.title = "error of " + std::string(policy::name(role)) + " by block"};
  plot.x.label = "number of the block or layer", plot.y.label = "error, percent";
  plot.y.low = 0;
  std::set<int> blocks;
  for (const ReportGroup* group : groups) {
    std::map<int, RoleErrors> errors;
    for (const auto& [place, tensor] : group->tensors)
      if (const auto block = block_of(place.first);
          block && place.second == role && !tensor.quantizer.empty())
        errors[*block].add(place.first, role, tensor);
    svg::Curve curve{.name = group->label, .points = {}, .style = group->style};
    for (const auto& [block, sums] : errors)
      if (sums.tensors > 0) {
        curve.points.push_back({double(block), 100 * sums.size()});
        blocks.insert(block);
      }
    if (!curve.points.empty() && plot.curves.size() < 8) plot.curves.push_back(std::move(curve));
  }
  return blocks.size() < 2 ? "" : svg::draw(plot);
}

std::string block_figures(const ReportData& data) {
  std::vector<std::string> drawings;
  for (const auto& groups : data.by_workload())
    for (const policy::Role role :
         {policy::Role::input, policy::Role::weight, policy::Role::grad_output})
      if (drawings.size() < 6) drawings.push_back(errors_by_block(groups, role));
  return figures(drawings);
}

}  // namespace

std::string error_panel(const ReportData& data) {
  html::Table table({"policy", "role", "least norm / noise at", "tensors", "error, %",
                     defined("scale, %", "error-parts"), defined("dead zone, %", "error-parts"),
                     defined("grid, %", "error-parts"), defined("saturation, %", "error-parts"),
                     defined("norm / noise", "norm-to-noise"), "below √3",
                     defined("flipped, %", "oscillation"), defined("and back, %", "oscillation")},
                    3);
  for (const ReportGroup& group : data.groups) {
    std::map<policy::Role, RoleErrors> roles;
    for (const auto& [place, tensor] : group.tensors)
      if (!tensor.quantizer.empty()) roles[place.second].add(place.first, place.second, tensor);
    for (const auto& [role, errors] : roles)
      if (errors.tensors > 0 && table.rows() < most_lines)
        table.row(line_of(group.label, role, errors));
  }
  if (table.rows() == 0)
    return absent("No parts of errors are here",
                  "halftone-lab run POLICY... --probe 50 --out runs");
  return paragraph(
             "All sites, seeds and sampled steps of a role together, each tensor's error relative "
             "to its size. The four parts are shares of the squared error.") +
         block_figures(data) + table.text();
}

}  // namespace halftone::lab
