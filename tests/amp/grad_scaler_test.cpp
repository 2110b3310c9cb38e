// GradScaler: replays a real PyTorch (tests/fixtures/pytorch/amp_scaler_fixtures.py), with a table
// of the deliberate differences; then features that PyTorch does not have: several losses,
// set_options(), first_overflow(), and states that are refused.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/halftone.h>

#include "../support.h"
#include "cases.h"

namespace halftone::test::grad_scaler_test {
namespace {

using amp::Decision;
using amp::GradScaler;
using Options = amp::LossScaleOptions;
using nlohmann::json;
using Values = std::vector<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Deliberate differences: patches (RFC 7396, null removes) to PyTorch's results.
/// b: f16 gradients are refused by unscale() only; step() divides them inside the update, in f32.
/// c: a call without gradients is an error of that call alone; the optimizer can continue.
/// d: a lowered growth interval lets the scale grow at once; PyTorch waits for equality forever.
/// f: a load that fails changes nothing; PyTorch keeps what it read before the missing entry.
/// Two more are rules below:
/// a: step() without unscale() gives 1 / scale to the update and does not change the gradients.
/// e: 1 / scale is always finite; an init_scale for which it is not is refused.
const json differences = json::parse(R"({
  "f16_gradients": {
    "3": {"error": null, "stepped": true, "parameters": [[0.75, -1.5, 0.375]]},
    "4": {"error": null, "growth_tracker": 1}},
  "f16_among_f32_gradients": {
    "3": {"error": null, "stepped": true, "parameters": [[0.75, -1.5, 0.375], [0.5, -2, 1.5]]},
    "4": {"error": null, "growth_tracker": 1},
    "5": {"growth_tracker": 1}, "6": {"growth_tracker": 1},
    "7": {"growth_tracker": 1, "parameters": [[0.5, -1, 0.25], [0.5, -2, 1.5]]},
    "8": {"growth_tracker": 2}},
  "no_gradients_at_all": {
    "3": {"error": null},
    "6": {"error": null, "stepped": true, "parameters": [[0.75, -1.5, 0.375]]},
    "7": {"error": null, "growth_tracker": 1}},
  "growth_interval_below_the_tracker": {
    "3": {"scale": 65536, "growth_tracker": 0, "result": {
      "scales": [2048, 2048, 2048, 2048, 4096, 4096, 4096, 4096, 8192, 8192, 8192, 8192, 16384,
                 16384, 16384, 16384, 32768, 32768, 32768, 32768,
                 16384, 16384, 16384, 16384, 32768, 32768, 32768, 32768, 65536],
      "growth_trackers": [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3,
                          0, 1, 2, 3, 0, 1, 2, 3, 0]}}},
  "load_incomplete": {
    "1": {"scale": 1024},
    "2": {"scale": 1024, "result": {"scale": 1024, "growth_factor": 2, "backoff_factor": 0.5,
                                    "growth_interval": 3}}}
})");
const double smallest_scale = std::numeric_limits<float>::min();  // 2^-126: 1 / it is finite

double number(const json& x) {
  if (!x.is_string()) return x.get<double>();
  return x == "nan" ? not_a_number : x == "inf" ? infinity : -infinity;
}
Values numbers(const json& list) {  // empty for null, one value for a number
  Values result;
  for (const json& x : list) result.push_back(number(x));
  return result;
}
/// Equal, also NaN to NaN, or different by at most `allowed` of 1 or the value.
bool equal(const Values& a, const Values& b, double allowed = 0) {
  return std::ranges::equal(a, b, [&](double x, double y) {
    return x == y || (std::isnan(x) && std::isnan(y)) ||
           std::abs(x - y) <= allowed * std::max(std::abs(y), 1.0);
  });
}
DType dtype_named(const std::string& name) {
  return name == "f32" ? f32 : name == "f16" ? f16 : bf16;
}

Options options_of(const json& given, Options o = {}) {
  return {.init_scale = given.value("init_scale", o.init_scale),
          .growth_factor = given.value("growth_factor", o.growth_factor),
          .backoff_factor = given.value("backoff_factor", o.backoff_factor),
          .growth_interval = given.value("growth_interval", o.growth_interval)};
}

class Replay {
 public:
  explicit Replay(const json& scenario, Decision decision = Decision::where_free)
      : decision_(decision),
        scaler_(options_of(scenario.at("options")),
                {.enabled = scenario.at("options").value("enabled", true), .decision = decision}) {
    std::vector<std::vector<Tensor>> of_optimizer(2);
    for (const json& p : scenario.at("parameters")) {
      const DType dtype = dtype_named(p.at("dtype"));
      parameters_.push_back(from_vector(numbers(p.at("values")), {3}, dtype).set_requires_grad());
      of_optimizer[p.at("optimizer").get<std::size_t>()].push_back(parameters_.back());
    }
    for (const auto& list : of_optimizer)
      if (!list.empty())
        optimizers_.push_back(std::make_unique<optim::Sgd>(list, optim::SgdOptions{.lr = 0.5}));
  }

  /// Does an action and compares the results with `shows`.
  void check(const json& action, const json& shows) {
    const std::vector<Values> gradients_before = gradients();
    std::string error;
    json result;
    stepped_ = false;
    try {
      result = run(action);
    } catch (const UsageError& e) { error = e.what(); }
    CAPTURE(error);
    CHECK(error.empty() == !shows.contains("error"));
    CHECK(scaler_.scale_value() == number(shows.at("scale")));
    CHECK(scaler_.loss_scale().growth_tracker == shows.at("growth_tracker"));
    if (shows.contains("result")) check_result(result, shows.at("result"));
    if (shows.contains("parameters")) {
      CHECK(stepped_ == shows.at("stepped"));
      for (std::size_t i = 0; i < parameters_.size(); ++i)
        CHECK(equal(parameters_[i].to_vector<double>(), numbers(shows.at("parameters")[i]),
                    allowed_));
    }
    for (std::size_t i = 0; shows.contains("gradients") && i < parameters_.size(); ++i) {
      const json& wanted = shows.at("gradients")[i];
      const Values now = gradients()[i];
      if (action.at("do") != "step") CHECK(equal(now, numbers(wanted), allowed_));
      else CHECK(equal(now, gradients_before[i]));  // difference a
      set_grad(i, wanted);                          // continue from PyTorch's state
    }
  }

 private:
  std::vector<Values> gradients() const {
    std::vector<Values> list;
    for (const Tensor& x : parameters_)
      list.push_back(x.grad().defined() ? x.grad().to_vector<double>() : Values{});
    return list;
  }
  void set_grad(std::size_t i, const json& list) {
    const DType dtype = parameters_[i].dtype();
    parameters_[i].set_grad(list.is_null() ? Tensor{} : from_vector(numbers(list), {3}, dtype));
  }

  void check_result(const json& got, const json& wanted) const {
    CHECK(got.size() == wanted.size());
    for (const auto& [key, value] : wanted.items()) {  // for a norm: its value
      CAPTURE(key);
      const json& mine = wanted.is_object() ? got.at(key) : got;
      if (key == "dtype") CHECK(mine == value);
      else CHECK(equal(numbers(mine), numbers(value), allowed_));
    }
  }

  json run(const json& action) {
    const std::string verb = action.at("do");
    const auto optimizer = [&]() -> optim::Optimizer& {
      return *optimizers_.at(action.at("optimizer").get<std::size_t>());
    };
    if (verb == "scale") {
      const DType dtype = dtype_named(action.value("dtype", "f32"));
      const Tensor y = scaler_.scale(scalar(number(action.at("value")), dtype));
      return {{"value", y.item()}, {"dtype", name(y.dtype())}};
    }
    if (verb == "set_grad") set_grad(action.at("parameter"), action.at("values"));
    else if (verb == "unscale") scaler_.unscale(optimizer());
    else if (verb == "clip") {
      allowed_ = 4 * epsilon(f32);  // from here on the norm and its quotient are rounded
      return optim::clip_grad_norm(optimizer().parameters(), action.at("max_norm")).item();
    } else if (verb == "step") stepped_ = scaler_.step(optimizer());
    else if (verb == "update" && action.contains("new_scale")) scaler_.update(action["new_scale"]);
    else if (verb == "update") scaler_.update();
    else if (verb.starts_with("set_"))
      scaler_.set_options(
          options_of({{verb.substr(4), action.at("value")}}, scaler_.loss_scale().options));
    else if (verb == "new_scaler")
      scaler_ = GradScaler(options_of(action), {.decision = decision_});
    else if (verb == "state_dict") {
      json state = json::object();
      for (const auto& [name, x] : scaler_.state_dict()) state[name] = x.item();
      return state;
    } else if (verb == "load_state_dict") {
      optim::NamedTensors state;
      for (const auto& [name, x] : action.at("state").items()) state[name] = scalar(double(x), f64);
      scaler_.load_state_dict(state);
    } else if (verb == "iterations") return iterations(action.at("overflow"));
    else FAIL("unknown action " << verb);
    return {};
  }

  json iterations(const std::string& overflow) {
    json scales, trackers;
    for (const char character : overflow) {
      for (Tensor& x : parameters_) x.set_grad(zeros_like(x.detach()));
      if (character == '1') parameters_[0].set_grad(from({infinity, 0, 0}));
      for (const auto& optimizer : optimizers_)
        CHECK(scaler_.step(*optimizer) == (character == '0'));
      scaler_.update();
      scales.push_back(scaler_.scale_value());
      trackers.push_back(scaler_.loss_scale().growth_tracker);
    }
    return {{"scales", scales}, {"growth_trackers", trackers}};
  }

  Decision decision_;
  GradScaler scaler_;
  double allowed_ = 0;
  std::vector<Tensor> parameters_;
  std::vector<std::unique_ptr<optim::Sgd>> optimizers_;
  bool stepped_ = false;
};

json scenarios() {
  std::ifstream file(fixtures_directory() + "/amp_scaler.json");
  return json::parse(file).at("scenarios");  // with SGD of lr 0.5
}

void replay(const std::string& scenario_name, const json& scenario, Decision decision) {
  CAPTURE(scenario_name);
  const json patches = differences.value(scenario_name, json::object());
  CHECK(scenario.at("differs") <= !patches.empty());
  Replay run(scenario, decision);
  for (std::size_t i = 0; i < scenario.at("actions").size(); ++i) {
    const json& action = scenario.at("actions")[i];
    CAPTURE(i);
    json shows = action.at("shows");
    if (const auto patch = patches.find(std::to_string(i)); patch != patches.end()) {
      shows.merge_patch(*patch);
      CHECK(shows != action.at("shows"));
    }
    if (scenario_name == "shrinking_from_one" && i == 1) {  // difference e
      json& scales = shows["result"]["scales"];
      for (json& scale : scales) scale = std::max(number(scale), smallest_scale);
      shows["scale"] = std::max(number(shows["scale"]), smallest_scale);
    }
    run.check(action, shows);
  }
}

TEST_CASE(
    "the scaler does what PyTorch's does, action by action, except for deliberate differences") {
  const json table = scenarios();
  Decision decision = Decision::where_free;
  SUBCASE("the host decides") {}
  SUBCASE("the update decides") { decision = Decision::in_update; }
  for (const auto& [name, scenario] : table.items()) {
    if (name == "shrinking_to_zero" || name == "inverse_overflows")  // difference e
      CHECK_THROWS_WITH_AS(Replay{scenario}, doctest::Contains("a positive finite"), UsageError);
    else replay(name, scenario, decision);
  }
  CHECK(table.size() == 54);
}

// --- several losses

struct TwoLosses {
  Decision decision = Decision::where_free;
  Tensor w = ones({2}).set_requires_grad();
  optim::Sgd sgd{{w}, {.lr = 0.5}};
  GradScaler scaler{{.init_scale = 1024}, {.losses = 2, .decision = decision}};
  /// backward of factor * sum(w) under scale `which`, and its collection.
  void backward(double factor, int which) {
    scaler.scale(sum(w) * factor, which).backward();
    scaler.collect(sgd, which);
  }
};

TEST_CASE("two losses with a scale each: one overflows, only its scale backs off") {
  Decision decision = Decision::where_free;
  SUBCASE("the host decides") {}
  SUBCASE("the update decides") { decision = Decision::in_update; }
  TwoLosses run{.decision = decision};
  run.backward(1, 0), run.backward(infinity, 1);
  CHECK_FALSE(run.w.grad().defined());  // moved to the sum
  CHECK_FALSE(run.scaler.step(run.sgd));
  run.scaler.update();
  CHECK(Values{run.scaler.scale_value(0), run.scaler.scale_value(1)} == Values{1024, 512});
  CHECK(run.scaler.loss_scale(0).growth_tracker == 1);
  run.sgd.zero_grad();
  run.backward(infinity, 0), run.backward(1, 1);
  CHECK_FALSE(run.scaler.step(run.sgd));
  run.scaler.update();
  CHECK(Values{run.scaler.scale_value(0), run.scaler.scale_value(1)} == Values{512, 512});
  run.sgd.zero_grad();
  run.backward(1, 0), run.backward(3, 1), run.backward(0.5, 1);
  CHECK(run.scaler.step(run.sgd));
  CHECK(run.w.grad().to_vector<double>() == Values{4.5, 4.5});
  CHECK(run.w.to_vector<double>() == Values{1 - 2.25, 1 - 2.25});  // no step before this one
  run.scaler.update();
  CHECK(Values{run.scaler.scale_value(0), run.scaler.scale_value(1)} == Values{512, 512});
}

TEST_CASE("collecting after unscaling, and losses that do not exist") {
  using doctest::Contains;
  TwoLosses run;
  CHECK_THROWS_WITH_AS(run.scaler.collect(run.sgd, 0), Contains("before scale()"), UsageError);
  CHECK_THROWS_WITH_AS(run.scaler.scale(sum(run.w), 2),
                       Contains("got loss 2, but the scaler has 2"), UsageError);
  CHECK_THROWS_WITH_AS(GradScaler({}, {.losses = 0}), Contains("got 0 losses"), UsageError);
  run.scaler.scale(sum(run.w)).backward();
  run.scaler.unscale(run.sgd);
  CHECK_THROWS_WITH_AS(run.scaler.collect(run.sgd, 0), Contains("every loss first"), UsageError);
}

// --- options and states

TEST_CASE("set_options keeps scale and tracker, and refuses invalid options") {
  const optim::Sgd sgd({ones({2}).set_requires_grad()});
  GradScaler scaler({.init_scale = 1024, .growth_interval = 4});
  scaler.scale(ones({}));
  const auto clean_step = [&] { scaler.report(sgd, zeros({})), scaler.update(); };
  clean_step();
  const auto before = scaler.state_dict();
  for (const Options& bad :
       {Options{.growth_factor = 1}, Options{.backoff_factor = 1}, Options{.growth_interval = 0},
        Options{.min_scale = 2048}, Options{.max_scale = 512}, Options{.hysteresis = 0}})
    CHECK_THROWS_WITH_AS(scaler.set_options(bad), doctest::Contains("set_options]"), UsageError);
  CHECK(same_state(before, scaler.state_dict()));
  scaler.set_options({.init_scale = not_a_number, .growth_factor = 8, .growth_interval = 2});
  CHECK(scaler.scale_value() == 1024);
  CHECK(scaler.loss_scale().growth_tracker == 1);
  clean_step();
  CHECK(scaler.scale_value() == 8192);
}

TEST_CASE("update() to an invalid scale changes nothing") {
  GradScaler scaler({.init_scale = 64});
  scaler.scale(ones({}));
  for (const double bad : {0.0, -1.0, infinity, not_a_number, 1e-40, 1e39}) {
    CHECK_THROWS_WITH_AS(scaler.update(bad), doctest::Contains("update] the scale is"), UsageError);
    CHECK(scaler.scale_value() == 64);
  }
}

TEST_CASE("a disabled scaler passes everything through, also f16 gradients") {
  Tensor w = ones({2}, f16).set_requires_grad();
  optim::Sgd sgd({w}, {.lr = 0.5});
  GradScaler scaler({}, {.enabled = false});
  scaler.scale(sum(w)).backward();
  scaler.unscale(sgd), scaler.collect(sgd, 0), scaler.rescale(sgd, scalar(8));
  CHECK(w.grad().to_vector<double>() == Values{1, 1});
  scaler.load_state_dict({{"anything", zeros({})}});
}

TEST_CASE("the state of several losses, and of hysteresis if it is used") {
  TwoLosses run;
  run.backward(1, 0), run.backward(infinity, 1);
  run.scaler.step(run.sgd), run.scaler.update();
  const optim::NamedTensors state = run.scaler.state_dict();
  CHECK(state.size() == 10);  // no "_hysteresis"
  CHECK(state.at("scale").item() == 2 * state.at("scale.1").item());
  GradScaler other({}, {.losses = 2}), single;
  other.load_state_dict(state);
  CHECK(same_state(other.state_dict(), state));
  CHECK_THROWS_AS(single.load_state_dict(state), UsageError);
  GradScaler patient({.hysteresis = 3}), resumed({.hysteresis = 3});
  patient.scale(ones({}));
  patient.report(run.sgd, ones({})), patient.update();
  CHECK(patient.state_dict().at("_hysteresis").item() == 2);
  resumed.load_state_dict(patient.state_dict());
  CHECK(resumed.loss_scale().overflows_left == 2);
}

TEST_CASE("a state that does not fit is refused, and nothing has changed") {
  GradScaler scaler({.init_scale = 64, .hysteresis = 2});
  const optim::NamedTensors good = GradScaler({.init_scale = 8, .hysteresis = 2}).state_dict();
  const optim::NamedTensors before = copy_of(scaler.state_dict());
  const auto refused = [&](const std::string& entry, const Tensor& value) {
    optim::NamedTensors state = copy_of(good);
    if (value.defined()) state[entry] = value;
    else state.erase(entry);
    const std::string message = MESSAGE_OF(UsageError, scaler.load_state_dict(state));
    CHECK(same_state(before, scaler.state_dict()));
    CHECK(message.starts_with("[GradScaler.load_state_dict] "));
    return message.substr(message.find(']') + 2);
  };
  for (const char* entry :
       {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}) {
    CHECK(refused(entry, {}) ==
          "there is no entry \"" + std::string(entry) +
              "\". Load what a GradScaler with the same number of losses saved.");
    CHECK(refused(entry, zeros({2})) ==
          "the entry \"" + std::string(entry) + "\" is [2] f32. It must have one element.");
    CHECK(refused(entry, scalar(not_a_number, f64)) != "");
    CHECK(refused(entry, scalar(-1, f64)) != "");
  }
  CHECK(refused("scale.1", scalar(1)).starts_with("the entry \"scale.1\" is unknown."));
  CHECK_THROWS_WITH_AS(scaler.load_state_dict({}), doctest::Contains("the state is empty"),
                       UsageError);
  optim::NamedTensors undefined = copy_of(good);
  undefined["scale"] = {};
  CHECK_THROWS_WITH_AS(scaler.load_state_dict(undefined),
                       doctest::Contains("there is no entry \"scale\""), UsageError);
  CHECK(refused("growth_interval", scalar(1.5)) ==
        "growth_interval is 1.5. It must be a whole number, 0 or more.");
  CHECK(refused("_hysteresis", scalar(0.5)) ==
        "_hysteresis is 0.5. It must be a whole number, 0 or more.");
  scaler.load_state_dict(good);
  CHECK(scaler.scale_value() == 8);
}

}  // namespace
}  // namespace halftone::test::grad_scaler_test

// Conditions of the scaler and of the cast cache that no other test checks: several losses, several
// optimizers, views of one storage, empty states, limits of the scale, copies, and the cost of the
// scale itself.

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

// The transition of the loss scale, as tables: "." is a clean step, "x" one that overflows.

namespace halftone::test::loss_scale_test {
namespace {

using amp::HysteresisRule;
using amp::LossScale;
using amp::LossScaleOptions;

/// The scales after every step of a pattern.
std::vector<double> scales(const LossScaleOptions& options, std::string_view pattern) {
  LossScale now{.options = options};
  std::vector<double> result;
  for (const char step : pattern) {
    now = next(now, step == 'x');
    result.push_back(double(now.scale));
  }
  return result;
}
using Scales = std::vector<double>;

TEST_CASE("growth after an interval of clean steps, back-off at once") {
  const LossScaleOptions options{.init_scale = 8, .growth_interval = 3};
  CHECK(scales(options, "......") == Scales{8, 8, 16, 16, 16, 32});
  CHECK(scales(options, "..x...") == Scales{8, 8, 4, 4, 4, 8});
  CHECK(scales(options, "xxx") == Scales{4, 2, 1});
  CHECK(scales({.init_scale = 8, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 1},
               ".x.") == Scales{32, 8, 32});
}

TEST_CASE("the defaults are PyTorch's") {
  const LossScale now;
  CHECK(now.scale == 65536);
  LossScale s = now;
  for (int i = 0; i < 1999; ++i) s = next(s, false);
  CHECK(s.scale == 65536);
  CHECK(next(s, false).scale == 131072);
  CHECK(next(s, true).scale == 32768);
}

TEST_CASE("a static scale does not change") {
  CHECK(scales({.init_scale = 8, .growth_interval = 1, .dynamic = false}, "..xx.") ==
        Scales{8, 8, 8, 8, 8});
}

TEST_CASE("hysteresis, by the three published rules") {
  LossScaleOptions options{.init_scale = 8, .growth_interval = 4, .hysteresis = 2};
  // apex: the second overflow in a row backs off, and any clean step resets the count.
  CHECK(scales(options, "xxx") == Scales{8, 4, 2});
  CHECK(scales(options, "x.x.xx") == Scales{8, 8, 8, 8, 8, 4});
  // Megatron-LM: only growth resets the count.
  options.rule = HysteresisRule::megatron;
  CHECK(scales(options, "x.x.x") == Scales{8, 8, 4, 4, 2});
  CHECK(scales(options, "x....x.x") == Scales{8, 8, 8, 8, 16, 16, 16, 8});
  // DeepSpeed: the same, but the interval counts from the last overflow, growing a step later.
  options.rule = HysteresisRule::deepspeed;
  CHECK(scales(options, "x.x.x") == Scales{8, 8, 4, 4, 2});
  CHECK(scales(options, ".........") == Scales{8, 8, 8, 8, 16, 16, 16, 16, 32});
}

TEST_CASE("lowering the interval below the tracker lets the scale grow at the next clean step") {
  LossScale now{.options = {.init_scale = 8, .growth_interval = 100}};
  for (int i = 0; i < 10; ++i) now = next(now, false);
  now.options.growth_interval = 5;
  CHECK(next(now, false).scale == 16);
}

TEST_CASE("invalid options are refused") {
  const auto message = [](const LossScaleOptions& options) {
    return MESSAGE_OF(UsageError, amp::GradScaler scaler(options));
  };
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               inf = std::numeric_limits<double>::infinity();
  for (const double bad : {0.0, -1.0, nan, inf, 1e300, 1e-300})
    CHECK(message({.init_scale = bad}).find("Use a positive finite number") != std::string::npos);
  for (const double bad : {1.0, 0.5, nan, inf})
    CHECK(message({.growth_factor = bad}).find("growth_factor is") != std::string::npos);
  for (const double bad : {0.0, 1.0, -1.0, nan})
    CHECK(message({.backoff_factor = bad}).find("backoff_factor is") != std::string::npos);
  CHECK(message({.growth_interval = 0}) == "[GradScaler] growth_interval is 0. Use 1 or more.");
  CHECK(message({.min_scale = 1e9}).find("Use 0 <= min_scale <= scale") != std::string::npos);
  CHECK(message({.max_scale = 1}).find("max_scale is 1") != std::string::npos);
  CHECK(message({.hysteresis = 0}) == "[GradScaler] hysteresis is 0. Use 1 or more.");
  CHECK(message({}).empty());
}

}  // namespace
}  // namespace halftone::test::loss_scale_test

// A raw step on gradients of a scaled loss is an error, for every way of scaling. Steps that
// unscale first are allowed.

namespace halftone::test::scaled_step_test {
namespace {

using amp::GradScaler;
using doctest::Contains;

constexpr const char* refusal =
    "[Sgd] the gradient of parameter 0, [2] f32, is of a loss that was multiplied by a loss scale, "
    "and step() would take it as it is. Call training.step(), or scaler.step(optimizer), or "
    "scaler.unscale(optimizer) first.";

struct Scaled {
  Tensor w = ones({2}).set_requires_grad();
  optim::Sgd sgd{{w}, 0.5};
  GradScaler scaler{{.init_scale = 8}};
  void backward() { scaler.scale(sum(w)).backward(); }
  bool moved_by_half() const { return w.to_vector<double>() == std::vector<double>{0.5, 0.5}; }
};

TEST_CASE("an optimizer's own step() refuses gradients of a scaled loss") {
  Scaled s;
  s.backward();
  CHECK(message_of<UsageError>([&] { s.sgd.step(); }) == refusal);
  CHECK(s.w.to_vector<double>() == std::vector<double>{1, 1});
  s.backward();  // accumulated
  CHECK_THROWS_AS(s.sgd.step(), UsageError);
  sum(s.w).backward();  // adding an unscaled gradient does not make the sum right
  CHECK_THROWS_AS(s.sgd.step(), UsageError);
  OwnOptimizer own({s.w});
  CHECK_THROWS_WITH_AS(own.step(), Contains("[Optimizer.step] the gradient of parameter 0"),
                       UsageError);
}

TEST_CASE("steps that handle the loss scale are allowed") {
  SUBCASE("the scaler") {
    Scaled s;
    s.backward();
    CHECK(s.scaler.step(s.sgd));
    CHECK(s.moved_by_half());
  }
  SUBCASE("unscale() before the optimizer's step()") {
    Scaled s;
    s.backward();
    s.scaler.unscale(s.sgd);
    s.sgd.step();
    CHECK(s.moved_by_half());
  }
  SUBCASE("a loop that divides in place by itself") {
    Scaled s;
    s.backward();
    std::vector<Tensor> gradients = s.sgd.gradients();
    optim::scale_gradients(gradients, scalar(1.0 / 8));
    s.sgd.step();
    CHECK(s.moved_by_half());
  }
  SUBCASE("a gradient that is put in its place") {
    Scaled s;
    s.backward();
    s.w.set_grad(s.w.grad() / 8.0);
    s.sgd.step();
    CHECK(s.moved_by_half());
  }
  SUBCASE("a factor") {
    Scaled s;
    s.backward();
    s.sgd.step({.factor = scalar(1.0 / 8)});
    CHECK(s.moved_by_half());
  }
  SUBCASE("zero_grad() and a loss that is not scaled") {
    for (const bool to_none : {true, false}) {
      Scaled s;
      s.backward();
      s.sgd.zero_grad(to_none);
      sum(s.w).backward();
      s.sgd.step();
      CHECK(s.moved_by_half());
    }
  }
  SUBCASE("a scaler that is off") {
    Scaled s;
    GradScaler off({}, {.enabled = false});
    off.scale(sum(s.w)).backward();
    s.sgd.step();
    CHECK(s.moved_by_half());
  }
}

TEST_CASE("gradients of a checkpointed segment are scaled as those around it") {
  Scaled s;
  const Tensor x = ones({2}).set_requires_grad();
  const Tensor y = checkpoint([&](const std::vector<Tensor>& in) { return in[0] * s.w; }, {x});
  s.scaler.scale(sum(y)).backward();
  CHECK_THROWS_AS(s.sgd.step(), UsageError);
}

TEST_CASE("under a strategy that scales the loss, training.step() is the only step") {
  for (const char* name : {"amp-fp16", "o2-fp16"})
    for (const bool fused : {true, false}) {
      CAPTURE(name);
      CAPTURE(fused);
      manual_seed(3);
      nn::Linear model(4, 2);
      optim::AdamW adamw(model.parameters(), {.lr = 1e-2});
      amp::Policy strategy = amp::Policy::named(name);
      strategy.fused_master = fused;
      amp::Training training = amp::apply(strategy, model, adamw);
      const Tensor before = model.weight.clone();
      training.backward(mean(training.forward(model, ones({3, 4}))) * 0.5);
      CHECK_THROWS_WITH_AS(training.optimizer().step(), Contains("Call training.step()"),
                           UsageError);
      if (fused) CHECK_THROWS_AS(adamw.step(), UsageError);
      CHECK(model.weight.to_vector<double>() == before.to_vector<double>());
      CHECK(training.step());
      CHECK(model.weight.to_vector<double>() != before.to_vector<double>());
      training.zero_grad();
      training.backward(mean(training.forward(model, ones({3, 4}))) * 0.5);
      training.clip_grad_norm(1e9);  // a factor of 1
      CHECK(training.step());
    }
}

TEST_CASE("without a loss scale the optimizer's own step() is equivalent") {
  nn::Linear model(4, 2);
  optim::AdamW adamw(model.parameters(), {.lr = 1e-2});
  amp::Training training = amp::apply("amp-bf16", model, adamw);  // by the strategy's name
  CHECK(training.strategy().name == "amp-bf16");
  training.backward(mean(training.forward(model, ones({3, 4}))) * 0.5);
  adamw.step();
  CHECK_THROWS_WITH_AS(amp::apply("amp-bf61", model, adamw), Contains("amp-bf16"), UsageError);
}

}  // namespace
}  // namespace halftone::test::scaled_step_test
