// The reverse pass: which gradients are added, the owners of their memory, and refusals.
#include <doctest/doctest.h>

#include <thread>

#include <halftone/autograd/ops.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/memory.h>

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
