// What a Trainer keeps in a checkpoint beside its amp::Training, and how it goes on from one.
#include <halftone/train/trainer.h>

#include <halftone/train/class_name.h>
#include <halftone/train/environment.h>
#include <halftone/train/numbers.h>
#include <halftone/train/resume.h>

namespace halftone::train {

namespace {
/// "state.callback.0.EarlyStopping."
std::string state_name(const TrainerOptions& options, std::size_t callback) {
  const Callback& one = *options.callbacks[callback];
  return "state.callback." + std::to_string(callback) + '.' + class_name(typeid(one)) + '.';
}
}  // namespace

void Trainer::save(const std::filesystem::path& path) const {
  CheckpointState state = position_;
  records_.save(state);
  if (loader_) state.numbers.merge(loader_numbers(*loader_));
  state.numbers["state.seconds"] = seconds();
  state.numbers["state.validation_interrupted"] = double(validation_interrupted_);
  const auto add = [&](const std::string& name, const MetricSums& sums) {
    state.numbers["state.total." + name] = sums.total;
    state.numbers["state.weight." + name] = sums.weight;
    if (sums.mean != 0) state.numbers["state.mean." + name] = sums.mean;
    if (sums.spread != 0) state.numbers["state.spread." + name] = sums.spread;
  };
  add("loss", epoch_loss_.sums());
  for (const TaskMetric& metric : task_.metrics) add(metric.name(), metric.sums());
  optim::NamedTensors tensors;
  for (std::size_t i = 0; i < options_.callbacks.size(); ++i) {
    const std::string name_of_it = state_name(options_, i);
    for (const auto& [name, value] : options_.callbacks[i]->state())
      state.numbers[name_of_it + name] = value;
    for (const auto& [name, x] : options_.callbacks[i]->tensors()) tensors[name_of_it + name] = x;
  }
  state.texts["environment"] = environment_of(device());
  save_training(path, training_, state, scheduler_ ? &*scheduler_ : nullptr, tensors);
}

void Trainer::resume(const FoundCheckpoint& found) {
  const optim::LrScheduler* const scheduler = scheduler_ ? &*scheduler_ : nullptr;
  const OptionValues program = option_values(training_.optimizer(), scheduler);
  optim::NamedTensors tensors;
  const CheckpointState at = load_training(
      found.path, training_, scheduler_ ? &*scheduler_ : nullptr, amp::Convert::refuse, &tensors);
  for (std::size_t i = 0; i < options_.callbacks.size(); ++i)
    if (const auto own = part_of(tensors, state_name(options_, i)); !own.empty())
      options_.callbacks[i]->load_tensors(own);
  restore(at);
  note("resumed after step " + std::to_string(at.step) + " from " + found.path.string());
  for (const std::string& line : changes(program, option_values(training_.optimizer(), scheduler)))
    records_.tell(line);
  if (at.batches > 0) return;  // then the loader is the same
  for (const std::string& line : changes(at, *loader_)) records_.tell(line);
}

void Trainer::restore(const CheckpointState& state) {
  position_ = {.step = state.step, .epoch = state.epoch, .batches = state.batches};
  const auto& numbers = state.numbers;
  const auto sums = [&](const std::string& name) {
    return MetricSums{
        number_in(numbers, "state.total." + name), number_in(numbers, "state.weight." + name),
        number_in(numbers, "state.mean." + name), number_in(numbers, "state.spread." + name)};
  };
  records_.restore(state);
  seconds_before_ = number_in(numbers, "state.seconds");
  validation_interrupted_ = number_in(numbers, "state.validation_interrupted") != 0;
  epoch_loss_.restore(sums("loss"));
  for (TaskMetric& metric : task_.metrics) metric.restore(sums(metric.name()));
  for (std::size_t i = 0; i < options_.callbacks.size(); ++i)
    if (const auto own = part_of(numbers, state_name(options_, i)); !own.empty())
      options_.callbacks[i]->load_state(own);
}

}  // namespace halftone::train
