// The report of folders that this file writes: complete, large and damaged ones.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include <halftone/lab/commands/table.h>
#include <halftone/lab/report/report.h>
#include <halftone/policy/policy_file.h>

#include "lab/pages.h"
#include "lab/run_files/summaries.h"
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
  CHECK(read.tags.count("script") == 0);
  CHECK(read.tags.count("section") == 14);
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
  CHECK_FALSE(contains(page, "class=\"absent\""));
  // (0.1 / 1, 0.1 / 1.1, 0.1 / 1.2), mean 9.14 %, t(2) = 4.303
  CHECK(contains(page, "+9.14 ± 2.1 %"));
  CHECK(contains(page, "layers.{0-2}/linear.0 (3)"));
  CHECK(contains(page, "≠ bf16"));
  CHECK(contains(page, ">0, 1, 2<"));
  CHECK(contains(page, "the first that deviates: 18 % underflow to 0"));
  CHECK(contains(page, "softmax -&gt; low"));
  CHECK(contains(page, "prefers-color-scheme:dark"));
  CHECK(contains(page, ">2^"));  // a scale that would be enough

  options.reference = "b";
  CHECK(contains(report(options), "-8.3"));
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

TEST_CASE("panels without data say which command makes it") {
  const TemporaryDirectory directory;
  std::filesystem::create_directory(directory / "run");
  write_file(directory / "run" / "summary.json", summary_with().dump());
  const std::string page = report({.paths = {directory / "run"}});
  check_page(page);
  for (const char* command :
       {"halftone-lab run POLICY", "halftone-lab compare POLICY", "halftone-lab search POLICY"})
    CHECK(contains(page, "It is made by <code>" + std::string(command)));
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
  CHECK(contains(page, "worst of 1000 sites"));
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
