// Linear algebra beyond the table of samples: functions of symmetric matrices and their gradients
// by difference quotients, second gradients, batches that broadcast, strides, sizes, errors.
#include <algorithm>
#include <cmath>
#include <functional>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "../support.h"

namespace halftone::test::linalg_test {
namespace {

using Function = std::function<Tensor(const Tensor&)>;

Tensor flipped(const Tensor& x) { return transpose(x, -2, -1); }
/// Different eigenvalues, far from 0.
Tensor symmetric(const Tensor& x) {
  const int64_t n = x.size(-1);
  return x + flipped(x) + eye(n, -1, f64) * (arange(n) + 3) * 2;
}

double largest_difference(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  return a.numel() == 0 ? 0 : max(abs(a.detach() - b.detach())).item();
}

/// Compares the gradient of sum(f(x) * weights) with central differences of f64, and the gradient
/// of a sum of that gradient likewise.
void check_gradients(const Function& f, const Shape& shape) {
  manual_seed(7);
  const Tensor start = randn(shape, f64) * 0.3;
  const Tensor weights = randn(f(start).shape(), f64), direction = randn(shape, f64);
  const auto value = [&](const Tensor& x) { return sum(f(x) * weights); };
  const auto slope = [&](const Tensor& x, bool recorded) {
    Tensor leaf = x.detach().set_requires_grad();
    const Tensor g = autograd::grad(value(leaf), {leaf}, {.create_graph = recorded})[0];
    return std::pair(leaf, sum(g * direction));
  };
  Tensor leaf = start.detach().set_requires_grad();
  value(leaf).backward();
  auto [second_leaf, second] = slope(start, true);
  second.backward();
  constexpr double step = 1e-5;
  for (int64_t i = 0; i < start.numel(); ++i) {
    Tensor up = start.clone(), down = start.clone();
    up.data<double>()[i] += step, down.data<double>()[i] -= step;
    const NoGrad no_grad;
    const double first = (value(up).item() - value(down).item()) / (2 * step);
    CHECK(leaf.grad().to_vector<double>()[std::size_t(i)] == doctest::Approx(first).epsilon(1e-6));
    const EnableGrad recorded;
    const double curvature =
        (slope(up, false).second.item() - slope(down, false).second.item()) / (2 * step);
    CHECK(second_leaf.grad().to_vector<double>()[std::size_t(i)] ==
          doctest::Approx(curvature).epsilon(1e-5));
  }
}

TEST_CASE("linear algebra: first and second gradients are difference quotients") {
  const auto whole = [](const Tensor& x) { return x + eye(x.size(-2), x.size(-1), f64) * 4; };
  const std::pair<const char*, Function> of_squares[] = {
      {"inv", [&](const Tensor& x) { return linalg::inv(whole(x)); }},
      {"solve", [&](const Tensor& x) { return linalg::solve(whole(x), x); }},
      {"cholesky", [](const Tensor& x) { return linalg::cholesky(symmetric(x)); }},
      {"eigenvalues", [](const Tensor& x) { return linalg::eigh(symmetric(x)).values; }},
      {"eigenvectors", [](const Tensor& x) { return square(linalg::eigh(symmetric(x)).vectors); }},
      {"singular values", [](const Tensor& x) { return linalg::svd(symmetric(x)).s; }}};
  for (const auto& [name, f] : of_squares) {
    CAPTURE(std::string(name));
    check_gradients(f, {3, 3});
    check_gradients(f, {2, 3, 3});
  }
  const std::pair<const char*, Function> any[] = {
      {"q", [&](const Tensor& x) { return linalg::qr(whole(x)).q; }},
      {"r", [&](const Tensor& x) { return linalg::qr(whole(x)).r; }},
      {"u", [](const Tensor& x) { return square(linalg::svd(x).u); }},
      {"s", [](const Tensor& x) { return linalg::svd(x).s; }},
      {"vh", [](const Tensor& x) { return square(linalg::svd(x).vh); }},
      {"lstsq", [&](const Tensor& x) {
         return linalg::lstsq(whole(x), ones({x.size(-2), 2}, f64));
       }}};
  for (const auto& [name, f] : any)
    for (const Shape& shape : {Shape{3, 3}, Shape{4, 2}, Shape{2, 4}}) {
      CAPTURE(std::string(name));
      CAPTURE(shape);
      check_gradients(f, shape);
    }
}

TEST_CASE("factors multiply to their matrix, at sizes with blocks inside") {
  manual_seed(2);
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 1}, {90, 90}, {120, 50}, {50, 120}}) {
    CAPTURE(m);
    CAPTURE(n);
    const Tensor a = randn({m, n}, f64);
    const int64_t k = std::min(m, n);
    const auto [q, r] = linalg::qr(a);
    CHECK(largest_difference(matmul(q, r), a) < 1e-12);
    CHECK(largest_difference(matmul(flipped(q), q), eye(k, -1, f64)) < 1e-13);
    CHECK(largest_difference(tril(r, -1), zeros(r.shape(), f64)) == 0);
    const auto [u, s, vh] = linalg::svd(a);
    CHECK(largest_difference(matmul(u * s, vh), a) < 1e-12);
    CHECK(largest_difference(matmul(flipped(u), u), eye(k, -1, f64)) < 1e-12);
    CHECK(largest_difference(matmul(vh, flipped(vh)), eye(k, -1, f64)) < 1e-12);
    const std::vector<double> values = s.to_vector<double>();
    CHECK(std::ranges::is_sorted(values, std::greater()));
    if (m != n) continue;
    const Tensor both = a + flipped(a);
    const auto [rising, vectors] = linalg::eigh(both);
    CHECK(largest_difference(matmul(vectors * rising, flipped(vectors)), both) < 1e-11);
    CHECK(std::ranges::is_sorted(rising.to_vector<double>()));
    const Tensor positive = matmul(a, flipped(a)) + eye(n, -1, f64);
    const Tensor l = linalg::cholesky(positive);
    CHECK(largest_difference(matmul(l, flipped(l)), positive) < 1e-11);
    CHECK(largest_difference(matmul(linalg::inv(positive), positive), eye(n, -1, f64)) < 1e-9);
  }
}

TEST_CASE("solve: vectors, batches that broadcast, transposed inputs, short floats") {
  manual_seed(3);
  const Tensor a = randn({2, 1, 3, 3}, f64) + eye(3, -1, f64) * 4, b = randn({5, 3, 2}, f64);
  const Tensor x = linalg::solve(a, b);
  CHECK(x.shape() == Shape{2, 5, 3, 2});
  CHECK(largest_difference(matmul(a, x), expand(b, {2, 5, 3, 2})) < 1e-14);
  const Tensor v = randn({3}, f64), one = select(select(a, 0, 0), 0, 0);
  CHECK(linalg::solve(one, v).shape() == Shape{3});
  CHECK(largest_difference(matmul(one, linalg::solve(one, v)), v) < 1e-14);
  CHECK(linalg::solve(select(a, 1, 0), randn({2, 3}, f64)).shape() == Shape{2, 3});
  CHECK(largest_difference(linalg::inv(flipped(one)), flipped(linalg::inv(one))) < 1e-15);
  const Tensor rounded = linalg::inv(cast(one, bf16));
  CHECK(rounded.dtype() == bf16);
  CHECK(largest_difference(cast(rounded, f64), linalg::inv(cast(cast(one, bf16), f64))) < 2e-3);
  CHECK(linalg::inv(zeros({0, 3, 3})).shape() == Shape{0, 3, 3});
  CHECK(linalg::svd(zeros({4, 0})).s.shape() == Shape{0});
  CHECK(linalg::eigh(zeros({2, 0, 0})).vectors.shape() == Shape{2, 0, 0});
}

TEST_CASE("lstsq: the least error of tall systems, the least solution of wide ones") {
  manual_seed(4);
  const Tensor tall = randn({7, 3}, f64), wide = flipped(tall), b = randn({7, 2}, f64);
  const Tensor x = linalg::lstsq(tall, b);
  CHECK(largest_difference(matmul(wide, matmul(tall, x) - b), zeros({3, 2}, f64)) < 1e-13);
  const Tensor c = randn({3, 2}, f64), least = linalg::lstsq(wide, c);
  CHECK(largest_difference(matmul(wide, least), c) < 1e-13);
  CHECK(largest_difference(least, matmul(tall, linalg::solve(matmul(wide, tall), c))) < 1e-12);
  CHECK_THROWS_AS(linalg::lstsq(tall, c), ShapeError);
}

TEST_CASE("hostile matrices are errors with their place") {
  const Tensor nan = full({2, 2}, std::nan(""));
  CHECK_THROWS_WITH_AS(linalg::eigh(nan),
                       "[eigh] [2, 2] f32 has elements that are not finite. Look for their origin "
                       "with isfinite().",
                       UsageError);
  CHECK_THROWS_AS(linalg::cholesky(nan), UsageError);
  CHECK(std::isnan(linalg::inv(nan).to_vector<double>()[0]));
  CHECK_THROWS_AS(linalg::inv(zeros({3, 2, 2})), UsageError);
  CHECK_THROWS_AS(linalg::inv(zeros({2, 2}, i64)), DTypeError);
}

}  // namespace
}  // namespace halftone::test::linalg_test
