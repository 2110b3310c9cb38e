// The commands of halftone-lab. Each command has its own source file, with its flags: add_x()
// defines the flags and returns the function that runs the command.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include <halftone/lab/lab.h>

namespace halftone::lab {

/// The workloads that all commands share.
struct Context {
  std::vector<NamedWorkload> own;
  std::string workload;  // the default
  std::string names;     // names of all workloads, for help

  explicit Context(const NamedWorkload* first);
};

/// Runs a command after its flags are parsed. Returns the exit code of the program.
using Work = std::function<int()>;

/// One line of `halftone-lab --help`.
struct Command {
  const char* name;
  const char* about;
  Work (*add)(CLI::App& app, const Context& context);
  bool trains = true;  // has --threads
};
/// Returns all commands, in the order in which the help lists them.
std::span<const Command> commands();

Work add_formats(CLI::App& app, const Context& context);
Work add_vectors(CLI::App& app, const Context& context);
Work add_show(CLI::App& app, const Context& context);
Work add_graph(CLI::App& app, const Context& context);
Work add_picture(CLI::App& app, const Context& context);
Work add_gate(CLI::App& app, const Context& context);
Work add_run(CLI::App& app, const Context& context);
Work add_sweep(CLI::App& app, const Context& context);
Work add_fit(CLI::App& app, const Context& context);
Work add_rerun(CLI::App& app, const Context& context);
Work add_diff(CLI::App& app, const Context& context);
Work add_compare(CLI::App& app, const Context& context);
Work add_explain(CLI::App& app, const Context& context);
Work add_sensitivity(CLI::App& app, const Context& context);
Work add_search(CLI::App& app, const Context& context);
Work add_report(CLI::App& app, const Context& context);
Work add_table(CLI::App& app, const Context& context);
Work add_experiment(CLI::App& app, const Context& context);

}  // namespace halftone::lab
