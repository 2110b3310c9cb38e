// The choices of a search: the order of candidates, the dropped ones and the reasons. This file
// writes the candidates' errors, and can count the bits of the model.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/lab/search.h>

#include "lab/columns.h"
#include "lab/runs.h"
#include "support.h"

namespace halftone::test::search_choice_test {
namespace {

using lab::Candidate;
using lab::Found;
using lab::Measurement;
using lab::Objective;
using Names = std::vector<std::string>;
using nlohmann::json;

/// A chain of equal layers under fp32; a rule for the weight of each of them, by its number.
struct Chain {
  policy::PolicyFile base = policy::named_or_read("fp32");
  lab::Trial trial;
  Measurement of_base;
  std::vector<Candidate> candidates{};
  std::ostringstream progress{};

  explicit Chain(int layers, const std::string& quantizer = "e8m15")
      : trial(
            [layers] { return linear_workload(std::vector<int64_t>(std::size_t(layers) + 1, 4)); },
            amp::Strategy::named("fp32"), {.batches = 2, .warm_up = 0}),
        of_base(trial.set_base(base)) {
    for (int i = 0; i < layers; ++i)
      add(weight_rule("w" + std::to_string(i), std::to_string(i), quantizer));
  }
  void add(const std::string& rule) {
    candidates.push_back({.rule = rules_of(rule).at(0)});
    Measurement& measured = candidates.back().measured;
    measured = of_base, measured.bits -= 1, measured.bytes -= 100;
  }
  /// As if each had been measured to add this error.
  void adds(const std::vector<double>& errors) {
    for (std::size_t i = 0; i < errors.size(); ++i) candidates[i].measured.added = errors[i];
  }
  Found found(double budget, Objective objective = Objective::bits) {
    return lab::search(trial, base, of_base, candidates, {.objective = objective, .budget = budget},
                       progress);
  }
};

Names names_at(const Found& found, std::size_t point) { return found.frontier.at(point).names; }

TEST_CASE("objectives by name, and their costs") {
  const Measurement m{.milliseconds = 3, .bytes = 5, .bits = 7};
  CHECK(lab::cost_of(m, lab::objective_named("bytes")) == 5);
  CHECK(lab::cost_of(m, lab::objective_named("time")) == 3);
  CHECK(lab::cost_of(m, lab::objective_named("bits")) == 7);
  for (const char* name : {"", "Bytes", "bit", "milliseconds"}) {
    CAPTURE(name);
    CHECK(contains(message_of<UsageError>([&] { lab::objective_named(name); }),
                   "[search] there is no objective named \"" + std::string(name) + '"'));
  }
}

TEST_CASE("a budget that is not a number above 0 is refused") {
  Chain chain(1);
  for (const double budget : {0.0, -1.0, std::nan("")})
    CHECK(
        contains(message_of<UsageError>([&] { chain.found(budget); }), "[search] the budget is "));
}

TEST_CASE("the frontier adds rules by gain per squared error, and predicts roots of squares") {
  Chain chain(4);
  chain.adds({0.04, 0.01, 0.03, 0.02});
  const Found found = chain.found(1);
  REQUIRE(found.frontier.size() == 4);
  const Names order{"w1", "w3", "w2", "w0"};
  const double errors[] = {0.01, 0.02, 0.03, 0.04};
  double squares = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(names_at(found, i) == Names(order.begin(), order.begin() + std::ptrdiff_t(i) + 1));
    squares += errors[i] * errors[i];
    CHECK(found.frontier[i].predicted == doctest::Approx(std::sqrt(squares)));
    // Weights of i + 1 layers have 24 bits, the other operands 32.
    CHECK(found.frontier[i].measured.bits == doctest::Approx(32 - 4.0 * double(i + 1) / 4));
  }
  CHECK(found.chosen == order);
  CHECK(found.predicted == doctest::Approx(std::sqrt(squares)));
  CHECK(found.measured.bits == doctest::Approx(28));
}

TEST_CASE("a larger gain is worth a larger error, by its square") {
  Chain chain(3);
  chain.adds({0.02, 0.01, 0.03});
  // Gains per squared error: 1 / 4, 1 / 1, 10 / 9 (each times 10^4).
  chain.candidates[2].measured.bits = chain.of_base.bits - 10;
  CHECK(names_at(chain.found(1), 2) == Names{"w2", "w1", "w0"});
}

TEST_CASE("equal candidates stay in the order of the space") {
  Chain chain(5);
  chain.adds({0.01, 0.01, 0.01, 0.01, 0.01});
  CHECK(chain.found(1).chosen == Names{"w0", "w1", "w2", "w3", "w4"});
}

TEST_CASE("many candidates make 16 points, the last of them all") {
  Chain chain(40);
  chain.adds(std::vector<double>(40, 0.001));
  const Found found = chain.found(1);
  REQUIRE(found.frontier.size() == 16);
  for (std::size_t i = 0; i < 16; ++i) CHECK(found.frontier[i].names.size() == (i + 1) * 40 / 16);
  CHECK(found.chosen.size() == 40);
}

TEST_CASE("a rule that does not fit is passed over, and a later one that fits is taken") {
  Chain chain(4);
  chain.adds({0.01, 0.02, 0.03, 0.001});
  chain.candidates[3].measured.bits = chain.of_base.bits - 1e-6;  // the worst ratio of all
  // 0.01 and 0.02 make 0.0224; with 0.03 it would be 0.0374, with 0.001 it is 0.0224.
  CHECK(chain.found(0.023).chosen == Names{"w0", "w1", "w3"});
  CHECK(chain.found(0.0374).chosen == Names{"w0", "w1", "w3"});
  CHECK(chain.found(0.0375).chosen == Names{"w0", "w1", "w2", "w3"});
  CHECK(chain.found(0.01).chosen == Names{"w0"});
}

TEST_CASE("where nothing fits, the base is what is found") {
  Chain chain(2);
  chain.adds({0.5, 0.6});
  const Found found = chain.found(0.1);
  CHECK(found.chosen.empty());
  CHECK(found.dropped.empty());
  CHECK(found.frontier.size() == 2);
  CHECK(found.predicted == 0);
  CHECK(found.measured.bits == chain.of_base.bits);
  CHECK(policy::hash(found.policy) == policy::hash(chain.base));
}

TEST_CASE("an empty space finds the base") {
  Chain chain(1);
  chain.candidates.clear();
  const Found found = chain.found(0.1);
  CHECK(found.frontier.empty());
  CHECK(found.candidates.empty());
  CHECK(found.chosen.empty());
  CHECK(chain.progress.str().empty());
  CHECK(lab::sensitivity(chain.trial, chain.base, {}, chain.progress).empty());
}

TEST_CASE("what was refused, is not finite, or saves nothing is no candidate") {
  Chain chain(5);
  chain.adds({0.01, 0.01, std::numeric_limits<double>::infinity(), std::nan(""), 0.01});
  chain.candidates[0].refused = "it cannot run";
  chain.candidates[1].measured.bits = chain.of_base.bits;
  const Found found = chain.found(1);
  CHECK(found.chosen == Names{"w4"});
  CHECK(found.frontier.size() == 1);
  CHECK(found.candidates.size() == 5);
}

TEST_CASE("a time within a hundredth is no gain, a byte is one") {
  Chain chain(3);
  chain.adds({0.01, 0.01, 0.01});
  chain.of_base.milliseconds = 10;
  chain.candidates[0].measured.milliseconds = 9.95;
  chain.candidates[1].measured.milliseconds = 11;
  chain.candidates[2].measured.milliseconds = 9;
  CHECK(names_at(chain.found(1, Objective::time), 0) == Names{"w2"});
  chain.candidates[0].measured.bytes = chain.of_base.bytes - 1;
  chain.candidates[1].measured.bytes = chain.of_base.bytes + 1;
  const Found bytes = chain.found(1, Objective::bytes);
  REQUIRE(bytes.frontier.size() == 2);
  CHECK(names_at(bytes, 1) == Names{"w2", "w0"});
}

TEST_CASE("a rule that errs far beyond its prediction is found among the others and dropped") {
  for (const int bad : {0, 3, 6}) {
    CAPTURE(bad);
    Chain chain(7);
    chain.candidates[std::size_t(bad)].rule =
        rules_of(weight_rule("bad", std::to_string(bad), "e2m1")).at(0);
    chain.adds(std::vector<double>(7, 1e-4));
    const Found found = chain.found(0.01);
    CHECK(found.dropped == Names{"bad"});
    CHECK(found.chosen.size() == 6);
    CHECK(found.measured.added <= 2 * found.predicted);
  }
}

TEST_CASE("where all errors are larger than the budget, the last rules go") {
  Chain chain(2, "e4m3");
  std::ostringstream progress;
  std::vector<policy::Rule> space;
  for (const Candidate& candidate : chain.candidates) space.push_back(candidate.rule);
  chain.candidates = lab::sensitivity(chain.trial, chain.base, space, progress);
  policy::PolicyFile both = chain.base;
  both.rules.rules = space;
  const double measured = chain.trial.measure(both).added;
  // Their prediction is 70 % of the error: together they seem within the budget, until they are
  // measured.
  for (Candidate& candidate : chain.candidates) candidate.measured.added *= 0.7;
  const double predicted =
      std::hypot(chain.candidates[0].measured.added, chain.candidates[1].measured.added);
  REQUIRE(measured > predicted);
  const Found found = chain.found((measured + predicted) / 2);
  CHECK(found.chosen == Names{found.frontier.at(0).names.at(0)});
  CHECK(found.dropped.size() == 1);
  CHECK(found.measured.added <= (measured + predicted) / 2);
}

TEST_CASE("a rule without which nothing is lost goes") {
  Chain chain(2);
  chain.add(weight_rule("again", "0", "e8m15"));
  chain.adds({0.01, 0.02, 0.03});
  const Found found = chain.found(1);
  CHECK(found.chosen == Names{"w0", "w1"});
  CHECK(found.dropped == Names{"again"});
  CHECK(found.policy.rules.rules.size() == 2);
}

TEST_CASE("what is found is the base with the chosen rules after its own, in their order") {
  Chain chain(3);
  chain.base.rules.rules = rules_of(weight_rule("own", "1", "e8m20"));
  chain.of_base = chain.trial.set_base(chain.base);
  chain.adds({0.03, 0.02, 0.01});
  for (Candidate& c : chain.candidates) c.measured.bits = chain.of_base.bits - 1;
  const Found found = chain.found(1);
  Names names;
  for (const policy::Rule& rule : found.policy.rules.rules) names.push_back(rule.name);
  CHECK(names == Names{"own", "w2", "w1", "w0"});
  CHECK(policy::read_text(policy::write(found.policy), "found").rules == found.policy.rules);
}

TEST_CASE("sensitivity says of each rule what it adds, or why it cannot run") {
  Chain chain(2);
  const std::vector<policy::Rule> space =
      rules_of(weight_rule("fine", "1", "e8m15") +
               R"(, {"name": "bare", "match": {"op": "linear", "path": "0"}, "compute": "bf16"})");
  const auto candidates = lab::sensitivity(chain.trial, chain.base, space, chain.progress);
  REQUIRE(candidates.size() == 2);
  CHECK(candidates[0].refused.empty());
  CHECK(candidates[0].measured.added > 0);
  CHECK(candidates[0].measured.added < 0x1p-15);
  CHECK_FALSE(candidates[1].refused.empty());
  for (const Candidate& candidate : candidates)
    CHECK(contains(chain.progress.str(), candidate.rule.name + ": "));
}

// --- printed and written results

Found written() {
  Found found;
  found.base = {.error = 0.01, .milliseconds = 2, .bytes = 2 << 20, .bits = 32};
  found.measured = {.error = 0.02,
                    .added = 0.015,
                    .loss_error = 1e-5,
                    .milliseconds = 1.5,
                    .bytes = 1 << 20,
                    .bits = 16};
  found.predicted = 0.014;
  found.chosen = {"b", "a"}, found.dropped = {"c"};
  for (const char* name : {"a", "b", "c"}) found.candidates.push_back({.rule = {.name = name}});
  found.candidates[0].measured = {.error = 0.5, .added = 0.25, .bytes = 3 << 20, .bits = 24};
  found.candidates[1].measured = {
      .added = 0.125, .milliseconds = 2.5, .bytes = 2 << 20, .bits = 40};
  found.candidates[2].refused = "no \"kernel\"";
  found.frontier = {
      {{"b"}, 0.125, found.candidates[1].measured},
      {{"b", "a"}, 0.28, {.added = std::numeric_limits<double>::infinity(), .bytes = 1 << 20}}};
  return found;
}

TEST_CASE("the record of a search is what was found, field by field") {
  const Found found = written();
  const json all = json::parse(lab::json_of(found, {.objective = Objective::time, .budget = 0.5}));
  CHECK(all["format"] == 1);
  CHECK(all["objective"] == "time");
  CHECK(all["budget"] == 0.5);
  CHECK(all["predicted"] == 0.014);
  CHECK(all["chosen"] == json({"b", "a"}));
  CHECK(all["dropped"] == json::array({"c"}));
  const auto same = [](const json& object, const Measurement& m) {
    return object["error"] == m.error && object["added"] == m.added &&
           object["loss_error"] == m.loss_error && object["milliseconds"] == m.milliseconds &&
           object["bytes"] == m.bytes && object["bits"] == m.bits;
  };
  CHECK(same(all["base"], found.base));
  CHECK(same(all["measured"], found.measured));
  REQUIRE(all["candidates"].size() == 3);
  for (std::size_t i = 0; i < 3; ++i)
    CHECK(all["candidates"][i]["name"] == found.candidates[i].rule.name);
  CHECK(same(all["candidates"][0], found.candidates[0].measured));
  CHECK(all["candidates"][2]["refused"] == "no \"kernel\"");
  CHECK_FALSE(all["candidates"][2].contains("added"));
  REQUIRE(all["frontier"].size() == 2);
  CHECK(all["frontier"][0]["names"] == json::array({"b"}));
  CHECK(all["frontier"][0]["predicted"] == 0.125);
  CHECK(same(all["frontier"][0], found.frontier[0].measured));
  CHECK(all["frontier"][1]["added"].is_null());  // infinite
}

TEST_CASE("the table of candidates: the least error first, what was refused last") {
  const Found found = written();
  const Columns table(lab::table_of(found.candidates, found.base));
  REQUIRE(table.rows() == 4);
  CHECK(table.at(0, "rule") == "(the base)");
  CHECK(table.at(0, "adds to gradients") == "1.0 %");
  CHECK(table.at(0, "kept MiB") == "2.00");
  CHECK(table.at(1, "rule") == "b");
  CHECK(table.at(1, "adds to gradients") == "12.5 %");
  CHECK(table.at(1, "ms") == "+0.50");
  CHECK(table.at(1, "bits") == "+8.00");
  CHECK(table.at(2, "rule") == "a");
  CHECK(table.at(2, "kept MiB") == "+1.00");
  CHECK(table.at(2, "bits") == "-8.00");
  CHECK(table.at(3, "rule") == "c");
  CHECK(table.at(3, "adds to gradients") == "no \"kernel\"");
}

}  // namespace
}  // namespace halftone::test::search_choice_test
