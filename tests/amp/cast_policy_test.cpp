// Policies: presets against lists read from a real PyTorch
// (tests/fixtures/pytorch/amp_policy_fixtures.py), names, overrides, decisions that depend on
// inputs, printing.
#include <algorithm>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/amp/cast_policy.h>

#include "../support.h"
#include "cases.h"
#include "ops/properties.h"

namespace halftone::test::policy_test {
namespace {

using amp::CastClass;
using amp::CastPolicy;

nlohmann::json fixture() {
  std::ifstream file(fixtures_directory() + "/amp_policies.json");
  return nlohmann::json::parse(file);
}

TEST_CASE("the PyTorch presets are PyTorch's lists") {
  const nlohmann::json lists = fixture();
  for (const char* preset : {"pytorch-cuda", "pytorch-cpu"}) {
    const CastPolicy policy = CastPolicy::preset(preset);
    int compared = 0;
    for (const auto& [op, row] : lists.at(preset).items()) {
      if (std::ranges::find(CastPolicy::operations(), op) == CastPolicy::operations().end())
        continue;
      CAPTURE(preset);
      CAPTURE(op);
      CHECK(name(policy[op].cast_class) == row.at("class").get<std::string>());
      ++compared;
    }
    CHECK(compared > 85);
  }
}

TEST_CASE("every preset has a rule for every operation, and operations ask for pytorch-cuda") {
  for (const std::string_view preset : CastPolicy::preset_names()) {
    const CastPolicy policy = CastPolicy::preset(preset);
    CHECK(policy.name() == preset);
    CHECK(policy["linear"] == (preset == "none" ? CastClass::as_is : CastClass::low_precision));
  }
  CHECK(CastPolicy::preset("all-low")["softmax"] == CastClass::low_precision);
  CHECK(CastPolicy::preset("all-low")["reshape"] == CastClass::as_is);
  CHECK(CastPolicy::preset("apex-o1")["gelu"] == CastClass::full_precision);
  CHECK(CastPolicy::preset("paddle-o1")["mean"] == CastClass::full_precision);
  CHECK(CastPolicy::preset("flashlight-o1")["batch_norm"] == CastClass::full_precision);
  CHECK(CastPolicy()["softmax"] == CastClass::full_precision);
}

TEST_CASE("unknown names are refused, with the nearest one") {
  CastPolicy policy;
  CHECK_THROWS_WITH_AS(
      policy["sofmax"],
      "[CastPolicy] there is no operation named \"sofmax\". Did you mean \"softmax\"?", UsageError);
  CHECK_THROWS_WITH_AS(
      CastPolicy::preset("pytorch"),
      "[CastPolicy.preset] there is no preset named \"pytorch\". Known: pytorch-cuda, pytorch-cpu, "
      "apex-o1, paddle-o1, flashlight-o1, none, all-low.",
      UsageError);
  CHECK_THROWS_WITH_AS(CastPolicy::preset("apex-o2"),
                       doctest::Contains("Did you mean \"apex-o1\"?"), UsageError);
}

TEST_CASE("an override by name changes what runs") {
  const Tensor x = randn({2, 4});
  const auto softmax_dtype = [&](const CastPolicy& policy) {
    return amp::autocast(policy.with(bf16), [&] { return softmax(x, 1).dtype(); });
  };
  CastPolicy policy;
  CHECK(softmax_dtype(policy) == f32);
  policy["softmax"] = CastClass::low_precision;
  CHECK(softmax_dtype(policy) == bf16);
  CHECK(softmax_dtype(CastPolicy()) == f32);  // the default does not change
}

TEST_CASE("a decision may name its dtype, per device") {
  using amp::CastDecision;
  const Tensor x = randn({2, 4}), w = randn({4, 4});
  CastPolicy policy;
  policy["softmax"] = {CastClass::low_precision, f16};
  policy["sum"] = {CastClass::low_precision, {}, f16};  // for a GPU; here the region's dtype
  amp::PrecisionLog log;
  amp::autocast(policy.with(bf16), [&] {
    CHECK(matmul(x, w).dtype() == bf16);
    CHECK(softmax(x, 1).dtype() == f16);
    CHECK(sum(x).dtype() == bf16);
  });
  std::vector<std::string> decided;
  for (const auto& entry : log.entries()) decided.push_back(amp::described(entry.decided));
  CHECK(decided ==
        std::vector<std::string>{"low_precision", "low_precision f16", "low_precision (cuda f16)"});
  CHECK(CastDecision(CastClass::low_precision, bf16, f16).dtype_on(Device::cuda()) == f16);
  CHECK(CastDecision(CastClass::low_precision, bf16, f16).dtype_on(Device::cpu()) == bf16);
  std::ostringstream text;
  text << policy;
  CHECK(text.str().find("\n  low_precision f16 softmax\n") != std::string::npos);
  policy["softmax"] = {CastClass::low_precision, f8_e4m3};
  CHECK_THROWS_WITH_AS(amp::autocast(policy.with(bf16), [&] { softmax(x, 1); }),
                       "[softmax] cannot run in f8_e4m3 under autocast. Use bf16 or f16.",
                       DTypeError);
  policy["softmax"] = {CastClass::full_precision, bf16};
  CHECK_THROWS_AS(amp::autocast(policy.with(bf16), [&] { softmax(x, 1); }), DTypeError);
}

TEST_CASE("every published list gives a class for each low-precision operation") {
  const CastPolicy asked;
  for (const amp::Preset& preset : amp::presets()) {
    if (preset.lists.empty() || preset.name == "flashlight-o1") continue;  // one rule for all
    for (const std::string_view op : CastPolicy::operations()) {
      if (asked[op].cast_class != CastClass::low_precision) continue;
      const bool named = std::ranges::any_of(preset.lists, [&](const amp::Preset::List& list) {
        return std::ranges::find(list.operations, op) != list.operations.end();
      });
      CHECK_MESSAGE(named, preset.name, " does not speak of ", op);
    }
  }
}

TEST_CASE("losses are marked, and operations that train short weights compute them in f32") {
  const std::vector<std::string_view> losses(CastPolicy::losses().begin(),
                                             CastPolicy::losses().end());
  CHECK(losses == std::vector<std::string_view>{
                      "bce_with_logits", "binary_cross_entropy", "cosine_embedding_loss",
                      "cross_entropy", "ctc_loss", "hinge_embedding_loss", "huber", "kl_div", "l1",
                      "margin_ranking_loss", "mse", "nll_loss", "poisson_nll_loss", "smooth_l1",
                      "triplet_margin_loss"});
}

TEST_CASE("a batched product asks the policy once") {
  amp::PrecisionLog log;
  amp::autocast(bf16, [] { matmul(randn({3, 1, 2, 4}), randn({5, 4, 2})); });
  REQUIRE(log.entries().size() == 1);
  CHECK(log.entries()[0].calls == 1);
  CHECK(log.entries()[0].casts == 2);
}

/// Doubles x, in any dtype.
struct Double : UserOp {
  static constexpr OpInfo info{"double", CastClass::as_is};
  Tensor forward(const Tensor& x) { return x + x; }
};

TEST_CASE("a policy decides on operations outside the library, by their info") {
  const Tensor x = ones({2});
  CastPolicy policy;
  CHECK_THROWS_AS(policy["double"], UsageError);
  CHECK(policy[Double::info] == CastClass::as_is);
  policy[Double::info] = CastClass::low_precision;
  CHECK(policy["double"] == CastClass::low_precision);
  amp::autocast(policy.with(bf16), [&] { CHECK(apply(Double{}, x).dtype() == bf16); });
  amp::autocast(CastPolicy().with(bf16), [&] { CHECK(apply(Double{}, x).dtype() == f32); });
  std::ostringstream text;
  text << policy;
  CHECK(text.str().find(" double") < text.str().find("full_precision"));
}

struct OnlyLarge final : CastPolicy {
  amp::CastDecision decide(const OpInfo& op, std::span<const Tensor> inputs) const override {
    if (inputs[0].numel() < 100) return CastClass::as_is;
    return CastPolicy::decide(op, inputs);
  }
};

TEST_CASE("a derived policy sees the inputs; with() refuses to make it a list") {
  const amp::Region region{.policy = std::make_shared<OnlyLarge>(), .dtype = bf16};
  const Tensor w = randn({10, 10});
  const amp::Autocast scope(region);
  CHECK(linear(randn({2, 10}), w).dtype() == f32);
  CHECK(linear(randn({20, 10}), w).dtype() == bf16);
  CHECK_THROWS_WITH_AS(OnlyLarge().with(bf16),
                       doctest::Contains("[CastPolicy.with] called on a derived"), UsageError);
}

TEST_CASE("every operation of a policy says why it asks for its class") {
  for (const std::string_view op : CastPolicy::operations()) {
    CAPTURE(op);
    const OpInfo* info = CastPolicy::info(op);
    REQUIRE(info);
    CHECK(info->cast_class == CastPolicy()[op].cast_class);
    CHECK(info->reason.size() > 5);
    CHECK(info->reason.size() < 100);
  }
  CHECK(CastPolicy::info("sum")->reason != CastPolicy::info("mean")->reason);
  CHECK(!CastPolicy::info("swish_gate"));
}

TEST_CASE("operations with a fact are named as in a sentence") {
  CHECK(CastPolicy::operations_with(&OpFacts::accumulator) ==
        "attention_scores, attention_values, conv2d, grouped_linear, linear, matmul and "
        "router_scores");
  CHECK(CastPolicy::operations_with(&OpFacts::tf32) ==
        "conv2d, conv_transpose2d, grouped_linear, linear, matmul and router_scores");
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
  amp::autocast(CastPolicy::preset("pytorch-cpu").with(bf16),
                [&] { CHECK(binary_cross_entropy(p, target).dtype() == f32); });
}

TEST_CASE("a policy prints as a table of all operations") {
  std::ostringstream text;
  text << CastPolicy::preset("apex-o1");
  CHECK(text.str().starts_with("policy apex-o1\n  low_precision   conv2d"));
  for (const std::string_view op : CastPolicy::operations())
    CHECK(text.str().find(std::string(op)) != std::string::npos);
  std::istringstream lines(text.str());
  for (std::string line; std::getline(lines, line);) {
    CHECK(line.size() <= 100);
    CHECK_FALSE(line.ends_with(' '));
  }
}

}  // namespace
}  // namespace halftone::test::policy_test

// The whole operation table under a real region: every operation gives the bits that it gives for
// inputs cast by hand outside. On every backend and in both short formats, as PyTorch tests its
// lists.

namespace halftone::test::op_classes_test {
namespace {

using test::Case;
using test::OpSamples;
using test::Tensors;

/// Floating inputs of a case, the first in `first`, the others in `others`. An input that requires
/// a gradient is a leaf, so that the cache is used.
Tensors inputs_in(const Case& test, DType first, DType others) {
  Tensors inputs = test::inputs_of(test, f32);
  bool is_first = true;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!test.inputs[i].floating() || !inputs[i].defined()) continue;
    inputs[i] = cast(inputs[i], is_first ? first : others).clone();
    if (test.inputs[i].differentiable()) inputs[i].set_requires_grad();
    is_first = false;
  }
  return inputs;
}

void check_case(const OpSamples& samples, const Case& test, const Tensors& inputs, DType low) {
  const CastClass asked = amp::CastPolicy()[samples.name].cast_class;
  if (asked == CastClass::banned) {
    const amp::Autocast region(low);
    CHECK_THROWS_AS(test.call(inputs), UsageError);
    return;
  }
  const Tensor y = amp::autocast(low, [&] { return test.call(inputs); });
  const Tensor by_hand = test.call(cast_by_hand(asked, inputs, low));
  CHECK(y.dtype() == by_hand.dtype());
  CHECK(same_bits(y.detach(), by_hand.detach()));
}

TEST_CASE("every operation under autocast equals itself on inputs cast by hand") {
  const std::array<std::pair<DType, DType>, 4> mixes{
      {{f32, f32}, {bf16, f32}, {f16, f16}, {f64, f64}}};
  test::each_op([&](const OpSamples& samples) {
    if (samples.name == "checkpoint" || samples.name == "cast") return;  // no rule
    for (const test::Target& target : test::cpu_targets())
      for (const Case& test : samples.cases)
        for (const DType low : {bf16, f16})
          for (const auto& [first, others] : mixes) {
            INFO(samples.name, ", ", test.name, ", ", std::string(target.backend), ", autocast ",
                 std::string(name(low)), ", first input ", std::string(name(first)));
            const test::TargetScope scope(target);
            check_case(samples, test, inputs_in(test, first, others), low);
          }
  });
}

}  // namespace
}  // namespace halftone::test::op_classes_test
