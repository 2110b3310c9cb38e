// Conditions of the scaler and of the cast cache that a change could drop without another test
// falling: several losses, several optimizers, views of one storage, states that are empty.
#include <doctest/doctest.h>

#include <limits>

#include <halftone/halftone.h>

using namespace halftone;
using amp::GradScaler;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor leaf() { return ones({2}).set_requires_grad(); }

TEST_CASE("views of one storage are cast each for itself") {
  const Tensor whole = from_vector<double>({1, 2, 3, 4}, {4}, f32);
  Tensor front = whole.view_as({2, 1}, {1, 1}, 0).set_requires_grad(),
         back = whole.view_as({2, 1}, {1, 1}, 2).set_requires_grad();
  const Tensor x = ones({1, 2});
  amp::autocast(bf16, [&] {
    CHECK(matmul(x, front).item() == 3);
    CHECK(matmul(x, back).item() == 7);
    CHECK(matmul(x, front).item() == 3);
  });
}

TEST_CASE("several losses are scaled each") {
  GradScaler scaler({.init_scale = 8});
  const std::vector<Tensor> scaled = scaler.scale({full({}, 1), full({}, 3)});
  CHECK(scaled[0].item() == 8);
  CHECK(scaled[1].item() == 24);
  GradScaler two({.init_scale = 8}, {.losses = 2});
  CHECK_THROWS_AS(two.scale(ones({}), -1), UsageError);
  CHECK_THROWS_AS(two.scale(ones({}), 2), UsageError);
}

TEST_CASE("an overflow of one loss lowers the scale of that loss; the next step starts clean") {
  Tensor w = leaf();
  optim::Sgd sgd({w}, 0.5);
  GradScaler scaler({.init_scale = 8}, {.losses = 2});
  const auto step = [&](double first, double second) {
    scaler.scale(sum(w) * first, 0).backward();
    scaler.collect(sgd, 0);
    scaler.scale(sum(w) * second, 1).backward();
    scaler.collect(sgd, 1);
    const bool stepped = scaler.step(sgd);
    scaler.update();
    w.set_grad({});
    return stepped;
  };
  CHECK_FALSE(step(infinity, 1));
  CHECK(scaler.scale_value(0) == 4);
  CHECK(scaler.scale_value(1) == 8);
  CHECK_FALSE(step(1, infinity));
  CHECK(scaler.scale_value(0) == 4);
  CHECK(scaler.scale_value(1) == 4);
  CHECK(w.at({0}) == 1);
  CHECK(step(1, 2));
  CHECK(scaler.scale_value(0) == 4);
  CHECK(scaler.scale_value(1) == 4);
  CHECK(w.at({0}) == 1 - 0.5 * 3);
}

TEST_CASE("an overflow in any optimizer lowers the scale, whichever comes first") {
  for (const bool first_overflows : {true, false}) {
    Tensor a = leaf(), b = leaf();
    optim::Sgd one({a}), other({b});
    GradScaler scaler({.init_scale = 8});
    scaler
        .scale(sum(a) * (first_overflows ? infinity : 1) +
               sum(b) * (first_overflows ? 1 : infinity))
        .backward();
    scaler.unscale(one);
    CHECK(bool(scaler.step(one)) == !first_overflows);
    CHECK(bool(scaler.step(other)) == first_overflows);
    scaler.update();
    CHECK(scaler.scale_value() == 4);
  }
}

TEST_CASE("a new scale and new options are those of all losses") {
  GradScaler scaler({.init_scale = 8}, {.losses = 2});
  scaler.scale(ones({}));
  scaler.update(32);
  CHECK(scaler.scale_value(0) == 32);
  CHECK(scaler.scale_value(1) == 32);
  scaler.set_options({.growth_interval = 7, .hysteresis = 3});
  for (const int which : {0, 1}) {
    CHECK(scaler.loss_scale(which).options.growth_interval == 7);
    CHECK(scaler.loss_scale(which).overflows_left == 3);
    CHECK(scaler.loss_scale(which).scale == 32);
  }
}

TEST_CASE("update() wants a check since the last one; nothing checked has no overflow") {
  Tensor w = leaf();
  optim::Sgd sgd({w});
  GradScaler scaler;
  CHECK_FALSE(scaler.first_overflow(sgd));
  scaler.scale(sum(w)).backward();
  CHECK_THROWS_AS(scaler.update(), UsageError);
  scaler.step(sgd);
  CHECK_FALSE(scaler.first_overflow(sgd));
  scaler.update();
  CHECK_THROWS_AS(scaler.update(), UsageError);
}

TEST_CASE(
    "a state without entries, or with an undefined one, is refused, and nothing has changed") {
  GradScaler scaler({.init_scale = 8});
  CHECK_THROWS_AS(scaler.load_state_dict({}), UsageError);
  optim::NamedTensors state = scaler.state_dict();
  state["scale"] = {};
  CHECK_THROWS_AS(scaler.load_state_dict(state), UsageError);
  CHECK(scaler.scale_value() == 8);
}

}  // namespace
