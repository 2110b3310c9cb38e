// The schedule's state is "scheduler.*" beside what the training saves. Loading tries the schedule
// first, because a training that has been loaded cannot be taken back.
#include <halftone/train/resume.h>

#include <vector>

#include <halftone/core/error.h>
#include <halftone/core/memory_ledger.h>
#include <halftone/train/rates.h>

namespace halftone::train {

namespace {
constexpr std::string_view scheduler_prefix = "scheduler.";
}  // namespace

void save_training(const std::filesystem::path& path, const amp::Training& training,
                   const CheckpointState& state, const optim::LrScheduler* scheduler) {
  Checkpoint checkpoint{.state = state, .tensors = training.state_dict()};
  if (scheduler)
    for (const auto& [name, x] : scheduler->state_dict())
      checkpoint.tensors[std::string(scheduler_prefix) + name] = x;
  save_checkpoint(path, checkpoint);
}

CheckpointState load_training(const std::filesystem::path& path, amp::Training& training,
                              optim::LrScheduler* scheduler, amp::Convert convert) {
  const MemoryScope scope(MemoryUse::workspace);  // what was read lives until it has been copied
  Checkpoint checkpoint = load_checkpoint(path);
  optim::NamedTensors schedule;
  for (const auto& [name, x] : checkpoint.tensors)
    if (name.starts_with(scheduler_prefix)) schedule[name.substr(scheduler_prefix.size())] = x;
  std::erase_if(checkpoint.tensors,
                [](const auto& entry) { return entry.first.starts_with(scheduler_prefix); });
  if (schedule.empty() != !scheduler)
    fail<UsageError>("checkpoint", scheduler ? "no schedule" : "a schedule that nobody takes",
                     " is in ", path.string(), ". Resume with what was saved.");

  optim::Optimizer& optimizer = training.optimizer();
  const std::vector<double> rates = rates_of(optimizer);
  optim::NamedTensors before;
  if (scheduler) before = scheduler->state_dict();
  try {
    if (scheduler) scheduler->load_state_dict(schedule);
    training.load_state_dict(checkpoint.tensors, convert);
  } catch (...) {
    if (scheduler) scheduler->load_state_dict(before);
    set_rates(optimizer, rates);
    throw;
  }
  return std::move(checkpoint.state);
}

}  // namespace halftone::train
