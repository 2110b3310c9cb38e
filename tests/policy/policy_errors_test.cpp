// Policy files that are refused: every error with its position and text.
#include <doctest/doctest.h>

#include "policy_cases.h"

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
        "/for/1: gpt, lenet, lstm_classifier, mlp, resnet or unet, got \"nonsense\".");
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
        "/rules/0/compute: low, f32, tf32, bf16, f16, widest, as_is or refuse, got \"lower\".");
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
  CHECK(refusal_of_rule(R"("match": {"op": "conv2d"}, "accumulate": {"format": "e8m13"})") ==
        "/rules/0/accumulate: conv2d has no emulated accumulator. linear and matmul do.");
  CHECK(refusal_of_rule(R"("accumulate": {"rounding": "up"})") ==
        "/rules/0/accumulate: \"format\" is missing.");
  CHECK(refusal_of_rule(R"("accumulate": "e8m13")") ==
        "/rules/0/accumulate: an accumulator is an object, got a text.");
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
  CHECK(refusal_of(R"("optimizer": {"state_dtype": "e4m3"})") ==
        "/optimizer/state_dtype: f32, bf16, f16 or f64, got \"e4m3\".");
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
