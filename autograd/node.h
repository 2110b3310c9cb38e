// The recorded graph: a node per operation that ran, an edge per input. A node owns the operation,
// which owns the tensors it saved. Edges point from outputs to inputs, so the graph lives as long
// as a tensor that was computed by it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <halftone/core/op_info.h>
#include <halftone/core/tensor.h>

namespace halftone {

struct Node;
class OpTap;
class History;

/// Receives the gradient of a tensor; returns a replacement, or an undefined tensor for no change
/// (autograd/engine.h).
using GradientHook = std::function<Tensor(const Tensor& gradient)>;
/// The hooks of a tensor in the order of registration, each with the number that removes it.
using GradientHooks = std::vector<std::pair<uint64_t, GradientHook>>;

/// The history of a tensor, and its accumulated gradient if it is a leaf.
struct AutogradMeta {
  bool requires_grad = false;
  Tensor grad{};                    // leaves only
  std::shared_ptr<Node> creator{};  // null for leaves
  GradientHooks hooks{};            // for a leaf; hooks of other tensors are in their node
  /// The storage version of grad at the end of the last backward pass of a loss that was multiplied
  /// by a loss scale; none: there was no such pass (has_scaled_gradient(), autograd/slots.h).
  std::optional<uint64_t> scaled_version{};
  bool unclaimed = false;     // a parameter of a layer that no describe() has named yet
  bool in_optimizer = false;  // an optimizer of optim/ has received it
};

/// An input of a recorded operation; `input` is null if it needs no gradient.
struct Edge {
  std::shared_ptr<AutogradMeta> input{};
  DType dtype = f32;
  Shape shape{};
};

struct Node {
  const OpInfo* info = nullptr;
  uint64_t order = 0;  // creation number: an operation comes after all operations it depends on
  DType output_dtype = f32;
  Shape output_shape{};
  std::vector<Edge> edges;
  GradientHooks hooks{};         // on the gradient of the output
  std::shared_ptr<OpTap> tap{};  // wraps forward and backward
  bool scales_loss = false;      // multiplies a loss by a loss scale
  std::optional<bool> tf32{};    // overrides the TF32 flag (core/device.h), as in forward
  bool saved_coded = false;      // saved activations are stored in 8 or 4 bits
  /// Returns one gradient per edge: an undefined tensor for an edge that needs none.
  virtual std::vector<Tensor> backward(const Tensor& dy) = 0;
  /// Returns the gradients of the inputs that have their bit in `inputs` (bit i: input i), and
  /// undefined tensors for the others. A tap can so give each product of an operation its own dy.
  virtual std::vector<Tensor> backward_for(const Tensor& dy, uint32_t inputs) = 0;
  /// Returns the same gradients, computed by recorded operations (autograd/history.h): for a pass
  /// that creates a graph. An operation without this form throws UnsupportedError.
  virtual std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history);
  /// Drops the operation and its saved tensors. An operation that saved none may stay, so that
  /// backward can run again.
  virtual void release() = 0;
  virtual bool released() const = 0;
  virtual ~Node();
};

/// Returns the next creation number. Thread-safe.
uint64_t next_node_order();

}  // namespace halftone
