// Axes, seeds, and the policy files that they make.
#include <algorithm>
#include <set>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/lab/commands/commands.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/run_folder.h>
#include <halftone/lab/sweep.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/probe.h>
#include <halftone/amp/rules.h>
#include <halftone/amp/session.h>

#include "lab/runs.h"
#include "support.h"

namespace halftone::test::sweep_test {
namespace {

using lab::axis_of;
using lab::Point;
using lab::points_of;
using lab::seeds_of;

TEST_CASE("axes and seeds, and what is none") {
  const lab::Axis axis = axis_of("quantizers.q.scale.history=16,64");
  CHECK(axis.name == "quantizers.q.scale.history");
  CHECK(axis.values == std::vector<std::string>{"16", "64"});
  for (const char* text : {"", "=", "lr", "lr=", "=3", "lr=1,,2", "lr=1,1"}) {
    CAPTURE(text);
    CHECK(message_of<UsageError>([&] { axis_of(text); }).starts_with("[sweep] "));
  }
  CHECK(axis_of("b=[1,32],{\"a\": [2,3], \"c\": 1},\"x,y\",4").values ==
        std::vector<std::string>{"[1,32]", "{\"a\": [2,3], \"c\": 1}", "\"x,y\"", "4"});
  CHECK(seeds_of("0..2,7") == std::vector<uint64_t>{0, 1, 2, 7});
  CHECK(seeds_of("5") == std::vector<uint64_t>{5});
  for (const char* text :
       {"", "..", "3..1", "1,1", "0..2,2", "-1", "1x", "0..99999999999", "99999999999999999999",
        "18446744073709551614..18446744073709551615,a"}) {
    CAPTURE(text);
    CHECK(message_of<UsageError>([&] { seeds_of(text); }).starts_with("[--seeds] "));
  }
  CHECK(seeds_of("18446744073709551614..18446744073709551615").size() == 2);
}

TEST_CASE("cells: the product of the axes, the last one running fastest") {
  const std::vector<Point> cells =
      points_of((policies_directory() / "te_delayed_hybrid.json").string(),
                {axis_of("quantizers.forward.scale.history=16,64"), axis_of("lr=0.1,0.2"),
                 axis_of("rules.0.match.path=**,\"0\"")});
  REQUIRE(cells.size() == 8);
  CHECK(cells[0].name == "te-delayed-hybrid-history=16-lr=0.1-path=__");
  CHECK(cells[3].name == "te-delayed-hybrid-history=16-lr=0.2-path=_0_");
  CHECK(nlohmann::json::parse(cells[3].record) ==
        nlohmann::json{{"policy", "te-delayed-hybrid"},
                       {"axes", {{"history", "16"}, {"lr", "0.2"}, {"path", "\"0\""}}}});
  CHECK(cells[3].options == std::vector<std::pair<std::string, std::string>>{{"--lr", "0.2"}});
  const amp::Policy file = policy::read_text(cells[7].policy, "cell");
  CHECK(file.name == cells[7].name);
  CHECK(file.rules.rules.at(0).match.path == "0");
  CHECK(file.rules.rules.at(0).roles.at(policy::Role::input).quantizer.scaling.history == 64);
}

TEST_CASE("a strategy's name is a file that extends it; fields may be new there") {
  const std::vector<Point> cells =
      points_of("amp-bf16", {axis_of("optimizer.parameters=bf16,e8m15")});
  const amp::Policy file = policy::read_text(cells.at(1).policy, "cell");
  CHECK(file.autocast == bf16);
  CHECK(file.rules.parameters->grid.significand_bits == 16);
}

TEST_CASE("files next to a policy are found from the cells' folder") {
  const TemporaryDirectory folder;
  write_file(folder / "base.json",
             R"({"halftone_policy": 1, "name": "base", "extends": "amp-bf16"})");
  write_file(folder / "top.json",
             R"({"halftone_policy": 1, "name": "top", "extends": "base.json"})");
  const std::vector<Point> cells = points_of((folder / "top.json").string(), {axis_of("seed=1,2")});
  const TemporaryDirectory other;
  write_file(other / "cell.json", cells.at(1).policy);
  const amp::Policy file = policy::read(other / "cell.json");
  CHECK(file.autocast == bf16);
  CHECK(file.seed == 2);
}

TEST_CASE("a field that leads nowhere, and too many cells") {
  const auto refusal = [](const std::string& axis) {
    return message_of<FormatError>(
        [&] { points_of((policies_directory() / "mxfp8.json").string(), {axis_of(axis)}); });
  };
  CHECK(contains(refusal("rules.7.input=e4m3"), "the list there has 1 entries, got \"7\""));
  CHECK(contains(refusal("rules.x.input=e4m3"), "the list there has 1 entries, got \"x\""));
  CHECK(contains(refusal("name.x=1"), "the entry before \"x\" is not an object"));
  std::string many = "seed=0";
  for (int i = 1; i < 200; ++i) many += "," + std::to_string(i);
  CHECK(contains(message_of<UsageError>([&] {
                   points_of("fp32", {axis_of(many), axis_of("lr" + many.substr(4))});
                 }),
                 "more than 10000 cells"));
  CHECK(contains(message_of<UsageError>([&] {
                   points_of("fp32", {axis_of("lr=1"), axis_of("lr=2")});
                 }),
                 "two axes have the field \"lr\""));
  CHECK(contains(message_of<UsageError>([&] { points_of("fp23", {axis_of("lr=1")}); }), "fp23"));
}

TEST_CASE("what no file can hold has the form of an error") {
  const auto refusal = [](const std::string& axis) {
    return message_of<FormatError>([&] { points_of("fp32", {axis_of(axis)}); });
  };
  CHECK(contains(refusal("about=\xff"), "[sweep] the fields of the cell "));
  CHECK(contains(refusal("about=" + std::string(100'000, '[') + std::string(100'000, ']')),
                 "more than 64 levels of braces and brackets"));
  std::string deep = "a";
  for (int i = 0; i < 50'000; ++i) deep += ".a";
  CHECK(contains(refusal(deep + "=1"), "is 50001 levels deep. A policy has at most 64."));

  const TemporaryDirectory folder;
  lab::SweepOptions options{.policy = "fp32", .axes = {axis_of("lr=1")}};
  options.setup.workload = "mlp_tiny", options.out = folder / "file" / "out";
  write_file(folder / "file", "");
  std::ostringstream progress;
  CHECK(contains(message_of<Error>([&] { lab::run_sweep(options, {}, progress); }),
                 "[sweep] cannot make the directory " + (folder / "file/out/policies").string()));
  CHECK(contains(message_of<Error>([&] {
                   lab::require_same_settings("sweep", folder / "x.json", {{"workload", "\xff"}});
                 }),
                 "[sweep] the workload or another option is not UTF-8."));
  options.out = folder / "out";
  std::filesystem::create_directory(folder / "out");
  std::filesystem::create_symlink("sweep.json", folder / "out/sweep.json");  // to itself
  CHECK(contains(message_of<Error>([&] { lab::run_sweep(options, {}, progress); }),
                 "[sweep] cannot read " + (folder / "out/sweep.json").string()));
}

}  // namespace
}  // namespace halftone::test::sweep_test

// From axes to cells: values as JSON, nested fields, products of axes, names of files, ranges of
// seeds, and refusals.

namespace halftone::test::sweep_cells_test {
namespace {

using lab::Axis;
using lab::axis_of;
using lab::Point;
using lab::points_of;
using lab::seeds_of;
using nlohmann::json;
using Values = std::vector<std::string>;

/// A policy with a quantizer, two rules and an optimizer's grid.
constexpr const char* policy_text = R"({"halftone_policy": 1, "name": "base", "extends": "fp32",
  "quantizers": {"q": {"format": "e4m3", "scale": {"per": "tensor", "from": "history",
  "history": 16}}}, "rules": [{"match": {"op": "linear"}, "input": "q"},
  {"match": {"op": "linear"}, "weight": "q"}]})";

struct PolicyFile {
  TemporaryDirectory folder{};
  std::filesystem::path path = folder / "base.json";
  PolicyFile() { write_file(path, policy_text); }
  std::vector<Point> cells(const std::vector<Axis>& axes) const {
    return points_of(path.string(), axes);
  }
};

json parsed(const Point& cell) { return json::parse(cell.policy); }

std::vector<std::string> names_of(const std::vector<Point>& cells) {
  std::vector<std::string> names;
  for (const Point& cell : cells) names.push_back(cell.name);
  return names;
}

// --- axes

TEST_CASE("an axis is cut at its first = and at commas outside of lists, objects and texts") {
  const Axis plain = axis_of("about=a=b,c");
  CHECK(plain.name == "about");
  CHECK(plain.values == Values{"a=b", "c"});
  CHECK(axis_of("x=[[1,2],[3,4]],5").values == Values{"[[1,2],[3,4]]", "5"});
  CHECK(axis_of(R"(x={"a":[1,{"b":2}]},null)").values == Values{R"({"a":[1,{"b":2}]})", "null"});
  CHECK(axis_of(R"(x="a,[b","c]")").values == Values{R"("a,[b")", R"("c]")"});
  CHECK(axis_of("x= 1 ,2").values == Values{" 1 ", "2"});
  CHECK(axis_of("x=]]],1").values == Values{"]]]", "1"});
}

TEST_CASE("an escaped quotation mark does not end a text") {
  CHECK(axis_of(R"(x="a\",b",c)").values == Values{R"("a\",b")", "c"});
  CHECK(axis_of(R"(x="a\\",b)").values == Values{R"("a\\")", "b"});
}

TEST_CASE("a value that is given twice is refused, also if it is written in two ways") {
  for (const char* text : {"x=1,2,1", "x=1,1.0", "lr=0.001,1e-3", R"(optimizer=sgd,"sgd")",
                           R"(x={"a":1},{"a": 1.0})", "steps=5, 5"}) {
    CAPTURE(text);
    CHECK(contains(message_of<UsageError>([&] { axis_of(text); }), "has a value twice"));
  }
  CHECK(axis_of(R"(x=1,"1",true,[1])").values.size() == 4);
}

TEST_CASE("options of run are JSON texts or bare words") {
  CHECK(axis_of(R"(optimizer="sgd", adamw)").values == Values{"sgd", "adamw"});
  CHECK(axis_of(R"(lr= 0.1 ,"1e-3")").values == Values{"0.1", "1e-3"});
  CHECK(axis_of(R"(x="sgd")").values == Values{R"("sgd")"});  // a field of the file
  const PolicyFile file;
  const Point cell = file.cells({axis_of(R"(optimizer,about="sgd")")}).at(0);
  CHECK(cell.options.at(0).second == "sgd");
  CHECK(parsed(cell)["about"] == "sgd");
}

// --- seeds

TEST_CASE("seeds: ranges and lists, in their order") {
  CHECK(seeds_of("7..9,0,3..3") == std::vector<uint64_t>{7, 8, 9, 0, 3});
  CHECK(seeds_of("18446744073709551615") == std::vector<uint64_t>{18446744073709551615u});
  CHECK(seeds_of("0..9999").size() == 10'000);
  CHECK(contains(message_of<UsageError>([] { seeds_of("0..10000"); }), "at most 10000 seeds"));
}

TEST_CASE("seeds: what is no list") {
  for (const char* text : {"0..2..4", "1,", ",1", "1..", "..1", "1...3", " 1", "+1", "0x10", "1e3",
                           "1.5", "1;2", "18446744073709551616", "5..4"}) {
    CAPTURE(text);
    CHECK(message_of<UsageError>([&] { seeds_of(text); }).starts_with("[--seeds] \""));
  }
  for (const char* text : {"1,1", "0..4,4", "0..2,1..3"}) {
    CAPTURE(text);
    CHECK(contains(message_of<UsageError>([&] { seeds_of(text); }), "has a seed twice"));
  }
}

// --- cells

TEST_CASE("without axes there is one cell, the policy itself under its file's name") {
  const PolicyFile file;
  const std::vector<Point> cells = file.cells({});
  REQUIRE(cells.size() == 1);
  CHECK(cells[0].name == "base");
  CHECK(cells[0].options.empty());
  CHECK(parsed(cells[0]) == json::parse(policy_text));
}

TEST_CASE("every combination occurs once, in the order of nested loops") {
  const PolicyFile file;
  const Values lr{"0.1", "0.2"}, history{"1", "2", "3"}, steps{"10", "20"};
  const std::vector<Point> cells =
      file.cells({{"lr", lr}, {"quantizers.q.scale.history", history}, {"steps", steps}});
  REQUIRE(cells.size() == 12);
  std::size_t at = 0;
  for (const std::string& rate : lr)
    for (const std::string& length : history)
      for (const std::string& count : steps) {
        const Point& cell = cells[at++];
        CHECK(cell.name == "base-lr=" + rate + "-history=" + length + "-steps=" + count);
        CHECK(cell.options ==
              std::vector<std::pair<std::string, std::string>>{{"--lr", rate}, {"--steps", count}});
        CHECK(parsed(cell)["quantizers"]["q"]["scale"]["history"] == std::stoi(length));
        CHECK(parsed(cell)["name"] == cell.name);
      }
}

TEST_CASE("options of run stay out of the policy, all other names are its fields") {
  const PolicyFile file;
  for (const char* option : {"lr", "steps", "optimizer", "schedule", "from", "workload"}) {
    CAPTURE(option);
    const Point cell = file.cells({{option, {"x"}}}).at(0);
    CHECK(cell.options.at(0) ==
          std::pair<std::string, std::string>{"--" + std::string(option), "x"});
    CHECK_FALSE(parsed(cell).contains(option));
  }
  for (const char* field : {"seed", "about", "threads", "lr.x"}) {
    CAPTURE(field);
    const Point cell = file.cells({{field, {"5"}}}).at(0);
    CHECK(cell.options.empty());
    CHECK(parsed(cell).contains(std::string(field).substr(0, std::string(field).find('.'))));
  }
}

TEST_CASE("values are JSON, and texts where they are none") {
  const PolicyFile file;
  const std::pair<const char*, json> cases[] = {{"12", 12},        {"-0.5", -0.5},
                                                {"1e3", 1000.0},   {"true", true},
                                                {"null", nullptr}, {"[1,2]", {1, 2}},
                                                {"\"12\"", "12"},  {"nearest", "nearest"},
                                                {"1x", "1x"},      {"01", "01"},
                                                {"NaN", "NaN"},    {"True", "True"},
                                                {"[1,", "[1,"},    {"{\"a\":1}", {{"a", 1}}},
                                                {"a b", "a b"}};
  for (const auto& [text, value] : cases) {
    CAPTURE(text);
    CHECK(parsed(file.cells({{"about", {text}}}).at(0))["about"] == value);
  }
}

TEST_CASE("fields are found by names, in lists by numbers, and made where there are none") {
  const PolicyFile file;
  const json base = json::parse(policy_text);
  const auto set = [&](const char* field) { return parsed(file.cells({{field, {"9"}}}).at(0)); };
  const std::pair<const char*, const char*> cases[] = {
      {"seed", "/seed"},
      {"quantizers.q.scale.history", "/quantizers/q/scale/history"},
      {"quantizers.q.new.inner", "/quantizers/q/new/inner"},
      {"rules.0.match.op", "/rules/0/match/op"},
      {"rules.1.weight", "/rules/1/weight"}};
  for (const auto& [field, pointer] : cases) {
    CAPTURE(field);
    json wanted = base;
    wanted[json::json_pointer(pointer)] = 9;
    json found = set(field);
    CHECK(found["name"] == std::string("base-") +
                               (std::string(field).substr(std::string(field).rfind('.') + 1)) +
                               "=9");
    found["name"] = "base";
    CHECK(found == wanted);
  }
}

TEST_CASE("numbers of lists are whole, and within the list") {
  const PolicyFile file;
  for (const char* field : {"rules.2.input", "rules.-1.input", "rules.0x.input", "rules..input",
                            "rules.0 .input", "rules.99999999999999999999999.input"}) {
    CAPTURE(field);
    CHECK(contains(message_of<FormatError>([&] {
                     file.cells({{field, {"q"}}});
                   }),
                   "the list there has 2 entries"));
  }
}

TEST_CASE("two axes whose last names agree have their whole names in cells") {
  const PolicyFile file;
  const std::vector<Point> cells = file.cells(
      {{"rules.0.input", {"q"}}, {"rules.1.input", {"q"}}, {"quantizers.q.scale.history", {"4"}}});
  CHECK(cells.at(0).name == "base-rules.0.input=q-rules.1.input=q-history=4");
}

TEST_CASE("names of cells are names of files: no two alike, no separators, not too long") {
  const PolicyFile file;
  const std::vector<Point> cells =
      file.cells({{"about",
                   {"a/b", "a:b", "a_b-1", "a b", "a_b-3", std::string(500, 'x'),
                    std::string(499, 'x') + "y"}}});
  REQUIRE(cells.size() == 7);
  const Values names = names_of(cells);
  CHECK(std::set(names.begin(), names.end()).size() == 7);
  for (const Point& cell : cells) {
    CAPTURE(cell.name);
    CHECK(cell.name.size() < 100);
    CHECK(std::ranges::all_of(cell.name, [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) ||
             std::string_view("._=-+").find(c) != std::string_view::npos;
    }));
    CHECK(parsed(cell)["name"] == cell.name);
  }
  CHECK(parsed(cells[0])["about"] == "a/b");
  CHECK(parsed(cells[1])["about"] == "a:b");
}

TEST_CASE("every cell of a policy is a policy that reads back with its value") {
  const PolicyFile file;
  for (const Point& cell :
       file.cells({axis_of("quantizers.q.scale.history=8,32"),
                   axis_of("rules.0.input=q,e5m2,mxfp8"), axis_of("seed=0,5")})) {
    CAPTURE(cell.name);
    const amp::Policy read = policy::read_text(cell.policy, "cell");
    const json all = parsed(cell);
    CHECK(read.name == cell.name);
    CHECK(read.seed == all["seed"]);
    const auto& quantizer = read.rules.rules.at(1).roles.at(policy::Role::weight).quantizer;
    CHECK(quantizer.scaling.history == all["quantizers"]["q"]["scale"]["history"]);
    const auto& input = read.rules.rules.at(0).roles.at(policy::Role::input).quantizer;
    CHECK((input == quantizer) == (all["rules"][0]["input"] == "q"));
  }
}

TEST_CASE("an unknown field is refused when its cell is read, with the nearest") {
  const PolicyFile file;
  const Point cell = file.cells({axis_of("quantizers.q.scale.histroy=8")}).at(0);
  CHECK(contains(message_of<Error>([&] { policy::read_text(cell.policy, "cell"); }),
                 "Did you mean \"history\""));
}

TEST_CASE("a policy that is damaged or missing is refused before its cells are made") {
  const TemporaryDirectory folder;
  const auto refused = [&](const std::string& policy) {
    return message_of<Error>([&] { points_of(policy, {{"seed", {"1"}}}); });
  };
  CHECK(contains(refused((folder / "none.json").string()), "none.json"));
  write_file(folder / "bad.json", "{\"halftone_policy\": 1");
  CHECK(contains(refused((folder / "bad.json").string()), "bad.json"));
  write_file(folder / "odd.json", R"({"halftone_policy": 1, "name": "x", "extends": "fp33"})");
  CHECK(contains(refused((folder / "odd.json").string()), "fp33"));
  CHECK(contains(refused("amp-bf61"), "amp-bf16"));
}

TEST_CASE("10,000 cells are made, and one more is refused before any is") {
  Axis seeds{"seed", {}}, rates{"lr", {}};
  for (int i = 0; i < 100; ++i)
    seeds.values.push_back(std::to_string(i)), rates.values.push_back("0." + std::to_string(i + 1));
  const std::vector<Point> cells = points_of("fp32", {seeds, rates});
  CHECK(cells.size() == 10'000);
  const Values names = names_of(cells);
  CHECK(std::set(names.begin(), names.end()).size() == 10'000);
  seeds.values.push_back("100");
  CHECK(contains(message_of<UsageError>([&] {
                   points_of("fp32", {seeds, rates});
                 }),
                 "more than 10000 cells"));
}

TEST_CASE("a sweep without an axis, a seed, a job or a folder is refused") {
  const TemporaryDirectory folder;
  const auto refused = [&](const auto& change) {
    lab::SweepOptions options{.policy = "fp32", .axes = {{"lr", {"1"}}}};
    options.setup.workload = "mlp_tiny", options.out = folder / "out";
    change(options);
    std::ostringstream progress;
    return message_of<UsageError>([&] { lab::run_sweep(options, {}, progress); });
  };
  using Options = lab::SweepOptions;
  CHECK(contains(refused([](Options& o) { o.axes.clear(); }), "[sweep] 0 axes, 1 seeds, 1 jobs"));
  CHECK(contains(refused([](Options& o) { o.seeds.clear(); }), "1 axes, 0 seeds"));
  CHECK(contains(refused([](Options& o) { o.jobs = 0; }), "0 jobs"));
  CHECK(contains(refused([](Options& o) { o.out.clear(); }), "folder \"\""));
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
}

TEST_CASE(
    "a folder of other options, and one of another policy, are refused and left as they are") {
  const TemporaryDirectory folder;
  lab::SweepOptions options{.policy = "fp32", .axes = {{"lr", {"1"}}}};
  options.setup.workload = "mlp_tiny", options.out = folder.path();
  std::ostringstream progress;
  write_file(folder / "sweep.json", "{\"workload\":\"another\"}");
  CHECK(contains(message_of<UsageError>([&] { lab::run_sweep(options, {}, progress); }),
                 "was begun with {\"workload\":\"another\"} and not {\"workload\":\"mlp_tiny\","));
  CHECK(read_file(folder / "sweep.json") == "{\"workload\":\"another\"}");
  std::filesystem::remove(folder / "sweep.json");

  const std::string run = "mlp_tiny-fp32-lr=1-0";
  std::filesystem::create_directories(folder / run);
  write_file(folder / run / "summary.json", R"({"loss":0.5,"milliseconds_per_step":2})");
  write_file(folder / "policies/fp32-lr=1.json", "another");
  CHECK(contains(message_of<UsageError>([&] { lab::run_sweep(options, {}, progress); }),
                 "was run under another policy of this name"));
  CHECK(read_file(folder / "policies/fp32-lr=1.json") == "another");
}

TEST_CASE("a finished sweep starts nothing and prints its runs") {
  const TemporaryDirectory folder;
  lab::SweepOptions options{.policy = "fp32", .axes = {{"lr", {"1", "2"}}}};
  options.setup.workload = "mlp_tiny", options.out = folder.path();
  options.seeds = {3, 5};
  for (const Point& cell : points_of(options.policy, options.axes))
    for (const uint64_t seed : options.seeds) {
      const std::string run = "mlp_tiny-" + cell.name + "-" + std::to_string(seed);
      std::filesystem::create_directories(folder / run);
      write_file(folder / run / "summary.json", R"({"loss":0.5,"milliseconds_per_step":2})");
    }
  std::ostringstream progress;
  {
    const Captured table(std::cout);
    CHECK(lab::run_sweep(options, {}, progress) == 0);
    CHECK(contains(table.text(), "fp32-lr=1 "));
    CHECK(contains(table.text(), "fp32-lr=2 "));
  }
  CHECK(progress.str() == "4 of 4 runs are already done\n");
  CHECK(read_file(folder / "policies/fp32-lr=2.json") ==
        points_of(options.policy, options.axes).at(1).policy);
  const lab::SweepCell cell = lab::RunFolder("test", folder / "mlp_tiny-fp32-lr=2-5").cell();
  CHECK(cell.policy == "fp32");
  CHECK(cell.values == std::map<std::string, std::string>{{"lr", "2"}});
  write_file(folder / "mlp_tiny-fp32-lr=1-3/summary.json",
             R"({"loss":"much","milliseconds_per_step":1})");
  CHECK(contains(message_of<FormatError>([&] { lab::run_sweep(options, {}, progress); }),
                 "/loss: expected a number, got a text."));
}

}  // namespace
}  // namespace halftone::test::sweep_cells_test

// A sweep refuses these before its first training: options that no run takes, axes without an
// effect, an option that is also an axis, and a damaged record.

namespace halftone::test::sweep_checks_test {
namespace {

using lab::axis_of;
using Words = std::vector<std::string>;

constexpr const char* policy_text = R"({"halftone_policy": 1, "name": "base", "extends": "fp32",
  "quantizers": {"q": {"format": "e4m3"}, "unused": {"format": "e4m3"}},
  "rules": [{"match": {"op": "linear"}, "input": "q"}]})";

lab::NamedWorkload mine() {
  return {"mine", "", [](uint64_t) { return linear_workload({4, 2}); }, {}};
}

/// A sweep over `axes` in its own folder, with a policy of one used and one unused quantizer.
struct Sweep {
  TemporaryDirectory folder{};
  lab::SweepOptions options{};
  explicit Sweep(const Words& axes) {
    write_file(folder / "base.json", policy_text);
    options.policy = (folder / "base.json").string();
    for (const std::string& axis : axes) options.axes.push_back(axis_of(axis));
    options.setup.workload = "mine", options.out = folder / "out";
  }
  std::string refusal() const {
    std::ostringstream progress;
    return message_of<Error>([&] { lab::run_sweep(options, {mine()}, progress); });
  }
};

TEST_CASE("options of cells are checked before the first training") {
  const std::pair<const char*, const char*> cases[] = {
      {"lr=0.1,x", "[sweep] --lr: expected a finite number above 0, got x."},
      {"lr=0.1,-1", "[sweep] --lr: expected a finite number above 0, got -1."},
      {"steps=5,5.5", "[sweep] --steps: expected a whole number from 1 to 1099511627776, got 5.5."},
      {"optimizer=adamw,adamww", "no optimizer named \"adamww\". Did you mean \"adamw\"?"},
      {"schedule=cosine,cosin", "no schedule named \"cosin\". Did you mean \"cosine\"?"},
      {"workload=mine,mlp_tinny", "no workload named \"mlp_tinny\". Did you mean \"mlp_tiny\"?"},
      {"from=/no/such/place", "there is no /no/such/place to begin with"}};
  for (const auto& [axis, message] : cases) {
    CAPTURE(axis);
    const Sweep sweep({axis});
    CHECK(contains(sweep.refusal(), message));
    CHECK_FALSE(std::filesystem::exists(sweep.folder / "out"));
  }
  Sweep sweep({"seed=1,2"});
  sweep.options.setup.choices.optimizer = "adamww";
  CHECK(contains(sweep.refusal(), "no optimizer named \"adamww\""));
  sweep.options.setup.choices.optimizer = "", sweep.options.setup.workload = "nope";
  CHECK(contains(sweep.refusal(), "no workload named \"nope\""));
}

TEST_CASE("an axis of which two values train the same is refused") {
  for (const char* axis : {R"(quantizers.nosuch.format="e4m3","e5m2")",
                           R"(quantizers.unused.format="e4m3","e5m2")", "about=a,b"}) {
    CAPTURE(axis);
    CHECK(contains(Sweep({axis}).refusal(), " has no effect: "));
    CHECK(contains(Sweep({"lr=0.1,0.2", axis}).refusal(), " has no effect: "));
  }
  CHECK(Sweep({R"(quantizers.nosuch.format="e4m3","e5m2")"}).refusal() ==
        "[sweep] the axis \"quantizers.nosuch.format\" has no effect: the values \"e4m3\" and "
        "\"e5m2\" give the same policy. Name a field that the policy uses.");
}

TEST_CASE("an axis that has an effect with one value of another axis is accepted") {
  const Sweep sweep({R"(quantizers.unused.format="e4m3","e5m2")", "rules.0.input=q,unused"});
  const auto points = lab::points_of(sweep.options.policy, sweep.options.axes);
  const auto cells = lab::cells_of(points, sweep.options.setup, {mine()});
  CHECK_NOTHROW(lab::require_effects(sweep.options.axes, points, cells));
}

TEST_CASE("an option that is also an axis is a mistake") {
  const TemporaryDirectory folder;
  const std::string out = (folder / "out").string();
  const std::pair<const char*, Words> cases[] = {{"lr=0.1,0.2", {"--lr", "0.5"}},
                                                 {"steps=5,10", {"--steps", "20"}},
                                                 {"workload=mine", {"--workload", "mine"}},
                                                 {"lr,seed=1,2", {"--lr", "0.5"}}};
  for (const auto& [axis, option] : cases) {
    CAPTURE(axis);
    const Said said =
        said_by({"sweep", "fp32", "--axis", axis, option[0], option[1], "--out", out}, mine());
    CHECK(said.code == 2);
    CHECK(said.errors == "[sweep] " + option[0] + " and the axis \"" + axis +
                             "\" set the same option. Leave one of them out.\n");
    CHECK_FALSE(std::filesystem::exists(out));
  }
}

TEST_CASE("a sweep names the workloads of its cells and no other") {
  const TemporaryDirectory folder;
  for (const char* name : {"mlp_tiny", "mine"}) {  // finished runs: nothing is trained
    const auto run = folder / (std::string(name) + "-fp32-workload=" + name + "-0");
    std::filesystem::create_directories(run);
    write_file(run / "summary.json", R"({"loss":0.5,"milliseconds_per_step":2})");
  }
  const auto headers = [&](const std::string& axis) {
    const Said said =
        said_by({"sweep", "fp32", "--axis", axis, "--out", folder.path().string()}, mine());
    CHECK(said.code == 0);
    return said.output;
  };
  const std::string both = headers("workload=mlp_tiny,mine"), one = headers("workload=mlp_tiny");
  CHECK(contains(both, "workload mlp_tiny: "));
  CHECK(contains(both, "workload mine: "));
  CHECK(contains(one, "workload mlp_tiny: "));
  CHECK_FALSE(contains(one, "workload mine: "));
}

TEST_CASE("a damaged record of the options is called damaged") {
  for (const char* text : {"{\n", "", "[1]", "null"}) {
    CAPTURE(text);
    const Sweep sweep({"lr=0.1"});
    std::filesystem::create_directory(sweep.folder / "out");
    write_file(sweep.folder / "out" / "sweep.json", text);
    const std::string message = sweep.refusal();
    CHECK(contains(message, "out/sweep.json is damaged: it is not a JSON object."));
    CHECK_FALSE(contains(message, "was begun with"));
    CHECK(read_file(sweep.folder / "out" / "sweep.json") == text);
  }
  const TemporaryDirectory folder;
  write_file(folder / "gate.json", "{\n");
  lab::GateOptions options{.policy = "fp32"};
  options.setup.workload = "mine", options.out = folder.path();
  std::ostringstream progress;
  const Captured output(std::cout);
  CHECK(contains(message_of<FormatError>([&] { lab::run_gate(options, {mine()}, progress); }),
                 "gate.json is damaged: it is not a JSON object."));
}

}  // namespace
}  // namespace halftone::test::sweep_checks_test

// The baseline of a sweep, tied fields, workloads as an axis, and effects of axes on losses that
// are computed from them.

namespace halftone::test::sweep_effects_test {
namespace {

using lab::Axis;
using lab::axis_of;
using lab::baseline_of;
using lab::Point;
using lab::points_of;

/// A run for each cell and seed with the loss 2 (1 + 0.1 v) (1 + 0.2 w) (1 + 0.05 v w) (1 + seed),
/// where v and w are the places on the axes.
std::vector<lab::RunResult> runs_of(const std::vector<Point>& cells, double interaction) {
  std::vector<lab::RunResult> runs;
  for (const Point& cell : cells)
    for (const uint64_t seed : {0, 1}) {
      const auto v = double(cell.places[0]), w = double(cell.places[1]);
      lab::RunResult run{.policy = cell.name, .seed = seed};
      run.loss = 2 * (1 + 0.1 * v) * (1 + 0.2 * w) * (1 + interaction * v * w) * double(1 + seed);
      runs.push_back(run);
    }
  return runs;
}

TEST_CASE("tied fields have one value, and share a short name if they end alike") {
  const std::vector<Axis> axes{axis_of("quantizers.w.format,quantizers.x.format=int3,int4"),
                               axis_of("seed,weights.fused=1,2")};
  CHECK(lab::short_names(axes) == std::vector<std::string>{"format", "seed+fused"});
  // An entry of a list keeps the list's name.
  CHECK(lab::short_names({axis_of("quantizers.x.scale.block.1=16"), axis_of("rules.0=1")}) ==
        std::vector<std::string>{"block.1", "rules.0"});
  const std::vector<Point> cells = points_of("fp32", axes);
  REQUIRE(cells.size() == 4);
  CHECK(cells[2].name == "fp32-format=int4-seed+fused=1");
  const auto json = nlohmann::json::parse(cells[2].policy);
  CHECK(json["quantizers"]["w"]["format"] == "int4");
  CHECK(json["quantizers"]["x"]["format"] == "int4");
  CHECK(cells[2].places == std::vector<std::size_t>{1, 0});
  CHECK(message_of<UsageError>([] {
          points_of("fp32", {axis_of("lr,steps=1,2"), axis_of("lr=1")});
        }) == "[sweep] two axes have the field \"lr\". Give each field once.");
}

TEST_CASE("a workload can be an axis") {
  const lab::Setup usual{.workload = "gpt_tiny", .choices = {.lr = 3}};
  const auto cells =
      lab::cells_of(points_of("fp32", {axis_of("workload=waves_100k,waves_1m")}), usual, {});
  CHECK(cells[1].name == "fp32-workload=waves_1m");
  CHECK(cells[1].setup.workload == "waves_1m");
  CHECK(cells[1].setup.choices.lr == 3);
  const auto rates = lab::cells_of(points_of("fp32", {axis_of("lr=1,2e-3")}), usual, {});
  CHECK(rates[1].setup.workload == "gpt_tiny");
  CHECK(rates[1].setup.choices.lr == 2e-3);
}

TEST_CASE("the baseline is a cell by the values of its axes") {
  const std::vector<Axis> axes{axis_of("lr=1,2"), axis_of("steps=1,10")};
  const std::vector<Point> cells = points_of("fp32", axes);
  CHECK(baseline_of("", axes, cells).name == "fp32-lr=1-steps=1");
  CHECK(baseline_of("lr=2", axes, cells).name == "fp32-lr=2-steps=1");
  CHECK(baseline_of("steps=10,lr=2", axes, cells).name == "fp32-lr=2-steps=10");
  for (const char* wrong : {"lr=3", "lr", "steps=100", "lr=1,", "lr=1,lr=2"})
    CHECK(message_of<UsageError>([&] { baseline_of(wrong, axes, cells); }) ==
          "[--against] \"" + std::string(wrong) +
              "\" is not a cell. Give values of axes, such as \"lr=1,steps=1\".");
}

TEST_CASE("effects are means over the other axes, and interactions what they do not add up to") {
  const std::vector<Axis> axes{axis_of("lr=1,2,3"), axis_of("steps=5,6")};
  const std::vector<Point> cells = points_of("fp32", axes);
  // Without an interaction every cell has the same relative effect.
  const std::string alone = lab::effects_of(axes, cells, cells.front(), runs_of(cells, 0));
  CHECK(alone ==
        "\nmean over the other axes, against the value of fp32-lr=1-steps=5\n"
        "  value    effect on the loss, 95 %\n"
        "  lr=2              10.0 % +- 0.0 %\n"
        "  lr=3              20.0 % +- 0.0 %\n"
        "  steps=6           20.0 % +- 0.0 %\n"
        "\n"
        "  both           beyond the sum of the effects, 95 %\n"
        "  lr=2, steps=6                       0.0 % +- 0.0 %\n"
        "  lr=3, steps=6                       0.0 % +- 0.0 %\n");
  // With one: lr=2 costs 10 % at steps=5 and 1.1 * 1.05 - 1 = 15.5 % at steps=6.
  const std::string both = lab::effects_of(axes, cells, cells.front(), runs_of(cells, 0.05));
  CHECK(both.find("lr=2              12.8 % +- 0.0 %") != both.npos);
  CHECK(both.find("lr=2, steps=6                       5.5 % +- 0.0 %") != both.npos);
  CHECK(both.find("lr=3, steps=6                      12.0 % +- 0.0 %") != both.npos);
  CHECK(lab::effects_of({axes[0]}, points_of("fp32", {axes[0]}), cells.front(), {}).empty());
}

}  // namespace
}  // namespace halftone::test::sweep_effects_test
