// halftone-lab show for programs: JSON of every workload, and of two policies.
#include <doctest/doctest.h>

#include <iostream>
#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/lab/commands/commands.h>
#include <halftone/lab/identity.h>

#include "lab/captured.h"
#include "policies_directory.h"
#include "support.h"

namespace halftone::test::show_test {
namespace {

using nlohmann::json;

struct Said {
  std::string output, notes;
};

Said said_by(const lab::ShowOptions& options) {
  const Captured output(std::cout), notes(std::cerr);
  CHECK(lab::run_show(options, {}) == 0);
  return {output.text(), notes.text()};
}

std::string shipped_policy(const std::string& name) {
  return (policies_directory() / (name + ".json")).string();
}

TEST_CASE("show --json parses on every workload") {
  for (const lab::NamedWorkload& workload : lab::built_in_workloads()) {
    CAPTURE(workload.name);
    const Said said = said_by({.policy = "amp-bf16", .workload = workload.name, .json = "-"});
    const json all = json::parse(said.output);
    CHECK_FALSE(all.at("sites").empty());
    CHECK(all.at("hash").get<std::string>().size() == 16);
    CHECK(all.at("parameters") == "none");
    for (const json& site : all.at("sites")) {
      CHECK_FALSE(site.at("site").get<std::string>().empty());
      CHECK(site.at("treatment").at(0).at("does").empty());
    }
    CHECK(said.notes.empty());
    // The models of these are not in nn/models.
    const bool own = workload.name == "resnet8" || workload.name == "lstm_text";
    CHECK(workload.model.empty() == own);
  }
}

TEST_CASE("show --diff --json is what differs") {
  const Said said = said_by({.policy = shipped_policy("te_current"),
                             .workload = "mlp_tiny",
                             .other = shipped_policy("te_delayed_hybrid"),
                             .json = "-"});
  const json all = json::parse(said.output);
  REQUIRE(all.at("sites").size() == 2);
  const auto from = [&](const char* when) {
    return all["sites"]["0/linear.0"][when]["treatment"][0]["does"]["input"]["scale"]["from"];
  };
  CHECK(from("before") == "current");
  CHECK(from("after") == "history");
  CHECK_FALSE(all.contains("strategy"));
  const json same = json::parse(said_by({.policy = "amp-bf16",
                                         .workload = "mlp_tiny",
                                         .other = shipped_policy("amp-bf16"),
                                         .json = "-"})
                                    .output);
  CHECK(same == json{{"sites", json::object()}});
  const json forms = json::parse(
      said_by(
          {.policy = "full-bf16", .workload = "mlp_tiny", .other = "full-bf16-kahan", .json = "-"})
          .output);
  CHECK(contains(forms.at("strategy").at("after").get<std::string>(), "(kahan)"));
  CHECK(contains(
      said_by({.policy = "full-bf16", .workload = "mlp_tiny", .other = "full-bf16-kahan"}).output,
      "+ strategy         weights bf16 (kahan)"));
}

TEST_CASE("a policy for other models is told so") {
  const Said said =
      said_by({.policy = shipped_policy("qpytorch_low8"), .workload = "gpt_tiny", .json = "-"});
  CHECK(said.notes ==
        "note: qpytorch-low8 is for lenet and mlp, and gpt_tiny trains gpt. Its rules may mean "
        "other layers.\n");
  CHECK(json::parse(said.output).contains("sites"));
  CHECK(said_by({.policy = shipped_policy("qpytorch_low8"), .workload = "student_teacher"})
            .notes.empty());

  std::ostringstream out;
  const std::vector<lab::NamedWorkload> own{{"mine", "", {}, {}}};
  lab::note_other_model(out, policy::read(shipped_policy("nvfp4")), "mine", own);
  CHECK(out.str() ==
        "note: nvfp4 is for gpt, and mine trains a model of its own. Its rules may "
        "mean other layers.\n");
}

}  // namespace
}  // namespace halftone::test::show_test
