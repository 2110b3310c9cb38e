// Flags that several commands share.
#pragma once

#include <cstdint>

#include <halftone/lab/commands/commands.h>
#include <halftone/lab/run.h>

namespace halftone::lab {

/// Returns the names, separated by commas: "a, b, c".
std::string list_of(std::span<const std::string_view> names);

/// Checks of numbers, with messages for people. CLI11's own read whole numbers beyond 64 bits as
/// the largest one, and print limits with 300 digits.
CLI::Validator whole_number(int64_t least, int64_t most);
/// A finite number above 0.
CLI::Validator positive_number();
/// The largest --jobs.
inline constexpr int most_jobs = 10'000;

void add_policy(CLI::App& app, std::string& policy);
void add_workload(CLI::App& app, std::string& workload, const Context& context);
void add_seed(CLI::App& app, uint64_t& seed);
/// Adds --seeds, a list of numbers and ranges: 0,3,7..9.
void add_seeds(CLI::App& app, std::vector<uint64_t>& seeds, const std::string& about);
/// Adds --lr, --optimizer, --schedule and --from.
void add_choices(CLI::App& app, Choices& choices);
/// Adds the flags of `run`'s trainings, except policies and seeds.
void add_training(CLI::App& app, RunOptions& options, const Context& context);

// --- results for programs
/// Adds --json: a file, or - for standard output.
void add_json(CLI::App& app, std::string& path);
/// Throws UsageError if the file cannot be written; before the work.
void require_json(const std::string& path);
/// Writes the text to the file or to standard output; does nothing if no path was given.
void write_json(const std::string& path, const std::string& text);
/// Where words for people go: standard output, or standard error if that has the JSON.
std::ostream& words_next_to(const std::string& json_path);
/// The first line of a command's output: the workload and what it is. Adds a note to standard error
/// if it trains on noise and the command's answer depends on losses.
void name_workload(std::ostream& out, const std::string& workload,
                   const std::vector<NamedWorkload>& own, bool by_losses = true);

}  // namespace halftone::lab
