// halftone-lab diff: equal and different traces, other intervals, and folders without a trace.
#include <doctest/doctest.h>

#include <filesystem>
#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/lab/run.h>

#include "lab/runs.h"
#include "lab/said.h"
#include "support.h"

namespace halftone::test::diff_test {
namespace {

lab::NamedWorkload mine() {
  return {"mine", "", [](uint64_t) { return linear_workload({4, 2}); }, {}};
}

/// A run of 8 steps with a trace of every Nth.
struct Traced {
  TemporaryDirectory directory{};
  std::filesystem::path folder = directory / "mine-fp32-0";
  explicit Traced(int64_t every, double lr = 0) {
    std::ostringstream progress;
    lab::run({.workload = "mine",
              .policies = {"fp32"},
              .steps = 8,
              .trace = every,
              .choices = {.lr = lr},
              .out = directory.path()},
             {mine()}, progress);
  }
};

Said diff(const std::filesystem::path& first, const std::filesystem::path& second,
          const std::string& json = "") {
  std::vector<std::string> words{"diff", first.string(), second.string()};
  if (!json.empty()) words.insert(words.end(), {"--json", json});
  return said_by(words, mine());
}

TEST_CASE("traces of other intervals are compared in the steps that both have") {
  const Traced all(1), even(2), third(3), faster(3, 0.5);
  CHECK(diff(all.folder, all.folder).output.starts_with("equal: "));
  const Said equal = diff(all.folder, even.folder);
  CHECK(equal.code == 0);
  CHECK(contains(equal.output,
                 "the traces have different steps. Compared: steps 0, 2, 4, 6\nequal: "));
  CHECK(contains(diff(even.folder, third.folder).output, "Compared: steps 0, 6\nequal: "));
  const Said other = diff(even.folder, faster.folder);
  CHECK(other.code == 1);
  CHECK(contains(other.output, "Compared: steps 0, 6\n"));
  CHECK(contains(other.output, "first difference: step 6, "));
  const auto json = nlohmann::json::parse(diff(all.folder, even.folder, "-").output);
  CHECK(json["equal"] == true);
  CHECK(json["steps"] == 4);
  CHECK(json["all_steps"] == false);
  CHECK(nlohmann::json::parse(diff(all.folder, all.folder, "-").output)["all_steps"] == true);
}

TEST_CASE("folders that cannot be compared are mistakes, in the name of diff") {
  const Traced good(2), bad(2);
  const auto refused = [&] {
    const Said said = diff(good.folder, bad.folder);
    CHECK(said.code == 2);
    CHECK(said.errors.starts_with("[diff] "));
    return said.errors;
  };
  const std::string trace = read_file(bad.folder / "trace.jsonl");
  write_file(bad.folder / "trace.jsonl", "");
  CHECK(contains(refused(), " has an empty trace.jsonl. Give the folder of a run"));
  std::string later = trace;
  for (std::size_t at = 0; (at = later.find("\"step\":", at)) != later.npos; at += 9)
    later.insert(at + 7, "1");  // steps 10, 12, ...
  write_file(bad.folder / "trace.jsonl", later);
  CHECK(contains(refused(), "no step in common: 0, 2, 4, 6 and 10, 12, 14, 16."));
  write_file(bad.folder / "trace.jsonl", trace);
  const std::string summary = read_file(bad.folder / "summary.json");
  write_file(bad.folder / "summary.json", "{");
  CHECK(contains(refused(), "summary.json: it is not JSON."));
  std::filesystem::remove(bad.folder / "summary.json");
  CHECK(contains(refused(), "summary.json: the file is missing."));
  write_file(bad.folder / "summary.json", summary);
  CHECK(diff(good.folder, bad.folder).code == 0);
  std::filesystem::remove(bad.folder / "trace.jsonl");
  CHECK(contains(refused(), " has no trace.jsonl."));
}

}  // namespace
}  // namespace halftone::test::diff_test
