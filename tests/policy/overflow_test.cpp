// Overflows are planted at every site in turn and found there; the repeated pass changes
// nothing.
#include <doctest/doctest.h>

#include <bit>
#include <sstream>

#include <halftone/autograd/ops.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/models.h>
#include <halftone/policy/policy.h>

#include "policy/planted_faults.h"
#include "policy/session_cases.h"

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
  static amp::Strategy scaled(const char* name, double scale) {
    amp::Strategy strategy = amp::Strategy::named(name);
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
      policy::parse(policy_with(R"({"match": {"op": "linear"}, "input": "e4m3"})"));
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
  amp::Training training(amp::Strategy::named("amp-fp16"), model, sgd);
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
