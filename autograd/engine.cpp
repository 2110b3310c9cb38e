// Nodes are popped by creation number, largest first: that is a reverse topological order, without
// recursion. Recording is off and the caster slot is empty throughout, so backward never consults a
// precision policy: the dtypes were fixed by the casts that forward recorded.
#include <halftone/autograd/engine.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <iterator>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <halftone/autograd/history.h>
#include <halftone/autograd/node.h>
#include <halftone/autograd/ops.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/device.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/pending.h>
#include <halftone/core/random.h>
#include <halftone/core/tensor.h>

namespace halftone {

namespace {

bool owned_by_one(const Tensor& x) {
  return x.body().use_count() == 1 && x.storage().use_count() == 1;
}

/// into += gradient. The sum is written in place only if no other handle can see it.
void add_gradient(Tensor& into, Tensor gradient) {
  if (!into.defined()) {
    into = std::move(gradient);
    return;
  }
  if (!owned_by_one(into) || !into.is_dense()) into = into.clone();
  backend_for(into).accumulate(narrowest(gradient), into);
}

/// The same for gradients with a history.
void add_recorded(Tensor& into, const Tensor& gradient) {
  into = into.defined() ? cast(add(into, gradient), into.dtype()) : gradient;
}

/// Adds the gradient of a leaf under create_graph: as a tensor of its own, with its history.
void add_recorded_leaf_gradient(AutogradMeta& leaf, Tensor gradient) {
  gradient = contiguous(gradient);
  const bool whole = gradient.offset() == 0 && gradient.bytes() == gradient.storage()->bytes();
  add_recorded(leaf.grad, gradient);
  const bool is_other = leaf.grad.body() != gradient.body();  // a sum
  const bool owned = gradient.body().use_count() <= 2 && gradient.storage().use_count() == 1;
  if (!is_other && !(whole && owned)) leaf.grad = affine(gradient, 1, 0);
  leaf.grad.storage()->recharge(MemoryUse::gradient);
}

/// Adds the gradient of a leaf. The first gradient is used without a copy if no other handle refers
/// to it and it has the leaf's layout.
void add_leaf_gradient(AutogradMeta& leaf, const Edge& edge, Tensor gradient) {
  if (leaf.grad.defined()) {
    // A gradient with a history may be saved in it: the sum is another tensor, and has none.
    if (leaf.grad.requires_grad()) leaf.grad = leaf.grad.detach().clone();
    backend_for(leaf.grad).accumulate(narrowest(gradient), leaf.grad);
    return;
  }
  gradient.raw_data();  // computes it if it waits
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

/// Whether a pass of a scaled loss runs in this thread; passes of checkpointed segments are part of
/// it.
thread_local bool scaled_pass = false;

/// Restores scaled_pass when a pass ends.
struct ScaledPassScope {
  bool around = scaled_pass;
  ~ScaledPassScope() { scaled_pass = around; }
};

/// The same, and records whether the sum includes gradients of a scaled loss.
void add_noted_gradient(AutogradMeta& leaf, const Edge& edge, Tensor gradient, bool recorded) {
  const auto& noted = leaf.scaled_version;
  const bool scaled =
      scaled_pass || (noted && leaf.grad.defined() && leaf.grad.storage()->version() == *noted);
  if (recorded) add_recorded_leaf_gradient(leaf, std::move(gradient));
  else add_leaf_gradient(leaf, edge, std::move(gradient));
  leaf.scaled_version = scaled ? std::optional(leaf.grad.storage()->version()) : std::nullopt;
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

/// Returns the gradient after all hooks.
Tensor through_hooks(const GradientHooks& hooks, Tensor gradient) {
  const GradientHooks now = hooks;  // a hook may remove itself
  for (const auto& [number, hook] : now) {
    Tensor other = hook(gradient);
    if (!other.defined()) continue;
    if (other.shape() != gradient.shape() || other.dtype() != gradient.dtype())
      fail<ShapeError>("register_hook", "a hook returned ", described(other), " for a gradient ",
                       described(gradient), ". Return one of the same shape and dtype.");
    gradient = std::move(other);
  }
  return gradient;
}

class ReversePass {
 public:
  ReversePass(bool retain_graph, bool create_graph)
      : retain_graph_(retain_graph || create_graph), create_graph_(create_graph) {}

  void start(const Tensor& root, const Tensor& seed) {
    pass_on({root.meta(), root.dtype(), root.shape()}, seed);
  }

  /// Stores the gradients of these inputs for taken(), and adds none to any leaf.
  void only_for(std::span<const Tensor> inputs) {
    adds_to_leaves_ = false;
    for (const Tensor& x : inputs)
      if (const std::shared_ptr<Node>& creator = x.meta()->creator) kept_nodes_[creator.get()];
      else kept_[x.meta().get()];
  }

  /// Finds the nodes between these outputs and the inputs of only_for(); others do not run. Nodes
  /// that are older than all inputs lead to none of them.
  void only_between(std::span<const Tensor> outputs) {
    uint64_t oldest = kept_.empty() ? UINT64_MAX : 0;
    for (const auto& [node, gradient] : kept_nodes_) oldest = std::min(oldest, node->order);
    std::vector<const Node*> found;
    std::unordered_set<const Node*> seen;
    const auto visit = [&](const Node* node) {
      if (node && node->order >= oldest && seen.insert(node).second) found.push_back(node);
    };
    for (const Tensor& y : outputs) visit(y.meta()->creator.get());
    for (std::size_t next = 0; next < found.size(); ++next)
      for (const Edge& edge : found[next]->edges)
        if (edge.input) visit(edge.input->creator.get());
    std::ranges::sort(found, {}, [](const Node* node) { return node->order; });
    between_.emplace();
    for (const Node* node : found)
      for (std::size_t i = 0; i < node->edges.size(); ++i)
        if (leads_to_inputs(node->edges[i])) {
          between_->insert(node);
          break;
        }
  }

  /// Reports leaves to the listener, each when its last use below `root` has given its gradient.
  void tell(GradientListener& listener, const Tensor& root) {
    std::vector<const Node*> open{root.meta()->creator.get()};
    std::unordered_set<const Node*> seen(open.begin(), open.end());
    while (!open.empty()) {
      const Node* const node = open.back();
      open.pop_back();
      if (!node) continue;
      if (node->info->name == Checkpoint::info.name) {  // its segment's leaves are not visible
        uses_left_.clear();
        return;
      }
      for (const Edge& edge : node->edges) {
        if (!edge.input) continue;
        const Node* const creator = edge.input->creator.get();
        if (!creator) ++uses_left_[edge.input.get()];
        else if (seen.insert(creator).second) open.push_back(creator);
      }
    }
    listener_ = &listener;
  }

  void run() {
    while (!ready_.empty()) {
      const std::shared_ptr<Node> node = ready_.top();
      ready_.pop();
      run_node(node);
    }
    for (auto& [edge, sum] : hooked_leaves_)
      give(edge, through_hooks(edge.input->hooks, std::move(sum)));
    if (trains_ && !forgotten_.empty() && !LeafWatchSlot::current()) tell_forgotten();
  }

  /// Returns the gradient of an input of only_for(); undefined if no output depends on it.
  Tensor taken(const Tensor& input) {
    const std::shared_ptr<Node>& creator = input.meta()->creator;
    return creator ? kept_nodes_[creator.get()] : kept_[input.meta().get()];
  }

 private:
  bool leads_to_inputs(const Edge& edge) const {
    if (!edge.input) return false;
    Node* const creator = edge.input->creator.get();
    if (!creator) return kept_.contains(edge.input.get());
    return kept_nodes_.contains(creator) || between_->contains(creator);
  }

  /// Returns the gradients of a node's inputs with a history, of those that are asked for.
  std::vector<Tensor> recorded(const std::shared_ptr<Node>& node, const Tensor& dy) const {
    if (between_ && !between_->contains(node.get())) return std::vector<Tensor>(node->edges.size());
    uint32_t wanted = 0;
    for (std::size_t i = 0; i < node->edges.size() && i < 32; ++i)
      if (!between_ || leads_to_inputs(node->edges[i])) wanted |= uint32_t(1) << i;
    return recorded_gradients(node, dy, wanted);
  }

  void run_node(const std::shared_ptr<Node>& shared) {
    Node& node = *shared;
    if (node.released())
      fail<UsageError>("backward", "the graph of ", node.info->name,
                       " was freed by an earlier backward(). Keep it in the first call: "
                       "y.backward(ones_like(y), true), where true is retain_graph.");
    scaled_pass = scaled_pass || node.scales_loss;
    std::vector<Tensor> gradients;
    {
      Tensor dy = std::move(pending_.extract(&node).mapped());
      if (!node.hooks.empty()) dy = through_hooks(node.hooks, std::move(dy));
      if (!kept_nodes_.empty())
        if (const auto kept = kept_nodes_.find(&node); kept != kept_nodes_.end()) kept->second = dy;
      const OperationScope running(node.info);
      const Tf32Scope products(node.tf32);
      if (create_graph_) gradients = recorded(shared, dy);
      else gradients = node.tap ? node.tap->backward(node, dy) : node.backward(dy);
    }
    if (!retain_graph_) {
      node.release();
      if (node.released()) node.tap.reset();
    }
    if (gradients.size() != node.edges.size())
      fail<UsageError>("backward", node.info->name, " returned ", gradients.size(),
                       " gradients for ", node.edges.size(),
                       " inputs. Return one per input, undefined where none is wanted.");
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const Edge& edge = node.edges[i];
      if (edge.input && gradients[i].defined()) {
        check_gradient(node, edge, gradients[i]);
        pass_on(edge, std::move(gradients[i]));
      }
      if (listener_ && edge.input && !edge.input->creator) count_use(*edge.input);
    }
    if (node.released()) node.edges.clear();
  }

  void count_use(AutogradMeta& leaf) {
    if (--uses_left_[&leaf] == 0 && leaf.hooks.empty()) listener_->on_gradient(leaf);
  }

  void pass_on(const Edge& edge, Tensor gradient) {
    const std::shared_ptr<Node>& creator = edge.input->creator;
    if (!creator && LeafWatchSlot::current()) (*LeafWatchSlot::current())(*edge.input, edge);
    if (creator) {
      Tensor& slot = pending_[creator.get()];
      if (!slot.defined()) ready_.push(creator);
      add(slot, std::move(gradient));
    } else if (!edge.input->hooks.empty()) {
      // Hooks see the sum over all uses, which is complete at the end of the pass.
      auto sum = std::ranges::find(hooked_leaves_, edge.input,
                                   [](const auto& entry) { return entry.first.input; });
      if (sum == hooked_leaves_.end()) sum = hooked_leaves_.insert(sum, {edge, Tensor{}});
      add(sum->second, std::move(gradient));
    } else {
      give(edge, std::move(gradient));
    }
  }

  void give(const Edge& leaf, Tensor gradient) {
    if (adds_to_leaves_) {
      trains_ = trains_ || leaf.input->in_optimizer;
      if (leaf.input->unclaimed && !leaf.input->in_optimizer) note_forgotten(leaf);
      return add_noted_gradient(*leaf.input, leaf, std::move(gradient), create_graph_);
    }
    if (const auto kept = kept_.find(leaf.input.get()); kept != kept_.end())
      add(kept->second, std::move(gradient));
  }

  void add(Tensor& into, Tensor gradient) const {
    if (create_graph_) add_recorded(into, gradient);
    else add_gradient(into, std::move(gradient));
  }

  void note_forgotten(const Edge& leaf) {
    const auto same = [&](const Edge& known) { return known.input == leaf.input; };
    if (std::ranges::none_of(forgotten_, same)) forgotten_.push_back(leaf);
  }

  /// Reports each parameter once. A loop without amp::Training, which throws, continues.
  void tell_forgotten() {
    PlainText list;
    for (const Edge& leaf : forgotten_) {
      list << (&leaf == &forgotten_.front() ? "" : ", ") << leaf.shape << ' ' << leaf.dtype;
      leaf.input->unclaimed = false;
    }
    std::cerr << "[backward] the loss depends on parameters that no optimizer has and no module's "
                 "describe() names: " +
                     list.str() + ". Name each in the describe() of its module.\n";
  }

  bool retain_graph_, create_graph_;
  bool adds_to_leaves_ = true;
  bool trains_ = false;          // an optimizer's parameter was reached
  std::vector<Edge> forgotten_;  // parameters that no layer named and no optimizer has
  GradientListener* listener_ = nullptr;
  std::unordered_map<const AutogradMeta*, int64_t> uses_left_;
  std::unordered_map<AutogradMeta*, Tensor> kept_;
  std::unordered_map<Node*, Tensor> kept_nodes_;
  std::optional<std::unordered_set<const Node*>> between_;  // the nodes that lead to kept ones
  std::vector<std::pair<Edge, Tensor>> hooked_leaves_;  // in the order in which they were reached
  std::unordered_map<Node*, Tensor> pending_;
  std::priority_queue<std::shared_ptr<Node>, std::vector<std::shared_ptr<Node>>, Older> ready_;
};

/// Whether grad() runs in this thread: nested passes, of checkpointed segments, would add to grad()
/// of leaves that were not asked for.
thread_local bool only_asked_gradients = false;

/// Checks that a start gradient fits its tensor, and that the tensor has history.
void check_root(std::string_view op, const Tensor& root, const Tensor& seed) {
  if (!root.defined())
    fail<UsageError>(
        op, "the tensor to start from is undefined. Pass a computed tensor, such as a loss.");
  if (!root.requires_grad())
    fail<UsageError>(op, "this tensor, ", described(root),
                     ", does not depend on a leaf that requires a gradient. Call "
                     "set_requires_grad() on one first.");
  if (!seed.defined())
    fail<UsageError>(op, "the gradient to start from is undefined, the tensor is ", described(root),
                     ". Pass a tensor like it.");
  if (seed.shape() != root.shape() || seed.dtype() != root.dtype())
    fail<ShapeError>(op, "the gradient to start from is ", described(seed), ", the tensor is ",
                     described(root), ". They must agree.");
}

Tensor ones_for(std::string_view op, const Tensor& root) {
  if (root.numel() != 1)
    fail<UsageError>(op, "needs a tensor of one element, got ", described(root),
                     ". Reduce it with sum() or mean(), or pass a gradient.");
  return ones_like(root);
}

/// Recording is on for a pass that creates a graph, else off.
class PassScope {
 public:
  explicit PassScope(bool create_graph) {
    if (create_graph) recording_.emplace();
    else no_grad_.emplace();
  }

 private:
  std::optional<NoGrad> no_grad_;
  std::optional<EnableGrad> recording_;
  CasterScope no_cast_{nullptr};
  MemoryScope scope_{MemoryUse::activation};
  ScaledPassScope as_around_;
};

}  // namespace

void backward(const Tensor& root, const BackwardOptions& options) {
  const Tensor& seed = options.gradient;
  if (only_asked_gradients)
    fail<UsageError>("grad",
                     "the outputs depend on a checkpointed segment, whose parameters only "
                     "backward() knows. Call backward(), or compute the segment as it is.");
  if (!root.defined()) check_root("backward", root, seed);
  const Tensor start = seed.defined() ? seed : ones_for("backward", root);
  check_root("backward", root, start);
  const PassScope scope(options.create_graph);
  ReversePass pass(options.retain_graph, options.create_graph);
  GradientListener* const listener = GradientListenerSlot::current();
  const GradientListenerScope nested(nullptr);
  if (listener) pass.tell(*listener, root);
  pass.start(root, start);
  pass.run();
}

std::vector<Tensor> autograd::grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                                   const GradOptions& options) {
  if (options.grad_outputs.size() > outputs.size())
    fail<UsageError>("grad", options.grad_outputs.size(), " grad_outputs for ", outputs.size(),
                     " outputs. Give at most one per output.");
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (!inputs[i].defined() || !inputs[i].requires_grad())
      fail<UsageError>("grad", "input ", i, ", ", described(inputs[i]),
                       ", wants no gradient. Call set_requires_grad() on it before it is used.");
  std::vector<Tensor> seeds;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    Tensor seed = i < options.grad_outputs.size() ? options.grad_outputs[i] : Tensor{};
    if (!seed.defined() && outputs[i].defined()) seed = ones_for("grad", outputs[i]);
    check_root("grad", outputs[i], seed);
    seeds.push_back(std::move(seed));
  }
  const PassScope scope(options.create_graph);
  ReversePass pass(options.retain_graph, options.create_graph);
  pass.only_for(inputs);
  if (options.create_graph) pass.only_between(outputs);
  const struct Asked {
    bool before = std::exchange(only_asked_gradients, true);
    ~Asked() { only_asked_gradients = before; }
  } asked;
  for (std::size_t i = 0; i < outputs.size(); ++i) pass.start(outputs[i], seeds[i]);
  pass.run();
  std::vector<Tensor> gradients;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    gradients.push_back(pass.taken(inputs[i]));
    if (!gradients.back().defined() && !options.allow_unused)
      fail<UsageError>("grad", "the outputs do not depend on input ", i, ", ", described(inputs[i]),
                       ". Leave it out, or set allow_unused.");
  }
  return gradients;
}

std::vector<Tensor> autograd::grad(const Tensor& output, const std::vector<Tensor>& inputs,
                                   const GradOptions& options) {
  return grad(std::span(&output, 1), inputs, options);
}

// Hooks are stored at the objects that have the whole gradient: the leaf's record, or the node of a
// computed tensor.

HookHandle register_hook(const Tensor& x, GradientHook hook) {
  if (!x.requires_grad())
    fail<UsageError>("register_hook", "this tensor, ", described(x),
                     ", has no gradient. Call set_requires_grad() on it, or on a leaf that it is "
                     "computed from, first.");
  if (!hook) fail<UsageError>("register_hook", "the hook is empty. Pass a function.");
  static std::atomic<uint64_t> numbers = 0;
  HookHandle handle;
  handle.number_ = ++numbers;
  if (const std::shared_ptr<Node>& creator = x.meta()->creator) {
    handle.node_ = creator;
    creator->hooks.emplace_back(handle.number_, std::move(hook));
  } else {
    handle.leaf_ = x.meta();
    x.meta()->hooks.emplace_back(handle.number_, std::move(hook));
  }
  return handle;
}

void HookHandle::remove() {
  const auto drop = [this](GradientHooks& hooks) {
    std::erase_if(hooks, [this](const auto& entry) { return entry.first == number_; });
  };
  if (const std::shared_ptr<AutogradMeta> leaf = leaf_.lock()) drop(leaf->hooks);
  if (const std::shared_ptr<Node> node = node_.lock()) drop(node->hooks);
}

// The readers of the catalog, compiled once in the library.

namespace {
template <class... Op> std::vector<OperationReader> readers_of(TypeList<Op...>) {
  return {reader_of<Op>()...};
}
}  // namespace

std::vector<OperationReader> catalogue_readers() { return readers_of(AllOps{}); }

// The autograd verbs of Tensor, which core/tensor.h declares.

bool Tensor::requires_grad() const { return meta_ && meta_->requires_grad; }

bool Tensor::is_leaf() const { return !meta_ || !meta_->creator; }

Tensor& Tensor::set_requires_grad(bool value) {
  if (!defined())
    fail<UsageError>("set_requires_grad", "this tensor is undefined. Make one first.");
  if (!is_leaf())
    fail<UsageError>("set_requires_grad", "only leaves can be changed; this ", described(*this),
                     " was computed. Use detach() first.");
  if (value && (!is_floating(dtype()) || size_of(dtype()) == 1))
    fail<DTypeError>("set_requires_grad",
                     "f64, f32, f16 and bf16 tensors have gradients, this one is ", dtype(),
                     ". Cast it first.");
  if (!meta_) meta_ = std::make_shared<AutogradMeta>();
  meta_->requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const { return meta_ ? meta_->grad : Tensor{}; }

void Tensor::set_grad(const Tensor& grad) {
  if (!defined()) fail<UsageError>("set_grad", "this tensor is undefined. Make one first.");
  if (!is_leaf())
    fail<UsageError>("set_grad", "only leaves hold gradients; this ", described(*this),
                     " was computed. Use a leaf.");
  if (grad.defined() && grad.shape() != shape())
    fail<ShapeError>("set_grad", "the gradient is ", described(grad), ", the tensor is ",
                     described(*this), ". Shapes must agree.");
  if (grad.defined() && (!is_floating(grad.dtype()) || size_of(grad.dtype()) == 1))
    fail<DTypeError>("set_grad", "the gradient is ", described(grad), ", the tensor is ",
                     described(*this), ". Gradients are f64, f32, f16 or bf16: cast it.");
  if (grad.defined() && grad.device() != device())
    fail<DeviceError>("set_grad", "the gradient is on ", grad.device(), ", the tensor on ",
                      device(), ". Move the gradient there.");
  if (!meta_) meta_ = std::make_shared<AutogradMeta>();
  meta_->grad = grad;
  meta_->scaled_version.reset();
}

void Tensor::backward() const { halftone::backward(*this); }

void Tensor::backward(const Tensor& gradient, bool retain_graph) const {
  if (!gradient.defined())
    fail<UsageError>("backward",
                     "the gradient to start from is undefined. Pass a tensor like this "
                     "one, ",
                     described(*this), ", or call backward() without it.");
  halftone::backward(*this, {.gradient = gradient, .retain_graph = retain_graph});
}

Tensor Tensor::to(DType dtype) const { return cast(*this, dtype); }

// The operations that core/tensor.h declares as members: each calls the function of its name.

Tensor Tensor::sum(const Dims& dims, bool keep) const { return halftone::sum(*this, dims, keep); }
Tensor Tensor::mean(const Dims& dims, bool keep) const { return halftone::mean(*this, dims, keep); }
Tensor Tensor::var(const Dims& dims, double correction, bool keep) const {
  return halftone::var(*this, dims, correction, keep);
}
Tensor Tensor::std(const Dims& dims, double correction, bool keep) const {
  return halftone::std(*this, dims, correction, keep);
}
Tensor Tensor::max(const Dims& dims, bool keep) const { return halftone::max(*this, dims, keep); }
Tensor Tensor::min(const Dims& dims, bool keep) const { return halftone::min(*this, dims, keep); }
Tensor Tensor::prod(const Dims& dims, bool keep) const { return halftone::prod(*this, dims, keep); }
Tensor Tensor::norm(const Dims& dims, bool keep) const { return halftone::norm(*this, dims, keep); }
Tensor Tensor::any(const Dims& dims, bool keep) const { return halftone::any(*this, dims, keep); }
Tensor Tensor::all(const Dims& dims, bool keep) const { return halftone::all(*this, dims, keep); }
Tensor Tensor::argmax(std::optional<int> dim, bool keep) const {
  return halftone::argmax(*this, dim, keep);
}
Tensor Tensor::argmin(std::optional<int> dim, bool keep) const {
  return halftone::argmin(*this, dim, keep);
}
Tensor Tensor::softmax(int dim) const { return halftone::softmax(*this, dim); }
Tensor Tensor::abs() const { return halftone::abs(*this); }
Tensor Tensor::exp() const { return halftone::exp(*this); }
Tensor Tensor::log() const { return halftone::log(*this); }
Tensor Tensor::sqrt() const { return halftone::sqrt(*this); }
Tensor Tensor::pow(Number exponent) const { return halftone::pow(*this, exponent); }
Tensor Tensor::clamp(std::optional<Number> low, std::optional<Number> high) const {
  return halftone::clamp(*this, low, high);
}
Tensor Tensor::matmul(const Tensor& other) const { return halftone::matmul(*this, other); }
Tensor Tensor::operator[](int64_t i) const { return select(*this, 0, i); }
Tensor Tensor::operator[](const Tensor& mask_or_index) const {
  return index(*this, {mask_or_index});
}
Tensor Tensor::operator[](std::initializer_list<Tensor> indices) const {
  return index(*this, indices);
}
Tensor Tensor::slice(int dim, std::optional<int64_t> start, std::optional<int64_t> end,
                     int64_t step) const {
  return halftone::slice(*this, dim, start, end, step);
}
Tensor Tensor::reshape(const Shape& shape) const { return halftone::reshape(*this, shape); }
Tensor Tensor::permute(const Dims& order) const { return halftone::permute(*this, order); }
Tensor Tensor::expand(const Shape& shape) const { return halftone::expand(*this, shape); }
Tensor Tensor::transpose(int a, int b) const { return halftone::transpose(*this, a, b); }
Tensor Tensor::flatten(int start, int end) const { return halftone::flatten(*this, start, end); }
Tensor Tensor::squeeze() const { return halftone::squeeze(*this); }
Tensor Tensor::squeeze(int dim) const { return halftone::squeeze(*this, dim); }
Tensor Tensor::unsqueeze(int dim) const { return halftone::unsqueeze(*this, dim); }
Tensor Tensor::contiguous() const { return halftone::contiguous(*this); }

// Frees graphs without recursion, so that their depth is not limited by the stack.

uint64_t next_node_order() {
  static std::atomic<uint64_t> count{0};
  return ++count;
}

// One work list of edges. An edge that is not its input's last holder only lets go. The last one,
// often in the list as well (x + x, or a residual connection), takes over the creator.
Node::~Node() {
  std::vector<Edge> doomed = std::move(edges);
  while (!doomed.empty()) {
    const std::shared_ptr<AutogradMeta> input = std::move(doomed.back().input);
    doomed.pop_back();
    if (!input || input.use_count() != 1) continue;
    const std::shared_ptr<Node> node = std::move(input->creator);
    if (!node || node.use_count() != 1) continue;
    doomed.insert(doomed.end(), std::make_move_iterator(node->edges.begin()),
                  std::make_move_iterator(node->edges.end()));
    node->edges.clear();
  }
}

// Runs a segment twice: first bare, then recorded. The second run sees the caster and the random
// numbers of the first, and its gradients are those of the first run.

Tensor Checkpoint::forward(std::span<const Tensor> in) {
  inputs.assign(in.begin(), in.end());
  const CasterScope region(caster);
  Tensor output;
  {
    const CallScope::Holding holding(before);
    output = segment(inputs).detach();
  }
  std::erase_if(before, [](const auto& buffers) { return !buffers->keep_changed(); });
  return output;
}

namespace {
/// The buffers of the first run, until its end.
class BuffersOfFirstRun {
 public:
  explicit BuffersOfFirstRun(const ListOfHeldBuffers& before) {
    for (const auto& buffers : before) now_.push_back(buffers->now());
    for (const auto& buffers : before) buffers->restore();
  }
  ~BuffersOfFirstRun() {
    for (const auto& buffers : now_) buffers->restore();
  }
  BuffersOfFirstRun(const BuffersOfFirstRun&) = delete;
  BuffersOfFirstRun& operator=(const BuffersOfFirstRun&) = delete;

 private:
  ListOfHeldBuffers now_{};
};

/// The random numbers of the first run, until its end.
class RandomOfFirstRun {
 public:
  explicit RandomOfFirstRun(RandomKey first) : now_(default_generator().state()) {
    default_generator().set_state(first);
  }
  ~RandomOfFirstRun() { default_generator().set_state(now_); }
  RandomOfFirstRun(const RandomOfFirstRun&) = delete;
  RandomOfFirstRun& operator=(const RandomOfFirstRun&) = delete;

 private:
  RandomKey now_;
};
}  // namespace

std::vector<Tensor> Checkpoint::backward(const Tensor& dy) const {
  std::vector<Tensor> again;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    again.push_back(inputs[i].defined() ? inputs[i].detach() : inputs[i]);
    if (wanted[i]) again.back().set_requires_grad();
  }
  {
    const BuffersOfFirstRun buffers(before);  // until the end: the second run's graph may save some
    Tensor output;
    {
      const RandomOfFirstRun random(random_state);
      const EnableGrad recording;
      const CasterScope region(caster);
      const CallScope scope(place);
      NoStatistics dropped;
      const StatisticsScope statistics(&dropped);
      output = segment(again);
    }
    if (output.requires_grad()) halftone::backward(output, {.gradient = dy});
  }
  std::vector<Tensor> gradients;
  for (std::size_t i = 0; i < again.size(); ++i) {
    gradients.push_back(wanted[i] ? again[i].grad() : Tensor{});
    if (gradients.back().defined()) gradients.back().storage()->recharge(MemoryUse::activation);
  }
  return gradients;
}

std::vector<Tensor> Checkpoint::recorded_backward(const Tensor&, const History&) const {
  fail<UnsupportedError>("checkpoint",
                         "has no second gradient, which create_graph asks for. Compute the segment "
                         "as it is: f(x) in place of checkpoint(f, {x}).");
}

Tensor checkpoint(Segment segment, const std::vector<Tensor>& inputs) {
  Checkpoint op{.segment = std::move(segment),
                .caster = shared_active_caster(),
                .random_state = default_generator().state()};
  if (const CallScope* scope = CallScope::innermost()) op.place = scope->place();
  for (const Tensor& x : inputs) op.wanted.push_back(x.requires_grad());
  // The region's casts belong inside the segment: the inputs themselves pass without a cast.
  const CasterScope no_cast(nullptr);
  return apply(std::move(op), inputs);
}

}  // namespace halftone
