// Axes, seeds, and the policy files that they make.
#include <doctest/doctest.h>

#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/lab/identity.h>
#include <halftone/lab/sweep.h>
#include <halftone/policy/policy.h>

#include "policies_directory.h"
#include "support.h"

namespace halftone::test::sweep_test {
namespace {

using lab::axis_of;
using lab::Cell;
using lab::cells_of;
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
  const std::vector<Cell> cells =
      cells_of((policies_directory() / "te_delayed_hybrid.json").string(),
               {axis_of("quantizers.forward.scale.history=16,64"), axis_of("lr=0.1,0.2"),
                axis_of("rules.0.match.path=**,\"0\"")});
  REQUIRE(cells.size() == 8);
  CHECK(cells[0].name == "te_delayed_hybrid-history=16-lr=0.1-path=__");
  CHECK(cells[3].name == "te_delayed_hybrid-history=16-lr=0.2-path=_0_");
  CHECK(nlohmann::json::parse(cells[3].record) ==
        nlohmann::json{{"policy", "te_delayed_hybrid"},
                       {"axes", {{"history", "16"}, {"lr", "0.2"}, {"path", "\"0\""}}}});
  CHECK(cells[3].options == std::vector<std::pair<std::string, std::string>>{{"--lr", "0.2"}});
  const policy::PolicyFile file = policy::read_text(cells[7].policy, "cell");
  CHECK(file.base.name == cells[7].name);
  CHECK(file.rules.rules.at(0).match.path == "0");
  CHECK(file.rules.rules.at(0).roles.at(policy::Role::input).quantizer.scaling.history == 64);
}

TEST_CASE("a strategy's name is a file that extends it; fields may be new there") {
  const std::vector<Cell> cells =
      cells_of("amp-bf16", {axis_of("optimizer.parameters=bf16,e8m15")});
  const policy::PolicyFile file = policy::read_text(cells.at(1).policy, "cell");
  CHECK(file.base.autocast == bf16);
  CHECK(file.rules.parameters->grid.significand_bits == 16);
}

TEST_CASE("files next to a policy are found from the cells' folder") {
  const TemporaryDirectory folder;
  write_file(folder / "base.json",
             R"({"halftone_policy": 1, "name": "base", "extends": "amp-bf16"})");
  write_file(folder / "top.json",
             R"({"halftone_policy": 1, "name": "top", "extends": "base.json"})");
  const std::vector<Cell> cells = cells_of((folder / "top.json").string(), {axis_of("seed=1,2")});
  const TemporaryDirectory other;
  write_file(other / "cell.json", cells.at(1).policy);
  const policy::PolicyFile file = policy::read(other / "cell.json");
  CHECK(file.base.autocast == bf16);
  CHECK(file.base.seed == 2);
}

TEST_CASE("a field that leads nowhere, and too many cells") {
  const auto refusal = [](const std::string& axis) {
    return message_of<FormatError>(
        [&] { cells_of((policies_directory() / "mxfp8.json").string(), {axis_of(axis)}); });
  };
  CHECK(contains(refusal("rules.7.input=e4m3"), "the list there has 1 entries, got \"7\""));
  CHECK(contains(refusal("rules.x.input=e4m3"), "the list there has 1 entries, got \"x\""));
  CHECK(contains(refusal("name.x=1"), "the entry before \"x\" is not an object"));
  std::string many = "seed=0";
  for (int i = 1; i < 200; ++i) many += "," + std::to_string(i);
  CHECK(contains(message_of<UsageError>([&] {
                   cells_of("fp32", {axis_of(many), axis_of("lr" + many.substr(4))});
                 }),
                 "more than 10000 cells"));
  CHECK(contains(message_of<UsageError>([&] {
                   cells_of("fp32", {axis_of("lr=1"), axis_of("lr=2")});
                 }),
                 "two axes have the field \"lr\""));
  CHECK(contains(message_of<UsageError>([&] { cells_of("fp23", {axis_of("lr=1")}); }), "fp23"));
}

TEST_CASE("what no file can hold has the form of an error") {
  const auto refusal = [](const std::string& axis) {
    return message_of<FormatError>([&] { cells_of("fp32", {axis_of(axis)}); });
  };
  CHECK(contains(refusal("about=\xff"), "[sweep] the fields of the cell "));
  CHECK(contains(refusal("about=" + std::string(100'000, '[') + std::string(100'000, ']')),
                 "more than 64 levels of braces and brackets"));
  std::string deep = "a";
  for (int i = 0; i < 50'000; ++i) deep += ".a";
  CHECK(contains(refusal(deep + "=1"), "is 50001 levels deep. A policy has at most 64."));

  const TemporaryDirectory folder;
  lab::SweepOptions options{.policy = "fp32", .axes = {axis_of("lr=1")}};
  options.run.workload = "mlp_tiny", options.run.out = folder / "file" / "out";
  write_file(folder / "file", "");
  std::ostringstream progress;
  CHECK(contains(message_of<Error>([&] { lab::run_sweep(options, {}, progress); }),
                 "[sweep] cannot make the directory " + (folder / "file/out/policies").string()));
  CHECK(contains(message_of<Error>([&] {
                   lab::require_same_settings("sweep", folder / "x.json", {{"workload", "\xff"}});
                 }),
                 "[sweep] the workload or another option is not UTF-8."));
  options.run.out = folder / "out";
  std::filesystem::create_directory(folder / "out");
  std::filesystem::create_symlink("sweep.json", folder / "out/sweep.json");  // to itself
  CHECK(contains(message_of<Error>([&] { lab::run_sweep(options, {}, progress); }),
                 "[sweep] cannot read " + (folder / "out/sweep.json").string()));
}

}  // namespace
}  // namespace halftone::test::sweep_test
