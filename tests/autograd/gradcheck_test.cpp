// gradcheck must find wrong gradients, or the operation table proves nothing.
#include <doctest/doctest.h>

#include <halftone/autograd/gradcheck.h>
#include <halftone/autograd/ops.h>

namespace halftone::test::gradcheck_test {
namespace {

/// y = 3 x, whose gradient is off by a factor in one element.
struct AlmostRight : UserOp {
  static constexpr OpInfo info{"almost_right", CastClass::as_is};
  double wrong_factor = 1;

  explicit AlmostRight(double factor) : wrong_factor(factor) {}
  Tensor forward(const Tensor& x) { return x * 3.0; }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    return {dy * from({3, 3 * wrong_factor, 3}, f64)};
  }
};

GradcheckResult check_factor(double factor) {
  const Tensor x = from({1, 2, 3}, f64).set_requires_grad();
  return gradcheck([&](const std::vector<Tensor>& in) { return apply(AlmostRight(factor), in[0]); },
                   {x});
}

TEST_CASE("a right gradient passes") {
  const GradcheckResult result = check_factor(1);
  CHECK(result.passed);
  CHECK(result.message.empty());
  CHECK(result.worst_error < 1e-8);
}

TEST_CASE("a gradient that is wrong in one element is found and named") {
  const GradcheckResult result = check_factor(1.001);
  CHECK_FALSE(result);
  CHECK(result.message.starts_with("input 0, element 1: analytic "));
  CHECK(result.worst_error > 1e-4);
}

TEST_CASE("a gradient that never arrives is wrong") {
  const Tensor x = from({1, 2}, f64).set_requires_grad(), y = from({3, 4}, f64).set_requires_grad();
  const GradcheckResult result =
      gradcheck([](const std::vector<Tensor>& in) { return in[0] * in[1].detach(); }, {x, y});
  CHECK_FALSE(result);
  CHECK(result.message.starts_with("input 1, element 0: analytic 0, numeric "));
}

TEST_CASE("other inputs stay as they are, and the caller's leaves collect nothing") {
  const Tensor x = from({1, 2}, f64).set_requires_grad(), scale = from({2, 3}, f64);
  CHECK(gradcheck([](const std::vector<Tensor>& in) { return square(in[0]) * in[1]; }, {x, scale}));
  CHECK_FALSE(x.grad().defined());
}

TEST_CASE("only f64 is precise enough") {
  const Tensor x = ones({2}).set_requires_grad();
  CHECK_THROWS_WITH_AS(gradcheck([](const std::vector<Tensor>& in) { return in[0] * 2.0; }, {x}),
                       "[gradcheck] an input that requires a gradient is f32. Cast it to f64.",
                       DTypeError);
}

}  // namespace

}  // namespace halftone::test::gradcheck_test
