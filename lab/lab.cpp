// The subcommands and their flags; each command is in a file of its own.
#include <halftone/lab/lab.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <iterator>

#include <omp.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <halftone/lab/choices.h>
#include <halftone/core/files.h>
#include <halftone/core/quoted.h>
#include <halftone/lab/compare.h>
#include <halftone/lab/experiment_command.h>
#include <halftone/lab/explain.h>
#include <halftone/lab/formats_command.h>
#include <halftone/lab/graph_command.h>
#include <halftone/lab/picture_command.h>
#include <halftone/lab/policy_note.h>
#include <halftone/lab/rerun.h>
#include <halftone/lab/report.h>
#include <halftone/lab/run.h>
#include <halftone/lab/search_command.h>
#include <halftone/lab/show_command.h>
#include <halftone/lab/sweep.h>
#include <halftone/lab/table_command.h>
#include <halftone/policy/policy_file.h>

namespace halftone::lab {

namespace {

/// What all commands share: the workloads that there are.
struct Context {
  std::vector<NamedWorkload> own;
  std::string workload;  // the default
  std::string names;

  explicit Context(const NamedWorkload* first) : workload(first ? first->name : "gpt_tiny") {
    if (first) own.push_back(*first);
    std::vector<NamedWorkload> all = own;
    std::ranges::move(built_in_workloads(), std::back_inserter(all));
    for (const NamedWorkload& w : all) names += (names.empty() ? "" : ", ") + w.name;
  }
};

using Command = std::function<int()>;

Command add_formats(CLI::App& app) {
  auto options = std::make_shared<FormatsOptions>();
  app.add_option("names", options->names,
                 "formats (e4m3, e5m6, int4, ...) and quantizers (mxfp4, ...); all named ones, if "
                 "none is given. Of a single short format every number is printed.");
  app.add_flag("--check", options->check,
               "compare with expected numbers; exit code 1 if any differs");
  app.add_option("--samples", options->samples, "random numbers for signal to noise")
      ->capture_default_str();
  return [options] { return run_formats(*options); };
}

Command add_show(CLI::App& app, const Context& context) {
  auto options = std::make_shared<ShowOptions>();
  options->workload = context.own.empty() ? "mlp_tiny" : context.workload;
  app.add_option("policy", options->policy, "a file (x.json), or a strategy's name")->required();
  app.add_option("--workload", options->workload, context.names)->capture_default_str();
  app.add_option("--diff", options->other, "another policy: only what it does otherwise");
  app.add_flag("--json", options->json, "for programs");
  return [options, &context] { return run_show(*options, context.own); };
}

Command add_graph(CLI::App& app, const Context& context) {
  auto options = std::make_shared<GraphOptions>();
  options->workload = context.own.empty() ? "mlp_tiny" : context.workload;
  app.add_option("policy", options->policy, "a file (x.json), or a strategy's name")->required();
  app.add_option("--workload", options->workload, context.names)->capture_default_str();
  app.add_option("-o,--output", options->output,
                 "x.dot, or x.svg, x.png, x.pdf by Graphviz; default: .dot, printed");
  return [options, &context] { return run_graph(*options, context.own); };
}

std::string list_of(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

Command add_picture(CLI::App& app, const Context& context) {
  auto options = std::make_shared<PictureOptions>();
  options->workload = context.own.empty() ? "gpt_tiny" : context.workload;
  app.add_option("name", options->name, list_of(picture_names()))->required();
  app.add_option("--workload", options->workload, context.names)->capture_default_str();
  app.add_option("-o,--output", options->output, "x.svg")->required();
  return [options, &context] { return run_picture(*options, context.own); };
}

/// Without it -1 would be the largest whole number.
CLI::Validator is_seed() {
  return {[](std::string& text) {
            const bool digits =
                !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
            return digits ? "" : "a seed is a whole number from 0, got " + text;
          },
          ""};
}
void add_seed(CLI::App& app, uint64_t& seed) {
  app.add_option("--seed", seed)->capture_default_str()->check(is_seed());
}
void add_seeds(CLI::App& app, std::vector<uint64_t>& seeds, const std::string& about) {
  app.add_option("--seeds", seeds, about)->delimiter(',')->check(is_seed());
}

/// In what a run may differ from its workload.
void add_choices(CLI::App& app, Choices& choices) {
  app.add_option("--lr", choices.lr, "the workload's own, if it is not given")
      ->check(CLI::PositiveNumber);
  app.add_option("--optimizer", choices.optimizer, list_of(optimizer_names()));
  app.add_option("--schedule", choices.schedule, "of the rate: " + list_of(schedule_names()));
  app.add_option("--from", choices.from,
                 "a trained state to begin with: a run's folder, a checkpoint, or a file of "
                 "Training::save(); what another policy saved is converted");
}

/// What a training of run is, but for policies and seeds.
void add_training(CLI::App& app, RunOptions& options, const Context& context) {
  app.add_option("--workload", options.workload, context.names)->capture_default_str();
  app.add_option("--steps", options.steps)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--probe", options.probe, "telemetry every so many steps; 0: none")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  add_choices(app, options.choices);
}

Command add_run(CLI::App& app, const Context& context) {
  auto options = std::make_shared<RunOptions>();
  options->workload = context.workload;
  app.add_option(
         "policies", options->policies,
         "files (x.json), or strategies' names; the first is what the others are held against")
      ->required();
  add_seeds(app, options->seeds, "separated by commas");
  add_training(app, *options, context);
  app.add_option("--out", options->out, "a folder for each run goes in here");
  app.add_flag("--set-aside", options->set_aside,
               "what an unfinished run left in its folder moves to old-1, old-2, ... there");
  return [options, &context] {
    const std::vector<RunResult> runs = run(*options, context.own, std::cerr);
    std::cout << table_of(runs);
    return 0;
  };
}

Command add_sweep(CLI::App& app, const Context& context) {
  struct Options {
    SweepOptions sweep{};
    std::vector<std::string> axes{};
    std::string seeds = "0";
  };
  auto options = std::make_shared<Options>();
  RunOptions& run = options->sweep.run;
  run.workload = context.workload;
  app.add_option("policy", options->sweep.policy, "a file (x.json), or a strategy's name")
      ->required();
  app.add_option("--axis", options->axes,
                 "NAME=VALUE,VALUE: a field of the file (quantizers.q.scale.history), or an option "
                 "of run (lr, steps, optimizer, schedule, from); once for each axis")
      ->required()
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--seeds", options->seeds, "0..4, or separated by commas")->capture_default_str();
  add_training(app, run, context);
  app.add_option("--jobs", options->sweep.jobs, "runs at once")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--out", run.out, "policies, logs, and a folder for each run go in here")
      ->required();
  return [options] {
    for (const std::string& axis : options->axes) options->sweep.axes.push_back(axis_of(axis));
    options->sweep.run.seeds = seeds_of(options->seeds);
    return run_sweep(options->sweep, std::cerr);
  };
}

Command add_rerun(CLI::App& app, const Context& context) {
  auto options = std::make_shared<RerunOptions>();
  app.add_option("run", options->folder, "the folder of a run")->required();
  app.add_flag("--check", options->check, "exit code 1 if the weights are others");
  app.add_option("--from", options->from, "where the state lies now that the run began with");
  return [options, &context] { return run_rerun(*options, context.own); };
}

Command add_compare(CLI::App& app, const Context& context) {
  struct Options {
    std::string policy, reference = "fp32", workload, json;
    uint64_t seed = 0;
  };
  auto options = std::make_shared<Options>();
  options->workload = context.workload;
  app.add_option("policy", options->policy, "a file (x.json), or a strategy's name")->required();
  app.add_option("--reference", options->reference)->capture_default_str();
  app.add_option("--workload", options->workload, context.names)->capture_default_str();
  add_seed(app, options->seed);
  app.add_option("--json", options->json,
                 "a file for it, too: runs/RUN/compare.json for the report");
  return [options, &context] {
    const auto make = [&] { return make_workload(options->workload, options->seed, context.own); };
    if (!options->json.empty()) files::require_replaceable("--json", options->json);
    const policy::PolicyFile file = policy::named_or_read(options->policy);
    note_other_model(std::cerr, file, options->workload, context.own);
    const Comparison found = compare(make, policy::named_or_loaded(options->reference),
                                     policy::strategy_of(file), {.seed = options->seed});
    if (!options->json.empty())
      files::replace(
          "--json", options->json,
          json_of(found, {options->policy, options->reference, options->workload}, options->seed));
    std::cout << table_of(found);
    return 0;
  };
}

Command add_explain(CLI::App& app, const Context& context) {
  auto options = std::make_shared<ExplainOptions>();
  options->workload = context.workload;
  app.add_option("policy", options->policy, "a file (x.json), or a strategy's name")->required();
  app.add_option("--workload", options->workload, context.names)->capture_default_str();
  app.add_option("--steps", options->steps, "at most")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--scale", options->scale, "loss scale to begin with, instead of the policy's")
      ->check(CLI::PositiveNumber);
  add_seed(app, options->seed);
  return [options, &context] { return run_explain(*options, context.own); };
}

/// What sensitivity and search have in common.
void add_ranking(CLI::App& app, SensitivityOptions& options, const Context& context) {
  options.workload = context.workload;
  app.add_option("policy", options.policy, "the base: a file (x.json), or a strategy's name")
      ->required();
  app.add_option("--space", options.space,
                 "one rule for each of: ops, modules, roles; or the rules of a file (x.json)")
      ->capture_default_str();
  app.add_option("--to", options.to,
                 "what rules ask for: low, bf16, f16, f32, or a quantizer (e4m3, mxfp8, ...)")
      ->capture_default_str();
  app.add_option("--reference", options.reference)->capture_default_str();
  app.add_option("--workload", options.workload, context.names)->capture_default_str();
  app.add_option("--warm-up", options.warm_up, "steps of training before anything is measured")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--batches", options.batches, "whose gradients are compared")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  add_seed(app, options.seed);
}

Command add_sensitivity(CLI::App& app, const Context& context) {
  auto options = std::make_shared<SensitivityOptions>();
  add_ranking(app, *options, context);
  return [options, &context] { return run_sensitivity(*options, context.own); };
}

Command add_search(CLI::App& app, const Context& context) {
  auto options = std::make_shared<SearchCommand>();
  add_ranking(app, options->of, context);
  app.add_option("--objective", options->objective, "what to save: bytes, time, bits")
      ->capture_default_str();
  app.add_option("--budget", options->budget,
                 "relative error of the gradients that may be added to the base's")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--out", options->out,
                 "the policy (x.json); candidates and frontier go to x.search.json");
  add_seeds(app, options->seeds,
            "train the base and what was found from these, separated by commas");
  app.add_option("--steps", options->steps, "of these trainings")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  return [options, &context] { return run_search(*options, context.own); };
}

Command add_report(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  app.add_option("paths", options->paths,
                 "folders of runs; .csv or .jsonl of another program with columns step and loss; "
                 ".json of a comparison or a search")
      ->required();
  app.add_option("-o,--output", options->output)->capture_default_str();
  app.add_option("--reference", options->reference,
                 "the policy that differences are from; default: the first path's");
  return [options] { return run_report(*options); };
}

Command add_table(CLI::App& app) {
  auto options = std::make_shared<TableOptions>();
  app.add_option("paths", options->paths, "folders of runs")->required();
  CLI::Option* const csv = app.add_flag_function(
      "--csv", [](int64_t) {}, "comma-separated values (the default)");
  app.add_flag("--jsonl", options->json_lines, "an object per line")->excludes(csv);
  app.add_option("-o,--output", options->output, "a file; default: standard output");
  return [options] { return run_table(*options); };
}

Command add_experiment(CLI::App& app) {
  auto options = std::make_shared<ExperimentOptions>();
  app.add_option("name", options->name, "E1, E2, ... or all")->required();
  app.add_flag("--long", options->thorough, "more seeds: minutes");
  return [options] { return run_experiment(*options); };
}

/// An error's message, safe for a terminal whatever it quotes.
std::string printable_lines(std::string_view text) {
  std::string lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines += printable(text.substr(0, end)) + '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

bool trains(std::string_view command) {
  constexpr std::string_view others[] = {"formats", "show", "graph", "report", "table"};
  return std::ranges::find(others, command) == std::end(others);
}

int main_with(int argc, char** argv, const NamedWorkload* own) {
  std::signal(SIGPIPE, SIG_IGN);
  end_with_sweep();
  CLI::App app("What short number formats do to tensors and trainings.");
  app.require_subcommand(1);
  int threads = 0;  // 0: OpenMP's number
  try {
    const Context context(own);
    std::vector<std::pair<CLI::App*, Command>> commands;
    const auto add = [&](const char* name, const char* about, auto&& define) {
      CLI::App* const command = app.add_subcommand(name, about);
      if (trains(name))
        command->add_option("--threads", threads, "of OpenMP")->check(CLI::Range(1, 1024));
      commands.emplace_back(command, define(*command));
    };
    const auto with = [&](auto define) {
      return [&context, define](CLI::App& command) { return define(command, context); };
    };
    add("formats", "Number formats and quantizers: range, bits, signal to noise.", add_formats);
    add("show", "What a policy does with a model, site by site.", with(add_show));
    add("graph", "The recorded graph of one step, as a picture.", with(add_graph));
    add("picture", "What a short format does, as a drawing of a small training.",
        with(add_picture));
    add("run", "Trains under policies from the same seeds; losses, times, telemetry.",
        with(add_run));
    add("sweep", "Trains over the product of axes; goes on where it was stopped.", with(add_sweep));
    add("rerun", "Repeats a run from its folder, and compares the weights.", with(add_rerun));
    add("compare", "One batch under two policies: where they part, and whether formats say so.",
        with(add_compare));
    add("explain", "Trains until a step is skipped, and says what overflowed where.",
        with(add_explain));
    add("sensitivity", "What each rule of a space costs alone: gradients, time, bytes.",
        with(add_sensitivity));
    add("search", "The rules that save most for an error, as a policy that runs.",
        with(add_search));
    add("report", "What runs left on disk, as one page of HTML.", add_report);
    add("table", "The same as rows for pandas and other programs.", add_table);
    add("experiment", "A published result: its table, and whether it is there.", add_experiment);
    app.parse(argc, argv);
    if (threads > 0) omp_set_num_threads(threads);
    for (const auto& [command, go] : commands)
      if (command->parsed()) return go();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 1;  // prints help or the mistake
  } catch (const Error& error) {
    std::cerr << printable_lines(error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    std::cerr << printable("[halftone-lab] cannot use " + error.path1().string() + ": " +
                           error.code().message() + ". Check the path and its permissions.")
              << '\n';
  } catch (const nlohmann::json::exception&) {
    std::cerr << "[halftone-lab] a text is not UTF-8. Write names and values in UTF-8.\n";
  } catch (const std::exception& error) { std::cerr << printable_lines(error.what()); }
  return 1;
}
}  // namespace

int main(int argc, char** argv) { return main_with(argc, argv, nullptr); }
int main(int argc, char** argv, const NamedWorkload& own) { return main_with(argc, argv, &own); }

}  // namespace halftone::lab
