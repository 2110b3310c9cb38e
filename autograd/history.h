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

/// The history of the tensors that a node's operation saved. The operation saved them bare, so that
/// no node owns itself: here they are linked with the graph again, and operations on them are
/// recorded. A saved tensor may differ from its input by a cast, a broadcast and a reshape, in this
/// order: their gradients are recorded as well.
class History {
 public:
  /// Bit i of `wanted`: whether the pass asks for the gradient of input i.
  History(std::shared_ptr<Node> node, uint32_t wanted) : node_(std::move(node)), wanted_(wanted) {}

  bool wants(std::size_t input) const;
  /// Return the dtype and the shape that the gradient of an input must have.
  DType dtype(std::size_t input) const { return node_->edges[input].dtype; }
  const Shape& shape(std::size_t input) const { return node_->edges[input].shape; }

  /// Returns what was saved of an input, with its history. `expanded`: the shape to which the input
  /// was broadcast before it was reshaped.
  Tensor input(std::size_t input, const Tensor& saved,
               const std::optional<Shape>& expanded = {}) const;
  /// Returns what was saved of the result, with its history.
  Tensor output(const Tensor& saved) const;
  /// Returns bare zeros for through(), in place of an input whose values the gradients do not
  /// depend on; undefined if its gradient is not asked for.
  Tensor stand_in(std::size_t input, Device device) const;

  /// Returns one gradient per edge, all undefined.
  Gradients none() const { return Gradients(node_->edges.size()); }
  /// Returns a gradient in the dtype and shape of its input, which has as many elements.
  Tensor fitting(std::size_t input, const Tensor& gradient) const;
  /// Returns the gradients of f(inputs), the node's operation in other operations: for inputs of
  /// the node from the first on, with their history.
  using Function = std::function<Tensor(const std::vector<Tensor>&)>;
  Gradients through(const Tensor& dy, std::vector<Tensor> inputs, const Function& f) const;

 private:
  std::shared_ptr<Node> node_;
  uint32_t wanted_;
};

/// Returns the gradients of a node's inputs, and these gradients have a history. If the node has a
/// tap, the tap computes them: what it rounds has the gradient of the identity.
Gradients recorded_gradients(const std::shared_ptr<Node>& node, const Tensor& dy, uint32_t wanted);

namespace detail {
/// reduce_to() as recorded operations.
Tensor sum_to(const Tensor& x, const Shape& shape);
/// Returns a linear function of x, recorded: its gradient is `adjoint`, whose gradient is `map`.
using Map = std::function<Tensor(const Tensor&)>;
Tensor linear_map(const Tensor& x, Map map, Map adjoint);
/// Returns the gradient of an operation that is linear in its only input.
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
