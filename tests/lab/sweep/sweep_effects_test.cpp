// The baseline of a sweep, tied fields, workloads as an axis, and effects of axes on losses that
// are computed from them.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include <halftone/lab/sweep.h>

#include "support.h"

namespace halftone::test::sweep_effects_test {
namespace {

using lab::Axis;
using lab::axis_of;
using lab::baseline_of;
using lab::Cell;
using lab::cells_of;

/// A run for each cell and seed with the loss 2 (1 + 0.1 v) (1 + 0.2 w) (1 + 0.05 v w) (1 + seed),
/// where v and w are the places on the axes.
std::vector<lab::RunResult> runs_of(const std::vector<Cell>& cells, double interaction) {
  std::vector<lab::RunResult> runs;
  for (const Cell& cell : cells)
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
  const std::vector<Cell> cells = cells_of("fp32", axes);
  REQUIRE(cells.size() == 4);
  CHECK(cells[2].name == "fp32-format=int4-seed+fused=1");
  const auto json = nlohmann::json::parse(cells[2].policy);
  CHECK(json["quantizers"]["w"]["format"] == "int4");
  CHECK(json["quantizers"]["x"]["format"] == "int4");
  CHECK(cells[2].places == std::vector<std::size_t>{1, 0});
  CHECK(message_of<UsageError>([] {
          cells_of("fp32", {axis_of("lr,steps=1,2"), axis_of("lr=1")});
        }) == "[sweep] two axes have the field \"lr\". Give each field once.");
}

TEST_CASE("a workload can be an axis") {
  const std::vector<Cell> cells = cells_of("fp32", {axis_of("workload=waves_100k,waves_1m")});
  CHECK(cells[1].name == "fp32-workload=waves_1m");
  CHECK(cells[1].workload("gpt_tiny") == "waves_1m");
  CHECK(cells_of("fp32", {axis_of("lr=1,2")})[1].workload("gpt_tiny") == "gpt_tiny");
}

TEST_CASE("the baseline is a cell by the values of its axes") {
  const std::vector<Axis> axes{axis_of("lr=1,2"), axis_of("steps=1,10")};
  const std::vector<Cell> cells = cells_of("fp32", axes);
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
  const std::vector<Cell> cells = cells_of("fp32", axes);
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
  CHECK(lab::effects_of({axes[0]}, cells_of("fp32", {axes[0]}), cells.front(), {}).empty());
}

}  // namespace
}  // namespace halftone::test::sweep_effects_test
