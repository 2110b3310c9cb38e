// Depth is limited by memory, not by the stack: backward pops nodes from a queue, and a work list
// frees graphs on which backward never ran.
#include <doctest/doctest.h>

#include <functional>

#include <halftone/autograd/ops.h>
#include <halftone/core/memory.h>

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
