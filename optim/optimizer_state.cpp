// The state dictionary of the optimizers of this folder, in PyTorch's names. Loading reads and
// checks everything first and changes the optimizer afterwards, so that a state that does not fit
// leaves the optimizer unchanged.
#include <halftone/optim/grouped_optimizer.h>

#include <cmath>
#include <numeric>
#include <sstream>

#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/named_tensors.h>

namespace halftone::optim {

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
      for (std::size_t i = 0; i < layout_.names.size() && !untouched; ++i) {
        if (state.tensors[i].defined())
          result[state_name(position, layout_.names[i])] = state.tensors[i];
      }
      ++position;
    }
  }
  return result;
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
      state.tensors[i] = reader.take(named(layout_.names[i]), parameter.shape());
      if (state.tensors[i].defined() && !detail::is_state_dtype(state.tensors[i].dtype()))
        reader.report(named(layout_.names[i]), " is ", state.tensors[i].dtype(),
                      " instead of f64, f32, f16 or bf16");
    }
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
    for (std::size_t i = 0; any && i < layout_.essential; ++i) {
      if (!tensors[i].defined()) reader.report(named(layout_.names[i]), " is missing");
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
