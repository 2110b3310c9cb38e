// The parts of apply() that do not depend on the operation.
#include <halftone/autograd/apply.h>

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

Tensor with_history(const OpInfo& info, const Tensor& output, std::shared_ptr<Node> node,
                    std::span<const Tensor> inputs) {
  node->info = &info;
  node->order = next_node_order();
  node->output_dtype = output.dtype();
  node->output_shape = output.shape();
  node->edges.reserve(inputs.size());
  for (const Tensor& x : inputs) {
    if (x.requires_grad()) node->edges.push_back({x.meta(), x.dtype(), x.shape()});
    else node->edges.emplace_back();
  }
  // The output gets a body of its own: the operation may have saved the one it made, or returned an
  // input's.
  auto body = std::make_shared<TensorBody>(*output.body());
  return Tensor(std::move(body),
                std::make_shared<AutogradMeta>(AutogradMeta{true, {}, std::move(node)}));
}

}  // namespace halftone::detail
