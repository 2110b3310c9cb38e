// The site of an operation: the module being called when it begins. It is the same when a
// checkpointed segment runs again.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <halftone/autograd/checkpoint.h>
#include <halftone/autograd/ops.h>
#include <halftone/autograd/slots.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/nn.h>

namespace halftone::test::call_scope_test {
namespace {

/// Records "path/op.ordinal" of every operation.
class Surveyor final : public InputCaster {
 public:
  explicit Surveyor(nn::Module& model) {
    for (const auto& [name, module] : model.named_modules()) paths_[module] = name;
  }
  std::vector<std::string> seen{};

  CastPlan plan(const OpInfo& op, std::span<Tensor>, bool) override {
    const CallScope* scope = CallScope::innermost();
    std::string text = scope && scope->owner() ? paths_.at(scope->owner()) : "-";
    if (scope && !scope->label().empty()) text += ":" + std::string(scope->label());
    text += "/" + std::string(op.name) + ".";
    seen.push_back(text + std::to_string(scope ? scope->next_ordinal(op) : -1));
    return {};
  }
  void cast_inputs(const OpInfo&, std::span<Tensor>) override {}

 private:
  std::map<const void*, std::string> paths_;
};

using Words = std::vector<std::string>;

TEST_CASE("the site of an operation is the module that is being called") {
  nn::Sequential model(nn::Linear(3, 4), nn::Relu(), nn::Linear(4, 2));
  const auto surveyor = std::make_shared<Surveyor>(model);
  const CasterScope region(surveyor);
  const Tensor y = model(ones({2, 3}));
  exp(y);
  CHECK(surveyor->seen == Words{"0/linear.0", "1/relu.0", "2/linear.0", "-/exp.-1"});
}

struct Twice final : nn::Layer {
  nn::Linear inner{3, 3};
  Tensor forward(const Tensor& x) const override {
    const Tensor y = tanh(inner(inner(tanh(x))));
    return y + exp(x);
  }
  void describe(nn::Fields& field) override { field("inner", inner); }
};

TEST_CASE("equal operations of one call are numbered, and each call counts from the start") {
  Twice model;
  const auto surveyor = std::make_shared<Surveyor>(model);
  const CasterScope region(surveyor);
  model(model(ones({2, 3})));
  const Words once{"/tanh.0", "inner/linear.0", "inner/linear.0", "/tanh.1", "/exp.0", "/add.0"};
  Words twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  CHECK(surveyor->seen == twice);
}

TEST_CASE("a part that is not a module has a label; modules that are not layers also have scopes") {
  nn::models::Gpt gpt({.vocabulary = 7, .context = 4, .layers = 1, .heads = 1, .width = 4});
  const auto surveyor = std::make_shared<Surveyor>(gpt);
  const CasterScope region(surveyor);
  gpt(zeros({1, 4}, i64));
  CHECK(surveyor->seen.back() == ":lm_head/linear.0");
  CHECK(std::ranges::find(surveyor->seen, "transformer.h.0.attn.c_attn/linear.0") !=
        surveyor->seen.end());

  nn::Lstm lstm(3, 2);
  const auto other = std::make_shared<Surveyor>(lstm);
  const CasterScope inner(other);
  lstm(ones({2, 1, 3}));
  CHECK(other->seen.size() > 1);
  for (const std::string& place : other->seen) CHECK(place.starts_with("/"));
}

TEST_CASE("a checkpointed segment has the same sites when it runs again") {
  Twice model;
  const auto surveyor = std::make_shared<Surveyor>(model);
  const Tensor x = ones({2, 3}).set_requires_grad();
  Tensor y;
  {
    const CasterScope region(surveyor);
    const CallScope root(static_cast<const nn::Module*>(&model), "outer");
    y = checkpoint([&](const std::vector<Tensor>& in) { return exp(model(exp(in[0]))); }, {exp(x)});
  }
  const Words forward(surveyor->seen.begin() + 1, surveyor->seen.end());
  CHECK(forward.front() == ":outer/exp.1");
  surveyor->seen.clear();
  CHECK(CallScope::innermost() == nullptr);
  y.backward(ones({2, 3}));
  CHECK(CallScope::innermost() == nullptr);
  CHECK(surveyor->seen == forward);
}

TEST_CASE("a scope ends with an exception") {
  const nn::Sequential model(nn::Linear(3, 4));
  CHECK_THROWS_AS(model(ones({2, 5})), ShapeError);
  CHECK(CallScope::innermost() == nullptr);
}

}  // namespace
}  // namespace halftone::test::call_scope_test
