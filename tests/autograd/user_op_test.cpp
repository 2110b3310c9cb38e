// Operations defined outside the library: a struct is enough, and its errors are reported under its
// name.
#include <doctest/doctest.h>

#include <halftone/autograd/gradcheck.h>
#include <halftone/autograd/ops.h>

namespace halftone::test::user_op_test {
namespace {

/// y = x^3, as a user writes it: composed, with its own derivative.
struct Cube : UserOp {
  static constexpr OpInfo info{"cube", CastClass::full_precision};
  Tensor saved{};

  Tensor forward(const Tensor& x) {
    saved = x;
    return x * x * x;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {dy * square(saved) * 3.0}; }
};

Tensor cube(const Tensor& x) { return apply(Cube{}, x); }

TEST_CASE("a user's operation has its gradient, and works in a graph like any other") {
  const Tensor x = from({-1, 0.5, 2}, f64).set_requires_grad();
  CHECK(gradcheck([](const std::vector<Tensor>& in) { return cube(tanh(in[0])); }, {x}));
  cube(x).backward(ones({3}, f64));
  CHECK(x.grad().to_vector<double>() == std::vector<double>{3, 0.75, 12});
}

/// y = x + sum of the rest: any number of inputs, gradients only if required.
struct AddAll : UserOp {
  static constexpr OpInfo info{"add_all", CastClass::widest_input};
  std::size_t count = 0;

  Tensor forward(std::span<const Tensor> inputs) {
    count = inputs.size();
    Tensor y = inputs[0];
    for (std::size_t i = 1; i < count; ++i) y = y + inputs[i];
    return y;
  }
  std::vector<Tensor> backward(const Tensor& dy) const { return std::vector<Tensor>(count, dy); }
};

TEST_CASE("an operation on any number of inputs") {
  const Tensor a = from({1.0}).set_requires_grad(), b = from({2.0}),
               c = from({3.0}).set_requires_grad();
  const Tensor y = apply(AddAll{}, std::vector<Tensor>{a, b, c, a});
  CHECK(y.item() == 7);
  y.backward();
  CHECK(a.grad().item() == 2);
  CHECK(c.grad().item() == 1);
  CHECK_FALSE(b.grad().defined());
}

/// The identity, with a gradient of a chosen kind.
struct Wrong : UserOp {
  static constexpr OpInfo info{"wrong", CastClass::as_is};
  std::vector<Tensor> answer;

  explicit Wrong(std::vector<Tensor> gradients) : answer(std::move(gradients)) {}
  Tensor forward(const Tensor& x) { return x.clone(); }
  std::vector<Tensor> backward(const Tensor&) const { return answer; }
};

void backward_through(std::vector<Tensor> gradients) {
  const Tensor x = ones({2}).set_requires_grad();
  sum(apply(Wrong(std::move(gradients)), x)).backward();
}

TEST_CASE("a gradient that does not fit is an error that names the operation") {
  CHECK_THROWS_WITH_AS(
      backward_through({ones({2}, bf16)}),
      "[backward] wrong returned a gradient of dtype bf16 for an input of dtype f32. Its backward "
      "must return the input's dtype.",
      DTypeError);
  CHECK_THROWS_WITH_AS(backward_through({ones({2, 1})}),
                       "[backward] wrong returned a gradient of shape [2, 1] for an input of shape "
                       "[2]. Its backward "
                       "must return the input's shape.",
                       ShapeError);
  CHECK_THROWS_WITH_AS(backward_through({ones({2}), ones({2})}),
                       "[backward] wrong returned 2 gradients for 1 inputs. Return one per input, "
                       "undefined where none "
                       "is wanted.",
                       UsageError);
  CHECK_NOTHROW(backward_through({Tensor{}}));
}

/// Rounds, and has no derivative.
struct Floor : UserOp {
  static constexpr OpInfo info{"floor", CastClass::as_is};
  Tensor forward(const Tensor& x) { return cast(cast(x, i64), x.dtype()); }
};

TEST_CASE("an operation without backward fails when one is asked for") {
  const Tensor x = from({1.5}).set_requires_grad();
  const Tensor y = apply(Floor{}, x);
  CHECK(y.item() == 1);
  CHECK_THROWS_WITH_AS(y.backward(), "[floor] has no gradient. Use detach() on its result.",
                       UnsupportedError);
}

/// Records which gradients are required.
struct Asking : UserOp {
  static constexpr OpInfo info{"asking", CastClass::as_is};
  std::array<bool, 2>* told;
  Needs<2> needs{};

  explicit Asking(std::array<bool, 2>* answer) : told(answer) {}
  Tensor forward(const Tensor& a, const Tensor&) {
    *told = needs.input;
    return a.clone();
  }
  std::array<Tensor, 2> backward(const Tensor& dy) const { return {dy, dy}; }
};

TEST_CASE("an operation knows which gradients are required") {
  std::array<bool, 2> told{};
  const Tensor a = ones({1}).set_requires_grad(), b = ones({1});
  apply(Asking(&told), a, b);
  CHECK(told == std::array{true, false});
  apply(Asking(&told), b, a);
  CHECK(told == std::array{false, true});
  const NoGrad no_grad;
  apply(Asking(&told), a, a);
  CHECK(told == std::array{false, false});
}

/// Returns its input itself, and saves its output: neither may make a cycle in the graph.
struct Same : UserOp {
  static constexpr OpInfo info{"same", CastClass::as_is};
  Tensor saved{};
  Tensor forward(const Tensor& x) {
    saved = x;
    return x;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {dy}; }
};

TEST_CASE("an operation may return its input, or save its output") {
  const int64_t before = memory_report().total_now;
  {
    const Tensor x = ones({4}).set_requires_grad();
    const Tensor y = apply(Same{}, x);
    CHECK(x.is_leaf());
    CHECK_FALSE(y.is_leaf());
    CHECK(y.storage() == x.storage());
    sum(exp(y)).backward();
    CHECK(x.grad().defined());
  }
  CHECK(memory_report().total_now == before);
}

}  // namespace

}  // namespace halftone::test::user_op_test
