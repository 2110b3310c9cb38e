// A whole training in a checkpoint: the state of amp::Training (weights, optimizer, master weights,
// loss scale, random generator, strategy), the schedule of its rates, and its place in the data. A
// resumed training has the same bits as one that never stopped:
//
//   int64_t step = 0, epoch = 0;
//   if (const auto found = train::latest_checkpoint(root)) {
//     const auto at = train::load_training(found->path, training, &scheduler);
//     loader.resume(at.epoch, at.batches), step = at.step, epoch = at.epoch;
//   }
#pragma once

#include <string>
#include <vector>

#include <halftone/amp/training.h>
#include <halftone/data/data_loader.h>
#include <halftone/optim/lr_schedule.h>
#include <halftone/train/checkpoints/checkpoint.h>

namespace halftone::train {

/// Saves between two steps. `others`: tensors of the caller. Throws as save_checkpoint(). If
/// several processes train together, all must call this function and the next; only the first
/// writes and reads, and only its path matters.
void save_training(const std::filesystem::path& path, const amp::Training& training,
                   const CheckpointState& state, const optim::LrScheduler* scheduler = nullptr,
                   const optim::NamedTensors& others = {});
/// Loads a checkpoint. Throws as load_checkpoint(). Throws UsageError or ShapeError, and changes
/// nothing, if the model, strategy or schedule differs (also if only one side has a scheduler).
/// `convert`: as Training::load_state_dict(). `others` gets the caller's tensors that were saved;
/// null: they are ignored.
CheckpointState load_training(const std::filesystem::path& path, amp::Training& training,
                              optim::LrScheduler* scheduler = nullptr,
                              amp::Convert convert = amp::Convert::refuse,
                              optim::NamedTensors* others = nullptr);
/// Does the same with a checkpoint that has been read: all processes have its state, and only the
/// first has the tensors. `from` is for messages.
CheckpointState load_training(Checkpoint checkpoint, std::string_view from, amp::Training& training,
                              optim::LrScheduler* scheduler, amp::Convert convert,
                              optim::NamedTensors* others);

// --- other conditions of an exact resume

/// Returns the numbers that determine the batches of an epoch, for CheckpointState::numbers.
std::map<std::string, double> loader_numbers(const data::DataLoader& loader);
/// Returns the loader with the saved seed if it drew its own; other loaders unchanged.
data::DataLoader with_seed_of(const std::map<std::string, double>& before,
                              const data::DataLoader& now);
/// Throws UsageError if the loader's numbers differ: a place in an epoch has a meaning only if the
/// batches are the same.
void require_same_loader(const std::map<std::string, double>& before, const data::DataLoader& now);
/// Throws UsageError if bits may differ from those computed in texts["environment"].
void require_same_environment(const CheckpointState& state, Device device);

/// Returns "lr", "betas", ... of all groups; the rates are those that a schedule multiplies.
using OptionValues = std::map<std::string, std::vector<double>>;
OptionValues option_values(const optim::Optimizer& optimizer, const optim::LrScheduler* scheduler);
/// Describes the program's changes since `at` was saved, in lines. For the optimizer's options the
/// checkpoint's values apply; for the loader, between two epochs, the program's apply.
std::vector<std::string> changes(const OptionValues& program, const OptionValues& checkpoint,
                                 const CheckpointState& at, const data::DataLoader& loader);

}  // namespace halftone::train
