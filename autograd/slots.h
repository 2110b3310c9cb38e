// Slots: the places that higher layers fill to see, cast or change what runs here, and whether
// anything is recorded.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/autograd/node.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/language.h>
#include <halftone/core/op_info.h>
#include <halftone/core/tensor.h>

namespace halftone {

// Whether operations are recorded. Per thread; a new thread starts with recording on.

namespace detail {
inline thread_local bool recording = true;
inline constinit thread_local ScopeOrder<bool> recording_scopes;
}  // namespace detail

inline bool grad_enabled() { return detail::recording; }

/// Turns recording off until the scope ends: for evaluation, initialization and updates. As
/// torch.no_grad().
class NoGrad {
 public:
  [[nodiscard]] NoGrad()
      : number_(detail::recording_scopes.begin()),
        before_(std::exchange(detail::recording, false)) {}
  ~NoGrad() { detail::recording_scopes.end(number_, before_, detail::recording); }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  int number_;
  bool before_;
};

/// Turns recording on inside a NoGrad scope: recomputation under checkpoint() needs it.
class EnableGrad {
 public:
  [[nodiscard]] EnableGrad()
      : number_(detail::recording_scopes.begin()),
        before_(std::exchange(detail::recording, true)) {}
  ~EnableGrad() { detail::recording_scopes.end(number_, before_, detail::recording); }
  EnableGrad(const EnableGrad&) = delete;
  EnableGrad& operator=(const EnableGrad&) = delete;

 private:
  int number_;
  bool before_;
};

// The slot for a precision policy. apply() passes an operation's inputs to the active caster
// before it computes, and the caster may replace them by recorded casts. autograd/ only declares
// the slot; amp/ fills it. The slot is per thread and empty in a new one. It holds a shared
// pointer so that a checkpointed segment or a custom function can keep its caster beyond the
// region's end.

class OpTap;
enum class CodedForm : uint8_t;  // core/formats/coded_form.h

/// The caster's requests for one operation beyond the casts of its inputs.
struct CastPlan {
  bool f32_result = false;                  // compute from short floats straight to f32
  std::optional<DType> result{};            // return the result in this dtype, by a recorded cast
  std::shared_ptr<OpTap> tap{};             // wraps the operation; null: none
  std::optional<Accumulator> accumulate{};  // for operations that declare a member `accumulate`
  std::optional<bool> tf32{};               // core/device.h, forward and backward
  /// The form of activations stored for backward. Bit i of `parameters`: input i is a parameter.
  CodedForm saved{};
  uint32_t parameters = 0;
};

class InputCaster {
 public:
  virtual ~InputCaster() = default;
  /// Returns the plan of an operation; may replace inputs (undefined ones stay) by casts. Recording
  /// is on or off during the call as the user set it. If the operation can compute from short
  /// floats to f32 (`has_f32_result`), the plan may choose that instead of casts to f32.
  virtual CastPlan plan(const OpInfo& op, std::span<Tensor> inputs, bool has_f32_result) = 0;
  /// Returns whether this caster may round tensors to grids of short formats. If so, operations get
  /// their inputs in the dtype that they compute in.
  virtual bool treats() const { return false; }
  /// Returns a plan if this caster rounds tensors inside of the operation. It has then cast the
  /// inputs, and the operation's parts run one by one, each under this caster. Only `result` of the
  /// plan is used.
  virtual std::optional<CastPlan> open(const OpInfo& /*op*/, std::span<Tensor> /*inputs*/) {
    return {};
  }
  /// Casts the inputs and nothing else, for a function that computes this operation by other ones.
  virtual void cast_inputs(const OpInfo& op, std::span<Tensor> inputs) = 0;
};

using CasterSlot = Slot<std::shared_ptr<InputCaster>>;
using CasterScope = CasterSlot::Scope;
inline InputCaster* active_caster() { return CasterSlot::current().get(); }
inline const std::shared_ptr<InputCaster>& shared_active_caster() { return CasterSlot::current(); }

// The hook around an operation, forward and backward: for a policy that rounds operands, an
// observer that counts, or both. A caster returns it when the operation begins (CastPlan::tap). The
// operation's node stores it, so backward needs no lookup. A tap changes values, never the dtype,
// shape, device or graph. Edges are made from the original inputs, so gradients pass a rounding
// unchanged (the straight-through estimator, by the absence of a node).

struct Node;

/// The operation that a tap wraps.
class Computation {
 public:
  /// Runs the operation and returns its result. Backward will use the tensors that this run saves.
  virtual Tensor run(std::span<const Tensor> inputs) = 0;
  /// Runs a copy of the operation on `inputs`, which may have other dtypes than the actual ones,
  /// and returns its result. If `kept` is not null, it receives the copy as a node: backward() of
  /// that node gives gradients in the dtypes of `inputs`. Throws UnsupportedError for operations
  /// with effects beyond their result (member `once` of OpInfo), and for a user's operation that
  /// cannot be copied.
  virtual Tensor aside(std::span<const Tensor> inputs, std::shared_ptr<Node>* kept = nullptr) = 0;
  /// Returns whether save() works: the operation has a member function `save` that stores what
  /// forward would, without computing the result.
  virtual bool saves_apart() const { return false; }
  /// Called after run(), makes backward use these inputs in place of those of the run.
  virtual void save(std::span<const Tensor> /*inputs*/) {}

 protected:
  ~Computation() = default;
};

/// Wraps an operation. Its results must have the dtypes, shapes and devices of the originals:
/// apply() checks the result, the engine the gradients.
class OpTap {
 public:
  virtual ~OpTap() = default;
  /// Returns the operation's result: operation.run(inputs), with the tap's changes to both.
  virtual Tensor forward(std::span<const Tensor> inputs, Computation& operation) = 0;
  /// Returns one gradient per input: node.backward(dy), or node.backward_for() for some inputs.
  virtual std::vector<Tensor> backward(Node& node, const Tensor& dy) = 0;
};

/// A computation of a known operation, whose attributes a tap can read:
/// `dynamic_cast<const ComputationOf<Reshape>*>(&computation)->operation().to`.
template <class Op> class ComputationOf : public Computation {
 public:
  virtual const Op& operation() const = 0;

 protected:
  ~ComputationOf() = default;
};

// The stack of modules that are being called, as a list on the stack of the thread, innermost
// first. autograd/ only stores the list. nn/ opens a scope in Layer::operator(). A policy reads the
// list and turns (module, operation, ordinal) into the name of a site.

/// Copies of the buffers of a module and of all modules below it. nn/ implements it.
class HeldBuffers {
 public:
  virtual ~HeldBuffers() = default;
  /// Writes the copies into the buffers.
  virtual void restore() const = 0;
  /// Drops the copies of buffers that have not been written since. Returns whether any is left.
  virtual bool keep_changed() = 0;
  /// Returns copies of the same buffers as they are now.
  virtual std::shared_ptr<HeldBuffers> now() const = 0;
};
using ListOfHeldBuffers = std::vector<std::shared_ptr<HeldBuffers>>;

class CallScope {
 public:
  using Hold = std::shared_ptr<HeldBuffers> (*)(const void* owner);
  /// A copy of the scope in which a checkpointed segment was recorded, so that the operations of a
  /// second run get the same sites.
  struct Place {
    const void* owner = nullptr;
    std::string_view label{};
    std::vector<const OpInfo*> begun{};
    Hold hold = nullptr;
  };

  /// `owner`: a module; `label`: a part of it that is not a module ("lm_head"). The text of `label`
  /// must outlive the scope. `hold` copies the buffers of the owner.
  [[nodiscard]] explicit CallScope(const void* owner, std::string_view label = {},
                                   Hold hold = nullptr)
      : owner_(owner), label_(label), hold_(hold), outer_(std::exchange(innermost_, this)) {
    if (held_ && !holder(outer_)) hold_here();
  }
  [[nodiscard]] explicit CallScope(Place place)
      : owner_(place.owner),
        label_(place.label),
        hold_(place.hold),
        outer_(std::exchange(innermost_, this)),
        begun_(std::move(place.begun)) {}
  ~CallScope() { innermost_ = outer_; }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// Returns the innermost scope of this thread, or null outside of every module.
  static const CallScope* innermost() { return innermost_; }

  const void* owner() const { return owner_; }
  std::string_view label() const { return label_; }
  const CallScope* outer() const { return outer_; }
  /// Returns the number of earlier calls for this operation in this scope, without scopes inside
  /// it: 0, 1, ... Only casters that name sites call it.
  int next_ordinal(const OpInfo& op) const;
  Place place() const { return {owner_, label_, begun_, hold_}; }

  /// While it exists, `held` gets copies of buffers. Inside of a module, these are the module's, at
  /// once; outside of all modules, those of each outermost module, before its call.
  class Holding {
   public:
    explicit Holding(ListOfHeldBuffers& held) : outer_(std::exchange(held_, &held)) {
      if (const CallScope* scope = holder(innermost_)) scope->hold_here();
    }
    ~Holding() { held_ = outer_; }
    Holding(const Holding&) = delete;
    Holding& operator=(const Holding&) = delete;

   private:
    ListOfHeldBuffers* outer_;
  };

 private:
  /// Returns the first scope, from `scope` outwards, that can copy buffers; null if there is none.
  static const CallScope* holder(const CallScope* scope) {
    while (scope && !scope->hold_) scope = scope->outer_;
    return scope;
  }
  void hold_here() const {
    if (hold_) held_->push_back(hold_(owner_));
  }

  static inline constinit thread_local const CallScope* innermost_ = nullptr;
  static inline constinit thread_local ListOfHeldBuffers* held_ = nullptr;

  const void* owner_;
  std::string_view label_;
  Hold hold_;
  const CallScope* outer_;
  mutable std::vector<const OpInfo*> begun_{};  // empty until the first call of next_ordinal()
};

inline int CallScope::next_ordinal(const OpInfo& op) const {
  int before = 0;
  for (const OpInfo* other : begun_) before += other == &op ? 1 : 0;
  begun_.push_back(&op);
  return before;
}

// The slot for a receiver of gradients before a backward pass ends, for example to send them while
// the rest of it computes. Per thread, like the caster's slot.

class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// Called during backward() when leaf.grad has all that this pass will add to it. The listener
  /// may move leaf.grad away. Some leaves are not reported: those below a branch without gradients,
  /// those with hooks, and all leaves if a checkpointed segment hides uses.
  virtual void on_gradient(AutogradMeta& leaf) = 0;
};

using GradientListenerSlot = Slot<GradientListener*>;
using GradientListenerScope = GradientListenerSlot::Scope;

// A watch that backward() informs of every leaf that a gradient reaches, also in the nested passes
// of checkpointed segments.

using LeafWatcher = std::function<void(const AutogradMeta& leaf, const Edge& edge)>;

using LeafWatchSlot = Slot<const LeafWatcher*>;

class LeafWatch {
 public:
  [[nodiscard]] explicit LeafWatch(LeafWatcher watcher)
      : watcher_(std::move(watcher)), scope_(&watcher_) {}

 private:
  LeafWatcher watcher_;
  LeafWatchSlot::Scope scope_;
};

// Marks gradients of a loss that was multiplied by a loss scale, until they are written again: a
// step that uses them unchanged is a mistake.

/// From now on, gradients that pass through the operation that made this tensor count as scaled.
inline void mark_scaled_loss(const Tensor& loss) {
  if (loss.meta() && loss.meta()->creator) loss.meta()->creator->scales_loss = true;
}

/// Returns whether the gradient of a leaf is that of a scaled loss. A write into the gradient
/// (unscaling, clipping) or its replacement ends that.
inline bool has_scaled_gradient(const Tensor& leaf) {
  const AutogradMeta* const meta = leaf.meta().get();
  return meta && meta->scaled_version && meta->grad.defined() &&
         meta->grad.storage()->version() == *meta->scaled_version;
}

// The slot that keeps running statistics equal on several processes. While it is filled, batch norm
// passes its measured statistics to it instead of updating its running statistics. They are updated
// later, in the order of the batches. Per thread, like the caster's slot.

/// The statistics that a batch norm measured on one batch.
struct BatchStatistics {
  Tensor running_mean, running_var;  // the buffers to update
  Tensor mean, variance;             // of the batch, in statistics_dtype(); variance unbiased
  double momentum = 0;
};

/// Returns the dtype of a batch's statistics: f32 for short running ones, so that a variance beyond
/// f16's range is rounded only after the momentum is applied.
inline DType statistics_dtype(const Tensor& running) { return running.dtype() == f64 ? f64 : f32; }

class StatisticsSink {
 public:
  virtual ~StatisticsSink() = default;
  virtual void measured(const BatchStatistics& batch) = 0;
  /// Reports that a layer has seen a batch: `batches`, an i64 scalar on the host, must count it.
  virtual void counted(const Tensor& batches) = 0;
  /// Returns whether statistics are dropped, so that no layer needs to know their weight.
  virtual bool drops() const { return false; }
};

/// Drops statistics: for passes that repeat another pass.
struct NoStatistics final : StatisticsSink {
  void measured(const BatchStatistics&) override {}
  void counted(const Tensor&) override {}
  bool drops() const override { return true; }
};

using StatisticsSlot = Slot<StatisticsSink*>;
using StatisticsScope = StatisticsSlot::Scope;
inline StatisticsSink* active_statistics_sink() { return StatisticsSlot::current(); }

/// Updates running statistics with one batch, as batch norm does: r += momentum (x - r).
void move_running_statistics(const BatchStatistics& batch);

}  // namespace halftone
