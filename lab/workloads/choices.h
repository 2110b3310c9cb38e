// How a workload is trained in place of its own way, by the words of a command line: another rate,
// optimizer or schedule, and the state of an earlier training to begin with.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include <halftone/lab/workloads/workload.h>

namespace halftone::lab {

/// What is left empty (0) is the workload's own.
struct Choices {
  double lr = 0;
  std::string optimizer{};       // with the library's options; sgd with a momentum of 0.9
  std::string schedule{};        // over all steps of the run
  std::filesystem::path from{};  // see trained_state()
};

/// adamw adam sgd rmsprop lion lamb muon
std::span<const std::string_view> optimizer_names();
/// constant linear cosine warm_up_cosine one_cycle
std::span<const std::string_view> schedule_names();
/// Throws UsageError, with the nearest, for names that do not exist, and for rates that are no
/// positive number.
void choose(Workload& workload, const Choices& choices);

/// The tensors of a trained state: a run's folder (its latest checkpoint), a checkpoint, or a file
/// of Training::save(). Throws UsageError, with the nearest name beside it, where there is none;
/// FormatError for one that is damaged.
optim::NamedTensors trained_state(const std::filesystem::path& from);
/// Goes on from it, rounding what this strategy cannot hold; rates stay those of the optimizer, and
/// the default generator is where it was.
void start_from(const optim::NamedTensors& state, amp::Training& training);

}  // namespace halftone::lab
