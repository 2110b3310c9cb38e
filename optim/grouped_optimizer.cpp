// One step: for every group and device, gathers the parameters that have gradients into slots and
// makes one backend call. The device's part of a step and the state dictionary follow.
#include <halftone/optim/grouped_optimizer.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include <halftone/autograd/node.h>
#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/named_tensors.h>
#include <halftone/optim/optimizer.h>
#include <halftone/optim/optimizers.h>

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
  std::vector<int64_t> sizes;
  for (const Tensor& x : parameters) sizes.push_back(x.numel());
  groups_.push_back(
      {std::move(parameters), std::vector<ParameterState>(count), std::move(sizes), first});
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
        prepare(group_index, i, made);
        slots_.push_back({.parameter = parameters[i],
                          .gradient = gradient_of(group, i),
                          .state = states[i].tensors,
                          .stored = states[i].stored,
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

// --- formats of state

bool StatefulOptimizer::set_state_formats(const StateFormats& formats) {
  const std::span names(layout_.names.begin(), std::ranges::find(layout_.names, ""));
  const std::vector<std::string_view> of_others = state_names();
  for (const auto& [state, format] : formats.by_name) {
    // A policy is for several optimizers: it may name states that only others have.
    const bool meant_for_another =
        formats.others && std::ranges::find(of_others, state) != of_others.end();
    if (std::ranges::find(names, state) == names.end() && !meant_for_another)
      fail<UsageError>(name_, "the state \"", state, "\" is unknown. Name one of ",
                       listed(std::vector<std::string>(names.begin(), names.end())), ".");
  }
  for (int group = 0; group < group_count(); ++group)
    for (std::size_t i = 0; i < layout_.names.size(); ++i)
      if (!layout_.names[i].empty()) require_format(group, format_of(group, i, formats));
  formats_ = formats;
  return true;
}

StateFormat StatefulOptimizer::format_of(int group, std::size_t i,
                                         const StateFormats& formats) const {
  const auto found = formats.by_name.find(std::string(layout_.names[i]));
  if (found != formats.by_name.end()) return found->second;
  if (const auto own = state_dtype(group)) return *own;
  return formats.others.value_or(f32);
}

Coding StatefulOptimizer::storage_of(StateFormat format, std::size_t i, const Tensor& parameter,
                                     int64_t elements) const {
  constexpr int64_t least_coded = 4096;
  const bool coded = format.coded() && elements >= least_coded && parameter.dtype() != f64 &&
                     parameter.is_dense() && state_shape(i, parameter) == parameter.shape();
  if (!coded) return {};
  return {format.form, !DynamicStates{layout_.positive}.has(int(i))};
}

int64_t StatefulOptimizer::state_bytes(int group, const Tensor& parameter, DType dtype,
                                       int64_t elements, const StateFormats& formats) const {
  const DynamicStates needed{needed_state(group, parameter)};
  int64_t bytes = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    if (!needed.has(int(i))) continue;
    const StateFormat format = format_of(group, i, formats);
    const int64_t own =
        numel_of(state_shape(i, parameter)) * elements / std::max<int64_t>(parameter.numel(), 1);
    if (dtype != f64 && storage_of(format, i, parameter, parameter.numel()).coded())
      bytes += facts(format.form).blocks(own) * facts(format.form).block_bytes();
    else bytes += own * size_of(dtype == f64 ? f64 : format.dtype);
  }
  return bytes;
}

/// Creates missing state, and adds it to `made`; moves it with a parameter that changed its device.
void StatefulOptimizer::prepare(int group_index, std::size_t number, std::vector<Tensor*>& made) {
  const MemoryScope scope(MemoryUse::optimizer_state);
  Group& group = groups_[std::size_t(group_index)];
  const Tensor& parameter = group.parameters[number];
  ParameterState& state = group.states[number];
  const DynamicStates needed{needed_state(group_index, parameter)};
  if (state.count.defined() && state.count.device() != parameter.device())
    state.count = state.count.to(parameter.device());
  for (std::size_t i = 0; i < state.tensors.size(); ++i) {
    Tensor& tensor = state.tensors[i];
    if (tensor.defined()) {
      if (tensor.device() != parameter.device()) tensor = tensor.to(parameter.device());
    } else if (needed.has(int(i))) {
      require_not_capturing(parameter);
      made.push_back(&tensor);
      const StateFormat format = format_of(group_index, i, formats_);
      state.stored[i] = storage_of(format, i, parameter, group.sizes[number]);
      if (state.stored[i].coded()) {
        tensor = coded_zeros(state.stored[i].form, parameter.numel(), parameter.device());
      } else {
        const DType dtype = parameter.dtype() == f64 ? f64 : format.dtype;
        const Shape shape = state_shape(i, parameter);
        Tensor zeros = shape == parameter.shape() ? empty_like(parameter, dtype)
                                                  : empty(shape, dtype, parameter.device());
        backend_for(zeros).fill(0, zeros);
        tensor = std::move(zeros);
      }
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
  } catch (const Error& error) { return std::string(error.problem()); }
}

void require_state_dtype(std::string_view optimizer, std::optional<StateFormat> format) {
  if (!format || format->coded() || is_state_dtype(format->dtype)) return;
  fail<DTypeError>(optimizer, "state_dtype is ", *format,
                   ". Use f32, bf16 or f16, or a CodedForm.");
}

}  // namespace detail

// The parts of a step that the device decides: whether it happens (StepControl::skip), the count of
// steps, and under capture the learning rate. Counts and rates are created once, outside of
// captures: otherwise their fills would be recorded and run at every replay.

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

// The state dictionary of the optimizers of this folder, in PyTorch's names. Loading reads and
// checks everything first and changes the optimizer afterwards, so that a state that does not fit
// leaves the optimizer unchanged.

/// Takes entries by name and collects all problems, so that one error reports them together.
class StatefulOptimizer::Reader {
 public:
  Reader(const std::string& optimizer, const NamedTensors& given)
      : where_(optimizer + ".load_state_dict"),
        entries_(where_, "the same kind of optimizer", given) {}

  /// Undefined if there is none of that name.
  Tensor take(const std::string& name) { return entries_.find(name); }
  /// The same, with a shape that must agree.
  Tensor take(const std::string& name, const Shape& shape) {
    Tensor x = take(name);
    if (x.defined() && x.shape() != shape) report(name, " is ", x.shape(), " instead of ", shape);
    return x;
  }
  template <class... Parts> void report(const Parts&... parts) {
    PlainText text;
    (text << ... << parts);
    problems_.push_back(text.str());
  }
  void finish() {
    for (const auto& [name, x] : entries_.rest()) report(shortened(name, 80), " is unknown");
    if (problems_.empty()) return;
    fail<UsageError>(where_, "the state does not fit: ", listed(problems_),
                     ". Load what the same kind of optimizer saved for the same parameters.");
  }

 private:
  std::string where_;
  Entries entries_;
  std::vector<std::string> problems_{};
};

namespace {

std::string option_name(int group, std::string_view name) {
  return "param_groups." + std::to_string(group) + "." + std::string(name);
}
std::string state_name(std::size_t parameter, std::string_view name) {
  return "state." + std::to_string(parameter) + "." + std::string(name);
}

/// Returns the end of the name of a coded state: ".8bit".
std::string suffix_of(CodedForm form) {
  return form == CodedForm::plain ? std::string() : '.' + std::string(halftone::name(form));
}

/// Returns positions of a group's parameters among all: PyTorch's param_groups[i]["params"].
std::vector<int64_t> positions(std::size_t first, std::size_t count) {
  std::vector<int64_t> result(count);
  std::iota(result.begin(), result.end(), int64_t(first));
  return result;
}

struct SaveOptions final : OptionFields {
  NamedTensors& state;
  int group;
  SaveOptions(NamedTensors& target, int of_group) : state(target), group(of_group) {}
  void operator()(std::string_view name, double& value) override {
    state[option_name(group, name)] = scalar(value, f64);
  }
  void operator()(std::string_view name, bool& value) override {
    state[option_name(group, name)] = scalar(value ? 1 : 0, boolean);
  }
  void operator()(std::string_view name, std::array<double, 2>& value) override {
    state[option_name(group, name)] = from({value[0], value[1]}, f64);
  }
};

/// Reads values from a state that has been checked. Options that it lacks keep their values, so
/// that states from other programs can be loaded.
struct LoadOptions final : OptionFields {
  const NamedTensors& state;
  int group;
  LoadOptions(const NamedTensors& source, int of_group) : state(source), group(of_group) {}
  void operator()(std::string_view name, double& value) override {
    if (const Tensor* x = find(name)) value = x->item();
  }
  void operator()(std::string_view name, bool& value) override {
    if (const Tensor* x = find(name)) value = x->item() != 0;
  }
  void operator()(std::string_view name, std::array<double, 2>& value) override {
    if (const Tensor* x = find(name)) value = {x->at({0}), x->at({1})};
  }

 private:
  const Tensor* find(std::string_view name) const {
    const auto entry = state.find(option_name(group, name));
    return entry == state.end() || !entry->second.defined() ? nullptr : &entry->second;
  }
};

/// Returns whether a number is a valid step count: doubles represent all of these exactly.
bool is_count(double value) { return value >= 0 && value < 0x1p53 && value == std::floor(value); }

Tensor owned_copy(const Tensor& x, Device device) {
  const MemoryScope scope(MemoryUse::optimizer_state);
  return x.device() == device ? x.clone() : x.to(device);
}

}  // namespace

NamedTensors StatefulOptimizer::state_dict() const {
  auto& self = const_cast<StatefulOptimizer&>(
      *this);  // describe_options() gives write access; saving only reads
  NamedTensors result;
  std::size_t position = 0;
  for (int g = 0; g < group_count(); ++g) {
    const Group& group = groups_[std::size_t(g)];
    result[option_name(g, "params")] =
        from_vector(positions(position, group.states.size()), {int64_t(group.states.size())}, i64);
    SaveOptions save(result, g);
    self.describe_options(g, save);
    for (const ParameterState& state : group.states) {
      const int64_t steps = steps_of(state);
      // All steps were skipped on the device: the tensors exist, but nothing was written to them.
      const bool untouched = state.count.defined() && steps == 0;
      if (layout_.has_step && steps > 0)
        result[state_name(position, "step")] = scalar(double(steps), i64);
      if (!layout_.computed.empty() && steps > 0)
        result[state_name(position, layout_.computed)] = scalar(computed_state(g, steps), f32);
      for (std::size_t i = 0; i < layout_.names.size() && !untouched; ++i) {
        if (state.tensors[i].defined())
          result[state_name(position, layout_.names[i]) + suffix_of(state.stored[i].form)] =
              state.tensors[i];
      }
      ++position;
    }
  }
  return result;
}

/// Reads state i in a form, if there is one of that name.
void StatefulOptimizer::read_coded(CodedForm form, std::size_t i, const std::string& plain,
                                   const Tensor& parameter, Reader& reader,
                                   ParameterState& state) const {
  const std::string name = plain + suffix_of(form);
  const CodedFormFacts f = facts(form);
  const Tensor blocks = reader.take(name, {f.blocks(parameter.numel()), f.block_bytes()});
  if (!blocks.defined()) return;
  if (blocks.dtype() != u8) reader.report(name, " is ", blocks.dtype(), " instead of u8");
  if (parameter.dtype() == f64 || !parameter.is_dense())
    reader.report(name, " is for an f32 or short parameter without gaps, which ",
                  described(parameter), " is not");
  state.tensors[i] = blocks;
  state.stored[i] = {form, !DynamicStates{layout_.positive}.has(int(i))};
}

std::vector<StatefulOptimizer::ParameterState> StatefulOptimizer::read_group(int g,
                                                                             std::size_t position,
                                                                             Reader& reader) {
  const Group& group = groups_[std::size_t(g)];
  const std::string params = option_name(g, "params");
  const Tensor members = reader.take(params);
  if (!members.defined()) reader.report(params, " is missing");
  else if (members.dtype() != i64)
    reader.report(params, " is ", members.dtype(), " instead of i64");
  else if (members.to_vector<int64_t>() != positions(position, group.states.size()))
    reader.report(params, " names ", members.numel(), " parameters, the group has ",
                  group.states.size());

  NamedTensors options, given;
  SaveOptions own(options, g);
  describe_options(g, own);
  for (const auto& [name, x] : options)
    if (Tensor value = reader.take(name, x.shape()); value.defined() && value.shape() == x.shape())
      given[name] = std::move(value);
  LoadOptions load(given, g);
  if (const std::string problem = problem_of_options(g, load); !problem.empty())
    reader.report(option_name(g, problem));

  std::vector<ParameterState> states;
  for (const Tensor& parameter : group.parameters) {
    ParameterState& state = states.emplace_back();
    const auto named = [&](std::string_view name) { return state_name(position, name); };
    for (std::size_t i = 0; i < layout_.names.size(); ++i) {
      if (layout_.names[i].empty()) continue;
      state.tensors[i] = reader.take(named(layout_.names[i]), state_shape(i, parameter));
      if (state.tensors[i].defined() && !detail::is_state_dtype(state.tensors[i].dtype()))
        reader.report(named(layout_.names[i]), " is ", state.tensors[i].dtype(),
                      " instead of f64, f32, f16 or bf16");
      for (std::size_t f = 1; f < words_of<CodedForm>.size() && !state.tensors[i].defined(); ++f)
        read_coded(CodedForm(f), i, named(layout_.names[i]), parameter, reader, state);
      if (!state.stored[i].coded()) continue;
      const auto takes = [&] { require_format(g, state.stored[i].form); };
      if (!detail::problem_in(takes).empty())
        reader.report(named(layout_.names[i]), suffix_of(state.stored[i].form),
                      " is in a form that this optimizer does not have");
    }
    if (!layout_.computed.empty()) reader.take(named(layout_.computed), {});
    const Tensor steps = layout_.has_step ? reader.take(named("step"), {}) : Tensor{};
    const auto& tensors = state.tensors;
    const bool any =
        steps.defined() || tensors[0].defined() || tensors[1].defined() || tensors[2].defined();
    if (steps.defined() && steps.numel() == 1) {
      const double count = steps.item();
      if (is_count(count)) state.steps = int64_t(count);
      else
        reader.report(named("step"), " is ", count, " instead of a whole number from 0 below 2^53");
    }
    if (any && layout_.has_step && !steps.defined()) reader.report(named("step"), " is missing");
    const DynamicStates needed{needed_state(g, parameter)};
    for (std::size_t i = 0; any && i < layout_.essential; ++i) {
      if (needed.has(int(i)) && !tensors[i].defined())
        reader.report(named(layout_.names[i]), " is missing");
    }
    ++position;
  }
  return states;
}

void StatefulOptimizer::load_state_dict(const NamedTensors& given) {
  Reader reader(name_, given);
  std::vector<std::vector<ParameterState>> loaded;
  std::size_t position = 0;
  for (int g = 0; g < group_count(); ++g) {
    loaded.push_back(read_group(g, position, reader));
    position += loaded.back().size();
  }
  reader.finish();
  for (int g = 0; g < group_count(); ++g) {
    LoadOptions load(given, g);
    describe_options(g, load);
    Group& group = groups_[std::size_t(g)];
    group.states = std::move(loaded[std::size_t(g)]);
    for (std::size_t i = 0; i < group.states.size(); ++i) {
      for (Tensor& x : group.states[i].tensors) {
        if (x.defined()) x = owned_copy(x, group.parameters[i].device());
      }
    }
    refresh_rates(g);
  }
}

}  // namespace halftone::optim
