// Reading policy files: every entry, files that extend files, and writing them
// again.
#include <doctest/doctest.h>

#include <halftone/amp/training.h>
#include <halftone/nn/nn.h>
#include <halftone/optim/optim.h>
#include <halftone/policy/session.h>

#include "policy_cases.h"

namespace halftone::test::policy_file_test {
namespace {

using policy::PolicyFile;
using policy::RoleRule;

TEST_CASE("the whole grammar is read") {
  const PolicyFile file = file_of(R"(
    "about": "all of it", "for": ["gpt", "mlp"], "extends": "o2-fp16",
    "weights": {"dtype": "bf16", "form": "master", "batch_norm_f32": false, "accumulate_in_f32": false,
                "fused": false, "hold_statistics": true},
    "autocast": "f16",
    "lists": {"preset": "apex-o1", "low_precision": ["softmax"], "as_is": ["gelu"]},
    "formats": {"small": {"exponent": 3, "fraction": 2, "max": 28, "infinity": false, "subnormals": false}},
    "quantizers": {
      "a": {"about": "one", "format": "small", "rounding": "stochastic", "random_bits": 8, "hadamard": 16,
            "scale": {"per": "tensor", "from": "history", "history": 7, "take": "latest", "margin": 2,
                      "power_of_two": true, "least": 0.5}},
      "b": {"like": "a", "format": "e2m1", "hadamard": 0, "scale": {"per": "block", "block": [2, 16],
            "format": "e4m3", "tensor_level": true}},
      "c": {"like": "mxfp8", "scale": {"per": "block", "format": "e8m0", "rule": "even"}}},
    "rules": [
      {"name": "first", "about": "why",
       "match": {"op": ["linear", "matmul"], "asks": "low_precision", "path": "h.*", "except": "h.[-1]",
                 "steps": [10, 20]},
       "compute": "f32", "result": "bf16", "input": "a", "input.backward": "as_used", "weight": "none",
       "weight.backward": "b", "bias": "bf16", "output": "small", "grad_output": "c",
       "grad_output.weight": {"format": "e5m2"}, "grad_input": "mxfp4", "grad_weight": "e3m4",
       "accumulate": {"format": "e8m13", "rounding": "toward_zero", "chunk": 128}, "optional": true},
      {"weight": "none", "match": {"steps": [5, null], "except": ["a.b", "c"]}}],
    "optimizer": {"state_dtype": "bf16", "parameters": "e8m15", "states": {"exp_avg": "c"}},
    "loss_scale": {"init": 256, "growth": 4, "backoff": 0.25, "interval": 10, "min": 1, "max": 1024,
                   "hysteresis": 2},
    "evaluation": "reference", "seed": 9)");
  CHECK(file.about == "all of it");
  CHECK(file.meant_for == std::vector<std::string>{"gpt", "mlp"});
  const amp::Strategy& base = file.base;
  CHECK(base.name == "p");
  CHECK(base.weights == bf16);
  CHECK(base.form == WeightForm::master);
  CHECK_FALSE(base.keep_batch_norm);
  CHECK_FALSE(base.accumulate_in_f32);
  CHECK_FALSE(base.fused_master);
  CHECK(base.hold_statistics);
  CHECK(base.autocast == f16);
  CHECK(base.state_dtype == bf16);
  REQUIRE(base.own_policy);
  CHECK((*base.own_policy)["softmax"].cast_class == CastClass::low_precision);
  CHECK((*base.own_policy)["gelu"].cast_class == CastClass::as_is);
  CHECK(base.own_policy->name() == "apex-o1");
  CHECK(base.scales_loss);
  CHECK(base.loss_scale.dynamic);
  CHECK(base.loss_scale.init_scale == 256);
  CHECK(base.loss_scale.growth_factor == 4);
  CHECK(base.loss_scale.backoff_factor == 0.25);
  CHECK(base.loss_scale.growth_interval == 10);
  CHECK(base.loss_scale.min_scale == 1);
  CHECK(base.loss_scale.max_scale == 1024);
  CHECK(base.loss_scale.hysteresis == 2);
  CHECK(file.base.seed == 9);
  CHECK_FALSE(file.rules.in_evaluation);
  CHECK(file.rules.parameters == Quantizer{.grid = NumberFormat::ieee_like(8, 15)});
  CHECK(file.rules.states.at("exp_avg").scaling.rule == ScaleRule::even);

  REQUIRE(file.rules.rules.size() == 2);
  const policy::Rule& rule = file.rules.rules[0];
  CHECK(rule.match == policy::Match{.ops = {"linear", "matmul"},
                                    .asks = CastClass::low_precision,
                                    .path = "h.*",
                                    .except = {"h.[-1]"},
                                    .from_step = 10,
                                    .to_step = 20});
  CHECK(rule.compute == policy::Compute::f32);
  CHECK(rule.result == bf16);
  CHECK(rule.optional);
  CHECK(rule.roles.size() == 10);
  CHECK(rule.roles.at(policy::Role::weight).kind == RoleRule::Kind::none);
  CHECK(rule.roles.at(policy::Role::input_backward).kind == RoleRule::Kind::as_used);
  NumberFormat small = NumberFormat::ieee_like(3, 2);
  small.max = 28, small.infinity = false, small.subnormals = false;
  const Quantizer& a = rule.roles.at(policy::Role::input).quantizer;
  CHECK(a.grid == small);
  CHECK(a.rounding == Rounding::stochastic);
  CHECK(a.random_bits == 8);
  CHECK(a.hadamard == 16);
  CHECK(a.hadamard_signs != 0);
  CHECK(a.scaling == Scaling{.per = Scaling::Per::tensor,
                             .from_history = true,
                             .history = 7,
                             .latest = true,
                             .margin = 2,
                             .least = 0.5f,
                             .power_of_two = true});
  const Quantizer& b = rule.roles.at(policy::Role::weight_backward).quantizer;
  CHECK(b.grid == formats::e2m1);
  CHECK(b.rounding == Rounding::stochastic);  // as a
  CHECK(b.hadamard == 0);
  CHECK(b.hadamard_signs == 0);
  Scaling blocks = Scaling::per_block(2, 16, formats::e4m3);
  blocks.tensor_level = true;
  CHECK(b.scaling == blocks);
  CHECK(rule.roles.at(policy::Role::output).quantizer.grid == small);
  CHECK(rule.roles.at(policy::Role::grad_weight).quantizer.grid == NumberFormat::ieee_like(3, 4));
  CHECK(rule.roles.at(policy::Role::grad_input).quantizer == *quantizer_named("mxfp4"));
  CHECK(rule.accumulate == Accumulator{.grid = NumberFormat::ieee_like(8, 13),
                                       .rounding = Rounding::toward_zero,
                                       .chunk = 128});
  CHECK(file.rules.rules[1].match.from_step == 5);
  CHECK(file.rules.rules[1].match.to_step == policy::Match{}.to_step);
  CHECK(file.rules.rules[1].match.except.size() == 2);

  // Written and read again it is the same.
  const std::string written = policy::write(file);
  const PolicyFile again = policy::read_text(written, "again");
  CHECK(policy::write(again) == written);
  CHECK(again.rules == file.rules);
  CHECK(policy::hash(again) == policy::hash(file));
  CHECK(policy::hash(file).size() == 16);
}

TEST_CASE("a small file is fp32; loss scales are words, numbers, objects") {
  const PolicyFile plain = file_of("");
  CHECK(plain.rules.empty());
  amp::Strategy fp32 = amp::Strategy::named("fp32");
  fp32.name = "p";
  CHECK(policy::write(plain) == policy::write({.base = fp32}));
  CHECK(file_of(R"("loss_scale": "none")").base.scales_loss == false);
  CHECK(file_of(R"("loss_scale": "dynamic")").base.loss_scale.dynamic);
  CHECK(file_of(R"("loss_scale": "dynamic")").base.scales_loss);
  const PolicyFile fixed = file_of(R"("loss_scale": 128)");
  CHECK(fixed.base.scales_loss);
  CHECK_FALSE(fixed.base.loss_scale.dynamic);
  CHECK(fixed.base.loss_scale.init_scale == 128);
  CHECK(contains(policy::write(fixed), "\"loss_scale\": 128.0"));
  CHECK(file_of(R"("extends": "amp-bf16")").base.autocast == bf16);
  CHECK_FALSE(file_of(R"("extends": "amp-bf16", "autocast": null)").base.autocast);
}

TEST_CASE("a file's own name takes precedence over a predefined one, from its line on") {
  const PolicyFile file = file_of(R"(
    "quantizers": {"first": "mxfp8", "mxfp8": "e5m2", "second": "mxfp8"},
    "rules": [{"input": "first", "output": "mxfp8", "bias": "second"}])");
  const auto& roles = file.rules.rules.at(0).roles;
  CHECK(roles.at(policy::Role::input).quantizer == *quantizer_named("mxfp8"));
  CHECK(roles.at(policy::Role::output).quantizer.grid == formats::e5m2);
  CHECK(roles.at(policy::Role::bias).quantizer.grid == formats::e5m2);
}

TEST_CASE("names are whole names: long ones, and names that a JSON pointer escapes") {
  const std::string same(200, 'q');
  const PolicyFile file =
      file_of(R"("formats": {"f/~": {"exponent": 5, "fraction": 1}}, "quantizers": {")" + same +
              R"(a": "f/~", ")" + same + R"(b": "e4m3"}, "rules": [{"input": ")" + same +
              R"(a", "output": ")" + same + R"(b"}], "optimizer": {"states": {"a/~b": "e5m2"}})");
  const auto& roles = file.rules.rules.at(0).roles;
  CHECK(roles.at(policy::Role::input).quantizer.grid.significand_bits == 2);
  CHECK(roles.at(policy::Role::output).quantizer.grid == formats::e4m3);
  CHECK(file.rules.states.contains("a/~b"));
  CHECK(policy::write(policy::read_text(policy::write(file), "x")) == policy::write(file));
}

TEST_CASE("files extend files next to them; the rules of the base come first") {
  const TemporaryDirectory folder;
  write_file(folder / "base.json", R"({"halftone_policy": 1, "name": "base", "extends": "amp-bf16",
    "about": "below", "quantizers": {"q": "mxfp8"}, "seed": 3,
    "rules": [{"name": "one", "input": "q"}]})");
  write_file(folder / "top.json", R"({"halftone_policy": 1, "name": "top", "extends": "base.json",
    "quantizers": {"r": {"like": "q", "rounding": "stochastic"}},
    "rules": [{"name": "two", "input": "r", "weight": "q"}]})");
  const PolicyFile file = policy::read(folder / "top.json");
  CHECK(file.base.name == "top");
  CHECK(file.base.autocast == bf16);
  CHECK(file.about == "below");
  CHECK(file.base.seed == 3);
  REQUIRE(file.rules.rules.size() == 2);
  CHECK(file.rules.rules[0].name == "one");
  CHECK(file.rules.rules[1].roles.at(policy::Role::input).quantizer.rounding ==
        Rounding::stochastic);
  // The written file is complete, so that it needs no file next to it.
  CHECK(policy::write(policy::read_text(policy::write(file), "x")) == policy::write(file));

  // Also if the path is only a name.
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const std::string hash = policy::hash(policy::read("top.json"));
  std::filesystem::current_path(before);
  CHECK(hash == policy::hash(file));

  const auto refusal_of_file = [&](const std::string& name) {
    return message_of<FormatError>([&] { policy::read(folder / name); });
  };
  write_file(folder / "orphan.json",
             R"({"halftone_policy": 1, "name": "orphan", "extends": "nobody.json"})");
  CHECK(contains(refusal_of_file("orphan.json"), "[policy orphan.json] /extends: cannot read "));
  CHECK(contains(refusal_of_file("absent.json"), "[policy absent.json] cannot read "));
  CHECK(contains(refusal_of_file("."), "it is not a regular file"));
  write_file(folder / "turned.json",
             "{\"halftone_policy\": 1, \"name\": \"x\", \"extends\": \"\\u202e\\u001b.json\"}");
  const std::string turned = refusal_of_file("turned.json");
  CHECK(turned.starts_with("[policy turned.json] /extends: cannot read "));
  CHECK(contains(turned, "/\\u202e\\x1b.json: "));
  write_file(folder / "\x1b.json", "[]");
  CHECK(refusal_of_file("\x1b.json") ==
        "[policy \\x1b.json] /: a policy is an object, got a list.");
  write_file(folder / "self.json",
             R"({"halftone_policy": 1, "name": "self", "extends": "self.json"})");
  CHECK(refusal_of_file("self.json") ==
        "[policy self.json] /extends: more than 8 files extend one another, perhaps in a circle.");
  // An error names the file that it is in.
  write_file(folder / "base.json", R"({"halftone_policy": 1, "name": "base", "rules": 1})");
  CHECK(refusal_of_file("top.json") == "[policy base.json] /rules: expected a list, got a number.");
  write_file(folder / "large.json", std::string((1 << 20) + 1, ' '));
  CHECK(contains(refusal_of_file("large.json"), "has 1048577 bytes. At most 1048576 make sense."));
}

TEST_CASE("a base is found relative to the file that names it") {
  const TemporaryDirectory folder;
  std::filesystem::create_directories(folder / "below/deeper");
  const auto extending = [&](const std::string& name, const std::string& base) {
    write_file(folder / name, R"({"halftone_policy": 1, "name": "x", "extends": ")" + base + "\"}");
    return policy::read(folder / name).base.autocast;
  };
  write_file(folder / "base.json",
             R"({"halftone_policy": 1, "name": "base", "extends": "amp-bf16"})");
  CHECK(extending("below/up.json", "../base.json") == bf16);
  CHECK(extending("down.json", "below/up.json") == bf16);  // its own base is next to down.json
  CHECK(extending("below/deeper/up.json", "../up.json") == bf16);
  CHECK(extending("below/deeper/whole.json", (folder / "base.json").string()) == bf16);
}

TEST_CASE("a file removes grids of its base") {
  const TemporaryDirectory folder;
  write_file(folder / "base.json", R"({"halftone_policy": 1, "name": "base",
    "optimizer": {"parameters": "e8m15", "states": {"exp_avg": "bf16", "exp_avg_sq": "bf16"}}})");
  write_file(folder / "top.json", R"({"halftone_policy": 1, "name": "top", "extends": "base.json",
    "optimizer": {"parameters": "none", "states": {"exp_avg": "none"}}})");
  const PolicyFile file = policy::read(folder / "top.json");
  CHECK_FALSE(file.rules.parameters);
  CHECK(file.rules.states.size() == 1);
  CHECK(file.rules.states.contains("exp_avg_sq"));
  // A rule of the base that computes in "low" is dropped with the base's autocast.
  write_file(folder / "base.json", R"({"halftone_policy": 1, "name": "base", "extends": "amp-bf16",
    "rules": [{"compute": "low"}]})");
  write_file(folder / "top.json", R"({"halftone_policy": 1, "name": "top", "extends": "base.json",
    "autocast": null})");
  CHECK(message_of<FormatError>([&] { policy::read(folder / "top.json"); }) ==
        "[policy top.json] /autocast: rule 0 of the base computes in \"low\", the dtype of "
        "autocast, and there is none. Say \"bf16\" or \"f16\", or add \"autocast\".");
}

TEST_CASE("a chain of eight files is not too long") {
  const TemporaryDirectory folder;
  for (int i = 0; i < 8; ++i)
    write_file(folder / (std::to_string(i) + ".json"),
               R"({"halftone_policy": 1, "name": "link", "extends": ")" +
                   (i == 0 ? std::string("fp32") : std::to_string(i - 1) + ".json") + "\"}");
  CHECK(policy::read(folder / "7.json").base.name == "link");
}

TEST_CASE("strategies by name or by file, and back") {
  const TemporaryDirectory folder;
  write_file(folder / "p.json", text_of(R"("extends": "o2-bf16", "rules": [{"input": "mxfp8"}])"));
  const amp::Strategy loaded = policy::named_or_loaded((folder / "p.json").string());
  CHECK(loaded.name == "p");
  CHECK(bool(loaded.session));
  CHECK(policy::write(policy::file_of(loaded)) == policy::write(policy::read(folder / "p.json")));
  CHECK(policy::named_or_loaded("o2-bf16").form == WeightForm::master);
  CHECK_FALSE(policy::parse(text_of("")).session);
  CHECK(contains(message_of<UsageError>([] { policy::named_or_loaded("o2-bf61"); }), "o2-bf16"));

  amp::Strategy own = amp::Strategy::named("amp-bf16");
  struct OwnSource final : amp::SessionSource {
    std::shared_ptr<amp::Session> session_for(nn::Module&, const amp::Strategy&) const override {
      return nullptr;
    }
  };
  own.session = std::make_shared<OwnSource>();
  CHECK(contains(message_of<UsageError>([&] { policy::file_of(own); }),
                 "has a session that no file made"));
  nn::Linear model(2, 2);
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  const amp::Training training = amp::apply("amp-bf16", model, sgd);
  CHECK(contains(message_of<UsageError>([&] { policy::session_of(training); }),
                 "[policy.session_of] amp-bf16 has no rules"));
  struct Own final : amp::CastPolicy {};
  own = amp::Strategy::named("amp-bf16"), own.own_policy = std::make_shared<Own>();
  CHECK(contains(message_of<UsageError>([&] { policy::write({.base = own}); }),
                 "has a policy that is a class of its own"));
  auto dtypes = std::make_shared<amp::CastPolicy>();
  (*dtypes)["softmax"] = {CastClass::low_precision, f16};
  own.own_policy = dtypes;
  CHECK(contains(message_of<UsageError>([&] { policy::write({.base = own}); }),
                 "gives softmax low_precision f16. In a file that is a rule: "));
}

}  // namespace
}  // namespace halftone::test::policy_file_test
