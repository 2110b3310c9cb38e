// Options that change a workload's training from the command line: another rate, optimizer or
// schedule, and the state of an earlier training to start from.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include <halftone/lab/workload.h>

namespace halftone::lab {

/// An empty field (0 for `lr`) keeps the workload's own setting.
struct Choices {
  double lr = 0;
  std::string optimizer{};       // with the library's default options; sgd has a momentum of 0.9
  std::string schedule{};        // over all steps of the run
  std::filesystem::path from{};  // see trained_state()
};

/// Returns adamw, adam, sgd, rmsprop, lion, lamb, muon.
std::span<const std::string_view> optimizer_names();
/// Returns constant, linear, cosine, warm_up_cosine, one_cycle.
std::span<const std::string_view> schedule_names();
/// Applies the choices to a workload. Throws UsageError for unknown names and suggests the nearest;
/// also for rates that are not positive numbers.
void choose(Workload& workload, const Choices& choices);

/// Returns the tensors of a trained state: from a run folder (its latest checkpoint), a checkpoint,
/// or a file of Training::save(). Throws UsageError if the path does not exist and suggests a
/// similar name in the same folder. Throws FormatError for a damaged state.
optim::NamedTensors trained_state(const std::filesystem::path& from);
/// Loads the state into the training and rounds what this strategy cannot represent. Learning rates
/// stay those of the optimizer, and the default generator is not changed.
void start_from(const optim::NamedTensors& state, amp::Training& training);

}  // namespace halftone::lab
