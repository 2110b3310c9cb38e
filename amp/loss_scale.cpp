// The transition, and what options make sense.
#include <halftone/amp/loss_scale.h>

#include <algorithm>
#include <cmath>

#include <halftone/core/error.h>

namespace halftone::amp {

namespace {
/// scale * factor within the limits, rounded once; the scale itself where that would be infinite or
/// too small to divide by.
float moved(const LossScale& now, double factor) {
  const double wanted =
      std::clamp(double(now.scale) * factor, now.options.min_scale, now.options.max_scale);
  const auto moved = float(wanted);
  const bool usable = std::isfinite(moved) && moved >= std::numeric_limits<float>::min();
  return usable ? moved : now.scale;
}

/// Whether this clean step, the tracker not yet advanced, completes an interval.
bool completes_interval(const LossScale& now) {
  const int64_t interval = now.options.growth_interval;
  if (now.options.rule == HysteresisRule::deepspeed && now.options.hysteresis > 1)
    return now.growth_tracker > 0 && now.growth_tracker % interval == 0;
  return now.growth_tracker + 1 >= interval;
}
}  // namespace

LossScale next(LossScale now, bool overflowed) {
  const LossScaleOptions& o = now.options;
  if (!o.dynamic) return now;
  const bool by_modulus = o.rule == HysteresisRule::deepspeed && o.hysteresis > 1;
  if (overflowed) {
    now.growth_tracker = 0;
    now.overflows_left = std::max(now.overflows_left - 1, 0);
    if (now.overflows_left == 0) now.scale = moved(now, o.backoff_factor);
    return now;
  }
  const bool grows = completes_interval(now);
  if (grows) now.scale = moved(now, o.growth_factor);
  now.growth_tracker = grows && !by_modulus ? 0 : now.growth_tracker + 1;
  if (grows || o.rule == HysteresisRule::apex) now.overflows_left = o.hysteresis;
  return now;
}

void LossScaleOptions::check(std::string_view where) const {
  const auto usable = [](double x) {
    return std::isfinite(float(x)) && float(x) >= std::numeric_limits<float>::min();
  };
  if (!usable(init_scale))
    fail<UsageError>(where, "the scale is ", init_scale,
                     ". Use a positive finite number, best a power of two.");
  if (!(growth_factor > 1 && std::isfinite(growth_factor)))
    fail<UsageError>(where, "growth_factor is ", growth_factor, ". Use a number above 1.");
  if (!(backoff_factor > 0 && backoff_factor < 1))
    fail<UsageError>(where, "backoff_factor is ", backoff_factor,
                     ". Use a number between 0 and 1.");
  if (growth_interval < 1)
    fail<UsageError>(where, "growth_interval is ", growth_interval, ". Use 1 or more.");
  if (!(min_scale >= 0 && min_scale <= max_scale && min_scale <= init_scale &&
        init_scale <= max_scale))
    fail<UsageError>(where, "min_scale is ", min_scale, ", max_scale is ", max_scale,
                     ", the scale is ", init_scale, ". Use 0 <= min_scale <= scale <= max_scale.");
  if (hysteresis < 1) fail<UsageError>(where, "hysteresis is ", hysteresis, ". Use 1 or more.");
}

}  // namespace halftone::amp
