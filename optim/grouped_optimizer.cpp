// One step: for every group and device, gathers the parameters that have gradients into slots and
// makes one backend call. The device's part of a step is in device_steps.cpp, the state dictionary
// in optimizer_state.cpp.
#include <halftone/optim/grouped_optimizer.h>

#include <algorithm>
#include <cmath>

#include <halftone/autograd/node.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/optim/update_watch.h>

namespace halftone::optim {

// --- groups

void StatefulOptimizer::require_group(int group) const {
  if (group < 0 || group >= group_count())
    fail<UsageError>(name_, "there is no parameter group ", group, " among ", group_count(),
                     ". Count from 0.");
}

void StatefulOptimizer::add_parameters(std::vector<Tensor> parameters) {
  if (parameters.empty())
    fail<UsageError>(
        name_, "got an empty parameter list. Pass model.parameters() of a model that has some.");
  std::vector<const TensorBody*> known;
  for (const Group& group : groups_) {
    for (const Tensor& x : group.parameters) known.push_back(x.body().get());
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor& x = parameters[i];
    if (!x.defined()) fail<UsageError>(name_, "parameter ", i, " is undefined. Leave it out.");
    if (!is_floating(x.dtype()))
      fail<DTypeError>(name_, "parameter ", i, " is ", described(x),
                       ". Only floating tensors can be trained.");
    if (!x.is_leaf())
      fail<UsageError>(name_, "parameter ", i, ", ", described(x),
                       ", was computed. Only leaves can be trained.");
    if (has_overlap(x))
      fail<UsageError>(name_, "parameter ", i, ", ", described(x),
                       ", is expanded: several of its elements are one number in memory. Train a "
                       "clone() of it.");
    if (std::find(known.begin(), known.end(), x.body().get()) != known.end())
      fail<UsageError>(name_, "parameter ", i, ", ", described(x),
                       ", appears twice. Name each parameter once.");
    known.push_back(x.body().get());
  }
  for (const Tensor& x : parameters)
    if (x.meta()) x.meta()->in_optimizer = true;
  const std::size_t count = parameters.size(), first = known.size() - count;
  groups_.push_back({std::move(parameters), std::vector<ParameterState>(count), first});
}

// --- the step

void StatefulOptimizer::step(const StepControl& control) {
  require_unscaled(name_, control);
  for (int group = 0; group < group_count(); ++group) {
    if (control.skip.defined()) count_on_device(groups_[std::size_t(group)]);
    step_group(group, control);
  }
}

bool StatefulOptimizer::set_weight_keeper(std::shared_ptr<WeightKeeper> keeper) {
  keeper_ = std::move(keeper);
  return true;
}

Tensor StatefulOptimizer::gradient_of(const Group& group, std::size_t i) const {
  const Tensor& parameter = group.parameters[i];
  return keeper_ ? keeper_->gradient(group.first + i, parameter) : parameter.grad();
}

/// Returns the factor of a group's gradients; undefined: none.
Tensor StatefulOptimizer::factor_on(Device device, int group_index, const Tensor& asked) {
  const Tensor factor = asked.defined() ? asked.to(device) : Tensor{};
  if (!maximizes(group_index)) return factor;
  if (factor.defined()) {
    Tensor negative = empty_like(factor);
    backend_for(device).unary(call_of<UnaryFormulas>(formula::Neg{}), factor, negative);
    return negative;
  }
  Tensor& minus_one = groups_[std::size_t(group_index)].minus_one;
  if (!minus_one.defined() || minus_one.device() != device) {
    const MemoryScope scope(MemoryUse::optimizer_state);
    minus_one = full({}, -1, f32, device);
  }
  return minus_one;
}

void StatefulOptimizer::step_group(int group_index, const StepControl& control) {
  Group& group = groups_[std::size_t(group_index)];
  std::vector<Tensor>& parameters = group.parameters;
  std::vector<ParameterState>& states = group.states;
  pending_.clear();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (gradient_of(group, i).defined()) pending_.push_back(i);
  }
  // Nearly always all parameters share a device and a number of steps, and this loop runs once.
  // Order does not matter.
  for (auto begin = pending_.begin(); begin != pending_.end();) {
    const Device device = parameters[*begin].device();
    const auto steps_of = [&](std::size_t i) {
      return states[i].count.defined() ? 0 : steps_before(states[i]);
    };
    const int64_t steps = steps_of(*begin);
    const auto end = std::partition(begin, pending_.end(), [&](std::size_t i) {
      return parameters[i].device() == device && steps_of(i) == steps;
    });
    Backend& backend = backend_for(device);
    const auto here = [&](const Tensor& x) { return x.defined() ? x.to(device) : x; };
    const Tensor factor = factor_on(device, group_index, control.factor);
    Batch batch{.slots = {}, .steps = steps, .skip = here(control.skip)};
    if (backend.capturing()) batch.device_lr = published_rate(group, device);
    slots_.clear();
    const auto first = begin;
    std::vector<Tensor*> made;  // states that this step creates
    try {
      for (; begin != end; ++begin) {
        const std::size_t i = *begin;
        prepare(parameters[i], group_index, states[i], made);
        slots_.push_back({.parameter = parameters[i],
                          .gradient = gradient_of(group, i),
                          .state = states[i].tensors,
                          .gradient_factor = factor,
                          .steps = states[i].count});
        if (keeper_) keeper_->complete(group.first + i, slots_.back());
      }
      batch.slots = slots_;
      if (UpdateWatcher* const watcher = watcher_of_updates())
        update_watched(group_index, batch, backend, *watcher);
      else update(group_index, batch, backend);
    } catch (...) {  // no memory: the next step is the first one of new states again
      for (Tensor* const x : made) *x = {};
      slots_.clear();
      throw;
    }
    for (auto done = first; done != end; ++done)  // only now: the update may have run out of memory
      if (!states[*done].count.defined()) ++states[*done].steps;
    if (backend.capturing()) follow_replays(group_index);
  }
  slots_.clear();  // drops the handles, not the memory: a gradient must not outlive zero_grad()
}

/// Makes the same update twice: on f32 copies, without any rounding, and on the weights themselves.
void StatefulOptimizer::update_watched(int group, const Batch& batch, Backend& backend,
                                       UpdateWatcher& watcher) {
  const MemoryScope scope(MemoryUse::workspace);
  std::vector<UpdateSlot> copies(batch.slots.begin(), batch.slots.end());
  std::vector<Tensor> before;
  for (UpdateSlot& slot : copies) {
    before.push_back(watcher.weight_of(slot));
    slot.parameter = before.back().clone();
    slot.form = WeightForm::plain, slot.companion = {};
    for (Tensor* x : {&slot.state[0], &slot.state[1], &slot.state[2], &slot.steps})
      if (x->defined()) *x = x->clone();
  }
  Batch unrounded = batch;
  unrounded.slots = copies;
  update(group, unrounded, backend);
  for (std::size_t i = 0; i < copies.size(); ++i)
    watcher.updating(batch.slots[i], before[i], copies[i].parameter);
  update(group, batch, backend);
}

/// Returns the number of earlier steps that an update needs: only as much as it depends on.
int64_t StatefulOptimizer::steps_before(const ParameterState& state) const {
  if (!layout_.numbered) return 0;
  if (layout_.has_step) return state.steps;
  return state.tensors[0].defined() ? 1 : 0;
}

/// Creates missing state, and adds it to `made`; moves it with a parameter that changed its device.
void StatefulOptimizer::prepare(const Tensor& parameter, int group, ParameterState& state,
                                std::vector<Tensor*>& made) const {
  const MemoryScope scope(MemoryUse::optimizer_state);
  const DynamicStates needed{needed_state(group, parameter)};
  if (state.count.defined() && state.count.device() != parameter.device())
    state.count = state.count.to(parameter.device());
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    Tensor& tensor = state.tensors[i];
    if (tensor.defined()) {
      if (tensor.device() != parameter.device()) tensor = tensor.to(parameter.device());
    } else if (needed.has(int(i))) {
      require_not_capturing(parameter);
      const DType dtype = parameter.dtype() == f64 ? f64 : state_dtype(group).value_or(f32);
      Tensor zeros = empty_like(parameter, dtype);
      backend_for(zeros).fill(0, zeros);
      made.push_back(&tensor);
      tensor = std::move(zeros);
      // SGD and others have no step count of their own: here the count starts with the state.
      if (state.count.defined() && !layout_.has_step) backend_for(tensor).fill(0, state.count);
    }
  }
}

// --- options

namespace detail {

void require_not_negative(std::string_view optimizer, std::string_view option, double value) {
  if (!(value >= 0)) fail<UsageError>(optimizer, option, " is ", value, ". Use 0 or more.");
  require_finite(optimizer, option, value);
}

void require_finite(std::string_view where, std::string_view what, double value) {
  if (!std::isfinite(value)) fail<UsageError>(where, what, " is ", value, ". Use a finite number.");
}

void require_decay_rate(std::string_view optimizer, std::string_view option, double value) {
  if (!(value >= 0 && value < 1))
    fail<UsageError>(optimizer, option, " is ", value, ". Use 0 or more, below 1.");
}

bool is_state_dtype(DType dtype) {
  return dtype == f64 || dtype == f32 || dtype == f16 || dtype == bf16;
}

std::string problem_in(const std::function<void()>& check) {
  try {
    check();
    return {};
  } catch (const Error& error) {
    const std::string_view message = error.what();
    const std::size_t begin = message.find("] ");
    const std::string_view said = message.substr(begin == std::string_view::npos ? 0 : begin + 2);
    return std::string(said.substr(0, said.rfind(". ")));
  }
}

void require_state_dtype(std::string_view optimizer, std::optional<DType> dtype) {
  if (!dtype || is_state_dtype(*dtype)) return;
  fail<DTypeError>(optimizer, "state_dtype is ", *dtype, ". Use f32, bf16 or f16.");
}

}  // namespace detail

}  // namespace halftone::optim
