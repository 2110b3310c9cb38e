// halftone-lab experiment.
#include <halftone/lab/commands/experiment.h>

#include <chrono>
#include <iostream>

#include <halftone/lab/commands/flags.h>
#include <halftone/lab/experiment.h>
#include <halftone/lab/table.h>

namespace lab = halftone::lab;

namespace {
/// Runs one experiment. Returns the number of checks that failed.
int run_one(const lab::Experiment& experiment, bool thorough) {
  std::cout << experiment.name << ". " << experiment.claim << "\n\n" << std::flush;
  const auto start = std::chrono::steady_clock::now();
  lab::Findings found(std::cout, thorough);
  experiment.run(found);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << experiment.name << (found.missed() == 0 ? " passes" : " FAILS") << ": "
            << found.checked() - found.missed() << " of " << found.checked() << " checks, "
            << lab::fixed(seconds.count(), 1) << " s\n"
            << std::flush;
  return found.missed();
}
}  // namespace

int halftone::lab::run_experiment(const ExperimentOptions& options) {
  if (options.name != "all")
    return run_one(lab::experiment_named(options.name), options.thorough) == 0 ? 0 : 1;
  int missed = 0;
  for (const lab::Experiment& experiment : lab::experiments()) {
    missed += run_one(experiment, options.thorough);
    std::cout << '\n';
  }
  std::cout << (missed == 0 ? "all pass\n" : "not all pass\n");
  return missed == 0 ? 0 : 1;
}

namespace halftone::lab {

Work add_experiment(CLI::App& app, const Context&) {
  auto options = std::make_shared<ExperimentOptions>();
  app.add_option("name", options->name, "E1, E2, ... or all")->required();
  app.add_flag("--long", options->thorough, "uses more seeds and takes minutes");
  return [options] { return run_experiment(*options); };
}

}  // namespace halftone::lab
