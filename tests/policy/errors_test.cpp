// Formats, quantizers and scales in policy files that are refused: every error with its position
// and text.
#include <doctest/doctest.h>

#include "policy_cases.h"

namespace halftone::test::quantizer_errors_test {
namespace {

TEST_CASE("formats and quantizers") {
  CHECK(refusal_of(R"("formats": {"f": {"exponent": 5}})") ==
        "/formats/f: \"exponent\" and \"fraction\" must both be there.");
  CHECK(refusal_of(R"("formats": {"f": {"exponent": 9, "fraction": 2}})") ==
        "/formats/f/exponent: expected a whole number from 2 to 8, got 9.");
  CHECK(contains(refusal_of(R"("formats": {"f": {"exponent": 5, "fraction": -1}})"),
                 "/formats/f/fraction: expected a whole number from 0 to 23, got -1."));
  CHECK(refusal_of(R"("formats": {"f": {"exponent": 4, "fraction": 3, "max": 450}})") ==
        "/formats/f: the largest number of a grid is 450, which is not one of 4 significand bits. "
        "Choose 448.");
  CHECK(contains(refusal_of(R"("formats": {"f": {"exponent": 4, "fraction": 3, "max": 1e300}})"),
                 "/formats/f: the largest number of a grid is inf."));
  CHECK(contains(refusal_of(R"("formats": {"f": {"exponent": 4, "fraction": 3, "max": -1}})"),
                 "It must be finite and at least 2^-6."));
  CHECK(contains(refusal_of(R"("formats": {"f": {"bias": 3, "exponent": 4, "fraction": 3}})"),
                 "/formats/f/bias: a format has no entry \"bias\". "));
  CHECK(refusal_of(R"("formats": {"f": 8})") == "/formats/f: a format is an object, got a number.");
  CHECK(refusal_of(R"("formats": [])") == "/formats: expected an object, got a list.");
  CHECK(contains(refusal_of(R"("formats": {"f": "e9m1"})"),
                 "/formats/f: there is no number format named \"e9m1\". Did you mean \"e"));

  CHECK(refusal_of_quantizer("") == "/quantizers/q: \"format\", \"table\" or \"like\" is missing.");
  CHECK(refusal_of(R"("quantizers": {"q": 3})") ==
        "/quantizers/q: a quantizer is an object, got a number.");
  CHECK(refusal_of_quantizer(R"("like": "mxfp9")") ==
        "/quantizers/q/like: there is no quantizer named \"mxfp9\". Did you mean \"mxfp8\"?");
  CHECK(refusal_of(R"("quantizers": {"q": {"like": "later"}, "later": "mxfp8"})")
            .starts_with("/quantizers/q/like: there is no quantizer named \"later\". "));
  CHECK(refusal_of_quantizer(R"("like": "q")")
            .starts_with("/quantizers/q/like: there is no quantizer named \"q\". "));
  CHECK(refusal_of_quantizer(R"("format": "e4m4x")")
            .starts_with("/quantizers/q/format: there is no number format named \"e4m4x\". "));
  CHECK(contains(refusal_of_quantizer(R"("format": "e4m3", "rounding": "nearest")"),
                 "/quantizers/q/rounding: nearest_even, nearest_away, "));
  CHECK(contains(refusal_of_quantizer(R"("format": "e4m3", "random_bits": 33)"),
                 "/quantizers/q/random_bits: expected a whole number from 1 to 32, got 33."));
  CHECK(refusal_of_quantizer(R"("format": "e4m3", "hadamard": 12)") ==
        "/quantizers/q: rotations are of 12 numbers. Choose 2, 4, 8, 16, 32, 64 or 128, or 0 for "
        "none.");
  CHECK(contains(refusal_of_quantizer(R"("format": "e4m3", "hadamard": 129)"),
                 "/quantizers/q/hadamard: expected a whole number from 0 to 128"));
  CHECK(refusal_of_quantizer(R"("format": "e4m3", "scaling": {})") ==
        "/quantizers/q/scaling: a quantizer has no entry \"scaling\". Did you mean \"scale\"?");
}

TEST_CASE("entries of quantizers without effect") {
  for (const char* format : {"bf16", "tf32", "e8m5"})
    CHECK(contains(refusal_of_quantizer(R"("format": ")" + std::string(format) +
                                        R"(", "scale": {"per": "block", "block": [1, 32],
                                            "format": "f32", "fit": "mse"})"),
                   "/quantizers/q/scale/fit: a fit tries twice the format's largest number, "));
  for (const char* clip : {R"({"quantile": 1.0})", R"({"rms": 1e300})", R"({"rms": 2e6})"})
    CHECK(refusal_of_quantizer(R"("format": "e2m1", "clip": )" + std::string(clip))
              .starts_with("/quantizers/q/clip: this has no effect: it clips no number. "));
}

TEST_CASE("formats without a sign bit are for scales") {
  CHECK(refusal_of_rule(R"("weight": "ue4m3")") ==
        "/rules/0/weight: ue4m3 has no sign bit, and tensors have negative numbers. Use it for a "
        "scale, or choose a format with a sign, such as e4m3.");
  CHECK(contains(refusal_of_rule(R"("weight": "e8m0")"), "/rules/0/weight: e8m0 has no sign bit"));
  CHECK(contains(refusal_of_quantizer(R"("format": "ue5m3")"),
                 "/quantizers/q/format: ue5m3 has no sign bit"));
  CHECK(contains(refusal_of(R"("optimizer": {"parameters": "ue5m3"})"),
                 "/optimizer/parameters: ue5m3 has no sign bit"));
  CHECK(refusal_of_rule(R"("accumulate": {"format": "ue5m3"})") ==
        "/rules/0/accumulate/format: ue5m3 has no sign bit, and sums can be negative. Choose a "
        "format with a sign.");
  CHECK(refusal_of_quantizer(R"("format": "e2m1", "scale": {"per": "block", "format": "ue5m3"})") ==
        "accepted");
}

TEST_CASE("entries without effect") {
  // A base's rules keep the base's quantizer.
  CHECK(refusal_of(R"("extends": "te_current", "quantizers": {"forward": "e5m2"})") ==
        "/quantizers/forward: this has no effect: the rules of the base keep the base's "
        "\"forward\", and nothing in this file uses the new one. Use it in a rule of this file.");
  CHECK(refusal_of(R"("extends": "te_current", "quantizers": {"forward": "e5m2"},
                      "rules": [{"match": {"op": "linear"}, "weight": "forward"}])") == "accepted");
  CHECK(refusal_of(R"("extends": "te_current", "quantizers": {"forward": "e5m2"},
                      "optimizer": {"states": {"exp_avg": {"like": "forward"}}})") == "accepted");
  // A rule can be taken out without its quantizer.
  CHECK(refusal_of(R"("quantizers": {"q": {"format": "e4m3"}})") == "accepted");

  CHECK(refusal_of_rule("") ==
        "/rules/0: the rule sets nothing. Give it an entry, such as "
        "\"input\" or \"compute\", or leave it out.");
  CHECK(contains(refusal_of_rule(R"("name": "n", "match": {"op": "linear"})"), "sets nothing"));
  CHECK(refusal_of_rule(R"("weight": "none")") == "accepted");
}

TEST_CASE("scales") {
  const auto refusal_of_scale = [](const std::string& scale) {
    return refusal_of_quantizer(R"("format": "e4m3", "scale": )" + scale);
  };
  CHECK(refusal_of_scale("\"none\"") == "accepted");
  CHECK(refusal_of_scale("\"tensor\"") == "/quantizers/q/scale: none, got \"tensor\".");
  CHECK(refusal_of_scale("1") == "/quantizers/q/scale: a scale is an object, got a number.");
  CHECK(refusal_of_scale("{}") ==
        "/quantizers/q/scale: \"per\": \"tensor\" or \"block\" is missing.");
  CHECK(refusal_of_scale(R"({"per": "row"})") ==
        "/quantizers/q/scale/per: tensor or block, got \"row\".");
  CHECK(contains(refusal_of_scale(R"({"per": "block", "format": "bf61"})"),
                 "/quantizers/q/scale/format: there is no number format named \"bf61\". "));
  CHECK(refusal_of_scale(R"({"per": "block", "history": 4})") ==
        "/quantizers/q/scale/history: this is of scales per tensor.");
  CHECK(refusal_of_scale(R"({"per": "tensor", "block": [1, 4]})") ==
        "/quantizers/q/scale/block: this is of scales per block.");
  CHECK(refusal_of_scale(R"({"per": "block", "block": 32})") ==
        "/quantizers/q/scale/block: expected a list, got a number.");
  CHECK(refusal_of_scale(R"({"per": "block", "block": [32]})") ==
        "/quantizers/q/scale/block: a block is [rows, columns].");
  CHECK(refusal_of_scale(R"({"per": "block", "block": [0, 32]})") ==
        "/quantizers/q/scale/block/0: expected a whole number from 1 to 1048576, got 0.");
  CHECK(refusal_of_scale(R"({"per": "block", "rule": "round"})") ==
        "/quantizers/q/scale/rule: floor, ceil, rceil or even, got \"round\".");
  CHECK(refusal_of_scale(R"({"per": "block", "tensor_level": true})") ==
        "/quantizers/q: scales of blocks are e8m0 under a scale of the tensor. Only short ones, "
        "such as e4m3, need that.");
  CHECK(refusal_of_scale(R"({"per": "block", "outer": "column"})") ==
        "/quantizers/q/scale/outer: none, tensor or row, got \"column\".");
  CHECK(
      refusal_of_scale(R"({"per": "block", "format": "e4m3", "outer": "row", "block": [2, 16]})") ==
      "/quantizers/q: scales of blocks are under a scale of the row, and blocks have 2 rows. "
      "Use blocks of one row.");
  CHECK(refusal_of_scale(
            R"({"per": "block", "format": "e4m3", "outer": "row", "tensor_level": true})") ==
        "/quantizers/q/scale/outer: \"tensor_level\" says the same for a tensor. Leave one out.");
  CHECK(refusal_of_scale(R"({"per": "block", "fit": "mae"})") ==
        "/quantizers/q/scale/fit: mse, got \"mae\".");
  CHECK(refusal_of_scale(R"({"per": "block", "fit": "mse", "rule": "rceil"})") ==
        "/quantizers/q/scale/rule: this has no effect: it is of scales without \"fit\". Leave it "
        "out.");
  CHECK(refusal_of_scale(R"({"per": "block", "fit": "mse", "choose": {"from": [6]}})") ==
        "/quantizers/q/scale/fit: \"choose\" says which scales a block tries. Leave one out.");
  CHECK(refusal_of_scale(R"({"per": "tensor", "from": "past"})") ==
        "/quantizers/q/scale/from: current or history, got \"past\".");
  CHECK(refusal_of_scale(R"({"per": "tensor", "take": "mean"})") ==
        "/quantizers/q/scale/take: max or latest, got \"mean\".");
  CHECK(contains(refusal_of_scale(R"({"per": "tensor", "history": 0})"), "from 1 to 1048576"));
  CHECK(contains(refusal_of_scale(R"({"per": "tensor", "margin": -1})"), "from 0 to 100"));
  CHECK(refusal_of_scale(R"({"per": "tensor", "least": -1})") ==
        "/quantizers/q: the least largest magnitude is -1. It must be finite and not negative.");
  CHECK(contains(refusal_of_scale(R"({"per": "tensor", "power_of_two": "yes"})"),
                 "/quantizers/q/scale/power_of_two: expected true or false, got a text."));
}

TEST_CASE("parts of a quantizer") {
  const auto refusal_of_scale = [](const std::string& entries) {
    return refusal_of_quantizer(R"("format": "e2m1", "scale": {"per": "block", )" + entries + "}");
  };
  const std::string at = "/quantizers/q/scale/",
                    two_level = R"("format": "e4m3", "tensor_level": true, )";
  CHECK(refusal_of_scale(R"("choose": {"from": [6, 4], "by": "mse"})") == "accepted");
  CHECK(refusal_of_scale(R"("choose": {"from": [6, 6], "by": "mse"})") ==
        at + "choose/from/1: this has no effect: the choice has 6 twice. Leave it out.");
  CHECK(refusal_of_scale(R"("choose": [6, 4])") ==
        at + "choose: a choice is an object, got a list.");
  CHECK(contains(refusal_of_scale(R"("choose": {"by": "mse"})"), at + "choose: \"from\", a list"));
  CHECK(refusal_of_scale(R"("choose": {"from": [6, 4]})") ==
        at + "choose: \"by\": \"mse\", \"mae\" or \"max\" is missing.");
  CHECK(refusal_of_scale(R"("choose": {"from": [6, 4], "by": "rms"})") ==
        at + "choose/by: mse, mae or max, got \"rms\".");
  CHECK(refusal_of_scale(R"("choose": {"from": [], "by": "mse"})") ==
        at + "choose/from: a block chooses from 1 to 8 numbers, got 0.");
  CHECK(contains(refusal_of_scale(R"("choose": {"from": [6], "by": "mae"})"),
                 at + "choose/by: this has no effect"));
  CHECK(contains(refusal_of_scale(R"("choose": {"from": [6, -4], "by": "mae"})"),
                 at + "choose/from/1: a number of a choice must be positive."));
  CHECK(refusal_of_scale(R"("choose": {"from": [13], "by": "mse"})") ==
        "/quantizers/q: a block puts its largest magnitude at 13. Choose positive numbers up to "
        "12, twice the largest on the grid.");
  CHECK(contains(refusal_of_scale(R"("block": [33, 32], "choose": {"from": [6, 4], "by": "mse"})"),
                 "are of blocks of 33 x 32 numbers. They can have up to 1024."));
  CHECK(refusal_of_scale(two_level + R"("scale_max": 256)") == "accepted");
  CHECK(contains(refusal_of_scale(two_level + R"("scale_max": 449)"), "at most 448."));
  CHECK(
      refusal_of_scale(R"("format": "e4m3", "scale_max": 256)") ==
      at +
          "scale_max: this has no effect: it is of scales under one of the tensor or row. Leave it "
          "out.");
  CHECK(refusal_of_scale(R"("format": "ue5m3", "rounding": "stochastic")") == "accepted");
  CHECK(refusal_of_scale(R"("format": "e4m3", "rounding": "down")") ==
        at + "rounding: nearest, up or stochastic, got \"down\".");
  CHECK(refusal_of_scale(R"("rounding": "up")") ==
        "/quantizers/q: scales of blocks are e8m0 with a rounding of their own. Only short ones, "
        "such as e4m3, need that.");
  CHECK(contains(refusal_of_scale(R"("format": "e5m18")"), "Choose a format of at most 16"));
  CHECK(contains(refusal_of_scale(R"("correct": "eden")"), "are e8m0 and corrected. "));
  CHECK(contains(refusal_of_quantizer(R"("format": "e2m1", "rounding": "stochastic", "scale":
            {"per": "block", "format": "e4m3", "correct": "eden"})"),
                 "Those are unbiased already: choose another rounding."));
  CHECK(refusal_of_quantizer(R"("format": "e2m1", "hadamard": {"size": 16, "signs": "step"})") ==
        "accepted");
  CHECK(refusal_of_quantizer(R"("format": "e2m1", "hadamard": {"signs": "step"})") ==
        "/quantizers/q/hadamard: \"size\" is missing.");
  CHECK(refusal_of_quantizer(R"("format": "e2m1", "hadamard": {"size": 16, "signs": "new"})") ==
        "/quantizers/q/hadamard/signs: fixed or step, got \"new\".");
  CHECK(refusal_of_quantizer(R"("table": [0, 1, 0.5])") == "accepted");
  CHECK(contains(refusal_of_quantizer(R"("table": [1])"), "q/table: a table has 1 numbers. "));
  CHECK(contains(refusal_of_quantizer(R"("table": [1, 0, 1])"),
                 "q/table: number 2 of a table is 1. Numbers must be finite, and no two may be "
                 "the same f32 number."));
  CHECK(refusal_of_quantizer(R"("table": [1, 0], "format": "e2m1")") ==
        "/quantizers/q/table: a quantizer has a format or a table. Leave one out.");
  CHECK(contains(refusal_of_quantizer(R"("table": [1, 0], "rounding": "to_odd")"),
                 "a table is rounded to_odd. "));
}

TEST_CASE("a grid that the dtype of computation cannot represent is refused, with its position") {
  CHECK(
      refusal_of_rule(R"("compute": "bf16", "input": "fp8_block")") ==
      "/rules/0/input: the grid of \"input\" is e4m3, blocks of 1x128 with f32 scales, which bf16 "
      "does not hold exactly. Add \"compute\": \"f32\", or a power-of-two scale.");
  CHECK(contains(
      refusal_of(R"("autocast": "bf16", "rules": [{"compute": "low", "grad_output": "f16"}])"),
      "/rules/0/grad_output: the grid of \"grad_output\" is f16, which bf16 does not"));
  CHECK(contains(refusal_of(R"("autocast": "f16", "rules": [{"compute": "low", "input": "bf16"}])"),
                 "which f16 does not hold exactly"));
  CHECK(refusal_of(R"("autocast": "bf16", "rules": [{"compute": "low", "input": "mxfp8"}])") ==
        "accepted");
  CHECK(refusal_of_rule(R"("compute": "f32", "input": "fp8_block")") == "accepted");
}

}  // namespace
}  // namespace halftone::test::quantizer_errors_test
