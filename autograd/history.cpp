// Links saved tensors with the graph, and walks the statements of operations made of others.
#include <halftone/autograd/history.h>

#include <halftone/autograd/engine.h>
#include <halftone/autograd/ops.h>

namespace halftone {

std::vector<Tensor> Node::recorded_backward(const Tensor&, const History&) {
  detail::fail_without_second_gradient(*info);
}

namespace {

/// Returns the edge to a tensor that was made from an input by a cast or a view. The node needs no
/// data: the gradients of these operations read none.
template <class Op> Edge step(Op op, Edge from, DType dtype, const Shape& shape) {
  auto node = std::make_shared<detail::NodeOf<Op>>(std::move(op));
  node->info = &Op::info;
  node->order = next_node_order();
  node->output_dtype = dtype, node->output_shape = shape;
  node->edges.push_back(std::move(from));
  return {std::make_shared<AutogradMeta>(AutogradMeta{true, {}, std::move(node)}), dtype, shape};
}

Tensor linked(const Tensor& x, const std::shared_ptr<AutogradMeta>& meta) {
  return Tensor(x.body(), meta);
}

/// Returns the tensor itself under a new node, at which a nested pass ends.
Tensor boundary(const Tensor& x) { return apply(Reshape{.to = x.shape()}, x); }

}  // namespace

bool History::wants(std::size_t input) const {
  return node_->edges[input].input && (input >= 32 || (wanted_ >> input & 1) != 0);
}

Tensor History::input(std::size_t input, const Tensor& saved,
                      const std::optional<Shape>& expanded) const {
  Edge last = node_->edges[input];
  if (!last.input || !saved.defined()) return saved;
  const DType dtype = saved.dtype();
  if (last.dtype != dtype)
    last = step(Cast{.to = dtype, .from = last.dtype}, last, dtype, last.shape);
  if (expanded && last.shape != *expanded)
    last = step(Expand{.to = *expanded, .from = last.shape}, last, dtype, *expanded);
  if (last.shape != saved.shape())
    last = step(Reshape{.to = saved.shape(), .from = last.shape}, last, dtype, saved.shape());
  return linked(saved, last.input);
}

Tensor History::output(const Tensor& saved) const {
  return linked(saved, std::make_shared<AutogradMeta>(AutogradMeta{true, {}, node_}));
}

Tensor History::stand_in(std::size_t input, Device device) const {
  if (!wants(input)) return {};
  return views::expand(zeros({}, dtype(input), device), shape(input));
}

Tensor History::fitting(std::size_t input, const Tensor& gradient) const {
  return reshape(cast(gradient, dtype(input)), shape(input));
}

Gradients History::through(const Tensor& dy, std::vector<Tensor> inputs, const Function& f) const {
  std::vector<Tensor> asked;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (wants(i) && size_of(inputs[i].dtype()) < size_of(dtype(i)))  // a wide gradient
      inputs[i] = converted(inputs[i], dtype(i));
    inputs[i] = input(i, inputs[i]);
    if (!wants(i)) continue;
    inputs[i] = boundary(inputs[i]);
    asked.push_back(inputs[i]), places.push_back(i);
  }
  Tensor y = f(inputs);
  y = reshape(cast(y, dy.dtype()), dy.shape());
  std::vector<Tensor> found(asked.size());
  if (y.requires_grad())
    found = autograd::grad(std::span(&y, 1), asked,
                           {.grad_outputs = {dy}, .allow_unused = true, .create_graph = true});
  Gradients gradients = none();
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const Tensor& dx = found[i].defined() ? found[i] : zeros_like(asked[i]);
    gradients[places[i]] = fitting(places[i], dx);
  }
  return gradients;
}

namespace {

/// A node as its tap sees it: backward is recorded, but the tap gets and gives bare tensors.
struct TappedNode final : Node {
  std::shared_ptr<Node> node;
  std::shared_ptr<AutogradMeta> dy_history;
  uint32_t wanted;
  Gradients recorded;  // as the operation returned them

  TappedNode(std::shared_ptr<Node> tapped, const Tensor& dy, uint32_t inputs)
      : node(std::move(tapped)),
        dy_history(dy.meta()),
        wanted(inputs),
        recorded(node->edges.size()) {
    info = node->info, output_dtype = node->output_dtype, output_shape = node->output_shape;
    edges = node->edges;
  }
  std::vector<Tensor> backward(const Tensor& dy) override { return backward_for(dy, ~0u); }
  std::vector<Tensor> backward_for(const Tensor& dy, uint32_t inputs) override {
    const EnableGrad recording;
    const OperationScope running(info);
    Gradients gradients =
        node->recorded_backward(linked(dy, dy_history), History(node, wanted & inputs));
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      recorded[i] = gradients[i];
      gradients[i] = gradients[i].detach();
    }
    return gradients;
  }
  void release() override {}
  bool released() const override { return false; }
};

}  // namespace

Gradients recorded_gradients(const std::shared_ptr<Node>& node, const Tensor& dy, uint32_t wanted) {
  if (!node->tap) return node->recorded_backward(dy, History(node, wanted));
  TappedNode tapped(node, dy, wanted);
  Gradients gradients;
  {
    const NoGrad no_grad;
    gradients = node->tap->backward(tapped, dy.detach());
  }
  for (std::size_t i = 0; i < gradients.size() && i < tapped.recorded.size(); ++i)
    if (gradients[i].defined() && tapped.recorded[i].defined())
      gradients[i] = linked(gradients[i], tapped.recorded[i].meta());
  return gradients;
}

namespace detail {

Tensor sum_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  Dims dims;
  const int extra = x.rank() - shape.rank();
  for (int i = 0; i < x.rank(); ++i)
    if (i < extra || (shape[i - extra] == 1 && x.shape()[i] != 1)) dims.push_back(i);
  return reshape(dims.empty() ? x : sum(x, dims, true), shape);
}

namespace {
/// A linear function made of kernels, which keeps what it reads.
struct LinearMap : UserOp {
  static constexpr OpInfo info{"linear_map", CastClass::as_is};
  Map map, adjoint;

  Tensor forward(const Tensor& x) { return map(x); }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {adjoint(dy)}; }
  Gradients recorded_backward(const Tensor& dy, const History&) const {
    return {linear_map(dy, adjoint, map)};
  }
};
}  // namespace

Tensor linear_map(const Tensor& x, Map map, Map adjoint) {
  return apply(LinearMap{{}, std::move(map), std::move(adjoint)}, x);
}

}  // namespace detail
}  // namespace halftone
