// The one hook around an operation, forward and backward: a policy that rounds operands, an
// observer that counts, both. A caster hands it out when the operation begins (CastPlan::tap), it
// lies in the operation's node, and so backward asks nobody. A tap changes values, never the dtype,
// shape, device or graph: edges are made from the inputs as they were, so gradients pass a rounding
// as they are (the straight-through estimator, by the absence of a node).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone {

struct Node;

/// The operation that a tap stands around.
class Computation {
 public:
  /// Runs it: what it saves now is what its backward will use.
  virtual Tensor run(std::span<const Tensor> inputs) = 0;
  /// Runs another instance of it, which nobody keeps; or keeps in a node of its own, whose
  /// backward() can be called: a shadow, with inputs of any dtype and gradients in theirs. Throws
  /// UnsupportedError for operations with effects beyond their result (`OpInfo::once`) and for an
  /// operation of a user that cannot be copied.
  virtual Tensor aside(std::span<const Tensor> inputs, std::shared_ptr<Node>* kept = nullptr) = 0;

 protected:
  ~Computation() = default;
};

/// What it returns has the dtypes, shapes and devices that it was given; the engine checks those of
/// gradients, apply() that of the result.
class OpTap {
 public:
  virtual ~OpTap() = default;
  /// The result of the operation: operation.run(inputs), with what the tap makes of both.
  virtual Tensor forward(std::span<const Tensor> inputs, Computation& operation) = 0;
  /// One gradient per input: node.backward(dy), or node.backward_for() for some of the inputs.
  virtual std::vector<Tensor> backward(Node& node, const Tensor& dy) = 0;
};

}  // namespace halftone
