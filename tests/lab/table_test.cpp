// Rows of runs for other programs: parsed again, each statistic against a plain computation from
// the numbers of the probe's line.
#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/lab/commands/table.h>

#include "lab/captured.h"
#include "lab/run_files/summaries.h"
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
        "[--where] no row of these runs has the statistic \"train/los\". Did you mean "
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
