// Hooks on gradients, and gradients without accumulation: autograd::grad. PyTorch's behavior, case
// by case.
#include <doctest/doctest.h>

#include <halftone/autograd/engine.h>
#include <halftone/autograd/ops.h>

#include "../support.h"

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
