// halftone-lab experiment.
#include <halftone/lab/commands/experiment.h>

#include <chrono>
#include <iostream>

#include <nlohmann/json.hpp>

#include <halftone/core/device.h>
#include <halftone/lab/commands/flags.h>
#include <halftone/lab/experiment.h>
#include <halftone/lab/experiments/paired.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

namespace {
using Json = nlohmann::ordered_json;

/// Runs one experiment and prints it. Returns it as JSON, with "missed": the checks that failed.
Json run_one(const Experiment& experiment, bool thorough, std::ostream& out) {
  out << experiment.name << ". " << experiment.claim << "\n\n" << std::flush;
  const auto start = std::chrono::steady_clock::now();
  Findings found(out, thorough);
  experiment.run(found);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  out << experiment.name << (found.missed() == 0 ? " passes" : " FAILS") << ": "
      << found.checked() - found.missed() << " of " << found.checked() << " checks, "
      << fixed(seconds.count(), 1) << " s\n"
      << std::flush;
  Json checks = Json::array();
  for (const Findings::Check& check : found.checks())
    checks.push_back({{"what", check.what},
                      {"value", check.value},
                      {"bar", check.bar},
                      {"passes", check.passes}});
  return {{"name", experiment.name},
          {"claim", experiment.claim},
          {"missed", found.missed()},
          {"seconds", seconds.count()},
          {"checks", std::move(checks)}};
}
}  // namespace

int run_experiment(const ExperimentOptions& options) {
  require_json(options.json);
  const PortableBitsScope scope(true);  // the same verdict and the same digits on every CPU
  std::ostream& words = words_next_to(options.json);
  Json all = Json::array();
  int missed = 0;
  bool stopped = false;
  const auto add = [&](const Experiment& experiment) {
    all.push_back(run_one(experiment, options.thorough, words));
    missed += all.back()["missed"].get<int>();
  };
  try {
    if (options.name != "all") add(experiment_named(options.name));
    else
      for (const Experiment& experiment : experiments()) add(experiment), words << '\n';
  } catch (const Stopped& error) {  // what is finished is written
    std::cerr << error.what() << '\n';
    stopped = true;
  }
  if (options.name == "all" && !stopped) words << (missed == 0 ? "all pass\n" : "not all pass\n");
  write_json(options.json, Json{{"format", 1}, {"experiments", std::move(all)}}.dump(1) + "\n");
  return stopped ? exit_undecided : missed == 0 ? exit_yes : exit_no;
}

Work add_experiment(CLI::App& app, const Context&) {
  auto options = std::make_shared<ExperimentOptions>();
  app.add_option("name", options->name, "E1, E2, ... or all")->required();
  app.add_flag("--long", options->thorough, "uses more seeds and takes minutes");
  add_json(app, options->json);
  return [options] { return run_experiment(*options); };
}

}  // namespace halftone::lab
