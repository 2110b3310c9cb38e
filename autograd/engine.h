// The reverse pass: from tensors back to the leaves, newest operation first.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <halftone/autograd/apply.h>
#include <halftone/autograd/node.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/random.h>
#include <halftone/core/tensor.h>

namespace halftone {

struct BackwardOptions {
  Tensor gradient{};  // of root, with its shape and dtype; undefined: 1, if root has one element
  bool retain_graph = false;  // saved tensors are kept; else each is freed with its operation
  /// The gradients have a history of their own: a second backward can start from them. Implies
  /// retain_graph. A leaf then owns its gradient, and the history of that gradient owns the leaf.
  /// So neither is freed until the leaf gives its gradient up: by zero_grad(), set_grad({}), or a
  /// backward() that adds to it without create_graph.
  bool create_graph = false;
};

/// Accumulates the gradients of `root` into the leaves it depends on. As torch.autograd.backward.
/// Throws UsageError if `root` has no history or its graph was freed, and if it has several
/// elements and options.gradient is undefined. Throws ShapeError if options.gradient is not of
/// root's shape and dtype. Throws DTypeError or ShapeError if an operation returns a gradient that
/// does not fit. Throws UnsupportedError for an operation without a gradient, or with create_graph
/// without a second one (docs/operations.md).
void backward(const Tensor& root, const BackwardOptions& options = {});

namespace autograd {

struct GradOptions {
  /// One per output, of its shape and dtype; undefined or missing: ones, for outputs of one element
  std::vector<Tensor> grad_outputs{};
  bool retain_graph = false;
  /// If true, an input that the outputs do not depend on gets an undefined gradient; else it is an
  /// error
  bool allow_unused = false;
  /// The gradients have a history: they can be part of a loss, or be differentiated again. Implies
  /// retain_graph. Only operations between the outputs and the inputs are differentiated.
  bool create_graph = false;
};

/// Returns the gradients of the sum of `outputs` with respect to `inputs` (leaves or computed
/// tensors), one for each; no leaf's grad() changes. As torch.autograd.grad. Throws as backward()
/// does. Throws UsageError for an input that needs no gradient or, unless allow_unused, is not
/// reached, and for outputs that depend on a checkpointed segment.
std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                         const GradOptions& options = {});
std::vector<Tensor> grad(const Tensor& output, const std::vector<Tensor>& inputs,
                         const GradOptions& options = {});

}  // namespace autograd

// Functions on the gradient of a tensor. backward() calls them with the whole gradient: to watch,
// clip or replace it. As torch.Tensor.register_hook.

/// Names a registered hook. A copy names the same hook. The handle does not keep the tensor alive,
/// and its destruction does not remove the hook.
class HookHandle {
 public:
  HookHandle() = default;
  /// Removes the hook. Does nothing the second time, or if the tensor is gone.
  void remove();

 private:
  friend HookHandle register_hook(const Tensor& x, GradientHook hook);
  std::weak_ptr<AutogradMeta> leaf_;
  std::weak_ptr<Node> node_;
  uint64_t number_ = 0;
};

/// Registers `hook`. From the next backward() on, it gets the gradient of x once per pass, summed
/// over all uses of x: for a leaf before it is added to grad(), for a computed tensor before it
/// goes on to its inputs. A tensor that the hook returns (of the same shape and dtype) replaces the
/// gradient; an undefined one changes nothing. Several hooks run in the order of registration.
/// Nothing is recorded inside. Throws UsageError if x needs no gradient, or if `hook` is empty.
HookHandle register_hook(const Tensor& x, GradientHook hook);

// Lists the tensors that operations save for their backward, read from their members: an operation
// is a plain struct, so that its tensors can be listed without its help. None of this runs during a
// step, and no node knows of it: a reader of a graph (autograd/inspect.h) asks from outside.

namespace detail {

/// Adds to `list` the defined tensors in `member`: a tensor, a vector, an optional, or a struct
/// with such members, in their order.
template <class M> void list_tensors(const M& member, std::vector<Tensor>& list) {
  if constexpr (std::same_as<M, Tensor>) {
    if (member.defined()) list.push_back(member);
  } else if constexpr (std::same_as<M, std::vector<Tensor>>) {
    for (const Tensor& x : member) list_tensors(x, list);
  } else if constexpr (requires { member.has_value(), *member; }) {
    if (member) list_tensors(*member, list);
  } else if constexpr (std::is_class_v<M> && std::is_aggregate_v<M> &&
                       !std::is_trivially_copyable_v<M>) {  // such structs hold none
    for_each_member(member, [&](const auto& inner) { list_tensors(inner, list); });
  }
}

}  // namespace detail

/// Reads nodes of one operation.
struct OperationReader {
  const OpInfo* info;
  /// Returns false for a node of another operation. Otherwise adds the node's saved tensors to
  /// `list`: none after its release.
  bool (*saved)(const Node& node, std::vector<Tensor>& list);
  /// Returns whether the gradient of an input may bypass the cast that made it (Needs, in
  /// autograd/apply.h).
  bool (*wide)(std::size_t input);
};

/// Returns the reader of a user's operation, which must be a struct without constructors and
/// private members. Example: reader_of<SwishGate>().
template <Operation Op> OperationReader reader_of() {
  static_assert(std::is_aggregate_v<Op>,
                "members of an operation that has constructors or private "
                "members cannot be listed");
  const auto saved = [](const Node& node, std::vector<Tensor>& list) {
    const auto* ours = dynamic_cast<const detail::NodeOf<Op>*>(&node);
    if (ours && ours->op) detail::list_tensors(*ours->op, list);
    return ours != nullptr;
  };
  return {&Op::info, saved, [](std::size_t input) { return detail::wants_wide<Op>(input); }};
}

/// Returns the readers of every operation of the catalog.
std::vector<OperationReader> catalogue_readers();

// checkpoint: trades time for memory. A segment runs and stores only its inputs. Backward runs it
// again, recording, and goes through that record (Chen et al. 2016, "Training deep nets with
// sublinear memory cost").

using Segment = std::function<Tensor(const std::vector<Tensor>&)>;

/// The operation that runs a segment. It is always recorded, because the segment may use parameters
/// that require gradients and are not among the inputs.
struct Checkpoint {
  static constexpr OpInfo info{"checkpoint", CastClass::as_is, {}, {.once = true}};
  static constexpr bool always_recorded = true;
  Segment segment;
  std::shared_ptr<InputCaster> caster;  // the precision region the segment was recorded in
  RandomKey random_state;               // so that recomputed dropout masks are the same
  CallScope::Place place{};             // its call scope, so that a second run finds the same sites
  std::vector<Tensor> inputs{};
  std::vector<bool> wanted{};  // inputs that require gradients
  ListOfHeldBuffers before{};  // the buffers that the first run wrote, as it found them

  Tensor forward(std::span<const Tensor> in);
  std::vector<Tensor> backward(const Tensor& dy) const;
  /// Throws UnsupportedError: the second run would have to stay for the gradients of its gradients.
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Returns segment(inputs), and recomputes its activations in backward. Gradients reach the inputs
/// and every parameter that the segment uses. The segment runs twice, and must compute the same
/// twice. The second run gets the random numbers of the first again, and the buffers of modules as
/// the first found them. Its writes into buffers and its running statistics are dropped. As
/// torch.utils.checkpoint, except that there the second run updates the buffers again.
Tensor checkpoint(Segment segment, const std::vector<Tensor>& inputs);

}  // namespace halftone
