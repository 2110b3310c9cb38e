// The transition of the loss scale, on plain numbers. A backend runs it on the device, so that no
// step waits to learn whether it overflowed. amp/loss_scale/loss_scale.h offers it as a pure
// function. An overflow lowers the scale, a long run of clean steps raises it. (The idea:
// Micikevicius et al. 2018, section 3.2; the numbers: PyTorch.)
#pragma once

#include <cstdint>
#include <limits>

#include <halftone/core/host_device.h>

namespace halftone {

/// When a scaler that tolerates `hysteresis` - 1 overflows before it backs off forgets them: at any
/// clean step (apex), when the scale grows (Megatron-LM), or at growth with the interval counted
/// from the last overflow: then the first growth comes a step later (DeepSpeed).
enum class HysteresisRule : uint8_t { apex, megatron, deepspeed };

/// The constants of a scaler; the fields are those of amp::LossScaleOptions.
struct LossScaleRule {
  double growth_factor = 2, backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  double min_scale = 0, max_scale = std::numeric_limits<double>::infinity();
  int32_t hysteresis = 1;
  HysteresisRule forgets = HysteresisRule::apex;
  bool dynamic = true;
};

/// The state of a scaler, which changes from step to step.
struct LossScaleState {
  float scale = 65536;
  int64_t growth_tracker = 0;  // clean steps since the scale last changed
  int32_t overflows_left = 1;  // until it backs off
};

namespace detail {
/// Returns scale * factor within the limits, rounded once; the scale itself if the result would be
/// infinite or too small to divide by.
HT_HD float moved_scale(const LossScaleRule& rule, float scale, double factor) {
  const double free = double(scale) * factor;
  const double wanted =
      free < rule.min_scale ? rule.min_scale : (rule.max_scale < free ? rule.max_scale : free);
  const auto moved = float(wanted);
  const bool usable =
      moved >= std::numeric_limits<float>::min() && moved <= std::numeric_limits<float>::max();
  return usable ? moved : scale;
}
}  // namespace detail

/// Returns the state after a step that overflowed, or did not. The scale never grows to infinity,
/// nor shrinks so far that 1 / scale is infinite. As PyTorch's _amp_update_scale_, except that the
/// scale still grows after its interval was lowered (PyTorch waits for equality).
HT_HD LossScaleState next(LossScaleState now, const LossScaleRule& rule, bool overflowed) {
  if (!rule.dynamic) return now;
  const bool by_modulus = rule.forgets == HysteresisRule::deepspeed && rule.hysteresis > 1;
  if (overflowed) {
    now.growth_tracker = 0;
    now.overflows_left = now.overflows_left > 1 ? now.overflows_left - 1 : 0;
    if (now.overflows_left == 0)
      now.scale = detail::moved_scale(rule, now.scale, rule.backoff_factor);
    return now;
  }
  const bool grows = by_modulus
                         ? now.growth_tracker > 0 && now.growth_tracker % rule.growth_interval == 0
                         : now.growth_tracker + 1 >= rule.growth_interval;
  if (grows) now.scale = detail::moved_scale(rule, now.scale, rule.growth_factor);
  now.growth_tracker = grows && !by_modulus ? 0 : now.growth_tracker + 1;
  if (grows || rule.forgets == HysteresisRule::apex) now.overflows_left = rule.hysteresis;
  return now;
}

}  // namespace halftone
