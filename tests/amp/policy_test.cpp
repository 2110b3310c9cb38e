// Policies: presets against lists read from a real PyTorch (tests/fixtures/amp_policy_fixtures.py),
// names, overrides, decisions that look at inputs, printing.
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "../fixtures_directory.h"
#include "strategy_cases.h"

namespace halftone::testing {
namespace {

using amp::CastClass;
using amp::Policy;

nlohmann::json fixture() {
  std::ifstream file(fixtures_directory() + "/amp_policies.json");
  return nlohmann::json::parse(file);
}

TEST_CASE("the PyTorch presets are PyTorch's lists") {
  const nlohmann::json lists = fixture();
  for (const char* preset : {"pytorch-cuda", "pytorch-cpu"}) {
    const Policy policy = Policy::preset(preset);
    int compared = 0;
    for (const auto& [op, row] : lists.at(preset).items()) {
      if (std::ranges::find(Policy::operations(), op) == Policy::operations().end()) continue;
      CAPTURE(preset);
      CAPTURE(op);
      CHECK(name(policy[op]) == row.at("class").get<std::string>());
      ++compared;
    }
    CHECK(compared > 85);
  }
}

TEST_CASE("every preset speaks of every operation, and operations ask for pytorch-cuda") {
  for (const std::string_view preset : Policy::preset_names()) {
    const Policy policy = Policy::preset(preset);
    CHECK(policy.name() == preset);
    CHECK(policy["linear"] == (preset == "none" ? CastClass::as_is : CastClass::low_precision));
  }
  CHECK(Policy::preset("all-low")["softmax"] == CastClass::low_precision);
  CHECK(Policy::preset("all-low")["reshape"] == CastClass::as_is);
  CHECK(Policy::preset("apex-o1")["gelu"] == CastClass::full_precision);
  CHECK(Policy::preset("paddle-o1")["mean"] == CastClass::full_precision);
  CHECK(Policy::preset("flashlight-o1")["batch_norm"] == CastClass::full_precision);
  CHECK(Policy()["softmax"] == CastClass::full_precision);
}

TEST_CASE("unknown names are refused, with the nearest one") {
  Policy policy;
  CHECK_THROWS_WITH_AS(policy["sofmax"],
                       "[Policy] there is no operation named \"sofmax\". Did you mean \"softmax\"?",
                       UsageError);
  CHECK_THROWS_WITH_AS(
      Policy::preset("pytorch"),
      "[Policy.preset] there is no preset named \"pytorch\". Known: pytorch-cuda, pytorch-cpu, "
      "apex-o1, paddle-o1, flashlight-o1, none, all-low.",
      UsageError);
  CHECK_THROWS_WITH_AS(Policy::preset("apex-o2"), doctest::Contains("Did you mean \"apex-o1\"?"),
                       UsageError);
}

TEST_CASE("an override by name changes what runs") {
  const Tensor x = randn({2, 4});
  const auto softmax_dtype = [&](const Policy& policy) {
    return amp::autocast(policy.with(bf16), [&] { return softmax(x, 1).dtype(); });
  };
  Policy policy;
  CHECK(softmax_dtype(policy) == f32);
  policy["softmax"] = CastClass::low_precision;
  CHECK(softmax_dtype(policy) == bf16);
  CHECK(softmax_dtype(Policy()) == f32);  // the default is not touched
}

/// Doubles, in whatever dtype arrives.
struct Double : UserOp {
  static constexpr OpInfo info{"double", CastClass::as_is};
  Tensor forward(const Tensor& x) { return x + x; }
};

TEST_CASE("a policy decides on operations outside the library, by their info") {
  const Tensor x = ones({2});
  Policy policy;
  CHECK_THROWS_AS(policy["double"], UsageError);
  CHECK(policy[Double::info] == CastClass::as_is);
  policy[Double::info] = CastClass::low_precision;
  CHECK(policy["double"] == CastClass::low_precision);
  amp::autocast(policy.with(bf16), [&] { CHECK(apply(Double{}, x).dtype() == bf16); });
  amp::autocast(Policy().with(bf16), [&] { CHECK(apply(Double{}, x).dtype() == f32); });
  std::ostringstream text;
  text << policy;
  CHECK(text.str().find(" double") < text.str().find("full_precision"));
}

struct OnlyLarge final : Policy {
  CastClass decide(const OpInfo& op, std::span<const Tensor> inputs) const override {
    return inputs[0].numel() >= 100 ? Policy::decide(op, inputs) : CastClass::as_is;
  }
};

TEST_CASE("a derived policy looks at the inputs; with() will not cut it down") {
  const amp::Region region{.policy = std::make_shared<OnlyLarge>(), .dtype = bf16};
  const Tensor w = randn({10, 10});
  const amp::Autocast scope(region);
  CHECK(linear(randn({2, 10}), w).dtype() == f32);
  CHECK(linear(randn({20, 10}), w).dtype() == bf16);
  CHECK_THROWS_WITH_AS(OnlyLarge().with(bf16),
                       doctest::Contains("[Policy.with] called on a derived"), UsageError);
}

TEST_CASE("a banned operation says what to use, and runs outside or where the policy allows it") {
  const Tensor p = full({4}, 0.25), target = ones({4});
  CHECK(binary_cross_entropy(p, target).item() > 1);
  {
    const amp::Autocast region(f16);
    CHECK_THROWS_WITH_AS(binary_cross_entropy(p, target),
                         doctest::Contains("[binary_cross_entropy] is refused under autocast. "),
                         UsageError);
    CHECK_THROWS_WITH_AS(binary_cross_entropy(p, target), doctest::Contains("bce_with_logits"),
                         UsageError);
    const amp::Autocast off = amp::Autocast::disabled();
    CHECK(binary_cross_entropy(p, target).item() > 1);
  }
  amp::autocast(Policy::preset("pytorch-cpu").with(bf16),
                [&] { CHECK(binary_cross_entropy(p, target).dtype() == f32); });
}

TEST_CASE("a policy prints as a table of all operations") {
  std::ostringstream text;
  text << Policy::preset("apex-o1");
  CHECK(text.str().starts_with("policy apex-o1\n  low_precision   conv2d"));
  for (const std::string_view op : Policy::operations())
    CHECK(text.str().find(std::string(op)) != std::string::npos);
  std::istringstream lines(text.str());
  for (std::string line; std::getline(lines, line);) {
    CHECK(line.size() <= 100);
    CHECK_FALSE(line.ends_with(' '));
  }
}

}  // namespace
}  // namespace halftone::testing
