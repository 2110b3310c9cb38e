// Sensitivity and search: a planted sensitive layer is ranked first and never chosen, errors add up
// as squares, and the result is a policy.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/data/dataset.h>
#include <halftone/lab/search.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/nn.h>
#include <halftone/policy/policy.h>

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

policy::PolicyFile named(const char* name) { return policy::file_of(amp::Strategy::named(name)); }

struct Search {
  policy::PolicyFile base;
  Trial trial;
  Measurement of_base;
  std::ostringstream progress{};
  std::vector<Candidate> candidates;

  Search(lab::Workload (*make)(), const char* name, const std::string& space, const std::string& to)
      : base(named(name)),
        trial(make, amp::Strategy::named("fp32"), {.batches = 3, .warm_up = 5}),
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
  const policy::PolicyFile again = policy::read_text(policy::write(found.policy), "found");
  CHECK(again.rules == found.policy.rules);
  const Measurement measured = search.trial.measure(again);
  CHECK(measured.added == found.measured.added);
  CHECK(measured.bytes == found.measured.bytes);
  const std::string json = lab::json_of(found, {.budget = 0.5});
  CHECK(contains(json, "\"chosen\": ["));
  CHECK(contains(lab::table_of(found, {}), "chosen: " + found.chosen.front()));
}

TEST_CASE("a rule that cannot run is no candidate, and says why") {
  const policy::PolicyFile base = named("fp32");
  Trial trial(small_gpt, amp::Strategy::named("fp32"), {.batches = 1, .warm_up = 0});
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
  const policy::PolicyFile amp = named("amp-bf16"), fp32 = named("fp32");
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
  const auto refusal = [&](const char* space, const char* to, const policy::PolicyFile& base) {
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
    return message_of<UsageError>([&] { Trial(small_gpt, amp::Strategy::named("fp32"), options); });
  };
  CHECK(contains(refusal({.batches = 0}), "0 batches"));
  const auto flat = [] {
    lab::Workload work = small_gpt();
    for (const Tensor& x : work.model->parameters()) fill_with(x.detach(), NAN);
    return work;
  };
  CHECK(contains(message_of<UsageError>([&] { Trial(flat, amp::Strategy::named("fp32")); }),
                 "the gradients under fp32 have the norm inf"));
  const auto empty = [] {
    lab::Workload work = small_gpt();
    work.train = [] {
      return data::DataLoader(data::TensorDataset(zeros({0, 16}), zeros({0, 16})));
    };
    return work;
  };
  CHECK(contains(message_of<UsageError>([&] { Trial(empty, amp::Strategy::named("fp32")); }),
                 "no batches"));
}

}  // namespace
}  // namespace halftone::test::search_test
