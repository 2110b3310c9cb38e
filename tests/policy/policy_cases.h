// Policies as texts of a test: with some entries, and the message for refused ones.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <halftone/amp/training.h>
#include <halftone/autograd/node.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/nn/conv.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/module.h>
#include <halftone/nn/rnn.h>
#include <halftone/optim/optimizer.h>
#include <halftone/optim/optimizers.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/probe.h>
#include <halftone/amp/rules.h>
#include <halftone/amp/session.h>

#include "../support.h"

namespace halftone::test {

/// A policy with these entries.
inline std::string text_of(const std::string& entries) {
  return R"({"halftone_policy": 1, "name": "p")" + (entries.empty() ? "" : ", " + entries) + "}";
}
inline amp::Policy file_of(const std::string& entries) {
  return policy::read_text(text_of(entries), "my.json");
}
/// The message for a text, without its "[policy my.json] ".
inline std::string refusal_of_text(const std::string& text) {
  const std::string message = message_of<FormatError>([&] { policy::read_text(text, "my.json"); });
  const std::string where = "[policy my.json] ";
  if (message.empty()) return "accepted";
  return message.starts_with(where) ? message.substr(where.size()) : message;
}
inline std::string refusal_of(const std::string& entries) {
  return refusal_of_text(text_of(entries));
}
inline std::string refusal_of_rule(const std::string& entries) {
  return refusal_of(R"("rules": [{)" + entries + "}]");
}
/// The same for a quantizer that a rule uses.
inline std::string refusal_of_quantizer(const std::string& entries) {
  return refusal_of(R"("quantizers": {"q": {)" + entries + R"(}}, "rules": [{"weight": "q"}])");
}

// A linear layer, and a small MLP that is trained, under a policy from text.

inline Tensor numbers(const Shape& shape, uint64_t seed) {
  manual_seed(seed);
  return randn(shape);
}

inline std::vector<float> floats(const Tensor& x) { return x.to_vector<float>(); }

inline std::string policy_with(const std::string& rules, const std::string& more = "") {
  return R"({"halftone_policy": 1, "name": "t", "extends": "fp32", "rules": [)" + rules + "]" +
         more + "}";
}

/// A linear layer in a model, a session with these rules, and one pass through it.
struct Pass {
  nn::Sequential model;
  optim::Sgd sgd;
  amp::Training training;
  Tensor x, y;
  explicit Pass(const std::string& text, int64_t in = 6, int64_t out = 5)
      : model((manual_seed(1), nn::Linear(in, out))),
        sgd(model.parameters(), {.lr = 0.1}),
        training(policy::read_text(text), model, sgd),
        x(numbers({4, in}, 2)) {
    x.set_requires_grad();
  }
  nn::Linear& layer() { return static_cast<nn::Linear&>(model[0]); }
  Tensor seed() const { return numbers({4, 5}, 3); }
  void run() {
    y = training.forward([&](const Tensor& in) { return model(in); }, x);
    y.backward(seed());
  }
};

struct Steps {
  nn::Sequential model;
  optim::AdamW adamw;
  amp::Training training;
  explicit Steps(const std::string& text, std::vector<int64_t> sizes = {6, 8, 3})
      : model((manual_seed(4), nn::models::mlp(sizes))),
        adamw(model.parameters(), {.lr = 1e-2}),
        training(policy::read_text(text), model, adamw) {}
  void step(uint64_t number) {
    training.zero_grad();
    const Tensor x = numbers({5, 6}, 10 + number);
    const Tensor y = training.forward([&](const Tensor& in) { return model(in); }, x);
    training.backward(mean(y * y));
    training.step();
  }
  std::vector<float> weights() const {
    std::vector<float> all;
    for (const Tensor& x : model.parameters())
      for (const float v : floats(x)) all.push_back(v);
    return all;
  }
};

inline constexpr const char* delayed_policy =
    R"({"match": {"op": "linear"}, "input": {"format": "e4m3",
  "scale": {"per": "tensor", "from": "history", "history": 4}}, "grad_output": {"format": "e5m2",
  "rounding": "stochastic", "scale": {"per": "tensor", "from": "history", "history": 4}}})";

inline void check_sums(const policy::UpdateSums& found, const policy::UpdateSums& wanted) {
  CHECK(found.count == wanted.count);
  CHECK(found.lost == wanted.lost);
  CHECK(found.du == doctest::Approx(wanted.du).epsilon(1e-5));
  CHECK(found.uu == doctest::Approx(wanted.uu).epsilon(1e-5));
  CHECK(found.ww == doctest::Approx(wanted.ww));
}

// Faults that are planted in one operation of a pass: its result, or its gradients, times a factor.

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
