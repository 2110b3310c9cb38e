// halftone-lab run: trains once for each policy and seed.
#include <iostream>

#include <halftone/lab/commands/flags.h>

namespace halftone::lab {

Work add_run(CLI::App& app, const Context& context) {
  struct Options {
    RunOptions run{.set_aside = true};
    std::string json{};
  };
  auto options = std::make_shared<Options>();
  RunOptions& run = options->run;
  run.workload = context.workload;
  app.add_option("policies", run.policies,
                 "files (x.json), strategies, or shipped policies (mxfp8); the others are compared "
                 "with the first")
      ->required();
  add_seeds(app, run.seeds, "seeds of the runs: 0..4 or 0,3,7; default: 0");
  add_training(app, run, context);
  app.add_option(
      "--out", run.out,
      "writes a folder for each run into this one. Finished runs in it are read, and files of "
      "unfinished runs move to old-1, old-2, ... in their folders");
  app.add_option("--trace", run.trace,
                 "hashes of all tensors every N steps, for halftone-lab diff; needs --out")
      ->check(whole_number(1, most_steps));
  add_json(app, options->json);
  return [options, &context] {
    require_json(options->json);
    name_workload(words_next_to(options->json), options->run.workload, context.own);
    std::vector<RunResult> done;
    options->run.after = [&](const RunResult& result) { done.push_back(result); };
    const auto print = [&] {
      if (!done.empty()) words_next_to(options->json) << table_of(done) << remarks_on(done);
      write_json(options->json, json_of(done));
    };
    try {
      lab::run(options->run, context.own, std::cerr);
    } catch (...) {
      print();
      throw;
    }
    print();
    const std::size_t wanted = options->run.policies.size() * options->run.seeds.size();
    if (done.size() == wanted) return exit_yes;
    std::cerr << "stopped: " << done.size() << " of " << wanted << " runs are finished. "
              << (options->run.out.empty()
                      ? "Give --out DIR to keep finished runs for the next call"
                      : "The same command reads these and trains the others from step 0")
              << '\n';
    return exit_undecided;
  };
}

}  // namespace halftone::lab
