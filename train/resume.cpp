// The schedule's state is "scheduler.*" beside what the training saves. Loading tries the schedule
// first, because a training that has been loaded cannot be taken back.
#include <halftone/train/resume.h>

#include <vector>

#include <halftone/core/error.h>
#include <halftone/core/memory_ledger.h>
#include <halftone/train/rates.h>

namespace halftone::train {

namespace {
constexpr std::string_view scheduler_prefix = "scheduler.", others_prefix = "others.";

/// The entries whose names begin so, without that beginning; they are gone from `all`.
optim::NamedTensors taken_out(optim::NamedTensors& all, std::string_view beginning) {
  optim::NamedTensors part;
  for (const auto& [name, x] : all)
    if (name.starts_with(beginning)) part[name.substr(beginning.size())] = x;
  std::erase_if(all, [&](const auto& entry) { return entry.first.starts_with(beginning); });
  return part;
}
}  // namespace

void save_training(const std::filesystem::path& path, const amp::Training& training,
                   const CheckpointState& state, const optim::LrScheduler* scheduler,
                   const optim::NamedTensors& others) {
  Checkpoint checkpoint{.state = state, .tensors = training.state_dict()};
  if (scheduler)
    for (const auto& [name, x] : scheduler->state_dict())
      checkpoint.tensors[std::string(scheduler_prefix) + name] = x;
  for (const auto& [name, x] : others) checkpoint.tensors[std::string(others_prefix) + name] = x;
  save_checkpoint(path, checkpoint);
}

CheckpointState load_training(const std::filesystem::path& path, amp::Training& training,
                              optim::LrScheduler* scheduler, amp::Convert convert,
                              optim::NamedTensors* others) {
  const MemoryScope scope(MemoryUse::workspace);  // what was read lives until it has been copied
  Checkpoint checkpoint = load_checkpoint(path);
  const optim::NamedTensors schedule = taken_out(checkpoint.tensors, scheduler_prefix);
  optim::NamedTensors kept = taken_out(checkpoint.tensors, others_prefix);
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
  if (others) *others = std::move(kept);
  return std::move(checkpoint.state);
}

}  // namespace halftone::train
