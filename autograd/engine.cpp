// Nodes are popped by creation number, largest first: that is a reverse topological order, without
// recursion. Recording is off and the caster slot is empty throughout, so backward never consults a
// precision policy: the dtypes were fixed by the casts that forward recorded.
#include <halftone/autograd/engine.h>

#include <queue>
#include <unordered_map>

#include <halftone/autograd/grad_mode.h>
#include <halftone/autograd/input_caster.h>
#include <halftone/autograd/node.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/views.h>

namespace halftone {

namespace {

bool owned_by_one(const Tensor& x) {
  return x.body().use_count() == 1 && x.storage().use_count() == 1;
}

/// into += gradient. The sum is written in place only where nobody else can see it.
void add_gradient(Tensor& into, Tensor gradient) {
  if (!into.defined()) {
    into = std::move(gradient);
    return;
  }
  if (!owned_by_one(into) || !into.is_dense()) into = into.clone();
  backend_for(into).accumulate(gradient, into);
}

/// The first gradient of a leaf is taken over, without a copy, if it is nobody else's and lies as
/// the leaf does.
void add_leaf_gradient(AutogradMeta& leaf, const Edge& edge, Tensor gradient) {
  if (leaf.grad.defined()) {
    backend_for(leaf.grad).accumulate(gradient, leaf.grad);
    return;
  }
  const bool whole = gradient.offset() == 0 && gradient.bytes() == gradient.storage()->bytes();
  if (!owned_by_one(gradient) || !whole || !gradient.is_contiguous()) {
    const MemoryScope scope(MemoryUse::gradient);
    Tensor copy = empty(edge.shape, edge.dtype, gradient.device());
    backend_for(copy).copy(gradient, copy);
    gradient = std::move(copy);
  }
  gradient.storage()->recharge(MemoryUse::gradient);
  leaf.grad = std::move(gradient);
}

void check_gradient(const Node& node, const Edge& edge, const Tensor& gradient) {
  if (gradient.dtype() != edge.dtype)
    fail<DTypeError>("backward", node.info->name, " returned a gradient of dtype ",
                     gradient.dtype(), " for an input of dtype ", edge.dtype,
                     ". Its backward must return the input's dtype.");
  if (gradient.shape() != edge.shape)
    fail<ShapeError>("backward", node.info->name, " returned a gradient of shape ",
                     gradient.shape(), " for an input of shape ", edge.shape,
                     ". Its backward must return the input's shape.");
}

struct Older {
  bool operator()(const std::shared_ptr<Node>& a, const std::shared_ptr<Node>& b) const {
    return a->order < b->order;
  }
};

class ReversePass {
 public:
  explicit ReversePass(bool retain_graph) : retain_graph_(retain_graph) {}

  void start(const std::shared_ptr<Node>& node, const Tensor& seed) {
    pending_[node.get()] = seed;
    ready_.push(node);
  }

  void run() {
    while (!ready_.empty()) {
      const std::shared_ptr<Node> node = ready_.top();
      ready_.pop();
      run_node(*node);
    }
  }

 private:
  void run_node(Node& node) {
    if (node.released())
      fail<UsageError>(
          "backward", "the graph of ", node.info->name,
          " was freed by an earlier backward(). Pass retain_graph = true to the first call.");
    std::vector<Tensor> gradients;
    {
      const Tensor dy = std::move(pending_.extract(&node).mapped());
      gradients = node.backward(dy);
    }
    if (!retain_graph_) node.release();
    if (gradients.size() != node.edges.size())
      fail<UsageError>("backward", node.info->name, " returned ", gradients.size(),
                       " gradients for ", node.edges.size(),
                       " inputs. Return one per input, undefined where none is wanted.");
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const Edge& edge = node.edges[i];
      if (!edge.input || !gradients[i].defined()) continue;
      check_gradient(node, edge, gradients[i]);
      pass_on(edge, std::move(gradients[i]));
    }
    if (node.released()) node.edges.clear();
  }

  void pass_on(const Edge& edge, Tensor gradient) {
    const std::shared_ptr<Node>& creator = edge.input->creator;
    if (!creator) return add_leaf_gradient(*edge.input, edge, std::move(gradient));
    Tensor& slot = pending_[creator.get()];
    if (!slot.defined()) ready_.push(creator);
    add_gradient(slot, std::move(gradient));
  }

  bool retain_graph_;
  std::unordered_map<Node*, Tensor> pending_;
  std::priority_queue<std::shared_ptr<Node>, std::vector<std::shared_ptr<Node>>, Older> ready_;
};

}  // namespace

void run_backward(const Tensor& root, const Tensor& seed, bool retain_graph) {
  if (!root.requires_grad())
    fail<UsageError>("backward", "this tensor, ", described(root),
                     ", does not depend on a leaf that requires a gradient. Call "
                     "set_requires_grad() on one first.");
  if (seed.shape() != root.shape() || seed.dtype() != root.dtype())
    fail<ShapeError>("backward", "the gradient to start from is ", described(seed),
                     ", the tensor is ", described(root), ". They must agree.");
  const NoGrad no_grad;
  const CasterScope no_cast(nullptr);
  const MemoryScope scope(MemoryUse::activation);
  AutogradMeta& meta = *root.meta();
  if (!meta.creator)
    return add_leaf_gradient(meta, {root.meta(), root.dtype(), root.shape()}, seed.clone());
  ReversePass pass(retain_graph);
  pass.start(meta.creator, seed);
  pass.run();
}

}  // namespace halftone
