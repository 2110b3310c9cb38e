// Calls of a listener for complete gradients during backward(): when, and how often.
#include <doctest/doctest.h>

#include <map>

#include <halftone/autograd/checkpoint.h>
#include <halftone/autograd/engine.h>
#include <halftone/autograd/slots.h>
#include <halftone/halftone.h>

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
