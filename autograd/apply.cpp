// The parts of apply() that do not depend on the operation.
#include <halftone/autograd/apply.h>

#include <memory>
#include <utility>

#include <halftone/autograd/ops/cast.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/formats/coded_form.h>
#include <halftone/core/memory.h>
#include <halftone/core/pending.h>

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

void compute_if_waiting(const Tensor& x) {
  if (x.defined() && !f8_operand(x)) x.raw_data();
}

void fail_saved_was_written(const OpInfo& op) {
  fail<UsageError>(op.name,
                   "a tensor that it saved for backward was written in place after its forward, so "
                   "its gradient would be wrong. Call backward() before the write (an optimizer's "
                   "step, copy_into()), or pass a clone() to the operation.");
}

// Saved activations in 8 or 4 bits (core/formats/coded_form.h). The tensor that a node keeps has no
// memory: it waits, and is decoded when backward reads it. Operations that saved the same tensor
// share its codes.

namespace {

class Decoded final : public PendingResult {
 public:
  Decoded(DType dtype, Tensor blocks, CodedForm form, int64_t numel)
      : PendingResult(dtype, {}), blocks_(std::move(blocks)), form_(form), numel_(numel) {}
  Tensor make(DType dtype) const override {
    Tensor x = empty({numel_}, dtype, blocks_.device());
    backend_for(x).decode_blocks(blocks_, {form_, true}, x);
    return x;
  }
  bool gives(DType dtype) const override { return dtype == this->dtype(); }

 private:
  Tensor blocks_;
  CodedForm form_;
  int64_t numel_;
};

/// Storages that were encoded last, and the storages of their codes.
struct CodedStorage {
  std::weak_ptr<Storage> own{}, coded{};
  uint64_t version = 0;
  CodedForm form = CodedForm::plain;
};
thread_local std::array<CodedStorage, 16> coded_last;
thread_local std::size_t coded_next = 0;

std::shared_ptr<Storage> coded_storage(const std::shared_ptr<Storage>& own, const Tensor& flat,
                                       CodedForm form) {
  for (const CodedStorage& known : coded_last)
    if (known.form == form && known.version == own->version() && known.own.lock() == own)
      if (std::shared_ptr<Storage> coded = known.coded.lock()) return coded;
  const MemoryScope scope(own->use());
  Tensor blocks =
      empty({facts(form).blocks(flat.numel()), facts(form).block_bytes()}, u8, flat.device());
  backend_for(flat).encode_blocks(flat, {}, {form, true}, blocks);
  const Tensor waiting = pending_tensor(
      flat.shape(), flat.strides(), flat.device(),
      std::make_shared<Decoded>(flat.dtype(), std::move(blocks), form, flat.numel()));
  coded_last[coded_next++ % coded_last.size()] = {own, waiting.storage(), own->version(), form};
  return waiting.storage();
}

}  // namespace

Tensor coded_if_activation(const Tensor& x, std::span<const Tensor> inputs, const Tensor& output,
                           const CastPlan& plan) {
  constexpr int64_t least = 4096;
  const std::shared_ptr<Storage>& own = x.storage();
  const auto is_own = [&](const Tensor& other) {
    return other.defined() && other.storage() == own;
  };
  bool activation = is_own(output);
  // The first input is data or an activation; another without a gradient is a setting, such as
  // the weights of classes.
  for (std::size_t i = 0; i < inputs.size() && i < 32; ++i)
    if ((plan.parameters >> i & 1) == 0 && (i == 0 || inputs[i].requires_grad()))
      activation = activation || is_own(inputs[i]);
  const int64_t numel = own->bytes() / size_of(x.dtype());
  const bool worth = is_floating(x.dtype()) && x.dtype() != f64 && size_of(x.dtype()) > 1 &&
                     numel >= least && x.numel() >= numel / 4 && !own->pending();
  if (!activation || !worth) return x;
  const Tensor flat = x.detach().view_as({numel}, {1}, 0);
  return Tensor(std::make_shared<TensorBody>(TensorBody{
      coded_storage(own, flat, plan.saved), x.offset(), x.shape(), x.strides(), x.dtype()}));
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
