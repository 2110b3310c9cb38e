// Observes one step: which dtype each product multiplied, and what the memory ledger counts.
#include "limit.h"

#include <algorithm>
#include <array>

#include <halftone/core/memory.h>
#include <halftone/policy/probe.h>

namespace halftone::bench {

namespace {
/// Returns the multiply-adds of one product's forward pass.
double multiply_adds(std::string_view op, std::span<const Tensor> inputs, const Tensor& y) {
  if (inputs.size() < 2 || !inputs[0].defined()) return 0;
  const Tensor &a = inputs[0], &b = inputs[1];
  // Queries, keys and values may come as one tensor [n, l, 3 width].
  if (op == "scaled_dot_product_attention")
    return 2 * double(y.numel()) * double(a.rank() == 3 ? a.size(1) : b.size(-2));
  if (op == "linear") return double(y.numel()) * double(b.size(1));
  if (op == "conv2d") return double(y.numel()) * double(b.numel()) / double(b.size(0));
  if (op == "matmul") return double(y.numel()) * double(a.size(-1));
  return 0;
}

/// The share of each dtype in a pass's products. If one operand is f32 and the other short, the
/// product counts as f32.
class DTypesOfProducts final : public policy::Observer {
 public:
  bool begin_pass(int64_t) override { return true; }
  void tensor(const policy::Seen& seen, const Tensor&, const Tensor& after) override {
    if (seen.role > policy::Role::weight || seen.input > 1) return;
    op_ = seen.op;
    if (seen.input == 0) operands_[1] = after.dtype();  // for an operation with one tensor
    operands_[seen.input] = after.dtype();
  }
  void ran(std::string_view, std::span<const Tensor> inputs, Computation&,
           const Tensor& y) override {
    const DType dtype = operands_[0] == operands_[1] ? operands_[0] : f32;
    if (const double work = multiply_adds(op_, inputs, y); work > 0) of_dtype_[dtype] += work;
    op_ = {};
  }
  std::map<DType, double> shares() const {
    double all = 0;
    for (const auto& [dtype, work] : of_dtype_) all += work;
    std::map<DType, double> shares = of_dtype_;
    for (auto& [dtype, share] : shares) share /= all;
    return shares;
  }

 private:
  std::string_view op_{};
  std::array<DType, 2> operands_{f32, f32};
  std::map<DType, double> of_dtype_{};
};
}  // namespace

StepNeeds needs_of_step(lab::SyntheticWorkload& work, amp::Training& training) {
  using Use = MemoryUse;
  const Device device = work.inputs.device();
  const auto held = [&](std::initializer_list<Use> uses) {
    const MemoryReport report = memory_report(device);
    double bytes = 0;
    for (const Use use : uses) bytes += double(report.now_of(use));
    return bytes;
  };
  const auto products = std::make_shared<DTypesOfProducts>();
  const policy::Observation observation("limit", training, products);
  const double before = held({Use::activation});
  const Tensor loss = lab::logits_loss(training.forward(*work.model, work.inputs), work.targets);
  const double kept = held({Use::activation}) - before;
  training.backward(loss);
  const double gradients = held({Use::gradient, Use::master_gradient});
  training.step();
  training.zero_grad();

  StepNeeds needs;
  for (const auto& [dtype, share] : products->shares()) needs.gflop[dtype] = work.gflop * share;
  const double weights = held({Use::parameter});
  const double updated =
      weights + held({Use::master_weight, Use::compensation, Use::optimizer_state});
  needs.bytes = 2 * (updated + gradients + weights + kept + double(work.inputs.bytes()));
  return needs;
}

Limit limit_on(const Machine& machine, const StepNeeds& needs) {
  Limit limit;
  for (const auto& [dtype, gflop] : needs.gflop)
    limit.arithmetic_ms += 1e3 * gflop / machine.arithmetic(dtype);
  limit.memory_ms = 1e3 * needs.bytes * 1e-9 / machine.bandwidth(needs.bytes / 2);
  return limit;
}

}  // namespace halftone::bench
