// The program: the list of commands, and the reporting of errors.
#include <halftone/lab/lab.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <iterator>

#include <omp.h>

#include <nlohmann/json.hpp>

#include <halftone/core/device.h>
#include <halftone/core/error.h>
#include <halftone/lab/commands/commands.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/run.h>

namespace halftone::lab {

std::span<const Command> commands() {
  static constexpr Command all[]{
      {"formats", "Lists number formats and quantizers: range, bits, signal to noise.", add_formats,
       false},
      {"vectors", "Writes inputs with exact results, for the tests of other projects.", add_vectors,
       false},
      {"show", "Shows what a policy does with each site of a model.", add_show, false},
      {"export", "Writes a policy as a recipe of another stack, with what it cannot say there.",
       add_export, false},
      {"graph", "Draws the recorded graph of one step.", add_graph, false},
      {"picture", "Draws one effect of a short format in a small training.", add_picture},
      {"run", "Trains under policies from the same seeds: losses, times, telemetry.", add_run},
      {"sweep", "Trains over the product of axes; continues where it was stopped.", add_sweep},
      {"gate",
       "Trains pairs until the difference of two policies is known: within a bound, or not.",
       add_gate},
      {"fit", "Fits laws of parameters, tokens and bits to the losses of runs.", add_fit, false},
      {"rerun", "Repeats a run from its folder, and compares the weights.", add_rerun},
      {"diff", "Compares two runs tensor by tensor: the first that has other bits.", add_diff,
       false},
      {"compare", "Compares a batch under two policies, and with what their formats predict.",
       add_compare},
      {"explain", "Trains until a step is skipped, and says which tensor overflowed.", add_explain},
      {"sensitivity", "Measures the cost of each rule of a space alone: gradients, time, bytes.",
       add_sensitivity},
      {"search", "Finds the rules that save most for an allowed error, as a policy.", add_search},
      {"report", "Shows runs on disk as one page of HTML.", add_report, false},
      {"figure", "Writes one figure of the report as SVG or PDF, with its data as CSV.", add_figure,
       false},
      {"table", "Writes runs on disk as rows for pandas and other programs.", add_table, false},
      {"experiment", "Repeats a published result: its table, and whether it holds here.",
       add_experiment},
  };
  return all;
}

Context::Context(const NamedWorkload* first) : workload(first ? first->name : "gpt_tiny") {
  if (first) own.push_back(*first);
  std::vector<NamedWorkload> all = own;
  std::ranges::move(built_in_workloads(), std::back_inserter(all));
  for (const NamedWorkload& w : all) names += (names.empty() ? "" : ", ") + w.name;
}

namespace {

/// Returns an error's message with all bytes safe for a terminal.
std::string printable_lines(std::string_view text) {
  std::string lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines += printable(text.substr(0, end)) + '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// Throws UsageError for a first argument that is neither a command nor a flag.
void require_known_command(int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::vector<std::string_view> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  if (std::ranges::find(names, argv[1]) == names.end())
    fail_unknown_name("halftone-lab", "command", argv[1], names);
}

int main_with(int argc, char** argv, const NamedWorkload* own) {
  std::signal(SIGPIPE, SIG_IGN);
  end_with_parent();
  CLI::App app("Shows what short number formats do to tensors and trainings.");
  app.require_subcommand(1);
  app.set_version_flag("--version", "halftone-lab " + version());
  int threads = 0;  // 0: OpenMP's default
  bool portable = false;
  try {
    const Context context(own);
    std::vector<std::pair<CLI::App*, Work>> added;
    for (const Command& command : commands()) {
      CLI::App* const subcommand = app.add_subcommand(command.name, command.about);
      if (command.trains) {
        subcommand
            ->add_option("--threads", threads, "OpenMP threads; default: all that OpenMP offers")
            ->check(CLI::Range(1, 1024));
        subcommand->add_flag("--portable-bits", portable,
                             "the same bits on every CPU and number of threads; slower");
      }
      added.emplace_back(subcommand, command.add(*subcommand, context));
    }
    if (argc == 3 && argv[1] == job_command) return run_job(argv[2], context.own);
    require_known_command(argc, argv);
    app.parse(argc, argv);
    if (threads > 0) omp_set_num_threads(threads);
    if (portable) {
      set_portable_bits(true);
      setenv("HALFTONE_PORTABLE_BITS", "1", 1);  // for the processes of sweep and gate
    }
    for (const auto& [command, work] : added)
      if (command->parsed()) return work();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? exit_yes : exit_mistake;  // prints the help or the error
  } catch (const Error& error) {
    std::cerr << printable_lines(error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    std::cerr << printable("[halftone-lab] cannot use " + error.path1().string() + ": " +
                           error.code().message() + ". Check the path and its permissions.")
              << '\n';
  } catch (const nlohmann::json::exception&) {
    std::cerr << "[halftone-lab] a text is not UTF-8. Write names and values in UTF-8.\n";
  } catch (const std::exception& error) { std::cerr << printable_lines(error.what()); }
  return exit_mistake;
}
}  // namespace

int main(int argc, char** argv) { return main_with(argc, argv, nullptr); }
int main(int argc, char** argv, const NamedWorkload& own) { return main_with(argc, argv, &own); }

}  // namespace halftone::lab
