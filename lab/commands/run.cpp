// halftone-lab run: trains once for each policy and seed.
#include <iostream>

#include <halftone/lab/commands/flags.h>

namespace halftone::lab {

Work add_run(CLI::App& app, const Context& context) {
  auto options = std::make_shared<RunOptions>();
  options->workload = context.workload;
  app.add_option("policies", options->policies,
                 "files (x.json), or strategies' names; the others are compared with the first")
      ->required();
  add_seeds(app, options->seeds, "seeds of the runs, separated by commas");
  add_training(app, *options, context);
  app.add_option("--out", options->out, "writes a folder for each run into this one");
  app.add_flag("--set-aside", options->set_aside,
               "moves the files of an unfinished run to old-1, old-2, ... in its folder");
  return [options, &context] {
    const std::vector<RunResult> runs = run(*options, context.own, std::cerr);
    std::cout << table_of(runs);
    return 0;
  };
}

}  // namespace halftone::lab
