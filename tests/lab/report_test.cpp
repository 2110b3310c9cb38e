// The report of folders that this file writes: complete, large and damaged ones.
#include <array>
#include <cmath>
#include <map>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/halftone.h>
#include <halftone/lab/draw.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/report/page.h>
#include <halftone/lab/report/report.h>
#include <halftone/lab/run.h>
#include <halftone/lab/table.h>

#include "lab/pages.h"
#include "lab/runs.h"
#include "pages.h"
#include "support.h"

namespace halftone::test::report_test {
namespace {

using lab::report;
using Path = std::filesystem::path;

std::string survey_line(int step, const std::string& site, const std::string& role, int lost) {
  std::ostringstream line;
  line << R"({"step":)" << step << R"(,"site":")" << site << R"(","role":")" << role
       << R"(","quantizer":"e4m3 history 16","scale":64,"ideal":)" << 16 * (step + 1)
       << R"(,"loss_scale":1,"count":1000,"zeros":100,"to_zero":)" << lost
       << R"(,"subnormal":5,"saturated":2,"changed":700,"binades":{"-9":400,"-8":500},)"
       << R"("sum_x2":0.5,"sum_e2":0.0005,"sum_e":0.01,"sum_abs_x":9,"sum_relative":30,)"
       << R"("largest":0.0078,"smallest":0.002,"dead_x2":0.0001,"grid_x2":0.4999,)"
       << R"("grid_xe":0.0001,"grid_e2":0.0004})" << '\n';
  return line.str();
}

constexpr const char* update_line =
    R"({"step":0,"parameter":"0.weight","form":"plain","dtype":"bf16",)"
    R"("stored":{"count":100,"lost":25,"du":0.5,"uu":1,"ww":100},)"
    R"("seen":{"count":100,"lost":50,"du":0.25,"uu":1,"ww":100},"by_ulp":{"-3":25,"2":75}})"
    "\n";

/// A run as `halftone-lab run` writes it; quoted texts are copied into JSON unchanged.
Path write_run(const TemporaryDirectory& directory, const std::string& policy, int seed,
               double loss, int sites = 3, const std::string& site_name = "layers.") {
  const Path folder = directory / (policy + "-" + std::to_string(seed));
  std::filesystem::create_directories(folder);
  std::ostringstream summary, metrics, probe, resolved;
  write_file(folder / "policy.json",
             R"({"halftone_policy":1,"name":")" + policy + R"(","extends":"fp32"})");
  summary
      << R"({"format":1,"policy":")" << policy << R"(","policy_hash":")"
      << policy::hash(policy::read(folder / "policy.json"))
      << R"(","weights_hash":"00000000000000ff","resolved_hash":"0f0000000000000)" << policy.size()
      << R"(","workload":"small","seed":)" << seed << R"(,"steps":20,"lr":0.001,"loss":)" << loss
      << R"(,"late_loss":1,"milliseconds_per_step":1.5,"skipped_steps":1,"environment":"a machine",)"
      << R"("bytes_at_peak":{"parameter":1048576,"activation":4194304,"gradient":0}})";
  for (int step = 1; step <= 20; ++step)
    metrics << R"({"step":)" << step << R"(,"train/loss":)" << loss + 1.0 / step
            << R"(,"train/loss_scale":)" << (step < 9 ? 65536 : 32768)
            << R"(,"train/skipped_steps":)" << (step < 9 ? 0 : 1) << "}\n";
  resolved << R"({"sites":[)";
  for (int i = 0; i < sites; ++i) {
    const std::string site = site_name + std::to_string(i) + "/linear.0";
    for (const int step : {0, 10})
      for (const char* role : {"input", "weight", "grad_output"})
        probe << survey_line(step, site, role, i % 400);
    resolved << (i ? "," : "") << R"({"site":")" << site
             << R"(","computes_in":"bf16","roles":{"input":")" << policy << R"("}})";
  }
  resolved << "]}";
  probe << update_line;
  write_file(folder / "summary.json", summary.str());
  write_file(folder / "metrics.jsonl", metrics.str());
  write_file(folder / "probe.jsonl", probe.str());
  write_file(folder / "resolved.json", resolved.str());
  return folder;
}

constexpr const char* comparison =
    R"({"format":1,"policy":"b","reference":"fp32","workload":"small","reference_loss":1.0,)"
    R"("candidate_loss":1.5,"first":1,"rows":[{"site":"layers.0/linear.0","role":"input",)"
    R"("rounding":1.0,"local":null,"amplification":null,"twin":0.01,"reason":""},)"
    R"({"site":"layers.1/linear.0","role":"input","rounding":9.0,"local":null,)"
    R"("amplification":null,"twin":0.5,"reason":"18 % underflow to 0"}]})";
constexpr const char* search =
    R"({"format":1,"objective":"bytes","candidates":[{"rule":{},"name":"softmax -> low",)"
    R"("error":0.001,"loss_error":1e-6,"milliseconds":-0.4,"bytes":200000},{"rule":{},)"
    R"("name":"layer_norm -> low","error":0.003,"loss_error":1e-5,"milliseconds":-2,"bytes":900000}],)"
    R"("frontier":[{"bytes":200000,"error":0.001,"names":["softmax -> low"]},{"bytes":1100000,)"
    R"("error":0.0032,"names":[]}],"chosen":["softmax -> low"]})";

constexpr const char* strategies =
    R"([{"strategy":"fp32","test_accuracy":0.9,"ms":2},{"strategy":"o2-bf16","test_accuracy":0.9}])";

/// The properties of every page.
void check_page(const std::string& page) {
  const Page read = PageReader(page).read();
  CHECK(read.mistake == "");
  CHECK(read.tags.count("script") == 1);
  CHECK(read.ids.count("definitions") == 1);
  CHECK_FALSE(contains(page, "http"));
  CHECK_FALSE(contains(page, "@import"));
  CHECK_FALSE(contains(page, "url("));
  for (const std::string& link : read.links) {
    CAPTURE(link);
    REQUIRE(link.starts_with('#'));
    CHECK(read.ids.count(link.substr(1)) == 1);
  }
  CHECK(page.size() < 2'000'000);
}

TEST_CASE("six runs become a page with every panel") {
  const TemporaryDirectory directory;
  lab::ReportOptions options;
  for (const int seed : {0, 1, 2})
    for (const char* policy : {"a", "b"})
      options.paths.push_back(
          write_run(directory, policy, seed, (policy[0] == 'a' ? 1.0 : 1.1) + 0.1 * seed));
  write_file(directory / "compare.json", comparison), write_file(directory / "search.json", search);
  options.paths.push_back(directory / "compare.json");
  options.paths.push_back(directory / "search.json");
  write_file(directory / "strategies.json", strategies);
  options.paths.push_back(directory / "strategies.json");
  const std::string page = report(options);
  check_page(page);
  for (const char* id : {"curves", "underflow", "overflow", "errors", "sizes", "updates", "memory",
                         "formats", "comparison", "search", "strategies", "runs"})
    CHECK(PageReader(page).read().ids.count(id) == 1);
  // (0.1 / 1, 0.1 / 1.1, 0.1 / 1.2), mean 9.14 %, t(2) = 4.303
  CHECK(contains(page, "is worse than a: +9.1 ± 2.1 % with 3 seeds."));
  CHECK(contains(page, "<b>a</b> has the lowest"));
  CHECK_FALSE(contains(page, "Undecided: "));
  CHECK(contains(page, "layers.0/linear.0 (3 like this)"));
  CHECK(contains(page, "≠ <span"));
  CHECK(contains(page, ">0; 1; 2<"));
  CHECK(contains(page, "the first: 18 % underflow to 0"));
  CHECK(contains(page, "softmax -&gt; low"));
  CHECK(contains(page, "prefers-color-scheme:dark"));

  options.reference = "b";
  CHECK(contains(report(options), "is better than b: -8.4"));
  options.reference = "c";
  CHECK(contains(message_of<UsageError>([&] { report(options); }), "[report] no run is of c"));
}

TEST_CASE("a folder of folders is all runs in it") {
  const TemporaryDirectory directory;
  write_run(directory, "a", 0, 1), write_run(directory, "b", 0, 2);
  std::filesystem::create_directory(directory / "logs");
  write_file(directory / "sweep.json", "{}");
  CHECK(contains(report({.paths = {directory.path()}}), "2 runs, 2 policies"));
  // As a shell expands runs/*.
  const std::string page = report({.paths = {directory / "a-0", directory / "b-0",
                                             directory / "logs", directory / "sweep.json"}});
  check_page(page);
  CHECK(contains(page, "2 runs, 2 policies"));
  CHECK(contains(page, "logs: it has no runs."));
  CHECK(contains(page, "sweep.json: neither a comparison nor a search."));
}

TEST_CASE("runs of one policy under two settings are two lines") {
  const TemporaryDirectory directory;
  const Path one = write_run(directory, "a", 0, 1), other = directory / "other";
  std::filesystem::create_directory(other);
  nlohmann::json summary = nlohmann::json::parse(read_file(one / "summary.json"));
  summary["lr"] = 0.25, summary["optimizer"] = {{"class", "SGD"}};
  write_file(other / "summary.json", summary.dump());
  const std::string page = report({.paths = {one, other}});
  check_page(page);
  CHECK(contains(page, "a, lr 0.25, optimizer.class SGD"));
}

TEST_CASE("questions without data are not on the page") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "run");
  write_file(directory / "run" / "summary.json", summary_with().dump());
  const std::string page = report({.paths = {directory / "run"}});
  check_page(page);
  const Page read = PageReader(page).read();
  for (const char* id :
       {"curves", "underflow", "errors", "updates", "formats", "switches", "search"})
    CHECK(read.ids.count(id) == 0);
  CHECK(read.ids.count("runs") == 1);
  CHECK_FALSE(contains(page, "<svg class=\"plot\" viewBox=\"0 0 480"));
}

// --- figures as files: numbers of the CSV against those of the runs

/// Returns the cells of a figure's CSV, by line.
std::vector<std::vector<std::string>> rows_of(const std::string& name, std::vector<Path> paths) {
  lab::FigureOptions options{.name = name};
  options.runs = {.paths = std::move(paths), .output = "x.csv"};
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(lab::figure(options));
  for (std::string line; std::getline(lines, line);) {
    auto& cells = rows.emplace_back(1);
    bool quoted = false;
    for (const char c : line)
      if (c == '"') quoted = !quoted;
      else if (c == ',' && !quoted) cells.emplace_back();
      else cells.back() += c;
    CHECK(cells.size() == 6);
  }
  REQUIRE(rows.size() > 1);
  CHECK(rows[0] == std::vector<std::string>{"panel", "series", "x", "y", "low", "high"});
  rows.erase(rows.begin());
  return rows;
}

struct TwoPolicies {
  TemporaryDirectory directory{};
  std::vector<Path> paths{};
  TwoPolicies() {
    for (const int seed : {0, 1, 2})
      for (const char* policy : {"a", "b"})
        paths.push_back(
            write_run(directory, policy, seed, (policy[0] == 'a' ? 1.0 : 1.1) + 0.1 * seed));
  }
};

TEST_CASE("figure losses: the median and the range of the seeds, at each step of metrics.jsonl") {
  const TwoPolicies runs;
  const auto rows = rows_of("losses", runs.paths);
  CHECK(rows.size() == 2 * 20);
  for (const auto& row : rows) {
    const double step = std::stod(row[2]), base = row[1] == "a" ? 1.0 : 1.1;
    CHECK(std::stod(row[3]) == doctest::Approx(base + 0.1 + 1 / step));
    CHECK(std::stod(row[4]) == doctest::Approx(base + 1 / step));
    CHECK(std::stod(row[5]) == doctest::Approx(base + 0.2 + 1 / step));
  }
}

TEST_CASE("figures forest and differences: paired by seed, in percent") {
  const TwoPolicies runs;
  const std::vector<double> shares{10, 10 / 1.1, 10 / 1.2};
  const lab::Interval wanted = lab::interval_of(shares);
  const auto forest = rows_of("forest", runs.paths);
  REQUIRE(forest.size() == 1 + shares.size());
  CHECK(forest[0][1] == "b");
  for (std::size_t seed = 0; seed < shares.size(); ++seed)
    CHECK(std::stod(forest[1 + seed][3]) == doctest::Approx(shares[seed]).epsilon(1e-4));
  CHECK(std::stod(forest[0][3]) == doctest::Approx(wanted.mean).epsilon(1e-4));
  CHECK(std::stod(forest[0][4]) == doctest::Approx(wanted.mean - wanted.half).epsilon(1e-4));
  const auto differences = rows_of("differences", runs.paths);
  REQUIRE(differences.size() == 20);
  std::vector<double> last;
  for (const int seed : {0, 1, 2}) last.push_back(10 / (1 + 0.1 * seed + 1.0 / 20));
  CHECK(std::stod(differences.back()[3]) ==
        doctest::Approx(lab::interval_of(last).mean).epsilon(1e-4));
}

TEST_CASE("figures memory, updates, scale and underflow have the numbers of the folders") {
  const TwoPolicies runs;
  double sum = 0;
  for (const auto& row : rows_of("memory", runs.paths)) {
    if (row[2] == "weights") CHECK(row[3] == "1");
    if (row[2] == "activations") CHECK(row[3] == "4");
    sum += std::stod(row[3]);
  }
  CHECK(sum == 2 * 5);
  bool lost = false;
  for (const auto& row : rows_of("updates", runs.paths))
    if (row[0].starts_with("Updates in spacings") && row[2] == "2") {
      CHECK(row[3] == "75");  // by_ulp: 25 and 75 of 100
      lost = true;
    }
  CHECK(lost);
  for (const auto& row : rows_of("scale", runs.paths))
    if (row[0] == "Loss scale") CHECK(row[3] == (std::stod(row[2]) < 9 ? "16" : "15"));
  for (const auto& row : rows_of("underflow", runs.paths)) {
    const double site = std::stod(row[2].substr(7));          // "layers.2/linear.0 weight"
    CHECK(std::stod(row[3]) == doctest::Approx(site / 900));  // to_zero of those that are not 0
  }
}

TEST_CASE("figure exponents: a tensor's format is drawn at the tensor's scale") {
  const TwoPolicies runs;
  bool found = false;
  for (const auto& row : rows_of("exponents", runs.paths))
    if (row[1] == "e4m3, scaled") {
      found = true;
      CHECK(std::stod(row[4]) == doctest::Approx(-6 - 6));  // a scale of 64
      CHECK(std::stod(row[5]) == doctest::Approx(std::log2(448) - 6));
    }
  CHECK(found);
}

TEST_CASE("figure errors: no line joins blocks of different formats") {
  const TwoPolicies runs;
  const Path probe = runs.paths[0] / "probe.jsonl";
  std::istringstream lines(read_file(probe));
  std::string changed;
  for (std::string line; std::getline(lines, line); changed += line + "\n")
    if (const auto at = line.find("e4m3"); contains(line, "layers.2/") && at != line.npos)
      line.replace(at, 4, "e2m1");
  write_file(probe, changed);
  std::vector<std::string> blocks;  // with a gap between the second and the third
  for (const auto& row : rows_of("errors", {runs.paths[0]}))
    if (row[0].ends_with(": weight")) blocks.push_back(row[3].empty() ? "gap" : row[2]);
  CHECK(blocks == std::vector<std::string>{"0", "1", "gap", "2"});
}

TEST_CASE("figure switches: a bar from each on to the next off, or to the end") {
  const TwoPolicies runs;
  CHECK(contains(message_of<UsageError>([&] { rows_of("switches", runs.paths); }), "have no data"));
  write_file(runs.paths[0] / "switches.jsonl",
             R"({"step":5,"rule":0,"site":"layers.0/linear.0","on":true,"value":1})"
             "\n"
             R"({"step":8,"rule":0,"site":"layers.0/linear.0","on":false,"value":1})"
             "\n"
             R"({"step":12,"rule":0,"site":"layers.0/linear.0","on":true,"value":1})"
             "\n");
  const auto rows = rows_of("switches", runs.paths);
  REQUIRE(rows.size() == 2);
  CHECK(rows[0][1] == "layers.0/linear.0");
  CHECK(rows[0][4] + " " + rows[0][5] == "5 8");
  CHECK(rows[1][4] + " " + rows[1][5] == "12 20");
  CHECK(PageReader(report({.paths = runs.paths})).read().ids.count("switches") == 1);
}

TEST_CASE(
    "a figure is SVG or PDF of the stated width, light or dark, and has its data next to it") {
  const TwoPolicies runs;
  lab::FigureOptions options{.name = "forest", .millimetres = 85};
  options.runs = {.paths = runs.paths, .output = runs.directory / "f.svg"};
  {
    const Captured said(std::cout);
    CHECK(lab::run_figure(options) == 0);
  }
  const std::string light = read_file(options.runs.output);
  CHECK(PageReader(light).read().mistake == "");
  CHECK(contains(light, "width=\"85mm\""));
  CHECK(contains(light, "fill=\"#ffffff\""));
  CHECK_FALSE(contains(light, "var("));  // programs that know no style sheets draw it as well
  CHECK(contains(read_file(runs.directory / "f.csv"), ",b,,9.1"));
  options.dark = true;
  CHECK(contains(lab::figure(options), "fill=\"#16191d\""));
  options.runs.output = "f.pdf";
  const std::string pdf = lab::figure(options);
  CHECK(pdf.starts_with("%PDF-1.4\n"));
  CHECK(contains(pdf, "/MediaBox [0 0 240.94 "));  // 85 mm in points
  const std::size_t start = std::stoul(pdf.substr(pdf.find("startxref\n") + 10));
  CHECK(pdf.substr(start, 9) == "xref\n0 7\n");
  for (int object = 1; object < 7; ++object) {  // each entry of the table has 20 bytes
    const std::string place = pdf.substr(start + 9 + 20 * std::size_t(object), 10);
    CHECK(pdf.substr(std::stoul(place), 8) == std::to_string(object) + " 0 obj\n");
  }
  const std::size_t stream = pdf.find("stream\n") + 7;
  const std::size_t length = std::stoul(pdf.substr(pdf.find("/Length ") + 8));
  CHECK(pdf.substr(stream + length, 9) == "endstream");
  options.runs.output = "f.png";
  CHECK(contains(message_of<UsageError>([&] { lab::figure(options); }), "Use .svg, .pdf or .csv"));
  options.name = "frest";
  options.runs.output = "f.svg";
  CHECK(contains(message_of<UsageError>([&] { lab::figure(options); }), "Did you mean \"forest\""));
}

TEST_CASE("every figure of every shape is a well-formed file") {
  const TwoPolicies runs;
  const lab::ReportData data = lab::read_report_data({.paths = runs.paths});
  for (const lab::Figure& figure : lab::figures()) {
    CAPTURE(figure.name);
    const auto pictures = lab::pictures_named(figure.name, data);
    for (const int width : {210, 447, 900}) {
      const lab::svg::Drawing drawing = lab::svg::grid_of(pictures, width);
      for (const auto place : {lab::svg::Place::page, lab::svg::Place::file, lab::svg::Place::dark})
        CHECK(PageReader(lab::svg::svg_of(drawing, place)).read().mistake == "");
      CHECK(lab::svg::pdf_of(drawing, true, 100).ends_with("%%EOF\n"));
    }
  }
}

TEST_CASE("a policy has its name everywhere, and its hash where two share a name") {
  const TemporaryDirectory directory;
  const auto file = [&](const char* path, const char* base) {
    write_file(directory / path,
               std::string(R"({"halftone_policy":1,"name":"one/two","extends":")") + base + "\"}");
    return (directory / path).string();
  };
  const std::string a = file("a.json", "fp32"), b = file("b.json", "amp-bf16");
  CHECK(lab::read_cells({a}, {}).at(0).name == "one/two");
  const auto cells = lab::read_cells({a, b, "te_current"}, {});
  for (const std::size_t i : {0, 1})
    CHECK(cells[i].name == "one/two-" + policy::hash(cells[i].policy).substr(0, 8));
  CHECK(cells[2].name == "te-current");
  CHECK(lab::run_name("w", "one/two", 3) == "w-one_two-3");  // a folder
  CHECK(contains(message_of<UsageError>([&] { lab::read_cells({a, a}, {}); }), "is given twice"));
}

TEST_CASE("verdicts: what the interval says, and how many seeds would decide") {
  const auto text = [](std::vector<double> differences) {
    return lab::verdict_text(differences, "fp32");
  };
  CHECK(text({}) == "has no seed in common with fp32.");
  CHECK(text({0.02}) ==
        "differs from fp32 by +2 %: undecided with one seed, which gives no interval.");
  CHECK(text({0.001, -0.001, 0.0005, -0.0005}) ==
        "is equivalent to fp32 within 1 %: 0.00 ± 0.15 % with 4 seeds.");
  CHECK(text({-0.002, -0.003, -0.0025}) ==
        "is equivalent to fp32 within 1 %, and better than 0: -0.25 ± 0.12 % with 3 seeds.");
  CHECK(text({0.05, 0.06, 0.055}) == "is worse than fp32: +5.5 ± 1.2 % with 3 seeds.");
  CHECK(text({-0.05, -0.06, -0.055}) == "is better than fp32: -5.5 ± 1.2 % with 3 seeds.");
  CHECK(text({0.012, 0.016, 0.008})
            .starts_with("is worse than fp32: +1.20 ± 0.99 % with 3 seeds, "
                         "by more or less than 1 %; about "));
  CHECK(text({0.05, -0.03}).starts_with("differs from fp32 by +1 ± 51 %: undecided with 2 seeds"));
  CHECK(text({0.012, 0.016, 0.008}).ends_with(" seeds would tell whether it is within 1 %."));
}

TEST_CASE("a page whose policies cannot be told apart says so first") {
  const TemporaryDirectory directory;
  lab::ReportOptions options;
  for (int seed = 0; seed < 2; ++seed) {
    options.paths.push_back(write_run(directory, "a", seed, 1 + 0.1 * seed));
    options.paths.push_back(write_run(directory, "b", seed, 1.2 - 0.15 * seed));
  }
  const std::string page = report(options);
  CHECK(contains(page, "Undecided: <b>a</b> has the lowest "));
  CHECK(contains(page, ", but these runs cannot tell it from b."));
}

TEST_CASE("formats in short") {
  CHECK(lab::short_format("bf16") == "bf16");
  CHECK(lab::short_format("e2m1, blocks of 1x16 with e4m3 scales under one of the tensor") ==
        "e2m1/1x16");
  CHECK(lab::short_format("e4m3, scaled per tensor from the largest of 16 steps") == "e4m3/tensor");
}

TEST_CASE("metrics of other programs are one more curve") {
  const TemporaryDirectory directory;
  const Path run = write_run(directory, "a", 0, 1);
  write_file(directory / "pytorch.csv",
             "step,\"loss\",lr\r\n1,2.5,0.1\r\n2,nan,0.1\r\n3,1.5,\r\n\r\n");
  write_file(directory / "other.jsonl", "{\"step\":1,\"loss\":2.25}\n{\"step\":3,\"loss\":1.25}\n");
  std::string page = report({.paths = {run, directory / "pytorch.csv", directory / "other.jsonl"}});
  check_page(page);
  CHECK(contains(page, "pytorch.csv, 3: 1.5"));
  CHECK(contains(page, "other.jsonl, 3: 1.25"));
  check_page(report({.paths = {directory / "pytorch.csv"}}));
  write_file(directory / "odd.csv", "epoch,loss\n1,2\n");
  CHECK(contains(message_of<FormatError>([&] { report({.paths = {directory / "odd.csv"}}); }),
                 "no column is called step"));
}

TEST_CASE("names are text wherever they come from") {
  const TemporaryDirectory directory;
  const std::string hostile = R"(<img src='x' onerror='1'>&amp;]]>\u0000\u202e)";
  const Path folder = directory / "<b>&";
  std::filesystem::create_directory(folder);
  std::ostringstream summary;
  summary << R"({"policy":")" << hostile << R"(","workload":")" << hostile << R"(",")" << hostile
          << R"(":")" << hostile << R"(","bytes_at_peak":{")" << hostile << R"(":1000}})";
  write_file(folder / "summary.json", summary_with(nlohmann::json::parse(summary.str())).dump());
  write_file(folder / "metrics.jsonl", "{\"step\":1,\"train/loss\":1}\n");
  write_file(folder / "probe.jsonl", survey_line(0, hostile, "input", 5));
  write_file(folder / "resolved.json", R"({"sites":[{"site":")" + hostile + R"(","computes_in":")" +
                                           hostile + R"(","roles":{")" + hostile + R"(":")" +
                                           hostile + R"("}}]})");
  write_file(folder / "compare.json",
             R"({"policy":")" + hostile + R"(","first":0,"rows":[{"site":")" + hostile +
                 R"(","role":")" + hostile + R"(","rounding":5,"reason":")" + hostile + R"("}]})");
  write_file(folder / "search.json",
             R"({"candidates":[{"name":")" + hostile + R"(","error":1,"bytes":1}]})");
  const std::string page = report({.paths = {folder}});
  check_page(page);
  CHECK(PageReader(page).read().tags.count("img") == 0);
  CHECK(contains(page, "&lt;img src=&#39;x"));
}

TEST_CASE("a thousand sites in six runs stay below two megabytes") {
  const TemporaryDirectory directory;
  lab::ReportOptions options;
  for (const int seed : {0, 1})
    for (const char* policy : {"a", "b", "c"})
      options.paths.push_back(write_run(directory, policy, seed, 1, 1000));
  const std::string page = report(options);
  check_page(page);
  CHECK(contains(page, "highest of 1000 sites"));
}

TEST_CASE("broken files are told or left out, and never end the program") {
  const TemporaryDirectory directory;
  const auto message = [&](const Path& path) {
    return message_of<FormatError>([&] { report({.paths = {path}}); });
  };
  CHECK(contains(message(directory.path()), "it has no runs"));
  CHECK(contains(message(directory / "nothing"), "it has no runs"));
  write_file(directory / "page.txt", "x");
  CHECK(contains(message(directory / "page.txt"), "neither .csv nor .jsonl"));
  write_file(directory / "other.json", "{}");
  CHECK(contains(message(directory / "other.json"), "neither a comparison nor a search"));

  const Path run = write_run(directory, "a", 0, 1);
  for (const char* file : {"summary.json", "resolved.json", "compare.json", "search.json"}) {
    const std::string whole = read_file(run / file);
    for (const char* text : {"", "{", "[]", "null", "\xFF", "{\"a\":1e999}"}) {
      write_file(run / file, text);
      CAPTURE(text);
      const std::string said = message(run), front = std::string(file) + ": not ";
      CHECK((contains(said, front + "JSON.") || contains(said, front + "a JSON object.")));
    }
    // Another shape: missing parts are left out, but not from a summary.
    for (
        const char* text :
        {"{}", R"({"policy":1,"seed":"x","loss":null,"bytes_at_peak":[1]})",
         R"({"seed":1e300,"loss":-1e308,"steps":{},"bytes_at_peak":{"parameter":"x","a":1e308,"b":1e308}})",
         R"({"sites":[1,null,{"site":5},{"site":"x","roles":[]},{"site":"y","roles":{"input":1}}]})",
         R"({"rows":[1,{"site":[],"rounding":1e308},{"local":5}],"first":-1,"policy":{}})",
         R"({"points":[1,{"bits":"x","file":[]},{"budget":1e308,"file":"x.json"}]})",
         R"({"candidates":[1,{"error":"x","bytes":1e308},{"error":-1e308,"bytes":-1e308}],"frontier":[{}],"chosen":{}})"}) {
      write_file(run / file, text);
      CAPTURE(text);
      if (std::string_view(file) == "summary.json")
        CHECK(contains(message(run), "summary.json: /: the entry \"format\" is missing."));
      else check_page(report({.paths = {run}}));
    }
    if (whole.empty()) std::filesystem::remove(run / file);
    else write_file(run / file, whole);
  }

  for (const char* file : {"metrics.jsonl", "probe.jsonl"}) {
    const std::string whole = read_file(run / file);
    for (const char* line :
         {"{\"step\":12,\"train/lo", "null", "{}", "[1]", R"({"step":-1,"site":"x"})",
          R"({"step":"x","train/loss":null})", R"({"site":1,"role":2,"step":3,"count":4})",
          R"({"step":1,"site":"x","role":"input","count":1,"binades":{"999":1}})",
          R"({"step":1,"site":"x","role":"input","count":1,"binades":{"0":-1}})",
          R"({"step":1,"parameter":"x","by_ulp":{"a":1}})"}) {
      write_file(run / file, whole + line);
      CAPTURE(line);
      check_page(report({.paths = {run}}));
    }
    write_file(run / file, whole + whole.substr(0, 20));  // the last line is cut off
    CHECK(contains(report({.paths = {run}}), std::string(file) + ": 1 line was skipped"));
    write_file(run / file, whole);
  }
  // The largest and smallest valid numbers.
  write_file(run / "probe.jsonl",
             R"({"step":9007199254740992,"site":"x","role":"input","quantizer":"q","count":1e308,)"
             R"("zeros":-5,"to_zero":1e308,"sum_x2":1e308,"sum_e2":5e-324,"scale":1e308,)"
             R"("ideal":5e-324,"largest":1e308,"binades":{"-149":1e308,"127":1e308}})"
             "\n");
  write_file(run / "metrics.jsonl",
             "{\"step\":1e308,\"train/loss\":1e308}\n{\"step\":-1e308,\"train/loss\":-1e308}\n"
             "{\"step\":0,\"train/loss\":5e-324,\"train/loss_scale\":-1}\n");
  check_page(report({.paths = {run}}));
}

TEST_CASE("edited bytes of every file") {
  const TemporaryDirectory directory;
  const Path run = write_run(directory, "a", 0, 1, 2);
  write_file(run / "compare.json", comparison), write_file(run / "search.json", search);
  std::mt19937 random(7);
  for (const auto& entry : std::filesystem::directory_iterator(run)) {
    const std::string whole = read_file(entry.path());
    for (int i = 0; i < 60; ++i) {
      write_file(entry.path(), mutated(whole, random));
      try {
        const Page page = PageReader(report({.paths = {run}})).read();
        CHECK(page.mistake == "");
      } catch (const FormatError& error) { CHECK(contains(error.what(), "[report] ")); }
    }
    write_file(entry.path(), whole);
  }
}

TEST_CASE("rows for other programs") {
  const TemporaryDirectory directory;
  const Path run = write_run(directory, "a", 4, 1, 1);
  std::ostringstream csv, lines;
  lab::write_table({.paths = {run}}, csv);
  CHECK(csv.str().starts_with("run,policy,workload,seed,step,site,role,input,statistic,value\n"));
  CHECK(contains(csv.str(), "\na-4,a,small,4,1,,,0,train/loss,2\n"));
  CHECK(contains(csv.str(), "\na-4,a,small,4,10,layers.0/linear.0,weight,0,saturation,0.002"));
  CHECK(contains(csv.str(), "\na-4,a,small,4,0,0.weight,update,0,lost_share,0.25\n"));
  CHECK(contains(csv.str(), "\na-4,a,small,4,0,0.weight,update.seen,0,lost_share,0.5\n"));
  lab::write_table({.paths = {run}, .json_lines = true}, lines);
  CHECK(contains(
      lines.str(),
      R"({"run":"a-4","policy":"a","workload":"small","seed":4,"step":1,"site":"","role":"","input":0,)"
      R"("statistic":"train/loss","value":2})"));
  CHECK(contains(
      message_of<FormatError>([&] { lab::write_table({.paths = {directory / "none"}}, csv); }),
      "[table] "));
}

}  // namespace
}  // namespace halftone::test::report_test

// Strategies in one table, from the JSON of compare_strategies: the tables' cells, and files that
// other programs wrote or damaged.

namespace halftone::test::report_strategies_test {
namespace {

using nlohmann::json;

json measured(const std::string& name, double ms) {
  return {{"strategy", name},
          {"workload", "mlp"},
          {"epochs", 1},
          {"batch", 64},
          {"device", "cpu"},
          {"threads", 2},
          {"test_accuracy", 0.875},
          {"ms", ms},
          {"peak_bytes", 3 << 20},
          {"parameter_ratio", 1.5},
          {"skipped_steps", 2},
          {"final_loss", 0.25},
          {"at_peak", {{"parameter", 2 << 20}, {"gradient", 1 << 20}, {"workspace", 0}}},
          {"losses", {{1, 2.0}, {2, 1.0}}},
          {"casts",
           {{{"op", "matmul"}, {"runs_in", "bf16"}, {"casts", 2}, {"cache_hits", 1}},
            {{"op", "exp"}, {"runs_in", "f32"}, {"casts", 0}, {"to_zero", 3}}}}};
}

HtmlTable without_head(HtmlTable table) {
  table.erase(table.begin());
  return table;
}

TEST_CASE("the table of figures: a row per strategy, speed-ups over fp32") {
  const json all{measured("fp32", 10), measured("amp-bf16", 4)};
  CHECK(lab::is_strategy_list(all));
  const auto tables = html_tables(lab::strategy_sections(all));
  REQUIRE(tables.size() == 2);
  CHECK(without_head(tables[0]) ==
        HtmlTable{{"fp32", "87.50", "10.00", "1.00x", "3.00", "1.50x", "2", "0.2500"},
                  {"amp-bf16", "87.50", "4.00", "2.50x", "3.00", "1.50x", "2", "0.2500"}});
  CHECK(without_head(tables[1]) == HtmlTable{{"matmul", "bf16 (2 casts, 1 from the cache)",
                                              "bf16 (2 casts, 1 from the cache)"},
                                             {"exp", "f32, 3 to 0", "f32, 3 to 0"}});
}

TEST_CASE("a page and a report show the same sections") {
  const json all{measured("fp32", 10)};
  const std::string page = lab::strategy_page(all);
  CHECK(PageReader(page).read().mistake == "");
  const TemporaryDirectory directory;
  write_file(directory / "comparison.json", all.dump());
  const std::string report = lab::report({.paths = {directory / "comparison.json"}});
  CHECK(report.find(lab::strategy_sections(all)) != report.npos);
}

TEST_CASE("fields that are missing, of another type or markup change nothing else") {
  json broken = measured("<b>", 10);
  broken["losses"] = json::array({json::array({1}), "x", json::array({1, "y"})});
  broken["casts"] = "none";
  broken["at_peak"] = json::array({1, 2});
  broken["ms"] = "fast";
  const std::string page = lab::strategy_page(json{broken});
  CHECK(PageReader(page).read().mistake == "");
  CHECK(page.find("<b>") == page.npos);
  CHECK(page.find("viewBox=\"0 0 480") == page.npos);
  CHECK_FALSE(lab::is_strategy_list(json::array()));
  CHECK_FALSE(lab::is_strategy_list(json{{{"strategy", "fp32"}}}));
  CHECK_FALSE(lab::is_strategy_list(json{{"strategy", "fp32"}, {"test_accuracy", 1}}));
}

}  // namespace
}  // namespace halftone::test::report_strategies_test

// Pieces of the report's page and of drawings: structure, escaping, names that are folded.

namespace halftone::test::page_pieces_test {
namespace {

using lab::html::escaped;
using lab::html::shortened;
using Names = std::vector<std::string>;

Page page_of(const std::string& text) { return PageReader(text).read(); }

// --- HTML

TEST_CASE("escaping leaves what a page can hold, and is undone by a reader") {
  for (const char* text : {"", "plain", "tab\tline\n", "ä≠漢\U0001F600", "100 % ± 1"})
    CHECK(escaped(text) == text);
  CHECK(escaped("&amp;") == "&amp;amp;");  // text, although it looks like markup
  CHECK(page_of("<p title=\"" + escaped("\"><b>") + "\">" + escaped("</p><i>") + "</p>").tags ==
        std::multiset<std::string>{"p"});
}

TEST_CASE("every byte, alone and after others, leaves a well-formed page") {
  for (int a = 0; a < 256; ++a)
    for (const int b : {0, 9, 34, 38, 60, 65, 0x80, 0xbf, 0xc3, 0xe2, 0xf0, 0xff}) {
      const std::string text{char(a), char(b), char(a), 'x'};
      CAPTURE(a);
      CAPTURE(b);
      CHECK(page_of("<p id=\"" + escaped(text) + "\">" + escaped(text) + "</p>").mistake == "");
    }
}

TEST_CASE("shortened texts have as many characters as are asked for, from both ends") {
  for (const std::size_t most : {3, 4, 5, 10, 99}) {
    const std::string text(100, 'x');
    CHECK(shortened("a" + text + "z", most).size() == most - 1 + std::string("…").size());
    CHECK(shortened("a" + text + "z", most).front() == 'a');
    CHECK(shortened("a" + text + "z", most).back() == 'z');
  }
  CHECK(shortened("", 3) == "");
  CHECK(shortened("abc", 3) == "abc");
  CHECK(shortened("漢字漢字漢字", 6) == "漢字漢字漢字");
  CHECK(shortened("\xff\xff\xff\xff", 3) == "\xff…\xff");
}

TEST_CASE("tables: a row for each row, a cell for each cell") {
  lab::html::Table table({"a", "b", "c"}, 2);
  CHECK(table.rows() == 0);
  table.row({"1", "2", "3"}), table.row({"<b>4</b>", "5", "6"});
  CHECK(table.rows() == 2);
  const Page page = page_of(table.text());
  CHECK(page.mistake == "");
  CHECK(page.tags.count("tr") == 3);
  CHECK(page.tags.count("th") == 3 + 2);  // the heads, and the first cell of each row
  CHECK(page.tags.count("td") == 4);
  CHECK(page.tags.count("b") == 1);
}

TEST_CASE("documents, paragraphs and figures") {
  const Page page = page_of(lab::html::document("<t>", lab::html::paragraph("<p> & \"q\"")));
  CHECK(page.mistake == "");
  CHECK(page.tags.count("p") == 1);
  CHECK(page.tags.count("t") == 0);
  CHECK(page.tags.count("body") == 1);
  CHECK(page.links.empty());
  CHECK(lab::html::figures({}).empty());
  const lab::svg::Plot plot{.title = "t"};
  CHECK(page_of(lab::html::figures({plot, plot})).tags.count("figure") == 2);
  CHECK(page_of(lab::html::series("<x>", 3)).mistake == "");
}

TEST_CASE("every definition that a panel links to is defined once") {
  const Page page = page_of("<div>" + lab::definitions({}) + "</div>");
  CHECK(page.mistake == "");
  CHECK(page.tags.count("dt") == page.tags.count("dd"));
  for (const std::string& id : page.ids) CHECK(page.ids.count(id) == 1);
}

// --- names of sites, intervals

TEST_CASE("numbers that stand alone in a site's name become #") {
  using lab::without_numbers;
  CHECK(without_numbers("h.0.mlp/linear.12") == "h.#.mlp/linear.#");
  CHECK(without_numbers("0") == "#");
  CHECK(without_numbers("12/linear.0") == "#/linear.#");
  CHECK(without_numbers("conv1.2x.x2") == "conv1.2x.x2");
  CHECK(without_numbers("") == "");
  CHECK(without_numbers("a..1.") == "a..#.");
}

TEST_CASE("intervals as text: as many digits as the half width has") {
  using lab::interval_text;
  CHECK(interval_text(25, HUGE_VAL) == "+25");
  CHECK(interval_text(-12.345, NAN) == "-12.3");
  CHECK(interval_text(0, 0) == "0 ± 0");
  CHECK(interval_text(3.14159, 0.0271) == "+3.142 ± 0.027");
  CHECK(interval_text(0.8123, 6.04) == "+0.8 ± 6.0");
  CHECK(interval_text(2.7, 0.19, false) == "2.70 ± 0.19");
  CHECK(interval_text(123.4, 56.7) == "+123 ± 57");
}

// --- drawings

TEST_CASE("labels have as many digits as are asked for") {
  CHECK(lab::svg::label_of(1234567) == "1.235e+06");
  CHECK(lab::svg::label_of(0.5) == "0.5");
  CHECK(lab::svg::label_of(-0.0) == "0");
  CHECK(lab::svg::label_of(NAN) == "?");
  CHECK(lab::svg::label_of(-HUGE_VAL) == "-∞");
}

TEST_CASE("a drawing has a curve for each series, a mark for each point, and a legend once") {
  lab::svg::Plot plot{.title = "t"};
  plot.curves.push_back({.name = "a", .points = {{0, 1}, {1, 2}, {2, NAN}, {3, 1}}});
  plot.curves.push_back({.name = "a", .points = {{0, 2}, {1, 1}}});  // of the same style and name
  plot.curves.push_back({.name = "b", .points = {{0, 3}}, .style = 1});
  const std::string text = lab::svg::draw(plot);
  const Page page = page_of(text);
  CHECK(page.mistake == "");
  // The drawing's title, one for each of two lines and of six points.
  CHECK(page.tags.count("title") == 1 + 2 + 6);
  const auto count = [&](std::string_view part) {
    int found = 0;
    for (std::size_t at = 0; (at = text.find(part, at)) != text.npos; ++at) ++found;
    return found;
  };
  CHECK(count(">a</text>") == 1);
  CHECK(count(">b</text>") == 1);
}

TEST_CASE("a long label keeps its end, from the next part of a path on; numbers stay whole") {
  const auto label = [](const std::string& site) {
    lab::svg::Map map{.title = "m", .columns = {{"p", "input"}}, .rows = {}};
    map.rows.push_back({site, {{.value = 1, .text = "1"}}});
    const std::string text = lab::svg::draw(map);
    const std::size_t at = text.find("…");
    return at == text.npos ? "" : text.substr(at, text.find('<', at) - at);
  };
  CHECK(label("transformer.decoder.attention.c_attn/linear.0") == "…attention.c_attn/linear.0");
  CHECK(label("transformer.h.0.attention.c_attn/linear.0") == "….0.attention.c_attn/linear.0");
  CHECK(label("a_policy_with_a_very_long_name_and_a_rate_of=0.001") == "…ame_and_a_rate_of=0.001");
}

TEST_CASE("stacked bars have a piece for each part above 0") {
  lab::svg::Bars bars{
      .title = "t", .unit = "MiB", .parts = {"p", "q"}, .labels = {"A", "B"}, .bars = {}};
  bars.bars = {{"one", {1, 2}}, {"two", {0, 3}}, {"none", {0, NAN}}};
  const Page page = page_of(lab::svg::draw(bars));
  CHECK(page.mistake == "");
  CHECK(page.tags.count("title") == 1 + 3);  // the drawing's own, and one for each piece
  bars.bars = {{"none", {0, 0}}};
  CHECK(page_of(lab::svg::draw(bars)).tags.count("title") == 1);
}

TEST_CASE("ranges of formats: from the smallest to the largest number, in log2") {
  const auto ranges = lab::ranges_of_formats();
  REQUIRE(ranges.size() == std::size(lab::shown_formats));
  const std::map<std::string, std::array<double, 3>> wanted{
      {"f16", {-14, std::log2(65504), -24}},
      {"bf16", {-126, std::log2(255) + 120, -133}},
      {"e4m3", {-6, std::log2(448), -9}},
      {"e5m2", {-14, std::log2(57344), -16}}};
  for (const lab::svg::Range& range : ranges) {
    CAPTURE(range.name);
    const auto& [low, high, faint] = wanted.at(range.name);
    CHECK(range.low == low);
    CHECK(range.high == doctest::Approx(high));
    CHECK(range.faint_low == faint);
  }
}

// --- notes

TEST_CASE("a policy is noted if it is for other models, all of them by name") {
  const auto note = [](Names models, const std::string& workload) {
    amp::Policy file = policy::named_or_read("fp32");
    file.name = "p", file.meant_for = std::move(models);
    std::ostringstream out;
    lab::note_other_model(out, file, workload, {{"mine", "", {}, {}}, {"other", "", {}, "gpt"}});
    return out.str();
  };
  const std::string end = ". Its rules may mean other layers.\n";
  CHECK(note({}, "mine").empty());
  CHECK(note({"gpt"}, "gpt_tiny").empty());
  CHECK(note({"mlp", "gpt"}, "other").empty());
  CHECK(note({"mlp"}, "other") == "note: p is for mlp, and other trains gpt" + end);
  CHECK(note({"mlp", "lenet", "resnet"}, "gpt_tiny") ==
        "note: p is for mlp, lenet and resnet, and gpt_tiny trains gpt" + end);
  CHECK(note({"gpt"}, "mine") == "note: p is for gpt, and mine trains a model of its own" + end);
}

}  // namespace
}  // namespace halftone::test::page_pieces_test

// Plots as text: two complete plots, ticks, and hostile numbers and names.

namespace halftone::test::svg_test {
namespace {

using lab::svg::Plot;

std::vector<lab::svg::Mark> marks_of(const lab::svg::Picture& picture, std::string_view look) {
  std::vector<lab::svg::Mark> found;
  for (const lab::svg::Mark& mark : lab::svg::drawing_of(picture).marks)
    if (mark.look == look) found.push_back(mark);
  return found;
}
std::string kinds_of(const lab::svg::Mark& mark) {
  std::string kinds;
  for (const lab::svg::Step& step : mark.path) kinds += step.kind;
  return kinds;
}

TEST_CASE("a curve, its band, a whisker and a rule are marks at the places of their numbers") {
  Plot plot{.title = "a < b"};
  plot.x = {.label = "step", .low = 0, .high = 4}, plot.y = {.low = 0, .high = 4};
  plot.curves.push_back(
      {.name = "fp32", .points = {{0, 1, 0, 2}, {1, 3, 2, 4}, {2, NAN}, {3, 2}, {4, 2, 1, 3}}});
  plot.rules.push_back({"bar", 2});
  const auto lines = marks_of(plot, "l"), rules = marks_of(plot, "rule");
  CHECK(kinds_of(lines.at(0)) == "MLML");  // a gap
  CHECK(kinds_of(marks_of(plot, "band").at(0)) == "MLLLZ");
  CHECK(kinds_of(marks_of(plot, "whisker").at(0)) == "MLMLML");
  const auto& path = lines[0].path;
  CHECK(path[1].x - path[0].x == doctest::Approx((path[3].x - path[0].x) / 4));
  CHECK(path[0].y - path[1].y == doctest::Approx(2 * (path[0].y - path[2].y)));
  CHECK(rules.at(0).path[0].y == doctest::Approx(path[2].y));  // 2, like the curve's third point
  CHECK(rules[0].title == "bar: 2");
  CHECK(marks_of(plot, "m").at(1).title == "fp32, 1: 3");
  CHECK(marks_of(plot, "head").at(0).text == "a < b");
  const std::string text = lab::svg::draw(plot);
  CHECK(PageReader(text).read().mistake == "");
  CHECK(contains(text, "data-series=\"fp32\""));
  CHECK(contains(text, "stroke=\"var(--c0)\""));
}

TEST_CASE("numbers outside of an axis are not drawn along its border") {
  Plot plot{.title = ""};
  plot.y = {.low = 0, .high = 1};
  plot.curves.push_back({.name = "a", .points = {{0, 9}, {1, 8}, {2, 0.5}, {3, 9}, {4, 9}}});
  CHECK(kinds_of(marks_of(plot, "l").at(0)) == "MMLLM");
  CHECK(marks_of(plot, "m").size() == 1 + 1);  // the point inside, and the legend's sample
}

TEST_CASE("a filled staircase under a format's range") {
  Plot plot{.title = ""};
  plot.x = {.label = "log2 |x|", .low = -4, .high = 4};
  plot.curves.push_back(
      {.name = "", .points = {{-3, 25}, {-2, 75}, {-1, 0}}, .staircase = true, .filled = true});
  plot.ranges.push_back({"e2m1", 0, 2.5, -1});
  const auto range = marks_of(plot, "r"), faint = marks_of(plot, "rf"), area = marks_of(plot, "f");
  CHECK(range.at(0).title == "e2m1: 0 to 2.5");
  CHECK(faint.at(0).title == "e2m1, subnormal: from -1");
  const auto width = [](const auto& mark) { return mark.path[1].x - mark.path[0].x; };
  CHECK(width(range[0]) == doctest::Approx(2.5 * width(faint[0])));
  CHECK(kinds_of(area.at(0)) == "MLLLLLLLZ");
}

TEST_CASE("ticks are 1, 2 or 5 times powers of ten, or powers of ten") {
  using lab::svg::ticks;
  CHECK(ticks(0, 60, false, 6) == std::vector<double>{0, 10, 20, 30, 40, 50, 60});
  CHECK(ticks(-0.11, 0.24, false, 5) == std::vector<double>{-0.1, 0, 0.1, 0.2});
  CHECK(ticks(1, 1e6, true, 6) == std::vector<double>{1, 10, 100, 1e3, 1e4, 1e5, 1e6});
  CHECK(ticks(3, 60, true, 5) == std::vector<double>{5, 10, 20, 50});
  CHECK(ticks(2.1, 2.9, true, 4).size() > 1);
  CHECK(ticks(1, 1, false, 5).empty());
  CHECK(ticks(NAN, 1, false, 5).empty());
  CHECK(ticks(-1e308, 1e308, false, 5).size() > 1);
  CHECK(ticks(1e16, 1e16 + 4, false, 5).size() >= 2);
}

TEST_CASE("no number and no name breaks a drawing") {
  const double numbers[] = {0, -1, 1e308, -1e308, 5e-324, NAN, HUGE_VAL, -HUGE_VAL};
  for (const bool logarithmic : {false, true})
    for (const double a : numbers)
      for (const double b : numbers) {
        Plot plot{.title = "<script>&\"'\x01\xFF"};
        plot.x.logarithmic = plot.y.logarithmic = logarithmic;
        plot.curves.push_back({.name = "]]>\xC0\xAF", .points = {{a, b, a, b}, {b, a}, {1, 2}}});
        plot.curves.push_back(
            {.name = "&", .points = {{a, b}, {b, 1}}, .staircase = true, .filled = true});
        plot.ranges.push_back({"r", a, b, a});
        plot.rules.push_back({"v", a, true});
        const std::string text = lab::svg::draw(plot, lab::svg::Place::file);
        CAPTURE(a);
        CAPTURE(b);
        CHECK(PageReader(text).read().mistake == "");
        CHECK_FALSE(contains(text, "nan"));
        CHECK_FALSE(contains(text, "inf"));
        const std::string pdf = lab::svg::pdf_of(lab::svg::drawing_of(plot), false, 100);
        CHECK_FALSE(contains(pdf, "nan"));
      }
  lab::svg::Bars bars{
      .title = "<", .unit = "&", .parts = {"a", "b"}, .labels = {"A", "B"}, .bars = {}};
  bars.bars.push_back({"<x>", {1e308, 1e308}});
  bars.bars.push_back({"none", {NAN, -1}});
  CHECK(PageReader(lab::svg::draw(bars, lab::svg::Place::file)).read().mistake == "");
}

TEST_CASE("text is escaped, and what is no text replaced") {
  using lab::html::escaped;
  CHECK(escaped("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#39;");
  CHECK(escaped("ä≠\U0001F600") == "ä≠\U0001F600");
  const std::string odd = "\uFFFD";
  CHECK(escaped(std::string_view("\0\x07\x7F", 3)) == odd + odd + odd);
  CHECK(escaped("\xC3") == odd);                      // cut off
  CHECK(escaped("\xC0\xAF") == odd + odd);            // / in two bytes
  CHECK(escaped("\xED\xA0\x80") == odd + odd + odd);  // half of a pair
  CHECK(escaped("\xEF\xBF\xBF") == odd);              // U+FFFF
  CHECK(escaped("\xE2\x80\xAE") == odd);              // reverses the direction of writing
}

TEST_CASE("long names keep their begin and end") {
  using lab::html::shortened;
  CHECK(shortened("short", 8) == "short");
  CHECK(shortened("transformer.h.0.mlp", 9) == "tran….mlp");
  CHECK(shortened("äöüäöüäöü", 5) == "äö…öü");
}

TEST_CASE("a forest plot has a bar for each interval, and text that says its numbers") {
  const std::string text =
      lab::svg::draw(lab::svg::Forest{.title = "loss against a<b",
                                      .unit = "%",
                                      .axis = "percent",
                                      .rows = {{"mxfp8", -0.2, 0.26, 1, {-0.45, 0.05}},
                                               {"mxfp4", 2.5, 0.5, 2},
                                               {"one seed", 1, INFINITY, 3}}});
  CHECK(contains(text, "loss against a&lt;b"));
  CHECK(contains(text, "-0.20 ± 0.26 %"));
  CHECK(contains(text, "<title>-0.45</title>"));  // a dot
  CHECK(contains(text, "+2.50 ± 0.50 %"));
  CHECK(contains(text, ">+1 %<"));
  CHECK(contains(text, "stroke=\"var(--c1)\""));
  CHECK(contains(text, "stroke=\"var(--c2)\""));
  CHECK_FALSE(contains(text, "stroke=\"var(--c3)\""));  // one seed has no interval
  CHECK_FALSE(contains(text, "inf"));
  CHECK_FALSE(contains(text, "nan"));
  CHECK(contains(
      lab::svg::draw(lab::svg::Forest{.title = "none", .unit = "%", .axis = "", .rows = {}}),
      "none"));
}

TEST_CASE("up to four bands are filled; more are paler") {
  lab::svg::Plot plot;
  for (int i = 0; i < 5; ++i) {
    plot.curves.push_back({.name = "band", .points = {{0, 0, 0, 1}, {1, 1, 0, 1}}, .style = i});
    CHECK(marks_of(plot, "band").size() == (i < 4 ? std::size_t(i) + 1 : 0));
    CHECK(marks_of(plot, "many").size() == (i < 4 ? 0 : 5));
  }
}

TEST_CASE("a map has a cell for each number, strong where it is bad, and a row of CSV") {
  lab::svg::Map map{.title = "m",
                    .columns = {{"a", "x"}, {"a", "y"}, {"b,c", "x"}},
                    .rows = {{"s", {{0.5, "50", "t", 1}, {}, {0.25, "25", "", 0}}}}};
  CHECK(marks_of(map, "f").size() == 2);
  CHECK(marks_of(map, "f")[0].style - marks_of(map, "f")[1].style == 8);
  CHECK(lab::svg::csv_of({map}) ==
        "panel,series,x,y,low,high\nm,a,s x,0.5,,\nm,\"b,c\",s x,0.25,,\n");
}

}  // namespace
}  // namespace halftone::test::svg_test
