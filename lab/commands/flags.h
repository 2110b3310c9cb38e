// Flags that several commands share.
#pragma once

#include <halftone/lab/commands/commands.h>
#include <halftone/lab/run.h>

namespace halftone::lab {

/// Returns the names, separated by commas: "a, b, c".
std::string list_of(std::span<const std::string_view> names);

void add_policy(CLI::App& app, std::string& policy);
void add_workload(CLI::App& app, std::string& workload, const Context& context);
void add_seed(CLI::App& app, uint64_t& seed);
void add_seeds(CLI::App& app, std::vector<uint64_t>& seeds, const std::string& about);
/// Adds the flags of `run`'s trainings, except policies and seeds.
void add_training(CLI::App& app, RunOptions& options, const Context& context);

}  // namespace halftone::lab
