// Passes the recorded options to the same function as `run`. Prints what differs before the hashes.
#include <halftone/lab/commands/rerun.h>

#include <iostream>
#include <sstream>

#include <halftone/core/device.h>
#include <halftone/lab/commands/flags.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/recorded_run.h>

namespace halftone::lab {

int run_rerun(const RerunOptions& options, const std::vector<NamedWorkload>& own) {
  RecordedRun there = read_run("rerun", options.folder);
  if (!options.from.empty()) there.options.choices.from = options.from;
  if (there.options.choices.from.empty() != there.from_hash.empty())
    fail<UsageError>("rerun", "the run began with no earlier state. Leave --from out.");
  if (!there.options.choices.from.empty() && !std::filesystem::exists(there.options.choices.from))
    fail<UsageError>("rerun", policy::printable(there.options.choices.from.string()),
                     ", with which the run began, is not there. Say where it is: --from.");
  const RunOptions& run_options = there.options;
  require_json(options.json);
  std::ostream& words = words_next_to(options.json);
  words << policy::printable(options.folder.string()) << ": " << run_options.steps << " steps of "
        << policy::printable(run_options.workload) << ", seed " << run_options.seeds[0]
        << std::endl;
  if (there.portable_bits) set_portable_bits(true);
  std::ostringstream progress;
  const std::vector<RunResult> finished = run(run_options, own, progress);
  if (finished.empty()) {
    std::cerr << "stopped before the last step, so no weights were compared\n";
    return exit_undecided;
  }
  const RunResult& here = finished.front();
  const std::vector<std::string> others =
      differences(there.summary, policy::parsed_json("rerun", here.summary));
  for (const std::string& line : others) words << "differs: " << policy::printable(line) << '\n';
  const bool same = here.weights_hash == there.weights_hash;
  words << "weights: " << there.weights_hash << " there, " << here.weights_hash << " here, "
        << (same ? "the same" : "others") << '\n';
  if (!same && others.empty())
    words << "nothing that is recorded differs: look at what the compiler was told, and at "
             "libraries\n";
  write_json(options.json, policy::Json{{"format", 1},
                                        {"weights_there", there.weights_hash},
                                        {"weights_here", here.weights_hash},
                                        {"same", same},
                                        {"differences", others}}
                                   .dump(1) +
                               "\n");
  return same || !options.check ? exit_yes : exit_no;
}

Work add_rerun(CLI::App& app, const Context& context) {
  auto options = std::make_shared<RerunOptions>();
  app.add_option("run", options->folder, "the folder of a run")->required();
  app.add_flag("--check", options->check, "exit code 1 if the weights differ");
  app.add_option("--from", options->from, "present path of the state that the run began with");
  add_json(app, options->json);
  return [options, &context] { return run_rerun(*options, context.own); };
}

}  // namespace halftone::lab
