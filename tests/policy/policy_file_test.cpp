// Reading policy files: every entry, files that extend files, and writing them
// again.
#include <doctest/doctest.h>

#include <halftone/amp/cast_policy.h>
#include <halftone/amp/training.h>
#include <halftone/nn/conv.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/module.h>
#include <halftone/nn/rnn.h>
#include <halftone/optim/optimizer.h>
#include <halftone/optim/optimizers.h>
#include <halftone/amp/session.h>

#include "policy_cases.h"

namespace halftone::test::policy_file_test {
namespace {

using amp::Policy;
using policy::RoleRule;

TEST_CASE("the whole grammar is read") {
  const Policy file = file_of(R"(
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
  const amp::Policy& base = file;
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
  CHECK(file.seed == 9);
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
  CHECK(a.random.bits == 8);
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
  const Policy again = policy::read_text(written, "again");
  CHECK(policy::write(again) == written);
  CHECK(again.rules == file.rules);
  CHECK(policy::hash(again) == policy::hash(file));
  CHECK(policy::hash(file).size() == 16);
}

TEST_CASE("a small file is fp32; loss scales are words, numbers, objects") {
  const Policy plain = file_of("");
  CHECK(plain.rules.empty());
  amp::Policy fp32 = amp::Policy::named("fp32");
  fp32.name = "p";
  CHECK(policy::write(plain) == policy::write(fp32));
  CHECK(file_of(R"("loss_scale": "none")").scales_loss == false);
  CHECK(file_of(R"("loss_scale": "dynamic")").loss_scale.dynamic);
  CHECK(file_of(R"("loss_scale": "dynamic")").scales_loss);
  const Policy fixed = file_of(R"("loss_scale": 128)");
  CHECK(fixed.scales_loss);
  CHECK_FALSE(fixed.loss_scale.dynamic);
  CHECK(fixed.loss_scale.init_scale == 128);
  CHECK(contains(policy::write(fixed), "\"loss_scale\": 128.0"));
  CHECK(file_of(R"("extends": "amp-bf16")").autocast == bf16);
  CHECK_FALSE(file_of(R"("extends": "amp-bf16", "autocast": null)").autocast);
}

TEST_CASE("a file's own name takes precedence over a predefined one, from its line on") {
  const Policy file = file_of(R"(
    "quantizers": {"first": "mxfp8", "mxfp8": "e5m2", "second": "mxfp8"},
    "rules": [{"input": "first", "output": "mxfp8", "bias": "second"}])");
  const auto& roles = file.rules.rules.at(0).roles;
  CHECK(roles.at(policy::Role::input).quantizer == *quantizer_named("mxfp8"));
  CHECK(roles.at(policy::Role::output).quantizer.grid == formats::e5m2);
  CHECK(roles.at(policy::Role::bias).quantizer.grid == formats::e5m2);
}

TEST_CASE("names are whole names: long ones, and names that a JSON pointer escapes") {
  const std::string same(200, 'q');
  const Policy file =
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
  const Policy file = policy::read(folder / "top.json");
  CHECK(file.name == "top");
  CHECK(file.autocast == bf16);
  CHECK(file.about == "below");
  CHECK(file.seed == 3);
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
    return policy::read(folder / name).autocast;
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
  const Policy file = policy::read(folder / "top.json");
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
  CHECK(policy::read(folder / "7.json").name == "link");
}

TEST_CASE("strategies by name or by file, and back") {
  const TemporaryDirectory folder;
  write_file(folder / "p.json", text_of(R"("extends": "o2-bf16", "rules": [{"input": "mxfp8"}])"));
  const amp::Policy loaded = policy::named_or_read((folder / "p.json").string());
  CHECK(loaded.name == "p");
  CHECK(loaded.has_session());
  CHECK(policy::write(loaded) == policy::write(policy::read(folder / "p.json")));
  CHECK(policy::named_or_read("o2-bf16").form == WeightForm::master);
  CHECK_FALSE(policy::read_text(text_of("")).has_session());
  CHECK(contains(message_of<UsageError>([] { policy::named_or_read("o2-bf61"); }), "o2-bf16"));

  amp::Policy own = amp::Policy::named("amp-bf16");
  nn::Linear model(2, 2);
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  const amp::Training training = amp::apply("amp-bf16", model, sgd);
  CHECK(contains(message_of<UsageError>([&] { policy::session_of(training); }),
                 "[policy.session_of] amp-bf16 has no rules"));
  struct Own final : amp::CastPolicy {};
  own = amp::Policy::named("amp-bf16"), own.own_policy = std::make_shared<Own>();
  CHECK(contains(message_of<UsageError>([&] { policy::write(own); }),
                 "has a policy that is a class of its own"));
  auto dtypes = std::make_shared<amp::CastPolicy>();
  (*dtypes)["softmax"] = {CastClass::low_precision, f16};
  own.own_policy = dtypes;
  CHECK(contains(message_of<UsageError>([&] { policy::write(own); }),
                 "gives softmax low_precision f16. In a file that is a rule: "));
}

}  // namespace
}  // namespace halftone::test::policy_file_test

// Policy files that are refused: every error with its position and text.

namespace halftone::test::policy_errors_test {
namespace {

TEST_CASE("text that is not JSON is an error with line and column") {
  CHECK(refusal_of_text("{\n  \"a\": 1,\n  // remark\n}") ==
        "line 3, column 3: not JSON. Remarks go into \"about\".");
  CHECK(refusal_of_text("") == "line 1, column 1: not JSON. Remarks go into \"about\".");
  CHECK(contains(refusal_of_text(R"({"halftone_policy": 1,})"), "line 1, column 23: not JSON"));
  CHECK(contains(refusal_of_text(R"({"halftone_policy": 1} x)"), "not JSON"));
  CHECK(contains(refusal_of_text(R"({"halftone_policy": NaN})"), "not JSON"));
  CHECK(contains(refusal_of_text("{\"a\": \"\xff\"}"), "not JSON"));
  CHECK(refusal_of(R"("seed": 1e999)") ==
        "line 1, column 45: the number does not fit in 64 bits. Choose a number up to 1.7e308.");
  CHECK(refusal_of(R"("seed": 1, "seed": 1)") ==
        "the entry \"seed\" occurs twice in one object. Keep one of them.");
  CHECK(refusal_of(R"("rules": [{"match": {"op": "add", "op": "mul"}}])") ==
        "the entry \"op\" occurs twice in one object. Keep one of them.");
  // A message would end at it, and lose the rest of the error.
  CHECK(refusal_of("\"rules\": [{\"match\": {\"path\": \"a{\\u0000\"}}]") ==
        "the text \"a{\\x00\" has a character U+0000. Leave it out.");
  CHECK(refusal_of("\"formats\": {\"a\\u0000\": 3}") ==
        "the text \"a\\x00\" has a character U+0000. Leave it out.");
  CHECK(refusal_of(R"("rules": )" + std::string(70, '[') + std::string(70, ']')) ==
        "there are more than 64 levels of braces and brackets.");
  std::string many = R"("formats": {)";
  for (int i = 0; i < 10001; ++i) many += '"' + std::to_string(i) + "\": \"e4m3\",";
  many.back() = '}';
  CHECK(refusal_of(many) == "an object has more than 10000 entries.");
  const std::string large = text_of("\"about\": \"" + std::string(1 << 20, ' ') + '"');
  CHECK(refusal_of_text(large) ==
        "the file has " + std::to_string(large.size()) + " bytes. A policy has at most 1048576.");
}

TEST_CASE("the top of a file") {
  CHECK(refusal_of_text("[]") == "/: a policy is an object, got a list.");
  CHECK(refusal_of_text("3") == "/: a policy is an object, got a number.");
  CHECK(refusal_of_text("null") == "/: a policy is an object, got null.");
  CHECK(refusal_of_text("{}") == "/: \"halftone_policy\": 1 is missing. Is this a policy?");
  CHECK(refusal_of_text(R"({"halftone_policy": 2, "name": "p"})") ==
        "/halftone_policy: the version is 2, this program reads 1. Use a newer one.");
  CHECK(contains(refusal_of_text(R"({"halftone_policy": 0, "name": "p"})"),
                 "/halftone_policy: expected a whole number from 1 to "));
  CHECK(contains(refusal_of_text(R"({"halftone_policy": 1.0, "name": "p"})"),
                 ", got 1.0. Write it without a point and an exponent."));
  CHECK(contains(refusal_of(R"("loss_scale": {"interval": 2e3})"),
                 "got 2000.0. Write it without a point and an exponent."));
  CHECK(contains(refusal_of_text(R"({"halftone_policy": "1", "name": "p"})"),
                 "/halftone_policy: expected a number, got a text."));
  CHECK(refusal_of_text(R"({"halftone_policy": 1})") ==
        "/: \"name\" is missing. Give the policy one.");
  CHECK(refusal_of_text(R"({"halftone_policy": 1, "name": ""})") ==
        "/name: a name has 1 to 100 letters, all of them printable.");
  CHECK(refusal_of_text(R"({"halftone_policy": 1, "name": "a\u001b[31m"})") ==
        "/name: a name has 1 to 100 letters, all of them printable.");
  CHECK(refusal_of_text(R"({"halftone_policy": 1, "name": 7})") ==
        "/name: expected a text, got a number.");
  CHECK(refusal_of(R"("rule": [])") ==
        "/rule: a policy has no entry \"rule\". Did you mean \"rules\"?");
  CHECK(refusal_of("\"a\\u001b\\n~/\": 1")
            .starts_with("/a\\x1b\\n~0~1: a policy has no entry \"a\\x1b\\n~/\". "));
  CHECK(
      refusal_of(R"("for": [])") ==
      "/for: the list is empty. Name at least one model, or leave \"for\" out: then the policy is "
      "for all models.");
  CHECK(refusal_of(R"("for": "gpt")") == "/for: expected a list, got a text.");
  CHECK(refusal_of(R"("for": ["gpt", "nonsense"])") ==
        "/for/1: gpt, lenet, llama, lstm_classifier, mlp, resnet, unet or vit, got \"nonsense\".");
  CHECK(contains(refusal_of(R"("for": [""])"), "/for/0: gpt, "));
  CHECK(contains(refusal_of(R"("for": [1])"), "/for/0: expected a text, got a number."));
  CHECK(refusal_of(R"("about": true)") == "/about: expected a text, got true or false.");
  CHECK(refusal_of(R"("evaluation": "off")") == "/evaluation: same or reference, got \"off\".");
  CHECK(refusal_of(R"("seed": -1)") ==
        "/seed: expected a whole number from 0 to 9223372036854775807, got -1.");
  CHECK(contains(refusal_of(R"("seed": 9223372036854775808)"), ", got 9223372036854775808."));
  CHECK(contains(refusal_of(R"("seed": 1.5)"), "/seed: expected a whole number"));
  CHECK(refusal_of(R"("seed": 9223372036854775807)") == "accepted");
}

TEST_CASE("strategies: base, weights, lists, loss scale") {
  CHECK(refusal_of(R"("extends": "amp-bf61")") ==
        "/extends: there is no strategy named \"amp-bf61\". Did you mean \"amp-bf16\"?");
  CHECK(refusal_of(R"("extends": "other.json")") ==
        "/extends: only a file can extend a file. Extend a strategy or a shipped policy.");
  CHECK(refusal_of(R"("weights": "bf16")") == "/weights: weights is an object, got a text.");
  CHECK(refusal_of(R"("weights": {"dtyp": "bf16"})") ==
        "/weights/dtyp: weights has no entry \"dtyp\". Did you mean \"dtype\"?");
  CHECK(refusal_of(R"("weights": {"dtype": "e4m3"})") ==
        "/weights/dtype: f32, bf16, f16 or f64, got \"e4m3\".");
  CHECK(contains(refusal_of(R"("weights": {"form": "short"})"), "/weights/form: plain, master, "));
  CHECK(refusal_of(R"("weights": {"fused": 1})") ==
        "/weights/fused: expected true or false, got a number.");
  CHECK(refusal_of(R"("autocast": "f32")") == "/autocast: bf16 or f16, got \"f32\".");
  CHECK(refusal_of(R"("autocast": false)") == "/autocast: expected a text, got true or false.");
  CHECK(refusal_of(R"("lists": {"preset": "pytorch"})")
            .starts_with("/lists/preset: there is no preset named \"pytorch\". "));
  CHECK(refusal_of(R"("lists": {"low": []})")
            .starts_with("/lists/low: lists has no entry \"low\". "));
  CHECK(
      refusal_of(R"("lists": {"low_precision": ["sofmax"]})") ==
      "/lists/low_precision/0: there is no operation named \"sofmax\". Did you mean \"softmax\"?");
  CHECK(refusal_of(R"("lists": {"low_precision": "softmax"})") ==
        "/lists/low_precision: expected a list, got a text.");
  CHECK(refusal_of(R"("loss_scale": "static")") == "/loss_scale: none or dynamic, got \"static\".");
  CHECK(refusal_of(R"("loss_scale": -1)") ==
        "/loss_scale: the scale is -1. Use a positive finite number, best a power of two.");
  CHECK(refusal_of(R"("loss_scale": null)") == "/loss_scale: expected a number, got null.");
  CHECK(refusal_of(R"("loss_scale": {"grow": 2})") ==
        "/loss_scale/grow: a loss scale has no entry \"grow\". Did you mean \"growth\"?");
  CHECK(refusal_of(R"("loss_scale": {"growth": 1})") ==
        "/loss_scale: growth_factor is 1. Use a number above 1.");
  CHECK(contains(refusal_of(R"("loss_scale": {"interval": 0})"), "/loss_scale/interval: expected"));
  CHECK(contains(refusal_of(R"("loss_scale": {"hysteresis": 2.5})"), "expected a whole number"));
}

TEST_CASE("rules") {
  CHECK(refusal_of(R"("rules": {})") == "/rules: expected a list, got an object.");
  CHECK(refusal_of(R"("rules": ["mxfp8"])") == "/rules/0: a rule is an object, got a text.");
  CHECK(refusal_of(R"("rules": [{"weight": "none"}, {"imput": "mxfp8"}])") ==
        "/rules/1/imput: a rule has no entry \"imput\". Did you mean \"input\"?");
  CHECK(refusal_of(
            R"("rules": [{"weight": "none"}, {"weight": "none"}, {"match": {"op": "sofmax"}}])") ==
        "/rules/2/match/op: there is no operation named \"sofmax\". Did you mean \"softmax\"?");
  CHECK(contains(refusal_of_rule(R"("match": {"op": ["linear", "conv3d"]})"),
                 "/rules/0/match/op/1: there is no operation named \"conv3d\". "));
  CHECK(contains(refusal_of_rule(R"("match": {"op": 3})"), "/rules/0/match/op: expected a list"));
  CHECK(contains(refusal_of_rule(R"("match": "linear")"),
                 "/rules/0/match: a match is an object, got a text."));
  CHECK(contains(refusal_of_rule(R"("match": {"module": "h"})"),
                 "/rules/0/match/module: a match has no entry \"module\". "));
  CHECK(contains(refusal_of_rule(R"("match": {"asks": "low"})"),
                 "/rules/0/match/asks: low_precision, "));
  CHECK(refusal_of_rule(R"("match": {"path": "h.[x]"})") ==
        "/rules/0/match/path: \"[x]\" in \"h.[x]\" names no members of a list. Write [-1], [0:-1] "
        "or [2:].");
  CHECK(refusal_of_rule(R"("match": {"except": ["a", "{b"]})") ==
        "/rules/0/match/except/1: \"{b\" has a brace or bracket that does not close.");
  CHECK(refusal_of_rule("\"match\": {\"path\": \"\\u001b[0\"}") ==
        "/rules/0/match/path: \"\\x1b[0\" has a bracket within a segment. Write h.[0].");
  CHECK(refusal_of_rule(R"("match": {"steps": [1]})") ==
        "/rules/0/match/steps: steps are [first, last], the last not included; null: without end.");
  CHECK(refusal_of_rule(R"("match": {"steps": [-1, 4]})") ==
        "/rules/0/match/steps/0: expected a whole number from 0 to 9007199254740992, got -1.");
  CHECK(contains(refusal_of_rule(R"("match": {"steps": [null, 4]})"), "/rules/0/match/steps/0: "));
  CHECK(refusal_of_rule(R"("match": {"steps": [4, 4]})") ==
        "/rules/0/match/steps: there is no step from 4 up to 4.");
  CHECK(refusal_of_rule(R"("name": "")") ==
        "/rules/0/name: a name has 1 to 100 letters, all of them printable.");
  CHECK(refusal_of_rule(R"("compute": "lower")") ==
        "/rules/0/compute: low, f32, tf32, bf16, f16, widest, as_is, refuse or hardware, got "
        "\"lower\".");
  CHECK(refusal_of_rule(R"("result": "e4m3")") ==
        "/rules/0/result: f32, bf16 or f16, got \"e4m3\".");
  CHECK(refusal_of_rule(R"("input": "mxpf8")") ==
        "/rules/0/input: there is no quantizer named \"mxpf8\". Did you mean \"mxfp8\"?");
  CHECK(refusal_of_rule(R"("input": null)") ==
        "/rules/0/input: a quantizer is an object, got null.");
  CHECK(refusal_of_rule(R"("input": "as_used")") ==
        "/rules/0/input: as_used is of input.backward, weight.backward and grad_output.weight. "
        "\"none\" leaves a role as it is.");
  CHECK(contains(refusal_of_rule(R"("optional": "yes")"), "/rules/0/optional: expected true or"));
}

TEST_CASE("accumulators") {
  CHECK(refusal_of_rule(R"("match": {"op": "relu"}, "accumulate": {"format": "e8m13"})") ==
        "/rules/0/accumulate: relu has no emulated accumulator. attention_scores, "
        "attention_values, conv2d, grouped_linear, linear, matmul and router_scores do.");
  CHECK(refusal_of_rule(R"("accumulate": {"rounding": "up"})") ==
        "/rules/0/accumulate: \"format\" or \"like\" is missing.");
  CHECK(
      contains(refusal_of_rule(R"("accumulate": "e8m13")"),
               "/rules/0/accumulate: there is no accumulator named \"e8m13\". Known: v100-mma, "));
  CHECK(refusal_of_rule(R"("accumulate": 13)") ==
        "/rules/0/accumulate: an accumulator is an object, got a number.");
  CHECK(contains(refusal_of_rule(R"("accumulate": {"format": "e8m13", "rounding": "stochastic"})"),
                 "/rules/0/accumulate: "));
  CHECK(contains(refusal_of_rule(R"("accumulate": {"format": "e8m13", "chunk": -1})"),
                 "/rules/0/accumulate/chunk: expected a whole number from 0 to "));
}

TEST_CASE("control characters never reach a terminal") {
  const std::string refused = "a name has 1 to 100 letters, all of them printable.";
  // Controls of Latin 1, and characters that reverse the direction of writing.
  for (const char* letter : {"\\u0080", "\\u009b", "\\u009f", "\\u202a", "\\u202e", "\\u2066",
                             "\\u2069", "\\u007f", "\\u001f"}) {
    CAPTURE(letter);
    CHECK(refusal_of_text(R"({"halftone_policy": 1, "name": "a)" + std::string(letter) + "\"}") ==
          "/name: " + refused);
    CHECK(refusal_of_rule("\"name\": \"" + std::string(letter) + '"') ==
          "/rules/0/name: " + refused);
    CHECK(refusal_of_rule(R"("match": {"path": "h)" + std::string(letter) + "\"}") ==
          "/rules/0/match/path: a path has letters that are not printable. Leave them out.");
    for (const char* entry :
         {R"("formats": {")", R"("quantizers": {")", R"("optimizer": {"states": {")"})
      CHECK(contains(refusal_of(entry + std::string(letter) + R"(": "e4m3"})" +
                                (contains(entry, "states") ? "}" : "")),
                     ": a name has letters that are not printable. Leave them out."));
    const std::string message = refusal_of(R"("extends": ")" + std::string(letter) + '"');
    const std::string code(letter + 2);
    const std::string spelled = code < "0080" ? "\\x" + code.substr(2) : letter;
    CHECK(contains(message, "there is no strategy named \"" + spelled + '"'));
  }
  // Their neighbors are letters.
  for (const char* letter : {"\\u00a0", "\\u2029", "\\u202f", "\\u2065", "\\u206a", "\\u00e4"}) {
    CAPTURE(letter);
    CHECK(refusal_of_rule("\"weight\": \"none\", \"name\": \"" + std::string(letter) + '"') ==
          "accepted");
  }
}

TEST_CASE("entries that contradict each other") {
  CHECK(refusal_of_rule(R"("match": {"op": []})") ==
        "/rules/0/match/op: the list names no operation. Leave \"op\" out where all are meant.");
  CHECK(
      refusal_of(R"("lists": {"low_precision": ["linear", "add"], "as_is": ["mul", "linear"]})") ==
      "/lists/as_is/1: linear is in \"low_precision\" already. Keep one of them.");
  CHECK(refusal_of(R"("lists": {"as_is": ["mul", "mul"]})") ==
        "/lists/as_is/1: mul is in \"as_is\" already. Keep one of them.");
  CHECK(refusal_of(R"("quantizers": {"none": "e4m3"})") ==
        "/quantizers/none: \"none\" is a word of rules. Choose another name.");
  CHECK(contains(refusal_of(R"("quantizers": {"as_used": "e4m3"})"), "is a word of rules."));
  CHECK(contains(refusal_of(R"("formats": {"none": "e4m3"})"), "/formats/none: \"none\" is a"));

  CHECK(refusal_of(R"("weights": {"dtype": "f32", "form": "master"})") ==
        "/weights: weights are f32 and their form is master, which keeps what a short dtype loses. "
        "Use \"form\": \"plain\", or \"dtype\": \"bf16\".");
  CHECK(contains(refusal_of(R"("extends": "full-bf16-sr", "weights": {"dtype": "f64"})"),
                 "/weights: weights are f64 and their form is stochastic, "));
  CHECK(refusal_of(R"("weights": {"dtype": "bf16", "form": "master"})") == "accepted");
  CHECK(refusal_of(R"("weights": {"dtype": "f64"}, "autocast": "bf16")") ==
        "/autocast: weights are f64 and autocast is bf16: f64 is never cast. Use f32 weights, or "
        "\"autocast\": null.");
  CHECK(contains(refusal_of(R"("extends": "amp-f16", "weights": {"dtype": "f64"})"), "/extends: "));
  CHECK(contains(refusal_of(R"("extends": "amp-fp16", "weights": {"dtype": "f64"})"),
                 "/weights: weights are f64 and autocast is f16: "));
  CHECK(refusal_of(R"("extends": "amp-fp16", "weights": {"dtype": "f64"}, "autocast": null)") ==
        "accepted");

  CHECK(refusal_of(R"("rules": [{"weight": "none"}, {"compute": "low"}])") ==
        "/rules/1/compute: the rule computes in \"low\", the dtype of autocast, and there is none. "
        "Say \"bf16\" or \"f16\", or add \"autocast\".");
  CHECK(refusal_of(R"("extends": "amp-bf16", "rules": [{"compute": "low"}])") == "accepted");

  for (const char* base : {"split-bf16", "full-bf16-kahan"}) {
    CAPTURE(base);
    const std::string extends = R"("extends": ")" + std::string(base) + R"(", "optimizer": )";
    CHECK(contains(refusal_of(extends + R"({"parameters": "e4m3"})"),
                   "/optimizer/parameters: parameters go onto a grid, and the form "));
    CHECK(refusal_of(extends + R"({"parameters": "none"})") == "accepted");
  }
  CHECK(refusal_of(R"("extends": "full-bf16", "optimizer": {"parameters": "e4m3"})") == "accepted");
}

TEST_CASE("entries without effect are refused, unless they are the default") {
  const std::string of = "this has no effect: it is of ";
  CHECK(refusal_of_quantizer(R"("format": "e4m3", "random_bits": 8)") ==
        "/quantizers/q/random_bits: " + of + "stochastic rounding. Leave it out.");
  CHECK(refusal_of_quantizer(R"("format": "e4m3", "random_bits": 32)") == "accepted");
  const auto refusal_of_scale = [](const std::string& scale) {
    return refusal_of_quantizer(R"("format": "e4m3", "scale": )" + scale);
  };
  CHECK(refusal_of_scale(R"({"per": "tensor", "history": 16})") ==
        "/quantizers/q/scale/history: " + of + "scales from history. Leave it out.");
  CHECK(refusal_of_scale(R"({"per": "tensor", "take": "latest"})") ==
        "/quantizers/q/scale/take: " + of + "scales from history. Leave it out.");
  CHECK(refusal_of_scale(R"({"per": "block", "format": "f32", "rule": "even"})") ==
        "/quantizers/q/scale/rule: " + of + "e8m0 scales. Leave it out.");
  CHECK(refusal_of_scale(R"({"per": "block", "format": "f32", "rule": "floor"})") == "accepted");
}

TEST_CASE("optimizers") {
  CHECK(refusal_of(R"("optimizer": {"parameters": "none", "states": {"exp_avg": "none"}})") ==
        "accepted");
  CHECK(contains(refusal_of(R"("optimizer": {"state": {}})"),
                 "/optimizer/state: optimizer has no entry \"state\". Did you mean \"states\"?"));
  CHECK(refusal_of(R"("optimizer": {"state_dtype": "e5m2"})") ==
        "/optimizer/state_dtype: f32, bf16, f16, f64, 8bit, 8bit_linear, 4bit, e4m3 or "
        "e4m3_expanded, got \"e5m2\".");
  CHECK(contains(refusal_of(R"("optimizer": {"parameters": "fp24"})"),
                 "/optimizer/parameters: there is no quantizer named \"fp24\". "));
  CHECK(refusal_of(R"("optimizer": {"states": {"exp_avg":
                   {"format": "e4m3", "scale": {"per": "tensor", "from": "history"}}}})") ==
        "/optimizer/states/exp_avg: scales from history are for operands, not for what an "
        "optimizer keeps.");
  CHECK(contains(refusal_of(R"("optimizer": {"states": []})"), "/optimizer/states: expected an"));
}

}  // namespace
}  // namespace halftone::test::policy_errors_test

// Written policies are read unchanged: from files, and from code that can express more than a file.

namespace halftone::test::policy_round_trip_test {
namespace {

using amp::Policy;
using policy::Role;

const std::string one_rule = R"("rules": [{"match": {"op": "linear"}, "input": )";

/// Returns the message of write() for a rule with that quantizer, without "[policy.write] "; "" if
/// it is written and then read unchanged.
std::string refusal_to_write(const Policy& file) {
  const std::string message = message_of<UsageError>([&] {
    const Policy again = policy::read_text(policy::write(file), "again");
    CHECK(again.rules == file.rules);
    CHECK(policy::hash(again) == policy::hash(file));
  });
  const std::string where = "[policy.write] ";
  return message.starts_with(where) ? message.substr(where.size()) : message;
}

/// One rule with a quantizer from code.
Policy with_input(const Quantizer& quantizer) {
  Policy file = test::file_of(one_rule + R"("mxfp4"}])");
  file.rules.rules[0].roles[Role::input].quantizer = quantizer;
  return file;
}

TEST_CASE("every quantizer of the grammar survives writing") {
  for (const char* quantizer :
       {R"("e4m3")",
        R"({"format": "e4m3", "rounding": "stochastic", "random_bits": 8})",
        R"({"format": "e4m3", "random_bits": 32})",
        R"({"format": "e4m3", "scale": {"per": "tensor", "history": 1024, "take": "max"}})",
        R"({"format": "e4m3", "scale": {"per": "tensor", "from": "history", "history": 3,
            "take": "latest", "margin": 2, "power_of_two": true, "least": 0.125}})",
        R"({"like": "mxfp4", "hadamard": 16})",
        R"({"like": "mxfp4", "hadamard": {"size": 128, "signs": "step"}})",
        R"({"table": [1, -0.5, 0, 0.25]})",
        R"({"like": "mxfp4", "clip": {"rms": 4}})",
        R"({"format": "e4m3", "hadamard": 16, "clip": {"quantile": 0.999}})",
        R"({"format": "e2m1", "scale": {"per": "block", "format": "ue5m3", "rounding": "up"}})",
        R"({"like": "nvfp4", "scale": {"per": "block", "block": [1, 16], "format": "e4m3",
            "tensor_level": true, "scale_max": 256, "choose": {"from": [6, 4], "by": "mae"}}})",
        R"({"like": "nvfp4", "scale": {"per": "block", "block": [1, 16], "format": "e4m3",
            "tensor_level": true, "scale_max": 256, "choose": {"from": [6.07]},
            "rounding": "stochastic", "correct": "eden"}})",
        R"({"format": "e2m1", "scale": {"per": "block", "block": [1, 16], "format": "e4m3",
            "outer": "row", "scale_max": 256, "fit": "mse"}})",
        R"({"format": "e2m1", "scale": {"per": "block", "fit": "mse"}})",
        R"("nvfp4")",
        R"("int5")",
        R"({"format": {"exponent": 5, "fraction": 2, "infinity": false, "subnormals": false}})",
        R"("binary8p4se")",
        R"({"format": "binary8p1uf", "rounding": "away"})",
        R"({"format": "binary6p3se", "overflow": "propagate", "rounding": "max_magnitude"})",
        R"({"format": "binary8p3se", "stochastic": {"bits": 4, "variant": "B"}})",
        R"({"format": "e4m3", "stochastic": {"bits": 9}})",
        R"({"format": {"exponent": 4, "fraction": 3, "bias": 9}})",
        R"({"format": "binary8p4se", "overflow": "infinity", "scale": {"per": "block"}})",
        R"({"grid": {"choose": ["e2m1", "e1m2", "e3m0"], "by": "mae"}, "scale": {"per": "block"}})",
        R"({"like": "nvfp4", "grid": {"choose": ["int4", {"exponent": 2, "fraction": 1}]}})",
        R"({"format": "e5m2", "scale": {"per": "block", "block": [2, 3], "rule": "even"}})"}) {
    CAPTURE(quantizer);
    const Policy file = test::file_of(one_rule + quantizer + "}]");
    CHECK(refusal_to_write(file).empty());
  }
  const Policy averaged =
      test::file_of(R"("rules": [{"weight": {"like": "mxfp8", "average": 0.998}}])");
  CHECK(averaged.rules.rules[0].roles.at(Role::weight).quantizer.average == 0.998);
  CHECK(refusal_to_write(averaged).empty());
  // The file says what the scale does, in the one way that the writer uses.
  const auto scaling_of = [&](const std::string& scale) {
    const Policy read = test::file_of(one_rule + R"({"format": "e2m1", "scale": )" + scale + "}}]");
    return read.rules.rules[0].roles.at(Role::input).quantizer.scaling;
  };
  CHECK(scaling_of(R"({"per": "block", "fit": "mse"})") ==
        scaling_of(R"({"per": "block", "choose": {"from": [6, 12], "by": "mse"}})"));
  CHECK(scaling_of(R"({"per": "block", "format": "e4m3", "outer": "tensor"})") ==
        scaling_of(R"({"per": "block", "format": "e4m3", "tensor_level": true})"));
  CHECK(scaling_of(R"({"per": "block", "format": "e4m3", "outer": "row"})").row_level);
  CHECK(scaling_of(R"({"per": "row"})") == Scaling::per_row());
  CHECK(scaling_of(R"({"per": "row", "format": "e8m0"})") == Scaling::per_row(formats::e8m0));
  CHECK(scaling_of(R"({"per": "block", "format": "e4m3", "fit": "mse"})").target_count() == 8);
  // A setting that "like" copies, and that another rounding does not use, has its default.
  const Policy file = test::file_of(R"("quantizers": {
    "a": {"format": "e4m3", "rounding": "stochastic", "random_bits": 8},
    "b": {"like": "a", "rounding": "up"}}, )" +
                                    one_rule + R"("b"}])");
  CHECK(file.rules.rules[0].roles.at(Role::input).quantizer.random.bits == 32);
  CHECK(refusal_to_write(file).empty());
}

TEST_CASE("accumulators of machines and of a file's own survive writing") {
  const auto sums_of = [](const std::string& accumulate) {
    const Policy file = test::file_of(R"("rules": [{"accumulate": )" + accumulate + "}]");
    CHECK(refusal_to_write(file).empty());
    return *file.rules.rules[0].accumulate;
  };
  for (const NamedAccumulator& machine : named_accumulators())
    CHECK(sums_of('"' + std::string(machine.name) + '"') == machine.accumulator);
  CHECK(sums_of(R"({"fused": 32, "align": "largest", "fraction": 13, "rounding": "toward_zero",
                    "format": "e8m13"})") == sums_of(R"("h100-wgmma-f8")"));
  Accumulator wanted = sums_of(R"("h100-mma")");
  wanted.chunk = 128, wanted.least_exponent = -14;
  CHECK(sums_of(R"({"like": "h100-mma", "chunk": 128, "least_exponent": -14})") == wanted);
  CHECK(sums_of(R"({"format": "f16", "fused": 4, "align": "largest", "fraction": 23})").grid ==
        formats::f16);
  const Policy one = test::file_of(R"("rules": [{"accumulate": "h100-mma"}])"),
               other = test::file_of(R"("rules": [{"accumulate": "a100-mma"}])");
  CHECK(policy::hash(one) != policy::hash(other));
}

TEST_CASE("settings that no file can express are not written") {
  Quantizer q{.grid = formats::e4m3};
  q.grid.min_exponent = -8;
  CHECK(refusal_to_write(with_input(q)).empty());  // by its bias
  q.grid.bits = 32;
  CHECK(refusal_to_write(with_input(q)) ==
        "no file can say the grid of 4 significand bits, least exponent -8 and 32 bits: a file's "
        "grids have as many bits as their sign, exponent and fraction. Set them so, or keep the "
        "policy in code.");
  q = *quantizer_named("mxfp4"), q.hadamard = 16, q.hadamard_signs = 5;
  CHECK(contains(refusal_to_write(with_input(q)), "no file can say the signs 5 of a rotation: "));
  q = *quantizer_named("nvfp4"), q.scaling.scale_format.bits = 32;
  CHECK(contains(refusal_to_write(with_input(q)), "no file can say the grid of 4 significand "));
  q = {.grid = formats::e4m3, .random = {.bits = 8}};
  CHECK(contains(refusal_to_write(with_input(q)), "p has values where they have no effect, "));
  q = {.grid = formats::e4m3, .scaling = {.per = Scaling::Per::tensor, .history = 16}};
  CHECK(contains(refusal_to_write(with_input(q)), "p has values where they have no effect, "));
  q = {.grid = formats::e4m3, .scaling = {.per = Scaling::Per::tensor, .from_history = true}};
  CHECK(refusal_to_write(with_input(q)).empty());
}

TEST_CASE("strategies that reading would refuse are not written") {
  Policy file = test::file_of("");
  file.seed = ~uint64_t(0);
  CHECK(contains(refusal_to_write(file),
                 "p is none that a file can say: /seed: expected a whole number from 0 to "));
  file = test::file_of("");
  file.name = "\xff";
  CHECK(contains(refusal_to_write(file), "has a text that is not UTF-8. Write names and remarks"));
  file.name = "a\nb";
  CHECK(refusal_to_write(file) ==
        "a\\nb is none that a file can say: /name: a name has 1 to 100 letters, all of them "
        "printable.");
  file = test::file_of("");
  file.form = WeightForm::master;
  CHECK(contains(refusal_to_write(file), "p is none that a file can say: /weights: weights are "));
  file = test::file_of("");
  file.meant_for = {"transformer"};
  CHECK(contains(refusal_to_write(file), "/for/0: gpt, lenet, "));
}

TEST_CASE("entries for operations of a user are not written") {
  static constexpr OpInfo mine("swish_gate", CastClass::as_is);
  auto own = std::make_shared<amp::CastPolicy>();
  (*own)["softmax"] = CastClass::low_precision;
  Policy file = amp::Policy::named("amp-bf16");
  file.own_policy = own;
  CHECK(refusal_to_write(file).empty());
  (*own)[mine] = CastClass::low_precision;
  CHECK(contains(refusal_to_write(file),
                 "the policy of amp-bf16 has entries of operations that are not the library's"));
}

TEST_CASE("a strategy that was loaded and changed is written in its present state") {
  const std::string text =
      text_of(R"("extends": "amp-bf16", "seed": 4, )" + one_rule + R"("mxfp8"}])");
  amp::Policy strategy = policy::read_text(text);
  CHECK(policy::write(strategy) == policy::write(policy::read_text(text, "x")));
  strategy.name = "changed", strategy.state_dtype = bf16, strategy.autocast = f16;
  const Policy file = strategy;
  CHECK(file.name == "changed");
  CHECK(file.state_dtype == bf16);
  CHECK(file.autocast == f16);
  CHECK(file.rules == policy::read_text(text, "x").rules);
  CHECK(contains(policy::write(file), "\"state_dtype\": \"bf16\""));
  strategy.seed = 5;
  CHECK(contains(policy::write(strategy), "\"seed\": 5"));
  nn::Linear model(2, 2);
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  const amp::Training training(strategy, model, sgd);
  CHECK(policy::session_of(training).settings().seed == 5);  // the rules draw with it
  amp::Policy plain = amp::Policy::named("full-bf16-sr");
  plain.seed = 5;
  CHECK(plain.seed == 5);
}

}  // namespace
}  // namespace halftone::test::policy_round_trip_test
