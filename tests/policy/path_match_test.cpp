// Patterns for paths of modules: their matches, invalid ones, and the nearest path to one that
// matches nothing.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/models.h>
#include <halftone/policy/rules.h>

#include "../support.h"

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
  ListSizes lists = policy::list_sizes_of(all);
  if (&all == &paths) lists["transformer.h"] = 11;  // most of its members are not among the paths
  std::vector<int> places;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (pattern.matches(all[i], lists)) places.push_back(int(i));
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
  Paths modules;
  for (const auto& [path, module] : model.named_modules()) modules.push_back(path);
  auto book = std::make_shared<policy::Rulebook>();
  book->rules.push_back({.match = {.ops = {"linear"},
                                   .path = "transformer.h.**",
                                   .except = {"transformer.h.[-1].**", "**.attn.c_proj"}}});
  book->rules.push_back({.match = {.asks = CastClass::low_precision}});
  book->rules.push_back({.match = {.ops = {"softmax", "gelu"}}});
  const policy::RuleMatcher matcher("test", book, modules);
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
