// The parts of apply() that do not depend on the operation.
#include <halftone/autograd/apply.h>

#include <halftone/autograd/ops/cast.h>

namespace halftone::detail {

bool any_requires_grad(std::span<const Tensor> inputs) {
  for (const Tensor& x : inputs)
    if (x.requires_grad()) return true;
  return false;
}

void require_one_device(const OpInfo& op, std::span<const Tensor> inputs) {
  const Tensor* first = nullptr;
  for (const Tensor& x : inputs) {
    if (!x.defined()) continue;
    if (!first) first = &x;
    if (x.device() != first->device())
      fail<DeviceError>(op.name, "inputs are on ", first->device(), " and ", x.device(),
                        ". Move them to one device with to().");
  }
}

Edge edge_of(const Tensor& input, bool wide) {
  if (!input.requires_grad()) return {};
  const std::shared_ptr<Node>& creator = input.meta()->creator;
  const bool is_short = size_of(input.dtype()) < size_of(f32);
  if (wide && is_short && creator && creator->info == &Cast::info &&
      creator->edges[0].dtype == f32 && creator->hooks.empty())
    return creator->edges[0];
  return {input.meta(), input.dtype(), input.shape()};
}

void fail_saved_was_written(const OpInfo& op) {
  fail<UsageError>(op.name,
                   "a tensor that it saved for backward was written in place after its forward, so "
                   "its gradient would be wrong. Call backward() before the write (an optimizer's "
                   "step, copy_into()), or pass a clone() to the operation.");
}

void fail_without_gradient(const OpInfo& op) {
  fail<UnsupportedError>(op.name, "has no gradient. Use detach() on its result.");
}

void fail_without_second_gradient(const OpInfo& op) {
  fail<UnsupportedError>(op.name,
                         "has no second gradient, which create_graph asks for: its backward is not "
                         "made of operations. Use other operations in its place, or give it a "
                         "member recorded_backward() (docs/adding_an_op.md).");
}

std::vector<Edge> edges_of(std::span<const Tensor> inputs, std::span<const bool> wide) {
  std::vector<Edge> edges;
  edges.reserve(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    edges.push_back(edge_of(inputs[i], !wide.empty() && wide[i]));
  return edges;
}

void check_tapped(const OpInfo& op, const Tensor& result, const Tensor& handed_on) {
  if (!result.defined())
    fail<UsageError>(op.name,
                     "its tap did not run it, so that it has nothing to go back with. Call "
                     "operation.run() once.");
  if (!handed_on.defined() || handed_on.dtype() != result.dtype() ||
      handed_on.shape() != result.shape() || handed_on.device() != result.device())
    fail<DTypeError>(op.name, "its tap handed on ", described(handed_on), " for a result ",
                     described(result), ". A tap changes values only.");
}

Tensor as_planned(Tensor output, std::optional<DType> dtype) {
  if (!dtype || !is_floating(output.dtype()) || output.dtype() == *dtype) return output;
  return apply(Cast{.to = *dtype}, output);
}

Tensor with_history(const OpInfo& info, const Tensor& output, std::shared_ptr<Node> node,
                    std::vector<Edge> edges) {
  node->info = &info;
  node->order = next_node_order();
  node->output_dtype = output.dtype();
  node->output_shape = output.shape();
  node->edges = std::move(edges);
  // The output gets a body of its own: the operation may have saved the body it made, or returned
  // an input's body.
  auto body = std::make_shared<TensorBody>(*output.body());
  return Tensor(std::move(body),
                std::make_shared<AutogradMeta>(AutogradMeta{true, {}, std::move(node)}));
}

}  // namespace halftone::detail
