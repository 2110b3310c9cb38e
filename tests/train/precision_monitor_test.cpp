// Telemetry of a Trainer's run: the same bits with it, a file of JSON lines, numbers in the log;
// and the Trainer's note on a skipped step.
#include <doctest/doctest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>

#include <nlohmann/json.hpp>

#include <halftone/train/callbacks.h>

#include "train/trainer_cases.h"

namespace halftone::test::precision_monitor_test {
namespace {

TEST_CASE(
    "a monitored training has the bits of an unmonitored one, file and log have its numbers") {
  const TemporaryDirectory directory;
  TrainerRun plain({.precision = "bf16-mixed", .max_steps = 12, .log_every_steps = 3});
  plain.trainer.fit(trainer_loader());
  TrainerRun watched(
      {.precision = "bf16-mixed",
       .max_steps = 12,
       .directory = directory.path(),
       .json_lines = true,
       .log_every_steps = 3,
       .callbacks = {std::make_shared<train::PrecisionMonitor>(policy::ProbeOptions{.every = 4})}});
  watched.trainer.fit(trainer_loader());
  const auto before = plain.state(), after = watched.state();
  REQUIRE(before.size() == after.size());
  for (const auto& [name, x] : before) {
    CAPTURE(name);
    CHECK(x.to_vector<double>() == after.at(name).to_vector<double>());
  }
  CHECK(watched.trainer.metric("precision/least_sqnr") > 30);
  CHECK(watched.trainer.metric("precision/lost_updates") < 0.01);
  std::ifstream file(directory.path() / "probe.jsonl");
  std::set<int64_t> steps;
  for (std::string line; std::getline(file, line);)
    steps.insert(nlohmann::json::parse(line)["step"].get<int64_t>());
  CHECK(steps == std::set<int64_t>{0, 4, 8});
}

TEST_CASE("a skipped step is explained, and training continues with the same bits") {
  amp::Strategy strategy = amp::Strategy::named("amp-fp16");
  strategy.loss_scale.init_scale = 0x1p40;
  const TemporaryDirectory directory;
  const std::filesystem::path said = directory.path() / "said";
  const auto run = [&](bool explains, std::FILE* output) {
    TrainerCase parts;
    train::Trainer trainer(parts.task(), parts.adamw,
                           {.strategy = strategy,
                            .max_steps = 30,
                            .accumulate_batches = 2,
                            .explain_overflows = explains,
                            .model_summary = false,
                            .output = output});
    trainer.fit(trainer_loader());
    CHECK(trainer.training().skipped_steps() > 3);
    return copy_of(trainer.training().state_dict());
  };
  std::FILE* const none = std::fopen("/dev/null", "w");
  std::FILE* const file = std::fopen(said.c_str(), "w");
  const auto quietly = run(false, none), telling = run(true, file);
  std::fclose(none), std::fclose(file);
  for (const auto& [name, x] : quietly) {
    CAPTURE(name);
    CHECK(x.to_vector<double>() == telling.at(name).to_vector<double>());
  }
  std::ifstream text(said);
  const std::string all((std::istreambuf_iterator<char>(text)), {});
  CHECK(all.find("step 1 skipped: ") != std::string::npos);
  CHECK(all.find("/linear.0, grad_output: ") != std::string::npos);
  CHECK(all.find("would do") != std::string::npos);
}

}  // namespace
}  // namespace halftone::test::precision_monitor_test
