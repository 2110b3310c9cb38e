// Rows of runs for other programs: parsed again, each statistic against a plain computation from
// the numbers of the probe's line.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/halftone.h>
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/run.h>
#include <halftone/lab/table.h>
#include <halftone/lab/trial.h>

#include "lab/pages.h"
#include "lab/runs.h"
#include "support.h"

namespace halftone::test::table_rows_test {
namespace {

using nlohmann::json;
using Path = std::filesystem::path;
using Cells = std::vector<std::string>;

/// Lines of cells by RFC 4180.
std::vector<Cells> parsed_csv(const std::string& text) {
  std::vector<Cells> lines;
  Cells cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '"' && i + 1 < text.size() && text[i + 1] == '"') cells.back() += c, ++i;
    else if (c == '"') quoted = !quoted;
    else if (quoted || (c != ',' && c != '\n')) cells.back() += c;
    else if (c == ',') cells.emplace_back();
    else lines.push_back(std::move(cells)), cells = Cells(1);
  }
  CHECK_FALSE(quoted);
  CHECK(cells == Cells(1));  // the last line has an end
  return lines;
}

struct Row {
  std::string run, policy, workload, seed, step, site, role, input, statistic, value;
};

std::vector<Row> all_rows_of(const Path& run) {
  std::ostringstream text;
  const Captured notes(std::cerr);
  lab::write_table({.paths = {run}}, text);
  std::vector<Cells> lines = parsed_csv(text.str());
  CHECK(lines.at(0) == Cells{"run", "policy", "workload", "seed", "step", "site", "role", "input",
                             "statistic", "value"});
  std::vector<Row> rows;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const Cells& c = lines[i];
    REQUIRE(c.size() == 10);
    rows.push_back({c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7], c[8], c[9]});
  }
  return rows;
}

/// Returns the rows without those of the run as a whole.
std::vector<Row> rows_of(const Path& run) {
  std::vector<Row> rows = all_rows_of(run);
  std::erase_if(rows, [](const Row& row) { return row.role == "run"; });
  return rows;
}

std::vector<json> objects_of(const Path& run) {
  std::ostringstream text;
  const Captured notes(std::cerr);
  lab::write_table({.paths = {run}, .json_lines = true}, text);
  std::vector<json> objects;
  std::istringstream lines(text.str());
  for (std::string line; std::getline(lines, line);) objects.push_back(json::parse(line));
  std::erase_if(objects, [](const json& object) { return object["role"] == "run"; });
  return objects;
}

/// Returns values by statistic, from rows that all belong to one site.
std::map<std::string, double> values_of(const std::vector<Row>& rows) {
  std::map<std::string, double> values;
  for (const Row& row : rows)
    values[row.statistic] = row.value.empty() ? NAN : std::stod(row.value);
  CHECK(values.size() == rows.size());  // each statistic once
  return values;
}

struct Folder {
  TemporaryDirectory directory{};
  Path path = directory / "run";
  explicit Folder(const std::string& probe, const std::string& metrics = "",
                  const std::string& summary = R"({"policy": "p", "seed": 4})") {
    std::filesystem::create_directory(path);
    write_file(path / "summary.json", summary_with(json::parse(summary)).dump());
    if (!probe.empty()) write_file(path / "probe.jsonl", probe + "\n");
    if (!metrics.empty()) write_file(path / "metrics.jsonl", metrics + "\n");
  }
};

constexpr const char* survey =
    R"({"step":50,"site":"0/linear.0","role":"weight","input":1,"quantizer":"e4m3","scale":64,)"
    R"("ideal":32,"loss_scale":2,"count":1000,"zeros":100,"infinite":6,"nan":4,"to_zero":90,)"
    R"("subnormal":45,"saturated":20,"to_infinity":10,"changed":700,"sum_x2":2475,"sum_e2":24.75,)"
    R"("sum_e":1.96,"sum_abs_x":980,"sum_relative":44,"largest":8,"smallest":0.001,)"
    R"("binades":{"-40":80,"-25":10,"-20":100,"-10":600,"8":50,"9":30,"16":20}})";

TEST_CASE("counts and sums of a survey are in its rows as they are") {
  const auto rows = rows_of(Folder(survey).path);
  const auto values = values_of(rows);
  const json line = json::parse(survey);
  for (const char* name :
       {"count", "zeros", "infinite", "nan", "to_zero", "subnormal", "saturated", "to_infinity",
        "changed", "largest", "smallest", "scale", "ideal", "loss_scale"}) {
    CAPTURE(name);
    // "nan" is a missing value for pandas.
    const std::string statistic = name == std::string("nan") ? "not_a_number" : name;
    CHECK(values.at(statistic) == line.at(name).get<double>());
  }
  for (const Row& row : rows) {
    CHECK(row.run == "run");
    CHECK(row.policy == "p");
    CHECK(row.seed == "4");
    CHECK(row.step == "50");
    CHECK(row.site == "0/linear.0");
    CHECK(row.role == "weight");
    CHECK(row.input == "1");
  }
}

TEST_CASE("derived statistics follow from the counts and sums") {
  const auto values = values_of(rows_of(Folder(survey).path));
  const auto is = [&](const char* name, double wanted) {
    CAPTURE(name);
    CHECK(values.at(name) == doctest::Approx(wanted));
  };
  is("underflow", 90.0 / 900);
  is("underflow_with_zeros", 90.0 / 1000);
  is("saturation", 20.0 / 1000);
  is("sqnr", 20);  // 10 log10(2475 / 24.75)
  is("bias", 1.96 / 980);
  // 980 errors: mean 0.002, variance (24.75 - 980 * 0.002^2) / 979.
  is("bias_t", 0.002 / std::sqrt((24.75 - 980 * 0.002 * 0.002) / 979 / 980));
  is("mean_relative_error", 44.0 / 880);  // without zeros, infinities and NaN, before or after
  is("root_mean_square", std::sqrt(2475.0 / 990));
}

TEST_CASE("parts of an error, norm over noise and flips are rows; older files have no parts") {
  const auto old = rows_of(Folder(survey).path);
  CHECK(std::ranges::find(old, "squared_error.grid", &Row::statistic) == old.end());
  CHECK(std::ranges::find(old, "squared_error", &Row::statistic)->value == "24.75");
  json line = json::parse(survey);
  // Numbers 1 and 3 became 0 and 4: x^2 10, x e -1 + 3, so a - 1 is 1/5.
  line["sum_x2"] = 10, line["sum_e2"] = 2, line["dead_x2"] = 1, line["grid_x2"] = 9;
  line["grid_xe"] = 3, line["grid_e2"] = 1, line["role"] = "grad_output";
  line["flips"] = {{"count", 50}, {"flipped", 10}, {"returned", 4}};
  const auto values = values_of(rows_of(Folder(line.dump()).path));
  CHECK(values.at("squared_error") == 2);
  CHECK(values.at("squared_error.scale") == doctest::Approx(0.4));
  CHECK(values.at("squared_error.dead_zone") == doctest::Approx(1.44));
  CHECK(values.at("squared_error.grid") == doctest::Approx(0.16));  // (4 - 1.2 * 3)^2
  CHECK(values.at("squared_error.saturation") == 0);
  CHECK(values.at("norm_to_noise") == doctest::Approx(std::sqrt(5)));
  CHECK(values.at("flipped_share") == doctest::Approx(0.2));
  CHECK(values.at("oscillation") == doctest::Approx(0.08));
  line["role"] = "weight";
  CHECK_FALSE(values_of(rows_of(Folder(line.dump()).path)).contains("norm_to_noise"));
}

TEST_CASE("what formats would lose follows from the binades") {
  const auto values = values_of(rows_of(Folder(survey).path));
  const double all = 80 + 10 + 100 + 600 + 50 + 30 + 20;
  const auto is = [&](const char* name, double wanted) {
    CAPTURE(name);
    CHECK(values.at(name) == doctest::Approx(wanted / all));
  };
  // f16's smallest number is 2^-24, and half of it and less becomes 0; the largest is below 2^16.
  is("would_underflow_f16", 80);
  is("would_overflow_f16", 20);
  // e5m2: 2^-16 and below 2^16. e4m3: 2^-9 and 448, in [2^8, 2^9).
  is("would_underflow_e5m2", 80 + 10 + 100);
  is("would_overflow_e5m2", 20);
  is("would_underflow_e4m3", 80 + 10 + 100);
  is("would_overflow_e4m3", 30 + 20);
}

TEST_CASE("what nothing rounds has no statistics of rounding, and no scale that none gave") {
  json line = json::parse(survey);
  line["quantizer"] = "", line["scale"] = 0;
  const auto values = values_of(rows_of(Folder(line.dump()).path));
  for (const char* name : {"underflow", "sqnr", "bias", "changed", "to_zero", "scale", "ideal"}) {
    CAPTURE(name);
    CHECK_FALSE(values.contains(name));
  }
  for (const char* name : {"count", "root_mean_square", "would_underflow_e4m3"})
    CHECK(values.contains(name));
}

TEST_CASE("numbers that cannot be said are empty cells, infinite ones are inf") {
  const char* const line = R"({"step":1,"site":"s","role":"input","quantizer":"q","count":5,)"
                           R"("zeros":5,"sum_x2":0})";
  const auto rows = rows_of(Folder(line).path);
  const auto value = [&](const char* name) {
    return std::ranges::find(rows, name, &Row::statistic)->value;
  };
  CHECK(value("underflow") == "");  // of no numbers except 0
  CHECK(value("sqnr") == "");
  CHECK(value("saturation") == "0");
  CHECK(value("would_underflow_f16") == "");
  json exact = json::parse(survey);
  exact["sum_e2"] = 0;
  const auto others = rows_of(Folder(exact.dump()).path);
  CHECK(std::ranges::find(others, "sqnr", &Row::statistic)->value == "inf");
  for (const json& object : objects_of(Folder(exact.dump()).path))
    if (object["statistic"] == "sqnr") CHECK(object["value"].is_null());
}

constexpr const char* update =
    R"({"step":3,"parameter":"0.weight","form":"plain","stored":{"count":8,"lost":2,"du":3,"uu":4,)"
    R"("ww":100},"seen":{"count":8,"lost":6,"du":-1,"uu":9,"ww":25},"by_ulp":{"-3":2}})";

TEST_CASE("updates: as they are stored, and as forward sees them") {
  const auto rows = rows_of(Folder(update).path);
  REQUIRE(rows.size() == 10);
  std::map<std::string, std::vector<Row>> by_role;
  for (const Row& row : rows) {
    CHECK(row.site == "0.weight");
    CHECK(row.step == "3");
    by_role[row.role].push_back(row);
  }
  REQUIRE(by_role.size() == 2);
  const auto stored = values_of(by_role.at("update")), seen = values_of(by_role.at("update.seen"));
  CHECK(stored.at("count") == 8);
  CHECK(stored.at("lost") == 2);
  CHECK(stored.at("lost_share") == 0.25);
  CHECK(stored.at("effective_descent") == 0.75);
  CHECK(stored.at("update_ratio") == doctest::Approx(std::sqrt(4.0 / 100)));
  CHECK(seen.at("lost_share") == 0.75);
  CHECK(seen.at("effective_descent") == doctest::Approx(-1.0 / 9));
  CHECK(seen.at("update_ratio") == doctest::Approx(3.0 / 5));
}

TEST_CASE("states of the optimizer have a role of their own, and only what is stored") {
  json line = json::parse(update);
  line["state"] = "exp_avg_sq";
  const auto rows = rows_of(Folder(line.dump()).path);
  CHECK(rows.size() == 5);
  for (const Row& row : rows) CHECK(row.role == "update.state.exp_avg_sq");
}

TEST_CASE("metrics: a row for each number of a line but its step and its time") {
  const auto rows =
      rows_of(Folder("", R"({"step":1,"time":5,"train/loss":0.1,"val/acc":1e-7,"name":"x"})"
                         "\n"
                         R"({"step":1e300,"a":3})")
                  .path);
  REQUIRE(rows.size() == 3);
  const std::map<std::string, std::string> wanted{
      {"train/loss", "0.1"}, {"val/acc", "1e-07"}, {"a", "3"}};
  for (const Row& row : rows) {
    CHECK(row.site.empty());
    CHECK(row.role.empty());
    CHECK(wanted.at(row.statistic) == row.value);
    CHECK(row.step == (row.statistic == "a" ? "0" : "1"));
  }
}

TEST_CASE("the run as a whole: loss, time, bytes, and conditions on the statistic") {
  const Folder folder("", R"({"step":1,"train/loss":3})",
                      R"({"policy":"p","seed":4,"workload":"w","steps":20,"loss":0.5,"lr":0.1,)"
                      R"("milliseconds_per_step":7,"bytes_at_peak":{"parameter":64}})");
  std::map<std::string, std::string> values;
  for (const Row& row : all_rows_of(folder.path)) {
    CHECK(row.workload == "w");
    if (row.role != "run") continue;
    values[row.statistic] = row.value;
    CHECK(row.step == "20");
  }
  CHECK(values == std::map<std::string, std::string>{{"loss", "0.5"},
                                                     {"late_loss", "1"},
                                                     {"skipped_steps", "0"},
                                                     {"lr", "0.1"},
                                                     {"milliseconds_per_step", "7"},
                                                     {"bytes_at_peak.parameter", "64"}});
  const Captured notes(std::cerr);
  std::ostringstream text;
  lab::write_table({.paths = {folder.path}, .only = {"lr", "train/loss"}}, text);
  CHECK(parsed_csv(text.str()).size() == 3);
}

TEST_CASE("the rows with the largest values, the largest first") {
  const Folder folder("", R"({"step":1,"a":3})"
                          "\n"
                          R"({"step":2,"a":7})"
                          "\n"
                          R"({"step":3,"a":5,"b":9})");
  const Captured notes(std::cerr);
  std::ostringstream text;
  lab::write_table({.paths = {folder.path}, .only = {"a"}, .top = 2}, text);
  const auto rows = parsed_csv(text.str());
  REQUIRE(rows.size() == 3);
  CHECK(rows[1][9] == "7");
  CHECK(rows[2][9] == "5");
}

TEST_CASE("a statistic that no run has is an error without rows, with the nearest name") {
  const Folder folder(survey, R"({"step":1,"train/loss":3})");
  const auto refusal = [&](const char* name) {
    const Captured notes(std::cerr);
    std::ostringstream text;
    const std::string message = message_of<UsageError>([&] {
      lab::write_table({.paths = {folder.path}, .only = {"loss", name}}, text);
    });
    CHECK(text.str().empty() != message.empty());
    return message;
  };
  CHECK(refusal("train/los") ==
        "[--statistic] no row of these runs has the statistic \"train/los\". Did you mean "
        "\"train/loss\"?");
  CHECK(contains(refusal("nosuch"), "\"nosuch\". Known: "));
  CHECK(contains(refusal("nosuch"), ", sqnr, "));
  CHECK(refusal("validation_loss").empty());  // a result, although this run had no such data
}

TEST_CASE("numbers have all digits that they need") {
  const double numbers[] = {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, 123456789.125, -0.5};
  json line{{"step", 1}};
  for (std::size_t i = 0; i < std::size(numbers); ++i) line["n" + std::to_string(i)] = numbers[i];
  const Folder folder("", line.dump());
  for (const Row& row : rows_of(folder.path))
    CHECK(std::strtod(row.value.c_str(), nullptr) == numbers[row.statistic[1] - '0']);
  for (const json& object : objects_of(folder.path))
    CHECK(object["value"].get<double>() ==
          numbers[object["statistic"].get<std::string>()[1] - '0']);
}

TEST_CASE("names with commas, quotes and line ends come back as they are, in both forms") {
  const std::string odd = "a,\"b\"\n c\\u0007';";
  json survey_row = json::parse(survey), update_row = json::parse(update), metrics{{"step", 1}};
  survey_row["site"] = odd, update_row["parameter"] = odd, update_row["state"] = odd;
  metrics[odd] = 2;
  const Folder folder(survey_row.dump() + "\n" + update_row.dump(), metrics.dump(),
                      json{{"policy", odd}, {"seed", 1}}.dump());
  const auto rows = rows_of(folder.path);
  const auto objects = objects_of(folder.path);
  REQUIRE(rows.size() == objects.size());
  int sites = 0, roles = 0, statistics = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(rows[i].policy == odd);
    CHECK(objects[i]["policy"] == odd);
    CHECK(objects[i]["site"] == rows[i].site);
    CHECK(objects[i]["role"] == rows[i].role);
    CHECK(objects[i]["statistic"] == rows[i].statistic);
    sites += rows[i].site == odd, roles += rows[i].role == "update.state." + odd;
    statistics += rows[i].statistic == odd;
  }
  CHECK(sites > 5);
  CHECK(roles == 5);
  CHECK(statistics == 1);
}

TEST_CASE("both forms say the same") {
  const Folder folder(std::string(survey) + "\n" + update, R"({"step":2,"loss":0.5})");
  const auto rows = rows_of(folder.path);
  const auto objects = objects_of(folder.path);
  REQUIRE(rows.size() == objects.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(objects[i].size() == 10);
    CHECK(objects[i]["run"] == rows[i].run);
    CHECK(objects[i]["seed"] == 4);
    CHECK(objects[i]["step"] == std::stoll(rows[i].step));
    CHECK(objects[i]["input"] == std::stoll(rows[i].input));
    CHECK(objects[i]["value"] == std::stod(rows[i].value));
  }
}

TEST_CASE("a run without a summary has neither policy nor seed, and is told of broken lines") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "run");
  write_file(directory / "run/metrics.jsonl", "{\"step\":1,\"loss\":2}\n{\"step\":");
  for (const Row& row : rows_of(directory / "run")) {
    CHECK(row.policy.empty());
    CHECK(row.seed.empty());
  }
  for (const json& object : objects_of(directory / "run")) CHECK(object["seed"].is_null());
  const Captured notes(std::cerr);
  std::ostringstream text;
  lab::write_table({.paths = {directory / "run"}}, text);
  CHECK(contains(notes.text(), "metrics.jsonl: 1 line was skipped"));
}

TEST_CASE("a table goes to a file, whole, or not at all") {
  const Folder folder("", R"({"step":1,"loss":2})");
  const Path out = folder.directory / "rows.csv";
  const Captured notes(std::cerr);
  CHECK(lab::run_table({.paths = {folder.path}, .output = out}) == 0);
  CHECK(parsed_csv(read_file(out)).size() == 7);  // the head, five results and a metric
  CHECK_FALSE(message_of<Error>([&] {
                lab::run_table({.paths = {folder.directory / "none"}, .output = out});
              }).empty());
  CHECK(parsed_csv(read_file(out)).size() == 7);  // the head, five results and a metric
  const Captured printed(std::cout);
  CHECK(lab::run_table({.paths = {folder.path}}) == 0);
  CHECK(printed.text() == read_file(out));
}

}  // namespace
}  // namespace halftone::test::table_rows_test

// The table of trainings: its cells against plain computations from the same numbers.

namespace halftone::test::run_table_test {
namespace {

using lab::RunResult;

RunResult result(const std::string& policy, uint64_t seed, double loss, double milliseconds = 1) {
  return {.policy = policy,
          .seed = seed,
          .loss = loss,
          .milliseconds = milliseconds,
          .least_sqnr = std::numeric_limits<double>::infinity()};
}

/// A result of a run with telemetry.
RunResult watched(const std::string& policy, uint64_t seed, double underflow, std::string site,
                  double sqnr, std::string noisy) {
  RunResult r = result(policy, seed, 1);
  r.worst_underflow = underflow, r.worst_site = std::move(site);
  r.least_sqnr = sqnr, r.least_sqnr_site = std::move(noisy);
  return r;
}

Columns columns_of(const std::vector<RunResult>& runs) { return Columns(lab::table_of(runs)); }

TEST_CASE("a line per policy in the order of first meeting, the mean of its losses in it") {
  const Columns table = columns_of({result("b", 0, 1), result("a", 0, 4), result("b", 1, 2),
                                    result("a", 1, 8), result("b", 2, 6), result("a", 2, 0)});
  REQUIRE(table.rows() == 2);
  CHECK(table.at(0, "policy") == "b");
  CHECK(table.at(1, "policy") == "a");
  CHECK(table.at(0, "loss") == "3");
  CHECK(table.at(1, "loss") == "4");
}

TEST_CASE("differences are paired by seed: their mean and Student's interval") {
  const std::vector<double> base{1.0, 2.0, 4.0}, other{1.1, 2.4, 4.2};
  std::vector<RunResult> runs;
  for (std::size_t i = 0; i < 3; ++i)
    runs.push_back(result("base", i, base[i])), runs.push_back(result("other", i, other[i]));
  // Shares 0.1, 0.2, 0.05: mean 0.35 / 3, s^2 = (0.1^2 + 0.2^2 + 0.05^2 - 3 mean^2) / 2.
  const double mean = 0.35 / 3, variance = (0.01 + 0.04 + 0.0025 - 3 * mean * mean) / 2;
  const std::string wanted =
      lab::percent(mean) + " +- " + lab::percent(4.30265 * std::sqrt(variance / 3));
  const Columns table = columns_of(runs);
  CHECK(table.at(1, "against base, 95 %") == wanted);
  CHECK(table.at(0, "against base, 95 %") == "");
  // The pairs are the same in any order of runs.
  std::swap(runs[1], runs[5]);
  CHECK(columns_of(runs).at(1, "against base, 95 %") == wanted);
  std::swap(runs[0], runs[4]);
  CHECK(columns_of(runs).at(1, "against base, 95 %") == wanted);
}

TEST_CASE("seeds that one of two policies has alone are in no pair") {
  const Columns table =
      columns_of({result("base", 0, 1), result("base", 2, 8), result("other", 0, 1.5),
                  result("other", 1, 100), result("other", 3, 100), result("other", 2, 8)});
  // Shares 0.5 and 0: mean 0.25, s = 0.5 / sqrt(2), t(1) = 12.706.
  CHECK(table.at(1, "against base, 95 %") == "25.0 % +- " + lab::percent(12.7062 * 0.25));
  // Without a pair the column is empty, and empty columns are not printed.
  CHECK_FALSE(columns_of({result("base", 0, 1), result("other", 1, 2)}).has("against base, 95 %"));
}

TEST_CASE("one seed has a difference without an interval") {
  const Columns table = columns_of({result("base", 0, 2), result("other", 0, 1)});
  CHECK(table.at(1, "against base, 95 %") == "-50.0 %");
}

TEST_CASE("remarks: too few seeds for half a percent, one seed") {
  const auto pair = [](uint64_t seed, double loss) {
    return std::vector{result("base", seed, 1), result("other", seed, loss)};
  };
  std::vector<RunResult> runs = pair(0, 1.01);
  CHECK(lab::remarks_on(runs).starts_with("other: one seed gives no interval."));
  for (const RunResult& r : pair(1, 1.03)) runs.push_back(r);
  // Half width t(1) 0.01414 / sqrt(2) = 12.7 %; (12.7062 0.014142 / 0.005)^2 = 1,292 pairs.
  CHECK(lab::remarks_on(runs).starts_with(
      "other: +- 12.7 %, too few seeds for 0.5 %: about 1292 needed"));
  std::vector<RunResult> equal = pair(0, 1.01);
  for (const RunResult& r : pair(1, 1.0101)) equal.push_back(r);
  CHECK(lab::remarks_on(equal).empty());
  CHECK(lab::remarks_on({}).empty());
}

TEST_CASE("times are medians, skipped steps are sums") {
  std::vector<RunResult> runs{result("a", 0, 1, 9), result("a", 1, 1, 1), result("a", 2, 1, 2)};
  runs[0].skipped = 2, runs[2].skipped = 5;
  const Columns table = columns_of(runs);
  CHECK(table.at(0, "ms/step") == "2");
  CHECK(table.at(0, "skipped") == "7");
}

TEST_CASE("updates of all runs are added before their share is taken") {
  std::vector<RunResult> runs{result("a", 0, 1), result("a", 1, 1), result("b", 0, 1)};
  runs[0].updates.count = 100, runs[0].updates.lost = 50;
  runs[1].updates.count = 300, runs[1].updates.lost = 0;
  const Columns table = columns_of(runs);
  CHECK(table.at(0, "updates lost") == "12.5 %");  // 50 of 400, and not the mean of 50 % and 0 %
  CHECK(table.at(1, "updates lost") == "");
}

TEST_CASE("the worst of all seeds is shown with its place, and nothing without telemetry") {
  const Columns table = columns_of(
      {watched("a", 0, 0.25, "first", 30, "third"), watched("a", 1, 0.5, "second", 20.04, "fourth"),
       watched("a", 2, 0.125, "third", 40, "fifth"), result("b", 0, 1)});
  CHECK(table.at(0, "worst underflow") == "50.0 %");
  CHECK(table.cell(0, 6) == "second");
  CHECK(table.at(0, "least SQNR") == "20.0 dB");
  CHECK(table.cell(0, 8) == "fourth");
  CHECK(table.at(1, "worst underflow") == "");
  CHECK(table.at(1, "least SQNR") == "");
}

TEST_CASE("a run that diverged is nan, and does not hide the others") {
  const Columns table = columns_of(
      {result("a", 0, 1), result("a", 1, std::nan("")), result("b", 0, 2), result("b", 1, 2)});
  CHECK(table.at(0, "loss") == "nan");
  CHECK(table.at(1, "loss") == "2");
}

TEST_CASE("run refuses what is no run before it trains") {
  std::ostringstream progress;
  const auto refused = [&](const std::vector<std::string>& policies,
                           const std::vector<uint64_t>& seeds = {0}, int64_t steps = 300,
                           int64_t probe = 0) {
    return message_of<UsageError>([&] {
      const lab::Setup setup{.workload = "mlp_tiny", .steps = steps, .probe = probe};
      lab::run({.cells = lab::read_cells(policies, setup), .seeds = seeds}, {}, progress);
    });
  };
  CHECK(contains(refused({}), "[run] 0 policies, 1 seeds"));
  CHECK(contains(refused({"fp32"}, {}), "1 policies, 0 seeds"));
  CHECK(contains(refused({"fp32"}, {0}, 0), "0 steps"));
  CHECK(contains(refused({"fp32"}, {0}, 1, -1), "a probe every -1"));
  CHECK(contains(refused({"fp32", "fp32"}), "the policy fp32 is given twice"));
  CHECK(contains(refused({"fp32"}, {1, 2, 1}), "a seed is given twice"));
  CHECK(contains(refused({"fp23"}), "fp23"));
  CHECK(progress.str().empty());
}

}  // namespace
}  // namespace halftone::test::run_table_test

// Numbers and tables as experiments print them, and settings that experiments share.

namespace halftone::test::text_table_test {
namespace {

std::string text_of(const lab::Table& table) {
  std::ostringstream text;
  text << table;
  return text.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST_CASE("numbers have significant digits, in the shorter of both notations") {
  CHECK(lab::number(0.0031) == "0.0031");
  CHECK(lab::number(0.000045) == "4.5e-05");
  CHECK(lab::number(123456) == "1.235e+05");
  CHECK(lab::number(123456, 6) == "123456");
  CHECK(lab::number(2.0 / 3, 3) == "0.667");
  CHECK(lab::number(-0.5) == "-0.5");
  CHECK(lab::number(0) == "0");
  CHECK(lab::number(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(lab::number(std::nan("")) == "nan");
}

TEST_CASE("digits after the point, and shares in percent") {
  CHECK(lab::fixed(2.0 / 3, 3) == "0.667");
  CHECK(lab::fixed(-2, 0) == "-2");
  CHECK(lab::fixed(1e20, 1) == "100000000000000000000.0");
  CHECK(lab::fixed(std::numeric_limits<double>::max(), 2).size() < 64);
  CHECK(lab::percent(0.1234) == "12.3 %");
  CHECK(lab::percent(1) == "100.0 %");
  CHECK(lab::percent(-0.005) == "-0.5 %");
}

TEST_CASE("the first column is to the left, all others are to the right, with equal widths") {
  lab::Table table({"head", "x", "wide head"});
  table.row({"a", "12345", "1"});
  table.row({"longest", "1", "2"});
  const auto lines = lines_of(text_of(table));
  REQUIRE(lines.size() == 3);
  for (const std::string& line : lines) {
    CHECK(line.starts_with("  "));
    CHECK(line.size() == lines[0].size());
    CHECK(line.back() != ' ');
  }
  // 2 + 7 (longest) + 2 + 5 (12345) + 2 + 9 (wide head)
  CHECK(lines[0].size() == 27);
  CHECK(lines[1].find("12345") + 5 == lines[2].rfind("1") + 1);
}

TEST_CASE("what is written into a table is read back cell by cell") {
  lab::Table table({"site", "", "loss", "two words"});
  const std::vector<std::vector<std::string>> rows{
      {"a b", "x", "1", ""}, {"", "y", "", "2 %"}, {"c", "", "-3.5", "a, b and c"}};
  for (const auto& row : rows) table.row(row);
  const Columns read(text_of(table));
  REQUIRE(read.columns() == 4);
  REQUIRE(read.rows() == 3);
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 4; ++j) CHECK(read.cell(i, j) == rows[std::size_t(i)][std::size_t(j)]);
  CHECK(read.at(2, "loss") == "-3.5");
}

TEST_CASE("rows may be shorter or longer than the heads") {
  lab::Table table({"a", "b"});
  table.row({"only"});
  table.row({"1", "2", "3"});
  const auto lines = lines_of(text_of(table));
  REQUIRE(lines.size() == 3);
  CHECK(lines[1].starts_with("  only"));
  CHECK(lines[2].ends_with("3"));
}

TEST_CASE("cells from files cannot move the cursor or begin lines") {
  lab::Table table({"name", "x"});
  table.row({"\x1b[2J\n\r", "\xff"});
  const std::string text = text_of(table);
  CHECK(lines_of(text).size() == 2);
  CHECK(std::ranges::none_of(text, [](char c) { return c == '\x1b' || c == '\r' || c == '\xff'; }));
}

// --- findings

TEST_CASE("a bar holds at its border and misses beyond it") {
  std::ostringstream text;
  lab::Findings found(text);
  found.within("x", 1, 1, 2), found.within("x", 2, 1, 2);
  found.at_least("x", 1, 1), found.at_most("x", 1, 1), found.exactly("x", 0.1, 0.1);
  CHECK(found.missed() == 0);
  const double above = std::nextafter(2.0, 3.0), below = std::nextafter(1.0, 0.0);
  found.within("x", above, 1, 2), found.within("x", below, 1, 2);
  found.at_least("x", below, 1), found.at_most("x", std::nextafter(1.0, 2.0), 1);
  found.exactly("x", 0.1 + 0.2, 0.3);
  CHECK(found.missed() == 5);
  CHECK(found.checked() == 10);
  found.equal("x", "", "a"), found.different("x", "a", "b");
  CHECK(found.missed() == 6);
  CHECK(lines_of(text.str()).size() == 12);
}

TEST_CASE("findings carry a table and whether minutes may be spent") {
  std::ostringstream text;
  lab::Findings quick(text), thorough(text, true);
  CHECK_FALSE(quick.thorough());
  CHECK(thorough.thorough());
  quick.out() << "a table\n";
  CHECK(text.str() == "a table\n");
  CHECK(quick.checked() == 0);
}

// --- settings of experiments

TEST_CASE("a policy in a line is the policy file of these words") {
  const amp::Policy strategy = lab::policy_of("mine", "amp-bf16", R"("seed": 7)");
  CHECK(strategy.name == "mine");
  CHECK(strategy.autocast == bf16);
  CHECK(strategy.seed == 7);
  CHECK(lab::policy_of("bare", "fp32", "").name == "bare");
  CHECK_FALSE(message_of<Error>([] { lab::policy_of("x", "fp32", "\"sede\": 1"); }).empty());
}

TEST_CASE("hashes of tensors see bits, shapes, dtypes and the order, and nothing else") {
  const Tensor x = from_vector<float>({1, 2, 3, 4}, {2, 2}), y = from_vector<float>({5}, {1});
  const auto hash = [](std::vector<Tensor> tensors) { return lab::hash_of(tensors); };
  const std::string whole = hash({x, y});
  CHECK(whole.size() == 16);
  CHECK(whole.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(hash({x.clone(), y.clone()}) == whole);
  CHECK(hash({y, x}) != whole);
  CHECK(hash({x}) != whole);
  CHECK(hash({views::reshaped(x, {4}), y}) != whole);
  CHECK(hash({x.to(bf16), y}) != whole);
  CHECK(hash({from_vector<float>({1, 2, 3, std::nextafter(4.0f, 5.0f)}, {2, 2}), y}) != whole);
  CHECK(hash({from_vector<float>({0.0f}, {1})}) != hash({from_vector<float>({-0.0f}, {1})}));
  // The same numbers through other strides.
  const Tensor turned = views::transpose(from_vector<float>({1, 3, 2, 4}, {2, 2}), 0, 1);
  CHECK(hash({turned, y}) == whole);
}

TEST_CASE("root mean square and signal to noise by hand") {
  CHECK(lab::root_mean_square(std::array{3.0, -4.0}) == doctest::Approx(std::sqrt(12.5)));
  CHECK(lab::root_mean_square(std::array{-2.0, 2.0, 2.0}) == 2);
  CHECK(std::isnan(lab::root_mean_square({})));
  const Tensor x = from_vector<float>({3, 4}, {2});
  // sum x^2 = 25, sum of squared errors 0.25: 20 dB.
  CHECK(lab::signal_to_noise(x, from_vector<float>({3, 4.5}, {2})) == doctest::Approx(20));
  CHECK(lab::signal_to_noise(x, from_vector<float>({8, 4}, {2})) == doctest::Approx(0));
  CHECK(std::isinf(lab::signal_to_noise(x, x)));
}

TEST_CASE("a model of weights alone has that one parameter, and gradients that are written") {
  lab::Weights model(from_vector<float>({1, 2}, {2}));
  const auto named = model.named_parameters();
  REQUIRE(named.size() == 1);
  CHECK(named.front().first == "w");
  CHECK(named.front().second.to_vector<float>() == std::vector<float>{1, 2});
}

}  // namespace
}  // namespace halftone::test::text_table_test
