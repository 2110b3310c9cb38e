// The gate: Stein's two-stage procedure against simulated pairs, and its words.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <sstream>

#include <halftone/core/error.h>
#include <halftone/lab/gate.h>

#include "support.h"

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
  CHECK(lab::verdict_of({inf, 0.001}, 0.005) == Verdict::undecided);
}

/// A whole gate on differences that draw() returns.
template <class Draw> GateAnswer simulated(double within, int64_t first, const Draw& draw) {
  Gate gate(within, first);
  std::vector<double> differences;
  for (int64_t wanted; (wanted = gate.wanted(differences)) > std::ssize(differences);)
    while (std::ssize(differences) < wanted) differences.push_back(draw());
  return gate.answer(differences);
}
GateAnswer simulated(double mean, double deviation, double within, int64_t first,
                     std::mt19937& random) {
  std::normal_distribution<double> normal(mean, deviation);
  return simulated(within, first, [&] { return normal(random); });
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
  CHECK(equal >= 0.93 * turns);
  CHECK(wrong == 0);
  CHECK(found >= 0.9 * turns);
}

struct Simulation {
  const char* differences;
  double least_false, most_false;  // expected shares of "equivalent" at the bound, in percent
  std::function<double(std::mt19937&)> draw;  // with the mean 0
};
TEST_CASE("gate: simulated answers at the bound, for normal, skewed and jumping differences") {
  const auto normal = [](double deviation) {
    return [deviation](std::mt19937& random) {
      return std::normal_distribution<double>(0, deviation)(random);
    };
  };
  const auto lognormal = [](std::mt19937& random) {  // deviation 0.4 %
    const double x = std::lognormal_distribution<double>(0, 1)(random);
    return 0.004 * (x - std::exp(0.5)) / std::sqrt((std::exp(1) - 1) * std::exp(1));
  };
  const auto jumping = [](double share, double size) {
    return [share, size](std::mt19937& random) {
      const bool jumps = std::bernoulli_distribution(share)(random);
      return std::normal_distribution<double>(0, 0.002)(random) + (jumps ? size : 0) - share * size;
    };
  };
  const Simulation all[]{
      {"normal, deviation 0.2 %", 1, 4, normal(0.002)},
      {"normal, deviation 0.6 %", 0.5, 4, normal(0.006)},
      {"lognormal, deviation 0.4 %", 5, 25, lognormal},
      {"3 % more in 10 % of the seeds", 30, 50, jumping(0.1, 0.03)},
      {"10 % more in 2 % of the seeds", 45, 70, jumping(0.02, 0.1)},
  };
  std::string table;
  constexpr int turns = 1000;
  for (const Simulation& one : all)
    for (const int64_t first : {8, 30}) {
      std::mt19937 random(5);
      int equivalent = 0, worse = 0, itself = 0;
      int64_t pairs = 0;
      for (int i = 0; i < turns; ++i) {
        const Verdict at_bound =
            simulated(0.005, first, [&] { return 0.005 + one.draw(random); }).verdict;
        equivalent += at_bound == Verdict::equivalent, worse += at_bound == Verdict::worse;
        const GateAnswer same = simulated(0.005, first, [&] { return one.draw(random); });
        itself += same.verdict == Verdict::equivalent, pairs += same.pairs;
      }
      std::ostringstream row;
      row << one.differences << ", --first " << first << ": at the bound " << 0.1 * equivalent
          << " % equivalent, " << 0.1 * worse << " % worse; of equal policies " << 0.1 * itself
          << " % equivalent, " << pairs / turns << " pairs\n";
      table += row.str();
      CAPTURE(row.str());
      CHECK(0.1 * worse <= 4);
      CHECK(itself >= 0.6 * turns);
      if (first == 8) {
        CHECK(0.1 * equivalent >= one.least_false);
        CHECK(0.1 * equivalent <= one.most_false);
      }
    }
  MESSAGE(table);
}

TEST_CASE("gate: later pairs widen the interval if they differ more than the first ones") {
  Gate gate(0.005, 8);
  std::vector<double> differences;
  for (int i = 0; i < 8; ++i) differences.push_back(i % 2 == 0 ? 0.003 : -0.003);
  gate.wanted({}), gate.wanted(differences);
  const double before = gate.answer(differences).difference.half;
  for (int i = 0; i < 4; ++i) differences.push_back(i % 2 == 0 ? 0.1 : -0.1);
  const GateAnswer answer = gate.answer(differences);
  CHECK(answer.difference.half > 5 * before);
  CHECK(answer.verdict == Verdict::undecided);
  CHECK(answer.jump == doctest::Approx(0.1));
}

TEST_CASE("gate: differences are log ratios, or in the loss's units") {
  const lab::Bound share{0.005, true}, units{0.01, false};
  CHECK(share.difference(2.02, 2) == doctest::Approx(std::log(1.01)));
  CHECK(share.difference(2, 2.02) == -share.difference(2.02, 2));
  CHECK(std::isnan(share.difference(-0.965, 1.617)));
  CHECK(std::isnan(share.difference(1.617, -0.965)));
  CHECK(units.difference(1.617, -0.965) == doctest::Approx(2.582));
  CHECK(lab::verdict_of({units.difference(1.617, -0.965), 0.1}, units.of_differences()) ==
        Verdict::worse);
  std::mt19937 random(2);
  std::lognormal_distribution<double> loss(0, 0.3);
  double sum = 0;
  constexpr int pairs = 20000;
  for (int i = 0; i < pairs; ++i) sum += share.difference(loss(random), loss(random));
  CHECK(std::abs(sum / pairs) < 0.01);  // a mean of ratios would be 1.09
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
  const lab::Bound bound{0.005, true};
  CHECK(text_of(answer, bound) ==
        "equivalent: -0.08 % [-0.31, +0.15] at 95 %, 24 paired seeds (8 to estimate the spread, 24 "
        "asked for)\njumps in up to 12 % of the seeds may have been missed");
  answer.jump = 0.02;
  CHECK(text_of(answer, bound)
            .ends_with("\none pair differs by +2.02 %, far from the others: the interval may be "
                       "too narrow"));
  CHECK(text_of(answer, {0.01, false})
            .starts_with("equivalent: -0.0008 [-0.0031, +0.0015] at 95 %, 24 paired"));
  answer = {Verdict::undecided, {0.003, 0.007}, 31, 8, 60, 74};
  CHECK(text_of(answer, bound) ==
        "undecided: +0.30 % [-0.40, +1.01] at 95 %, 31 paired seeds (8 to estimate the spread, 60 "
        "asked for), about 74 would decide");
  CHECK(text_of(GateAnswer{.first = 8, .asked = 8}, bound) ==
        "undecided: 0 complete pairs, and an interval takes at least 2");
  answer = {Verdict::worse, {0.019, 0.005}, 8, 8, 8, 0};
  CHECK(text_of(answer, bound).starts_with("worse by more than 0.5 %: +1.92 % [+1.41, +2.43]"));
}

TEST_CASE("bounds are percentages or numbers above 0") {
  CHECK(lab::bound_of("0.5%").value == 0.005);
  CHECK(lab::bound_of("2%").relative);
  CHECK(lab::bound_of("0.5").value == 0.5);
  CHECK_FALSE(lab::bound_of("0.5").relative);
  for (const char* text : {"", "%", "0", "0%", "-1%", "-1", "x%", "1 %", "nan%", "inf", "1%%"}) {
    CAPTURE(text);
    CHECK(message_of<UsageError>([&] { lab::bound_of(text); }).ends_with("for example 0.01."));
  }
  CHECK_THROWS_AS(Gate(0, 8), UsageError);
  CHECK_THROWS_AS(Gate(0.005, 1), UsageError);
}

}  // namespace
}  // namespace halftone::test::gate_test
