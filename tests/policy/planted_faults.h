// Faults that are planted in one operation of a pass: its result, or its gradients, times a factor.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <halftone/autograd/node.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

namespace halftone::test {

inline Tensor spoilt(const Tensor& x, double factor) {
  if (!x.defined() || !is_floating(x.dtype())) return x;
  Tensor y = x.clone(), by = full({}, factor, f32);
  backend_for(y).scale_all({&y, 1}, by);
  return y;
}

struct SpoiltComputation final : Computation {
  Computation& right;
  double factor;
  SpoiltComputation(Computation& operation, double by) : right(operation), factor(by) {}
  Tensor run(std::span<const Tensor> inputs) override { return spoilt(right.run(inputs), factor); }
  Tensor aside(std::span<const Tensor> inputs, std::shared_ptr<Node>* kept) override {
    return right.aside(inputs, kept);
  }
};

struct SpoiltNode final : Node {
  Node& right;
  double factor;
  SpoiltNode(Node& node, double by) : right(node), factor(by) {
    info = node.info, output_dtype = node.output_dtype, output_shape = node.output_shape;
    edges = node.edges;
  }
  std::vector<Tensor> all_spoilt(std::vector<Tensor> gradients) const {
    for (Tensor& x : gradients) x = spoilt(x, factor);
    return gradients;
  }
  std::vector<Tensor> backward(const Tensor& dy) override { return all_spoilt(right.backward(dy)); }
  std::vector<Tensor> backward_for(const Tensor& dy, uint32_t inputs) override {
    return all_spoilt(right.backward_for(dy, inputs));
  }
  void release() override {}
  bool released() const override { return false; }
};

class SpoiltTap final : public OpTap {
 public:
  SpoiltTap(std::shared_ptr<OpTap> inner, double forward, double backward)
      : inner_(std::move(inner)), forward_(forward), backward_(backward) {}
  Tensor forward(std::span<const Tensor> inputs, Computation& operation) override {
    SpoiltComputation wrong(operation, forward_);
    return inner_ ? inner_->forward(inputs, wrong) : wrong.run(inputs);
  }
  std::vector<Tensor> backward(Node& node, const Tensor& dy) override {
    SpoiltNode wrong(node, backward_);
    return inner_ ? inner_->backward(wrong, dy) : wrong.backward(dy);
  }

 private:
  std::shared_ptr<OpTap> inner_;
  double forward_, backward_;
};

/// Wraps the caster of a region: the factors apply to operation number `at`, not counting casts.
class Planter final : public InputCaster {
 public:
  Planter(int at, double forward, double backward)
      : inner_(shared_active_caster()), at_(at), forward_(forward), backward_(backward) {}
  CastPlan plan(const OpInfo& op, std::span<Tensor> inputs, bool has_f32_result) override {
    CastPlan plan = inner_->plan(op, inputs, has_f32_result);
    if (op.name != "cast" && count_++ == at_)
      plan.tap = std::make_shared<SpoiltTap>(plan.tap, forward_, backward_);
    return plan;
  }
  void cast_inputs(const OpInfo& op, std::span<Tensor> inputs) override {
    inner_->cast_inputs(op, inputs);
  }

 private:
  std::shared_ptr<InputCaster> inner_;
  int at_, count_ = 0;
  double forward_, backward_;
};

}  // namespace halftone::test
