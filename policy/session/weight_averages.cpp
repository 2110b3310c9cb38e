// One f32 tensor per use of a weight.
#include <halftone/policy/session/weight_averages.h>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>

namespace halftone::policy {

Tensor WeightAverages::average_for(const std::string& name, double share, const Tensor& x,
                                   int64_t step, bool updates) {
  const MemoryScope scope(MemoryUse::optimizer_state);
  Memory& memory = memories_[name];
  Tensor& average = memory.average;
  if (!average.defined()) {
    const auto saved = waiting_.extract(name);
    if (saved && saved.mapped().shape() == x.shape()) average = saved.mapped();
  }
  if (!average.defined() || average.shape() != x.shape()) {
    average = empty(x.shape(), f32, x.device());
    backend_for(x).copy(x, average);
    memory.step = step;
    return average;
  }
  if (average.device() != x.device()) average = average.to(x.device());
  if (updates && memory.step != step) {
    memory.step = step;
    backend_for(x).lerp(x, 1 - share, average);
  }
  return average;
}

void WeightAverages::add_to(NamedTensors& state) const {
  for (const auto& [name, average] : waiting_) state["average." + name] = average;
  for (const auto& [name, memory] : memories_) state["average." + name] = memory.average;
}

void WeightAverages::load(const NamedTensors& state) {
  constexpr std::string_view prefix = "average.";
  const MemoryScope scope(MemoryUse::optimizer_state);
  NamedTensors loaded;
  for (const auto& [name, x] : state) {
    if (!name.starts_with(prefix)) continue;
    if (!x.defined() || x.dtype() != f32)
      fail<UsageError>("policy.load_state_dict", "the entry ", in_quotes(name), " is ",
                       described(x),
                       ". Averages of weights are f32. Load a state that was saved "
                       "under this policy.");
    loaded[name.substr(prefix.size())] = x.clone();
  }
  memories_.clear(), waiting_ = std::move(loaded);
}

}  // namespace halftone::policy
