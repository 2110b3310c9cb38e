// The parts of a step that the device decides: whether it happens (StepControl::skip), the count of
// steps, and under capture the learning rate. Counts and rates are created once, outside of
// captures: otherwise their fills would be recorded and run at every replay.
#include <halftone/optim/grouped_optimizer.h>

#include <algorithm>

#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>

namespace halftone::optim {

/// Moves the step counts of parameters that do not yet count on the device there, starting from the
/// host's counts: views of one tensor per device.
void StatefulOptimizer::count_on_device(Group& group) const {
  const MemoryScope scope(MemoryUse::optimizer_state);
  std::vector<std::size_t> uncounted;
  for (std::size_t i = 0; i < group.states.size(); ++i)
    if (!group.states[i].count.defined()) uncounted.push_back(i);
  for (auto begin = uncounted.begin(); begin != uncounted.end();) {
    const Device device = group.parameters[*begin].device();
    require_not_capturing(group.parameters[*begin]);
    const auto end = std::partition(begin, uncounted.end(), [&](std::size_t i) {
      return group.parameters[i].device() == device;
    });
    std::vector<int64_t> steps;
    std::transform(begin, end, std::back_inserter(steps), [&](std::size_t i) {
      const ParameterState& state = group.states[i];
      return layout_.has_step ? state.steps : steps_before(state);
    });
    const Tensor counts = from_vector(steps, {int64_t(steps.size())}, i64, device);
    for (int64_t position = 0; begin != end; ++begin, ++position)
      group.states[*begin].count = counts.view_as({}, {}, position);
  }
}

int64_t StatefulOptimizer::steps_of(const ParameterState& state) const {
  return state.count.defined() ? state.count.to_vector<int64_t>()[0] : state.steps;
}

// --- captures

void StatefulOptimizer::require_not_capturing(const Tensor& parameter) const {
  if (backend_for(parameter).capturing())
    fail<UsageError>(name_,
                     "a step under capture needs state that is not there yet. Call "
                     "publish_rates() and take a step before the capture.");
}

void StatefulOptimizer::publish_rates() {
  for (int g = 0; g < group_count(); ++g) {
    Group& group = groups_[std::size_t(g)];
    count_on_device(group);
    for (const Tensor& parameter : group.parameters) {
      const Device device = parameter.device();
      const bool known = std::ranges::any_of(
          group.rates, [&](const PublishedRate& rate) { return rate.value.device() == device; });
      if (known) continue;
      const MemoryScope scope(MemoryUse::optimizer_state);
      group.rates.push_back({.value = full({}, lr(g), f64, device), .written = lr(g)});
    }
    refresh_rates(g);
  }
}

void StatefulOptimizer::refresh_rates(int g) {
  for (PublishedRate& rate : groups_[std::size_t(g)].rates) {
    if (rate.written == lr(g)) continue;
    fill_with(rate.value, lr(g));
    rate.written = lr(g);
  }
}

void StatefulOptimizer::follow_replays(int group) {
  std::vector<Tensor> written;
  for (const UpdateSlot& slot : slots_)
    slot.for_each_written([&](const Tensor& x) { written.push_back(x); });
  repeat_on_replay([this, group, written = std::move(written)] {
    refresh_rates(group);
    for (const Tensor& x : written) mark_written(x);
  });
}

const Tensor& StatefulOptimizer::published_rate(const Group& group, Device device) const {
  const auto found = std::ranges::find_if(
      group.rates, [&](const PublishedRate& rate) { return rate.value.device() == device; });
  if (found == group.rates.end())
    fail<UsageError>(name_,
                     "a step under capture reads its learning rate from the device, where there "
                     "is none. Call publish_rates() before the capture.");
  return found->value;
}

}  // namespace halftone::optim
