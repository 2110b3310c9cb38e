// Comparisons: the same policy twice differs nowhere; formats behave as predicted; planted faults
// are named first, with their reason.
#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include <halftone/amp/session.h>
#include <halftone/autograd/ops.h>
#include <halftone/data/dataset.h>
#include <halftone/lab/commands/compare.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/nn.h>
#include <halftone/policy/policy.h>

#include "policy/planted_faults.h"

namespace halftone::test::compare_test {
namespace {

using lab::Comparison;
using lab::Deviation;
using policy::Role;

lab::Workload on_batch(std::unique_ptr<nn::Layer> model, const Tensor& x, const Tensor& y,
                       bool regression) {
  return {.task = regression ? train::regression(*model) : train::language_modeling(*model),
          .model = std::move(model),
          .train = [x, y] { return data::DataLoader(data::TensorDataset(x, y)); },
          .example = data::Batch{x, y}};
}

lab::Workload linear() {
  manual_seed(2);
  auto model = std::make_unique<nn::Linear>(256, 128);
  return on_batch(std::move(model), randn({64, 256}), randn({64, 128}), true);
}

lab::Workload small_gpt() {
  manual_seed(3);
  auto model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
      .vocabulary = 23, .context = 16, .layers = 2, .heads = 2, .width = 32});
  return on_batch(std::move(model), randint(0, 23, {4, 16}), randint(0, 23, {4, 16}), false);
}

amp::Strategy fp8_linear(const std::string& quantizer) {
  return policy::parse(R"({"halftone_policy": 1, "name": "t", "extends": "fp32", "rules":
    [{"match": {"op": "linear"}, "input": ")" +
                       quantizer + R"(", "weight": ")" + quantizer + R"("}]})");
}

TEST_CASE("a policy compared with itself differs nowhere") {
  for (const char* name : {"fp32", "amp-bf16"}) {
    const amp::Strategy same = amp::Strategy::named(name);
    const Comparison c = lab::compare(small_gpt, same, same);
    CHECK(c.first == -1);
    CHECK(c.reference_loss == c.candidate_loss);
    for (const Deviation& row : c.rows) {
      CAPTURE(row.site);
      CHECK(row.twin == 0);
    }
  }
}

TEST_CASE("Gaussian numbers in a linear layer round as every format predicts") {
  for (const char* name : {"e4m3", "e5m2", "bf16", "f16", "mxfp8", "mxfp6", "mxfp6-e3m2", "mxfp4",
                           "nvfp4", "fp8_tensor", "fp8_block"}) {
    CAPTURE(name);
    const Comparison c = lab::compare(linear, amp::Strategy::named("fp32"), fp8_linear(name));
    int seen = 0;
    for (const Deviation& row : c.rows) {
      if (row.role != Role::input && row.role != Role::output) continue;
      ++seen;
      if (row.role == Role::input) {
        CHECK(row.rounding > 0.7);
        CHECK(row.rounding < 1.4);
      } else {
        CHECK(row.amplification > 0.7);
        CHECK(row.amplification < 1.4);
        CHECK(row.twin == doctest::Approx(row.local).epsilon(1e-3));
      }
    }
    CHECK(seen == 2);
  }
}

TEST_CASE("nothing predicts the error of a table, which has no significands") {
  const amp::Strategy table =
      policy::parse(R"({"halftone_policy": 1, "name": "t", "extends": "fp32",
    "rules": [{"match": {"op": "linear"}, "weight": {"table": [-1, -0.5, 0, 0.5, 1],
               "scale": {"per": "block", "block": [1, 64], "format": "f32"}}}]})");
  const Comparison c = lab::compare(linear, amp::Strategy::named("fp32"), table);
  CHECK(c.first == -1);
  int seen = 0;
  for (const Deviation& row : c.rows) {
    if (row.role == Role::output) CHECK(row.amplification < 1.4);
    if (row.role != Role::weight) continue;
    CHECK(std::isnan(row.rounding));
    ++seen;
  }
  CHECK(seen == 1);
}

TEST_CASE("a result, or a gradient, 1 + 2^-5 times what it should be is named first, everywhere") {
  const amp::Strategy candidate = amp::Strategy::named("amp-bf16");
  const Comparison sound = lab::compare(small_gpt, amp::Strategy::named("fp32"), candidate);
  CHECK(sound.first == -1);
  std::vector<std::string> sites;
  for (const Deviation& row : sound.rows)
    if (row.role == Role::output) sites.push_back(row.site);
  int named = 0;
  for (int at = 0; at < int(sites.size()); ++at)
    for (const bool backward : {false, true}) {
      CAPTURE(sites[std::size_t(at)]);
      CAPTURE(backward);
      // The task's forward function is wrapped, so that the fault is inside of the region.
      const auto make = [&] {
        lab::Workload wrong = small_gpt();
        wrong.task.forward = [forward = wrong.task.forward, at, backward](const Tensor& x) {
          const double by = 1 + 0x1p-5;
          const CasterScope scope(
              std::make_shared<Planter>(at, backward ? 1 : by, backward ? by : 1));
          return forward(x);
        };
        return wrong;
      };
      const Comparison c = lab::compare(make, candidate, candidate);
      REQUIRE(c.first >= 0);
      const Deviation& row = c.rows[std::size_t(c.first)];
      CHECK(row.site == sites[std::size_t(at)]);
      const bool gradient = row.role == Role::grad_input || row.role == Role::grad_weight;
      CHECK((backward ? gradient : row.role == Role::output));
      CHECK(row.reason.find("times as much as its operands") != std::string::npos);
      ++named;
    }
  CHECK(named >= 40);
}

TEST_CASE("a stale scale is named first, at every site that has one, forward and backward") {
  const amp::Strategy delayed = policy::parse(R"({"halftone_policy": 1, "name": "t",
    "extends": "fp32", "quantizers": {"late": {"format": "e4m3", "scale": {"per": "tensor",
    "from": "history", "history": 4}}}, "rules": [{"match": {"op": "linear"}, "input": "late",
    "weight": "late", "grad_output": "late"}]})");
  const Comparison sound = lab::compare(small_gpt, amp::Strategy::named("fp32"), delayed);
  CHECK(sound.first == -1);
  std::set<std::string> entries;
  lab::compare(small_gpt, amp::Strategy::named("fp32"), delayed,
               {.prepare = [&](amp::Training& training) {
                 for (const auto& [name, x] : training.region().session->state_dict())
                   if (name.starts_with("scale.")) entries.insert(name);
               }});
  REQUIRE(entries.size() >= 20);
  for (const std::string& entry : entries) {
    CAPTURE(entry);
    const Comparison c = lab::compare(
        small_gpt, amp::Strategy::named("fp32"), delayed, {.prepare = [&](amp::Training& training) {
          NamedTensors state = training.region().session->state_dict();
          Tensor& scale = state.at(entry);
          scale = scale.clone();
          scale.data<float>()[0] *= 64;
          training.region().session->load_state_dict(state);
        }});
    REQUIRE(c.first >= 0);
    const Deviation& row = c.rows[std::size_t(c.first)];
    CHECK("scale." + row.site + '.' + std::string(policy::name(row.role)) ==
          entry.substr(0, entry.find_last_not_of("0123456789") + 1));
    CHECK(row.reason.find("a stale scale") != std::string::npos);
  }
}

}  // namespace
}  // namespace halftone::test::compare_test
