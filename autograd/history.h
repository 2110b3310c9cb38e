// Gradients that have a history: what an operation's recorded_backward() works with. Only passes
// with create_graph use it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <halftone/autograd/node.h>
#include <halftone/core/tensor.h>

namespace halftone {

using Gradients = std::vector<Tensor>;

/// The history of the tensors that a node's operation saved. The operation saved them without it,
/// so that no node owns itself: here they are linked with the graph again, and operations on them
/// are recorded. A saved tensor may differ from its input by a cast, a broadcast and a reshape, in
/// this order: the gradients of these are recorded as well.
class History {
 public:
  /// Bit i of `wanted` says whether the pass asks for the gradient of input i.
  History(std::shared_ptr<Node> node, uint32_t wanted) : node_(std::move(node)), wanted_(wanted) {}

  /// Returns whether the pass asks for the gradient of this input; inputs from 32 on have no bit
  /// and count as asked for, if they have a graph.
  bool wants(std::size_t input) const;
  /// Return the dtype and the shape that the gradient of an input must have.
  DType dtype(std::size_t input) const { return node_->edges[input].dtype; }
  const Shape& shape(std::size_t input) const { return node_->edges[input].shape; }

  /// Returns `saved`, the tensor that was saved of an input, with the input's history. `expanded`:
  /// the shape to which the input was broadcast before it was reshaped.
  Tensor input(std::size_t input, const Tensor& saved,
               const std::optional<Shape>& expanded = {}) const;
  /// Returns `saved`, the tensor that was saved of the result, with the result's history.
  Tensor output(const Tensor& saved) const;
  /// Returns zeros that through() can take for an input whose values do not affect the gradients,
  /// or an undefined tensor if the pass does not ask for the input's gradient.
  Tensor stand_in(std::size_t input, Device device) const;

  /// Returns one gradient per edge, all undefined.
  Gradients none() const { return Gradients(node_->edges.size()); }
  /// Returns `gradient` in the dtype and shape of the input, which has the same number of elements.
  Tensor fitting(std::size_t input, const Tensor& gradient) const;
  using Function = std::function<Tensor(const std::vector<Tensor>&)>;
  /// Returns the gradients of f(inputs) for dy; they have a history. f computes the node's
  /// operation by recorded operations; `inputs` are the node's first inputs, in order.
  Gradients through(const Tensor& dy, std::vector<Tensor> inputs, const Function& f) const;

 private:
  std::shared_ptr<Node> node_;
  uint32_t wanted_;
};

/// Returns the gradients of a node's inputs; they have a history. `wanted`: as in History. If the
/// node has a tap, the tap computes them: what it rounds has the gradient of the identity.
Gradients recorded_gradients(const std::shared_ptr<Node>& node, const Tensor& dy, uint32_t wanted);

namespace detail {
/// Returns x summed to `shape`, as reduce_to() of autograd/ops/shape.h, by recorded operations.
Tensor sum_to(const Tensor& x, const Shape& shape);
using Map = std::function<Tensor(const Tensor&)>;
/// Returns map(x), recorded. map is linear: its gradient is `adjoint`, whose gradient is `map`.
Tensor linear_map(const Tensor& x, Map map, Map adjoint);
/// For an operation that is linear in its only input: returns its gradient for dy, recorded.
template <class Op> Tensor adjoint_of(const Op& op, const Tensor& dy) {
  return linear_map(
      dy, [op](const Tensor& g) { return op.backward(g)[0]; },
      [op](const Tensor& x) {
        Op again = op;
        return again.forward(x);
      });
}
}  // namespace detail

}  // namespace halftone
