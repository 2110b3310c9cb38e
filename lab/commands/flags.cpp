// Help texts and checks of the shared flags.
#include <halftone/lab/commands/flags.h>

#include <charconv>

#include <halftone/lab/workloads/choices.h>

namespace halftone::lab {

std::string list_of(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
  return text;
}

void add_policy(CLI::App& app, std::string& policy) {
  app.add_option("policy", policy, "a file (x.json), or a strategy's name")->required();
}

void add_workload(CLI::App& app, std::string& workload, const Context& context) {
  app.add_option("--workload", workload, context.names)->capture_default_str();
}

namespace {
/// Checks a seed. Without this check, CLI11 reads -1 and 2^64 as the largest whole number.
CLI::Validator is_seed() {
  return {[](std::string& text) {
            uint64_t seed = 0;
            const char* const end = text.data() + text.size();
            const auto read = std::from_chars(text.data(), end, seed);
            const bool whole = read.ec == std::errc() && read.ptr == end;
            return whole ? "" : "a seed is a whole number from 0 to 2^64 - 1, got " + text;
          },
          ""};
}
}  // namespace

void add_seed(CLI::App& app, uint64_t& seed) {
  app.add_option("--seed", seed)->capture_default_str()->check(is_seed());
}
void add_seeds(CLI::App& app, std::vector<uint64_t>& seeds, const std::string& about) {
  app.add_option("--seeds", seeds, about)->delimiter(',')->check(is_seed());
}

namespace {
/// Adds the flags for settings that may differ from the workload's.
void add_choices(CLI::App& app, Choices& choices) {
  app.add_option("--lr", choices.lr, "learning rate; default: the workload's")
      ->check(CLI::PositiveNumber);
  app.add_option("--optimizer", choices.optimizer, list_of(optimizer_names()));
  app.add_option("--schedule", choices.schedule,
                 "schedule of the learning rate: " + list_of(schedule_names()));
  app.add_option("--from", choices.from,
                 "a trained state to start from: a run's folder, a checkpoint, or a file of "
                 "Training::save(); a state of another policy is converted");
}
}  // namespace

void add_training(CLI::App& app, RunOptions& options, const Context& context) {
  app.add_option("--workload", options.workload, context.names)->capture_default_str();
  app.add_option("--steps", options.steps)->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--probe", options.probe, "telemetry every n steps; 0: none")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  add_choices(app, options.choices);
}

}  // namespace halftone::lab
