// Help texts and checks of the shared flags.
#include <charconv>
#include <cmath>
#include <iostream>
#include <optional>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/lab/commands/commands.h>
#include <halftone/lab/identity.h>
#include <halftone/lab/workload.h>

namespace halftone::lab {

std::string list_of(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

void add_policy(CLI::App& app, std::string& policy) {
  app.add_option("policy", policy, "a file (x.json), a strategy, or a shipped policy (mxfp8)")
      ->required();
}

void add_workload(CLI::App& app, std::string& workload, const Context& context) {
  app.add_option("--workload", workload, context.names)->capture_default_str();
}

namespace {
/// Returns the number that the whole text is; nullopt if it is none, or out of the type's range.
template <class Number> std::optional<Number> number_of(const std::string& text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  return read.ec == std::errc() && read.ptr == end ? std::optional(value) : std::nullopt;
}

/// Checks a seed. Without this check, CLI11 reads -1 and 2^64 as the largest whole number.
CLI::Validator is_seed() {
  return {[](std::string& text) {
            return number_of<uint64_t>(text)
                       ? ""
                       : "a seed is a whole number from 0 to 2^64 - 1, got " + text;
          },
          ""};
}
}  // namespace

CLI::Validator whole_number(int64_t least, int64_t most) {
  return {[least, most](std::string& text) {
            const auto value = number_of<int64_t>(text);
            if (value && *value >= least && *value <= most) return std::string();
            return "expected a whole number from " + std::to_string(least) + " to " +
                   std::to_string(most) + ", got " + text;
          },
          least > 0 ? "POSITIVE" : "NONNEGATIVE"};
}

CLI::Validator positive_number() {
  return {[](std::string& text) {
            const auto value = number_of<double>(text);
            if (value && *value > 0 && std::isfinite(*value)) return std::string();
            return "expected a finite number above 0, got " + text;
          },
          "POSITIVE"};
}

void add_seed(CLI::App& app, uint64_t& seed) {
  app.add_option("--seed", seed)->capture_default_str()->check(is_seed());
}

void add_seeds(CLI::App& app, std::vector<uint64_t>& seeds, const std::string& about) {
  app.add_option_function<std::string>(
      "--seeds",
      [&seeds](const std::string& text) {
        try {
          seeds = seeds_of(text);
        } catch (const UsageError& error) { throw CLI::ValidationError(error.what()); }
      },
      about);
}

/// Adds the flags for settings that may differ from the workload's.
void add_choices(CLI::App& app, Choices& choices) {
  app.add_option("--lr", choices.lr, "learning rate; default: the workload's")
      ->check(positive_number());
  app.add_option("--optimizer", choices.optimizer, list_of(optimizer_names()));
  app.add_option("--schedule", choices.schedule,
                 "schedule of the learning rate: " + list_of(schedule_names()));
  app.add_option("--from", choices.from,
                 "a trained state to start from: a run's folder, a checkpoint, or a file of "
                 "Training::save(); a state of another policy is converted");
}

void add_training(CLI::App& app, Setup& setup, const Context& context) {
  app.add_option("--workload", setup.workload, context.names)->capture_default_str();
  app.add_option("--steps", setup.steps)->capture_default_str()->check(whole_number(1, most_steps));
  app.add_option("--probe", setup.probe, "telemetry every n steps; 0: none")
      ->capture_default_str()
      ->check(whole_number(0, most_steps));
  app.add_option("--probe-from", setup.probe_from,
                 "first step of the telemetry; 1 leaves out the step in which delayed scales begin")
      ->capture_default_str()
      ->check(whole_number(0, most_steps));
  add_choices(app, setup.choices);
}

void add_json(CLI::App& app, std::string& path) {
  app.add_option("--json", path, "the result for programs: a file, or - for standard output");
}

void require_json(const std::string& path) {
  if (!path.empty() && path != "-") files::require_replaceable("--json", path);
}

void write_json(const std::string& path, const std::string& text) {
  if (path == "-") std::cout << text;
  else if (!path.empty()) files::replace("--json", path, text);
}

std::ostream& words_next_to(const std::string& json_path) {
  return json_path == "-" ? std::cerr : std::cout;
}

void name_workload(std::ostream& out, const std::string& workload,
                   const std::vector<NamedWorkload>& own, bool by_losses) {
  if (const auto named = workload_named(workload, own))
    out << "workload " << named->name << ": " << named->about << '\n';
  if (by_losses) note_noise(std::cerr, workload, own);
}

}  // namespace halftone::lab
