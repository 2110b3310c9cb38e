// A linear layer, and a small MLP that is trained, under a policy from text.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include <halftone/amp/training.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/nn.h>
#include <halftone/optim/optim.h>
#include <halftone/policy/policy.h>
#include <halftone/policy/probe.h>

namespace halftone::test {

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
        training(policy::parse(text), model, sgd),
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
        training(policy::parse(text), model, adamw) {}
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

}  // namespace halftone::test
