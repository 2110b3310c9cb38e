// From axes to cells: values as JSON, nested fields, products of axes, names of files, ranges of
// seeds, and refusals.
#include <algorithm>
#include <set>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/lab/run_folder.h>
#include <halftone/lab/sweep.h>
#include <halftone/policy/policy.h>

#include "lab/captured.h"
#include "support.h"

namespace halftone::test::sweep_cells_test {
namespace {

using lab::Axis;
using lab::axis_of;
using lab::Cell;
using lab::cells_of;
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
  std::vector<Cell> cells(const std::vector<Axis>& axes) const {
    return cells_of(path.string(), axes);
  }
};

json parsed(const Cell& cell) { return json::parse(cell.policy); }

std::vector<std::string> names_of(const std::vector<Cell>& cells) {
  std::vector<std::string> names;
  for (const Cell& cell : cells) names.push_back(cell.name);
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
  const Cell cell = file.cells({axis_of(R"(optimizer,about="sgd")")}).at(0);
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
  const std::vector<Cell> cells = file.cells({});
  REQUIRE(cells.size() == 1);
  CHECK(cells[0].name == "base");
  CHECK(cells[0].options.empty());
  CHECK(parsed(cells[0]) == json::parse(policy_text));
}

TEST_CASE("every combination occurs once, in the order of nested loops") {
  const PolicyFile file;
  const Values lr{"0.1", "0.2"}, history{"1", "2", "3"}, steps{"10", "20"};
  const std::vector<Cell> cells =
      file.cells({{"lr", lr}, {"quantizers.q.scale.history", history}, {"steps", steps}});
  REQUIRE(cells.size() == 12);
  std::size_t at = 0;
  for (const std::string& rate : lr)
    for (const std::string& length : history)
      for (const std::string& count : steps) {
        const Cell& cell = cells[at++];
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
    const Cell cell = file.cells({{option, {"x"}}}).at(0);
    CHECK(cell.options.at(0) ==
          std::pair<std::string, std::string>{"--" + std::string(option), "x"});
    CHECK_FALSE(parsed(cell).contains(option));
  }
  for (const char* field : {"seed", "about", "threads", "lr.x"}) {
    CAPTURE(field);
    const Cell cell = file.cells({{field, {"5"}}}).at(0);
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
  const std::vector<Cell> cells = file.cells(
      {{"rules.0.input", {"q"}}, {"rules.1.input", {"q"}}, {"quantizers.q.scale.history", {"4"}}});
  CHECK(cells.at(0).name == "base-rules.0.input=q-rules.1.input=q-history=4");
}

TEST_CASE("names of cells are names of files: no two alike, no separators, not too long") {
  const PolicyFile file;
  const std::vector<Cell> cells =
      file.cells({{"about",
                   {"a/b", "a:b", "a_b-1", "a b", "a_b-3", std::string(500, 'x'),
                    std::string(499, 'x') + "y"}}});
  REQUIRE(cells.size() == 7);
  const Values names = names_of(cells);
  CHECK(std::set(names.begin(), names.end()).size() == 7);
  for (const Cell& cell : cells) {
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
  for (const Cell& cell :
       file.cells({axis_of("quantizers.q.scale.history=8,32"),
                   axis_of("rules.0.input=q,e5m2,mxfp8"), axis_of("seed=0,5")})) {
    CAPTURE(cell.name);
    const policy::PolicyFile read = policy::read_text(cell.policy, "cell");
    const json all = parsed(cell);
    CHECK(read.base.name == cell.name);
    CHECK(read.base.seed == all["seed"]);
    const auto& quantizer = read.rules.rules.at(1).roles.at(policy::Role::weight).quantizer;
    CHECK(quantizer.scaling.history == all["quantizers"]["q"]["scale"]["history"]);
    const auto& input = read.rules.rules.at(0).roles.at(policy::Role::input).quantizer;
    CHECK((input == quantizer) == (all["rules"][0]["input"] == "q"));
  }
}

TEST_CASE("an unknown field is refused when its cell is read, with the nearest") {
  const PolicyFile file;
  const Cell cell = file.cells({axis_of("quantizers.q.scale.histroy=8")}).at(0);
  CHECK(contains(message_of<Error>([&] { policy::read_text(cell.policy, "cell"); }),
                 "Did you mean \"history\""));
}

TEST_CASE("a policy that is damaged or missing is refused before its cells are made") {
  const TemporaryDirectory folder;
  const auto refused = [&](const std::string& policy) {
    return message_of<Error>([&] { cells_of(policy, {{"seed", {"1"}}}); });
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
  const std::vector<Cell> cells = cells_of("fp32", {seeds, rates});
  CHECK(cells.size() == 10'000);
  const Values names = names_of(cells);
  CHECK(std::set(names.begin(), names.end()).size() == 10'000);
  seeds.values.push_back("100");
  CHECK(contains(message_of<UsageError>([&] {
                   cells_of("fp32", {seeds, rates});
                 }),
                 "more than 10000 cells"));
}

TEST_CASE("a sweep without an axis, a seed, a job or a folder is refused") {
  const TemporaryDirectory folder;
  const auto refused = [&](const auto& change) {
    lab::SweepOptions options{.policy = "fp32", .axes = {{"lr", {"1"}}}};
    options.run.workload = "mlp_tiny", options.run.out = folder / "out";
    change(options);
    std::ostringstream progress;
    return message_of<UsageError>([&] { lab::run_sweep(options, {}, progress); });
  };
  using Options = lab::SweepOptions;
  CHECK(contains(refused([](Options& o) { o.axes.clear(); }), "[sweep] 0 axes, 1 seeds, 1 jobs"));
  CHECK(contains(refused([](Options& o) { o.run.seeds.clear(); }), "1 axes, 0 seeds"));
  CHECK(contains(refused([](Options& o) { o.jobs = 0; }), "0 jobs"));
  CHECK(contains(refused([](Options& o) { o.run.out.clear(); }), "folder \"\""));
  CHECK_FALSE(std::filesystem::exists(folder / "out"));
}

TEST_CASE(
    "a folder of other options, and one of another policy, are refused and left as they are") {
  const TemporaryDirectory folder;
  lab::SweepOptions options{.policy = "fp32", .axes = {{"lr", {"1"}}}};
  options.run.workload = "mlp_tiny", options.run.out = folder.path();
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
  options.run.workload = "mlp_tiny", options.run.out = folder.path();
  options.run.seeds = {3, 5};
  for (const Cell& cell : cells_of(options.policy, options.axes))
    for (const uint64_t seed : options.run.seeds) {
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
        cells_of(options.policy, options.axes).at(1).policy);
  const lab::SweepCell cell = lab::RunFolder("test", folder / "mlp_tiny-fp32-lr=2-5").cell();
  CHECK(cell.policy == "fp32");
  CHECK(cell.values == std::map<std::string, std::string>{{"lr", "2"}});
  write_file(folder / "mlp_tiny-fp32-lr=1-3/summary.json", R"({"loss":"much"})");
  CHECK(contains(message_of<FormatError>([&] { lab::run_sweep(options, {}, progress); }),
                 "has no number \"loss\""));
}

}  // namespace
}  // namespace halftone::test::sweep_cells_test
