// GradScaler: replays a real PyTorch (tests/fixtures/pytorch/amp_scaler_fixtures.py), with a table
// of the deliberate differences; then features that PyTorch does not have: several losses,
// set_options(), first_overflow(), and states that are refused.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

#include "../fixtures_directory.h"
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
  run.backward(1, 0), run.backward(3, 1), run.backward(0.5, 1);
  CHECK(run.scaler.step(run.sgd));
  CHECK(run.w.grad().to_vector<double>() == Values{4.5, 4.5});
  CHECK(run.w.to_vector<double>() == Values{1 - 2.25, 1 - 2.25});  // no step before this one
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

TEST_CASE("first_overflow after collect()") {
  TwoLosses run;
  run.backward(infinity, 1);
  CHECK(run.scaler.first_overflow(run.sgd) == std::optional<std::size_t>(0));
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
    std::string message;
    try {
      scaler.load_state_dict(state);
    } catch (const UsageError& error) { message = error.what(); }
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
  CHECK(refused("growth_interval", scalar(1.5)) ==
        "growth_interval is 1.5. It must be a whole number, 0 or more.");
  CHECK(refused("_hysteresis", scalar(0.5)) ==
        "_hysteresis is 0.5. It must be a whole number, 0 or more.");
  scaler.load_state_dict(good);
  CHECK(scaler.scale_value() == 8);
}

}  // namespace
}  // namespace halftone::test::grad_scaler_test
