// halftone-lab run, rerun, report, figure and experiment.
#include <chrono>
#include <iostream>
#include <sstream>

#include <halftone/core/device.h>
#include <halftone/core/json_value.h>
#include <halftone/lab/commands/commands.h>
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/report/report.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

Work add_run(CLI::App& app, const Context& context) {
  struct Options {
    std::vector<std::string> policies{};
    Setup setup{};
    Study study{.set_aside = true};
    std::string json{};
  };
  auto options = std::make_shared<Options>();
  Study& study = options->study;
  options->setup.workload = context.workload;
  app.add_option("policies", options->policies,
                 "files (x.json), strategies, or shipped policies (mxfp8); the others are compared "
                 "with the first")
      ->required();
  add_seeds(app, study.seeds, "seeds of the runs: 0..4 or 0,3,7; default: 0");
  add_training(app, options->setup, context);
  app.add_option(
      "--out", study.out,
      "writes a folder for each run into this one. Finished runs in it are read, and files of "
      "unfinished runs move to old-1, old-2, ... in their folders");
  app.add_option("--trace", options->setup.trace,
                 "hashes of all tensors every N steps, for halftone-lab diff; needs --out")
      ->check(whole_number(1, most_steps));
  add_json(app, options->json);
  return [options, &context] {
    require_json(options->json);
    name_workload(words_next_to(options->json), options->setup.workload, context.own);
    std::vector<RunResult> done;
    Study& study = options->study;
    study.after = [&](const RunResult& result) { done.push_back(result); };
    const auto print = [&] {
      if (!done.empty()) words_next_to(options->json) << table_of(done) << remarks_on(done);
      write_json(options->json, json_of(done));
    };
    try {
      study.cells = read_cells(options->policies, options->setup);
      lab::run(study, context.own, std::cerr);
    } catch (...) {
      print();
      throw;
    }
    print();
    const std::size_t wanted = study.cells.size() * study.seeds.size();
    if (done.size() == wanted) return exit_yes;
    std::cerr << "stopped: " << done.size() << " of " << wanted << " runs are finished. "
              << (study.out.empty()
                      ? "Give --out DIR to keep finished runs for the next call"
                      : "The same command reads these and trains the others from step 0")
              << '\n';
    return exit_undecided;
  };
}

// Passes the recorded options to the same function as `run`. Prints what differs before the hashes.

namespace {
// halftone-lab rerun: repeats a run from its folder.

struct RerunOptions {
  std::filesystem::path folder;
  std::filesystem::path from{};  // present path of the state that the run began with; empty: the
                                 // recorded path
  bool check = false;            // exit code 1 if the weights differ
  std::string json{};            // empty: none; -: standard output
};
/// Trains as the folder says and writes nothing. Prints how this environment differs from the
/// recorded one, and both hashes of the weights. Returns the exit code; 3 after a signal.
int run_rerun(const RerunOptions& options, const std::vector<NamedWorkload>& own) {
  RecordedRun there = read_run("rerun", options.folder);
  Setup& setup = there.study.cells[0].setup;
  if (!options.from.empty()) setup.choices.from = options.from;
  if (setup.choices.from.empty() != there.said.from.path.empty())
    fail<UsageError>("rerun", "the run began with no earlier state. Leave --from out.");
  if (!setup.choices.from.empty() && !std::filesystem::exists(setup.choices.from))
    fail<UsageError>("rerun", printable(setup.choices.from.string()),
                     ", with which the run began, is not there. Say where it is: --from.");
  require_json(options.json);
  std::ostream& words = words_next_to(options.json);
  words << printable(options.folder.string()) << ": " << setup.steps << " steps of "
        << printable(setup.workload) << ", seed " << there.study.seeds[0] << std::endl;
  if (there.said.portable_bits) set_portable_bits(true);
  std::ostringstream progress;
  const std::vector<RunResult> finished = run(there.study, own, progress);
  if (finished.empty()) {
    std::cerr << "stopped before the last step, so no weights were compared\n";
    return exit_undecided;
  }
  const RunResult& here = finished.front();
  const std::vector<std::string> others =
      differences(there.summary, parsed_json("rerun", here.summary));
  for (const std::string& line : others) words << "differs: " << printable(line) << '\n';
  const bool same = here.weights_hash == there.said.weights_hash;
  words << "weights: " << there.said.weights_hash << " there, " << here.weights_hash << " here, "
        << (same ? "the same" : "others") << '\n';
  if (!same && others.empty())
    words << "nothing that is recorded differs: look at what the compiler was told, and at "
             "libraries\n";
  write_json(options.json, Json{{"format", 1},
                                {"weights_there", there.said.weights_hash},
                                {"weights_here", here.weights_hash},
                                {"same", same},
                                {"differences", others}}
                                   .dump(1) +
                               "\n");
  return same || !options.check ? exit_yes : exit_no;
}
}  // namespace

Work add_rerun(CLI::App& app, const Context& context) {
  auto options = std::make_shared<RerunOptions>();
  app.add_option("run", options->folder, "the folder of a run")->required();
  app.add_flag("--check", options->check, "exit code 1 if the weights differ");
  app.add_option("--from", options->from, "present path of the state that the run began with");
  add_json(app, options->json);
  return [options, &context] { return run_rerun(*options, context.own); };
}

// halftone-lab report and figure: a page about runs on disk, and its figures as files.

namespace {
void add_runs(CLI::App& app, ReportOptions& options) {
  app.add_option("paths", options.paths,
                 "run folders; .csv or .jsonl of another program with columns step and loss; "
                 ".json of a comparison or a search")
      ->required();
  app.add_option("--reference", options.reference,
                 "differences are from this policy; default: the first path's");
}
}  // namespace

Work add_report(CLI::App& app, const Context&) {
  auto options = std::make_shared<ReportOptions>();
  add_runs(app, *options);
  app.add_option("-o,--output", options->output)->capture_default_str();
  return [options] { return run_report(*options); };
}

Work add_figure(CLI::App& app, const Context&) {
  auto options = std::make_shared<FigureOptions>();
  std::vector<std::string_view> names;
  for (const Figure& figure : figures()) names.push_back(figure.name);
  app.add_option("name", options->name, list_of(names))->required();
  add_runs(app, options->runs);
  app.add_option("-o,--output", options->runs.output,
                 "x.svg or x.pdf, and the data next to it as x.csv; or x.csv alone")
      ->required();
  app.add_option("--width", options->millimetres, "in millimetres; letters are 7 points high")
      ->capture_default_str()
      ->check(CLI::Range(40.0, 1000.0));
  app.add_flag("--dark", options->dark, "light lines on a dark ground");
  return [options] { return run_figure(*options); };
}

// halftone-lab experiment.

namespace {

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
// halftone-lab experiment: runs experiments and says whether they confirm their claims.

struct ExperimentOptions {
  std::string name = "all";
  bool thorough = false;  // --long
  std::string json{};     // empty: none; -: standard output
};

/// Runs the experiments and prints to standard output. Returns the exit code: 1 if a check failed.
/// Throws UsageError for unknown names.
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
}  // namespace

Work add_experiment(CLI::App& app, const Context&) {
  auto options = std::make_shared<ExperimentOptions>();
  app.add_option("name", options->name, "E1, E2, ... or all")->required();
  app.add_flag("--long", options->thorough, "uses more seeds and takes minutes");
  add_json(app, options->json);
  return [options] { return run_experiment(*options); };
}

}  // namespace halftone::lab
