// Module: names, counts, modes, conversion of storage that several handles share, and the
// ledger.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

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

// The site of an operation: the module being called when it begins. It is the same when a
// checkpointed segment runs again.

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

/// x + maps of x and of memory: a module with two inputs, and a result of two tensors.
struct Joined {
  Tensor sum, product;
  std::vector<Tensor> tensors() const { return {sum, product}; }
};
struct Cross final : nn::LayerOf<Joined(const Tensor& x, const Tensor& memory, int times)> {
  nn::Linear map{3, 3};
  Joined forward(const Tensor& x, const Tensor& memory, int times) const override {
    return {map(x) * double(times) + memory, x * memory};
  }
  void describe(nn::Fields& field) override { field("map", map); }
};

TEST_CASE("a layer of several inputs has a scope, and may return a struct") {
  Cross model;
  const auto surveyor = std::make_shared<Surveyor>(model);
  const CasterScope region(surveyor);
  const Joined result = model(ones({2, 3}), ones({2, 3}), 2);
  CHECK(result.product.shape() == Shape{2, 3});
  CHECK(surveyor->seen == Words{"map/linear.0", "/affine.0", "/add.0", "/mul.0"});
}

TEST_CASE("observers see the inputs and the results of calls, until they are removed") {
  nn::Sequential model(nn::Linear(3, 4), nn::Dropout(), nn::Linear(4, 2));
  Words seen;
  const auto observe = [&](nn::Module& module, const std::string& name) {
    return module.on_forward([&seen, &module, name](const nn::Module& called,
                                                    std::span<const Tensor> in,
                                                    std::span<const Tensor> out) {
      CHECK(&called == &module);
      std::ostringstream line;
      line << name;
      for (const Tensor& x : in) x.defined() ? line << ' ' << described(x) : line << " none";
      line << " ->";
      for (const Tensor& y : out) line << ' ' << described(y);
      seen.push_back(line.str());
    });
  };
  nn::ForwardHandle whole = observe(model, "model"), first = observe(model[0], "first"),
                    again = observe(model[0], "again");
  const Tensor y = model(ones({2, 3}));
  CHECK(seen == Words{"first [2, 3] f32 -> [2, 4] f32", "again [2, 3] f32 -> [2, 4] f32",
                      "model [2, 3] f32 -> [2, 2] f32"});
  const nn::ForwardHandle copy = first;
  first.remove(), first.remove();
  nn::ForwardHandle later = observe(model[0], "later");
  nn::ForwardHandle(copy).remove();  // not another one
  seen.clear();
  nn::Sequential moved(std::move(model));
  whole.remove();
  moved(ones({1, 3}));
  CHECK(seen == Words{"again [1, 3] f32 -> [1, 4] f32", "later [1, 3] f32 -> [1, 4] f32"});
  again.remove(), later.remove();

  seen.clear();
  Cross cross;
  observe(cross, "cross");
  cross(ones({2, 3}), ones({3}), 1);
  nn::Lstm lstm(3, 4);
  observe(lstm, "lstm");
  lstm(ones({5, 1, 3}));
  nn::MultiheadAttention attention(4, 2);
  observe(attention, "attention");
  attention(ones({1, 2, 4}), AttentionOptions{.causal = true});
  CHECK(seen ==
        Words{"cross [2, 3] f32 [3] f32 -> [2, 3] f32 [2, 3] f32",
              "lstm [5, 1, 3] f32 none none none -> [5, 1, 4] f32 [1, 1, 4] f32 [1, 1, 4] f32",
              "attention [1, 2, 4] f32 [1, 2, 4] f32 [1, 2, 4] f32 -> [1, 2, 4] f32"});
  CHECK_THROWS_WITH_AS(cross.on_forward({}),
                       "[Module.on_forward] the observer is empty. Pass a function.", UsageError);
  nn::ForwardHandle gone;
  {
    nn::Relu relu;
    gone = observe(relu, "relu");
  }
  gone.remove();
}

TEST_CASE("observers see the calls of models that store keys and values") {
  nn::models::Gpt gpt({.vocabulary = 7, .context = 4, .layers = 1, .heads = 1, .width = 4});
  int calls = 0;
  const auto count = [&](const nn::Module&, std::span<const Tensor>, std::span<const Tensor> out) {
    calls += out.size() == 1 ? 1 : 100;
  };
  for (const auto& [name, module] : gpt.named_modules()) module->on_forward(count);
  const NoGrad no_grad;
  const Tensor tokens = zeros({1, 2}, i64);
  gpt(tokens);
  const int whole = std::exchange(calls, 0);
  nn::models::KeyValueCache cache;
  gpt(tokens, cache);
  CHECK(calls == whole);
}

TEST_CASE("an observer may remove itself, and its operations belong to the module") {
  Twice model;
  const auto surveyor = std::make_shared<Surveyor>(model);
  nn::ForwardHandle handle;
  handle = model.on_forward(
      [&](const nn::Module&, std::span<const Tensor>, std::span<const Tensor> out) {
        exp(out[0]);
        handle.remove();
      });
  const CasterScope region(surveyor);
  model(ones({2, 3}));
  CHECK(surveyor->seen.back() == "/exp.1");
  surveyor->seen.clear();
  model(ones({2, 3}));
  CHECK(surveyor->seen.back() == "/add.0");
}

}  // namespace
}  // namespace halftone::test::call_scope_test

// nn::clone: the same values, no shared data; and recurrent cells, which are layers of one step.

namespace halftone::test::clone_test {
namespace {

std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }

struct Small : nn::Module {
  nn::Linear first, second;
  nn::BatchNorm1d norm;
  explicit Small(int64_t width) : first(width, width), second(width, width), norm(width) {
    second.weight = first.weight;
  }
  void describe(nn::Fields& field) override {
    field("first", first), field("second", second), field("norm", norm);
  }
};

TEST_CASE(
    "a clone has the values, ties, modes and frozen parameters of the original, and its own data") {
  manual_seed(3);
  Small model(4);
  model.norm.eval();
  model.first.bias.set_requires_grad(false);
  model.to(bf16);
  const RandomKey before = default_generator().state();
  Small copy = nn::clone(model, 4);
  CHECK(default_generator().state().offset == before.offset);
  CHECK(copy.first.weight.dtype() == bf16);
  CHECK(copy.first.weight.body() == copy.second.weight.body());
  CHECK(copy.first.weight.body() != model.first.weight.body());
  CHECK(copy.first.weight.storage() != model.first.weight.storage());
  CHECK(values(copy.first.weight) == values(model.first.weight));
  CHECK(values(copy.norm.running_var) == values(model.norm.running_var));
  CHECK(copy.training);
  CHECK_FALSE(copy.norm.training);
  CHECK_FALSE(copy.first.bias.requires_grad());
  CHECK(copy.second.bias.requires_grad());
  CHECK(copy.parameters().size() == model.parameters().size());
}

TEST_CASE("clones of models; a clone of other arguments is refused") {
  nn::models::LeNet lenet;
  nn::models::LeNet copy = nn::clone(lenet);
  CHECK(values(copy.parameters()[0]) == values(lenet.parameters()[0]));
  nn::Linear layer(3, 2), again = nn::clone(layer, 3, 2);
  CHECK(values(again.weight) == values(layer.weight));
  CHECK(message_of<UsageError>([&] { nn::clone(layer, 3, 4); }) ==
        "[clone] \"weight\" is [2, 3] in the original and [4, 3] in the new module. Pass the "
        "arguments "
        "that made the original.");
  CHECK_THROWS_AS(nn::clone(layer, 3, 2, nn::LinearOptions{.bias = false}), UsageError);
}

TEST_CASE("cells are the layers, one step at a time") {
  manual_seed(1);
  const int64_t time = 5, n = 3, in = 4, hidden = 6;
  nn::Lstm lstm(in, hidden);
  nn::LstmCell cell(in, hidden);
  nn::Gru gru(in, hidden);
  nn::GruCell gru_cell(in, hidden);
  const auto take = [](auto& to, const auto& layer) {
    to.weight_ih = layer.directions[0].weight_ih, to.weight_hh = layer.directions[0].weight_hh;
    to.bias_ih = layer.directions[0].bias_ih, to.bias_hh = layer.directions[0].bias_hh;
  };
  take(cell, lstm), take(gru_cell, gru);
  const Tensor x = randn({time, n, in});
  const nn::LstmOutput whole = lstm(x);
  const nn::GruOutput whole_gru = gru(x);
  nn::LstmCellOutput state;
  Tensor gru_state;
  for (int64_t t = 0; t < time; ++t) {
    state = cell(select(x, 0, t), state.h, state.c);
    gru_state = gru_cell(select(x, 0, t), gru_state);
  }
  const auto close = [](const Tensor& a, const Tensor& b) {
    const auto left = values(a), right = values(b);
    REQUIRE(left.size() == right.size());
    for (std::size_t i = 0; i < left.size(); ++i)
      CHECK(left[i] == doctest::Approx(right[i]).epsilon(1e-5));
  };
  close(state.h, select(whole.h, 0, 0)), close(state.c, select(whole.c, 0, 0));
  close(gru_state, select(whole_gru.h, 0, 0));
  close(cell(select(select(x, 0, 0), 0, 1)).h, select(cell(select(x, 0, 0)).h, 0, 1));  // unbatched
  CHECK(cell.parameters().size() == 4);
  CHECK(nn::GruCell(2, 3, {.bias = false}).parameters().size() == 2);
  CHECK_THROWS_AS(cell(randn({n, in + 1})), ShapeError);
  CHECK_THROWS_AS(cell(randn({n, in}), randn({n, hidden + 1})), ShapeError);
  CHECK_THROWS_AS(cell(Tensor{}), UsageError);
}

}  // namespace

}  // namespace halftone::test::clone_test

// state_dict: round trips, conversion, in-place loading, and reports that list everything at once.

namespace halftone::test::state_dict_test {

TEST_CASE("state_dict holds parameters and buffers, without history, sharing data") {
  nn::Sequential model(nn::Linear(2, 2), nn::BatchNorm1d(2));
  const nn::NamedTensors state = nn::state_dict(model);
  std::vector<std::string> names;
  for (const auto& [name, x] : state) names.push_back(name);
  CHECK(names == std::vector<std::string>{"0.bias", "0.weight", "1.bias", "1.num_batches_tracked",
                                          "1.running_mean", "1.running_var", "1.weight"});
  CHECK_FALSE(state.at("0.weight").requires_grad());
  nn::init::constant(model.parameters()[0], 7);
  CHECK(state.at("0.weight").to_vector<double>() == std::vector<double>(4, 7));
}

/// Has a table that it can compute again.
struct WithTable final : nn::Layer {
  nn::Buffer table{arange(3.)}, count{zeros({})};
  WithTable() { table.persistent = false; }
  Tensor forward(const Tensor& x) const override { return x * table; }
  void describe(nn::Fields& field) override { field("table", table), field("count", count); }
};

TEST_CASE("a buffer that is not persistent is in no file, but moves with the module") {
  WithTable module;
  CHECK(nn::state_dict(module).size() == 1);
  CHECK(nn::state_dict(module).contains("count"));
  CHECK(module.named_buffers().size() == 2);
  nn::load_state_dict(module, {{"count", ones({})}});
  CHECK_THROWS_AS(nn::load_state_dict(module, {{"count", ones({})}, {"table", ones({3})}}),
                  UsageError);
  WithTable copy = nn::clone(module);
  CHECK_FALSE(copy.table.persistent);
  CHECK(copy.count.persistent);
  module.to(bf16);
  CHECK(module.table.dtype() == bf16);
}

TEST_CASE("a file restores every value, also across dtypes") {
  const test::TemporaryDirectory directory;
  nn::Sequential saved(nn::Linear(3, 2), nn::BatchNorm1d(2));
  saved(rand({4, 3}));
  nn::save(saved, directory / "model.safetensors");
  CHECK(nn::load_safetensors(directory / "model.safetensors").metadata.at("format") == "pt");

  nn::Sequential same(nn::Linear(3, 2), nn::BatchNorm1d(2)),
      low(nn::Linear(3, 2), nn::BatchNorm1d(2));
  low.to(bf16);
  nn::load(same, directory / "model.safetensors");
  nn::load(low, directory / "model.safetensors");
  const nn::NamedTensors expected = nn::state_dict(saved), got = nn::state_dict(same),
                         rounded = nn::state_dict(low);
  for (const auto& [name, x] : expected) {
    CHECK(got.at(name).to_vector<double>() == x.to_vector<double>());
    const bool running = name.starts_with("1.running");
    CHECK(rounded.at(name).dtype() == (x.dtype() == i64 ? i64 : running ? f32 : bf16));
    CHECK(rounded.at(name).to_vector<double>()[0] ==
          doctest::Approx(x.to_vector<double>()[0]).epsilon(0.005));
  }
  CHECK(got.at("1.num_batches_tracked").item() == 1);
}

TEST_CASE("loading writes in place, under the handles of an optimizer, and bumps the version") {
  nn::Linear from_here(2, 2), to_here(2, 2);
  const Tensor handle = to_here.parameters()[0];
  const uint64_t version = handle.storage()->version();
  const nn::LoadReport report = nn::load_state_dict(to_here, nn::state_dict(from_here));
  CHECK(report.missing.empty());
  CHECK(report.unexpected.empty());
  CHECK(handle.to_vector<float>() == from_here.weight.to_vector<float>());
  CHECK(handle.storage()->version() > version);
  CHECK(handle.requires_grad());
}

TEST_CASE("everything that does not fit is reported together, and nothing changes") {
  nn::Sequential model = nn::models::mlp({3, 2, 4});
  const std::vector<double> before = model.parameters()[1].to_vector<double>();
  nn::NamedTensors state = nn::state_dict(nn::models::mlp({3, 2, 4}));
  state.erase("0.weight"), state.erase("2.bias");
  state["extra"] = ones({1}), state["head.bias"] = ones({2});
  state["0.bias"] = full({2}, 9);

  CHECK_THROWS_WITH_AS(
      nn::load_state_dict(model, state),
      "[load_state_dict] the state does not fit the module: Missing: 0.weight, 2.bias. Unexpected: "
      "extra, head.bias. Rename them, or pass .strict = false to load what agrees.",
      UsageError);
  state["2.weight"] = ones({2, 2});
  const char* all =
      "[load_state_dict] the state does not fit the module: Missing: 0.weight, 2.bias. Unexpected: "
      "extra, head.bias. "
      "Misshapen: 2.weight ([4, 2] here, [2, 2] given). Build the module with the sizes that were "
      "saved.";
  CHECK_THROWS_WITH_AS(nn::load_state_dict(model, state), all, ShapeError);
  CHECK_THROWS_WITH_AS(nn::load_state_dict(model, state, {.strict = false}), all, ShapeError);
  CHECK(model.parameters()[1].to_vector<double>() == before);
}

TEST_CASE("without strict, the matching entries are loaded and the rest reported") {
  nn::Linear layer(2, 2);
  const std::vector<double> bias = layer.bias.to_vector<double>();
  const nn::LoadReport report = nn::load_state_dict(
      layer, {{"weight", ones({2, 2})}, {"scale", ones({1})}}, {.strict = false});
  CHECK(report.missing == std::vector<std::string>{"bias"});
  CHECK(report.unexpected == std::vector<std::string>{"scale"});
  CHECK(layer.weight.to_vector<double>() == std::vector<double>(4, 1));
  CHECK(layer.bias.to_vector<double>() == bias);
}

TEST_CASE("names with a prefix: the error names it, and strip_prefix removes it") {
  const test::TemporaryDirectory directory;
  nn::Sequential saved(nn::Linear(3, 2), nn::BatchNorm1d(2)),
      model(nn::Linear(3, 2), nn::BatchNorm1d(2));
  for (const std::string prefix : {"model.", "module.", "_orig_mod.", "module._orig_mod."}) {
    nn::NamedTensors state;
    for (const auto& [name, x] : nn::state_dict(saved)) state[prefix + name] = x;
    const std::string message =
        test::message_of<UsageError>([&] { nn::load_state_dict(model, state); });
    CHECK(message.ends_with(" The names given begin with \"" + prefix +
                            "\": pass .strip_prefix = \"" + prefix + "\"."));
    CHECK(nn::load_state_dict(model, state, {.strip_prefix = prefix}).unexpected.empty());
    save_safetensors(directory / "x", state);
    CHECK(test::contains(test::message_of<UsageError>([&] { nn::load(model, directory / "x"); }),
                         "pass .strip_prefix = "));
    nn::init::constant(model.parameters()[0], 7);
    nn::load(model, directory / "x", {.strip_prefix = prefix});
    CHECK(model.parameters()[0].to_vector<float>() == saved.parameters()[0].to_vector<float>());
    state["0.weight"] = ones({2, 3});
    CHECK(test::message_of<UsageError>([&] {
            nn::load_state_dict(model, state, {.strip_prefix = prefix});
          }) == "[load_state_dict] \"0.weight\" is given with the prefix \"" + prefix +
                    "\" and without. Remove one of the two.");
  }
  // Names that only happen to agree at their end are no prefix.
  CHECK(!test::contains(test::message_of<UsageError>([&] {
                          nn::load_state_dict(model, {{"x.0.bias", ones({2})}});
                        }),
                        "strip_prefix"));
}

TEST_CASE("a file that does not fit is named") {
  const test::TemporaryDirectory directory;
  const auto path = directory / "other.safetensors";
  nn::save(nn::Linear(2, 2, {.bias = false}), path);
  nn::Linear layer(2, 2);
  CHECK_THROWS_WITH_AS(nn::load(layer, path),
                       ("[load_state_dict] " + path.string() +
                        " does not fit the module: Missing: bias. Rename them, "
                        "or pass .strict = false to load what agrees.")
                           .c_str(),
                       UsageError);
  CHECK_THROWS_AS(nn::load(layer, directory / "absent.safetensors"), FormatError);
}

TEST_CASE(
    "names from a file do not reach the terminal, and thousands of them make no long message") {
  nn::Linear layer(2, 2);
  nn::NamedTensors state = nn::state_dict(layer);
  state["\x1b[2J\u202e"] = zeros({1});
  CHECK(contains(message_of<UsageError>([&] { nn::load_state_dict(layer, state); }),
                 " Unexpected: \\x1b[2J\\u202e. Rename them"));
  for (int i = 0; i < 1'999; ++i) state["w" + std::to_string(i)] = zeros({1});
  const std::string message = message_of<UsageError>([&] { nn::load_state_dict(layer, state); });
  CHECK(contains(message, " and 1,980 more. Rename them"));
  CHECK(message.size() < 400);
  state = nn::state_dict(layer);
  state["bias"] = zeros({3});
  CHECK(contains(message_of<ShapeError>([&] { nn::load_state_dict(layer, state); }),
                 " Misshapen: bias ([2] here, [3] given). Build"));
}

/// Two names for one weight.
struct Tied final : nn::Module {
  nn::Linear in{2, 2}, out{2, 2};
  Tied() { out.weight = in.weight; }
  void describe(nn::Fields& field) override { field("in", in), field("out", out); }
};

TEST_CASE("a shared tensor takes one value: different ones under its names are refused") {
  Tied model;
  nn::NamedTensors state = nn::state_dict(model);
  for (auto& [name, x] : state) x = x.clone();
  state["in.bias"] = full({2}, 9);
  nn::load_state_dict(model, state);
  CHECK(model.in.bias.to_vector<double>() == std::vector<double>(2, 9));

  state["out.weight"] = full({2, 2}, 3), state["in.bias"] = full({2}, 8);
  for (const bool strict : {true, false})
    CHECK_THROWS_WITH_AS(
        nn::load_state_dict(model, state, {.strict = strict}),
        "[load_state_dict] the state does not fit the module: Different under two names of one "
        "tensor: in.weight (out.weight). Build a module that does not tie them, or give each "
        "tensor one value.",
        UsageError);
  CHECK(model.in.bias.to_vector<double>() == std::vector<double>(2, 9));
  state.erase("in.weight");
  nn::load_state_dict(model, state, {.strict = false});
  CHECK(model.in.weight.to_vector<double>() == std::vector<double>(4, 3));
}

TEST_CASE("values that the module's dtype cannot hold are refused; rounding is not") {
  const auto loads = [](double value, DType from, DType to) {
    nn::Linear layer(1, 1);
    layer.to(to);
    nn::NamedTensors state{{"weight", full({1, 1}, value, from)}, {"bias", zeros({1})}};
    const auto message = message_of<DTypeError>([&] { nn::load_state_dict(layer, state); });
    if (message.empty()) return std::string(std::isnan(value) ? "NaN" : "loaded");
    CHECK(layer.weight.item() != value);
    return message;
  };
  CHECK(loads(1e6, f32, f16) ==
        "[load_state_dict] the state does not fit the module: Out of range: weight (1e+06 given, "
        "f16 here). Load into a module of a wider dtype.");
  CHECK(loads(65519, f32, f16) == "loaded");  // rounds to 65504
  CHECK(contains(loads(-65520, f32, f16), "Out of range"));
  CHECK(contains(loads(1e39, f64, f32), "Out of range"));
  CHECK(contains(loads(1e39, f64, bf16), "Out of range"));
  CHECK(loads(1e-9, f32, f16) == "loaded");
  CHECK(loads(1e6, f32, bf16) == "loaded");
  CHECK(loads(1e6, i64, f32) == "loaded");
  CHECK(contains(loads(1e6, i64, f16), "Out of range"));
  CHECK(loads(std::numeric_limits<double>::infinity(), f32, f16) == "loaded");
  CHECK(loads(std::numeric_limits<double>::quiet_NaN(), f32, f16) == "NaN");

  nn::BatchNorm1d norm(1);  // counts batches in an i64
  nn::NamedTensors state = nn::state_dict(norm);
  state["num_batches_tracked"] = scalar(2.5);
  CHECK(contains(message_of<DTypeError>([&] { nn::load_state_dict(norm, state); }),
                 "num_batches_tracked (2.5 given, i64 here)"));
  state["num_batches_tracked"] = scalar(3);
  nn::load_state_dict(norm, state);
  CHECK(nn::state_dict(norm).at("num_batches_tracked").item() == 3);
}

TEST_CASE("nothing writes into an expanded tensor") {
  struct Expanded final : nn::Module {
    nn::Buffer table{views::expand(zeros({2, 1}), {2, 2})};
    void describe(nn::Fields& field) override { field("table", table); }
  } module;
  const nn::NamedTensors state{{"table", from({{1, 2}, {3, 4}}, f32)}};
  CHECK_THROWS_WITH_AS(
      nn::load_state_dict(module, state),
      "[load_state_dict] the state does not fit the module: Expanded: table. Elements of an "
      "expanded tensor share their memory. Make the parameter from a clone().",
      UsageError);

  const Tensor x = views::expand(zeros({1, 3}), {2, 3});
  const char* const message =
      "[write] [2, 3] f32 with strides [0, 1] has several elements in one place, as an expanded "
      "tensor has, and cannot be written. Write into a clone() of it.";
  CHECK_THROWS_WITH_AS(copy_into(x, ones({2, 3})), message, UsageError);
  CHECK_THROWS_WITH_AS(fill_with(x, 1), message, UsageError);
  CHECK_THROWS_WITH_AS(nn::init::normal(x), message, UsageError);
  CHECK_THROWS_WITH_AS(nn::init::orthogonal(x), message, UsageError);
  CHECK_THROWS_WITH_AS(mark_written(x), message, UsageError);
  CHECK(x.to_vector<double>() == std::vector<double>(6, 0));
  CHECK_THROWS_AS(copy_into(zeros({4}), ones({2, 2})), ShapeError);
  const Tensor leaf = views::expand(zeros({1, 3}), {2, 3}).set_requires_grad();
  CHECK(contains(message_of<UsageError>([&] { optim::Sgd({leaf}, {.lr = 1}); }),
                 "parameter 0, [2, 3] f32, is expanded"));

  const Tensor storage = zeros({12});
  CHECK(has_overlap(storage.view_as({3, 3}, {2, 1}, 0)));
  CHECK_FALSE(has_overlap(storage.view_as({3, 3}, {1, 4}, 0)));
  CHECK_FALSE(has_overlap(storage.view_as({2, 1, 3}, {6, 0, 1}, 0)));
  copy_into(storage.view_as({2, 2}, {6, 2}, 1), from({{1, 2}, {3, 4}}, f32));
  CHECK(storage.at({7}) == 3);
}

}  // namespace halftone::test::state_dict_test
