// Folders of runs, read again: every field is read, and hostile files give notes and
// FormatErrors.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>
#include <sstream>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/core/factory.h>
#include <halftone/data/data_loader.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/report/report.h>
#include <halftone/lab/run.h>
#include <halftone/lab/run_folder.h>
#include <halftone/lab/table.h>
#include <halftone/nn/conv.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/module.h>
#include <halftone/nn/rnn.h>

#include "lab/runs.h"
#include "support.h"

namespace halftone::test::run_folder_test {
namespace {

using lab::MetricsLine;
using lab::RunFolder;
using Path = std::filesystem::path;

/// A folder for files of one run.
struct Folder {
  TemporaryDirectory directory{};
  Path path = directory / "run-1";
  Folder() { std::filesystem::create_directory(path); }
  Folder& with(const char* file, std::string_view text) {
    write_file(path / file, text);
    return *this;
  }
  RunFolder read() const { return RunFolder("test", path); }
};

std::vector<MetricsLine> metrics_of(RunFolder& folder) {
  std::vector<MetricsLine> lines;
  folder.each_metrics_line([&](const MetricsLine& line) { lines.push_back(line); });
  return lines;
}

struct Rows {
  std::vector<policy::ProbeRow> surveys{};
  std::vector<policy::UpdateRow> updates{};
};
Rows rows_of(RunFolder& folder) {
  Rows rows;
  folder.each_probe_line([&](const policy::ProbeRow& row) { rows.surveys.push_back(row); },
                         [&](const policy::UpdateRow& row) { rows.updates.push_back(row); });
  return rows;
}

// --- paths that are runs

TEST_CASE("a folder with any file of a run is one, an empty folder and other files are none") {
  for (const char* file : {"summary.json", "metrics.jsonl", "metrics.csv", "probe.jsonl",
                           "resolved.json", "compare.json", "search.json", "x.search.json"}) {
    CAPTURE(file);
    Folder folder;
    CHECK_FALSE(RunFolder::is_run(folder.path));
    folder.with(file, "");
    CHECK(RunFolder::is_run(folder.path));
    const bool next_to_it =
        std::string(file) == "compare.json" || std::string(file).ends_with("search.json");
    CHECK(folder.read().was_trained() == !next_to_it);
    CHECK(folder.read().has(file));
  }
  Folder other;
  other.with("policy.json", "{}").with("notes.txt", "");
  std::filesystem::create_directory(other.path / "summary.json");  // a folder of that name
  CHECK_FALSE(RunFolder::is_run(other.path));
  CHECK(contains(message_of<FormatError>([&] { other.read(); }), "[test] " + other.path.string()));
}

TEST_CASE("a folder's name is the last part of its path, however it is written") {
  Folder folder;
  folder.with("summary.json", "{}");
  CHECK(folder.read().name() == "run-1");
  CHECK(RunFolder("test", folder.path / "").name() == "run-1");
  CHECK(RunFolder("test", folder.path / "." / ".." / "run-1").name() == "run-1");
  CHECK_FALSE(folder.read().is_file());
}

TEST_CASE("files of other programs are runs by their endings") {
  const TemporaryDirectory directory;
  for (const char* name : {"a.csv", "a.jsonl"}) {
    write_file(directory / name, "");
    const RunFolder file("test", directory / name);
    CHECK(file.is_file());
    CHECK(file.was_trained());
    CHECK(file.name() == name);
    CHECK(file.searches().empty());
    CHECK_FALSE(file.has("summary.json"));
    CHECK_FALSE(file.summary());
  }
  for (const char* name : {"a.txt", "a", "a.json", "a.CSV"}) {
    write_file(directory / name, "");
    CAPTURE(name);
    CHECK(contains(message_of<FormatError>([&] { RunFolder("test", directory / name); }),
                   "neither .csv nor .jsonl"));
  }
}

TEST_CASE("searches by name, and none of folders") {
  Folder folder;
  folder.with("b.search.json", "{}").with("search.json", "{}").with("a.search.json", "{}");
  folder.with("search.json.bak", "{}");
  std::filesystem::create_directory(folder.path / "c.search.json");
  std::vector<std::string> names;
  for (const Path& path : folder.read().searches()) names.push_back(path.filename().string());
  CHECK(names == std::vector<std::string>{"a.search.json", "b.search.json", "search.json"});
}

TEST_CASE("paths: runs, folders of runs by name, and notes for what has none") {
  const TemporaryDirectory directory;
  for (const char* run : {"runs/b", "runs/a", "runs/logs", "one", "empty"})
    std::filesystem::create_directories(directory / run);
  for (const char* run : {"runs/b", "runs/a", "one"})
    write_file(directory / run / "summary.json", summary_with().dump());
  std::vector<std::string> notes;
  std::vector<std::string> names;
  for (const RunFolder& run : lab::run_folders(
           "test", {directory / "one", directory / "runs", directory / "empty"}, notes))
    names.push_back(run.name());
  CHECK(names == std::vector<std::string>{"one", "a", "b"});
  REQUIRE(notes.size() == 1);
  CHECK(contains(notes[0], "empty: it has no runs."));
  const auto refusal = [&](const Path& path) {
    return message_of<FormatError>([&] { lab::run_folders("test", {path}, notes); });
  };
  CHECK(contains(refusal(directory / "empty"), "it has no runs"));
  CHECK(contains(refusal(directory / "nowhere"), "it has no runs"));
  CHECK(contains(refusal("/dev/null"), "it has no runs"));
  CHECK(lab::run_folders("test", {}, notes).empty());
}

TEST_CASE("a run that several paths lead to is read once, in the place of the first") {
  Folder folder;
  folder.with("summary.json", summary_with().dump());
  std::filesystem::create_directory(folder.directory / "other");
  write_file(folder.directory / "other/summary.json", summary_with().dump());
  std::filesystem::create_directory_symlink(folder.path, folder.directory / "link");
  std::vector<std::string> notes, names;
  for (const RunFolder& run : lab::run_folders("test",
                                               {folder.path, folder.path, folder.path / "",
                                                folder.directory / "link", folder.directory.path()},
                                               notes))
    names.push_back(run.name());
  CHECK(names == std::vector<std::string>{"run-1", "other"});
}

TEST_CASE("a comparison next to runs does not hide them") {
  const TemporaryDirectory directory;
  std::filesystem::create_directories(directory / "a");
  write_file(directory / "a/summary.json", summary_with().dump());
  write_file(directory / "compare.json", "{}");
  std::vector<std::string> notes, names;
  for (const RunFolder& run : lab::run_folders("test", {directory.path()}, notes))
    names.push_back(run.name());
  CHECK(names == std::vector<std::string>{directory.path().filename().string(), "a"});
  CHECK(notes.empty());
}

// --- summaries

TEST_CASE("summaries: texts and finite numbers by name, members as in data.hash") {
  Folder folder;
  folder.with("summary.json",
              summary_with(nlohmann::json::parse(
                               R"({"seed": 3, "lr": 1e-3, "yes": true, "loss": null, "list": [1],
      "data": {"hash": "h", "samples": 24, "shuffle": true, "deep": {"x": 1}},
      "bytes_at_peak": {"parameter": 100, "activation": 0}})"))
                  .dump());
  const lab::RunSummary summary = folder.read().summary().value();
  CHECK(summary.texts == std::map<std::string, std::string>{{"policy", "p"},
                                                            {"policy_hash", "0123456789abcdef"},
                                                            {"weights_hash", "fedcba9876543210"},
                                                            {"workload", "w"},
                                                            {"data.hash", "h"}});
  CHECK(summary.numbers == std::map<std::string, double>{{"format", 1},
                                                         {"seed", 3},
                                                         {"steps", 20},
                                                         {"lr", 1e-3},
                                                         {"late_loss", 1},
                                                         {"milliseconds_per_step", 1},
                                                         {"skipped_steps", 0},
                                                         {"data.samples", 24}});
  CHECK(summary.bytes_at_peak ==
        std::vector<std::pair<std::string, double>>{{"activation", 0}, {"parameter", 100}});
}

TEST_CASE("summaries that are not a JSON object are errors with their path") {
  Folder folder;
  for (const std::string_view text : {"", "[]", "{\"a\":", "{\"a\": \"\xc3\"}", "{\"a\": 1e999}"}) {
    folder.with("summary.json", text);
    const std::string message = message_of<FormatError>([&] { folder.read().summary(); });
    CHECK(message.starts_with("[test] " + (folder.path / "summary.json").string()));
  }
}

// --- metrics

TEST_CASE("metrics: each line with a step, its finite numbers alone") {
  Folder folder;
  folder.with("metrics.jsonl",
              "{\"step\":1,\"loss\":0.5,\"name\":\"x\",\"up\":true}\n"
              "{\"loss\":2}\n{\"step\":\"2\"}\n\n{\"step\":-3,\"v\":[1]}\n{\"st");
  RunFolder run = folder.read();
  CHECK(metrics_of(run) == std::vector<MetricsLine>{{{"step", 1}, {"loss", 0.5}}, {{"step", -3}}});
  REQUIRE(run.notes().size() == 1);
  CHECK(contains(run.notes()[0], "metrics.jsonl: 3 lines were skipped"));
}

TEST_CASE("metrics as comma-separated values, with quotes, spaces and gaps") {
  Folder folder;
  folder.with("metrics.csv",
              "\"step\", loss ,name\r\n 1 ,\"0.5\",x\r\n2,,y\r\n3,nan,inf\r\n"
              "\r\nx,1\r\n4,1,2,3,4\r\n5");
  RunFolder run = folder.read();
  CHECK(metrics_of(run) == std::vector<MetricsLine>{{{"step", 1}, {"loss", 0.5}},
                                                    {{"step", 2}},
                                                    {{"step", 3}},
                                                    {{"step", 4}, {"loss", 1}, {"name", 2}},
                                                    {{"step", 5}}});
  REQUIRE(run.notes().size() == 1);
  CHECK(contains(run.notes()[0], "metrics.csv: 1 line was skipped"));
  folder.with("metrics.jsonl", "{\"step\":9}\n");  // which comes first if both exist
  RunFolder both = folder.read();
  CHECK(metrics_of(both) == std::vector<MetricsLine>{{{"step", 9}}});
}

TEST_CASE("comma-separated values without a column of steps are an error, an empty file is none") {
  Folder folder;
  folder.with("metrics.csv", "epoch,loss\n1,2\n");
  RunFolder run = folder.read();
  CHECK(contains(message_of<FormatError>([&] { metrics_of(run); }), "no column is called step"));
  folder.with("metrics.csv", "");
  RunFolder empty = folder.read();
  CHECK(metrics_of(empty).empty());
  CHECK(empty.notes().empty());
}

// --- probes

constexpr const char* survey_line =
    R"({"step":7,"site":"0/linear.0","role":"grad_output","input":1,"quantizer":"e4m3","scale":64,)"
    R"("ideal":32,"loss_scale":1024,"count":100,"zeros":1,"infinite":2,"nan":3,"to_zero":4,)"
    R"("subnormal":5,"saturated":6,"to_infinity":7,"changed":8,"sum_x2":9,"sum_e2":10,"sum_e":11,)"
    R"("sum_abs_x":12,"sum_relative":13,"largest":14,"smallest":15,"dead_x2":16,)"
    R"("saturated_x2":17,"saturated_xe":18,"saturated_e2":19,"grid_x2":20,"grid_xe":21,)"
    R"("grid_e2":22,"flips":{"count":23,"flipped":24,"returned":25},)"
    R"("binades":{"-149":16,"0":17,"127":18}})";

TEST_CASE("surveys: every field into its place") {
  Folder folder;
  folder.with("probe.jsonl", survey_line);
  RunFolder run = folder.read();
  const Rows rows = rows_of(run);
  REQUIRE(rows.surveys.size() == 1);
  const policy::ProbeRow& row = rows.surveys[0];
  CHECK(row.step == 7);
  CHECK(row.site == "0/linear.0");
  CHECK(row.role == policy::Role::grad_output);
  CHECK(row.input == 1);
  CHECK(row.quantizer == "e4m3");
  CHECK(row.scale == 64);
  CHECK(row.ideal == 32);
  CHECK(row.loss_scale == 1024);
  const SurveySums& s = row.survey.sums;
  const double found[] = {
      s.zeros,     s.infinite,     s.nan,           s.to_zero,         s.subnormal,
      s.saturated, s.to_infinity,  s.changed,       s.sum_x2,          s.sum_e2,
      s.sum_e,     s.sum_abs_x,    s.sum_relative,  s.largest,         s.smallest,
      s.dead_x2,   s.saturated_x2, s.saturated_xe,  s.saturated_e2,    s.grid_x2,
      s.grid_xe,   s.grid_e2,      row.flips.count, row.flips.flipped, row.flips.returned};
  CHECK(s.count == 100);
  for (int i = 0; i < 25; ++i) CHECK(found[i] == i + 1);
  double all = 0;
  for (const double count : row.survey.binade) all += count;
  CHECK(all == 16 + 17 + 18);
  CHECK(row.survey.binade.front() == 16);
  CHECK(row.survey.binade.at(149) == 17);
  CHECK(row.survey.binade.at(276) == 18);
}

TEST_CASE("what a probe writes is what is read") {
  policy::ProbeRow row;
  row.step = 3, row.site = "a \"b\"/linear.0", row.role = policy::Role::weight, row.input = 2;
  row.quantizer = "mxfp8", row.survey.sums.count = 10, row.survey.sums.sum_e = -0.1;
  row.survey.sums.sum_x2 = 1e-300, row.survey.binade[20] = 4;
  policy::UpdateRow update;
  update.step = 5, update.parameter = "0.weight", update.state = "exp_avg", update.form = "plain";
  update.stored = {.count = 4, .lost = 1, .du = 0.5, .uu = 0.25, .ww = 16};
  update.seen = {.count = 5, .lost = 2, .du = -0.5, .uu = 1, .ww = 2};
  update.by_ulp[0] = 3, update.by_ulp[63] = 4;
  Folder folder;
  folder.with("probe.jsonl", policy::json_lines({row}, {update}));
  RunFolder run = folder.read();
  const Rows rows = rows_of(run);
  CHECK(run.notes().empty());
  REQUIRE(rows.surveys.size() == 1);
  CHECK(rows.surveys[0].site == row.site);
  CHECK(rows.surveys[0].role == row.role);
  CHECK(rows.surveys[0].input == 2);
  CHECK(rows.surveys[0].survey.sums.sum_e == -0.1);
  CHECK(rows.surveys[0].survey.sums.sum_x2 == 1e-300);
  CHECK(rows.surveys[0].survey.binade == row.survey.binade);
  REQUIRE(rows.updates.size() == 1);
  const policy::UpdateRow& read = rows.updates[0];
  CHECK(read.step == 5);
  CHECK(read.parameter == "0.weight");
  CHECK(read.state == "exp_avg");
  CHECK(read.by_ulp == update.by_ulp);
  CHECK(read.stored.du == 0.5);
  CHECK(read.seen.count == 5);
  CHECK(read.seen.du == -0.5);
}

TEST_CASE("probe lines that are none are counted, and the others read") {
  Folder folder;
  std::string text;
  const char* bad[] = {R"({"step":1,"site":"x","role":"inputs","count":1})",
                       R"({"step":-1,"site":"x","role":"input","count":1})",
                       R"({"step":1,"site":"x","role":"input","count":"1"})",
                       R"({"step":1,"site":"x","role":"input","count":1,"binades":{"128":1}})",
                       R"({"step":1,"site":"x","role":"input","count":1,"binades":{"-150":1}})",
                       R"({"step":1,"site":"x","role":"input","count":1,"binades":{"1x":1}})",
                       R"({"step":1,"site":"x","role":"input","count":1,"binades":{"":1}})",
                       R"({"step":1,"site":"x","role":"input","count":1,"binades":{"1":"1"}})",
                       R"({"step":1,"parameter":"x","by_ulp":{"24":1}})",
                       R"({"step":1,"parameter":"x","by_ulp":{"-41":1}})",
                       R"({"step":1e300,"parameter":"x"})",
                       R"({"step":1})",
                       R"([])",
                       R"({"step":1,"site":"x","role":)"};
  for (const char* line : bad) text += std::string(survey_line) + '\n' + line + '\n';
  folder.with("probe.jsonl", text);
  RunFolder run = folder.read();
  CHECK(rows_of(run).surveys.size() == std::size(bad));
  REQUIRE(run.notes().size() == 1);
  CHECK(contains(run.notes()[0], std::to_string(std::size(bad)) + " lines were skipped"));
}

TEST_CASE("cells of a sweep: the policy, and the values that are texts") {
  Folder folder;
  folder.with("metrics.jsonl", "")
      .with("cell.json", R"({"policy": "p", "axes": {"w+x": "[1, 2]", "lr": 3}})");
  CHECK(folder.read().cell().policy == "p");
  CHECK(folder.read().cell().values == std::map<std::string, std::string>{{"w+x", "[1, 2]"}});
  CHECK(folder.with("cell.json", R"({"axes": "x"})").read().cell().values.empty());
  folder.with("cell.json", "[]");
  CHECK_THROWS_AS(folder.read().cell(), FormatError);
}

TEST_CASE("resolved tables: sites, dtypes and quantizers that are texts") {
  Folder folder;
  folder.with("resolved.json", R"({"sites": [{"site": "a", "computes_in": "bf16", "roles":
      {"weight": "e4m3", "input": "mxfp8", "bias": {"format": "e4m3"}}}, {"site": ""}, {"no": 1}, 3,
      {"site": "b", "computes_in": 5, "roles": []}]})");
  const auto sites = folder.read().resolved();
  REQUIRE(sites.size() == 2);
  CHECK(sites[0].site == "a");
  CHECK(sites[0].computes_in == "bf16");
  CHECK(sites[0].roles ==
        std::vector<std::pair<std::string, std::string>>{{"input", "mxfp8"}, {"weight", "e4m3"}});
  CHECK(sites[1].site == "b");
  CHECK(sites[1].computes_in.empty());
  CHECK(sites[1].roles.empty());
  Folder bare;
  bare.with("summary.json", summary_with().dump());
  RunFolder run = bare.read();
  CHECK(run.resolved().empty());
  CHECK(metrics_of(run).empty());
  CHECK(rows_of(run).surveys.empty());
}

TEST_CASE("edited bytes of every file end in a FormatError, or in lines fewer or changed") {
  Folder folder;
  folder.with("summary.json", summary_with({{"bytes_at_peak", {{"parameter", 5}}}}).dump());
  folder.with("metrics.jsonl", "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.25}\n");
  folder.with("probe.jsonl", std::string(survey_line) + "\n" + survey_line + "\n");
  folder.with("resolved.json", R"({"sites":[{"site":"a","roles":{"input":"e4m3"}}]})");
  std::mt19937 random(11);
  folder.with("cell.json", R"({"policy":"p","axes":{"lr":"1"}})");
  for (const char* file :
       {"summary.json", "metrics.jsonl", "probe.jsonl", "resolved.json", "cell.json"}) {
    const std::string whole = read_file(folder.path / file);
    for (int i = 0; i < 200; ++i) {
      folder.with(file, mutated(whole, random));
      try {
        RunFolder run = folder.read();
        run.summary(), run.resolved(), run.cell();
        const std::size_t lines = metrics_of(run).size() + rows_of(run).surveys.size();
        CHECK(lines <= 6);  // an edit doubles at most 16 bytes: it makes no line
      } catch (const FormatError& error) {
        CHECK(contains(error.what(), "[test] " + (folder.path / file).string()));
      }
    }
    folder.with(file, whole);
  }
}

}  // namespace
}  // namespace halftone::test::run_folder_test

// Run folders with one damage each: table, report and a repeated run refuse them, or say what is
// missing. And a repeated run prints the telemetry of the first.

namespace halftone::test::damaged_run_test {
namespace {

using nlohmann::json;
using Path = std::filesystem::path;

/// Finished runs of two policies, with telemetry.
struct Runs {
  TemporaryDirectory directory{};
  Path path = directory / "small-amp-bf16-3";

  /// Runs the command; returns the table that it prints.
  std::string again() { return lab::table_of(results()); }
  std::vector<lab::RunResult> results() {
    progress.str("");
    return lab::run({.cells = lab::read_cells({"fp32", "amp-bf16"},
                                              {.workload = "small", .steps = 5, .probe = 2}),
                     .seeds = {3},
                     .out = directory.path()},
                    small(), progress);
  }
  /// Messages of the three readers.
  std::string of_run() {
    return message_of<FormatError>([&] { results(); });
  }
  std::string of_table() const {
    std::ostringstream rows;
    const std::string message =
        message_of<FormatError>([&] { lab::write_table({.paths = {path}}, rows); });
    CHECK((message.empty() || rows.str().empty()));
    return message;
  }
  std::string of_report() const {
    return message_of<FormatError>([&] { static_cast<void>(lab::report({.paths = {path}})); });
  }

  std::ostringstream progress{};
  std::string first = again();
};

TEST_CASE("every reader refuses a summary with a wrong or a missing field, and names it") {
  Runs runs;
  const std::string whole = read_file(runs.path / "summary.json");
  const std::pair<const char*, json> damages[] = {{"format", 2},
                                                  {"policy", nullptr},
                                                  {"policy_hash", "0"},
                                                  {"workload", 1},
                                                  {"seed", "zero"},
                                                  {"seed", -1},
                                                  {"steps", -6},
                                                  {"steps", 1.5},
                                                  {"lr", 0},
                                                  {"loss", "big"},
                                                  {"late_loss", true},
                                                  {"milliseconds_per_step", -1},
                                                  {"skipped_steps", "x"},
                                                  {"weights_hash", "f"},
                                                  {"order", -1},
                                                  {"probe", "2"},
                                                  {"tokens", 0.5},
                                                  {"bytes_at_peak", {{"parameter", "x"}}},
                                                  {"operands", json(3)},
                                                  {"validation_loss", "small"},
                                                  {"data", json::array()},
                                                  {"environment", 3}};
  const auto refused = [&](const char* name, const std::string& text) {
    CAPTURE(name);
    CAPTURE(text.substr(0, 60));
    write_file(runs.path / "summary.json", text);
    const std::string place = (runs.path / "summary.json").string() + ": /";
    for (const auto& [op, message] :
         {std::pair{"table", runs.of_table()}, {"report", runs.of_report()}}) {
      CHECK(message.starts_with("[" + std::string(op) + "] " + place));
      CHECK(contains(message, name));
    }
    const std::string of_run = runs.of_run();
    CHECK(of_run.starts_with("[run] " + (runs.path / "summary.json").string()));
    CHECK(contains(of_run, name));
  };
  for (const auto& [name, value] : damages) {
    json changed = json::parse(whole);
    changed[name] = value;
    refused(name, changed.dump());
  }
  for (const char* name :
       {"format", "policy", "policy_hash", "workload", "seed", "steps", "lr", "loss", "late_loss",
        "milliseconds_per_step", "skipped_steps", "weights_hash"}) {
    json changed = json::parse(whole);
    changed.erase(name);
    refused(name, changed.dump());
  }
  json earlier = json::parse(whole);  // runs of versions that had fewer fields
  for (const char* name : {"order", "tokens", "operands"}) earlier.erase(name);
  write_file(runs.path / "summary.json", earlier.dump());
  CHECK(runs.of_table().empty());
  CHECK(runs.of_report().empty());
  CHECK(runs.of_run().empty());
}

TEST_CASE("every reader refuses a policy of another hash, and a cut one") {
  Runs runs;
  const std::string whole = read_file(runs.path / "policy.json");
  for (const std::string& text :
       {whole.substr(0, whole.size() / 2), std::string(),
        std::string(R"({"halftone_policy": 1, "name": "amp-bf16", "extends": "fp32"})")}) {
    write_file(runs.path / "policy.json", text);
    for (const std::string& message : {runs.of_table(), runs.of_report(), runs.of_run()}) {
      CAPTURE(message);
      CHECK(contains(message, "] " + (runs.path / "policy.json").string() + ": "));
      CHECK(message.ends_with("remove its folder, and run it again."));
    }
  }
}

TEST_CASE("a repeated run refuses a folder without one of the run's files") {
  for (const char* name : {"policy.json", "resolved.json", "metrics.jsonl", "probe.jsonl"}) {
    CAPTURE(name);
    Runs runs;
    std::filesystem::remove(runs.path / name);
    CHECK(runs.of_run() ==
          "[run] " + (runs.path / name).string() +
              ": the file is missing, although the run is finished. Put it back, or remove the "
              "folder: then this run is done again.");
  }
}

TEST_CASE("a repeated run without checkpoints is read, and says that they are missing") {
  Runs runs;
  CHECK(runs.again() == runs.first);
  CHECK_FALSE(contains(runs.progress.str(), "is missing"));
  std::filesystem::remove_all(runs.path / "checkpoints");
  CHECK(runs.again() == runs.first);
  CHECK(contains(runs.progress.str(), (runs.path / "checkpoints").string() +
                                          " is missing: no run can start from this one.\n"));
}

TEST_CASE("table and report say which files of a finished run are missing") {
  Runs runs;
  const auto notes = [&] {
    const Captured told(std::cerr);
    CHECK(runs.of_table().empty());
    return told.text();
  };
  CHECK(notes().empty());
  CHECK_FALSE(contains(lab::report({.paths = {runs.path}}), " is missing, so "));
  for (const char* name : {"policy.json", "metrics.jsonl", "probe.jsonl", "resolved.json"}) {
    CAPTURE(name);
    std::filesystem::remove(runs.path / name);
    const std::string missing = std::string(name) + " is missing, so ";
    if (std::string_view(name) != "resolved.json") CHECK(contains(notes(), missing));
    CHECK(contains(lab::report({.paths = {runs.path}}), missing));
  }
}

TEST_CASE("a repeated run prints the telemetry of the first, from whole lines") {
  Runs runs;
  CHECK(contains(runs.first, "updates lost"));
  CHECK(contains(runs.first, "least SQNR"));
  CHECK(runs.again() == runs.first);
  CHECK(contains(runs.progress.str(), "already trained"));
  const std::string whole = read_file(runs.path / "probe.jsonl");
  write_file(runs.path / "probe.jsonl", whole + whole.substr(0, 30));  // the last line is cut off
  CHECK(runs.again() == runs.first);
  CHECK(contains(runs.progress.str(), "probe.jsonl: 1 line was skipped"));
}

TEST_CASE("a state from a folder without checkpoints is an error that says what to give") {
  Runs runs;
  std::filesystem::remove_all(runs.path / "checkpoints");
  const std::string message =
      message_of<UsageError>([&] { static_cast<void>(lab::trained_state(runs.path)); });
  CHECK(contains(message, "[run] " + runs.path.string() +
                              " has neither checkpoints/ nor manifest.json, so it has no trained "
                              "state. Give a run's folder with its checkpoints/"));
}

}  // namespace
}  // namespace halftone::test::damaged_run_test

// JSON of runs from other sources: its size is limited before it is parsed.

namespace halftone::test::json_input_test {
namespace {

using nlohmann::json;

TEST_CASE("levels and values are counted outside of texts") {
  using lab::is_within_limits;
  const std::string open(lab::most_json_levels, '['), close(lab::most_json_levels, ']');
  CHECK(is_within_limits(""));
  CHECK(is_within_limits(open + close));
  CHECK(is_within_limits(open + close + ',' + open + close));
  CHECK_FALSE(is_within_limits("[" + open + close + "]"));
  CHECK_FALSE(is_within_limits("{" + open));
  CHECK(is_within_limits("\"" + open + open + "\""));
  CHECK(is_within_limits(R"(["\"[[", ")" + open + open + R"(\\"])"));
  CHECK(is_within_limits("]]]]" + open));
  CHECK(is_within_limits(std::string(lab::most_json_values - 1, ',')));
  CHECK_FALSE(is_within_limits(std::string(lab::most_json_values, ',')));
}

TEST_CASE("hostile lines are skipped, hostile documents refused, without memory for them") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "probe.jsonl";
  write_file(path, "{\"a\": 1}\n" + std::string(std::size_t(1) << 20, '[') + "\n{\"a\": 2}\n" +
                       "{\"a\": \"" + std::string(lab::most_line_bytes, 'x') + "\"}\n");
  int taken = 0;
  CHECK(lab::each_json_line("test", path, [&](const nlohmann::json&) { return ++taken > 0; }) == 2);
  CHECK(taken == 2);
  write_file(path, "{\"a\": " + std::string(100, '[') + std::string(100, ']') + "}");
  CHECK(contains(message_of<FormatError>([&] { lab::read_json("test", path); }),
                 ": more than 64 levels of braces and brackets"));
  write_file(path, "{\"a\": 3}");
  CHECK(lab::read_json("test", path)["a"] == 3);
  std::filesystem::resize_file(path, lab::most_json_bytes + 1);
  CHECK(contains(message_of<FormatError>([&] { lab::read_json("test", path); }),
                 "At most 33554432 make sense."));
}

TEST_CASE("the value that is one too many is found wherever it is") {
  using lab::is_within_limits;
  const std::string values(lab::most_json_values - 2, ',');  // with brackets: the maximum
  CHECK(is_within_limits("[" + values + "]"));
  CHECK_FALSE(is_within_limits("[[" + values + "]]"));
  CHECK(is_within_limits("[\"" + values + values + "\"]"));
  // A string that is not closed hides the rest, and a parser refuses it.
  CHECK(is_within_limits("\"" + std::string(1000, '[')));
  CHECK(is_within_limits("\"\\"));
}

TEST_CASE("numbers: finite ones of an object, and nothing else") {
  const json object = json::parse(R"({"whole": 3, "negative": -2, "large": 18446744073709551615,
      "small": 5e-324, "text": "3", "yes": true, "none": null, "list": [3], "object": {"a": 3}})");
  CHECK(lab::number_in(object, "whole") == 3.0);
  CHECK(lab::number_in(object, "negative") == -2.0);
  CHECK(lab::number_in(object, "large") == 0x1p64);
  CHECK(lab::number_in(object, "small") == 5e-324);
  for (const char* key : {"text", "yes", "none", "list", "object", "absent", ""}) {
    CAPTURE(key);
    CHECK_FALSE(lab::number_in(object, key));
    CHECK_FALSE(lab::count_in(object, key));
  }
  CHECK_FALSE(lab::number_in(json{{"x", HUGE_VAL}}, "x"));
  CHECK_FALSE(lab::number_in(json{{"x", NAN}}, "x"));
  for (const json& other : {json(), json(3), json("x"), json::array({1})})
    CHECK_FALSE(lab::number_in(other, "x"));
}

TEST_CASE("counts: from 0 to 2^53, without a fraction") {
  const auto count = [](const json& value) { return lab::count_in(json{{"x", value}}, "x"); };
  CHECK(count(0) == 0);
  CHECK(count(7.9) == 7);
  CHECK(count(9007199254740992) == int64_t(1) << 53);
  CHECK_FALSE(count(9007199254740994));
  CHECK_FALSE(count(-1));
  CHECK_FALSE(count(-0.5));
  CHECK_FALSE(count(1e300));
}

TEST_CASE("texts, lists and objects are empty where there are none") {
  const json object = json::parse(R"({"text": "a", "list": [1, 2], "object": {"b": 1}})");
  CHECK(lab::text_in(object, "text") == "a");
  CHECK(lab::array_in(object, "list").size() == 2);
  CHECK(lab::object_in(object, "object").at("b") == 1);
  for (const char* key : {"text", "list", "object", "absent"}) {
    CAPTURE(key);
    CHECK(lab::text_in(object, key).empty() == (std::string(key) != "text"));
    CHECK(lab::array_in(object, key).empty() == (std::string(key) != "list"));
    CHECK(lab::object_in(object, key).empty() == (std::string(key) != "object"));
  }
  for (const json& other : {json(), json(3), json::array({1})}) {
    CHECK(lab::text_in(other, "x").empty());
    CHECK(lab::array_in(other, "x").is_array());
    CHECK(lab::object_in(other, "x").is_object());
  }
}

TEST_CASE("documents that are no object are refused with their path") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "x.json";
  const auto refusal = [&](std::string_view text) {
    write_file(path, text);
    const std::string message = message_of<FormatError>([&] { lab::read_json("op", path); });
    CHECK(message.starts_with("[op] " + path.string()));
    return message;
  };
  for (const char* text : {"[]", "3", "null", "\"x\"", "[{}]"}) {
    CAPTURE(text);
    CHECK(contains(refusal(text), ": not a JSON object."));
  }
  for (const std::string_view text :
       {"", "{", "{\"a\": 1,}", "{} {}", "{\"a\": NaN}", "{\"a\": 1e999}", "{\"a\": \"\xff\"}"}) {
    CAPTURE(text);
    CHECK(contains(refusal(text), ": not JSON."));
  }
  CHECK(message_of<FormatError>([&] {
          lab::read_json("op", directory / "none.json");
        }).starts_with("[op] "));
}

TEST_CASE("lines: blank ones do not count, cut and refused ones do") {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory / "x.jsonl";
  const auto read = [&](std::string_view text) {
    write_file(path, text);
    std::vector<int> seen;
    const int64_t skipped = lab::each_json_line("op", path, [&](const json& line) {
      if (!line.contains("n")) return false;
      seen.push_back(line["n"].get<int>());
      return true;
    });
    return std::pair(skipped, seen);
  };
  using Seen = std::vector<int>;
  CHECK(read("") == std::pair(int64_t(0), Seen{}));
  CHECK(read("\n \n\t\r\n") == std::pair(int64_t(0), Seen{}));
  CHECK(read("{\"n\": 1}\r\n\n{\"n\": 2}") == std::pair(int64_t(0), Seen{1, 2}));
  CHECK(read("{\"n\": 1}\n{\"n\": 2") == std::pair(int64_t(1), Seen{1}));
  CHECK(read("[1]\n{\"m\": 1}\nnull\n\xff\n{\"n\": 3}\n") == std::pair(int64_t(4), Seen{3}));
  CHECK(read("{\"n\": 1} {\"n\": 2}\n") == std::pair(int64_t(1), Seen{}));
  // The longest accepted line, and one byte more.
  const std::string frame = "{\"n\": 5, \"x\": \"\"}";
  const std::string filler(lab::most_line_bytes - frame.size(), 'x');
  CHECK(read("{\"n\": 5, \"x\": \"" + filler + "\"}").first == 0);
  CHECK(read("{\"n\": 5, \"x\": \"" + filler + "x\"}").first == 1);
}

}  // namespace
}  // namespace halftone::test::json_input_test
