// The page, the files of its figures, and the data of both.
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

std::string counted(std::size_t count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

std::string heading(const ReportData& data) {
  std::size_t runs = 0, policies = 0;
  for (const ReportGroup& group : data.groups)
    if (!group.is_file) runs += group.runs.size(), ++policies;
  std::string text = counted(runs, "run", "runs") + ", " + counted(policies, "policy", "policies");
  for (const auto& groups : data.by_workload()) {
    if (groups.front()->workload.empty()) continue;
    text += ", " + html::shortened(groups.front()->workload, 60);
    if (const auto steps = groups.front()->numbers("steps"); !steps.empty())
      text += " for " + number(steps[0]) + " steps";
  }
  return text;
}

std::string strategy_tables(const ReportData& data) {
  std::string text;
  for (const std::filesystem::path& path : data.strategies)
    text += strategy_sections(read_json_document("report", path));
  return text;
}

/// A question of the page, and what answers it.
struct Question {
  const char *anchor, *text, *note;
  std::vector<const char*> figures;
  std::string (*table)(const ReportData&) = nullptr;
};
const Question questions[] = {
    {"curves",
     "Where do the losses part, and what do bits buy?",
     "Each band is of its step alone, so some exclude 0 by chance; the verdicts above are of the "
     "final "
     "loss.",
     {"differences", "pareto", "axes"}},
    {"underflow",
     "What becomes 0?",
     "Shares of the numbers that are not 0 before the rounding; all seeds and sampled steps.",
     {"underflow", "steps"}},
    {"overflow",
     "What overflowed, and how did the scales follow?",
     "Numbers beyond the largest become the largest. halftone-lab explain names the tensor that "
     "overflowed in a skipped step.",
     {"scale", "saturation"}},
    {"errors",
     "How large are the errors, and what do they consist of?",
     "In percent of the tensor; its parts in percent of the squared error. All seeds and steps.",
     {"errors", "sqnr"},
     error_table},
    {"sizes",
     "How large are the numbers?",
     "The tensors that lose most, below the ranges of formats (faint: subnormal numbers); the last "
     "is their own, at its scale.",
     {"exponents", "rms"}},
    {"updates",
     "Which updates are lost?",
     "All parameters and seeds, for the weights as stored: with masters and remainders.",
     {"updates"},
     update_table},
    {"memory",
     "Where are the bytes?",
     "Each policy at its own peak. Values emulated on a grid are stored as f32, or in a short "
     "dtype "
     "that holds them.",
     {"memory"}},
    {"formats",
     "Which format does each tensor get?",
     "The dtype of a site, and grid/block of its roles. ≠: other than the first policy's.",
     {},
     format_table},
    {"switches", "When were rules on?", "The first seed of each policy.", {"switches"}},
    {"comparison", "Which tensor deviates first?", "", {}, comparison_tables},
    {"search", "Which rules were measured and chosen?", "", {}, search_tables},
    {"strategies", "How do whole trainings compare?", "", {}, strategy_tables},
    {"runs", "What was run, and what could not be read?", "", {}, fact_tables},
    {"definitions", "What do the numbers mean?", "", {}, definitions}};

/// Returns "" without data.
std::string answer_of(const Question& question, const ReportData& data) {
  std::string text = question.table ? question.table(data) : "";
  for (const char* figure : question.figures) text += html::figures(pictures_named(figure, data));
  if (text.empty()) return "";
  if (*question.note) text = html::paragraph(question.note) + text;
  return html::element("details", "id=\"" + std::string(question.anchor) + "\"",
                       "\n" + html::element("summary", "", question.text) + "\n" + text) +
         "\n";
}

}  // namespace

std::string report(const ReportOptions& options) {
  const ReportData data = read_report_data(options);
  std::string text = html::element("h1", "", "What number formats did to these runs") + "\n" +
                     html::paragraph(heading(data)) + verdicts(data) + policy_table(data);
  Pictures first = pictures_named("losses", data), forest = pictures_named("forest", data);
  if (first.size() > 2) first.resize(2);
  if (forest.size() > 2) forest.resize(2);
  std::ranges::move(forest, std::back_inserter(first));
  text += html::figures(first);
  for (const Question& question : questions) text += answer_of(question, data);
  return html::document("halftone report", html::element("main", "", "\n" + text));
}

int run_report(const ReportOptions& options) {
  files::require_replaceable("report", options.output);
  const std::string page = report(options);
  files::replace("report", options.output, page);
  std::cout << "report: " << options.output.string() << std::endl;
  return 0;
}

// Figures as files.

namespace {
/// A type of 13 pixels is 7 points high at every width.
constexpr double pixels_per_millimetre = 13 / (7 * 25.4 / 72);

Pictures wanted_pictures(const FigureOptions& options) {
  std::vector<std::string_view> names;
  for (const Figure& figure : lab::figures()) names.push_back(figure.name);
  if (std::ranges::find(names, options.name) == names.end())
    fail_unknown_name("figure", "figure", options.name, names);
  Pictures pictures = pictures_named(options.name, read_report_data(options.runs));
  if (pictures.empty())
    fail<UsageError>("figure", "these runs have no data for ", options.name,
                     ". Figures of tensors need runs with --probe.");
  return pictures;
}

std::string written(const Pictures& pictures, const FigureOptions& options) {
  const std::string kind = options.runs.output.extension().string();
  const svg::Drawing drawing =
      svg::grid_of(pictures, int(options.millimetres * pixels_per_millimetre));
  if (kind == ".csv") return svg::csv_of(pictures);
  if (kind == ".pdf") return svg::pdf_of(drawing, options.dark, options.millimetres);
  return svg::svg_of(drawing, options.dark ? svg::Place::dark : svg::Place::light,
                     options.millimetres);
}
}  // namespace

std::string figure(const FigureOptions& options) {
  const std::string kind = options.runs.output.extension().string();
  if (kind != ".svg" && kind != ".pdf" && kind != ".csv")
    fail<UsageError>("figure", "cannot write ", options.runs.output.string(),
                     ": its ending says no kind of figure. Use .svg, .pdf or .csv.");
  return written(wanted_pictures(options), options);
}

int run_figure(const FigureOptions& options) {
  const auto put = [&](const FigureOptions& one) {
    files::require_replaceable("figure", one.runs.output);
    files::replace("figure", one.runs.output, figure(one));
    std::cout << "figure: " << one.runs.output.string() << std::endl;
  };
  put(options);
  FigureOptions data = options;
  data.runs.output.replace_extension(".csv");
  if (data.runs.output != options.runs.output) put(data);
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

std::vector<double> ReportGroup::memory() const {
  std::vector<double> mib;
  for (const MemoryPart& part : memory_parts()) {
    double bytes = 0;
    for (const auto& [use, count] : runs.front().summary.bytes_at_peak)
      if (std::ranges::find(part.uses, use) != part.uses.end()) bytes += count;
    mib.push_back(bytes / 1048576);
  }
  if (std::ranges::all_of(mib, [](double x) { return x == 0; })) mib.clear();
  return mib;
}

std::array<double, 3> ReportGroup::bits() const {
  std::array<double, 3> bits{};
  for (std::size_t i = 0; i < bits.size(); ++i)
    bits[i] = median(numbers("operands." + std::string(operand_role_names[i]) + "_bits"));
  return bits;
}

std::vector<Groups> ReportData::by_workload() const {
  std::vector<Groups> result;
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
    if (group.switches.empty()) group.switches = folders[i].switches();
    if (group.cell.values.empty()) group.cell = folders[i].cell();
    for (const std::string& note : folders[i].notes()) data.notes.push_back(note);
  }
  put_reference_first(data, options.reference);
  for (std::size_t i = 0; i < data.groups.size(); ++i) data.groups[i].style = int(i);
  return data;
}

}  // namespace halftone::lab
