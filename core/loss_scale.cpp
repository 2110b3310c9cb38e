// The check of a loss scale's options.
#include <halftone/core/loss_scale.h>

#include <cmath>

#include <halftone/core/error.h>

namespace halftone {

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
  if (!(min_scale >= 0 && min_scale <= init_scale && init_scale <= max_scale))
    fail<UsageError>(where, "min_scale is ", min_scale, ", max_scale is ", max_scale,
                     ", the scale is ", init_scale, ". Use 0 <= min_scale <= scale <= max_scale.");
  if (hysteresis < 1) fail<UsageError>(where, "hysteresis is ", hysteresis, ". Use 1 or more.");
}

}  // namespace halftone
