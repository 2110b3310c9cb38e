// A whole training in a checkpoint: what amp::Training keeps (weights, optimizer, masters, loss
// scale, random generator, strategy), the schedule of its rates, and its place in the data. Going
// on from it gives the same bits as never having stopped:
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

/// Between two steps. `others`: tensors of the caller's own. Throws as save_checkpoint(). Of
/// several processes that train together all call this and the next; the first writes and reads,
/// and needs the path alone.
void save_training(const std::filesystem::path& path, const amp::Training& training,
                   const CheckpointState& state, const optim::LrScheduler* scheduler = nullptr,
                   const optim::NamedTensors& others = {});
/// Throws as load_checkpoint(), and UsageError or ShapeError for the checkpoint of another model,
/// strategy or schedule (a scheduler here and none there, or the reverse); then nothing has
/// changed. `convert`: as Training::load_state_dict(). `others` gets those that were saved; without
/// it they are passed over.
CheckpointState load_training(const std::filesystem::path& path, amp::Training& training,
                              optim::LrScheduler* scheduler = nullptr,
                              amp::Convert convert = amp::Convert::refuse,
                              optim::NamedTensors* others = nullptr);
/// The same of a checkpoint that has been read, whose state all processes have, and the first the
/// tensors; `from` is for messages.
CheckpointState load_training(Checkpoint checkpoint, std::string_view from, amp::Training& training,
                              optim::LrScheduler* scheduler, amp::Convert convert,
                              optim::NamedTensors* others);

// --- what else must be as it was

/// What decides on the batches of an epoch, for CheckpointState::numbers.
std::map<std::string, double> loader_numbers(const data::DataLoader& loader);
/// A loader that drew its seed, with the one of these numbers; others as they are.
data::DataLoader with_seed_of(const std::map<std::string, double>& before,
                              const data::DataLoader& now);
/// A place in an epoch means something only where the batches are the same: throws UsageError for a
/// loader of other numbers.
void require_same_loader(const std::map<std::string, double>& before, const data::DataLoader& now);
/// Throws UsageError where bits may differ from those at the place of texts["environment"].
void require_same_environment(const CheckpointState& state, Device device);

/// "lr", "betas", ... of all groups; the rates are those that a schedule multiplies.
using OptionValues = std::map<std::string, std::vector<double>>;
OptionValues option_values(const optim::Optimizer& optimizer, const optim::LrScheduler* scheduler);
/// Lines for whoever changed the program since `at` was saved: options of the optimizer, where the
/// checkpoint's count, and between two epochs the loader, where the program's does.
std::vector<std::string> changes(const OptionValues& program, const OptionValues& checkpoint,
                                 const CheckpointState& at, const data::DataLoader& loader);

}  // namespace halftone::train
