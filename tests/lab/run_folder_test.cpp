// Folders of runs, read again: every field is read, and hostile files give notes and
// FormatErrors.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include <halftone/lab/run_folder.h>

#include "lab/run_files/summaries.h"
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
