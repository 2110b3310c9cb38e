// The output of show for a policy: every step, every field, and differences between two.
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/amp/training.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/factory.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/llama.h>
#include <halftone/nn/models/models.h>
#include <halftone/optim/optimizers.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/resolved.h>
#include <halftone/amp/rules.h>
#include <halftone/amp/session.h>

#include "../support.h"
#include "policy_cases.h"

namespace halftone::test::resolved_table_test {
namespace {

using nlohmann::json;

const std::string unchanged = R"({"weight": "none"})";  // a rule without effect

const policy::Session& session_in(const amp::Training& training) {
  return policy::session_of(training);
}

/// An MLP after a step under a policy.
struct Resolved {
  Steps steps;
  explicit Resolved(const std::string& text, std::vector<int64_t> sizes = {6, 8, 3})
      : steps(text, std::move(sizes)) {
    if (steps.training.strategy().wire != distributed::WireFormat{})
      steps.training.train_together();
    steps.step(0);
  }
  const policy::Session& session() const { return session_in(steps.training); }
  std::string hash() const { return policy::resolved_hash(session()); }
  std::string table() const { return policy::resolved_table(session()); }
};

std::string input_rule(const std::string& quantizer, const std::string& more = "") {
  return policy_with(R"({"match": {"op": "linear"}, "input": )" + quantizer + "}", more);
}

TEST_CASE("a resolved hash depends on every field that has an effect, and on no name") {
  std::vector<std::string> texts{input_rule(R"("e4m3")"), input_rule(R"("e5m2")"),
                                 input_rule(R"("e4m3")", R"(, "seed": 1)"),
                                 input_rule(R"("e4m3")", R"(, "evaluation": "reference")")};
  for (const char* format : {R"({"exponent": 5, "fraction": 2, "infinity": false})",
                             R"({"exponent": 5, "fraction": 2, "subnormals": false})",
                             R"({"exponent": 5, "fraction": 2, "infinity": false,
                                 "subnormals": false})"})
    texts.push_back(input_rule(R"({"format": )" + std::string(format) + "}"));
  for (const char* more :
       {R"("scale": {"per": "tensor"})", R"("scale": {"per": "tensor", "least": 100})",
        R"("scale": {"per": "tensor", "margin": 1})",
        R"("scale": {"per": "tensor", "from": "history"})", R"("scale": {"per": "block"})",
        R"("hadamard": 2)", R"("rounding": "stochastic")",
        R"("rounding": "stochastic", "random_bits": 8)"})
    texts.push_back(input_rule(R"({"format": "e4m3", )" + std::string(more) + "}"));
  for (const char* optimizer :
       {R"("parameters": "e8m15")", R"("parameters": "e8m14")", R"("states": {"exp_avg": "bf16"})",
        R"("states": {"exp_avg_sq": "bf16"})"})
    texts.push_back(input_rule(R"("e4m3")", R"(, "optimizer": {)" + std::string(optimizer) + "}"));
  for (const char* steps : {"[100, null]", "[101, null]", "[0, 100]"})
    texts.push_back(policy_with(R"({"match": {"op": "linear", "steps": )" + std::string(steps) +
                                R"(}, "input": "e4m3"})"));
  std::set<std::string> hashes;
  for (const std::string& text : texts) {
    CAPTURE(text);
    CHECK(hashes.insert(Resolved(text).hash()).second);
  }
  // The same with another name, in more rules, or in words that change nothing.
  const std::string usual = Resolved(texts[0]).hash();
  CHECK(Resolved(input_rule(R"("mine")", R"(, "quantizers": {"mine": "e4m3"})")).hash() == usual);
  CHECK(Resolved(policy_with(R"({"match": {"path": "0"}, "input": "e4m3"},
                                {"match": {"path": "2"}, "input": "e4m3"})"))
            .hash() == usual);
  CHECK(Resolved(policy_with(R"({"match": {"op": "linear"}, "input": "e4m3", "output": "none",
                                 "input.backward": "as_used"})"))
            .hash() == usual);
  CHECK(Resolved(policy_with(R"({"match": {"op": "linear", "steps": [0, 7]}, "input": "e4m3"},
                                {"match": {"op": "linear", "steps": [7, null]}, "input": "e4m3"})"))
            .hash() == usual);
}

TEST_CASE("differences between two policies are those of their content, not of their names") {
  const auto with = [](const std::string& quantizer, const std::string& more = "") {
    return input_rule(R"("forward")", R"(, "quantizers": {"forward": )" + quantizer + "}" + more);
  };
  const Resolved now(with(R"("fp8_tensor")"));
  const Resolved late(with(R"({"format": "e4m3", "scale": {"per": "tensor", "from": "history"}})"));
  const std::string text = policy::resolved_difference(now.session(), late.session());
  CHECK(text ==
        "0/linear.0\n"
        "  - low_precision | f32 | input=forward (e4m3, scaled per tensor)\n"
        "  + low_precision | f32 | input=forward (e4m3, scaled per tensor from the largest of 1024 "
        "steps)\n"
        "2/linear.0\n"
        "  - low_precision | f32 | input=forward (e4m3, scaled per tensor)\n"
        "  + low_precision | f32 | input=forward (e4m3, scaled per tensor from the largest of 1024 "
        "steps)\n");
  CHECK(policy::resolved_difference(now.session(), now.session()).empty());

  // Settings that a description omits follow it.
  const auto in_format = [&](const std::string& more) {
    return Resolved(with(R"({"format": {"exponent": 5, "fraction": 2)" + more + "}}"));
  };
  CHECK(contains(policy::resolved_difference(
                     in_format(R"(, "infinity": false)").session(),
                     in_format(R"(, "infinity": false, "subnormals": false)").session()),
                 "{no infinity, no subnormals}"));
  CHECK(contains(policy::resolved_difference(
                     now.session(),
                     Resolved(with(R"({"format": "e4m3", "scale": {"per": "tensor", "least": 2}})"))
                         .session()),
                 "(e4m3, scaled per tensor {least 2})"));
}

TEST_CASE("a wire is in the table, in JSON, in the hash and among differences") {
  const Resolved plain(policy_with(unchanged)),
      wired(policy_with(unchanged, R"(, "communication": {"gradients": "f8_e4m3"})"));
  CHECK(contains(wired.table(), "gradients, on their way to the sum: f8_e4m3\n"));
  CHECK(!contains(plain.table(), "gradients, on their way"));
  CHECK(json::parse(policy::resolved_json(wired.session()))["communication"] ==
        json{{"gradients", "f8_e4m3"}});
  CHECK(wired.hash() != plain.hash());
  CHECK(policy::resolved_difference(plain.session(), wired.session()) ==
        "gradients on their way\n  - own\n  + f8_e4m3\n");
  const auto found =
      json::parse(policy::resolved_difference_json(wired.session(), plain.session()));
  CHECK(found["communication"]["before"] == json{{"gradients", "f8_e4m3"}});
  CHECK(found["communication"]["after"].is_null());
}

TEST_CASE("grids of parameters and states, seed and evaluation differ as well") {
  const Resolved plain(policy_with(unchanged));
  const Resolved grids(
      policy_with("", R"(, "optimizer": {"parameters": "e8m15", "states": {"exp_avg": "bf16"}},
                           "seed": 3, "evaluation": "reference")"));
  CHECK(policy::resolved_difference(plain.session(), grids.session()) ==
        "parameters\n  - none\n  + e8m15\nstate exp_avg\n  - none\n  + bf16\n"
        "evaluation\n  - \"same\"\n  + \"reference\"\nseed\n  - 0\n  + 3\n");
  CHECK(contains(policy::resolved_difference(grids.session(), plain.session()),
                 "parameters\n  - e8m15\n  + none\n"));
  const auto found =
      json::parse(policy::resolved_difference_json(plain.session(), grids.session()));
  CHECK(found["sites"].empty());
  CHECK(found["parameters"]["before"] == "none");
  CHECK(found["parameters"]["after"]["format"]["significand_bits"] == 16);
  CHECK(found["states"]["after"].contains("exp_avg"));
  CHECK(found["seed"] == json{{"before", 0}, {"after", 3}});
  CHECK(contains(grids.table(),
                 "parameters, after each step: e8m15\n"
                 "state exp_avg, after each step: bf16\n"));

  const Resolved rule(input_rule(R"("e4m3")"));
  const auto sites = json::parse(policy::resolved_difference_json(plain.session(), rule.session()));
  CHECK(sites.size() == 1);
  REQUIRE(sites["sites"].size() == 2);
  const json& site = sites["sites"]["0/linear.0"];
  CHECK(site["before"]["treatment"] == json::parse(R"([{"steps": [0, null], "does": {}}])"));
  CHECK(site["after"]["treatment"][0]["does"]["input"]["format"]["significand_bits"] == 4);
}

TEST_CASE("rules of steps apply to their matches when they hold") {
  // "late" begins in a step that no pass has reached.
  const Resolved resolved(
      policy_with(R"({"name": "late", "match": {"op": "linear", "steps": [100, null]},
                      "compute": "f32", "input": "fp8_tensor"},
                     {"name": "once", "match": {"path": "0", "op": "linear", "steps": [7, 8]},
                      "weight": "e4m3"})"));
  const std::string table = resolved.table();
  CAPTURE(table);
  CHECK(contains(table, "rule 0 (late), steps from 100: 2 sites, 72 parameters, 100.0 % of the "));
  CHECK(contains(table, "rule 1 (once), step 7: 1 sites, 48 parameters, 66.7 % of the flops"));
  CHECK(contains(table, "products that no rule reaches: none\n"));
  CHECK(contains(table, "low_precision | f32 | |, steps 0 to 6\n"));
  CHECK(contains(table, "low_precision | f32 | weight=e4m3 | 1, step 7\n"));
  CHECK(contains(table, "low_precision | f32 | |, steps 8 to 99\n"));
  CHECK(contains(table, "low_precision | f32 | input=fp8_tensor | 0, steps from 100\n"));

  const auto all = json::parse(policy::resolved_json(resolved.session()));
  const json& parts = all["sites"][0]["treatment"];
  REQUIRE(parts.size() == 4);
  CHECK(parts[1]["steps"] == json::parse("[7, 8]"));
  CHECK(parts[3]["steps"] == json::parse("[100, null]"));
  CHECK(parts[3]["does"]["compute"] == "f32");
}

TEST_CASE("layers of a list that a rule leaves out by their numbers are a warning") {
  const auto table_with = [](const std::string& rules) {
    return Resolved(policy_with(rules), {6, 8, 8, 8, 3}).table();
  };
  // Linear layers are members 0, 2, 4 and 6.
  const auto rule = [](const std::string& path) {
    return R"({"name": "first", "match": {"op": "linear", "path": ")" + path +
           R"("}, "input": "e4m3"})";
  };
  CHECK(contains(table_with(rule("{0,2,4}")),
                 "warning: rule 0 (first) names layers by number and leaves 6, which no other rule "
                 "reaches\n"));
  CHECK(contains(table_with(rule("2")), "by number and leaves 0, 4, 6, which"));
  CHECK_FALSE(contains(table_with(rule("{0,2,4,6}")), "warning"));
  CHECK_FALSE(contains(table_with(rule("{0,2,4}") + ", " + rule("6")), "warning"));
  // Brackets count members, and stars match all of them.
  CHECK_FALSE(contains(table_with(rule("[0:-1]")), "warning"));
  CHECK_FALSE(contains(table_with(rule("*")), "warning"));
}

/// The table of a model after one pass.
template <class Model>
std::string table_of_pass(Model& model, const Tensor& x, const std::string& rules) {
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  amp::Training training(policy::read_text(policy_with(rules)), model, sgd);
  training.backward(mean(training.forward([&](const Tensor& in) { return model(in); }, x)));
  return policy::resolved_table(session_in(training));
}

TEST_CASE("attention and transposed convolution are products as well") {
  nn::models::Gpt gpt({.vocabulary = 16, .context = 8, .layers = 2, .heads = 2, .width = 16});
  const std::string linear = R"({"match": {"op": "linear"}, "input": "e4m3"})";
  const std::string table = table_of_pass(gpt, randint(0, 16, {2, 8}), linear);
  CAPTURE(table);
  CHECK(contains(table,
                 "products that no rule reaches: transformer.h.0.attn/scaled_dot_product_"
                 "attention"));
  nn::Sequential up(nn::ConvTranspose2d(2, 3, 2));
  CHECK(contains(table_of_pass(up, randn({1, 2, 4, 4}),
                               R"({"match": {"op": "linear"}, "optional": true, "input": "e4m3"})"),
                 "products that no rule reaches: 0/conv_transpose2d.0\n"));
  CHECK(contains(table_of_pass(up, randn({1, 2, 4, 4}),
                               R"({"match": {"asks": "low_precision"}, "input": "e4m3"})"),
                 "products that no rule reaches: none\n"));
}

TEST_CASE("a pattern within a list of blocks names the blocks that it leaves out") {
  nn::models::Gpt gpt({.vocabulary = 16, .context = 8, .layers = 4, .heads = 2, .width = 16});
  CHECK(contains(
      table_of_pass(
          gpt, randint(0, 16, {2, 8}),
          R"({"match": {"op": "linear", "path": "transformer.h.{0,1,2}.**"}, "input": "mxfp8"})"),
      "warning: rule 0 names layers by number and leaves transformer.h.3, which no other"));
}

}  // namespace
}  // namespace halftone::test::resolved_table_test

// Patterns for paths of modules: their matches, invalid ones, and the nearest path to one that
// matches nothing.

namespace halftone::test::path_match_test {
namespace {

using policy::ListSizes;
using policy::PathPattern;
using Paths = std::vector<std::string>;

const Paths paths{"",
                  "transformer.wte",
                  "transformer.h.0",
                  "transformer.h.0.attn",
                  "transformer.h.0.attn.c_attn",
                  "transformer.h.0.attn.c_proj",
                  "transformer.h.1.mlp.c_fc",
                  "transformer.h.1.mlp.c_proj",
                  "transformer.h.10.mlp.c_fc",
                  "transformer.h.10.ln_1",
                  "transformer.ln_f",
                  "lm_head"};

/// Returns the positions of the matching paths in the list.
std::vector<int> matching(std::string_view text, const Paths& all = paths) {
  const PathPattern pattern("test", text);
  policy::ModelParts parts{.lists = policy::list_sizes_of(all)};
  if (&all == &paths) parts.lists["transformer.h"] = 11;  // most members are not among the paths
  std::vector<int> places;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (pattern.matches(all[i], parts)) places.push_back(int(i));
  return places;
}
using Places = std::vector<int>;

std::string refusal_of(const std::string& text) {
  return message_of<UsageError>([&] { PathPattern("policy p", text); });
}

TEST_CASE("a path is itself; one star is one segment, two are any number, none as well") {
  CHECK(matching("lm_head") == Places{11});
  CHECK(matching("transformer.h.0.attn") == Places{3});
  CHECK(matching("transformer.h.0") == Places{2});
  CHECK(matching("*") == Places{11});
  CHECK(matching("transformer.*") == Places{1, 10});
  CHECK(matching("transformer.h.*.mlp.*") == Places{6, 7, 8});
  CHECK(matching("**") == Places{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  CHECK(matching("transformer.h.**") == Places{2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(matching("**.c_proj") == Places{5, 7});
  CHECK(matching("**.h.**.c_fc") == Places{6, 8});
  CHECK(matching("**.**.lm_head.**.**") == Places{11});
  CHECK(matching("") == Places{0});
  CHECK(matching("transformer").empty());
  CHECK(matching("h.0.attn").empty());
  CHECK(matching("transformer.h.0.attn.c_attn.more").empty());
}

TEST_CASE("stars may also match letters within a segment") {
  CHECK(matching("**.c_*") == Places{4, 5, 6, 7, 8});
  CHECK(matching("**.*_proj") == Places{5, 7});
  CHECK(matching("**.c_*r*j") == Places{5, 7});
  CHECK(matching("transformer.h.1*.**") == Places{6, 7, 8, 9});
  CHECK(matching("l*d") == Places{11});
  CHECK(matching("lm_head*") == Places{11});
  CHECK(matching("lm*_*head") == Places{11});
  CHECK(matching("lm_he").empty());
}

TEST_CASE("braces are alternatives of one segment") {
  CHECK(matching("transformer.h.*.{attn,mlp}.*") == Places{4, 5, 6, 7, 8});
  CHECK(matching("**.c_{attn,fc}") == Places{4, 6, 8});
  CHECK(matching("transformer.{wte,ln_f}") == Places{1, 10});
  CHECK(matching("transformer.{w*,l*_f}") == Places{1, 10});
  CHECK(matching("{lm_head}") == Places{11});
  CHECK(matching("lm{_head,}") == Places{11});
  CHECK(matching("transformer.h.{0,10}") == Places{2});
}

TEST_CASE("brackets count members of a list, from its end if they are negative") {
  CHECK(matching("transformer.h.[0].**") == Places{2, 3, 4, 5});
  CHECK(matching("transformer.h.[-1].**") == Places{8, 9});
  CHECK(matching("transformer.h.[10].**") == Places{8, 9});
  CHECK(matching("transformer.h.[-10].**") == Places{6, 7});
  CHECK(matching("transformer.h.[0:-1].**") == Places{2, 3, 4, 5, 6, 7});
  CHECK(matching("transformer.h.[1:].**") == Places{6, 7, 8, 9});
  CHECK(matching("transformer.h.[:1].**") == Places{2, 3, 4, 5});
  CHECK(matching("transformer.h.[:].**") == Places{2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(matching("transformer.h.[5:3].**").empty());
  CHECK(matching("transformer.h.[11].**").empty());
  CHECK(matching("transformer.h.[-12].**").empty());
  CHECK(matching("transformer.[0].**").empty());  // not a list
  const Paths layers{"0", "1", "2", "2.0", "2.1"};
  CHECK(matching("[-1]", layers) == Places{2});
  CHECK(matching("[0:-1]", layers) == Places{0, 1});
  CHECK(matching("[-1].[-1]", layers) == Places{4});
}

TEST_CASE("lists are modules with children named 0, 1, 2, ...") {
  CHECK(policy::list_sizes_of({"h.0", "h.0.x", "h.10", "h.2.y"}) == ListSizes{{"h", 11}});
  CHECK(policy::list_sizes_of({"a.0.b.0", "a.0.b.1", "3", "a.x"}) ==
        ListSizes{{"", 4}, {"a.0.b", 2}});
}

/// A model of other names than GPT-2's, with two lists of blocks, a list in a block, and a list of
/// plain layers.
struct Parted final : nn::Module {
  struct Block final : nn::Module {
    nn::Sequential experts{nn::Linear(2, 2), nn::Linear(2, 2)};
    nn::Router router{2, 2};
    void describe(nn::Fields& field) override {
      field("experts", experts), field("router", router);
    }
  };
  nn::Embedding words{4, 2};
  std::vector<Block> lower, upper;
  nn::Linear out{2, 4};
  nn::LayerNorm norm{4};
  bool has_blocks;
  explicit Parted(bool blocks) : has_blocks(blocks) {
    for (int i = 0; i < 2; ++i) lower.emplace_back(), upper.emplace_back();
  }
  void describe(nn::Fields& field) override {
    field("words", words);
    for (std::size_t i = 0; has_blocks && i < 2; ++i) field("lower." + std::to_string(i), lower[i]);
    for (std::size_t i = 0; has_blocks && i < 2; ++i) field("upper." + std::to_string(i), upper[i]);
    field("out", out), field("norm", norm);
  }
};

TEST_CASE("parts of a model do not depend on its names") {
  Parted model(true), plain(false);
  const policy::ModelParts parts = policy::parts_of(model);
  CHECK(parts.blocks == Paths{"lower.0", "lower.1", "upper.0", "upper.1"});
  CHECK(parts.heads == Paths{"out"});
  CHECK(parts.embeddings == Paths{"words"});
  CHECK(parts.routers ==
        Paths{"lower.0.router", "lower.1.router", "upper.0.router", "upper.1.router"});
  const auto matches = [&](const char* pattern, const char* path) {
    return PathPattern("test", pattern).matches(path, parts);
  };
  CHECK(matches("<block>.**", "lower.1.experts.0"));
  CHECK(matches("<block>", "lower.1"));
  CHECK_FALSE(matches("<block>", "lower.1.router"));
  CHECK_FALSE(matches("<block>.**", "lower"));
  CHECK_FALSE(matches("<block>.**", "lower.10"));
  CHECK(matches("<first block>.router", "lower.0.router"));
  CHECK_FALSE(matches("<first block>.router", "upper.0.router"));
  CHECK(matches("<last block>.experts.[-1]", "upper.1.experts.1"));
  CHECK_FALSE(matches("<last block>.experts.[-1]", "upper.1.experts.0"));
  CHECK(matches("<head>", "out"));
  CHECK(matches("<embedding>", "words"));
  CHECK(matches("<router>", "upper.1.router"));
  CHECK(policy::parts_of(plain).blocks.empty());
  CHECK_FALSE(PathPattern("test", "<last block>.**").matches("out", policy::parts_of(plain)));

  nn::models::Gpt gpt({.vocabulary = 8, .context = 4, .layers = 3, .heads = 1, .width = 4});
  CHECK(policy::parts_of(gpt).heads == Paths{"lm_head"});  // although it is the embedding's matrix
  CHECK(policy::parts_of(gpt).blocks ==
        Paths{"transformer.h.0", "transformer.h.1", "transformer.h.2"});
  nn::Sequential mlp{nn::Linear(2, 3), nn::Relu(), nn::Linear(3, 2)};
  CHECK(policy::parts_of(mlp).heads == Paths{"2"});
  CHECK(policy::parts_of(mlp).blocks.empty());

  CHECK(refusal_of("<blok>.**") ==
        "[policy p] there is no part named \"<blok>\". Did you mean \"<block>\"?");
  CHECK(contains(refusal_of("<block"), "there is no part named \"<block\""));
  CHECK(refusal_of("<head>x") ==
        "[policy p] \"<head>x\" goes on after <head> without a dot and a path. Write <head>.**.");
  CHECK_FALSE(refusal_of("<block>.").empty());
}

TEST_CASE("patterns that can match nothing, or that are ambiguous, are errors") {
  CHECK(refusal_of("transformer.h.[-1") ==
        "[policy p] \"transformer.h.[-1\" has a brace or bracket that does not close.");
  CHECK(refusal_of("a.{b,c") ==
        "[policy p] \"a.{b,c\" has a brace or bracket that does not close.");
  CHECK(refusal_of("a.b}") == "[policy p] \"a.b}\" has a brace or bracket that does not open.");
  CHECK(refusal_of("a.{b]") == "[policy p] \"a.{b]\" has a brace or bracket that does not open.");
  CHECK(refusal_of("h.[x]") ==
        "[policy p] \"[x]\" in \"h.[x]\" names no members of a list. Write [-1], [0:-1] or [2:].");
  for (const std::string bad :
       {"h.[]", "h.[1:2:3]", "h.[0]x", "h.[ 1]", "h.[1.5]", "h.[99999999999999999999]"})
    CHECK_MESSAGE(contains(refusal_of(bad), "names no members of a list"), bad);
  CHECK(refusal_of("h[0].attn") ==
        "[policy p] \"h[0].attn\" has a bracket within a segment. Write h.[0].");
  for (const std::string bad : {"{a,{b,c}}", "{a}{b}", "{a[0]}", "[{0}]", "a.{b}c{d}"})
    CHECK_MESSAGE(contains(refusal_of(bad), "nested or adjacent braces or brackets"), bad);
  CHECK(contains(refusal_of("h.*.{attn.c_attn,mlp.c_fc}"), "has a dot within braces"));
  for (const std::string bad : {".a", "a.", "a..b", "."})
    CHECK_MESSAGE(contains(refusal_of(bad), "has a segment of no letters"), bad);
  CHECK(refusal_of(std::string(1001, 'a')) ==
        "[policy p] a path has 1001 letters. At most 1000 make sense.");
  CHECK(refusal_of("{a}.{b}.[0].{c,d}e").empty());
}

TEST_CASE("many stars cost no time") {
  std::string pattern, path = "b";
  for (int i = 0; i < 300; ++i) pattern += "**.";
  for (int i = 0; i < 40; ++i) path += ".a";
  CHECK_FALSE(PathPattern("test", pattern + "c").matches(path, {}));
  CHECK(PathPattern("test", pattern + "a").matches(path, {}));
  CHECK_FALSE(PathPattern("test", "*a*a*a*a*a*a*a*a*a*a*b").matches(std::string(900, 'a'), {}));
}

TEST_CASE("except removes sites, and a rule names operations and their cast classes") {
  nn::models::Gpt model({.vocabulary = 8, .context = 4, .layers = 3, .heads = 1, .width = 4});
  auto book = std::make_shared<policy::Rulebook>();
  book->rules.push_back({.match = {.ops = {"linear"},
                                   .path = "<block>.**",
                                   .except = {"<last block>.**", "**.attn.c_proj"}}});
  book->rules.push_back({.match = {.asks = CastClass::low_precision}});
  book->rules.push_back({.match = {.ops = {"softmax", "gelu"}}});
  const policy::RuleMatcher matcher("test", book, policy::parts_of(model));
  constexpr OpInfo linear("linear", CastClass::low_precision), gelu("gelu", CastClass::as_is);
  const auto site = [](const char* path, const OpInfo& op) {
    return policy::Site{.path = path, .op = op.name, .ordinal = 0, .parameter = {}};
  };
  const auto matched = [&](const char* path, const OpInfo& op) {
    std::string numbers;
    for (std::size_t i = 0; i < 3; ++i)
      if (matcher.matches(i, site(path, op), op)) numbers += std::to_string(i);
    return numbers;
  };
  CHECK(matched("transformer.h.0.attn.c_attn", linear) == "01");
  CHECK(matched("transformer.h.0.attn.c_proj", linear) == "1");
  CHECK(matched("transformer.h.1.mlp.c_proj", linear) == "01");
  CHECK(matched("transformer.h.2.mlp.c_proj", linear) == "1");
  CHECK(matched("lm_head", linear) == "1");
  CHECK(matched("transformer.h.0.mlp", gelu) == "2");
  CHECK(matched("", gelu) == "2");
}

TEST_CASE("the nearest path shares the most letters, then is the shortest") {
  CHECK(policy::nearest_path("transformer.h.0.attn.c_atn", paths) == "transformer.h.0.attn.c_attn");
  CHECK(policy::nearest_path("head.*", paths) == "lm_head");
  CHECK(policy::nearest_path("lm_heads", paths) == "lm_head");
  CHECK(policy::nearest_path("transformer.hidden.**", paths) == "transformer.h.0");
  CHECK(policy::nearest_path("x", {}).empty());
}

}  // namespace
}  // namespace halftone::test::path_match_test

// The policies in amp/policies/: each matches its description, survives writing, and trains the
// models that it is for, with every rule in use.

namespace halftone::test::shipped_policies_test {
namespace {

namespace fs = std::filesystem;
using amp::Policy;

std::vector<fs::path> shipped() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(policies_directory()))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

struct Case {
  std::unique_ptr<nn::Layer> model;
  Tensor inputs, targets;  // classes of the model's last dimension
};

/// The models that files are for, small.
Case make_case(const std::string& name) {
  manual_seed(1);
  if (name == "gpt")
    return {std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
                .vocabulary = 32, .context = 16, .layers = 3, .heads = 2, .width = 32}),
            randint(0, 32, {2, 16}), randint(0, 32, {32})};
  if (name == "llama")
    return {std::make_unique<nn::models::Llama>(nn::models::LlamaOptions{.vocabulary = 32,
                                                                         .context = 16,
                                                                         .layers = 3,
                                                                         .width = 32,
                                                                         .heads = 4,
                                                                         .key_heads = 2,
                                                                         .hidden = 64}),
            randint(0, 32, {2, 16}), randint(0, 32, {32})};
  if (name == "lenet")
    return {std::make_unique<nn::models::LeNet>(), randn({4, 1, 28, 28}), randint(0, 10, {4})};
  REQUIRE(name == "mlp");
  return {std::make_unique<nn::Sequential>(nn::models::mlp({48, 64, 64, 10})), randn({8, 48}),
          randint(0, 10, {8})};
}

std::vector<std::string> models_of(const Policy& file) {
  return file.meant_for.empty() ? std::vector<std::string>{"gpt", "llama", "mlp", "lenet"}
                                : file.meant_for;
}

double step(amp::Training& training, const Case& c) {
  training.zero_grad();
  Tensor logits = training.forward(*c.model, c.inputs);
  logits = reshape(logits, {c.targets.numel(), logits.size(-1)});
  const Tensor loss = cross_entropy(logits, c.targets);
  training.backward(loss);
  training.step();
  return loss.item();
}

const policy::Session* session_of(const amp::Training& training) {
  return training.region().session.get();
}

TEST_CASE("the twelve strategies as files are the strategies") {
  for (const std::string_view name : amp::Policy::names()) {
    CAPTURE(name);
    Policy file = policy::read(policies_directory() / (std::string(name) + ".json"));
    CHECK(file.name == name);
    CHECK_FALSE(file.about.empty());
    CHECK(file.rules.empty());
    CHECK_FALSE(file.has_session());
    file.about.clear();
    CHECK(policy::write(file) == policy::write(amp::Policy::named(name)));
  }
}

TEST_CASE("the published recipes exist") {
  for (const std::string_view name : {"deepseek_v3",
                                      "deepseek_v3_accumulator",
                                      "te_delayed_hybrid",
                                      "te_current",
                                      "fp8_attention",
                                      "mxfp8",
                                      "mxfp6",
                                      "mxfp4",
                                      "mxfp4_backward",
                                      "nvfp4",
                                      "nvfp4_four_over_six",
                                      "quartet2",
                                      "ue5m3",
                                      "quartet",
                                      "fp4_all_the_way",
                                      "jetfire_int8",
                                      "coat",
                                      "tetrajet",
                                      "ms_amp_o2",
                                      "qpytorch_low8",
                                      "bf16_sr_everywhere",
                                      "fp24_master",
                                      "tf32"}) {
    CAPTURE(name);
    const Policy file = policy::read(policies_directory() / (std::string(name) + ".json"));
    std::string as_file = file.name;
    std::ranges::replace(as_file, '-', '_');
    CHECK(as_file == name);
    CHECK_FALSE(file.about.empty());
    CHECK_FALSE(file.meant_for.empty());
    CHECK(file.has_session());
  }
}

TEST_CASE("every installed policy survives writing") {
  CHECK(shipped().size() == 40);
  for (const fs::path& path : shipped()) {
    CAPTURE(path);
    const Policy file = policy::read(path);
    const std::string written = policy::write(file);
    const Policy again = policy::read_text(written, "again");
    CHECK(policy::write(again) == written);
    CHECK(policy::hash(again) == policy::hash(file));
    CHECK(again.rules == file.rules);
    CHECK(policy::write(file).size() > 100);
  }
}

TEST_CASE(
    "every installed policy trains the models that it is for, and all of its rules are used") {
  for (const fs::path& path : shipped()) {
    const Policy file = policy::read(path);
    for (const std::string& name : models_of(file)) {
      CAPTURE(path);
      CAPTURE(name);
      Case c = make_case(name);
      optim::AdamW optimizer(c.model->parameters(), {.lr = 1e-3});
      amp::Training training(policy::read(path), *c.model, optimizer);
      CHECK(std::isfinite(step(training, c)));
      CHECK(std::isfinite(step(training, c)));
      CHECK(training.skipped_steps() == 0);
      if (!session_of(training)) continue;
      CHECK_NOTHROW(session_of(training)->require_all_rules_used());
    }
  }
}

TEST_CASE("recipes come near the training that they extend") {
  const auto last_loss = [](const amp::Policy& strategy) {
    Case c = make_case("gpt");
    optim::AdamW optimizer(c.model->parameters(), {.lr = 3e-3});
    amp::Training training(strategy, *c.model, optimizer);
    double loss = 0;
    for (int i = 0; i < 30; ++i) loss = step(training, c);
    return loss;
  };
  const double reference = last_loss(amp::Policy::named("amp-bf16"));
  CHECK(reference < 1.2);  // of ln 32 = 3.47
  for (const std::string_view name :
       {"deepseek_v3", "te_delayed_hybrid", "te_current", "mxfp8", "mxfp6", "mxfp4",
        "mxfp4_backward", "nvfp4", "nvfp4_four_over_six", "fp8_attention", "quartet2", "ue5m3",
        "fp24_master", "quartet", "fp4_all_the_way", "jetfire_int8", "tetrajet", "tf32"}) {
    CAPTURE(name);
    const double loss =
        last_loss(policy::read(policies_directory() / (std::string(name) + ".json")));
    CAPTURE(loss);
    CAPTURE(reference);
    CHECK(std::abs(loss - reference) < 0.1);
  }
}

TEST_CASE("states and weights are on their grids after a step") {
  const auto on_grid = [](const Tensor& x, const NumberFormat& grid) {
    return std::ranges::all_of(x.to(f32).to_vector<float>(), [&](float v) {
      return round_to(grid, v, Rounding::nearest_even) == v;
    });
  };
  Case c = make_case("mlp");
  optim::Sgd optimizer(c.model->parameters(), {.lr = 0.1, .momentum = 0.9});
  amp::Training training(policy::read(policies_directory() / "qpytorch_low8.json"), *c.model,
                         optimizer);
  step(training, c), step(training, c);
  const NumberFormat high = NumberFormat::ieee_like(6, 9), low = NumberFormat::ieee_like(5, 2);
  for (const Tensor& p : optimizer.parameters()) {
    CHECK(on_grid(p, high));
    CHECK_FALSE(on_grid(p, low));
    CHECK(on_grid(p.grad(), low));
  }
  int momenta = 0;
  for (const auto& [name, x] : optimizer.state_dict())
    if (name.ends_with("momentum_buffer")) {
      ++momenta;
      CHECK(on_grid(x, high));
    }
  CHECK(momenta == 6);
}

TEST_CASE("policies in the documents are valid") {
  const TemporaryDirectory folder;
  fs::copy_file(policies_directory() / "mxfp8.json", folder / "mxfp8.json");
  std::vector<Policy> found;
  for (const char* page : {"policy_files.md", "adding_a_policy.md"}) {
    const std::string text =
        read_file(policies_directory().parent_path().parent_path() / "docs" / page);
    const std::string begins = "```json\n";
    for (std::size_t at = 0; (at = text.find(begins, at)) != std::string::npos;) {
      at += begins.size();
      write_file(folder / "example.json", text.substr(at, text.find("```", at) - at));
      found.push_back(policy::read(folder / "example.json"));
    }
  }
  REQUIRE(found.size() == 3);
  CHECK(found[0].rules == policy::read(policies_directory() / "te_current.json").rules);
  CHECK(found[1].rules.rules[1].match.when->bound == 1.73);
  CHECK(found[2].rules.rules.size() == 2);
}

TEST_CASE("every rule of nvfp4 excludes the last block and the head") {
  Case c = make_case("gpt");
  optim::AdamW optimizer(c.model->parameters());
  amp::Training training(policy::read(policies_directory() / "nvfp4.json"), *c.model, optimizer);
  step(training, c);
  int treated = 0, left = 0;
  for (const policy::ResolvedSite& site : session_of(training)->resolved()) {
    if (site.site.op != "linear") continue;
    const bool inside = site.site.path.starts_with("transformer.h.0.") ||
                        site.site.path.starts_with("transformer.h.1.");
    CAPTURE(site.site.path);
    CHECK(site.treatment->quantizes() == inside);
    ++(inside ? treated : left);
  }
  CHECK(treated == 8);
  CHECK(left == 5);  // four of the last block, and the head
}

TEST_CASE("a rule that matches nothing names the nearest path") {
  Case c = make_case("gpt");
  optim::AdamW optimizer(c.model->parameters());
  const auto message_for = [&](const std::string& rule) {
    amp::Training training(
        policy::read_text(R"({"halftone_policy": 1, "name": "p", "rules": [{"name": "head",
        "input": "bf16", )" +
                          rule + "}]}"),
        *c.model, optimizer);
    try {
      step(training, c);
    } catch (const UsageError& error) { return std::string(error.what()); }
    return std::string();
  };
  CHECK(
      message_for(R"("match": {"path": "head.*"})") ==
      "[policy p] rule 0 (\"head\") matches nothing in this model: no operation that it is for has "
      "a path like \"head.*\". The nearest is \"lm_head\". Mark it \"optional\" if that is meant.");
  CHECK(message_for(R"("match": {"path": "lm_head"})").empty());
  CHECK(message_for(R"("match": {"path": "head.*"}, "optional": true)").empty());
  CHECK_FALSE(message_for(R"("match": {"path": "lm_head", "op": "matmul"})").empty());
}

}  // namespace
}  // namespace halftone::test::shipped_policies_test
