// A sweep refuses these before its first training: options that no run takes, axes without an
// effect, an option that is also an axis, and a damaged record.
#include <doctest/doctest.h>

#include <sstream>

#include <halftone/lab/commands/commands.h>
#include <halftone/lab/sweep.h>

#include "lab/runs.h"
#include "lab/said.h"
#include "support.h"

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
    options.run.workload = "mine", options.run.out = folder / "out";
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
  sweep.options.run.choices.optimizer = "adamww";
  CHECK(contains(sweep.refusal(), "no optimizer named \"adamww\""));
  sweep.options.run.choices.optimizer = "", sweep.options.run.workload = "nope";
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
  const auto cells = lab::cells_of(sweep.options.policy, sweep.options.axes);
  std::vector<policy::PolicyFile> policies;
  for (const lab::Cell& cell : cells) policies.push_back(policy::read_text(cell.policy, "cell"));
  CHECK_NOTHROW(lab::require_effects(sweep.options.axes, cells, policies));
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
  options.run.workload = "mine", options.run.out = folder.path();
  std::ostringstream progress;
  const Captured output(std::cout);
  CHECK(contains(message_of<FormatError>([&] { lab::run_gate(options, {mine()}, progress); }),
                 "gate.json is damaged: it is not a JSON object."));
}

}  // namespace
}  // namespace halftone::test::sweep_checks_test
