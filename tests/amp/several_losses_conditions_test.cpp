// Conditions of collect(), report() and first_overflow() with several losses and optimizers: the
// result of each check is not lost, not assigned to another one, and outlives the gradients.
#include <doctest/doctest.h>

#include <limits>

#include <halftone/halftone.h>

namespace halftone::test::several_losses_conditions_test {
namespace {

using amp::Decision;
using amp::GradScaler;
using doctest::Contains;
using Position = std::optional<std::size_t>;
using Values = std::vector<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor leaf() { return ones({2}).set_requires_grad(); }

/// Parameters under one optimizer (lr 0.5) and a scaler for two losses, at 8.
struct Case {
  explicit Case(Decision decision = Decision::where_free)
      : scaler({.init_scale = 8}, {.losses = 2, .decision = decision}) {}
  Tensor a = leaf(), b = leaf(), unused = leaf();
  optim::Sgd sgd{{unused, a, b}, 0.5};
  GradScaler scaler;

  void backward(const Tensor& loss, int which) { scaler.scale(loss, which).backward(); }
  void collect(const Tensor& loss, int which) {
    backward(loss, which);
    scaler.collect(sgd, which);
  }
  Values scales() const { return {scaler.scale_value(0), scaler.scale_value(1)}; }
  std::vector<int64_t> trackers() const {
    return {scaler.loss_scale(0).growth_tracker, scaler.loss_scale(1).growth_tracker};
  }
};

// --- the overflow flag of a loss's scale

TEST_CASE("the first micro-batch of a loss overflowed: a clean second one does not undo it") {
  Case run;
  run.collect(sum(run.a) * infinity, 0), run.collect(sum(run.a), 0), run.collect(sum(run.b), 1);
  CHECK_FALSE(run.scaler.step(run.sgd));
  run.scaler.update();
  CHECK(run.scales() == Values{4, 8});
}

TEST_CASE("a loss that was not collected had a clean step, if another one overflowed") {
  Case run;
  run.collect(sum(run.a) * infinity, 0);
  CHECK_FALSE(run.scaler.step(run.sgd));
  run.scaler.update();
  CHECK(run.scales() == Values{4, 8});
  CHECK(run.trackers() == std::vector<int64_t>{0, 1});
}

TEST_CASE("an overflow in an optimizer that collects nothing lowers the scale of every loss") {
  Case run;
  Tensor other = leaf();
  optim::Sgd plain({other}, 0.5);
  run.collect(sum(run.a), 0), run.collect(sum(run.b), 1);
  run.backward(sum(other) * infinity, 0);
  CHECK(run.scaler.step(run.sgd));
  CHECK_FALSE(run.scaler.step(plain));
  run.scaler.update();
  CHECK(run.scales() == Values{4, 4});
}

TEST_CASE("a reported overflow skips the step, also if the check or later reports are clean") {
  Tensor w = leaf();
  optim::Sgd sgd({w}, 0.5);
  GradScaler scaler({.init_scale = 8});
  const auto step = [&](double first, double second) {
    w.set_grad({});
    scaler.scale(sum(w)).backward();
    scaler.report(sgd, full({}, first)), scaler.report(sgd, full({}, second));
    const bool stepped = scaler.step(sgd);
    scaler.update();
    return stepped;
  };
  CHECK_FALSE(step(1, 0));
  CHECK(scaler.scale_value() == 4);
  CHECK_FALSE(step(0, 1));
  CHECK(scaler.scale_value() == 2);
  CHECK(step(0, 0));
  CHECK(scaler.scale_value() == 2);
}

TEST_CASE("a disabled scaler ignores reported overflows") {
  Tensor w = leaf();
  optim::Sgd sgd({w}, 0.5);
  GradScaler scaler({}, {.enabled = false});
  w.set_grad(full({2}, infinity));
  scaler.report(sgd, ones({}));
  CHECK_FALSE(scaler.first_overflow(sgd));
  CHECK(scaler.step(sgd));
}

// --- collecting

TEST_CASE("collecting skips parameters that no loss reaches, and losses that reach no parameter") {
  Case run;
  Tensor far = leaf();
  optim::Sgd other({far}, 0.5);
  run.collect(sum(run.a), 0);
  CHECK_NOTHROW(run.scaler.collect(other, 0));
  CHECK_THROWS_WITH_AS(run.scaler.step(other), Contains("has no gradients"), UsageError);
  run.collect(sum(run.b), 1);
  CHECK(run.scaler.step(run.sgd));
  CHECK_FALSE(run.unused.grad().defined());
  CHECK(run.unused.at({0}) == 1);
  CHECK(run.a.at({0}) == 0.5);
}

TEST_CASE("after a refused collect() the optimizer can do its plain step") {
  Case run;
  run.backward(sum(run.a), 0);
  CHECK_THROWS_WITH_AS(run.scaler.collect(run.sgd, 7), Contains("got loss 7, but the scaler has 2"), UsageError);
  CHECK(run.scaler.step(run.sgd));
  CHECK(run.a.at({0}) == 0.5);
  CHECK_THROWS_WITH_AS(run.scaler.collect(run.sgd, 0), Contains("after unscale() or step()"),
                       UsageError);
}

TEST_CASE("a gradient that was set after collecting is used unchanged") {
  Case run;
  run.collect(sum(run.a), 0), run.collect(sum(run.a), 1);
  run.b.set_grad(full({2}, 3));
  CHECK(run.scaler.step(run.sgd));
  CHECK(run.a.at({0}) == 0);
  CHECK(run.b.at({0}) == 1 - 0.5 * 3);
}

TEST_CASE("f16 gradients are collected as f32, before they are divided; f32 ones are not copied") {
  const auto aside = [] { return memory_report().now_of(MemoryUse::master_gradient); };
  for (const DType dtype : {f16, f32}) {
    const int64_t before = aside();
    Tensor w = ones({2}, dtype).set_requires_grad();
    optim::Sgd sgd({w}, 0.5);
    GradScaler scaler({.init_scale = 1024}, {.losses = 2});
    scaler.scale(ones({}), 0);
    w.set_grad(full({2}, 0x1p-24, dtype));  // the smallest of f16
    scaler.collect(sgd, 0);
    CHECK(aside() - before == (dtype == f16 ? 2 * 4 : 0));
    CHECK(scaler.step(sgd));
    CHECK(w.grad().dtype() == f32);
    CHECK(w.grad().at({0}) == 0x1p-34);
  }
}

// --- the first overflow

TEST_CASE("the position of an overflow is known after its gradients are dropped") {
  Case run;
  std::vector<Tensor> all{run.a, run.b};
  SUBCASE("checked by unscale()") {
    run.backward(sum(run.a) + sum(run.b) * infinity, 0);
    run.scaler.unscale(run.sgd);
  }
  SUBCASE("checked by step()") {
    run.backward(sum(run.a) + sum(run.b) * infinity, 0);
    CHECK_FALSE(run.scaler.step(run.sgd));
  }
  SUBCASE("checked by step(), and reported before") {
    run.backward(sum(run.a) + sum(run.b) * infinity, 0);
    run.scaler.report(run.sgd, ones({}));
    CHECK_FALSE(run.scaler.step(run.sgd));
  }
  SUBCASE("checked by collect()") {
    run.collect(sum(run.a) + sum(run.b) * infinity, 0);
    CHECK_FALSE(run.scaler.step(run.sgd));
    run.sgd.zero_grad(false);
  }
  run.sgd.zero_grad();
  CHECK(run.scaler.first_overflow(run.sgd) == Position(1));  // among gradients: `unused` has none
}

TEST_CASE("the first position of several losses' overflows counts, in both kinds of decision") {
  for (const Decision decision : {Decision::where_free, Decision::in_update}) {
    Case run(decision);
    run.collect(sum(run.a) + sum(run.b) * infinity, 0);
    CHECK(run.scaler.first_overflow(run.sgd) == Position(1));
    run.collect(sum(run.a) * infinity, 1);
    CHECK(run.scaler.first_overflow(run.sgd) == Position(0));
    run.collect(sum(run.a), 1);
    CHECK(run.scaler.first_overflow(run.sgd) == Position(0));
  }
}

TEST_CASE("an overflow is the result of the check: later values of gradients do not count") {
  for (const Decision decision : {Decision::where_free, Decision::in_update}) {
    Case run(decision);
    run.backward(sum(run.a), 0);
    run.scaler.unscale(run.sgd);
    run.a.set_grad(full({2}, infinity));
    CHECK_FALSE(run.scaler.first_overflow(run.sgd));
  }
}

TEST_CASE("unscale() without gradients checks nothing") {
  Case run;
  run.scaler.scale(ones({}));
  run.scaler.unscale(run.sgd);
  CHECK_FALSE(run.scaler.first_overflow(run.sgd));
  run.backward(sum(run.a), 0);
  CHECK_NOTHROW(run.scaler.unscale(run.sgd));
}

}  // namespace
}  // namespace halftone::test::several_losses_conditions_test
