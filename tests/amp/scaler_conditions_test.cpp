// Conditions of the scaler and of the cast cache that no other test checks: several losses, several
// optimizers, views of one storage, empty states, limits of the scale, copies, and the cost of the
// scale itself.
#include <doctest/doctest.h>

#include <limits>

#include <halftone/halftone.h>

namespace halftone::test::scaler_conditions_test {

using amp::GradScaler;
using doctest::Contains;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

Tensor leaf() { return ones({2}).set_requires_grad(); }

TEST_CASE("views of one storage are cast separately") {
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

TEST_CASE("a new scale and new options apply to all losses") {
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

TEST_CASE("update() requires a check since the last one; nothing checked has no overflow") {
  Tensor w = leaf();
  optim::Sgd sgd({w});
  GradScaler scaler;
  CHECK_FALSE(scaler.first_overflow(sgd));
  scaler.scale(sum(w)).backward();
  CHECK_THROWS_WITH_AS(scaler.update(), Contains("no gradients were checked"), UsageError);
  scaler.step(sgd);
  CHECK_FALSE(scaler.first_overflow(sgd));
  scaler.update();
  CHECK_THROWS_WITH_AS(scaler.update(), Contains("no gradients were checked"), UsageError);
}

TEST_CASE(
    "a state without entries, or with an undefined one, is refused, and nothing has changed") {
  GradScaler scaler({.init_scale = 8});
  CHECK_THROWS_WITH_AS(scaler.load_state_dict({}), Contains("the state is empty"), UsageError);
  optim::NamedTensors state = scaler.state_dict();
  state["scale"] = {};
  CHECK_THROWS_WITH_AS(scaler.load_state_dict(state), Contains("there is no entry \"scale\""),
                       UsageError);
  CHECK(scaler.scale_value() == 8);
}

// --- options

TEST_CASE("update() to a scale beyond the limits is refused; the limits themselves are allowed") {
  GradScaler scaler({.init_scale = 8, .min_scale = 8, .max_scale = 8});
  scaler.scale(ones({}));
  for (const double bad : {4, 16}) CHECK_THROWS_AS(scaler.update(bad), UsageError);
  CHECK(scaler.scale_value() == 8);
  scaler.update(8);
  CHECK_THROWS_AS(GradScaler({.min_scale = -1}), UsageError);
  const double smallest = std::numeric_limits<float>::min();
  CHECK(GradScaler({.init_scale = smallest}).scale_value() == smallest);
}

TEST_CASE("new options must suit the scale of every loss, or none changes") {
  Tensor w = leaf();
  optim::Sgd sgd({w}, 0.5);
  GradScaler scaler({.init_scale = 8}, {.losses = 2});
  scaler.scale(sum(w) * infinity, 0).backward();
  scaler.collect(sgd, 0);
  scaler.step(sgd), scaler.update();  // 4 and 8
  CHECK_THROWS_AS(scaler.set_options({.max_scale = 4}), UsageError);
  CHECK_THROWS_AS(scaler.set_options({.min_scale = 8}), UsageError);
  for (const int which : {0, 1}) {
    CHECK(scaler.loss_scale(which).options.max_scale == infinity);
    CHECK(scaler.loss_scale(which).options.min_scale == 0);
  }
}

TEST_CASE("only another hysteresis resets the count of overflows") {
  const optim::Sgd sgd({leaf()});
  GradScaler scaler({.init_scale = 8, .hysteresis = 3});
  scaler.scale(ones({}));
  scaler.report(sgd, ones({})), scaler.update();
  CHECK(scaler.loss_scale().overflows_left == 2);
  scaler.set_options({.growth_interval = 7, .hysteresis = 3});
  CHECK(scaler.loss_scale().overflows_left == 2);
  scaler.set_options({.growth_interval = 7, .hysteresis = 4});
  CHECK(scaler.loss_scale().overflows_left == 4);
}

TEST_CASE("copies of a scaler change independently, as its losses do") {
  const optim::Sgd sgd({leaf()});
  GradScaler scaler({.init_scale = 8, .growth_interval = 5, .hysteresis = 3}, {.losses = 2});
  scaler.scale(ones({}));
  GradScaler copy = scaler;
  copy.report(sgd, ones({})), copy.update();
  copy.report(sgd, zeros({})), copy.update();
  copy.report(sgd, ones({})), copy.update();
  CHECK(copy.loss_scale().overflows_left == 2);
  copy.set_options({.hysteresis = 7});
  CHECK(scaler.loss_scale(0).overflows_left == 3);
  CHECK(scaler.loss_scale(0).growth_tracker == 0);
  Tensor w = leaf();
  optim::Sgd other({w});
  scaler.scale(sum(w) * infinity, 1).backward();
  scaler.collect(other, 1);
  scaler.step(other), scaler.update();
  CHECK(scaler.loss_scale(0).overflows_left == 3);
  CHECK(scaler.loss_scale(1).overflows_left == 2);
}

TEST_CASE("the present scale is one tensor while it does not change, and all of it is workspace") {
  const auto others = [] {
    const MemoryReport report = memory_report();
    return report.total_now - report.now_of(MemoryUse::workspace);
  };
  const auto workspace = [] { return memory_report().now_of(MemoryUse::workspace); };
  const int64_t before = others(), before_workspace = workspace();
  amp::DeviceLossScale scale({.init_scale = 8});
  CHECK(workspace() == before_workspace + 4 + 8 + 4);  // scale, tracker, overflows left
  const amp::DeviceLossScale copy = scale;
  CHECK(workspace() == before_workspace + 2 * (4 + 8 + 4));
  const Tensor* const present = &scale.present();
  const std::shared_ptr<TensorBody> body = present->body();
  CHECK(workspace() == before_workspace + 2 * (4 + 8 + 4) + 4);
  scale.move_to(Device::cpu());  // nothing to do
  CHECK(scale.present().body() == body);
  CHECK(others() == before);
}

// --- states

TEST_CASE("a state holds the overflows seen if hysteresis is used, and loading limits them") {
  GradScaler scaler({.init_scale = 8, .hysteresis = 2});
  optim::NamedTensors state = scaler.state_dict();
  CHECK(state.at("_hysteresis").item() == 2);
  state["_hysteresis"] = full({}, 5, i64);  // of a scaler with a larger hysteresis
  scaler.load_state_dict(state);
  CHECK(scaler.loss_scale().overflows_left == 2);
  state["_hysteresis"] = full({}, 1, i64);
  scaler.load_state_dict(state);
  CHECK(scaler.loss_scale().overflows_left == 1);
  for (const char* count : {"_growth_tracker", "growth_interval", "_hysteresis"}) {
    optim::NamedTensors beyond = state;
    beyond[count] = full({}, 1e16, f64);  // a whole number, but too large for a count of steps
    CHECK_THROWS_AS(scaler.load_state_dict(beyond), UsageError);
  }
}

}  // namespace

}  // namespace halftone::test::scaler_conditions_test
