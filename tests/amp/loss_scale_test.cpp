// The transition of the loss scale, as tables: "." is a clean step, "x" one that overflows.
#include <cmath>
#include <limits>

#include "cases.h"

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
    try {
      amp::GradScaler scaler(options);
    } catch (const UsageError& error) { return std::string(error.what()); }
    return std::string();
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
