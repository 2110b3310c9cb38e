// Run folders with one damage each: table, report and a repeated run refuse them, or say what is
// missing. And a repeated run prints the telemetry of the first.
#include <doctest/doctest.h>

#include <iostream>
#include <sstream>

#include <halftone/core/factory.h>
#include <halftone/data/dataset.h>
#include <halftone/lab/commands/table.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/report/report.h>
#include <halftone/lab/run.h>
#include <halftone/nn/nn.h>

#include <nlohmann/json.hpp>

#include "lab/captured.h"
#include "lab/runs.h"
#include "support.h"

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
    return lab::run({.workload = "small",
                     .policies = {"fp32", "amp-bf16"},
                     .seeds = {3},
                     .steps = 5,
                     .probe = 2,
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
      CHECK(message.ends_with("make it anew with halftone-lab run."));
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
