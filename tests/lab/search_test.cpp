// Sensitivity and search: a planted sensitive layer is ranked first and never chosen, errors add up
// as squares, and the result is a policy.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/halftone.h>
#include <halftone/lab/search.h>
#include <halftone/lab/trial.h>

#include "lab/pages.h"
#include "lab/runs.h"
#include "support.h"

namespace halftone::test::search_test {
namespace {

using lab::Candidate;
using lab::Found;
using lab::Measurement;
using lab::Trial;

/// The difference of two nearly equal numbers: in a format of few bits it is noise.
struct Cancelling final : nn::Layer {
  nn::Linear linear{32, 32};
  Tensor forward(const Tensor& x) const override { return (linear(x) + 64.0) - 64.0; }
  void describe(nn::Fields& field) override { field("linear", linear); }
};

lab::Workload planted() {
  manual_seed(4);
  auto model = std::make_unique<nn::Sequential>(nn::Linear(32, 32), nn::Gelu(), Cancelling(),
                                                nn::Gelu(), nn::Linear(32, 32), nn::Gelu(),
                                                nn::LayerNorm(32), nn::Linear(32, 8));
  const Tensor x = randn({256, 32}), y = randn({256, 8});
  return {.task = train::regression(*model), .model = std::move(model), .train = [x, y] {
            return data::DataLoader(data::TensorDataset(x, y), {.batch_size = 64});
          }};
}

lab::Workload small_gpt() {
  manual_seed(3);
  auto model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
      .vocabulary = 23, .context = 16, .layers = 2, .heads = 2, .width = 32});
  const Tensor x = randint(0, 23, {32, 16}), y = randint(0, 23, {32, 16});
  return {.task = train::language_modeling(*model), .model = std::move(model), .train = [x, y] {
            return data::DataLoader(data::TensorDataset(x, y), {.batch_size = 8});
          }};
}

amp::Policy named(const char* name) { return amp::Policy::named(name); }

struct Search {
  amp::Policy base;
  Trial trial;
  Measurement of_base;
  std::ostringstream progress{};
  std::vector<Candidate> candidates;

  Search(lab::Workload (*make)(), const char* name, const std::string& space, const std::string& to)
      : base(named(name)),
        trial(make, amp::Policy::named("fp32"), {.batches = 3, .warm_up = 5}),
        of_base(trial.set_base(base)),
        candidates(
            lab::sensitivity(trial, base, lab::search_space(space, to, base, make()), progress)) {}
  Found found(const lab::SearchOptions& options) {
    return lab::search(trial, base, of_base, candidates, options, progress);
  }
};

const Candidate& worst_of(const std::vector<Candidate>& candidates) {
  return *std::ranges::max_element(
      candidates, {}, [](const Candidate& candidate) { return candidate.measured.added; });
}

TEST_CASE("a planted sensitive module is ranked first and never chosen") {
  Search search(planted, "fp32", "modules", "bf16");
  const Candidate& worst = worst_of(search.candidates);
  CHECK(worst.rule.name == "2 -> bf16");
  for (const lab::Objective objective : {lab::Objective::bytes, lab::Objective::bits})
    for (const double budget : {0.01, 0.03, 0.1}) {
      CAPTURE(budget);
      REQUIRE(worst.measured.added > budget);
      const Found found = search.found({.objective = objective, .budget = budget});
      CHECK_FALSE(found.chosen.empty());
      CHECK(std::ranges::find(found.chosen, worst.rule.name) == found.chosen.end());
      CHECK(found.measured.added <= budget);
      CHECK(lab::cost_of(found.measured, objective) < lab::cost_of(found.base, objective));
    }
}

TEST_CASE("the errors of a GPT's operations add up as squares, within a factor of 2") {
  for (const char* to : {"mxfp8", "mxfp4"}) {
    CAPTURE(to);
    Search search(small_gpt, "fp32", "modules", to);
    const Found found = search.found({.objective = lab::Objective::bits, .budget = 10});
    CHECK(found.dropped.empty());
    REQUIRE(found.frontier.size() > 4);
    for (const lab::FrontierPoint& point : found.frontier) {
      CAPTURE(point.names.size());
      CHECK(point.measured.added >= point.predicted / 2);
      CHECK(point.measured.added <= point.predicted * 2);
    }
    CHECK(found.measured.bits == doctest::Approx(to == std::string("mxfp8") ? 8.25 : 4.25));
  }
}

TEST_CASE("the base adds nothing to itself, and the reference errs nowhere") {
  Search search(small_gpt, "amp-bf16", "ops", "low");
  CHECK(search.trial.measure(search.base).added == 0);
  CHECK(search.of_base.error > 0);
  const Measurement reference = search.trial.measure(named("fp32"));
  CHECK(reference.error == 0);
  CHECK(reference.loss_error == 0);
  CHECK(reference.bits == 32);
  CHECK(search.of_base.bits == 16);
  CHECK(search.of_base.bytes < reference.bytes);
}

TEST_CASE("what is found is a policy that does what was measured") {
  Search search(small_gpt, "amp-bf16", "ops", "low");
  const Found found = search.found({.budget = 0.5});
  CHECK_FALSE(found.chosen.empty());
  const amp::Policy again = policy::read_text(policy::write(found.policy), "found");
  CHECK(again.rules == found.policy.rules);
  const Measurement measured = search.trial.measure(again);
  CHECK(measured.added == found.measured.added);
  CHECK(measured.bytes == found.measured.bytes);
  const std::string json = lab::json_of(found, {.budget = 0.5});
  CHECK(contains(json, "\"chosen\": ["));
  CHECK(contains(lab::table_of(found, {}), "chosen: " + found.chosen.front()));
}

TEST_CASE("a rule that cannot run is no candidate, and says why") {
  const amp::Policy base = named("fp32");
  Trial trial(small_gpt, amp::Policy::named("fp32"), {.batches = 1, .warm_up = 0});
  const Measurement of_base = trial.set_base(base);
  std::vector<policy::Rule> space = policy::read_text(R"({"halftone_policy": 1, "name": "s",
      "rules": [{"name": "bare", "match": {"op": "linear", "path": "**.c_attn"}, "compute": "bf16"},
                {"name": "linear", "match": {"op": "linear"}, "compute": "bf16", "result": "f32"}]})",
                                                      "s")
                                        .rules.rules;
  std::ostringstream progress;
  const auto candidates = lab::sensitivity(trial, base, space, progress);
  CHECK(contains(candidates.at(0).refused, "dtypes differ"));
  CHECK(candidates.at(1).refused.empty());
  const Found found = lab::search(trial, base, of_base, candidates, {.budget = 0.5}, progress);
  CHECK(found.chosen == std::vector<std::string>{"linear"});
  CHECK(contains(lab::table_of(candidates, of_base), "dtypes differ"));
}

TEST_CASE("spaces: what is in them, and what is no space") {
  const amp::Policy amp = named("amp-bf16"), fp32 = named("fp32");
  const auto names = [](const std::vector<policy::Rule>& rules) {
    std::string text;
    for (const policy::Rule& rule : rules) text += rule.name + ";";
    return text;
  };
  CHECK(names(lab::search_space("ops", "low", amp, small_gpt())) ==
        "slice -> low;embedding -> low;add -> low;layer_norm -> low;");
  CHECK(contains(names(lab::search_space("modules", "bf16", fp32, small_gpt())),
                 "transformer.h.1.mlp.c_fc -> bf16;"));
  CHECK(contains(names(lab::search_space("roles", "e4m3", fp32, small_gpt())),
                 "linear weight -> e4m3;linear grad_output -> e4m3;"));
  const auto refusal = [&](const char* space, const char* to, const amp::Policy& base) {
    return message_of<UsageError>([&] { lab::search_space(space, to, base, small_gpt()); });
  };
  CHECK(contains(refusal("op", "low", amp), "no space named \"op\". Did you mean \"ops\""));
  CHECK(contains(refusal("ops", "e4m33", amp), "no compute or quantizer named \"e4m33\""));
  CHECK(contains(refusal("ops", "low", fp32), "fp32 has no autocast"));
  CHECK(contains(refusal("roles", "low", amp), "says nothing of a role"));
  CHECK(contains(message_of<UsageError>([] { lab::objective_named("byte"); }), "\"bytes\""));
}

TEST_CASE("a trial without data is an error") {
  const auto refusal = [](lab::TrialOptions options) {
    return message_of<UsageError>([&] { Trial(small_gpt, amp::Policy::named("fp32"), options); });
  };
  CHECK(contains(refusal({.batches = 0}), "0 batches"));
  const auto flat = [] {
    lab::Workload work = small_gpt();
    for (const Tensor& x : work.model->parameters()) fill_with(x.detach(), NAN);
    return work;
  };
  CHECK(contains(message_of<UsageError>([&] { Trial(flat, amp::Policy::named("fp32")); }),
                 "the gradients under fp32 have the norm inf"));
  const auto empty = [] {
    lab::Workload work = small_gpt();
    work.train = [] {
      return data::DataLoader(data::TensorDataset(zeros({0, 16}), zeros({0, 16})));
    };
    return work;
  };
  CHECK(contains(message_of<UsageError>([&] { Trial(empty, amp::Policy::named("fp32")); }),
                 "no batches"));
}

}  // namespace
}  // namespace halftone::test::search_test

// The choices of a search: the order of candidates, the dropped ones and the reasons. This file
// writes the candidates' errors, and can count the bits of the model.

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
  amp::Policy base = policy::named_or_read("fp32");
  lab::Trial trial;
  Measurement of_base;
  std::vector<Candidate> candidates{};
  std::ostringstream progress{};

  explicit Chain(int layers, const std::string& quantizer = "e8m15")
      : trial(
            [layers] { return linear_workload(std::vector<int64_t>(std::size_t(layers) + 1, 4)); },
            amp::Policy::named("fp32"), {.batches = 2, .warm_up = 0}),
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
  amp::Policy both = chain.base;
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

// Spaces of rules: the rules for a workload's pass, the fields of each, and that each changes
// something.

namespace halftone::test::search_space_test {
namespace {

using lab::search_space;
using policy::Role;
using policy::Rule;
using Names = std::vector<std::string>;

lab::Workload mixed() {
  manual_seed(6);
  auto model = std::make_unique<nn::Sequential>(nn::Linear(8, 8), nn::Gelu(), nn::LayerNorm(8),
                                                nn::Linear(8, 4));
  const Tensor x = randn({16, 8}), y = randn({16, 4});
  return {
      .task = train::regression(static_cast<nn::Layer&>(*model)),
      .model = std::move(model),
      .train = [x, y] { return data::DataLoader(data::TensorDataset(x, y), {.batch_size = 8}); }};
}

std::vector<Rule> space_of(const char* space, const char* to, const char* base = "fp32") {
  return search_space(space, to, policy::named_or_read(base), mixed());
}

Names names_of(const std::vector<Rule>& rules) {
  Names names;
  for (const Rule& rule : rules) names.push_back(rule.name);
  return names;
}

std::set<Role> roles_of(const Rule& rule) {
  std::set<Role> roles;
  for (const auto& [role, what] : rule.roles) roles.insert(role);
  return roles;
}

TEST_CASE("ops: a rule for each kind of operation, in the order of first meeting") {
  const std::vector<Rule> rules = space_of("ops", "bf16");
  CHECK(names_of(rules) ==
        Names{"linear -> bf16", "gelu_erf -> bf16", "layer_norm -> bf16"});  // the loss is outside
  for (const Rule& rule : rules) {
    CAPTURE(rule.name);
    REQUIRE(rule.match.ops.size() == 1);
    CHECK(rule.match.ops[0] + " -> bf16" == rule.name);
    CHECK(rule.roles.empty());
    CHECK(rule.compute);
    CHECK(rule.result == f32);  // fp32 casts nothing: later operations need f32
  }
}

TEST_CASE("ops: what a base computes already is no rule, and a region hands on what it likes") {
  for (const Rule& rule : space_of("ops", "low", "amp-bf16")) {
    CAPTURE(rule.name);
    CHECK(rule.name != "linear -> low");
    CHECK_FALSE(rule.result);
  }
  CHECK(names_of(space_of("ops", "f32", "fp32")).empty());
  const Names back = names_of(space_of("ops", "f32", "amp-bf16"));
  CHECK(std::ranges::find(back, "linear -> f32") != back.end());
  CHECK(std::ranges::find(back, "layer_norm -> f32") != back.end());
}

TEST_CASE("ops to a quantizer: products alone, their operands and the gradient that arrives") {
  const std::vector<Rule> rules = space_of("ops", "mxfp8");
  REQUIRE(names_of(rules) == Names{"linear -> mxfp8"});
  // Blocks run along the dimension that a product sums over, which is another one in backward.
  CHECK(roles_of(rules[0]) == std::set{Role::input, Role::weight, Role::grad_output,
                                       Role::input_backward, Role::weight_backward,
                                       Role::grad_output_weight});
  CHECK_FALSE(rules[0].compute);
  const std::vector<Rule> scaled = space_of("ops", "fp8_tensor");
  CHECK(roles_of(scaled[0]) == std::set{Role::input, Role::weight, Role::grad_output});
  for (const auto& [role, rule] : rules[0].roles)
    CHECK(rule.quantizer == *quantizer_named("mxfp8"));
}

TEST_CASE("ops to a quantizer whose scales the region cannot hold: computed in f32") {
  for (const char* to : {"nvfp4", "fp8_block", "fp8_tensor"}) {
    CAPTURE(to);
    const std::vector<Rule> rules = space_of("ops", to, "amp-bf16");
    REQUIRE_FALSE(rules.empty());
    CHECK(rules[0].compute == policy::Compute::f32);
    CHECK(rules[0].result == bf16);
  }
  CHECK_FALSE(space_of("ops", "mxfp8", "amp-bf16")[0].compute);
}

TEST_CASE("modules: a rule for each module by its path, none for what is outside of all") {
  const std::vector<Rule> rules = space_of("modules", "bf16");
  CHECK(names_of(rules) == Names{"0 -> bf16", "1 -> bf16", "2 -> bf16", "3 -> bf16"});
  for (const Rule& rule : rules) CHECK(rule.match.path + " -> bf16" == rule.name);
  const std::vector<Rule> quantized = space_of("modules", "e4m3");
  CHECK(names_of(quantized) == Names{"0 -> e4m3", "3 -> e4m3"});
  for (const Rule& rule : quantized) CHECK(rule.match.asks == CastClass::low_precision);
}

TEST_CASE("roles: a rule for each operand of each kind of product") {
  const std::vector<Rule> rules = space_of("roles", "e5m2");
  CHECK(names_of(rules) ==
        Names{"linear input -> e5m2", "linear weight -> e5m2", "linear grad_output -> e5m2"});
  std::set<Role> roles;
  for (const Rule& rule : rules) {
    CHECK(rule.match.ops == Names{"linear"});
    REQUIRE(rule.roles.size() == 1);
    roles.merge(roles_of(rule));
  }
  CHECK(roles.size() == 3);
}

TEST_CASE("tf32 is the grid, and a format of one's own is a quantizer") {
  CHECK(names_of(space_of("ops", "tf32")) == Names{"linear -> tf32"});
  CHECK_FALSE(space_of("ops", "tf32").at(0).compute);
  CHECK(names_of(space_of("roles", "e5m6")).size() == 3);
  CHECK(space_of("ops", "e3m4").at(0).roles.at(Role::input).quantizer.grid ==
        *number_format_named("e3m4"));
}

TEST_CASE("the rules of a file are a space as they are") {
  const TemporaryDirectory directory;
  write_file(directory / "s.json", R"({"halftone_policy": 1, "name": "s", "extends": "fp32",
      "rules": [{"name": "a", "match": {"path": "0"}, "compute": "bf16"},
                {"match": {"op": "no_such"}, "weight": "e4m3"}]})");
  CHECK_FALSE(message_of<Error>([&] {
                space_of((directory / "s.json").c_str(), "ignored");
                space_of((directory / "none.json").c_str(), "ignored");
              }).empty());
  write_file(directory / "s.json", R"({"halftone_policy": 1, "name": "s", "extends": "fp32",
      "rules": [{"name": "a", "match": {"path": "0"}, "compute": "bf16"},
                {"match": {"op": "linear"}, "weight": "e4m3"}]})");
  const std::vector<Rule> rules = space_of((directory / "s.json").c_str(), "ignored");
  REQUIRE(rules.size() == 2);
  CHECK(rules[0].name == "a");
  CHECK(rules[1].match.ops == Names{"linear"});
  write_file(directory / "none.json", R"({"halftone_policy": 1, "name": "s", "extends": "fp32"})");
  CHECK(space_of((directory / "none.json").c_str(), "ignored").empty());
}

TEST_CASE("each rule of a space alone changes what a trial measures, and is a policy's rule") {
  const auto measured_with = [](const lab::Trial& trial, const amp::Policy& base,
                                const Rule& rule) {
    amp::Policy file = base;
    file.rules.rules.push_back(rule);
    CHECK(policy::read_text(policy::write(file), "written").rules == file.rules);
    return trial.measure(file);
  };
  lab::Trial trial(mixed, amp::Policy::named("fp32"), {.batches = 1, .warm_up = 0});
  const amp::Policy base = policy::named_or_read("fp32");
  trial.set_base(base);
  for (const auto& [space, to] : {std::pair("ops", "bf16"),
                                  {"modules", "bf16"},
                                  {"ops", "e4m3"},
                                  {"modules", "e4m3"},
                                  {"roles", "e4m3"}})
    for (const Rule& rule : search_space(space, to, base, mixed())) {
      CAPTURE(space);
      CAPTURE(rule.name);
      const lab::Measurement measured = measured_with(trial, base, rule);
      CHECK(measured.added > 0);
      CHECK(measured.added < 1);
    }
}

TEST_CASE("words that are no space and no quantizer are refused, with the nearest") {
  const auto refusal = [](const char* space, const char* to, const char* base = "fp32") {
    return message_of<UsageError>([&] { space_of(space, to, base); });
  };
  CHECK(contains(refusal("module", "bf16"), "Did you mean \"modules\""));
  CHECK(contains(refusal("", "bf16"), "no space named \"\""));
  CHECK(contains(refusal("ops", "bf61"), "Did you mean \"bf16\""));
  CHECK(contains(refusal("ops", "hardware"), "no compute or quantizer named \"hardware\""));
  CHECK(contains(refusal("ops", ""), "no compute or quantizer named \"\""));
  CHECK(contains(refusal("roles", "f16"), "\"f16\" says nothing of a role"));
  CHECK(contains(refusal("ops", "low"), "fp32 has no autocast, so there is no \"low\""));
  CHECK(refusal("ops", "low", "amp-fp16").empty());
}

}  // namespace
}  // namespace halftone::test::search_space_test

// Scores by the Hessian, on a problem whose Hessian is known.

namespace halftone::test::hessian_test {
namespace {

using lab::Candidate;
using lab::Trial;

/// Two layers with outputs of their own; the second gets ten times the inputs.
struct Apart final : nn::Layer {
  nn::Linear a{4, 3, false}, b{4, 3, false};
  Tensor forward(const Tensor& x) const override { return cat({a(x), b(x * 10.0)}, 1); }
  void describe(nn::Fields& field) override { field("a", a), field("b", b); }
};

/// Inputs 2 I and 6 outputs, two batches. The mean of squares has a diagonal Hessian: 2 / 24 * 4 =
/// 1 / 3 for each weight of a, and 100 / 3 for each of b. bf16 rounds the weights to 1.
lab::Workload apart() {
  manual_seed(5);
  auto model = std::make_unique<Apart>();
  fill_with(model->a.weight.detach(), 1 + 0x1p-9), fill_with(model->b.weight.detach(), 1 + 0x1p-10);
  Tensor x = zeros({8, 4});
  for (int64_t i = 0; i < 8; ++i) x.data<float>()[i * 4 + i % 4] = 2;
  const Tensor y = randn({8, 6});
  return {
      .task = train::regression(static_cast<nn::Layer&>(*model)),
      .model = std::move(model),
      .train = [x, y] { return data::DataLoader(data::TensorDataset(x, y), {.batch_size = 4}); }};
}

/// Measures rules on top of a base and scores them.
std::vector<Candidate> scored(lab::Workload (*make)(), const std::string& rules, int64_t probes = 4,
                              const std::string& of_base = "") {
  const Trial trial(make, policy::named_or_read("fp32"), {.batches = 2, .warm_up = 0});
  amp::Policy base = policy::named_or_read("fp32");
  if (!of_base.empty()) base.rules.rules = rules_of(of_base);
  std::ostringstream progress;
  std::vector<Candidate> candidates = lab::sensitivity(trial, base, rules_of(rules), progress);
  lab::add_hessian_scores(trial, base, candidates, probes);
  return candidates;
}

TEST_CASE("the Hessian's score is the trace per element times the squared error") {
  const auto candidates =
      scored(apart, weight_rule("a", "a", "e8m7") + "," + weight_rule("b", "b", "e8m7"));
  REQUIRE(candidates[0].hessian);
  REQUIRE(candidates[1].hessian);
  const lab::HessianScore &a = *candidates[0].hessian, &b = *candidates[1].hessian;
  REQUIRE(a.parameters.size() == 1);
  CHECK(a.parameters[0].curvature.name == "a.weight");
  CHECK(a.parameters[0].curvature.elements == 12);
  CHECK(a.parameters[0].curvature.trace.trace == doctest::Approx(12 / 3.0));
  CHECK(a.parameters[0].squared_error == 12 * 0x1p-18);
  CHECK(b.parameters.at(0).curvature.trace.trace == doctest::Approx(1200 / 3.0));
  CHECK(b.parameters.at(0).squared_error == 12 * 0x1p-20);
  CHECK(a.score == doctest::Approx(1 / 3.0 * 12 * 0x1p-18));
  CHECK(b.score == doctest::Approx(100 / 3.0 * 12 * 0x1p-20));
  // Every probe of a diagonal matrix has the trace itself.
  CHECK(a.low == doctest::Approx(a.score));
  CHECK(a.high == doctest::Approx(a.score));
  const lab::HessianCheck check = lab::check_hessian_scores(candidates);
  CHECK(check.scored == 2);
  CHECK(check.of_gradients == 1);  // b adds more, by its larger inputs
}

TEST_CASE("rules without rounded weights have no score") {
  const std::string half = R"("match": {"op": "linear", "path": "a"})";
  const auto candidates =
      scored(apart, R"({"name": "inputs", )" + half + R"(, "input": "e4m3"}, {"name": "fine", )" +
                        half + R"(, "weight": "e8m12"}, {"name": "cast", )" + half +
                        R"(, "compute": "bf16"},)" + weight_rule("a", "a", "e8m7"));
  CHECK_FALSE(candidates[0].hessian);
  CHECK_FALSE(candidates[1].hessian);  // the weights are on this grid
  REQUIRE(candidates[2].hessian);
  REQUIRE(candidates[3].hessian);
  CHECK(candidates[2].hessian->score == candidates[3].hessian->score);  // a cast rounds as well
  CHECK(lab::check_hessian_scores(candidates).scored == 2);
  CHECK(std::isnan(lab::check_hessian_scores({candidates[0], candidates[3]}).of_loss));
}

TEST_CASE("a rule is not charged for a rounding that the base has as well") {
  const auto candidates =
      scored(apart, weight_rule("same", "a", "e8m7") + "," + weight_rule("coarser", "a", "e8m3"), 4,
             weight_rule("own", "**", "e8m7"));
  CHECK_FALSE(candidates[0].hessian);
  CHECK_FALSE(candidates[1].hessian);  // 1 is on every grid
  const auto wide =
      scored(apart, weight_rule("wide", "a", "e8m20"), 4, weight_rule("own", "**", "e8m7"));
  REQUIRE(wide[0].hessian);
  CHECK(wide[0].hessian->parameters.at(0).squared_error == 12 * 0x1p-18);
}

lab::Workload chain() { return linear_workload({4, 4}, 16, 8); }

TEST_CASE("the interval holds the trace of a Hessian that is not diagonal") {
  // The loss is the mean of squares of x W^T + b - y: its trace by W is 2 sum x^2 / rows.
  const lab::Workload work = chain();
  double squares = 0;
  for (const data::Batch& batch : work.train())
    for (const double x : batch.inputs.to_vector<double>()) squares += x * x;
  const double trace = 2 * squares / 16;
  double width = HUGE_VAL;
  for (const int64_t probes : {16, 256}) {
    const auto candidates = scored(chain, weight_rule("w", "0", "e4m3"), probes);
    REQUIRE(candidates[0].hessian);
    const lab::RoundedParameter& w = candidates[0].hessian->parameters.at(0);
    CHECK(w.curvature.trace.low < trace);
    CHECK(w.curvature.trace.high > trace);
    CHECK(w.curvature.trace.high - w.curvature.trace.low < width);
    width = w.curvature.trace.high - w.curvature.trace.low;
    const double weight = w.squared_error / 16;
    CHECK(candidates[0].hessian->low == doctest::Approx(weight * w.curvature.trace.low));
    CHECK(candidates[0].hessian->high == doctest::Approx(weight * w.curvature.trace.high));
    CHECK(scored(chain, weight_rule("w", "0", "e4m3"), probes)[0].hessian->score ==
          candidates[0].hessian->score);
  }
  CHECK(width < trace / 4);
}

TEST_CASE("a weight that autocast casts before it is quantized is found, and a shared one too") {
  const auto make = [] {
    manual_seed(3);
    auto model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
        .vocabulary = 23, .context = 16, .layers = 1, .heads = 2, .width = 32});
    const Tensor x = randint(0, 23, {8, 16}), y = randint(0, 23, {8, 16});
    return lab::Workload{
        .task = train::language_modeling(*model), .model = std::move(model), .train = [x, y] {
          return data::DataLoader(data::TensorDataset(x, y), {.batch_size = 8});
        }};
  };
  const Trial trial(make, policy::named_or_read("fp32"), {.batches = 1, .warm_up = 1});
  const amp::Policy base = policy::named_or_read("amp-bf16");
  std::ostringstream progress;
  auto candidates =
      lab::sensitivity(trial, base, lab::search_space("modules", "mxfp4", base, make()), progress);
  lab::add_hessian_scores(trial, base, candidates, 2);
  CHECK(candidates.size() == 5);
  for (const Candidate& candidate : candidates) {
    CAPTURE(candidate.rule.name);
    REQUIRE(candidate.hessian);
    REQUIRE(candidate.hessian->parameters.size() == 1);
    const std::string& name = candidate.hessian->parameters[0].curvature.name;
    if (candidate.rule.name == "lm_head -> mxfp4") CHECK(name == "transformer.wte.weight");
    else CHECK(name + " -> mxfp4" == candidate.rule.match.path + ".weight -> mxfp4");
  }
}

TEST_CASE("the table and the record with scores of the Hessian") {
  std::vector<Candidate> candidates(3);
  for (std::size_t i = 0; i < 3; ++i)
    candidates[i].rule.name = "r" + std::to_string(i), candidates[i].measured.added = double(i);
  candidates[0].hessian = lab::HessianScore{.score = 0.5, .low = 0.25, .high = 0.75};
  candidates[2].hessian =
      lab::HessianScore{.score = -0.125,
                        .low = -0.5,
                        .high = 0.25,
                        .parameters = {{{"w", 4, {.trace = -2, .low = -8, .high = 4}}, 0.25}}};
  const Columns table(lab::table_of(candidates, {}));
  CHECK(table.at(1, "rule") == "r2");
  CHECK(table.at(1, "Hessian's score") == "-0.125");
  CHECK(table.at(1, "95 %") == "-0.5 to 0.25");
  CHECK(table.at(2, "rule") == "r0");
  CHECK(table.at(3, "rule") == "r1");
  const auto all = nlohmann::json::parse(lab::json_of(candidates, {}));
  CHECK_FALSE(all["candidates"][1].contains("hessian"));
  const auto& score = all["candidates"][2]["hessian"];
  CHECK(score["score"] == -0.125);
  CHECK(score["parameters"][0] == nlohmann::json{{"name", "w"},
                                                 {"elements", 4},
                                                 {"trace", -2.0},
                                                 {"low", -8.0},
                                                 {"high", 4.0},
                                                 {"squared_error", 0.25}});
}

}  // namespace
}  // namespace halftone::test::hessian_test
