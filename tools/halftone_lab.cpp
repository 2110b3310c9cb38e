// halftone-lab: looks at what short numbers do, one subcommand per question. Mistakes become a
// message and exit code 1.
#include <csignal>
#include <iostream>

#include <CLI/CLI.hpp>

#include "../examples/output.h"
#include "formats_command.h"
#include "graph_command.h"
#include "show_command.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app("What short number formats do to tensors.");
  app.require_subcommand(1);
  FormatsOptions formats;
  CLI::App* const command =
      app.add_subcommand("formats", "Number formats and quantizers: range, bits, signal to noise.");
  command->add_option(
      "names", formats.names,
      "formats (e4m3, e5m6, int4, ...) and quantizers (mxfp4, ...); all named ones, "
      "if none is given. Of a single short format every number is printed.");
  command->add_flag("--check", formats.check,
                    "compare with expected numbers; exit code 1 if any differs");
  command->add_option("--samples", formats.samples, "random numbers for signal to noise")
      ->capture_default_str();
  ShowOptions show;
  CLI::App* const show_command =
      app.add_subcommand("show", "What a policy does with a model, site by site.");
  show_command->add_option("policy", show.policy, "a file (x.json), or a strategy's name")
      ->required();
  show_command->add_option("--workload", show.workload, "of bench/train_step")
      ->capture_default_str();
  show_command->add_option("--diff", show.other, "another policy: only the sites that differ");
  show_command->add_flag("--json", show.json, "for programs");
  GraphOptions graph;
  CLI::App* const graph_command =
      app.add_subcommand("graph", "The recorded graph of one step, as a picture.");
  graph_command->add_option("policy", graph.policy, "a file (x.json), or a strategy's name")
      ->required();
  graph_command->add_option("--workload", graph.workload, "of bench/train_step")
      ->capture_default_str();
  graph_command->add_option("-o,--output", graph.output,
                            "x.dot, or x.svg, x.png, x.pdf by Graphviz; default: .dot, printed");
  try {
    app.parse(argc, argv);
    if (graph_command->parsed()) return after_output(run_graph(graph));
    if (show_command->parsed()) return after_output(run_show(show));
    return after_output(run_formats(formats));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 1;  // prints help or the mistake
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
