// The hook around an operation, forward and backward: for a policy that rounds operands, an
// observer that counts, or both. A caster returns it when the operation begins (CastPlan::tap). The
// operation's node stores it, so backward needs no lookup. A tap changes values, never the dtype,
// shape, device or graph. Edges are made from the original inputs, so gradients pass a rounding
// unchanged (the straight-through estimator, by the absence of a node).
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone {

struct Node;

/// The operation that a tap wraps.
class Computation {
 public:
  /// Runs it: its backward will use the tensors saved in this run.
  virtual Tensor run(std::span<const Tensor> inputs) = 0;
  /// Runs another instance of it and drops that, or stores it in `kept` as a node whose backward()
  /// can be called: a shadow, with inputs of any dtype and gradients in theirs. Throws
  /// UnsupportedError for operations with effects beyond their result (member `once` of OpInfo) and
  /// for an operation of a user that cannot be copied.
  virtual Tensor aside(std::span<const Tensor> inputs, std::shared_ptr<Node>* kept = nullptr) = 0;

 protected:
  ~Computation() = default;
};

/// A tap's results have the dtypes, shapes and devices of the originals; the engine checks those of
/// gradients, apply() that of the result.
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

}  // namespace halftone
