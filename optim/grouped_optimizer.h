// The common part of all optimizers here: parameter groups, per-parameter state, batching into
// backend calls, and the state dictionary. An elementwise optimizer adds only its options
// (ElementwiseOptimizer); any other also defines its state and update().
#pragma once

#include <array>
#include <concepts>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/optim/optimizer.h>

namespace halftone::optim {

class UpdateWatcher;  // optim/optimizer.h

template <class Options> struct ParameterGroup {
  std::vector<Tensor> parameters;
  Options options{};
};

namespace detail {

/// Throws UsageError unless 0 <= value < infinity, and for NaN.
void require_not_negative(std::string_view optimizer, std::string_view option, double value);
/// Throws UsageError for NaN and the infinities.
void require_finite(std::string_view where, std::string_view what, double value);
/// Throws UsageError unless 0 <= value < 1.
void require_decay_rate(std::string_view optimizer, std::string_view option, double value);
/// Returns whether optimizer state can have this dtype: f64, f32, f16 or bf16.
bool is_state_dtype(DType dtype);
/// Throws DTypeError unless the format is absent, a dtype of is_state_dtype(), or a coded form.
void require_state_dtype(std::string_view optimizer, std::optional<StateFormat> format);
/// Calls `check`. Returns the problem that the message of its error states, without "[optimizer] "
/// and the advice; empty if it throws nothing.
std::string problem_in(const std::function<void()>& check);

}  // namespace detail

/// The visitor to which options describe themselves, for the state dictionary.
class OptionFields {
 public:
  virtual ~OptionFields() = default;
  virtual void operator()(std::string_view name, double& value) = 0;
  virtual void operator()(std::string_view name, bool& value) = 0;
  virtual void operator()(std::string_view name, std::array<double, 2>& value) = 0;
};

/// The state tensors of one parameter, as the state dictionary names them.
struct StateLayout {
  std::array<std::string_view, 3> names{};  // PyTorch's; "" for absent ones
  std::size_t essential = 0;  // the first n exist from the first step on, if they are needed
  bool has_step = true;       // PyTorch's state has a `step`
  /// Whether an update depends on the number of steps before it: then parameters that differ in it
  /// are updated separately. Without has_step: on whether there was a step before it.
  bool numbered = true;
  StateMask positive = 0;  // bit i: the numbers of state i are never negative
  /// The name of a number in PyTorch's state that can be computed from the step (NAdam's
  /// mu_product); "" for none. It is saved for PyTorch and computed anew after loading.
  std::string_view computed{};
};

/// The state and functions of all optimizers of this folder, independent of their options.
class StatefulOptimizer : public Optimizer {
 public:
  /// From the first step with a `skip` on, parameters count their steps on the device.
  void step(const StepControl& control = {}) override;
  void publish_rates() override;
  bool set_weight_keeper(std::shared_ptr<WeightKeeper> keeper) override;
  bool set_state_formats(const StateFormats& formats) override;
  std::string_view name() const override { return name_; }
  int group_count() const override { return int(groups_.size()); }
  std::span<Tensor> group_parameters(int group) override {
    require_group(group);
    return groups_[std::size_t(group)].parameters;
  }
  int64_t state_bytes(int group, const Tensor& parameter, DType dtype, int64_t elements,
                      const StateFormats& formats) const override;
  NamedTensors state_dict() const override;
  void load_state_dict(const NamedTensors& state) override;

 protected:
  struct ParameterState {
    int64_t steps = 0;
    std::array<Tensor, 3> tensors{};  // undefined until the first step that needs them
    std::array<Coding, 3> stored{};
    Tensor count{};  // of the steps on the device; if defined, it replaces `steps`
  };
  /// A learning rate on a device, and the last value written there.
  struct PublishedRate {
    Tensor value{};  // f64 scalar
    double written = 0;
  };
  struct Group {
    std::vector<Tensor> parameters;
    std::vector<ParameterState> states;
    std::vector<int64_t> sizes;          // of the parameters as added, in elements
    std::size_t first = 0;               // its position among the parameters of all groups
    std::vector<PublishedRate> rates{};  // one per device, for captured steps
    Tensor minus_one{};                  // if the group maximizes: the factor of its gradients
  };
  /// The slots and arguments of one backend call.
  struct Batch {
    std::span<UpdateSlot> slots;
    int64_t steps = 0;  // before this one, for slots without a count of their own
    Tensor skip{}, device_lr{};

    UpdateCall call(const UpdateRule& rule, double lr) const {
      return {.rule = rule, .lr = lr, .steps = steps, .skip = skip, .device_lr = device_lr};
    }
  };

  StatefulOptimizer(std::string name, const StateLayout& layout)
      : name_(std::move(name)), layout_(layout) {}

  /// Checks and appends the parameters of a new group.
  void add_parameters(std::vector<Tensor> parameters);

  /// Return the state tensors that the options of a group need (bit i: tensor i), and the format
  /// that these options ask for, if any.
  virtual StateMask needed_state(int group, const Tensor& parameter) const = 0;
  virtual std::optional<StateFormat> state_dtype(int group) const = 0;
  /// Throws DTypeError if the state of a group cannot have a format.
  virtual void require_format(int group, StateFormat format) const = 0;
  /// Returns the shape of state tensor i: the parameter's, unless overridden.
  virtual Shape state_shape(std::size_t /*i*/, const Tensor& parameter) const {
    return parameter.shape();
  }
  /// Returns the number that StateLayout::computed names.
  virtual double computed_state(int /*group*/, int64_t /*steps*/) const { return 0; }
  /// Returns whether a group moves along its gradients instead of against them.
  virtual bool maximizes(int group) const = 0;
  /// Makes one step for the slots of a batch: one backend call for an elementwise optimizer, any
  /// number of them for others (optimizers.cpp). Only the first call may count steps: slots of
  /// later calls are copies without `steps`.
  virtual void update(int group, const Batch& batch, Backend& backend) = 0;
  virtual void describe_options(int group, OptionFields& field) = 0;
  /// Returns the problem that a group's options would have after `change` ("lr is nan"); empty:
  /// none.
  virtual std::string problem_of_options(int group, OptionFields& change) const = 0;

  /// Writes the present rate of a group to the tensors that captured steps read.
  void refresh_rates(int group);
  /// Throws UsageError for a group that does not exist.
  void require_group(int group) const;

 private:
  class Reader;
  void step_group(int group, const StepControl& control);
  void update_watched(int group, const Batch& batch, Backend& backend, UpdateWatcher& watcher);
  void count_on_device(Group& group) const;
  const Tensor& published_rate(const Group& group, Device device) const;
  void require_not_capturing(const Tensor& parameter) const;
  /// Registers what the host does when a captured step is replayed: rates, versions of tensors.
  void follow_replays(int group);
  int64_t steps_of(const ParameterState& state) const;
  StateFormat format_of(int group, std::size_t i, const StateFormats& formats) const;
  /// Returns how state i is stored. `parameter` may be a part of one with `elements` elements.
  Coding storage_of(StateFormat format, std::size_t i, const Tensor& parameter,
                    int64_t elements) const;
  int64_t steps_before(const ParameterState& state) const;
  Tensor factor_on(Device device, int group, const Tensor& factor);
  Tensor gradient_of(const Group& group, std::size_t i) const;
  std::vector<ParameterState> read_group(int group, std::size_t position, Reader& reader);
  void read_coded(CodedForm form, std::size_t i, const std::string& plain, const Tensor& parameter,
                  Reader& reader, ParameterState& state) const;
  void prepare(int group, std::size_t i, std::vector<Tensor*>& made);

  std::string name_;
  StateLayout layout_;
  std::vector<Group> groups_;
  std::shared_ptr<WeightKeeper> keeper_;
  StateFormats formats_{};
  // Kept from step to step for their capacity: steps after the first allocate nothing.
  std::vector<UpdateSlot> slots_;
  std::vector<std::size_t> pending_;
};

/// Adds typed options. `Options` is an aggregate with lr, state_dtype, maximize, static name and
/// layout (a StateLayout), describe(OptionFields&), and check(name), which throws UsageError for
/// invalid values.
template <class Options> class GroupedOptimizer : public StatefulOptimizer {
 public:
  explicit GroupedOptimizer(std::vector<Tensor> parameters, Options options = {})
      : GroupedOptimizer(std::vector{ParameterGroup<Options>{std::move(parameters), options}}) {}
  /// Takes lr as the second argument, as in PyTorch.
  template <std::floating_point Lr>
  GroupedOptimizer(std::vector<Tensor> parameters, Lr lr)
      : GroupedOptimizer(std::move(parameters), Options{.lr = double(lr)}) {}
  explicit GroupedOptimizer(std::vector<ParameterGroup<Options>> groups)
      : StatefulOptimizer(std::string(Options::name), Options::layout) {
    if (groups.empty())
      fail<UsageError>(
          name(), "got no parameter groups. Pass model.parameters() of a model that has some.");
    for (auto& group : groups) add_group(std::move(group));
  }

  /// Returns the options of a group, to read or to change between steps. A captured step sees a
  /// changed lr after publish_rates(), and never sees other changes.
  Options& options(int group = 0) {
    require_group(group);
    return options_[std::size_t(group)];
  }
  double lr(int group) const override {
    require_group(group);
    return options_of(group).lr;
  }
  using Optimizer::lr;
  void set_lr(double lr, int group) override {
    Options changed = options(group);
    changed.lr = lr;
    changed.check(name());
    options(group) = changed;
    refresh_rates(group);
  }
  using Optimizer::set_lr;

  /// Adds parameters, with options of their own. As torch's add_param_group.
  void add_group(ParameterGroup<Options> group) {
    group.options.check(name());
    add_parameters(std::move(group.parameters));
    options_.push_back(group.options);
  }

 protected:
  const Options& options_of(int group) const { return options_[std::size_t(group)]; }

  std::optional<StateFormat> state_dtype(int group) const override {
    return options_of(group).state_dtype;
  }
  void require_format(int group, StateFormat format) const override {
    Options changed = options_of(group);
    changed.state_dtype = format;
    changed.check(name());
  }
  bool maximizes(int group) const override { return options_of(group).maximize; }
  void describe_options(int group, OptionFields& field) override { options(group).describe(field); }
  std::string problem_of_options(int group, OptionFields& change) const override {
    Options changed = options_of(group);
    changed.describe(change);
    return detail::problem_in([&] { changed.check(name()); });
  }

 private:
  std::vector<Options> options_;
};

/// Steps by the rule of core/update_rules.h that Options::rule() returns.
template <class Options> class ElementwiseOptimizer final : public GroupedOptimizer<Options> {
 public:
  using GroupedOptimizer<Options>::GroupedOptimizer;
  bool elementwise() const override { return true; }

 private:
  StateMask needed_state(int group, const Tensor& /*parameter*/) const override {
    return this->options_of(group).rule().states();
  }
  void update(int group, const StatefulOptimizer::Batch& batch, Backend& backend) override {
    const Options& options = this->options_of(group);
    backend.update(batch.slots, batch.call(options.rule(), options.lr));
  }
  double computed_state(int group, int64_t steps) const override {
    if constexpr (requires(const Options& options) { options.computed(steps); })
      return this->options_of(group).computed(steps);
    else return 0;
  }
};

}  // namespace halftone::optim
