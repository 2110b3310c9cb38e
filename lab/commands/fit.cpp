// halftone-lab fit: the constants of a law of the loss, from runs on disk.
#include <cmath>
#include <filesystem>
#include <iostream>

#include <halftone/core/error.h>
#include <halftone/lab/commands/commands.h>
#include <halftone/lab/fit.h>
#include <halftone/lab/run_folder.h>

namespace halftone::lab {

namespace {

struct Options {
  std::vector<std::filesystem::path> paths{};
  FitOptions fit{};
  std::string metric = "loss", json{};
};

/// Returns the run as laws see it; nullopt if its summary lacks a number.
std::optional<LawRow> row_of(const RunSummary& summary, const std::string& metric) {
  bool complete = true;
  const auto number = [&](const std::string& name) {
    const auto at = summary.numbers.find(name);
    complete = complete && at != summary.numbers.end();
    return at == summary.numbers.end() ? 0 : at->second;
  };
  LawRow row{
      .parameters = number("parameters"), .tokens = number("tokens"), .loss = number(metric)};
  for (std::size_t i = 0; i < operand_roles; ++i) {
    const std::string role = "operands." + std::string(operand_role_names[i]);
    row.operands[i] = {.bits = number(role + "_bits"),
                       .exponent = number(role + "_exponent"),
                       .fraction = number(role + "_fraction"),
                       .block = number(role + "_block")};
  }
  return complete ? std::optional(row) : std::nullopt;
}

/// Reads all runs. Says which were left out.
std::vector<LawRow> rows_of(const Options& options) {
  std::vector<std::string> notes;
  std::vector<LawRow> rows;
  for (const RunFolder& folder : run_folders("fit", options.paths, notes)) {
    const auto summary = folder.summary();
    const auto row = summary ? row_of(*summary, options.metric) : std::nullopt;
    if (row) rows.push_back(*row);
    else
      notes.push_back(folder.path().string() + ": has no " + options.metric +
                      ", parameters, tokens or operands, and is left out.");
  }
  for (const std::string& note : notes) std::cerr << printable(note) << '\n';
  return rows;
}

int run_fit(const Options& options) {
  require_json(options.json);
  const std::vector<LawRow> rows = rows_of(options);
  const Fit found = fit(rows, options.fit, std::cerr);
  words_next_to(options.json) << text_of(found, rows);
  write_json(options.json, json_of(found, rows));
  return found.verdict() > 0 ? exit_yes : found.verdict() < 0 ? exit_no : exit_undecided;
}

}  // namespace

Work add_fit(CLI::App& app, const Context&) {
  auto options = std::make_shared<Options>();
  app.add_option("paths", options->paths, "run folders, or folders of runs")->required();
  app.add_option("--law", options->fit.law, list_of(law_names()))->capture_default_str();
  app.add_option("--metric", options->metric,
                 "the loss of a run: loss (of validation, if there is one), late_loss, "
                 "validation_loss")
      ->capture_default_str()
      ->check(CLI::IsMember({"loss", "late_loss", "validation_loss"}));
  app.add_option("--bootstrap", options->fit.resamples, "resamples for each interval")
      ->capture_default_str()
      ->check(CLI::Range(20, 100'000));
  app.add_option("--simulations", options->fit.simulations,
                 "simulated data sets for the power; 0: none")
      ->capture_default_str()
      ->check(CLI::Range(0, 100'000));
  add_seed(app, options->fit.seed);
  add_json(app, options->json);
  return [options] { return run_fit(*options); };
}

}  // namespace halftone::lab
