// Data of the report: runs in groups, differences paired by seed, surveys added up, curves, and
// missing series.
#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/lab/report/report.h>
#include <halftone/lab/table.h>

#include "lab/pages.h"
#include "lab/runs.h"
#include "support.h"

namespace halftone::test::report_data_test {
namespace {

using lab::ReportData;
using lab::ReportGroup;
using lab::ReportRun;
using nlohmann::json;
using policy::Role;
using Path = std::filesystem::path;
using Numbers = std::vector<double>;
using Names = std::vector<std::string>;

/// Folders of runs, and the report's data of all of them, in the order of creation.
struct Runs {
  TemporaryDirectory directory{};
  std::vector<Path> paths{};

  Path add(const json& summary) {
    const Path path = directory / ("run-" + std::to_string(paths.size()));
    std::filesystem::create_directory(path);
    write_file(path / "summary.json", summary_with(summary).dump());
    paths.push_back(path);
    return path;
  }
  /// A run that has not finished.
  void without_summary() {
    const Path path = add(json::object());
    std::filesystem::remove(path / "summary.json");
    write_file(path / "metrics.jsonl", "{\"step\":1,\"train/loss\":3}\n");
  }
  /// The data without the notes about files that these folders lack.
  ReportData data(const std::string& reference = "") const {
    ReportData data = lab::read_report_data({.paths = paths, .reference = reference});
    std::erase_if(data.notes,
                  [](const std::string& note) { return contains(note, " is missing, so "); });
    return data;
  }
};

json summary_of(const std::string& policy, int seed, double loss = 1) {
  return {{"policy", policy}, {"seed", seed}, {"workload", "w"},
          {"steps", 20},      {"lr", 0.1},    {"loss", loss}};
}

/// Returns a hash of one digit.
std::string hash(char digit) { return std::string(16, digit); }

json with(json object, const char* pointer, const json& value) {
  object[json::json_pointer(pointer)] = value;
  return object;
}

Names labels_of(const ReportData& data) {
  Names labels;
  for (const ReportGroup& group : data.groups) labels.push_back(group.label);
  return labels;
}

// --- groups

TEST_CASE("runs of one policy and several seeds are a group, in the order of first meeting") {
  Runs runs;
  for (const int seed : {3, 1})
    for (const char* policy : {"b", "a"}) runs.add(summary_of(policy, seed));
  const ReportData data = runs.data();
  CHECK(labels_of(data) == Names{"b", "a"});
  for (std::size_t g = 0; g < 2; ++g) {
    const ReportGroup& group = data.groups[g];
    CHECK(group.policy == group.label);
    CHECK(group.workload == "w");
    CHECK(group.style == int(g));
    CHECK_FALSE(group.is_file);
    REQUIRE(group.runs.size() == 2);
    CHECK(group.runs[0].seed == 3);
    CHECK(group.runs[1].seed == 1);
  }
  CHECK(data.groups[1].runs[0].folder == "run-1");
}

TEST_CASE("a group has the cell of its runs in a sweep") {
  Runs runs;
  write_file(runs.add(summary_of("p-lr=1", 0)) / "cell.json", R"({"axes": {"lr": "1"}})");
  CHECK(runs.data().groups.at(0).cell.values == std::map<std::string, std::string>{{"lr", "1"}});
}

TEST_CASE("a setting in which runs of a policy differ makes two groups, and is in their labels") {
  const std::pair<const char*, json> settings[] = {{"/steps", 30},
                                                   {"/lr", 0.25},
                                                   {"/batch", 8},
                                                   {"/optimizer/named", "sgd"},
                                                   {"/optimizer/class", "Sgd"},
                                                   {"/schedule/named", "cosine"},
                                                   {"/clip_norm", 1},
                                                   {"/policy_hash", hash('e')},
                                                   {"/resolved_hash", hash('f')},
                                                   {"/workload", "v"}};
  for (const auto& [pointer, value] : settings) {
    CAPTURE(pointer);
    Runs runs;
    runs.add(summary_of("a", 0)), runs.add(with(summary_of("a", 0), pointer, value));
    runs.add(summary_of("other", 0));
    const ReportData data = runs.data();
    REQUIRE(data.groups.size() == 3);
    std::string name = std::string(pointer).substr(1);
    if (const auto slash = name.find('/'); slash != name.npos) name[slash] = '.';
    CHECK(data.groups[1].label ==
          "a, " + name + " " + (value.is_string() ? value.get<std::string>() : value.dump()));
    CHECK(data.groups[1].policy == "a");
    CHECK(data.groups[2].label == "other");  // which differs in nothing
  }
}

TEST_CASE("runs of several seeds are one group, although a resolved table has the run's seed") {
  Runs runs;
  runs.add(with(summary_of("a", 0), "/resolved_hash", hash('1')));
  runs.add(with(summary_of("a", 1), "/resolved_hash", hash('2')));
  const ReportData data = runs.data();
  REQUIRE(data.groups.size() == 1);
  CHECK(data.groups[0].label == "a");
  CHECK(data.groups[0].runs.size() == 2);
  runs.add(with(summary_of("a", 1), "/resolved_hash", hash('3')));  // the same seed, another table
  CHECK(runs.data().groups.size() == 3);
}

TEST_CASE("runs in a folder are in the order of the policies of their command") {
  Runs runs;
  for (const char* policy : {"a", "b", "c"})
    runs.add(with(summary_of(policy, 0), "/order", *policy == 'a' ? 2 : *policy == 'b' ? 0 : 1));
  CHECK(labels_of(runs.data()) == Names{"a", "b", "c"});  // each path by itself: as given
  runs.paths = {runs.directory.path()};
  CHECK(labels_of(runs.data()) == Names{"b", "c", "a"});
}

TEST_CASE("runs that began with different states are different groups") {
  Runs runs;
  const auto from = [](const char* path, char digit) {
    return with(summary_of("a", 0), "/from", json{{"path", path}, {"hash", hash(digit)}});
  };
  runs.add(summary_of("a", 0)), runs.add(from("x", '1')), runs.add(from("x", '2'));
  runs.add(with(from("y", '2'), "/seed", 1));  // the same state from another place
  const ReportData data = runs.data();
  REQUIRE(data.groups.size() == 3);
  CHECK(data.groups[1].label == "a, from.hash " + hash('1'));
  CHECK(data.groups[2].label == "a, from.hash " + hash('2'));
  CHECK(data.groups[2].runs.size() == 2);
}

TEST_CASE("another resolved table is not said where another workload says it") {
  Runs runs;
  runs.add(with(summary_of("a", 0), "/resolved_hash", hash('1')));
  runs.add(with(with(summary_of("a", 0), "/resolved_hash", hash('2')), "/workload", "v"));
  CHECK(labels_of(runs.data()) == Names{"a, workload w", "a, workload v"});
}

TEST_CASE("the reference comes first, by policy or by label, and must be there") {
  Runs runs;
  runs.add(summary_of("a", 0)), runs.add(summary_of("b", 0)), runs.add(summary_of("c", 0));
  runs.add(with(summary_of("c", 0), "/lr", 0.5));
  CHECK(labels_of(runs.data("b")) == Names{"b", "a", "c, lr 0.1", "c, lr 0.5"});
  CHECK(labels_of(runs.data("c")) == Names{"c, lr 0.1", "c, lr 0.5", "a", "b"});
  const ReportData data = runs.data("c, lr 0.5");
  CHECK(labels_of(data) == Names{"c, lr 0.5", "a", "b", "c, lr 0.1"});
  for (int i = 0; i < 4; ++i) CHECK(data.groups[std::size_t(i)].style == i);
  CHECK(contains(message_of<UsageError>([&] { runs.data("d"); }), "[report] no run is of d"));
}

TEST_CASE("a folder without a summary is a policy by its name, and has no seed") {
  Runs runs;
  runs.without_summary(), runs.add(summary_of("p", 1));
  const ReportData data = runs.data();
  CHECK(labels_of(data) == Names{"run-0", "p"});
  CHECK_FALSE(data.groups[0].runs[0].seed);
  CHECK(data.groups[1].runs[0].seed);
}

// --- numbers

TEST_CASE("numbers of several groups are those of the seeds that all groups have") {
  Runs runs;
  for (const int seed : {0, 1, 2}) runs.add(summary_of("fp32", seed, 2 + seed));
  for (const int seed : {1, 2, 3}) runs.add(summary_of("amp-bf16", seed, 2.5 + seed));
  runs.add(summary_of("full-bf16", 9, 7));
  const ReportData data = runs.data();
  const std::vector<const ReportGroup*> two{&data.groups[0], &data.groups[1]};
  CHECK(data.groups[0].numbers_beside(two, "loss") == Numbers{3, 4});
  CHECK(data.groups[1].numbers_beside(two, "loss") == Numbers{3.5, 4.5});
  const std::vector<const ReportGroup*> all{two[0], two[1], &data.groups[2]};
  CHECK(data.groups[0].numbers_beside(all, "loss") == Numbers{2, 3, 4});
}

TEST_CASE("numbers: of all runs that have them") {
  Runs runs;
  runs.add(summary_of("a", 0, 2)), runs.add(with(summary_of("a", 1), "/loss", nullptr));
  runs.add(summary_of("a", 2, 3));
  const ReportGroup group = runs.data().groups.at(0);
  CHECK(group.numbers("loss") == Numbers{2, 3});
  CHECK(group.numbers("seed") == Numbers{0, 1, 2});
  CHECK(group.numbers("absent").empty());
}

TEST_CASE("differences are paired by seed, whatever the order, relative to the base's size") {
  Runs runs;
  const std::pair<int, double> base[] = {{0, 2}, {1, 4}, {2, -5}, {3, 0}, {5, 1}};
  const std::pair<int, double> other[] = {{5, 1.5}, {2, -4}, {1, 3}, {3, 7}, {4, 100}};
  for (const auto& [seed, loss] : base) runs.add(summary_of("base", seed, loss));
  for (const auto& [seed, loss] : other) runs.add(summary_of("other", seed, loss));
  const ReportData data = runs.data();
  // Seeds 5, 2, 1 are pairs; a loss of 0 has no share, and 4 is not in a pair.
  CHECK(data.groups[1].paired(data.groups[0], "loss") == Numbers{0.5, 0.2, -0.25});
  CHECK(data.groups[0].paired(data.groups[0], "loss") == Numbers{0, 0, 0, 0});
  CHECK(data.groups[0].paired(data.groups[1], "absent").empty());
}

TEST_CASE("runs without a summary are in no pair") {
  Runs runs;
  runs.without_summary(), runs.without_summary();
  const ReportData data = runs.data();
  CHECK(data.groups[1].paired(data.groups[0], "loss").empty());
}

TEST_CASE("groups by workload; metrics of other programs are with all of them") {
  Runs runs;
  runs.add(summary_of("a", 0)), runs.add(with(summary_of("b", 0), "/workload", "v"));
  runs.add(summary_of("c", 0));
  write_file(runs.directory / "other.csv", "step,loss\n1,2\n");
  runs.paths.push_back(runs.directory / "other.csv");
  const ReportData data = runs.data();
  const auto lists = data.by_workload();
  REQUIRE(lists.size() == 2);
  const auto labels = [](const std::vector<const ReportGroup*>& groups) {
    Names names;
    for (const ReportGroup* group : groups) names.push_back(group->label);
    return names;
  };
  CHECK(labels(lists[0]) == Names{"a", "c", "other.csv"});
  CHECK(labels(lists[1]) == Names{"b", "other.csv"});
  CHECK(data.groups[3].is_file);

  const ReportData alone = lab::read_report_data({.paths = {runs.directory / "other.csv"}});
  REQUIRE(alone.by_workload().size() == 1);
  CHECK(labels(alone.by_workload()[0]) == Names{"other.csv"});
  CHECK(ReportData{}.by_workload().empty());
}

// --- series

TEST_CASE("losses, loss scales and skipped steps are series of their own, each where it is") {
  Runs runs;
  const Path run = runs.add(summary_of("a", 0));
  write_file(run / "metrics.jsonl",
             "{\"step\":1,\"train/loss\":3,\"train/loss_scale\":8}\n"
             "{\"step\":2,\"loss\":2.5}\n"
             "{\"step\":3,\"train/loss\":null,\"train/skipped_steps\":1}\n"
             "{\"step\":4,\"train/loss\":1,\"loss\":9,\"loss_scale\":4,\"train/skipped_steps\":1}\n"
             "{\"step\":5,\"train_loss\":0.5}\n{\"step\":6,\"other\":1}\n");
  const ReportRun read = runs.data().groups.at(0).runs.at(0);
  const auto points = [](const std::vector<lab::svg::Point>& series) {
    std::vector<std::pair<double, double>> pairs;
    for (const auto& p : series) pairs.emplace_back(p.x, p.y);
    return pairs;
  };
  using Pairs = std::vector<std::pair<double, double>>;
  CHECK(points(read.losses) == Pairs{{1, 3}, {2, 2.5}, {4, 1}, {5, 0.5}});
  CHECK(points(read.loss_scales) == Pairs{{1, 8}, {4, 4}});
  CHECK(points(read.skipped) == Pairs{{3, 1}, {4, 1}});
}

json survey(int step, const char* site, const char* role, double count, const char* quantizer) {
  return {{"step", step},
          {"site", site},
          {"role", role},
          {"count", count},
          {"zeros", 1},
          {"to_zero", count / 4},
          {"sum_x2", count},
          {"scale", step + 1},
          {"ideal", 2},
          {"quantizer", quantizer},
          {"binades", {{"0", count}}}};
}

void write_lines(const Path& path, const std::vector<json>& lines) {
  std::string text;
  for (const json& line : lines) text += line.dump() + "\n";
  write_file(path, text);
}

TEST_CASE("surveys of all runs, steps and inputs of a role are added up") {
  Runs runs;
  const Path one = runs.add(summary_of("a", 0)), two = runs.add(summary_of("a", 1));
  write_lines(one / "probe.jsonl",
              {survey(0, "s", "input", 8, "e4m3"), survey(0, "s", "input", 16, "e4m3"),
               survey(5, "s", "input", 32, "e4m3"), survey(0, "r", "weight", 4, "")});
  write_lines(two / "probe.jsonl",
              {survey(5, "s", "input", 64, "e4m3"), survey(0, "q", "output", 4, "bf16")});
  const ReportGroup group = runs.data().groups.at(0);
  CHECK(group.sites == Names{"s", "r", "q"});  // in the order of computation
  const lab::ReportTensor* const input = group.tensor("s", Role::input);
  REQUIRE(input);
  CHECK(input->quantizer == "e4m3");
  CHECK(input->survey.sums.count == 8 + 16 + 32 + 64);
  CHECK(input->survey.sums.zeros == 4);
  CHECK(input->survey.binade.at(149) == 120);
  REQUIRE(input->by_step.size() == 2);
  CHECK(input->by_step.at(0).count == 24);
  CHECK(input->by_step.at(5).count == 96);
  // Scales are those of the first run; of two inputs in one step, those of the first.
  CHECK(input->scales == std::map<int64_t, std::pair<double, double>>{{0, {1, 2}}, {5, {6, 2}}});
  const lab::ReportTensor* const weight = group.tensor("r", Role::weight);
  REQUIRE(weight);
  CHECK(weight->by_step.empty());  // nothing is rounded there
  CHECK(group.tensor("q", Role::output)->scales.empty());
  CHECK_FALSE(group.tensor("s", Role::weight));
  CHECK_FALSE(group.tensor("absent", Role::input));
}

TEST_CASE("updates of all runs and parameters are added up by step, states of optimizers are not") {
  const auto update = [](int step, double count, double lost, const char* state = "") {
    return json{{"step", step},
                {"parameter", "p"},
                {"state", state},
                {"stored", {{"count", count}, {"lost", lost}, {"uu", 1}, {"du", 0.5}, {"ww", 4}}},
                {"seen", {{"count", count}, {"lost", 2 * lost}}},
                {"by_ulp", {{"-40", 1}, {"23", lost}}}};
  };
  Runs runs;
  const Path one = runs.add(summary_of("a", 0)), two = runs.add(summary_of("a", 1));
  write_lines(one / "probe.jsonl", {update(0, 10, 1), update(0, 30, 3), update(5, 10, 2),
                                    update(0, 1000, 1000, "exp_avg")});
  write_lines(two / "probe.jsonl", {update(5, 50, 4)});
  const ReportGroup group = runs.data().groups.at(0);
  REQUIRE(group.updates.size() == 2);
  CHECK(group.updates.at(0).count == 40);
  CHECK(group.updates.at(0).lost_share() == 0.1);
  CHECK(group.updates.at(5).lost_share() == 0.1);
  CHECK(group.stored.count == 100);
  CHECK(group.stored.lost == 10);
  CHECK(group.stored.effective_descent() == 0.5);
  CHECK(group.seen.lost == 20);
  CHECK(group.by_ulp.front() == 4);
  CHECK(group.by_ulp.back() == 10);
}

TEST_CASE("the resolved table is the first that a group has") {
  Runs runs;
  runs.add(summary_of("a", 0));
  write_file(runs.add(summary_of("a", 1)) / "resolved.json", R"({"sites": [{"site": "x"}]})");
  write_file(runs.add(summary_of("a", 2)) / "resolved.json", R"({"sites": [{"site": "y"}]})");
  const ReportData data = runs.data();
  REQUIRE(data.groups.at(0).resolved.size() == 1);
  CHECK(data.groups[0].resolved[0].site == "x");
}

// --- folders that are not runs

TEST_CASE("comparisons and searches, by name or in folders of runs, are kept apart from runs") {
  Runs runs;
  const Path run = runs.add(summary_of("a", 0));
  write_file(run / "compare.json", R"({"rows": []})");
  write_file(run / "x.search.json", R"({"candidates": []})");
  write_file(runs.directory / "c.json", R"({"rows": []})");
  write_file(runs.directory / "s.json", R"({"candidates": [], "rows": []})");
  write_file(runs.directory / "odd.json", R"({"row": []})");
  for (const char* name : {"c.json", "s.json", "odd.json"})
    runs.paths.push_back(runs.directory / name);
  const ReportData data = runs.data();
  CHECK(data.comparisons == std::vector<Path>{runs.directory / "c.json", run / "compare.json"});
  CHECK(data.searches == std::vector<Path>{runs.directory / "s.json", run / "x.search.json"});
  CHECK(data.groups.size() == 1);
  REQUIRE(data.notes.size() == 1);
  CHECK(contains(data.notes[0], "odd.json"));

  std::filesystem::create_directory(runs.directory / "separate");
  write_file(runs.directory / "separate/compare.json", R"({"rows": []})");
  const ReportData separate = lab::read_report_data({.paths = {runs.directory / "separate"}});
  CHECK(separate.groups.empty());
  CHECK(separate.comparisons.size() == 1);
}

TEST_CASE("lines that were skipped are noted, of every run that has some") {
  Runs runs;
  write_file(runs.add(summary_of("a", 0)) / "metrics.jsonl", "{\"step\":1}\nx\n");
  write_file(runs.add(summary_of("a", 1)) / "probe.jsonl", "x\ny\n");
  const ReportData data = runs.data();
  REQUIRE(data.notes.size() == 2);
  CHECK(contains(data.notes[0], "run-0/metrics.jsonl: 1 line was skipped"));
  CHECK(contains(data.notes[1], "run-1/probe.jsonl: 2 lines were skipped"));
}

}  // namespace
}  // namespace halftone::test::report_data_test

// The report's panels, read as tables: each number is compared with a plain computation from the
// data that this file writes.

namespace halftone::test::report_panels_test {
namespace {

using lab::ReportData;
using lab::ReportGroup;
using lab::ReportRun;
using policy::Role;
using Cells = std::vector<std::string>;

ReportRun run_of(int64_t seed, double loss, double milliseconds = 1) {
  ReportRun run{.folder = "run", .seed = seed};
  run.summary.numbers = {{"loss", loss}, {"milliseconds_per_step", milliseconds}};
  return run;
}

ReportGroup group_of(const std::string& label, std::vector<ReportRun> runs, int style = 0) {
  ReportGroup group{.label = label, .policy = label, .workload = "w", .style = style};
  group.runs = std::move(runs);
  return group;
}

/// Groups with one run each.
ReportData data_of(const std::vector<std::string>& labels) {
  ReportData data;
  for (const std::string& label : labels)
    data.groups.push_back(group_of(label, {run_of(0, 1)}, int(data.groups.size())));
  return data;
}

/// A group of runs of a sweep's cell.
ReportGroup cell_of(std::map<std::string, std::string> values, std::vector<ReportRun> runs,
                    int style = 0) {
  ReportGroup group = group_of("cell " + std::to_string(style), std::move(runs), style);
  group.cell = {"p", std::move(values)};
  return group;
}

lab::ReportTensor tensor_of(double count, double to_zero, double sum_e2, const char* quantizer) {
  lab::ReportTensor tensor;
  SurveySums& s = tensor.survey.sums;
  s.count = count, s.to_zero = to_zero, s.sum_x2 = count, s.sum_e2 = sum_e2;
  tensor.survey.binade[149] = count;
  tensor.quantizer = quantizer;
  if (*quantizer) tensor.by_step[0] = s;
  return tensor;
}

/// Returns the tables of a panel, which must be well-formed.
std::vector<HtmlTable> tables_of(const std::string& panel) {
  CHECK(PageReader("<div>" + panel + "</div>").read().mistake == "");
  return html_tables(panel);
}

std::string cell(const HtmlTable& table, std::size_t row, const std::string& head) {
  const auto at = std::ranges::find(table.at(0), head);
  REQUIRE(at != table[0].end());
  return table.at(row).at(std::size_t(at - table[0].begin()));
}

/// The one picture of a figure.
template <class Kind> Kind picture_of(const char* name, const ReportData& data) {
  const auto pictures = lab::pictures_named(name, data);
  REQUIRE(pictures.size() == 1);
  REQUIRE(std::holds_alternative<Kind>(pictures[0]));
  return std::get<Kind>(pictures[0]);
}

TEST_CASE("policies: means, intervals, pairs by seed, medians and sums") {
  ReportData data;
  data.groups.push_back(group_of("base", {run_of(0, 2, 5), run_of(1, 4, 1), run_of(2, 6, 3)}));
  data.groups.push_back(group_of("other", {run_of(2, 9, 8), run_of(0, 3, 2)}, 1));
  data.groups[0].runs[0].summary.numbers["skipped_steps"] = 3;
  data.groups[0].runs[2].summary.numbers["skipped_steps"] = 4;
  data.groups[1].runs[0].summary.bytes_at_peak = {
      {"parameter", 1 << 20}, {"activation", 3 << 20}, {"input", 50 << 20}};
  const auto tables = tables_of(lab::policy_table(data));
  REQUIRE(tables.size() == 1);
  const HtmlTable& table = tables[0];
  REQUIRE(table.size() == 3);
  CHECK(table[1][0] == "base");
  CHECK(cell(table, 1, "final loss, 95 %") == "4 ± 25");  // of seeds 0 and 2, which both have
  CHECK(cell(table, 1, "against base") == "");
  CHECK(cell(table, 1, "ms/step here") == "3.00");
  CHECK(cell(table, 1, "skipped") == "7");
  CHECK(cell(table, 1, "MiB here") == "-");
  CHECK(cell(table, 2, "final loss, 95 %") == "6 ± 38");
  // Both pairs differ by a half of the base's loss: no spread.
  CHECK(cell(table, 2, "against base") == "+50 ± 0 %");
  CHECK(cell(table, 2, "skipped") == "0");
  CHECK(cell(table, 2, "MiB here") == "4.00");  // without the data set
}

TEST_CASE("bits: one number if they are equal, three otherwise, each at its policy") {
  ReportData data = data_of({"a", "b"});
  const auto set = [&](std::size_t group, double w, double x, double g) {
    auto& numbers = data.groups[group].runs[0].summary.numbers;
    numbers["operands.weight_bits"] = w, numbers["operands.input_bits"] = x;
    numbers["operands.grad_output_bits"] = g;
  };
  set(0, 16, 16, 16), set(1, 7.1459, 7.4926, 4.41);
  const HtmlTable table = tables_of(lab::policy_table(data)).at(0);
  CHECK(cell(table, 1, "bits of weights, inputs, gradients") == "16");
  CHECK(cell(table, 2, "bits of weights, inputs, gradients") == "7.1, 7.5, 4.4");
  const auto facts = tables_of(lab::fact_tables(data));
  const auto row = std::ranges::find(facts.at(0), "operands.weight_bits",
                                     [](const Cells& cells) { return cells[0]; });
  REQUIRE(row != facts[0].end());
  CHECK(*row == Cells{"operands.weight_bits", "16", "7.146"});  // a column a policy
}

TEST_CASE("facts: the values of a policy's runs in their order, one if they are equal") {
  ReportData data;
  data.groups.push_back(group_of("a", {run_of(0, 9), run_of(1, 9), run_of(2, 9)}));
  data.groups.push_back(group_of("b", {run_of(0, 10), run_of(1, 2), run_of(2, 10)}, 1));
  const HtmlTable table = tables_of(lab::fact_tables(data)).at(0);
  CHECK(std::ranges::find(table, Cells{"loss", "9", "10; 2; 10"}) != table.end());
}

TEST_CASE("verdicts: the differences of few seeds, and the role that errs most") {
  ReportData data;
  data.groups.push_back(group_of("a", {run_of(0, 1), run_of(1, 1), run_of(2, 1)}));
  data.groups.push_back(group_of("b", {run_of(0, 1.01), run_of(1, 0.99), run_of(2, 1.2)}, 1));
  auto& tensors = data.groups[1].tensors;
  for (const char* site : {"a", "b", "c"}) {
    tensors[{site, Role::weight}] = tensor_of(100, 0, 0.001, "e4m3");
    tensors[{site, Role::input}] = tensor_of(100, 0, 1, "e2m1");
  }
  const std::string alike = lab::verdicts(data);
  CHECK(contains(alike, " By seed: 1.0, -1.0, 20.0 %."));
  CHECK(contains(alike, ">input</a>"));
  CHECK(!contains(alike, "least in"));
  tensors[{"c", Role::input}] = tensor_of(100, 25, 4, "e2m1");
  CHECK(contains(lab::verdicts(data), " dB (least in c); up to 25.0 % become 0, in c input."));
}

TEST_CASE("policies: a group without losses has dashes, and each workload has a table") {
  ReportData data;
  data.groups.push_back(group_of("a", {ReportRun{.folder = "x", .seed = {}}}));
  data.groups.push_back(group_of("b", {run_of(0, 1)}, 1));
  data.groups[1].workload = "v";
  const auto tables = tables_of(lab::policy_table(data));
  REQUIRE(tables.size() == 2);
  CHECK(cell(tables[0], 1, "final loss, 95 %") == "-");
  CHECK(cell(tables[0], 1, "ms/step here") == "-");
  CHECK(cell(tables[1], 1, "final loss, 95 %") == "1");  // of one run
}

TEST_CASE("axes: the cells of a sweep are a curve over each axis of numbers") {
  ReportData data;
  const auto both = [](const char* rate, const char* kind) {
    return std::map<std::string, std::string>{{"lr", rate}, {"kind", kind}};
  };
  data.groups.push_back(cell_of(both("-1e-3", "x"), {run_of(0, 3), run_of(1, 4)}));
  data.groups.push_back(cell_of(both("2", "x"), {run_of(0, 5), run_of(1, 6)}, 1));
  data.groups.push_back(cell_of(both("2", "y"), {run_of(0, 7)}, 2));  // no second value
  data.groups.push_back(group_of("amp-bf16", {run_of(0, 8)}, 3));
  const auto plot = picture_of<lab::svg::Plot>("axes", data);  // none for what is not a number
  CHECK(plot.title == "Final loss over lr");
  REQUIRE(plot.curves.size() == 1);  // one value is not a curve
  CHECK(plot.curves[0].name == "p, kind=x");
  REQUIRE(plot.curves[0].points.size() == 2);
  CHECK(plot.curves[0].points[0].y == 3.5);  // means of two seeds
  CHECK(plot.curves[0].points[1].y == 5.5);
  CHECK(plot.curves[0].points[1].high == doctest::Approx(5.5 + 12.706 * 0.5));
}

TEST_CASE("pareto: intervals, and a front only over decided differences") {
  ReportData data;
  data.groups.push_back(group_of("long", {run_of(0, 1), run_of(1, 1.1), run_of(2, 0.9)}));
  data.groups.push_back(group_of("short", {run_of(0, 2), run_of(1, 2.1), run_of(2, 1.9)}, 1));
  data.groups.push_back(group_of("middle", {run_of(0, 1.9), run_of(1, 2.5), run_of(2, 1.2)}, 2));
  for (std::size_t g = 0; g < 3; ++g)
    for (ReportRun& run : data.groups[g].runs)
      for (const char* role : {"weight", "input", "grad_output"})
        run.summary.numbers["operands." + std::string(role) + "_bits"] =
            g == 0 ? 16 : 4.0 * double(g);
  const auto plot = picture_of<lab::svg::Plot>("pareto", data);
  REQUIRE(plot.curves.size() == 4);
  CHECK(plot.curves[0].points[0].low < 1);
  const auto& front = plot.curves[3].points;
  REQUIRE(front.size() == 2);  // "middle" is not decided to be better than "short"
  CHECK(front[0].x == 4);
  CHECK(front[1].x == 16);
}

TEST_CASE("differences are of means over a twentieth of the steps") {
  ReportData data = data_of({"a", "b"});
  for (int step = 0; step < 80; ++step) {  // two on each side
    data.groups[0].runs[0].losses.push_back({double(step), 2});
    data.groups[1].runs[0].losses.push_back({double(step), step == 40 ? 12.0 : 2.0});
  }
  const auto points = picture_of<lab::svg::Plot>("differences", data).curves.at(0).points;
  CHECK(points.at(36).y == 0);
  CHECK(points.at(40).y == 100);  // (12 + 4 * 2) / (5 * 2)
}

TEST_CASE("a spike and the first steps do not set the axis of losses") {
  ReportData data = data_of({"a"});
  for (int step = 0; step < 100; ++step)
    data.groups[0].runs[0].losses.push_back(
        {double(step), step == 9 ? 1e6 : 2 + 3 * std::exp(-step / 5.0)});
  const auto plot = picture_of<lab::svg::Plot>("losses", data);
  CHECK(plot.y.high < 3);
  CHECK(plot.y.low < 2);
}

TEST_CASE("memory: MiB by part, without the data set") {
  ReportData data = data_of({"a"});
  data.groups[0].runs[0].summary.bytes_at_peak = {
      {"input", 54 << 20}, {"activation", 4 << 20},    {"parameter", 2 << 20},
      {"gradient", 0},     {"master_weight", 1 << 20}, {"compensation", 1 << 19}};
  const auto bars = picture_of<lab::svg::Bars>("memory", data);
  REQUIRE(bars.bars.size() == 1);
  CHECK(bars.bars[0].parts == std::vector<double>{2, 1.5, 0, 0, 0, 4, 0});
  CHECK(bars.parts[1] == "masters");
}

TEST_CASE("formats: sites that get the same share a line, what differs is marked") {
  ReportData data = data_of({"a", "b"});
  const std::string blocks = "e2m1, blocks of 1x16 with e4m3 scales";
  for (const char* site : {"h.0/linear.0", "h.1/linear.0", "h.2/linear.0"}) {
    data.groups[0].resolved.push_back({site, "bf16", {{"input", "e4m3"}, {"weight", "e4m3"}}});
    data.groups[1].resolved.push_back(
        {site,
         std::string(site).starts_with("h.2") ? "f32" : "bf16",
         {{"input", "e4m3"}, {"input.backward", "e4m3"}, {"weight", blocks}}});
  }
  data.groups[1].resolved.push_back({"head", "f32", {}});
  const auto tables = tables_of(lab::format_table(data));
  REQUIRE(tables.size() == 1);
  const HtmlTable& table = tables[0];
  REQUIRE(table.size() == 4);
  CHECK(table[1] == Cells{"h.0/linear.0 (2 like this)", "in bf16all e4m3",
                          "≠ in bf16input e4m3weight e2m1/1x16"});
  CHECK(table[2][0] == "h.2/linear.0");
  CHECK(table[2][2] == "≠ in f32input e4m3weight e2m1/1x16");
  CHECK(contains(lab::format_table(data),
                 "title=\"input: e4m3; input.backward: e4m3; weight: " + blocks));
  CHECK(table[3] == Cells{"head", "not there", "≠ in f32"});
}

TEST_CASE("sites: a map of each statistic; sites and roles with nothing to say are left out") {
  ReportData data = data_of({"a"});
  ReportGroup& group = data.groups[0];
  group.sites = {"s", "r"};
  group.tensors[{"s", Role::input}] = tensor_of(1000, 250, 10, "e4m3");
  group.tensors[{"s", Role::weight}] = tensor_of(1000, 0, 0, "e4m3");
  group.tensors[{"r", Role::input}] = tensor_of(64, 0, 0, "");
  using lab::svg::Map;
  const auto text = [](const Map& map) {
    std::string all;
    for (const auto& column : map.columns) all += column.first + " " + column.second + ";";
    for (const auto& [name, cells] : map.rows) {
      all += " " + name;
      for (const lab::svg::Cell& c : cells) all += "," + c.text;
    }
    return all;
  };
  CHECK(text(picture_of<Map>("underflow", data)) == "a input; s,25.0");
  CHECK(lab::pictures_named("saturation", data).empty());
  CHECK(text(picture_of<Map>("sqnr", data)) == "a input;a weight; s,20,exact");
  // log2 of the root mean square: of all tensors, here 0.
  CHECK(text(picture_of<Map>("rms", data)) == "a input;a weight; s,0,0 r,0,");
  CHECK(lab::pictures_named("sites", data).size() == 3);
}

TEST_CASE("steps: the share that becomes 0 in each step, of the tensor that loses most first") {
  ReportData data = data_of({"a"});
  ReportGroup& group = data.groups[0];
  group.tensors[{"s", Role::input}] = tensor_of(100, 1, 1, "e4m3");
  lab::ReportTensor worst = tensor_of(100, 50, 1, "e4m3");
  worst.by_step.clear();
  for (int step = 0; step < 40; ++step)
    worst.by_step[step].count = 200, worst.by_step[step].to_zero = step;
  group.tensors[{"s", Role::grad_output}] = worst;
  const auto plot = picture_of<lab::svg::Plot>("steps", data);
  REQUIRE(plot.curves.size() == 2);
  CHECK(plot.curves[0].name == "s grad_output");
  REQUIRE(plot.curves[0].points.size() == 40);
  for (const lab::svg::Point& p : plot.curves[0].points) CHECK(p.y == doctest::Approx(p.x / 2));
}

TEST_CASE("updates: shares, descent and ratio by their sums") {
  ReportData data = data_of({"a"});
  ReportGroup& group = data.groups[0];
  group.stored = {.count = 80, .lost = 20, .du = 3, .uu = 4, .ww = 400};
  group.seen = {.count = 80, .lost = 60, .du = 1, .uu = 4, .ww = 400};
  group.updates[0] = group.stored;
  const auto tables = tables_of(lab::update_table(data));
  REQUIRE(tables.size() == 1);
  CHECK(tables[0].at(1) == Cells{"a", "25", "75", "0.75", "0.25", "0.1"});
}

TEST_CASE("exponents: the worst tensor first, once under the policy where it is worst") {
  ReportData data = data_of({"a", "b"});
  data.groups[0].tensors[{"s", Role::input}] = tensor_of(100, 10, 1, "e4m3");
  data.groups[1].tensors[{"s", Role::input}] = tensor_of(100, 30, 1, "e4m3");
  data.groups[0].tensors[{"r", Role::input}] = tensor_of(100, 20, 1, "e4m3");
  data.groups[0].tensors[{"q", Role::weight}] = tensor_of(100, 0, 0, "");
  const auto plots = [&] {
    std::vector<lab::svg::Plot> all;
    for (const auto& picture : lab::pictures_named("exponents", data))
      all.push_back(std::get<lab::svg::Plot>(picture));
    return all;
  };
  const auto before = plots();
  REQUIRE(before.size() == 3);
  CHECK(before[0].title == "s input, b: 30 % become 0");
  CHECK(before[1].title == "r input, a: 20 % become 0");
  CHECK(before[2].title == "q weight, a");
  CHECK(before[0].ranges.back().low == -6);  // e4m3 without a scale
  // With a scale a block, the largest number of a block is e2m1's largest.
  lab::ReportTensor& tensor = data.groups[0].tensors[{"s", Role::input}];
  tensor.quantizer = "e2m1, blocks of 1x32";
  tensor.survey.sums.to_zero = 90, tensor.survey.sums.largest = 0.75;
  const lab::svg::Range own = plots()[0].ranges.back();
  CHECK(own.name == "e2m1, largest block");
  CHECK(own.high == doctest::Approx(std::log2(0.75)));
  CHECK(own.high - own.low == doctest::Approx(std::log2(6)));
}

TEST_CASE("searches: candidates by error, what was chosen or refused, missing numbers as dashes") {
  const TemporaryDirectory directory;
  const auto path = directory / "search.json";
  write_file(path, R"({"candidates": [
      {"name": "far", "error": 0.5, "added": 0.25, "bytes": 1048576, "bits": 24},
      {"name": "near", "error": 0.125, "bytes": 2097152, "milliseconds": 3},
      {"name": "none", "refused": "no kernel"}, 5], "chosen": ["near"],
      "frontier": [{"bytes": 1048576, "error": 0.5}], "base": {"bytes": 3145728, "error": 0}})");
  ReportData data;
  data.searches.push_back(path);
  const auto tables = tables_of(lab::search_tables(data));
  REQUIRE(tables.size() == 1);
  REQUIRE(tables[0].size() == 4);
  CHECK(tables[0][1] == Cells{"near", "0.125", "-", "-", "3", "-", "2", "chosen"});
  CHECK(tables[0][2] == Cells{"far", "0.5", "0.25", "-", "-", "24", "1", "-"});
  CHECK(tables[0][3] == Cells{"none", "-", "-", "-", "-", "-", "-", "no kernel"});
}

TEST_CASE("searches among a menu's formats: a row for each budget") {
  const TemporaryDirectory directory;
  const auto path = directory / "x.search.json";
  write_file(path, R"({"menu": {}, "points": [3,
      {"budget": 6, "bits": 5.5, "added": 0.25, "predicted": 0.125, "loss_change": 0.5,
       "predicted_loss_change": 0.0625, "file": "x-6bits.json"},
      {"budget": null, "bits": 4.5, "file": null}]})");
  ReportData data;
  data.searches.push_back(path);
  const auto tables = tables_of(lab::search_tables(data));
  REQUIRE(tables.size() == 1);
  REQUIRE(tables[0].size() == 3);
  CHECK(tables[0][1] == Cells{"6", "5.5", "0.25", "0.125", "0.5", "0.0625", "x-6bits.json"});
  CHECK(tables[0][2] == Cells{"for all", "4.5", "-", "-", "-", "-", "-"});
}

TEST_CASE("comparisons: rows that say something, the first that deviates marked wherever it is") {
  const TemporaryDirectory directory;
  const auto path = directory / "compare.json";
  nlohmann::json file{{"policy", "p"}, {"reference", "r"}, {"rows", nlohmann::json::array()}};
  for (int i = 0; i < 300; ++i)
    file["rows"].push_back({{"site", "s" + std::to_string(i)},
                            {"role", "input"},
                            {"rounding", i % 2 == 0 ? nlohmann::json(1.5) : nlohmann::json()},
                            {"local", 0},
                            {"reason", i == 298 ? "why" : ""}});
  file["first"] = 298;
  write_file(path, file.dump());
  ReportData data;
  data.comparisons.push_back(path);
  const auto tables = tables_of(lab::comparison_tables(data));
  REQUIRE(tables.size() == 1);
  const HtmlTable& table = tables[0];
  REQUIRE(table.size() == 1 + 150);  // 150 rows of 300 have a rounding
  CHECK(table[1][0] == "s0");
  CHECK(table[2][0] == "s2");
  CHECK(table[150][0] == "→ s298");
  CHECK(table[150].back() == "the first: why");
}

TEST_CASE("the parts of errors: shares of each role, the worst gradient, flips of weights") {
  ReportData data = data_of({"p"});
  const auto tensor = [&](double dead, double grid_e2, double x2) {
    lab::ReportTensor made = tensor_of(100, 0, dead + grid_e2, "e4m3");
    SurveySums& s = made.survey.sums;
    s.sum_x2 = x2, s.dead_x2 = dead, s.grid_x2 = x2 - dead, s.grid_xe = dead, s.grid_e2 = grid_e2;
    return made;  // x e is 0 in all: the scale has no part
  };
  auto& tensors = data.groups[0].tensors;
  tensors[{"a", Role::grad_output}] = tensor(2, 6, 16);
  tensors[{"b", Role::grad_output}] = tensor(1, 1, 4);
  tensors[{"a", Role::weight}] = tensor(1, 3, 100);
  tensors[{"w", Role::weight}] = tensor(1, 3, 100), tensors[{"w", Role::weight}].quantizer = "bf16";
  tensors[{"a", Role::weight}].flips = {.count = 200, .flipped = 20, .returned = 5};
  const auto tables = tables_of(lab::error_table(data));
  REQUIRE(tables.size() == 1);
  const HtmlTable& table = tables[0];
  REQUIRE(table.size() == 4);
  CHECK(table[1][0] == "pweight bf16");  // a line for each format
  CHECK(table[2][0] == "pweight e4m3");
  CHECK(cell(table, 2, "error, %") == "20.00");
  CHECK(cell(table, 2, "dead zone") == "25.0");
  CHECK(cell(table, 2, "flipped") == "10.00");
  CHECK(cell(table, 2, "and back") == "2.50");
  CHECK(cell(table, 2, "least norm / noise") == "");
  CHECK(cell(table, 3, "scale") == "0.0");
  CHECK(cell(table, 3, "dead zone") == "37.5");  // (2/16 + 1/4) / (8/16 + 2/4)
  CHECK(cell(table, 3, "grid") == "62.5");
  CHECK(cell(table, 3, "least norm / noise") == "1.41, 2 below √3");
}

TEST_CASE("errors by block: the mean over the sites of a block, if there are two blocks") {
  ReportData data = data_of({"p"});
  const auto add = [&](const char* site, double sum_e2) {
    lab::ReportTensor made = tensor_of(100, 0, sum_e2, "e4m3");
    made.survey.sums.grid_x2 = 100, made.survey.sums.grid_e2 = sum_e2;
    data.groups[0].tensors[{site, Role::weight}] = made;
  };
  add("h.0.mlp/linear.0", 1), add("h.0.attn/linear.0", 7);
  CHECK(lab::pictures_named("errors", data).empty());
  add("h.1.mlp/linear.0", 25), add("head/linear.0", 9);
  const auto plot = picture_of<lab::svg::Plot>("errors", data);
  CHECK(plot.title == "Error of roundings by block: weight");
  const auto& points = plot.curves.at(0).points;
  REQUIRE(points.size() == 2);
  CHECK(points[0].y == doctest::Approx(20));  // sqrt((0.01 + 0.07) / 2)
  CHECK(points[1].y == doctest::Approx(50));
}

TEST_CASE("runs without data make neither tables nor pictures") {
  const ReportData none;
  for (const auto table : {lab::policy_table, lab::fact_tables, lab::format_table, lab::error_table,
                           lab::update_table, lab::comparison_tables, lab::search_tables})
    CHECK(table(none).empty());
  for (const lab::Figure& figure : lab::figures())
    CHECK(lab::pictures_named(figure.name, none).empty());
}

}  // namespace
}  // namespace halftone::test::report_panels_test
