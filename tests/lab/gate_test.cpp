// The gate: Stein's two-stage procedure against simulated pairs, and its words.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include <halftone/core/error.h>
#include <halftone/lab/gate.h>

#include "temporary_directory.h"

namespace halftone::test::gate_test {
namespace {

using lab::Gate;
using lab::GateAnswer;
using lab::Interval;
using lab::Verdict;

TEST_CASE("the quantiles of Student's distribution, as tables have them") {
  CHECK(lab::student_quantile(1) == doctest::Approx(12.7062).epsilon(1e-5));
  CHECK(lab::student_quantile(2) == doctest::Approx(4.30265).epsilon(1e-5));
  CHECK(lab::student_quantile(7) == doctest::Approx(2.36462).epsilon(1e-5));
  CHECK(lab::student_quantile(30) == doctest::Approx(2.04227).epsilon(1e-5));
  CHECK(lab::student_quantile(1000) == doctest::Approx(1.96234).epsilon(1e-5));
  CHECK(lab::student_quantile(7, 0.995) == doctest::Approx(4.02934).epsilon(1e-5));
  CHECK(lab::student_quantile(1, 0.5) == doctest::Approx(1).epsilon(1e-9));
}

TEST_CASE("how many pairs a half width takes") {
  // t(7) = 2.36462; (2.36462 * 0.01 / 0.0025)^2 = 89.5
  CHECK(lab::pairs_needed(0.01, 8, 0.0025) == 90);
  CHECK(lab::pairs_needed(0, 8, 0.0025) == 8);
  CHECK(lab::pairs_needed(1e9, 8, 1e-9) == lab::most_pairs);
  CHECK(lab::pairs_needed(std::nan(""), 8, 0.0025) == lab::most_pairs);
  CHECK(lab::pairs_needed(std::numeric_limits<double>::infinity(), 2, 1) == lab::most_pairs);
}

TEST_CASE("verdicts: the interval against the bound") {
  CHECK(lab::verdict_of({0.001, 0.003}, 0.005) == Verdict::equivalent);
  CHECK(lab::verdict_of({0.003, 0.003}, 0.005) == Verdict::undecided);
  CHECK(lab::verdict_of({0.009, 0.003}, 0.005) == Verdict::worse);
  CHECK(lab::verdict_of({-0.009, 0.003}, 0.005) == Verdict::better);
  const double inf = std::numeric_limits<double>::infinity();
  CHECK(lab::verdict_of({0, inf}, 0.005) == Verdict::undecided);
  CHECK(lab::verdict_of({std::nan(""), 0.001}, 0.005) == Verdict::undecided);
}

/// A whole gate on normal differences.
GateAnswer simulated(double mean, double deviation, double within, int64_t first,
                     std::mt19937& random) {
  std::normal_distribution<double> normal(mean, deviation);
  Gate gate(within, first);
  std::vector<double> differences;
  for (int64_t wanted; (wanted = gate.wanted(differences)) > std::ssize(differences);)
    while (std::ssize(differences) < wanted) differences.push_back(normal(random));
  return gate.answer(differences);
}

TEST_CASE("coverage of the interval is 95 %, whatever the spread and the mean") {
  std::mt19937 random(7);
  constexpr int turns = 3000;
  // The standard error of a share of 95 % of 3,000 is 0.4 %.
  for (const double mean : {0.0, 0.002, 0.005, 0.02})
    for (const double deviation : {0.002, 0.006, 0.02}) {
      CAPTURE(mean);
      CAPTURE(deviation);
      int covered = 0;
      for (int i = 0; i < turns; ++i) {
        const Interval d = simulated(mean, deviation, 0.005, 8, random).difference;
        covered += std::abs(d.mean - mean) <= d.half;
      }
      CHECK(covered >= 0.93 * turns);
      CHECK(covered <= 0.985 * turns);  // more where the first pairs are more than are needed
    }
}

TEST_CASE("verdicts are right: a policy against itself, and a planted difference of the bound") {
  std::mt19937 random(11);
  constexpr int turns = 1000;
  int equal = 0, wrong = 0, found = 0;
  for (int i = 0; i < turns; ++i) {
    const Verdict same = simulated(0, 0.006, 0.005, 8, random).verdict;
    equal += same == Verdict::equivalent;
    wrong += same == Verdict::worse || same == Verdict::better;
    // "Is the difference within 0.25 %?" while it is 0.5 %.
    found += simulated(0.005, 0.006, 0.0025, 8, random).verdict == Verdict::worse;
  }
  CHECK(equal >= 0.95 * turns);
  CHECK(wrong == 0);
  CHECK(found >= 0.9 * turns);
}

TEST_CASE("an early answer needs no more than the first pairs; equal runs neither") {
  std::mt19937 random(3);
  CHECK(simulated(0.05, 0.004, 0.005, 8, random).pairs == 8);
  const GateAnswer same = simulated(0, 0, 0.005, 8, random);
  CHECK(same.verdict == Verdict::equivalent);
  CHECK(same.pairs == 8);
}

TEST_CASE("too few differences are undecided") {
  Gate gate(0.005, 8);
  CHECK(gate.wanted({}) == 8);
  const GateAnswer none = gate.answer({});
  CHECK(none.verdict == Verdict::undecided);
  CHECK(none.would_decide == 0);
  const std::vector<double> one{0.01};
  CHECK(gate.answer(one).verdict == Verdict::undecided);
}

TEST_CASE("words") {
  GateAnswer answer{.verdict = Verdict::equivalent,
                    .difference = {-0.0008, 0.0023},
                    .pairs = 24,
                    .first = 8,
                    .asked = 24};
  CHECK(text_of(answer, 0.005) ==
        "equivalent: -0.08 % [-0.31, +0.15] at 95 %, 24 paired seeds (8 to estimate the spread, 24 "
        "asked for)");
  answer = {Verdict::undecided, {0.003, 0.007}, 31, 8, 60, 74};
  CHECK(text_of(answer, 0.005) ==
        "undecided: +0.30 % [-0.40, +1.00] at 95 %, 31 paired seeds (8 to estimate the spread, 60 "
        "asked for), about 74 would decide");
  CHECK(text_of(GateAnswer{.first = 8, .asked = 8}, 0.005) ==
        "undecided: 0 complete pairs, and an interval takes at least 2");
  answer = {Verdict::worse, {0.019, 0.005}, 8, 8, 8, 0};
  CHECK(text_of(answer, 0.005).starts_with("worse by more than 0.5 %: +1.90 % [+1.40, +2.40]"));
}

TEST_CASE("bounds are percentages above 0") {
  CHECK(lab::bound_of("0.5%") == 0.005);
  CHECK(lab::bound_of("2%") == 0.02);
  for (const char* text : {"", "%", "0.5", "0%", "-1%", "x%", "1 %", "nan%", "inf%", "1%%"}) {
    CAPTURE(text);
    CHECK(message_of<UsageError>([&] { lab::bound_of(text); }).ends_with("for example 0.5%."));
  }
  CHECK_THROWS_AS(Gate(0, 8), UsageError);
  CHECK_THROWS_AS(Gate(0.005, 1), UsageError);
}

}  // namespace
}  // namespace halftone::test::gate_test
