// GradScaler: replays what a real PyTorch showed (tests/fixtures/amp_scaler_fixtures.py), action by
// action, with a table of the deliberate differences; then what PyTorch does not have: several
// losses, set_options(), first_overflow(), and states that are refused.
#include <cmath>
#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

#include "strategy_cases.h"

namespace halftone::testing {
namespace {

using amp::GradScaler;
using amp::LossScaleOptions;
using nlohmann::json;
using Values = std::vector<double>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Where halftone differs on purpose: patches (RFC 7396, null removes) to what PyTorch shows.
/// b: f16 gradients are refused by unscale() only; step() divides them inside the update, in f32.
/// c: a call without gradients is an error of that call alone; the optimizer can go on.
/// d: a lowered growth interval lets the scale grow at once; PyTorch waits for equality forever.
/// f: a load that fails changes nothing; PyTorch keeps what it read before the missing entry.
/// Two more are rules below:
/// a: step() without unscale() hands 1 / scale to the update and leaves the gradients as they are.
/// e: the scale stays where 1 / scale is finite; init_scale is refused where it is not.
const json differences = json::parse(R"({
  "f16_gradients": {
    "3": {"error": null, "stepped": true, "changed": [true], "parameters": [[0.75, -1.5, 0.375]]},
    "4": {"error": null, "growth_tracker": 1}},
  "f16_among_f32_gradients": {
    "3": {"error": null, "stepped": true, "changed": [true, true],
          "parameters": [[0.75, -1.5, 0.375], [0.5, -2, 1.5]]},
    "4": {"error": null, "growth_tracker": 1},
    "5": {"growth_tracker": 1},
    "6": {"growth_tracker": 1},
    "7": {"growth_tracker": 1, "parameters": [[0.5, -1, 0.25], [0.5, -2, 1.5]]},
    "8": {"growth_tracker": 2}},
  "no_gradients_at_all": {
    "3": {"error": null},
    "6": {"error": null, "stepped": true, "changed": [true], "parameters": [[0.75, -1.5, 0.375]]},
    "7": {"error": null, "growth_tracker": 1}},
  "growth_interval_below_the_tracker": {
    "3": {"scale": 65536, "growth_tracker": 0, "result": {
      "scales": [2048, 2048, 2048, 2048, 4096, 4096, 4096, 4096, 8192, 8192, 8192, 8192,
                 16384, 16384, 16384, 16384, 32768, 32768, 32768, 32768,
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
Values numbers(const json& list) {
  Values result;
  for (const json& x : list) result.push_back(number(x));
  return result;
}
/// Equal, NaN to NaN. Numbers are f32 or shorter, where PyTorch's are exact.
bool equal(const Values& a, const Values& b) {
  return std::ranges::equal(a, b, [](double x, double y) {
    return x == y || (std::isnan(x) && std::isnan(y));
  });
}
DType dtype_named(const std::string& name) {
  return name == "f32" ? f32 : name == "f16" ? f16 : bf16;
}

LossScaleOptions options_of(const json& given, LossScaleOptions options = {}) {
  options.init_scale = given.value("init_scale", options.init_scale);
  options.growth_factor = given.value("growth_factor", options.growth_factor);
  options.backoff_factor = given.value("backoff_factor", options.backoff_factor);
  options.growth_interval = given.value("growth_interval", options.growth_interval);
  return options;
}

class Replay {
 public:
  explicit Replay(const json& scenario) {
    const json& options = scenario.at("options");
    scaler_.emplace(options_of(options),
                    amp::ScalerUse{.enabled = options.value("enabled", true)});
    std::vector<std::vector<Tensor>> of_optimizer(2);
    for (const json& p : scenario.at("parameters")) {
      const DType dtype = dtype_named(p.at("dtype"));
      parameters_.push_back(from_vector(numbers(p.at("values")), {3}, dtype).set_requires_grad());
      of_optimizer[p.at("optimizer").get<std::size_t>()].push_back(parameters_.back());
    }
    for (const auto& list : of_optimizer)
      if (!list.empty()) optimizers_.push_back(std::make_unique<optim::Sgd>(list, lr_));
  }

  /// Does an action and compares with `shows`.
  void check(const json& action, const json& shows) {
    const std::vector<Values> before = values(), gradients_before = gradients();
    std::string error;
    stepped_ = false;
    json result;
    try {
      result = run(action);
    } catch (const UsageError& e) { error = e.what(); }
    CAPTURE(error);
    CHECK(error.empty() == !shows.contains("error"));
    CHECK(scaler_->scale_value() == number(shows.at("scale")));
    CHECK(scaler_->loss_scale().growth_tracker == shows.at("growth_tracker"));
    if (shows.contains("result")) check_result(result, shows.at("result"));
    if (shows.contains("parameters")) {
      CHECK(stepped_ == shows.at("stepped"));
      for (std::size_t i = 0; i < parameters_.size(); ++i) {
        CHECK(equal(values()[i], numbers(shows.at("parameters")[i])));
        CHECK(equal(values()[i], before[i]) != shows.at("changed")[i]);
      }
    }
    if (!shows.contains("gradients")) return;
    const bool left_alone = action.at("do") == "step";  // also without difference a: if unscaled
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const json& wanted = shows.at("gradients")[i];
      const Values now = gradients()[i];
      if (left_alone) CHECK(equal(now, gradients_before[i]));
      else CHECK(equal(now, wanted.is_null() ? Values{} : numbers(wanted)));
      if (left_alone) set_grad(i, wanted);  // go on from where PyTorch is
    }
  }

 private:
  std::vector<Values> values() const {
    std::vector<Values> list;
    for (const Tensor& x : parameters_) list.push_back(x.to_vector<double>());
    return list;
  }
  std::vector<Values> gradients() const {
    std::vector<Values> list;
    for (const Tensor& x : parameters_)
      list.push_back(x.grad().defined() ? x.grad().to_vector<double>() : Values{});
    return list;
  }
  void set_grad(std::size_t i, const json& list) {
    Tensor& x = parameters_[i];
    x.set_grad(list.is_null() ? Tensor{} : from_vector(numbers(list), {3}, x.dtype()));
  }

  static void check_result(const json& got, const json& wanted) {
    if (wanted.is_number()) return CHECK(got.get<double>() == doctest::Approx(wanted).epsilon(1e-6));
    CHECK(got.size() == wanted.size());
    for (const auto& [key, value] : wanted.items()) {
      CAPTURE(key);
      REQUIRE(got.contains(key));
      if (value.is_array()) CHECK(equal(numbers(got[key]), numbers(value)));
      else if (key == "dtype") CHECK(got[key] == value);
      else CHECK(equal({number(got[key])}, {number(value)}));
    }
  }

  json run(const json& action) {
    const std::string verb = action.at("do");
    const auto optimizer = [&]() -> optim::Optimizer& {
      return *optimizers_.at(action.at("optimizer").get<std::size_t>());
    };
    if (verb == "scale") {
      const DType dtype = dtype_named(action.value("dtype", "f32"));
      const Tensor y = scaler_->scale(scalar(number(action.at("value")), dtype));
      const double value = y.item();
      return {{"value", std::isfinite(value) ? json(value)
                        : std::isnan(value)  ? json("nan")
                        : value > 0          ? json("inf")
                                             : json("-inf")},
              {"dtype", name(y.dtype())}};
    }
    if (verb == "set_grad") set_grad(action.at("parameter"), action.at("values"));
    else if (verb == "unscale") scaler_->unscale(optimizer());
    else if (verb == "clip")
      return optim::clip_grad_norm(optimizer().parameters(), action.at("max_norm")).item();
    else if (verb == "step") stepped_ = scaler_->step(optimizer());
    else if (verb == "update")
      scaler_->update(action.contains("new_scale") ? std::optional<double>(action["new_scale"])
                                                   : std::nullopt);
    else if (verb.starts_with("set_"))
      scaler_->set_options(options_of({{verb.substr(4), action.at("value")}},
                                      scaler_->loss_scale().options));
    else if (verb == "new_scaler") scaler_.emplace(options_of(action));
    else if (verb == "state_dict") return state();
    else if (verb == "load_state_dict") load(action.at("state"));
    else if (verb == "iterations") return iterations(action.at("overflow"));
    else FAIL("unknown action " << verb);
    return {};
  }

  json state() const {
    json result = json::object();
    for (const auto& [name, x] : scaler_->state_dict()) result[name] = x.item();
    return result;
  }
  void load(const json& state) {
    optim::NamedTensors tensors;
    for (const auto& [name, x] : state.items()) tensors[name] = scalar(x, f64);
    scaler_->load_state_dict(tensors);
  }
  json iterations(const std::string& overflow) {
    json scales, trackers;
    for (const char character : overflow) {
      for (Tensor& x : parameters_) x.set_grad(zeros_like(x.detach()));
      if (character == '1') parameters_[0].set_grad(from({infinity, 0, 0}));
      for (const auto& optimizer : optimizers_)
        CHECK(scaler_->step(*optimizer) == (character == '0'));
      scaler_->update();
      scales.push_back(scaler_->scale_value());
      trackers.push_back(scaler_->loss_scale().growth_tracker);
    }
    return {{"scales", scales}, {"growth_trackers", trackers}};
  }

  const optim::SgdOptions lr_{.lr = 0.5};
  std::optional<GradScaler> scaler_;
  std::vector<Tensor> parameters_;
  std::vector<std::unique_ptr<optim::Sgd>> optimizers_;
  bool stepped_ = false;
};

TEST_CASE("the scaler does what PyTorch's does, action by action, but where it shall not") {
  std::ifstream file(std::string(HALFTONE_FIXTURES) + "/amp_scaler.json");
  const json fixture = json::parse(file);
  CHECK(fixture.at("lr") == 0.5);
  std::size_t patched = 0;
  for (const auto& [scenario_name, scenario] : fixture.at("scenarios").items()) {
    CAPTURE(scenario_name);
    const json patches = differences.value(scenario_name, json::object());
    if (scenario.at("differs")) CHECK_FALSE(patches.empty());
    patched += patches.size();
    if (scenario.at("options").at("init_scale") < smallest_scale) {  // difference e
      CHECK((scenario_name == "shrinking_to_zero" || scenario_name == "inverse_overflows"));
      CHECK_THROWS_WITH_AS(Replay{scenario}, doctest::Contains("Use a positive finite number"),
                           UsageError);
      continue;
    }
    Replay replay(scenario);
    for (std::size_t i = 0; i < scenario.at("actions").size(); ++i) {
      CAPTURE(i);
      const json& action = scenario.at("actions")[i];
      CAPTURE(action.at("do"));
      json shows = action.at("shows");
      if (const auto patch = patches.find(std::to_string(i)); patch != patches.end()) {
        shows.merge_patch(*patch);
        CHECK(shows != action.at("shows"));
      }
      if (scenario_name == "shrinking_from_one") {  // difference e
        shows["scale"] = std::max(number(shows["scale"]), smallest_scale);
        if (i == 1)
          for (json& scale : shows["result"]["scales"])
            scale = std::max(number(scale), smallest_scale);
      }
      replay.check(action, shows);
    }
  }
  CHECK(fixture.at("scenarios").size() == 54);
  CHECK(patched == 13);
}

// --- several losses

struct TwoLosses {
  Tensor w = ones({2}).set_requires_grad();
  optim::Sgd sgd{{w}, {.lr = 0.5}};
  GradScaler scaler{{.init_scale = 1024}, {.losses = 2}};
  /// backward of factor * sum(w) under scale `which`, and its collection.
  void backward(double factor, int which) {
    scaler.scale(sum(w) * factor, which).backward();
    scaler.collect(sgd, which);
  }
  Values weights() const { return w.to_vector<double>(); }
};

TEST_CASE("two losses with a scale each: one overflows, only its scale backs off") {
  TwoLosses run;
  run.backward(1, 0);
  CHECK_FALSE(run.w.grad().defined());  // put aside
  run.backward(infinity, 1);
  CHECK_FALSE(run.scaler.step(run.sgd));
  CHECK(run.weights() == Values{1, 1});
  run.scaler.update();
  CHECK(run.scaler.scale_value(0) == 1024);
  CHECK(run.scaler.scale_value(1) == 512);
  CHECK(run.scaler.loss_scale(0).growth_tracker == 1);
  CHECK(run.scaler.loss_scale(1).growth_tracker == 0);
  run.sgd.zero_grad();
  run.backward(1, 0), run.backward(3, 1), run.backward(0.5, 1);
  CHECK(run.scaler.step(run.sgd));
  CHECK(run.w.grad().to_vector<double>() == Values{4.5, 4.5});
  CHECK(run.weights() == Values{1 - 2.25, 1 - 2.25});
  run.scaler.update();
  CHECK(run.scaler.loss_scale(1).growth_tracker == 1);
}

TEST_CASE("collecting after unscaling or stepping, and losses that are not there") {
  TwoLosses run;
  CHECK_THROWS_WITH_AS(run.scaler.collect(run.sgd, 0),
                       doctest::Contains("[GradScaler.collect] called before scale()"), UsageError);
  CHECK_THROWS_WITH_AS(run.scaler.scale(sum(run.w), 2),
                       doctest::Contains("there is no loss 2 among 2"), UsageError);
  CHECK_THROWS_AS(run.scaler.scale_value(-1), UsageError);
  run.scaler.scale(sum(run.w)).backward();
  run.scaler.unscale(run.sgd);
  CHECK_THROWS_WITH_AS(run.scaler.collect(run.sgd, 0), doctest::Contains("Collect every loss first"),
                       UsageError);
  CHECK(run.scaler.step(run.sgd));
  CHECK_THROWS_AS(run.scaler.collect(run.sgd, 0), UsageError);
  CHECK_THROWS_WITH_AS(GradScaler({}, {.losses = 0}), doctest::Contains("got 0 losses"), UsageError);
}

TEST_CASE("first_overflow: the position among the gradients, until update()") {
  Tensor a = ones({2}).set_requires_grad(), b = ones({3}).set_requires_grad(),
         c = ones({2}).set_requires_grad();
  optim::Sgd sgd({a, b, c}, {.lr = 1});
  GradScaler scaler;
  const auto backward = [&] { scaler.scale(sum(a) + sum(b) * infinity + sum(c) * infinity).backward(); };
  CHECK_FALSE(scaler.first_overflow(sgd));
  backward();
  SUBCASE("unscale") { scaler.unscale(sgd); }
  SUBCASE("step") { CHECK_FALSE(scaler.step(sgd)); }
  CHECK(scaler.first_overflow(sgd) == std::optional<std::size_t>(1));
  a.set_grad({});  // gradients() would have b first now, but the check is over
  CHECK(scaler.first_overflow(sgd) == std::optional<std::size_t>(1));
  scaler.update();
  CHECK_FALSE(scaler.first_overflow(sgd));
}
