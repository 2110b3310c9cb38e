// Data of the report: runs in groups, differences paired by seed, surveys added up, curves, and
// missing series.
#include <doctest/doctest.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include <halftone/lab/report/report.h>

#include "lab/run_files/summaries.h"
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

TEST_CASE("sums alone have the statistics of a survey") {
  SurveySums sums;
  sums.count = 10, sums.zeros = 2, sums.to_zero = 4, sums.saturated = 1;
  const Survey survey = lab::survey_of(sums);
  CHECK(survey.underflow() == 0.5);
  CHECK(survey.saturation() == 0.1);
  CHECK(std::isnan(survey.sqnr()));
}

}  // namespace
}  // namespace halftone::test::report_data_test
