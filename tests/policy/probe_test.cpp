// Probes: their counts are right, watching changes no bit, updates are those of a simulation by
// hand, and all memory is freed.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/autograd/engine.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/models.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/probe.h>
#include <halftone/amp/rules.h>
#include <halftone/amp/session.h>

#include "policy/policy_cases.h"
#include "policy_cases.h"
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
std::string trained(const amp::Policy& strategy, bool watched) {
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
  for (const std::string_view name : amp::Policy::names()) {
    CAPTURE(name);
    const amp::Policy strategy = amp::Policy::named(name);
    CHECK(trained(strategy, true) == trained(strategy, false));
  }
}

TEST_CASE("watching changes no bit under policies, their histories and random numbers included") {
  for (const char* file :
       {"te_delayed_hybrid.json", "mxfp4_backward.json", "nvfp4.json", "bf16_sr_everywhere.json"}) {
    CAPTURE(file);
    amp::Policy policy = policy::read(policies_directory() / file);
    for (policy::Rule& rule : policy.rules.rules) rule.optional = true;
    const amp::Policy strategy = policy;
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
  amp::Training training(amp::Policy::named("amp-fp16"), model, sgd);
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
    amp::Training training(amp::Policy::named("amp-bf16"), model, sgd);
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
  amp::Training training(amp::Policy::named("full-bf16"), model, sgd);
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
    amp::Training training(amp::Policy::named(name), model, adamw);
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
  amp::Training training(amp::Policy::named("amp-bf16"), model, sgd);
  const std::size_t entries = training.state_dict().size();
  const policy::Probe probe(training, {.every = 1});
  CHECK(training.state_dict().size() == entries);
  training.load_state_dict(training.state_dict());
}

}  // namespace
}  // namespace halftone::test::probe_test

// Overflows are planted at every site in turn and found there; the repeated pass changes
// nothing.

namespace halftone::test::overflow_test {
namespace {

using policy::Overflow;
using policy::Role;

nn::models::Gpt small_gpt() {
  manual_seed(3);
  return nn::models::Gpt({.vocabulary = 23, .context = 8, .layers = 2, .heads = 2, .width = 16});
}

/// A training of a small GPT in which a test can spoil one tensor.
struct Planted {
  nn::models::Gpt model = small_gpt();
  optim::AdamW adamw{model.parameters(), {.lr = 1e-3}};
  amp::Training training;
  Tensor tokens = (manual_seed(8), randint(0, 23, {2, 8})), targets = randint(0, 23, {2, 8});

  explicit Planted(const char* strategy, double scale = 65536)
      : training(scaled(strategy, scale), model, adamw) {}
  static amp::Policy scaled(const char* name, double scale) {
    amp::Policy strategy = amp::Policy::named(name);
    strategy.loss_scale.init_scale = scale;
    return strategy;
  }
  Tensor loss() {
    const Tensor logits = training.forward([&](const Tensor& in) { return model(in); }, tokens);
    return cross_entropy(flatten(logits, 0, -2), flatten(targets));
  }
  bool step() {
    training.zero_grad();
    training.backward(loss());
    return bool(training.step());
  }
  std::optional<Overflow> explain() {
    return policy::explain_overflow(training, [&] { return loss(); });
  }
};

/// The sites of a pass in order, and their operations.
std::vector<std::string> sites_of(Planted& p) {
  struct Lister final : policy::Observer {
    std::vector<std::string> sites{};
    bool begin_pass(int64_t) override { return true; }
    void ran(std::string_view site, std::span<const Tensor>, Computation&, const Tensor&) override {
      sites.emplace_back(site);
    }
  };
  const auto lister = std::make_shared<Lister>();
  const policy::Observation observation("test", p.training, lister);
  p.loss();
  return lister->sites;
}

TEST_CASE("a result or a gradient that is too large is found at every site in turn") {
  Planted listed("amp-fp16");
  const std::vector<std::string> sites = sites_of(listed);
  REQUIRE(sites.size() >= 20);
  int named = 0;
  for (int at = 0; at < int(sites.size()); ++at)
    for (const bool backward : {false, true}) {
      const std::string& site = sites[std::size_t(at)];
      CAPTURE(site);
      CAPTURE(backward);
      Planted p("amp-fp16", 1024);
      const auto loss = [&] {
        const Tensor logits = p.training.forward(
            [&](const Tensor& in) {
              const auto planter =
                  std::make_shared<Planter>(at, backward ? 1 : INFINITY, backward ? INFINITY : 1);
              const CasterScope scope(planter);
              return p.model(in);
            },
            p.tokens);
        return cross_entropy(flatten(logits, 0, -2), flatten(p.targets));
      };
      p.training.backward(loss());
      p.training.step();
      const std::optional<Overflow> found = policy::explain_overflow(p.training, loss);
      REQUIRE(found);
      CHECK(found->backward == backward);
      CHECK(found->site == site);
      const bool gradient = found->role == Role::grad_input || found->role == Role::grad_weight;
      CHECK((backward ? gradient : found->role == Role::output));
      CHECK_FALSE(found->arrived);
      ++named;
    }
  CHECK(named >= 40);
}

TEST_CASE("a weight that is too large is found at its product, of every layer in turn") {
  Planted names("amp-fp16");
  int planted = 0;
  for (const auto& [name, parameter] : names.model.named_parameters()) {
    // Norms and tables of embeddings are read in f32.
    if (!name.ends_with("weight") || name.find("ln") != std::string::npos ||
        name.find(".wte") != std::string::npos || name.find(".wpe") != std::string::npos)
      continue;
    CAPTURE(name);
    Planted p("amp-fp16");
    for (const auto& [own, x] : p.model.named_parameters())
      if (own == name) x.data<float>()[3] = 1e30f;
    CHECK_FALSE(p.step());
    const std::optional<Overflow> found = p.explain();
    REQUIRE(found);
    CHECK(found->site == name.substr(0, name.rfind('.')) + "/linear.0");
    CHECK(found->role == Role::weight);
    CHECK(found->cast);
    CHECK(found->dtype == f16);
    CHECK(found->bad == 1);
    CHECK(found->largest_in == doctest::Approx(1e30));
    CHECK(found->enough == 0);
    CHECK_FALSE(found->backward);
    ++planted;
  }
  CHECK(planted == 8);
}

TEST_CASE(
    "a gradient that overflows is found, with the loss scale that would have been small enough") {
  Planted p("amp-fp16", 0x1p40);
  CHECK_FALSE(p.step());
  const std::optional<Overflow> found = p.explain();
  REQUIRE(found);
  CHECK(found->backward);
  CHECK(found->loss_scale == 0x1p40);
  REQUIRE(found->enough > 0);
  std::ostringstream text;
  text << *found;
  CHECK(text.str().find(" would do") != std::string::npos);
  // With that scale the step is done, with twice as much it is skipped.
  Planted with("amp-fp16", found->enough), twice("amp-fp16", 2 * found->enough);
  CHECK(with.step());
  CHECK_FALSE(twice.step());
}

TEST_CASE("a pass without overflow has nothing to explain") {
  Planted p("amp-fp16", 1);
  CHECK(p.step());
  CHECK_FALSE(p.explain());
}

TEST_CASE("explaining changes nothing") {
  const auto hash = [](bool explains, const char* strategy) {
    Planted p(strategy, 0x1p40);
    std::vector<uint32_t> all;  // bits: NaN is not equal to itself
    const auto add = [&](const Tensor& x) {
      for (const float value : x.to_vector<float>()) all.push_back(std::bit_cast<uint32_t>(value));
    };
    for (int i = 0; i < 4; ++i) {
      const bool stepped = p.step();
      if (explains && !stepped) CHECK(p.explain());
    }
    for (const auto& [name, x] : p.training.state_dict()) add(x);
    for (const Tensor& x : p.model.parameters())
      if (x.grad().defined()) add(x.grad());
    return all;
  };
  for (const char* strategy : {"amp-fp16", "o2-fp16"}) {
    CAPTURE(strategy);
    CHECK(hash(true, strategy) == hash(false, strategy));
  }
}

TEST_CASE("a function without loss is an error") {
  Planted p("amp-fp16");
  p.step();
  CHECK_THROWS_WITH_AS(policy::explain_overflow(p.training, [] { return Tensor(); }),
                       doctest::Contains("[explain_overflow] the function returns no loss"),
                       UsageError);
}

TEST_CASE("a function that fails does not change the session's numbers") {
  const auto strategy =
      policy::read_text(policy_with(R"({"match": {"op": "linear"}, "input": "e4m3"})"));
  nn::Sequential model((manual_seed(1), nn::Linear(4, 3)));
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  amp::Training training(strategy, model, sgd);
  const auto pass = [&] { return training.region().session->state_dict().at("pass").item(); };
  training.backward(
      mean(training.forward([&](const Tensor& in) { return model(in); }, numbers({2, 4}, 1))));
  training.step();
  const double before = pass();
  CHECK_THROWS_AS(policy::explain_overflow(training, [] { return Tensor(); }), UsageError);
  CHECK(pass() == before);
  policy::explain_overflow(training, [&] {
    const auto twice = [&](const Tensor& in) { return model(in); };
    training.forward(twice, numbers({2, 4}, 1));
    return mean(training.forward(twice, numbers({2, 4}, 1)));
  });
  CHECK(pass() == before);
}

TEST_CASE("data that are not finite are reported as such") {
  nn::Sequential model((manual_seed(1), nn::Linear(4, 3)));
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  amp::Training training(amp::Policy::named("amp-fp16"), model, sgd);
  const Tensor x = from({{1.0, INFINITY, 0.0, 2.0}});
  const auto loss = [&] {
    return mean(training.forward([&](const Tensor& in) { return model(in); }, x));
  };
  training.backward(loss());
  CHECK_FALSE(bool(training.step()));
  const std::optional<Overflow> found = policy::explain_overflow(training, loss);
  REQUIRE(found);
  CHECK(found->role == Role::input);
  CHECK(found->arrived);
  CHECK_FALSE(found->cast);
}

}  // namespace
}  // namespace halftone::test::overflow_test

// Updates of values on grids by policy: states of the optimizer, and the spacing of a grid's
// numbers.

namespace halftone::test::update_states_test {
namespace {
/// The only row of "0.weight" (the policies below have no other sites) with that state.
policy::UpdateRow row_of(const policy::Probe& probe, const std::string& state) {
  for (const policy::UpdateRow& row : probe.updates())
    if (row.state == state && row.parameter == "0.weight") return row;
  FAIL("no row of " << state);
  return {};
}

double bins_below(const policy::UpdateRow& row, int k) {
  double sum = 0;
  for (int i = 0; i < k - policy::UpdateRow::lowest_bin; ++i) sum += row.by_ulp[std::size_t(i)];
  return sum;
}
double bins_in_all(const policy::UpdateRow& row) {
  return bins_below(row, policy::UpdateRow::lowest_bin + policy::UpdateRow::bins);
}

TEST_CASE("updates of states on a grid are those of a simulation by hand") {
  Steps steps(policy_with("", R"(, "optimizer": {"states": {"exp_avg": "bf16"}})"));
  for (const uint64_t number : {0, 1, 2}) steps.step(number);
  const policy::Probe probe(steps.training, {.every = 1});
  const Tensor state = steps.adamw.state_dict().at("state.0.exp_avg");
  const std::vector<float> before = floats(state);
  steps.step(3);
  const std::vector<float> now = floats(state),
                           gradient = floats(steps.model.parameters()[0].grad());
  policy::UpdateSums wanted;
  double under_half = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double u = double(0.9f * before[i] + 0.1f * gradient[i]) - double(before[i]);
    wanted.ww += double(before[i]) * before[i];
    ++wanted.count, wanted.lost += now[i] == before[i] ? 1 : 0;
    wanted.du += (double(now[i]) - before[i]) * u, wanted.uu += u * u;
    under_half += std::abs(u) < std::ldexp(1.0, std::ilogb(before[i]) - 8) ? 1 : 0;
  }
  const policy::UpdateRow row = row_of(probe, "exp_avg");
  CHECK(row.dtype == f32);
  check_sums(row.stored, wanted);
  CHECK(bins_below(row, -1) == under_half);
  CHECK(row_of(probe, "").stored.count > 0);  // that of the parameter, in the same row
  for (const policy::UpdateRow& other : probe.updates()) CHECK(other.state != "exp_avg_sq");
}

TEST_CASE(
    "a coarse grid loses what decays: e5m2 holds a second moment still that 0.999 would move") {
  Steps steps(policy_with("", R"(, "optimizer": {"states": {"exp_avg_sq": "e5m2"}})"));
  for (uint64_t number = 0; number < 60; ++number) steps.step(number);
  const policy::Probe probe(steps.training, {.every = 1});
  steps.step(60);
  const policy::UpdateRow row = row_of(probe, "exp_avg_sq");
  CHECK(row.stored.lost_share() > 0.8);
  CHECK(row.stored.effective_descent() < 0.5);
  CHECK(row.stored.lost_share() == row.seen.lost_share());
  std::ostringstream text;
  text << probe;
  CHECK(text.str().find("updates of exp_avg_sq, on its grid: ") != std::string::npos);
  CHECK(policy::json_lines({}, {row}).find(R"("state":"exp_avg_sq")") != std::string::npos);
}

TEST_CASE("by_ulp is in the spacing of an unscaled grid, and empty if scales change the spacing") {
  const auto bins = [](const std::string& grid) {
    Steps steps(policy_with("", R"(, "optimizer": {"parameters": )" + grid + "}"));
    steps.step(0);
    const policy::Probe probe(steps.training, {.every = 1});
    steps.step(1);
    const policy::UpdateRow row = row_of(probe, "");
    CHECK(row.stored.count > 0);
    return std::array{bins_in_all(row), bins_below(row, -2), row.stored.lost, row.stored.count};
  };
  const auto coarse = bins(R"("e4m3")");
  CHECK(coarse[0] == coarse[3]);
  CHECK(coarse[1] > 0);
  CHECK(coarse[1] <=
        coarse[2]);  // below a quarter of a unit nothing changes, also next to powers of two
  CHECK(bins(R"("bf16")")[1] < coarse[1]);
  CHECK(bins(R"("fp8_tensor")")[0] == 0);
}

TEST_CASE("a skipped step has no updates of states") {
  Steps steps(R"({"halftone_policy": 1, "name": "t", "extends": "amp-fp16", "rules": [],
                  "optimizer": {"states": {"exp_avg": "bf16"}}})");
  steps.step(0);
  const policy::Probe probe(steps.training, {.every = 1});
  steps.training.zero_grad();
  const Tensor y =
      steps.training.forward([&](const Tensor& in) { return steps.model(in); }, numbers({5, 6}, 1));
  steps.training.backward(mean(y * y));
  fill_with(steps.model.parameters()[0].grad(), std::numeric_limits<double>::infinity());
  steps.training.step();
  for (const policy::UpdateRow& row : probe.updates()) CHECK(row.state.empty());
}

}  // namespace
}  // namespace halftone::test::update_states_test
