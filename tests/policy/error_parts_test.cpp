// The parts of errors in rows of probes: they add up under every shipped policy, and
// weights that flip to another point of their grid and back.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/nn/models/models.h>
#include <halftone/policy/policy.h>
#include <halftone/policy/probe.h>

#include "policies_directory.h"
#include "policy/session_cases.h"

namespace halftone::test::error_parts_test {
namespace {

using policy::Role;
using policy::WeightFlips;

/// Trains under every shipped policy, and returns their number. `clips`: quantizers of rules also
/// clip their tensors, unless their scales are from history.
int check_parts_of_shipped_policies(bool clips) {
  int policies = 0;
  double saturation = 0;
  for (const auto& entry : std::filesystem::directory_iterator(policies_directory())) {
    if (entry.path().extension() != ".json") continue;
    CAPTURE(entry.path().filename().string());
    policy::PolicyFile file = policy::read(entry.path());
    for (policy::Rule& rule : file.rules.rules) {
      rule.optional = true;
      for (auto& [role, said] : rule.roles)
        if (clips && !said.quantizer.scaling.from_history) said.quantizer.clip.rms = 1.5;
    }
    nn::Sequential model((manual_seed(4), nn::models::mlp({16, 32, 16})));
    optim::AdamW adamw(model.parameters(), {.lr = 1e-2});
    amp::Training training(policy::strategy_of(file), model, adamw);
    policy::Probe probe(training, {.every = 1});
    for (uint64_t i = 0; i < 3; ++i) {
      training.zero_grad();
      const Tensor y =
          training.forward([&](const Tensor& in) { return model(in); }, numbers({8, 16}, 10 + i));
      training.backward(mean(y * y));
      training.step();
    }
    for (const policy::ProbeRow& row : probe.rows()) {
      CAPTURE(row.site);
      CAPTURE(policy::name(row.role));
      const ErrorParts parts = row.survey.error_parts();
      const double whole = row.survey.sums.sum_e2;
      if (row.quantizer.empty()) CHECK(whole == 0);
      CHECK(std::abs(parts.whole() - whole) <= 1e-12 * whole);
      for (const double part : {parts.scale, parts.dead_zone, parts.grid, parts.saturation})
        CHECK(part >= 0);
      saturation += parts.saturation;
      CHECK((row.flips.count > 0) ==
            (row.role == Role::weight && row.step == 2 && !row.quantizer.empty()));
    }
    ++policies;
  }
  CHECK(saturation > 0);
  return policies;
}

TEST_CASE("the parts add up to the squared error under every shipped policy, also with clips") {
  CHECK(check_parts_of_shipped_policies(false) >= 20);
  CHECK(check_parts_of_shipped_policies(true) >= 20);
}

TEST_CASE("flips of numbers, by hand") {
  const double e2m1 = policy::half_spacing(*quantizer_named("mxfp4"));
  CHECK(e2m1 == 0.125);
  CHECK(policy::half_spacing(*quantizer_named("e4m3")) == 0.03125);
  CHECK(policy::half_spacing(Quantizer::of_table({-1, 0, 1, 1.25f})) == doctest::Approx(0.1));
  // back; stays; moves on; moves once; to 0 and back; a scale that grew by 5 % and shrank again
  const std::vector<float> a{3, 3, 2, 3, 0.5f, 2}, b{4, 3, 3, 3, 0, 2.1f}, c{3, 3, 4, 4, 0.5f, 2};
  const WeightFlips flips = policy::flips_of(a, b, c, e2m1);
  CHECK(flips.count == 6);
  CHECK(flips.flipped == 4);
  CHECK(flips.returned == 2);
  CHECK(flips.flipped_share() == doctest::Approx(4.0 / 6));
  CHECK(flips.oscillation() == doctest::Approx(2.0 / 6));
  CHECK(std::isnan(WeightFlips{}.oscillation()));
}

TEST_CASE("a weight that an optimizer moves over a threshold and back is found") {
  nn::Sequential model((manual_seed(1), nn::Linear(4, 1, {.bias = false})));
  Tensor weight = model.parameters()[0];
  optim::Sgd sgd(model.parameters(), {.lr = 1});
  amp::Training training(policy::parse(policy_with(R"({"match": {"op": "linear"},
    "weight": "e2m1"})")),
                         model, sgd);
  policy::Probe probe(training, {.every = 1});
  // The threshold between 2 and 3 is 2.5. The first number moves from 2.4 to 2.6 and back.
  std::copy_n(std::array{2.4f, 1.0f, 3.0f, -2.0f}.data(), 4, weight.data<float>());
  for (const float move : {-0.2f, 0.2f, -0.2f, -1.0f}) {
    training.zero_grad();
    const Tensor y = training.forward([&](const Tensor& in) { return model(in); },
                                      from({{double(move), 0.0, 0.0, 0.0}}));
    training.backward(mean(y));
    training.step();
  }
  std::vector<WeightFlips> found;
  for (const policy::ProbeRow& row : probe.rows())
    if (row.role == Role::weight) found.push_back(row.flips);
  REQUIRE(found.size() == 4);
  CHECK(found[0].count == 0);
  CHECK(found[1].count == 0);
  CHECK(found[2].count == 4);  // 2.4, 2.6, 2.4
  CHECK(found[2].flipped == 1);
  CHECK(found[2].returned == 1);
  CHECK(found[3].returned == 1);  // 2.6, 2.4, 2.6
}

TEST_CASE("lines of a probe have the parts, and the ratio of gradients only") {
  Steps steps(
      policy_with(R"({"match": {"op": "linear"}, "weight": "e4m3", "grad_output": "e5m2"})"));
  policy::Probe probe(steps.training, {.every = 1});
  for (uint64_t i = 0; i < 3; ++i) steps.step(i);
  std::istringstream lines(policy::json_lines(probe.rows(), {}));
  int weights = 0, gradients = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto row = nlohmann::json::parse(line);
    CHECK(row.contains("error_parts") == (row["quantizer"] != ""));
    CHECK(row.contains("norm_to_noise") ==
          (row["role"] == "grad_output" && row["quantizer"] != ""));
    CHECK(row.contains("flips") == (row["role"] == "weight" && row["step"] == 2));
    weights += row["role"] == "weight", gradients += row["role"] == "grad_output";
  }
  CHECK(weights == 6);
  CHECK(gradients >= 6);
}

}  // namespace
}  // namespace halftone::test::error_parts_test
