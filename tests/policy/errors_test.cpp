// Formats, quantizers and scales in policy files that are refused: every error with its position
// and text.
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <sstream>
#include <utility>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/core/json_value.h>
#include <halftone/nn/models/models.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/probe.h>
#include <halftone/amp/rules.h>
#include <halftone/amp/session.h>

#include "policy/policy_cases.h"
#include "policy_cases.h"
#include "support.h"

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
  CHECK(contains(refusal_of(R"("formats": {"f": {"offset": 3, "exponent": 4, "fraction": 3}})"),
                 "/formats/f/offset: a format has no entry \"offset\". "));
  CHECK(contains(refusal_of(R"("formats": {"f": {"bias": -120, "exponent": 5, "fraction": 3}})"),
                 "/formats/f: the largest number of a grid is inf"));
  CHECK(contains(refusal_of(R"("formats": {"f": {"bias": 149, "exponent": 4, "fraction": 3}})"),
                 "/formats/f: a grid of 4 significand bits has the least exponent -148"));
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
  CHECK(refusal_of_quantizer(R"("format": "binary16p2se")") ==
        "/quantizers/q/format: binary16p2se has 14 bits of exponent, and values here are f32 "
        "numbers, which have 8. Choose a precision of at least 8.");
  CHECK(contains(refusal_of_quantizer(R"("format": "binary8p8se")"),
                 "/quantizers/q/format: there is no number format named \"binary8p8se\". "));
  CHECK(refusal_of_quantizer(R"("format": "binary8p3se", "overflow": "inf")")
            .starts_with("/quantizers/q/overflow: infinity, saturate or propagate, got "));
  CHECK(contains(refusal_of_quantizer(R"("grid": {"choose": ["e2m1"]}, "scale": {"per": "block"})"),
                 "a block chooses among 1 grids. Give 2 to 8."));
  CHECK(contains(refusal_of_quantizer(R"("format": "e4m3", "grid": {"choose": ["e2m1", "int4"]})"),
                 "/quantizers/q/grid: a quantizer has a format, a table or a choice of grids."));
  CHECK(contains(refusal_of_quantizer(R"("grid": {"by": "mse"})"),
                 "/quantizers/q/grid: \"choose\", a list of formats, is missing."));
  CHECK(contains(refusal_of_quantizer(R"("table": [0, 1], "overflow": "saturate")"),
                 "Only a format has an infinity: leave it out."));
  CHECK(contains(refusal_of_quantizer(R"("format": "e4m3", "stochastic": {"bits": 3},
                                         "random_bits": 3)"),
                 "/quantizers/q/stochastic: \"random_bits\" says the same. Leave one out."));
  CHECK(contains(refusal_of_quantizer(R"("format": "e4m3", "rounding": "up",
                                         "stochastic": {"bits": 3})"),
                 "/quantizers/q/stochastic: this has no effect: it is of stochastic rounding."));
  CHECK(contains(refusal_of_quantizer(R"("format": "e4m3",
                                         "stochastic": {"bits": 25, "variant": "B"})"),
                 "stochastic rounding of variant B has 25 random bits. It can have up to 24."));
  const auto refusal_of_sum = [](const std::string& accumulate) {
    return refusal_of(R"("rules": [{"accumulate": )" + accumulate + "}]");
  };
  CHECK(contains(refusal_of_sum(R"("h100-wgma")"), "Did you mean \"h100-wgmma\"?"));
  CHECK(contains(refusal_of_sum(R"({"chunk": 3})"),
                 "/rules/0/accumulate: \"format\" or \"like\" is missing."));
  CHECK(contains(refusal_of_sum(R"({"like": "h100-mma", "chunk": 40})"),
                 "an accumulator adds up chunks of 40 in steps of 16. Choose a multiple."));
  CHECK(contains(refusal_of_sum(R"({"like": "b200-tcgen05-mxf4", "scaled": 48})"),
                 "a scale is for 48 numbers, and a step of an accumulator adds 64 products. Choose "
                 "a number that divides the step's."));
  CHECK(contains(refusal_of_sum(R"({"like": "b200-tcgen05-mxf4", "scaled": 8})"),
                 "a scale is for 8 numbers, and \"scales\" adds up 16 products exactly."));
  CHECK(contains(refusal_of_sum(R"({"like": "b200-tcgen05-mxf8", "align": "apart"})"),
                 "an accumulator with \"apart\" has operands with scales. Use \"largest\" or"));
  CHECK(contains(refusal_of_sum(R"({"like": "b200-tcgen05-mxf4", "fraction": 39})"),
                 "an accumulator keeps 39 fraction bits. Choose 1 to 38."));
  CHECK(contains(refusal_of_sum(R"({"like": "h100-mma", "least_exponent": -127})"),
                 "operands is -127. Choose -126 to 0."));
  CHECK(contains(refusal_of_sum(R"({"format": "binary8p4ue"})"),
                 "binary8p4ue has no sign bit, and sums can be negative."));
  CHECK(contains(refusal_of_sum(R"({"like": "amx-bf16", "rounding": "up"})"),
                 "It adds in f32, to nearest even."));
  CHECK(contains(refusal_of_sum(R"({"format": "f32", "fraction": 20})"),
                 "/rules/0/accumulate/fraction: this has no effect: it is of sums in steps."));
  CHECK(contains(refusal_of_sum(R"({"like": "mi300-mfma", "fraction": 20})"),
                 "it is of sums aligned to the largest. Leave it out."));
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

/// A policy with every entry of the grammar, most of them several times.
constexpr const char* everything = R"({
  "halftone_policy": 1, "name": "all", "about": "x", "for": ["gpt"], "extends": "amp-bf16",
  "weights": {"dtype": "bf16", "form": "kahan", "batch_norm_f32": true, "accumulate_in_f32": true,
              "fused": false, "hold_statistics": true},
  "autocast": "bf16",
  "lists": {"preset": "apex-o1", "full_precision": ["linear"], "as_is": ["gelu"]},
  "formats": {"f": {"exponent": 4, "fraction": 2, "bias": 7, "max": 224, "infinity": true,
                    "subnormals": false}},
  "quantizers": {
    "q": {"format": "e4m3", "rounding": "stochastic", "random_bits": 8,
          "hadamard": {"size": 16, "signs": "step"}, "clip": {"rms": 3},
          "scale": {"per": "block", "block": [1, 16], "format": "e4m3", "outer": "row",
                    "scale_max": 256, "rounding": "up",
                    "choose": {"from": [400, 300], "by": "mae"}}},
    "t": {"table": [-1, 0, 1], "hadamard": 8,
          "scale": {"per": "tensor", "from": "history", "history": 16, "take": "latest",
                    "margin": 1, "power_of_two": true, "least": 0.5}},
    "e": {"format": "e2m1", "rounding": "nearest_even",
          "scale": {"per": "block", "block": [1, 16], "format": "e4m3", "tensor_level": true,
                    "fit": "mse", "correct": "eden"}},
    "l": {"like": "mxfp8", "scale": {"per": "block", "rule": "ceil"}},
    "p": {"format": "binary8p4ue", "stochastic": {"bits": 5, "variant": "C"}, "overflow": "saturate"},
    "g": {"grid": {"choose": ["e2m1", "int4"], "by": "max"},
          "scale": {"per": "block", "block": [1, 16], "format": "e4m3"}},
    "a": {"format": "e2m1", "average": 0.9}, "c": {"like": "f", "clip": {"quantile": 0.99}}},
  "rules": [{"name": "r", "about": "x",
             "match": {"op": ["linear"], "asks": "low_precision", "path": "**", "except": "head",
                       "ordinal": 0, "steps": [0, 9]},
             "compute": "f32", "result": "bf16", "input": "q", "input.backward": "t",
             "weight": "a", "weight.backward": "e", "bias": "none", "output": "l",
             "grad_output": "l", "grad_output.weight": "as_used", "grad_input": "f",
             "grad_weight": "f", "input.0": "f", "input.1": "f", "input.0.backward": "as_used",
             "input.1.backward": "none",
             "accumulate": {"like": "a100-mma", "format": "e8m13", "rounding": "toward_zero",
                            "chunk": 32, "fused": 16, "align": "largest", "fraction": 20,
                            "least_exponent": -14},
             "optional": true}],
  "optimizer": {"state_dtype": "f32", "parameters": "none", "states": {"exp_avg": "bf16"}},
  "loss_scale": {"init": 2, "growth": 4, "backoff": 0.25, "interval": 7, "min": 1, "max": 65536,
                 "hysteresis": 2},
  "communication": {"gradients": "bf16", "parameters": "own"},
  "evaluation": "reference", "seed": 7
})";

/// Calls use(pointer) for every entry of every object in a document.
void each_entry(const Json& json, const Json::json_pointer& at,
                const std::function<void(const Json::json_pointer&)>& use) {
  if (json.is_array())
    for (std::size_t i = 0; i < json.size(); ++i) each_entry(json[i], at / i, use);
  if (json.is_object())
    for (const auto& [key, value] : json.items()) use(at / key), each_entry(value, at / key, use);
}

TEST_CASE("every entry refuses a wrong type, a number out of range, and a misspelling, by place") {
  const Json all = Json::parse(everything);
  CHECK(refusal_of_text(everything) == "accepted");
  int entries = 0;
  each_entry(all, Json::json_pointer(), [&](const Json::json_pointer& at) {
    const std::string place = at.to_string(), key = at.back();
    CAPTURE(place);
    ++entries;
    const bool is_remark =
        key == "about" && at.parent_pointer().to_string() != "" && !place.starts_with("/rules");
    const bool is_name = place.starts_with("/formats/") || place.starts_with("/quantizers/");
    const auto refusal_with = [&](const Json& wrong) {
      Json changed = all;
      changed[at] = wrong;
      return refusal_of_text(changed.dump());
    };
    if (!is_remark) CHECK(refusal_with(Json::array({Json::array()})).starts_with(place));
    // Checks of a whole object name the object.
    const std::string of_number = refusal_with(-1e300);
    if (!is_remark) CHECK(place.starts_with(of_number.substr(0, of_number.find(": "))));
    if (is_name && at.parent_pointer().parent_pointer().empty()) return;  // free to choose
    if (place.starts_with("/optimizer/states/")) return;
    Json misspelt = all;
    misspelt[at.parent_pointer()].erase(key);
    misspelt[at.parent_pointer()][key + "z"] = all[at];
    CHECK(contains(refusal_of_text(misspelt.dump()), place + "z: "));
    CHECK(contains(refusal_of_text(misspelt.dump()), " has no entry \"" + key + "z\"."));
  });
  CHECK(entries > 85);
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
        "/quantizers/q/scale: \"per\": \"tensor\", \"row\" or \"block\" is missing.");
  const auto inner = [&](const std::string& entries) {
    return refusal_of_scale(R"({"per": "block", "block": [1, 32], "inner": {)" + entries + "}}");
  };
  CHECK(inner(R"("block": [1, 8], "inner": {"block": [1, 4]})") == "accepted");
  CHECK(inner("") == "/quantizers/q/scale/inner: \"block\": [1, columns] is missing.");
  CHECK(inner(R"("block": [2, 8])") ==
        "/quantizers/q/scale/inner/block: sub-blocks are in one row: [1, columns].");
  CHECK(inner(R"("block": [1, 8], "format": "e8m0")") ==
        "/quantizers/q/scale/inner/format: e1m0, e2m0 or e3m0, got \"e8m0\".");
  CHECK(inner(R"("block": [1, 8], "inner": {"block": [1, 4], "inner": {"block": [1, 2]}})") ==
        "/quantizers/q/scale/inner/inner: a block has more than two levels of sub-blocks inside. "
        "Leave one out.");
  CHECK(inner(R"("block": [1, 12])") ==
        "/quantizers/q: sub-blocks are of 12 numbers inside of 32. Choose a smaller number that "
        "divides it.");
  CHECK(refusal_of_scale(R"({"per": "column"})") ==
        "/quantizers/q/scale/per: tensor, row or block, got \"column\".");
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
  CHECK(refusal_of_scale(R"({"per": "row", "block": [1, 16]})") ==
        "/quantizers/q/scale/block: a scale per row has no blocks.");
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

// The parts of errors in rows of probes: they add up under every shipped policy, and
// weights that flip to another point of their grid and back.

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
    amp::Policy file = policy::read(entry.path());
    for (policy::Rule& rule : file.rules.rules) {
      rule.optional = true;
      for (auto& [role, said] : rule.roles)
        if (clips && !said.quantizer.scaling.from_history) said.quantizer.clip.rms = 1.5;
    }
    nn::Sequential model((manual_seed(4), nn::models::mlp({16, 32, 16})));
    optim::AdamW adamw(model.parameters(), {.lr = 1e-2});
    amp::Training training(file, model, adamw);
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
  amp::Training training(policy::read_text(policy_with(R"({"match": {"op": "linear"},
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

// Entries of a policy file that a model does not support: errors that name policy, rule or site.

namespace halftone::test::model_errors_test {
namespace {

/// Returns the message of one pass, or of making the training, under a rule.
std::string message_of_pass(nn::Sequential model, const Tensor& x, const std::string& rules,
                            const std::string& more = "") {
  return message_of<UsageError>([&] {
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    amp::Training training(policy::read_text(policy_with(rules, more)), model, sgd);
    const Tensor y = training.forward([&](const Tensor& in) { return model(in); }, x);
    training.backward(mean(y * y));
    training.step();
  });
}

TEST_CASE("batch norm has no separate operands for backward") {
  CHECK(message_of_pass(nn::Sequential(nn::Linear(6, 4), nn::BatchNorm1d(4)), randn({5, 6}),
                        R"({"name": "values", "input": "e4m3", "input.backward": "e5m2"})") ==
        "[policy t] rule 0 (\"values\") at 1/batch_norm.0: batch_norm cannot be computed twice, so "
        "\"input.backward\" is not possible here. Leave it out of the rule, or except this "
        "place.");
}

TEST_CASE("an accumulator that a path or a class gives to a transposed convolution") {
  CHECK(message_of_pass(nn::Sequential(nn::ConvTranspose2d(1, 2, 3)), randn({1, 1, 5, 5}),
                        R"({"match": {"asks": "low_precision"},
                            "accumulate": {"format": "e8m7"}})") ==
        "[policy t] 0/conv_transpose2d.0: conv_transpose2d has no emulated accumulator. "
        "attention_scores, attention_values, conv2d, grouped_linear, linear, matmul and "
        "router_scores do.");
}

TEST_CASE("TF32 in a place without TF32") {
  const auto under = [](const std::string& rule) {
    return message_of_pass(nn::Sequential(nn::Linear(6, 4), nn::Relu()), randn({5, 6}), rule);
  };
  CHECK(under(R"({"match": {"op": "linear"}, "compute": "tf32"})") ==
        "[policy t] 0/linear.0: cpu has no TF32. Use a CUDA device, or the policy tf32.json, which "
        "rounds operands to the same numbers on any.");
  CHECK(under(R"({"match": {"op": "relu"}, "compute": "tf32"})") ==
        "[policy t] 1/relu.0: relu has no products in TF32. conv2d, conv_transpose2d, "
        "grouped_linear, linear, matmul and router_scores do.");
  CHECK(under(R"({"match": {"op": "linear", "steps": [100, null]}, "compute": "tf32",
                  "accumulate": {"format": "e8m7"}})") ==
        "[policy t] 0/linear.0: an accumulator is emulated, and its factors are f32. Use "
        "\"compute\": \"f32\".");
}

TEST_CASE("products in hardware that no hardware has") {
  const auto under = [](const std::string& rule) {
    return message_of_pass(nn::Sequential(nn::Linear(6, 4), nn::Relu()), randn({5, 6}),
                           R"({"compute": "hardware", )" + rule + "}", R"(, "autocast": "bf16")");
  };
  const std::string linear = R"("match": {"op": "linear"})",
                    sums = linear + R"(, "accumulate": "h100-wgmma-f8")",
                    f8 = sums +
                         R"(, "input": "fp8_tensor", "weight": "e4m3", "grad_output": "e5m2")";
  CHECK(under(f8) ==
        "[policy t] 0/linear.0: cpu has no products of f8 numbers in hardware. Use a GPU of sm_89, "
        "90 or 100 with cuBLASLt, or \"compute\": \"f32\", which emulates them anywhere.");
  CHECK(under(R"("match": {"op": "relu"})") ==
        "[policy t] 1/relu.0: relu has no products in \"hardware\"; linear and matmul do. Name "
        "them in \"match\".");
  CHECK(under(linear) ==
        "[policy t] 0/linear.0: \"hardware\" needs an \"accumulate\" that names how the GPU adds: "
        "\"l40-mma-f8\", \"h100-wgmma-f8\" or \"b200-tcgen05-f8\".");
  CHECK(
      under(sums + R"(, "input": "e4m3", "weight": "e4m3")") ==
      "[policy t] 0/linear.0: in \"hardware\" \"grad_output\" is not quantized. Use e4m3 or e5m2, "
      "unscaled, or with scales per tensor, per row, or e8m0 ones of blocks of 32.");
  CHECK(under(sums + R"(, "input": "mxfp6", "weight": "e4m3", "grad_output": "e5m2")") ==
        "[policy t] 0/linear.0: in \"hardware\" \"input\" is e2m3, blocks of 1x32 with e8m0 scales "
        "(floor). Use e4m3 or e5m2, unscaled, or with scales per tensor, per row, or e8m0 ones of "
        "blocks of 32.");
  CHECK(under(sums + R"(, "input": "e4m3", "weight": "e5m2", "grad_output": "e5m2")") ==
        "[policy t] 0/linear.0: \"grad_output\" and \"weight.backward\" are e5m2, and no GPU "
        "multiplies these. Use e4m3 for one.");

  const std::string of_rows = R"({"format": "e4m3", "scale": {"per": "row"}})";
  nn::Sequential model(nn::Linear(6, 4));
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  amp::Training training(
      policy::read_text(policy_with(R"({"match": {"op": "matmul"}, "compute": "hardware",
                                        "accumulate": "h100-wgmma-f8", "input": )" +
                                        of_rows + R"(, "input.backward": )" + of_rows +
                                        R"(, "grad_output": )" + of_rows + '}',
                                    R"(, "autocast": "bf16")")),
      model, sgd);
  CHECK(
      message_of<UsageError>([&] {
        training.forward([](const Tensor& x) { return matmul(x, x); }, randn({6, 6}));
      }) ==
      "[policy t] /matmul.0: \"grad_output\" is e4m3, rows with f32 scales, and two products read "
      "it along different dimensions. Give it one scale for the tensor.");
}

TEST_CASE("products in hardware without an autocast dtype, or without an input") {
  const std::string rule = R"({"match": {"op": "linear"}, "compute": "hardware",
    "accumulate": "h100-wgmma-f8", "input": "e4m3", "weight": "e4m3", "grad_output": "e5m2"})";
  CHECK(message_of<FormatError>([&] { policy::read_text(policy_with(rule)); }) ==
        "[policy text] /rules/0/compute: the rule computes in \"hardware\", whose results have the "
        "dtype of autocast, and there is none. Add \"autocast\".");
  CHECK(contains(
      message_of_pass(nn::Sequential(nn::Linear(6, 4)), Tensor{}, rule, R"(, "autocast": "bf16")"),
      "is undefined. Pass a tensor."));
}

TEST_CASE("parameters and states in a dtype that does not hold their grid") {
  const std::string says =
      "does not hold the grid e4m3, scaled per tensor for parameters and "
      "states. Extend a strategy that keeps them in f32.";
  const auto under = [](const char* optimizer, const char* more = "") {
    return message_of_pass(nn::Sequential(nn::Linear(6, 4)), randn({5, 6}), "",
                           R"(, "optimizer": {)" + std::string(optimizer) + "}" + more);
  };
  CHECK(under(R"("parameters": "fp8_tensor")", R"(, "weights": {"dtype": "bf16"})") ==
        "[policy t] bf16 " + says);
  CHECK(under(R"("parameters": "fp8_tensor")").empty());
}

}  // namespace
}  // namespace halftone::test::model_errors_test

// Refusals of a session: unsupported operations, rules without effect, damaged states.

namespace halftone::test::session_errors_test {
namespace {

TEST_CASE("settings that an operation does not support, and rules that match nothing, are errors") {
  Pass inexact(R"({"halftone_policy": 1, "name": "t", "extends": "amp-bf16", "rules": [
    {"match": {"op": "linear"}, "input": "fp8_block"}]})");
  CHECK_THROWS_WITH_AS(inexact.run(),
                       "[policy t] 0/linear.0: the grid of \"input\" is e4m3, blocks of 1x128 with "
                       "f32 scales, which bf16 does not hold exactly. Add \"compute\": \"f32\", or "
                       "a power-of-two scale.",
                       UsageError);
  Pass nothing(policy_with(R"({"name": "head", "match": {"path": "head.*"}, "input": "e4m3"})"));
  nothing.run();
  auto& session = policy::session_of(nothing.training);
  CHECK_THROWS_AS(session.require_all_rules_used(), UsageError);
}

TEST_CASE("a state that only other optimizers have is an error of the first step") {
  Steps of_sgd(policy_with("", R"(, "optimizer": {"states": {"momentum_buffer": "bf16"}})"));
  CHECK_THROWS_WITH_AS(of_sgd.step(0),
                       "[policy t] the policy has a grid for the state momentum_buffer, and this "
                       "optimizer has only exp_avg. Use the optimizer that the policy is for, or "
                       "name that state.",
                       UsageError);
}

TEST_CASE("a state that the optimizer does not have is an error of the first step") {
  Steps misspelt(policy_with("", R"(, "optimizer": {"states": {"exp_average": "bf16"}})"));
  CHECK_THROWS_WITH_AS(misspelt.step(0),
                       "[policy t] there is no state of an optimizer named \"exp_average\". Did "
                       "you mean \"exp_avg\"?",
                       UsageError);
}

TEST_CASE("a damaged state is refused, and the session continues with its own") {
  Steps damaged(policy_with(delayed_policy)), plain(policy_with(delayed_policy));
  damaged.step(0), plain.step(0);
  auto& session = *damaged.training.region().session;
  const auto with = [&](const char* entry, const Tensor& x) {
    NamedTensors state = session.state_dict();
    REQUIRE(state.contains(entry));
    state[entry] = x;
    return state;
  };
  for (const auto& [entry, x] :
       {std::pair{"position.0/linear.0.input", full({1}, -3, i64)},
        std::pair{"position.0/linear.0.input", ones({1})},
        std::pair{"history.0/linear.0.input", Tensor{}}, std::pair{"step", full({}, -1, i64)},
        std::pair{"pass", full({}, 9.2e18, i64)}}) {
    CAPTURE(entry);
    CHECK_THROWS_AS(session.load_state_dict(with(entry, x)), UsageError);
  }
  damaged.step(1), plain.step(1);
  CHECK(damaged.weights() == plain.weights());
}

TEST_CASE("f64 is not emulated: an error, not a rule without effect") {
  for (const char* rule : {R"("input": "e4m3")", R"("accumulate": {"format": "e8m7"})"}) {
    Pass pass(R"({"halftone_policy": 1, "name": "t", "extends": "fp64", "rules": [
      {"match": {"op": "linear"}, )" +
              std::string(rule) + "}]}");
    CHECK_THROWS_WITH_AS(pass.run(),
                         "[policy t] 0/linear.0: its operands are f64, in which nothing is "
                         "emulated. Extend a strategy with f32 weights, or except this place.",
                         UsageError);
  }
  CHECK_THROWS_AS(Pass(R"({"halftone_policy": 1, "name": "t", "extends": "fp64", "optimizer":
    {"parameters": "e4m3"}})"),
                  UsageError);
}

}  // namespace
}  // namespace halftone::test::session_errors_test

// The wire of a policy file: errors, reading and writing, and the wire of strategies.

namespace halftone::test::communication_test {
namespace {

TEST_CASE("communication: wire formats, of gradients only") {
  CHECK(refusal_of(R"("communication": "bf16")") ==
        "/communication: communication is an object, got a text.");
  CHECK(refusal_of(R"("communication": {"gradient": "bf16"})") ==
        "/communication/gradient: communication has no entry \"gradient\". Did you mean "
        "\"gradients\"?");
  CHECK(refusal_of(R"("communication": {"gradients": "bf61"})") ==
        "/communication/gradients: there is no wire format named \"bf61\". Did you mean \"bf16\"?");
  CHECK(refusal_of(R"("communication": {"gradients": "f8_e4m3+feedbak"})") ==
        "/communication/gradients: there is no wire format named \"f8_e4m3+feedbak\". Did you mean "
        "\"f8_e4m3+feedback\"?");
  CHECK(refusal_of(R"("communication": {"gradients": 16})") ==
        "/communication/gradients: expected a text, got a number.");
  CHECK(refusal_of(R"("communication": {"parameters": "bf16"})") ==
        "/communication/parameters: weights travel as they are, \"own\": rounded on their way they "
        "would be others than their owner's. Say \"own\", or give \"weights\" a short dtype.");
  CHECK(contains(refusal_of(R"("communication": {"parameters": "f17"})"),
                 "/communication/parameters: there is no wire format named \"f17\". "));
  CHECK(
      refusal_of(R"("extends": "fp64", "communication": {"gradients": "bf16"})") ==
      "/communication/gradients: weights are f64, and their gradients travel as they are. Use f32 "
      "weights, or \"own\".");
  CHECK(refusal_of(R"("communication": {"gradients": "own", "parameters": "own"})") == "accepted");
}

TEST_CASE("a wire is written, read, hashed and given to the strategy") {
  const std::string text =
      text_of(R"("extends": "amp-bf16", "communication": {"gradients": "bf16-sr+feedback"})");
  const amp::Policy file = policy::read_text(text, "x"),
                    plain = test::file_of(R"("extends": "amp-bf16")");
  CHECK(contains(policy::write(file),
                 "\"communication\": {\n    \"gradients\": \"bf16-sr+feedback\",\n    "
                 "\"parameters\": \"own\"\n  }"));
  CHECK(policy::write(policy::read_text(policy::write(file), "again")) == policy::write(file));
  CHECK(policy::hash(file) != policy::hash(plain));
  CHECK(!contains(policy::write(plain), "communication"));  // as in versions without wires
  const amp::Policy strategy = policy::read_text(text);
  CHECK(name(strategy.wire) == "bf16-sr+feedback");
  CHECK(!strategy.has_session());  // other code does not need it
  CHECK(policy::write(strategy) == policy::write(file));
  amp::Policy from_code = amp::Policy::named("amp-bf16");
  from_code.wire = distributed::WireFormat::named("f16");
  CHECK(contains(policy::write(from_code), "\"gradients\": \"f16\""));
  amp::Policy ruled =
      policy::read_text(text_of(R"("extends": "amp-bf16", )"
                                R"("rules": [{"match": {"op": "linear"}, "input": "mxfp8"}])"));
  ruled.wire = from_code.wire;
  CHECK(contains(policy::write(ruled), "\"gradients\": \"f16\""));
}

}  // namespace
}  // namespace halftone::test::communication_test
