// The schedule's state has names "scheduler.*" next to the training's own. Loading sets the
// schedule first, because loading a training cannot be undone.
#include <halftone/train/checkpoint.h>

#include <charconv>
#include <functional>

#include <halftone/core/error.h>
#include <halftone/core/memory.h>
#include <halftone/core/named_tensors.h>
#include <halftone/distributed/collectives.h>
#include <halftone/train/checkpoints/manifest.h>
#include <halftone/train/environment.h>
#include <halftone/train/numbers.h>
#include <halftone/train/rates.h>

namespace halftone::train {

namespace {
constexpr std::string_view scheduler_prefix = "scheduler.", others_prefix = "others.";

/// Writes the fewest digits that read back to the same numbers: 16, 0.1.
std::string shown(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    char digits[32];
    text += text.empty() ? "" : ", ";
    text.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
  }
  return text;
}
}  // namespace

void save_training(const std::filesystem::path& path, const amp::Training& training,
                   const CheckpointState& state, const optim::LrScheduler* scheduler,
                   const optim::NamedTensors& others) {
  optim::NamedTensors more;
  if (scheduler) add_part(more, scheduler_prefix, scheduler->state_dict());
  add_part(more, others_prefix, others);
  training.write_state([&](const TensorSource& own) {
    TensorSource all = own;
    for (const auto& [name, x] : more) all.infos.push_back(info_of(name, x));
    all.tensor = [&](const std::string& name) {
      const auto found = more.find(name);
      return found == more.end() ? own.tensor(name) : found->second;
    };
    save_checkpoint(path, state, all);
  });
}

namespace {
/// Returns rank 0's checkpoint. The other ranks do not read it themselves: they get only its state.
Checkpoint of_rank_0(Communicator* group, const std::function<Checkpoint()>& read) {
  if (!group || group->size() == 1) return read();
  Checkpoint checkpoint;
  constexpr std::string_view what = "a checkpoint to go on from";
  distributed::on_rank_0(*group, what, [&] { checkpoint = read(); });
  const std::string state = distributed::broadcast_text(
      *group, what, group->rank() == 0 ? state_text(checkpoint.state) : "");
  if (group->rank() != 0) checkpoint.state = parse_state(state, "rank 0's checkpoint");
  return checkpoint;
}

/// Returns rank 0's tensors on all ranks.
optim::NamedTensors told_to_all(Communicator* group, const optim::NamedTensors& tensors) {
  return group ? distributed::broadcast(*group, "tensors next to a training's", tensors) : tensors;
}
}  // namespace

CheckpointState load_training(const std::filesystem::path& path, amp::Training& training,
                              optim::LrScheduler* scheduler, amp::Convert convert,
                              optim::NamedTensors* others) {
  const MemoryScope scope(MemoryUse::workspace);  // the tensors read live until they have been
                                                  // copied
  return load_training(of_rank_0(training.group(), [&] { return load_checkpoint(path); }),
                       path.string(), training, scheduler, convert, others);
}

CheckpointState load_training(Checkpoint checkpoint, std::string_view from, amp::Training& training,
                              optim::LrScheduler* scheduler, amp::Convert convert,
                              optim::NamedTensors* others) {
  const optim::NamedTensors schedule =
      told_to_all(training.group(), take_part(checkpoint.tensors, scheduler_prefix));
  optim::NamedTensors kept =
      told_to_all(training.group(), take_part(checkpoint.tensors, others_prefix));
  if (schedule.empty() != !scheduler)
    fail<UsageError>("checkpoint", scheduler ? "no schedule" : "a schedule without a scheduler",
                     " is in ", from, ". Resume with what was saved.");

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

// --- other conditions of an exact resume

std::map<std::string, double> loader_numbers(const data::DataLoader& loader) {
  const data::DataLoaderOptions& o = loader.options();
  return {{"state.loader.samples", double(loader.dataset().size())},
          {"state.loader.batch_size", double(o.batch_size)},
          {"state.loader.shuffle", double(o.shuffle)},
          {"state.loader.drop_last", double(o.drop_last)},
          {"state.loader.seed", double(*o.seed)}};
}

data::DataLoader with_seed_of(const std::map<std::string, double>& before,
                              const data::DataLoader& now) {
  const auto seed = before.find("state.loader.seed");
  if (!now.drew_seed() || seed == before.end()) return now;
  data::DataLoaderOptions options = now.options();
  options.seed = uint64_t(count_in(before, "state.loader.seed"));
  return now.with_options(options);
}

void require_same_loader(const std::map<std::string, double>& before, const data::DataLoader& now) {
  for (const auto& [name, here] : loader_numbers(now)) {
    const auto there = before.find(name);
    if (there == before.end() || there->second != here)
      fail<UsageError>("Trainer", "the training is in the middle of an epoch whose ",
                       name.substr(name.rfind('.') + 1), " is ",
                       there == before.end() ? "unknown" : shown({there->second}),
                       "; that of this loader is ", shown({here}),
                       ". Go on with the loader that it had.");
  }
}

void require_same_environment(const CheckpointState& state, Device device) {
  const auto text = state.texts.find("environment");
  const std::string there = text == state.texts.end() ? "unknown" : text->second,
                    here = environment_of(device);
  if (there != here)
    fail<UsageError>("Trainer",
                     "this is another environment, whose bits may differ: the checkpoint is "
                     "of \"",
                     shortened(there, 300), "\", here is \"", here,
                     "\". Resume there, or turn deterministic off.");
}

OptionValues option_values(const optim::Optimizer& optimizer, const optim::LrScheduler* scheduler) {
  constexpr std::string_view beginning = "param_groups.";
  OptionValues values;
  const bool several = optimizer.group_count() > 1;
  for (const auto& [name, x] : optimizer.state_dict()) {
    if (!name.starts_with(beginning) || name.ends_with(".params")) continue;
    const std::size_t dot = name.find('.', beginning.size());
    const std::string group = name.substr(beginning.size(), dot - beginning.size());
    values[name.substr(dot + 1) + (several ? " of group " + group : "")] = x.to_vector<double>();
  }
  if (scheduler) {
    const std::vector<double> rates = scheduler->state_dict().at("base_lrs").to_vector<double>();
    for (std::size_t group = 0; group < rates.size(); ++group)
      values[several ? "lr of group " + std::to_string(group) : "lr"] = {rates[group]};
  }
  return values;
}

std::vector<std::string> changes(const OptionValues& program, const OptionValues& checkpoint,
                                 const CheckpointState& at, const data::DataLoader& loader) {
  std::vector<std::string> lines;
  for (const auto& [name, now] : checkpoint)
    if (const auto before = program.find(name); before != program.end() && before->second != now)
      lines.push_back(name + " is " + shown(now) + " in the checkpoint, which counts, and " +
                      shown(before->second) +
                      " in the program: to change it, do so in on_fit_start()");
  if (at.batches > 0) return lines;  // the loaders are the same in this case
  for (const auto& [name, now] : loader_numbers(loader))
    if (const auto before = at.numbers.find(name);
        before != at.numbers.end() && before->second != now)
      lines.push_back("the loader's " + name.substr(name.rfind('.') + 1) + " is " + shown({now}) +
                      " from now on; it was " + shown({before->second}));
  return lines;
}

}  // namespace halftone::train
