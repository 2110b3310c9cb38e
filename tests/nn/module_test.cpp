// Module: names, counts, modes, conversion of storage that several handles share, and the
// ledger.
#include <doctest/doctest.h>

#include <type_traits>

#include <halftone/autograd/ops.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/nn.h>
#include <halftone/optim/optimizers.h>

#include "../support.h"

namespace halftone::test::module_test {
namespace {

template <class T> std::vector<std::string> names_of(const nn::Named<T>& list) {
  std::vector<std::string> names;
  for (const auto& entry : list) names.push_back(entry.first);
  return names;
}
using Names = std::vector<std::string>;

struct Block final : nn::Layer {
  nn::Linear inner{3, 3};
  nn::Sequential tail{nn::BatchNorm1d(3), nn::Relu(), nn::Linear(3, 2, {.bias = false})};
  Tensor forward(const Tensor& x) const override { return tail(inner(x)); }
  void describe(nn::Fields& field) override { field("inner", inner), field("tail", tail); }
};

int64_t parameter_bytes() { return memory_report().now_of(MemoryUse::parameter); }

}  // namespace

TEST_CASE("paths are PyTorch's, in the order of description") {
  Block block;
  CHECK(names_of(block.named_parameters()) ==
        Names{"inner.weight", "inner.bias", "tail.0.weight", "tail.0.bias", "tail.2.weight"});
  CHECK(names_of(block.named_buffers()) ==
        Names{"tail.0.running_mean", "tail.0.running_var", "tail.0.num_batches_tracked"});
  CHECK(names_of(block.named_modules()) ==
        Names{"", "inner", "tail", "tail.0", "tail.1", "tail.2"});
  CHECK(block.parameters().size() == 5);
  CHECK(block.parameter_count() == 9 + 3 + 3 + 3 + 6);
}

TEST_CASE("modules move, handles stay; they do not copy") {
  static_assert(!std::is_copy_constructible_v<nn::Linear> &&
                !std::is_copy_constructible_v<nn::Sequential>);
  Block block;
  const Tensor before = block.parameters()[0];
  Block moved = std::move(block);
  CHECK(moved.parameters()[0].body() == before.body());
  CHECK(names_of(moved.named_parameters()).front() == "inner.weight");
}

TEST_CASE("a shared parameter is listed once, under its first name") {
  nn::Linear first(4, 4), second(4, 4);
  second.weight = first.weight;
  struct Pair final : nn::Module {
    nn::Linear &a, &b;
    Pair(nn::Linear& x, nn::Linear& y) : a(x), b(y) {}
    void describe(nn::Fields& field) override { field("a", a), field("b", b); }
  } pair(first, second);
  CHECK(names_of(pair.named_parameters()) == Names{"a.weight", "a.bias", "b.bias"});
  CHECK(pair.parameter_count() == 16 + 4 + 4);
  CHECK(nn::state_dict(pair).size() == 4);
  pair.to(bf16);
  CHECK(second.weight.dtype() == bf16);
  CHECK(second.weight.body() == first.weight.body());
}

TEST_CASE("models have the published sizes") {
  CHECK(nn::models::mlp({784, 128, 10}).parameter_count() == 101770);
  CHECK(names_of(nn::models::mlp({4, 3, 2}).named_parameters()) ==
        Names{"0.weight", "0.bias", "2.weight", "2.bias"});
  nn::models::LeNet lenet;
  CHECK(lenet.parameter_count() == 421642);
  CHECK(lenet(zeros({2, 1, 28, 28})).shape() == Shape{2, 10});
  CHECK(nn::models::LeNet({.channels = 3, .classes = 5}).conv1.weight.shape() ==
        Shape{32, 3, 3, 3});
  CHECK_THROWS_WITH_AS(nn::models::mlp({784}),
                       "[models.mlp] 1 sizes given. Give at least an input and an output size.",
                       UsageError);
}

TEST_CASE("train and eval reach every module") {
  Block block;
  block.eval();
  for (const auto& [path, module] : block.named_modules()) CHECK_FALSE(module->training);
  block.train();
  for (const auto& [path, module] : block.named_modules()) CHECK(module->training);
}

TEST_CASE("zero_grad drops gradients, set_requires_grad freezes") {
  nn::Linear layer(2, 1);
  sum(layer(ones({3, 2}))).backward();
  CHECK(layer.weight.grad().to_vector<double>() == std::vector<double>{3, 3});
  layer.zero_grad();
  CHECK_FALSE(layer.weight.grad().defined());
  layer.set_requires_grad(false);
  CHECK_FALSE(layer(ones({3, 2})).requires_grad());
}

TEST_CASE("to(dtype) replaces storage under every handle") {
  Block block;
  const std::vector<Tensor> handles = block.parameters();
  const std::vector<float> values = handles[0].to_vector<float>();
  sum(block(rand({4, 3}))).backward();
  const int64_t bytes = parameter_bytes();

  block.to(bf16);
  CHECK(handles[0].dtype() == bf16);
  CHECK(handles[0].requires_grad());
  CHECK(handles[0].is_leaf());
  CHECK_FALSE(handles[0].grad().defined());
  for (std::size_t i = 0; i < values.size(); ++i)
    CHECK(handles[0].to_vector<float>()[i] == float(BFloat16(values[i])));
  const auto& norm = dynamic_cast<nn::BatchNorm1d&>(block.tail[0]);
  CHECK(norm.running_mean.dtype() == f32);
  CHECK(norm.num_batches_tracked.dtype() == i64);
  const int64_t kept = norm.running_mean.bytes() + norm.running_var.bytes() + 8;
  CHECK(parameter_bytes() == (bytes - kept) / 2 + kept);

  sum(block(rand({4, 3}, bf16))).backward();
  CHECK(handles[0].grad().dtype() == bf16);
  block.to(f32);
  CHECK(parameter_bytes() == bytes);
  block.to(Device::cpu());
  CHECK(handles[0].dtype() == f32);
  CHECK_THROWS_WITH_AS(
      block.to(i64), "[Module.to] parameters must be floating, got i64. Use f64, f32, f16 or bf16.",
      DTypeError);
}

TEST_CASE("an optimizer made before the conversion trains the converted parameters") {
  manual_seed(2);
  nn::Sequential model = nn::models::mlp({4, 16, 3});
  optim::AdamW optimizer(model.parameters(), {.lr = 0.02});
  model.to(bf16);
  const Tensor x = randn({32, 4}, bf16), targets = randint(0, 3, {32});
  const auto loss = [&] { return cross_entropy(model(x), targets); };
  const double before = loss().item();
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    loss().backward();
    optimizer.step();
  }
  CHECK(loss().item() < 0.5 * before);
  CHECK(optimizer.parameters()[0].dtype() == bf16);
}

TEST_CASE("LeNet learns two images") {
  manual_seed(4);
  nn::models::LeNet model;
  optim::AdamW optimizer(model.parameters(), {.lr = 2e-3});
  const Tensor x = rand({2, 1, 28, 28}), targets = from({3, 8}, i64);
  Tensor loss;
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    loss = cross_entropy(model(x), targets);
    loss.backward();
    optimizer.step();
  }
  CHECK(loss.item() < 1);  // from ln 10
}

TEST_CASE("to(dtype) keeps tensors that have the dtype already") {
  nn::Linear layer(2, 2);
  sum(layer(ones({1, 2}))).backward();
  const Storage* storage = layer.weight.storage().get();
  layer.to(f32);
  CHECK(layer.weight.storage().get() == storage);
  CHECK(layer.weight.grad().defined());
}

TEST_CASE("the ledger knows parameters and buffers to the byte") {
  const MemoryReport before = memory_report();
  {
    const nn::Sequential model = nn::models::mlp({5, 4, 3});
    const int64_t bytes = 4 * (20 + 4 + 12 + 3);
    CHECK(parameter_bytes() - before.now_of(MemoryUse::parameter) == bytes);
    const nn::BatchNorm2d norm(6);
    CHECK(parameter_bytes() - before.now_of(MemoryUse::parameter) == bytes + 4 * 6 * 4 + 8);
  }
  CHECK(memory_report().now == before.now);
}

TEST_CASE("a user's walk may skip modules") {
  struct WithoutNorms final : nn::Fields {
    Names names;
    void parameter(const std::string& path, nn::Parameter&) override { names.push_back(path); }
    bool module(const std::string&, nn::Module& x) override {
      return !dynamic_cast<nn::BatchNorm*>(&x);
    }
  } walk;
  Block block;
  walk.walk(block);
  CHECK(walk.names == Names{"inner.weight", "inner.bias", "tail.2.weight"});
}

/// Names that describe() gives to the two layers, and to a parameter.
struct Called final : nn::Layer {
  nn::Linear first{3, 3}, second{3, 3};
  nn::Parameter scale{ones({3})};
  std::string_view names[3];
  Called(std::string_view a, std::string_view b, std::string_view c) : names{a, b, c} {}
  Tensor forward(const Tensor& x) const override { return second(first(x)) * scale; }
  void describe(nn::Fields& field) override {
    field(names[0], first), field(names[1], second), field(names[2], scale);
  }
};

TEST_CASE("two fields of one name are refused by every walk") {
  const auto text = [](const std::string& path) {
    return "[Module.describe] two fields are called \"" + path +
           "\", and a saved state would keep one of them. Give each a name of its own.";
  };
  CHECK(message_of<UsageError>([] { nn::state_dict(Called("fc", "fc", "scale")); }) == text("fc"));
  CHECK(message_of<UsageError>([] { Called("fc", "fc", "scale").parameters(); }) == text("fc"));
  CHECK(message_of<UsageError>([] { Called("a", "b", "a").named_buffers(); }) == text("a"));
  CHECK(message_of<UsageError>([] { Called("a", "b", "a.weight").eval(); }) == text("a.weight"));
  nn::Sequential deep(nn::Linear(3, 3), Called("fc", "fc", "scale"));
  CHECK(message_of<UsageError>([&] { deep.named_modules(); }) == text("1.fc"));
  // After an error the next walk works, and two modules may each have a field of the same name.
  CHECK(Called("a", "b", "scale").parameters().size() == 5);
  CHECK(nn::Sequential(Called("a", "b", "scale"), Called("a", "b", "scale")).parameters().size() ==
        10);
}

/// A tree that may contain itself or one of its ancestors.
struct Tree final : nn::Module {
  nn::Linear leaf{2, 2};
  nn::Module* branch = nullptr;
  void describe(nn::Fields& field) override {
    field("leaf", leaf);
    if (branch) field("branch", *branch);
  }
};

TEST_CASE("a module that is part of itself is refused") {
  Tree top, middle;
  top.branch = &top;
  CHECK(message_of<UsageError>([&] { top.parameters(); }) ==
        "[Module.describe] the field \"branch\" is the module that is described, which contains "
        "it. Leave it out of describe().");
  top.branch = &middle, middle.branch = &middle;
  CHECK(message_of<UsageError>([&] { top.eval(); }) ==
        "[Module.describe] the field \"branch.branch\" is \"branch\", which contains it. Leave it "
        "out of describe().");
  middle.branch = &top;
  CHECK_THROWS_AS(nn::state_dict(top), UsageError);
  middle.branch = nullptr;
  CHECK(top.parameters().size() == 4);
}

}  // namespace halftone::test::module_test
