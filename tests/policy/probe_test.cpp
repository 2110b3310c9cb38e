// Probes: their counts are right, watching changes no bit, updates are those of a simulation by
// hand, and all memory is freed.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include <halftone/autograd/checkpoint.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/policy/policy.h>
#include <halftone/policy/policy_file.h>

#include "policies_directory.h"
#include "policy/session_cases.h"
#include "support.h"

namespace halftone::test::probe_test {
namespace {

const policy::ProbeRow* row_of(const policy::Probe& probe, const std::string& site,
                               policy::Role role) {
  for (const policy::ProbeRow& row : probe.rows())
    if (row.site == site && row.role == role) return &row;
  return nullptr;
}

/// A hash of weights, states, scales and the random generator after 100 steps, watched or not.
std::string trained(const amp::Strategy& strategy, bool watched) {
  nn::Sequential model((manual_seed(4), nn::models::mlp({16, 32, 16})));
  optim::AdamW adamw(model.parameters(), {.lr = 1e-2});
  amp::Training training(strategy, model, adamw);
  std::optional<policy::Probe> probe;
  if (watched) probe.emplace(training, policy::ProbeOptions{.every = 3, .first = 1});
  for (int i = 0; i < 100; ++i) {
    training.zero_grad();
    const Tensor x = numbers({8, 16}, 10 + uint64_t(i));
    const Tensor y = training.forward([&](const Tensor& in) { return model(in); }, x);
    training.backward(mean(y * y));
    training.step();
  }
  policy::Fingerprint hash;
  for (const auto& [name, tensor] : training.state_dict()) {
    const Tensor host = tensor.detach().to(Device::cpu()).clone();
    hash.add(name).add({reinterpret_cast<const char*>(host.raw_data()), std::size_t(host.bytes())});
  }
  if (watched) {
    CHECK(probe->rows().size() > 33 * 10);
    CHECK(std::ranges::count(probe->updates(), "", &policy::UpdateRow::state) == 33 * 4);
  }
  return hash.text();
}

TEST_CASE("watching changes no bit under any strategy") {
  for (const std::string_view name : amp::Strategy::names()) {
    CAPTURE(name);
    const amp::Strategy strategy = amp::Strategy::named(name);
    CHECK(trained(strategy, true) == trained(strategy, false));
  }
}

TEST_CASE("watching changes no bit under policies, their histories and random numbers included") {
  for (const char* file :
       {"te_delayed_hybrid.json", "mxfp4_backward.json", "nvfp4.json", "bf16_sr_everywhere.json"}) {
    CAPTURE(file);
    policy::PolicyFile policy = policy::read(policies_directory() / file);
    for (policy::Rule& rule : policy.rules.rules) rule.optional = true;
    const amp::Strategy strategy = policy::strategy_of(policy);
    CHECK(trained(strategy, true) == trained(strategy, false));
  }
}

TEST_CASE("rows of a linear layer are surveys of its operands, result and gradients") {
  Pass pass(policy_with(R"({"match": {"op": "linear"}, "input": "e4m3", "weight": "mxfp4",
    "grad_output": "e5m2"})"),
            32);
  policy::Probe probe(pass.training, {.every = 1});
  pass.run();
  const auto expect = [&](policy::Role role, const Tensor& x, const char* quantizer) {
    CAPTURE(policy::name(role));
    const policy::ProbeRow* const row = row_of(probe, "0/linear.0", role);
    REQUIRE(row);
    const Tensor wanted = new_survey_row({});
    if (quantizer) {
      const Quantizer q = *quantizer_named(quantizer);
      quantized(x.detach(), {.quantizer = q, .survey = wanted});
      CHECK(row->quantizer == described(q));
    } else {
      survey(x, x, nullptr, wanted);
      CHECK(row->quantizer.empty());
    }
    const Survey expected = Survey::from(wanted);
    CHECK(row->survey.binade == expected.binade);
    CHECK(row->survey.sums.changed == expected.sums.changed);
    CHECK(row->survey.sums.sum_e2 == doctest::Approx(expected.sums.sum_e2).epsilon(1e-12));
  };
  using policy::Role;
  expect(Role::input, pass.x, "e4m3");
  expect(Role::weight, pass.layer().weight, "mxfp4");
  expect(Role::bias, pass.layer().bias, nullptr);
  expect(Role::output, pass.y, nullptr);
  expect(Role::grad_output, pass.seed(), "e5m2");
  expect(Role::grad_input, pass.x.grad(), nullptr);
}

TEST_CASE("a region's casts are rows, with the numbers of f16") {
  nn::Sequential model((manual_seed(1), nn::Linear(4, 3)));
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  amp::Training training(amp::Strategy::named("amp-fp16"), model, sgd);
  policy::Probe probe(training, {.every = 1});
  const Tensor x = from({{1e-9, 0.5, 1e-6, 1e6}});
  const Tensor y = training.forward([&](const Tensor& in) { return model(in); }, x);
  training.backward(mean(y) * 0.0);
  const policy::ProbeRow* const row = row_of(probe, "0/linear.0", policy::Role::input);
  REQUIRE(row);
  CHECK(row->quantizer == "f16");
  CHECK(row->survey.sums.to_zero == 1);
  CHECK(row->survey.sums.subnormal == 1);
  CHECK(row->survey.sums.to_infinity == 1);
  const policy::ProbeRow* const gradient = row_of(probe, "0/linear.0", policy::Role::grad_output);
  REQUIRE(gradient);
  CHECK(gradient->loss_scale == 65536);
}

TEST_CASE("steps, paths and roles that were requested, and no others") {
  Steps steps(policy_with(""));
  policy::Probe probe(steps.training, {.every = 2,
                                       .first = 1,
                                       .last = 4,
                                       .path = "0",
                                       .roles = {policy::Role::weight, policy::Role::grad_output},
                                       .updates = false});
  for (uint64_t i = 0; i < 7; ++i) steps.step(i);
  std::vector<std::pair<int64_t, std::string>> got;
  for (const policy::ProbeRow& row : probe.rows())
    got.emplace_back(row.step, row.site + ' ' + std::string(policy::name(row.role)));
  const std::vector<std::pair<int64_t, std::string>> wanted{{1, "0/linear.0 weight"},
                                                            {1, "0/linear.0 grad_output"},
                                                            {3, "0/linear.0 weight"},
                                                            {3, "0/linear.0 grad_output"}};
  CHECK(got == wanted);
  CHECK(probe.updates().empty());
}

TEST_CASE("a checkpointed segment is counted once, an evaluation not at all") {
  const auto rows_with = [](bool checkpointed) {
    nn::Sequential model((manual_seed(4), nn::models::mlp({6, 8, 3})));
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    amp::Training training(amp::Strategy::named("amp-bf16"), model, sgd);
    policy::Probe probe(training, {.every = 1});
    {
      const NoGrad no_grad;
      training.forward([&](const Tensor& in) { return model(in); }, numbers({4, 6}, 1));
    }
    CHECK(probe.rows().empty());
    const Tensor y = training.forward(
        [&](const Tensor& in) {
          return checkpointed
                     ? checkpoint([&](const std::vector<Tensor>& z) { return model(z[0]); }, {in})
                     : model(in);
        },
        numbers({4, 6}, 2));
    training.backward(mean(y));
    std::map<std::string, double> counts;
    for (const policy::ProbeRow& row : probe.rows())
      if (row.site.find("checkpoint") == std::string::npos)
        counts[row.site + ' ' + std::string(policy::name(row.role))] += row.survey.sums.count;
    return counts;
  };
  CHECK(rows_with(true) == rows_with(false));
}

TEST_CASE("updates of bf16 weights are those of a simulation by hand") {
  nn::Sequential model((manual_seed(1), nn::Linear(64, 32)));
  optim::Sgd sgd(model.parameters(), {.lr = 1e-3});
  amp::Training training(amp::Strategy::named("full-bf16"), model, sgd);
  policy::Probe probe(training, {.every = 1});
  const Tensor y =
      training.forward([&](const Tensor& in) { return model(in); }, numbers({16, 64}, 5));
  training.backward(mean(y * y));
  const Tensor weight = model.parameters()[0];
  const auto w = weight.to_vector<double>(), g = weight.grad().to_vector<double>();
  training.step();
  const auto now = weight.to_vector<double>();
  policy::UpdateSums wanted;
  double below_half = 0;
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double u = double(float(w[i]) - 1e-3f * float(g[i])) - w[i];
    wanted.ww += w[i] * w[i];
    if (u == 0) continue;
    ++wanted.count, wanted.lost += now[i] == w[i] ? 1 : 0;
    wanted.du += (now[i] - w[i]) * u, wanted.uu += u * u;
    below_half += std::abs(u) < std::ldexp(1.0, std::ilogb(w[i]) - 8) ? 1 : 0;
  }
  REQUIRE(probe.updates().size() == 2);
  const policy::UpdateRow& row = probe.updates()[0];
  CHECK(row.parameter == "0.weight");
  CHECK(row.dtype == bf16);
  check_sums(row.stored, wanted);
  double under = 0;
  for (int k = 0; k < -1 - policy::UpdateRow::lowest_bin; ++k) under += row.by_ulp[std::size_t(k)];
  CHECK(under == below_half);
  CHECK(wanted.lost > 0.5 * wanted.count);
}

TEST_CASE("masters, remainders and compensation keep the part that forward does not see") {
  for (const char* name : {"o2-bf16", "split-bf16", "full-bf16-kahan"}) {
    CAPTURE(name);
    nn::Sequential model((manual_seed(1), nn::Linear(64, 32)));
    optim::AdamW adamw(model.parameters(), {.lr = 1e-5});
    amp::Training training(amp::Strategy::named(name), model, adamw);
    policy::Probe probe(training, {.every = 1});
    const Tensor y =
        training.forward([&](const Tensor& in) { return model(in); }, numbers({16, 64}, 5));
    training.backward(mean(y * y));
    training.step();
    REQUIRE(probe.updates().size() == 2);
    const policy::UpdateRow& row = probe.updates()[0];
    CHECK(row.seen.lost_share() > 0.8);
    CHECK(row.stored.lost_share() < 0.2);
    CHECK(row.stored.effective_descent() == doctest::Approx(1).epsilon(0.05));
  }
}

TEST_CASE("parameters on a grid are surveyed after they were rounded to it") {
  Steps steps(policy_with("", R"(, "optimizer": {"parameters": "e4m3"})"));
  policy::Probe probe(steps.training, {.every = 1});
  steps.step(1);
  REQUIRE_FALSE(probe.updates().empty());
  CHECK(probe.updates()[0].stored.lost_share() > 0.3);
}

TEST_CASE("histories show the scale that was used next to the right one") {
  Steps steps(policy_with(
      R"({"match": {"op": "linear"}, "input": {"format": "e4m3", "scale": {"per": "tensor", "from": "history", "history": 4}}})"));
  policy::Probe probe(steps.training, {.every = 1});
  steps.step(0), steps.step(1);
  const policy::ProbeRow& last = probe.rows().back();
  bool seen = false;
  for (const policy::ProbeRow& row : probe.rows()) {
    if (row.role != policy::Role::input || row.site != "0/linear.0" || row.step != 1) continue;
    seen = true;
    CHECK(row.scale > 0);
    CHECK(row.ideal == doctest::Approx(448 / row.survey.sums.largest));
  }
  CHECK(seen);
  CHECK(last.step == 1);
}

TEST_CASE("lines are JSON, and a file that cannot be written is an error") {
  Steps steps(policy_with(R"({"match": {"op": "linear"}, "input": "e4m3"})"));
  policy::Probe probe(steps.training, {.every = 1});
  steps.step(0);
  const TemporaryDirectory directory;
  probe.save(directory.path() / "probe.jsonl");
  std::ifstream file(directory.path() / "probe.jsonl");
  std::size_t rows = 0, updates = 0;
  for (std::string line; std::getline(file, line);) {
    const auto object = nlohmann::json::parse(line);
    if (object.contains("site")) {
      ++rows;
      double binned = 0;
      for (const auto& [bin, count] : object["binades"].items()) binned += count.get<double>();
      CHECK(binned == object["count"].get<double>() - object["zeros"].get<double>());
    } else {
      ++updates;
    }
  }
  CHECK(rows == probe.rows().size());
  CHECK(updates == probe.updates().size());
  CHECK_THROWS_AS(probe.save(directory.path() / "none" / "probe.jsonl"), FormatError);
}

TEST_CASE(
    "two probes at once, and options out of range, are errors; afterwards no probe is active") {
  Steps steps(policy_with(""));
  {
    const policy::Probe probe(steps.training);
    CHECK_THROWS_WITH_AS(policy::Probe(steps.training),
                         doctest::Contains("[probe] the training is"), UsageError);
  }
  CHECK_THROWS_WITH_AS(policy::Probe(steps.training, {.every = 0}), doctest::Contains("every is 0"),
                       UsageError);
  const policy::Probe again(steps.training, {.every = 1});
  steps.step(0);
  CHECK_FALSE(again.rows().empty());
}

TEST_CASE("a probe may outlive its training, also one that stopped within a sampled step") {
  std::optional<policy::Probe> probe;
  {
    Steps gone(policy_with(""));
    probe.emplace(gone.training, policy::ProbeOptions{.every = 1});
    gone.training.forward([&](const Tensor& in) { return gone.model(in); }, numbers({5, 6}, 1));
  }
  Steps other(policy_with(""));
  other.step(0);  // its updates do not go to the probe
  CHECK_FALSE(probe->rows().empty());
  CHECK(probe->updates().empty());
  probe.reset();
  other.step(1);
}

TEST_CASE("a probe adds nothing to a checkpoint of a training without policy") {
  nn::Sequential model((manual_seed(1), nn::Linear(4, 3)));
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  amp::Training training(amp::Strategy::named("amp-bf16"), model, sgd);
  const std::size_t entries = training.state_dict().size();
  const policy::Probe probe(training, {.every = 1});
  CHECK(training.state_dict().size() == entries);
  training.load_state_dict(training.state_dict());
}

}  // namespace
}  // namespace halftone::test::probe_test
