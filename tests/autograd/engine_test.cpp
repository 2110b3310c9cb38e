// The reverse pass: which gradients are added, the owners of their memory, and refusals.
#include <functional>
#include <map>
#include <thread>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "../support.h"

namespace halftone::test::engine_test {
namespace {

using Values = std::vector<double>;

Values values(const Tensor& x) { return x.to_vector<double>(); }
Tensor leaf(std::initializer_list<double> numbers, DType dtype = f64) {
  return from(numbers, dtype).set_requires_grad();
}

TEST_CASE("a diamond: gradients of both paths add up") {
  const Tensor x = leaf({2, 3});
  const Tensor a = square(x), b = x * 3.0;
  sum(a * b).backward();  // 3 x^3
  CHECK(values(x.grad()) == Values{36, 81});
}

TEST_CASE("a value used many times collects every gradient once") {
  const Tensor x = leaf({1, 2});
  const Tensor y = x * 2.0;  // not a leaf
  Tensor total = y + y;
  for (int i = 0; i < 5; ++i) total = total + y;
  total.backward(ones({2}, f64));
  CHECK(values(x.grad()) == Values{14, 14});
}

TEST_CASE("one gradient passed on twice is not added onto itself") {
  const Tensor x = leaf({1, 2});
  (x + x).backward(from({1, 10}, f64));
  CHECK(values(x.grad()) == Values{2, 20});

  const Tensor square_of = leaf({3, 4});
  (square_of * square_of).backward(ones({2}, f64));
  CHECK(values(square_of.grad()) == Values{6, 8});

  const Tensor a = leaf({1}), b = leaf({1});
  const Tensor c = a + b, d = c - c, e = c + d;  // c's gradient arrives in three parts
  e.backward(ones({1}, f64));
  CHECK(values(a.grad()) == Values{1});
  CHECK(values(b.grad()) == Values{1});
}

TEST_CASE("leaves do not share a gradient, nor keep the gradient that backward was given") {
  const Tensor a = leaf({1, 2}), b = leaf({3, 4});
  const Tensor seed = from({1, 1}, f64);
  (a + b).backward(seed);
  CHECK(a.grad().storage() != b.grad().storage());
  CHECK(a.grad().storage() != seed.storage());
  CHECK(b.grad().storage() != seed.storage());
  (a * 1.0).backward(seed);
  CHECK(values(a.grad()) == Values{2, 2});
  CHECK(values(b.grad()) == Values{1, 1});
  CHECK(values(seed) == Values{1, 1});
}

TEST_CASE("a leaf can be the root, and gradients accumulate over calls of backward") {
  const Tensor x = leaf({5});
  x.backward();
  CHECK(values(x.grad()) == Values{1});
  (x * 2.0).backward();
  (x * 3.0).backward();
  CHECK(values(x.grad()) == Values{6});
}

TEST_CASE("accumulating writes into the gradient in place and says so") {
  const Tensor x = leaf({1, 2});
  sum(x).backward();
  const Tensor held = x.grad();
  const uint64_t version = held.storage()->version();
  sum(x * 2.0).backward();
  CHECK(values(held) == Values{3, 3});
  CHECK(held.storage()->version() > version);
}

TEST_CASE("the graph is freed by backward unless it is retained") {
  const Tensor x = leaf({2});
  const Tensor y = square(x) * 3.0;
  y.backward(ones({1}, f64), true);
  y.backward(ones({1}, f64));
  CHECK(values(x.grad()) == Values{24});
  CHECK_THROWS_WITH_AS(
      y.backward(),
      "[backward] the graph of affine was freed by an earlier backward(). Keep it in the first "
      "call: y.backward(ones_like(y), true), where true is retain_graph.",
      UsageError);
  // A new operation on a value whose own graph was freed fails at that value.
  const Tensor shared = exp(x), first = shared * 2.0, second = shared * 3.0;
  first.backward();
  CHECK_THROWS_WITH_AS(
      second.backward(),
      "[backward] the graph of exp was freed by an earlier backward(). Keep it in the first call: "
      "y.backward(ones_like(y), true), where true is retain_graph.",
      UsageError);
}

TEST_CASE("the call that the message about a freed graph recommends keeps the graph") {
  const Tensor x = leaf({2}), y = square(x);
  y.backward(ones_like(y), true);
  y.backward();
  CHECK(values(x.grad()) == Values{8});
}

TEST_CASE("only single numbers start a backward pass without a gradient") {
  const Tensor x = leaf({1, 2});
  CHECK_THROWS_WITH_AS(
      (x * 2.0).backward(),
      "[backward] needs a tensor of one element, got [2] f64. Reduce it with sum() or mean(), or "
      "pass a gradient.",
      UsageError);
  CHECK_THROWS_WITH_AS(
      (x * 2.0).backward(ones({3}, f64)),
      "[backward] the gradient to start from is [3] f64, the tensor is [2] f64. They must agree.",
      ShapeError);
  CHECK_THROWS_AS((x * 2.0).backward(ones({2}, f32)), ShapeError);
  CHECK_THROWS_WITH_AS(
      sum(ones({2})).backward(),
      "[backward] this tensor, [] f32, does not depend on a leaf that requires a gradient. Call "
      "set_requires_grad() on one first.",
      UsageError);
}

TEST_CASE("NoGrad and detach cut the graph") {
  const Tensor x = leaf({2, 3});
  {
    const NoGrad no_grad;
    CHECK_FALSE((x * 2.0).requires_grad());
    const EnableGrad again;
    CHECK((x * 2.0).requires_grad());
  }
  CHECK(grad_enabled());
  const Tensor y = square(x);
  CHECK_FALSE(y.detach().requires_grad());
  CHECK(y.detach().storage() == y.storage());
  sum(y.detach() * x).backward();  // the square counts as a constant
  CHECK(values(x.grad()) == Values{4, 9});
}

TEST_CASE("leaves are marked, results are not") {
  Tensor x = leaf({1});
  CHECK(x.is_leaf());
  Tensor y = x * 2.0;
  CHECK_FALSE(y.is_leaf());
  CHECK(y.requires_grad());
  CHECK_FALSE(y.grad().defined());
  CHECK_THROWS_WITH_AS(
      y.set_requires_grad(),
      "[set_requires_grad] only leaves can be changed; this [1] f64 was computed. Use detach() "
      "first.",
      UsageError);
  Tensor index = zeros({2}, i64);
  CHECK_THROWS_WITH_AS(
      index.set_requires_grad(),
      "[set_requires_grad] f64, f32, f16 and bf16 tensors have gradients, this one is i64. Cast it "
      "first.",
      DTypeError);
  CHECK_THROWS_WITH_AS(
      x.set_grad(ones({2}, f64)),
      "[set_grad] the gradient is [2] f64, the tensor is [1] f64. Shapes must agree.", ShapeError);
  CHECK_THROWS_WITH_AS(
      y.set_grad(ones({1}, f64)),
      "[set_grad] only leaves hold gradients; this [1] f64 was computed. Use a leaf.", UsageError);
  x.set_grad(from({7}, f64));
  CHECK(values(x.grad()) == Values{7});
}

TEST_CASE("results that are not floating have no history") {
  const Tensor x = leaf({1, -1});
  CHECK_FALSE(greater(x, zeros({}, f64)).requires_grad());
  CHECK_FALSE(cast(x, i64).requires_grad());
  CHECK_FALSE(argmax(x).requires_grad());
}

TEST_CASE("a new thread records, and has no caster") {
  struct Nothing final : InputCaster {
    CastPlan plan(const OpInfo&, std::span<Tensor>, bool) override { return {}; }
    void cast_inputs(const OpInfo&, std::span<Tensor>) override {}
  };
  const NoGrad no_grad;
  const CasterScope region(std::make_shared<Nothing>());
  bool records = false, has_caster = true;
  std::thread([&] { records = grad_enabled(), has_caster = active_caster() != nullptr; }).join();
  CHECK(records);
  CHECK_FALSE(has_caster);
  CHECK_FALSE(grad_enabled());
  CHECK(active_caster() != nullptr);
}

TEST_CASE("the scope of a caster ends with an exception too") {
  struct Refuses final : InputCaster {
    CastPlan plan(const OpInfo& op, std::span<Tensor>, bool) override {
      fail<UsageError>(op.name, "refused. Do not.");
    }
    void cast_inputs(const OpInfo&, std::span<Tensor>) override {}
  };
  const Tensor x = leaf({1});
  try {
    const CasterScope region(std::make_shared<Refuses>());
    exp(x);
    FAIL("not refused");
  } catch (const UsageError& e) { CHECK(std::string(e.what()) == "[exp] refused. Do not."); }
  CHECK(active_caster() == nullptr);
  CHECK(grad_enabled());
}

TEST_CASE("gradients of leaves are charged to gradient, to the byte, and nothing else stays") {
  const MemoryReport before = memory_report();
  {
    Tensor weight, bias;
    {
      const MemoryScope scope(MemoryUse::parameter);
      weight = ones({3, 5}).set_requires_grad(), bias = ones({3}, bf16).set_requires_grad();
    }
    const auto step = [&] {
      const Tensor h = linear(ones({4, 5}), weight);
      sum(cast(h, bf16) + bias).backward();
    };
    step();
    const auto now = [&](MemoryUse use) {
      return memory_report().now_of(use) - before.now_of(use);
    };
    CHECK(now(MemoryUse::gradient) == weight.bytes() + bias.bytes());
    CHECK(now(MemoryUse::parameter) == weight.bytes() + bias.bytes());
    CHECK(now(MemoryUse::activation) == 0);
    CHECK(now(MemoryUse::workspace) == 0);
    step();
    CHECK(now(MemoryUse::gradient) == weight.bytes() + bias.bytes());
    // Views as gradients (of sum, of a slice, of a transpose) are copied.
    const Tensor table = ones({6, 4}).set_requires_grad();
    sum(transpose(slice(table, 0, 1, 3), 0, 1)).backward();
    CHECK(now(MemoryUse::gradient) == weight.bytes() + bias.bytes() + table.bytes());
    CHECK(table.grad().is_contiguous());
  }
  CHECK(memory_report().total_now == before.total_now);
}

TEST_CASE("backward frees saved tensors as it goes") {
  const Tensor x = ones({1000}).set_requires_grad();
  Tensor y = x;
  for (int i = 0; i < 20; ++i) y = exp(y * 0.1);
  const int64_t held = memory_report().now_of(MemoryUse::activation);
  reset_peak_memory();
  y.backward(ones({1000}));
  // During backward the memory never exceeds the graph itself and a few gradients.
  CHECK(memory_report().peak_of(MemoryUse::activation) <= held + 4 * x.bytes());
  CHECK(memory_report().now_of(MemoryUse::activation) <= held - 19 * x.bytes());
}

}  // namespace

}  // namespace halftone::test::engine_test

// Depth is limited by memory, not by the stack: backward pops nodes from a queue, and a work list
// frees graphs on which backward never ran.

namespace halftone::test::deep_graph_test {
namespace {

constexpr int depth = 200'000;

Tensor chain(const Tensor& x, const std::function<Tensor(const Tensor&)>& link) {
  Tensor y = x;
  for (int i = 0; i < depth; ++i) y = link(y);
  return y;
}

void check_depth(const std::function<Tensor(const Tensor&)>& link, double expected_gradient) {
  const int64_t before = memory_report().total_now;
  {
    const Tensor x = ones({1}).set_requires_grad();
    chain(x, link).backward();
    CHECK(x.grad().item() == expected_gradient);
  }
  CHECK(memory_report().total_now == before);
  {
    const Tensor x = ones({1}).set_requires_grad();
    const Tensor y = chain(x, link);  // freed without backward
    CHECK(y.requires_grad());
  }
  CHECK(memory_report().total_now == before);
}

TEST_CASE("a chain of 200,000 operations") {
  check_depth([](const Tensor& x) { return x + 0.0; }, 1);
}

TEST_CASE("a chain in which every value is used twice") {
  check_depth([](const Tensor& x) { return maximum(x, x); }, 1);
}

TEST_CASE("a chain of residual connections") {
  check_depth([](const Tensor& x) { return x + x * 0.0; }, 1);
}

TEST_CASE("a chain whose middle outlives its end") {
  const Tensor x = ones({1}).set_requires_grad();
  const Tensor middle = chain(x, [](const Tensor& v) { return v + 0.0; });
  chain(middle, [](const Tensor& v) { return v + 0.0; });  // freed at once, except the middle
  middle.backward();
  CHECK(x.grad().item() == 1);
}

}  // namespace

}  // namespace halftone::test::deep_graph_test

// Hooks on gradients, and gradients without accumulation: autograd::grad. PyTorch's behavior, case
// by case.

namespace halftone::test::gradient_hooks_test {
namespace {

using Values = std::vector<double>;

Values values(const Tensor& x) { return x.to_vector<double>(); }
Tensor leaf(std::initializer_list<double> numbers, DType dtype = f64) {
  return from(numbers, dtype).set_requires_grad();
}

struct ReturnsNothing : UserOp {
  static constexpr OpInfo info{"returns_nothing", CastClass::as_is};
  Tensor forward(const Tensor&) { return {}; }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {dy}; }
};

TEST_CASE("a hook on a leaf sees the sum over all uses, once a pass, before grad()") {
  const Tensor x = leaf({1, 2});
  std::vector<Values> seen;
  register_hook(x, [&](const Tensor& g) {
    seen.push_back(values(g));
    CHECK_FALSE(g.requires_grad());
    return Tensor{};
  });
  sum(x * 3.0 + x * x + x).backward();  // 3 + 2x + 1
  CHECK(seen == std::vector<Values>{{6, 8}});
  CHECK(values(x.grad()) == Values{6, 8});
  sum(x).backward();
  CHECK(seen.back() == Values{1, 1});  // of this pass, not of the accumulated gradient
  CHECK(values(x.grad()) == Values{7, 9});
}

TEST_CASE("the return value of a hook replaces the gradient, for leaves and computed tensors") {
  Tensor x = leaf({1, 2});
  const Tensor y = x * 2.0;
  HookHandle first = register_hook(y, [](const Tensor& g) { return g * 10.0; });
  register_hook(y, [](const Tensor& g) { return g + 1.0; });
  register_hook(x, [](const Tensor& g) { return g * -1.0; });
  sum(y + y).backward();
  CHECK(values(x.grad()) == Values{-42, -42});  // -(2 * 10 + 1) * 2
  first.remove(), first.remove();
  x.set_grad({});
  const Tensor again = x * 2.0;  // hooks belong to a tensor, not to its value
  sum(again).backward();
  CHECK(values(x.grad()) == Values{-2, -2});
}

TEST_CASE("a hook may remove itself, and is not called without a gradient") {
  const Tensor x = leaf({1}), unused = leaf({1});
  int calls = 0;
  HookHandle handle;
  handle = register_hook(x, [&](const Tensor&) {
    ++calls;
    handle.remove();
    return Tensor{};
  });
  register_hook(unused, [&](const Tensor&) -> Tensor { throw std::runtime_error("called"); });
  sum(x).backward();
  sum(x).backward();
  CHECK(calls == 1);
}

TEST_CASE("mistakes with hooks") {
  const Tensor x = leaf({1, 2});
  CHECK(message_of<UsageError>(
            [] { register_hook(from({1.0}), [](const Tensor& g) { return g; }); }) ==
        "[register_hook] this tensor, [1] f32, has no gradient. Call set_requires_grad() on it, or "
        "on a "
        "leaf that it is computed from, first.");
  CHECK_THROWS_AS(register_hook(Tensor{}, [](const Tensor& g) { return g; }), UsageError);
  CHECK_THROWS_AS(register_hook(x, {}), UsageError);
  const HookHandle handle = register_hook(x, [](const Tensor&) { return ones({3}, f64); });
  CHECK(message_of<ShapeError>([&] { sum(x).backward(); }) ==
        "[register_hook] a hook returned [3] f64 for a gradient [2] f64. Return one of the same "
        "shape and "
        "dtype.");
}

TEST_CASE("grad() of leaves and of computed tensors does not change any tensor's grad()") {
  const Tensor x = leaf({1, 2}), w = leaf({3, 4});
  const Tensor y = x * w, z = sum(y * y);
  const std::vector<Tensor> g = autograd::grad(z, {x, y}, {.retain_graph = true});
  CHECK(values(g[0]) == Values{18, 64});  // 2 x w^2
  CHECK(values(g[1]) == Values{6, 16});   // 2 y
  CHECK_FALSE(x.grad().defined());
  CHECK_FALSE(w.grad().defined());
  z.backward();
  CHECK(values(w.grad()) == Values{6, 32});
  CHECK(message_of<UsageError>([&] {
          autograd::grad(z, {x});
        }).starts_with("[backward] the graph of"));
}

TEST_CASE("grad() of several outputs, with weights, and of an output itself") {
  const Tensor x = leaf({1, 2});
  const Tensor a = x * 3.0, b = sum(x * x);
  const std::vector<Tensor> outputs{a, b}, inputs{x, a};
  const std::vector<Tensor> g =
      autograd::grad(outputs, inputs, {.grad_outputs = {from({1, 10}, f64)}});
  CHECK(values(g[0]) == Values{5, 34});  // 3 * (1, 10) + 2 x
  CHECK(values(g[1]) == Values{1, 10});
  const Tensor one = leaf({5});
  CHECK(values(autograd::grad(one, {one})[0]) == Values{1});
}

TEST_CASE("grad() with hooks: they run, and their return value is the gradient") {
  const Tensor x = leaf({1, 2});
  register_hook(x, [](const Tensor& g) { return g * 2.0; });
  const Tensor y = x * 3.0;
  register_hook(y, [](const Tensor& g) { return g * 5.0; });
  const std::vector<Tensor> g = autograd::grad(sum(y), {x, y});
  CHECK(values(g[0]) == Values{30, 30});
  CHECK(values(g[1]) == Values{5, 5});
}

TEST_CASE("grad() through a checkpointed segment is refused, and backward() works after it") {
  const Tensor x = leaf({1, 2}), w = leaf({3, 4});
  const auto loss = [&] {
    return sum(checkpoint([&](const std::vector<Tensor>& in) { return in[0] * w; }, {x}));
  };
  CHECK_THROWS_AS(autograd::grad(loss(), {x}), UsageError);
  CHECK_FALSE(w.grad().defined());
  loss().backward();
  CHECK(values(w.grad()) == Values{1, 2});
}

TEST_CASE("mistakes with grad()") {
  const Tensor x = leaf({1, 2}), other = leaf({1});
  CHECK(message_of<UsageError>([&] { autograd::grad(x * 2.0, {x}); }) ==
        "[grad] needs a tensor of one element, got [2] f64. Reduce it with sum() or mean(), or "
        "pass a "
        "gradient.");
  CHECK(message_of<UsageError>([&] { autograd::grad(sum(x), {other}); }) ==
        "[grad] the outputs do not depend on input 0, [1] f64. Leave it out, or set allow_unused.");
  CHECK_FALSE(autograd::grad(sum(x), {other}, {.allow_unused = true})[0].defined());
  CHECK(message_of<UsageError>([&] { autograd::grad(sum(x), {from({1.0})}); }) ==
        "[grad] input 0, [1] f32, wants no gradient. Call set_requires_grad() on it before it is "
        "used.");
  CHECK_THROWS_AS(autograd::grad(sum(x), {Tensor{}}), UsageError);
  CHECK_THROWS_AS(autograd::grad(Tensor{}, {x}), UsageError);
  CHECK_THROWS_AS(autograd::grad(from({1.0}), {x}), UsageError);
  CHECK_THROWS_AS(autograd::grad(sum(x), {x}, {.grad_outputs = {{}, {}}}), UsageError);
  CHECK_THROWS_AS(autograd::grad(sum(x), {x}, {.grad_outputs = {ones({2}, f64)}}), ShapeError);
}

TEST_CASE("undefined tensors are refused by name, everywhere") {
  CHECK(
      message_of<UsageError>([] { Tensor{}.shape(); }) ==
      "[shape] a tensor is undefined, it has no shape. It was made by Tensor(), or is the gradient "
      "of a leaf that no backward() has reached, or an optional result that was left out. Ask "
      "defined() first.");
  const Tensor parameter = leaf({1, 2});
  CHECK_THROWS_AS(parameter.grad().shape(), UsageError);
  CHECK_THROWS_AS(parameter.grad().to_vector<double>(), UsageError);
  const Tensor nothing;
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { nothing.size(0); }, [&] { nothing.numel(); }, [&] { nothing.bytes(); },
           [&] { nothing.dtype(); }, [&] { nothing.device(); }, [&] { nothing.strides(); },
           [&] { nothing.rank(); }, [&] { nothing.offset(); }, [&] { nothing.is_contiguous(); },
           [&] { nothing.is_channels_last(); }, [&] { nothing.is_dense(); },
           [&] { nothing.raw_data(); }, [&] { nothing.clone(); }, [&] { nothing.at({0}); },
           [&] { nothing.to(Device::cpu()); }, [&] { nothing.view_as({1}, {1}, 0); },
           [&] { Tensor().set_requires_grad(); }, [&] { Tensor().set_grad(ones({1})); }})
    CHECK_THROWS_AS(call(), UsageError);
  CHECK(
      message_of<UsageError>([&] { nothing.backward(); }) ==
      "[backward] the tensor to start from is undefined. Pass a computed tensor, such as a loss.");
  CHECK_THROWS_AS(nothing.backward(ones({1})), UsageError);
  CHECK(message_of<UsageError>([&] {
          sum(parameter).backward(nothing);
        }).starts_with("[backward] the gradient to start from is undefined."));
  CHECK(message_of<UsageError>([&] { apply(ReturnsNothing{}, parameter); }) ==
        "[returns_nothing] forward() returned an undefined tensor. Return the result.");
}

TEST_CASE("every operation of one undefined input refuses it") {
  const Tensor nothing, x = ones({2, 2});
  for (const std::function<Tensor()>& call :
       std::vector<std::function<Tensor()>>{[&] { return relu(nothing); },
                                            [&] { return nothing + x; },
                                            [&] { return x * nothing; },
                                            [&] { return nothing + 1.0; },
                                            [&] { return matmul(nothing, x); },
                                            [&] { return matmul(x, nothing); },
                                            [&] { return linear(x, nothing); },
                                            [&] { return sum(nothing); },
                                            [&] { return mean(nothing); },
                                            [&] { return softmax(nothing, 0); },
                                            [&] { return reshape(nothing, {1}); },
                                            [&] { return transpose(nothing, 0, 1); },
                                            [&] { return permute(nothing, {0}); },
                                            [&] { return slice(nothing, 0, 0, 1); },
                                            [&] {
                                              return cat({x, nothing}, 0);
                                            },
                                            [&] {
                                              return stack({nothing, x}, 0);
                                            },
                                            [&] { return where(nothing, x, x); },
                                            [&] { return cast(nothing, f64); },
                                            [&] { return cross_entropy(nothing, zeros({2}, i64)); },
                                            [&] { return cross_entropy(x, nothing); },
                                            [&] { return mse(x, nothing); },
                                            [&] { return embedding(nothing, zeros({2}, i64)); },
                                            [&] { return embedding(x, nothing); },
                                            [&] { return layer_norm(nothing, {2}); },
                                            [&] { return dropout(nothing, 0.5, true); },
                                            [&] { return max(nothing); },
                                            [&] { return argmax(nothing, 0); },
                                            [&] { return contiguous(nothing); },
                                            [&] { return conv2d(nothing, x); },
                                            [&] {
                                              return max_pool2d(nothing, {2, 2});
                                            }})
    CHECK_THROWS_AS(call(), Error);
}

}  // namespace

}  // namespace halftone::test::gradient_hooks_test

// Calls of a listener for complete gradients during backward(): when, and how often.

namespace halftone::test::gradient_listener_test {
namespace {

struct Told final : GradientListener {
  std::map<const AutogradMeta*, std::vector<std::vector<double>>> gradients{};
  bool takes = false;

  void on_gradient(AutogradMeta& leaf) override {
    gradients[&leaf].push_back(leaf.grad.to_vector<double>());
    if (takes) leaf.grad = {};
  }
  std::size_t times(const Tensor& x) const {
    const auto found = gradients.find(x.meta().get());
    return found == gradients.end() ? 0 : found->second.size();
  }
};

Tensor leaf(std::initializer_list<double> values) { return from(values).set_requires_grad(); }

TEST_CASE("GradientListener: once, with the whole gradient, also of a leaf that is used twice") {
  const Tensor a = leaf({1, 2}), b = leaf({3, 4}), unused = leaf({5, 6});
  Told told;
  {
    const GradientListenerScope scope(&told);
    sum(a * b + a * a).backward();
  }
  REQUIRE(told.times(a) == 1);
  CHECK(told.gradients[a.meta().get()][0] == std::vector<double>{5, 8});
  CHECK(told.times(b) == 1);
  CHECK(told.times(unused) == 0);
  CHECK(a.grad().to_vector<double>() == std::vector<double>{5, 8});
  sum(a * b).backward();  // the listener is removed
  CHECK(told.times(a) == 1);
}

TEST_CASE("GradientListener: before the pass is over, so that a gradient may be taken away") {
  const Tensor first = leaf({1, 2}), last = leaf({3, 4});
  Told told;
  told.takes = true;
  std::size_t told_of_last = 0;
  const Tensor middle = first * 2.0;
  register_hook(middle, [&](const Tensor&) {
    told_of_last = told.times(last);
    return Tensor{};
  });
  const GradientListenerScope scope(&told);
  sum(middle * last).backward();
  CHECK(told_of_last == 1);
  CHECK(told.times(first) == 1);
  CHECK(!first.grad().defined());
  CHECK(!last.grad().defined());
}

TEST_CASE("GradientListener: a checkpointed segment hides leaves, so the listener is not called") {
  const Tensor a = leaf({1, 2}), hidden = leaf({3, 4});
  Told told;
  const GradientListenerScope scope(&told);
  const Tensor y = checkpoint([&](const std::vector<Tensor>& x) { return x[0] * hidden; }, {a});
  sum(y + hidden).backward();
  CHECK(told.gradients.empty());
  CHECK(hidden.grad().to_vector<double>() == std::vector<double>{2, 3});
}

TEST_CASE(
    "GradientListener: it is not called for leaves with hooks; their gradient exists at the end") {
  const Tensor hooked = leaf({1, 2}), plain = leaf({3, 4});
  register_hook(hooked, [](const Tensor& gradient) { return gradient * 2.0; });
  Told told;
  const GradientListenerScope scope(&told);
  sum(hooked * plain).backward();
  CHECK(told.times(hooked) == 0);
  CHECK(told.times(plain) == 1);
  CHECK(hooked.grad().to_vector<double>() == std::vector<double>{6, 8});
}

TEST_CASE("GradientListener: after an error the next pass calls it as usual") {
  const Tensor a = leaf({1, 2}), b = leaf({3, 4});
  Told told;
  const GradientListenerScope scope(&told);
  const Tensor middle = a * b;
  HookHandle handle = register_hook(
      middle, [](const Tensor&) -> Tensor { fail<UsageError>("test", "enough. Go on."); });
  CHECK_THROWS_AS(sum(middle).backward(), UsageError);
  CHECK(told.gradients.empty());
  sum(a * b).backward();
  CHECK(told.times(a) == 1);
  CHECK(told.times(b) == 1);
}

}  // namespace
}  // namespace halftone::test::gradient_listener_test

// Gradients that are set by hand: a gradient that no update can read is refused.

namespace halftone::test::set_grad_test {
namespace {

TEST_CASE("set_grad takes the floating dtypes, in the tensor's shape") {
  Tensor x = zeros({2}).set_requires_grad(true);
  for (const DType dtype : {f64, f32, f16, bf16}) {
    x.set_grad(ones({2}, dtype));
    CHECK(x.grad().dtype() == dtype);
  }
  for (const DType dtype : {boolean, u8, i32, i64, f8_e4m3, f8_e5m2}) {
    CAPTURE(name(dtype));
    CHECK(contains(message_of<DTypeError>([&] { x.set_grad(zeros({2}, dtype)); }),
                   "[set_grad] the gradient is [2] " + std::string(name(dtype)) +
                       ", the tensor is [2] f32. Gradients are f64, f32, f16 or bf16: cast it."));
  }
  CHECK(contains(message_of<ShapeError>([&] { x.set_grad(zeros({3})); }),
                 "[set_grad] the gradient is [3] f32, the tensor is [2] f32. Shapes must agree."));
  CHECK(x.grad().dtype() == bf16);
  x.set_grad({});
  CHECK_FALSE(x.grad().defined());
  CHECK(contains(message_of<UsageError>([] { Tensor().set_grad(zeros({2})); }),
                 "[set_grad] this tensor is undefined."));
  CHECK_THROWS_AS(Tensor().set_grad({}), UsageError);
}

}  // namespace
}  // namespace halftone::test::set_grad_test
