// halftone-lab report: writes a page about runs on disk.
#include <halftone/lab/report/report.h>

#include <halftone/lab/commands/flags.h>

namespace halftone::lab {

Work add_report(CLI::App& app, const Context&) {
  auto options = std::make_shared<ReportOptions>();
  app.add_option("paths", options->paths,
                 "run folders; .csv or .jsonl of another program with columns step and loss; "
                 ".json of a comparison or a search")
      ->required();
  app.add_option("-o,--output", options->output)->capture_default_str();
  app.add_option("--reference", options->reference,
                 "differences are from this policy; default: the first path's");
  return [options] { return run_report(*options); };
}

}  // namespace halftone::lab
