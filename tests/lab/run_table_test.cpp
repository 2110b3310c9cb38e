// The table of trainings: its cells against plain computations from the same numbers.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <halftone/lab/run.h>
#include <halftone/lab/statistics.h>
#include <halftone/lab/table.h>

#include "lab/columns.h"
#include "support.h"

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
  const auto refused = [&](lab::RunOptions options) {
    options.workload = "mlp_tiny";
    return message_of<UsageError>([&] { lab::run(options, {}, progress); });
  };
  CHECK(contains(refused({}), "[run] 0 policies, 1 seeds"));
  CHECK(contains(refused({.policies = {"fp32"}, .seeds = {}}), "1 policies, 0 seeds"));
  CHECK(contains(refused({.policies = {"fp32"}, .steps = 0}), "0 steps"));
  CHECK(contains(refused({.policies = {"fp32"}, .probe = -1}), "a probe every -1"));
  CHECK(contains(refused({.policies = {"fp32", "fp32"}}), "two policies are called fp32"));
  CHECK(contains(refused({.policies = {"fp32"}, .seeds = {1, 2, 1}}), "a seed is given twice"));
  CHECK(contains(refused({.policies = {"fp23"}}), "fp23"));
  CHECK(progress.str().empty());
}

}  // namespace
}  // namespace halftone::test::run_table_test
