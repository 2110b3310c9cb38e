// The loss scale as a value, and its transition as a pure function. Overflow lowers the scale, and
// a long run of clean steps raises it. A backend runs the transition on its device, so that no step
// waits to learn whether it overflowed. (Method: Micikevicius et al. 2018, section 3.2; default
// numbers: torch.amp.GradScaler.)
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include <halftone/core/language.h>

namespace halftone {

/// When a scaler forgets the overflows that it saw; with `hysteresis` n it tolerates n - 1 of them
/// before it backs off. apex: at any clean step. megatron: when the scale grows. deepspeed: the
/// same, but if n > 1 the interval starts at the last overflow: the first growth is a step later.
enum class HysteresisRule : uint8_t { apex, megatron, deepspeed };

/// The options that users choose.
struct LossScaleOptions {
  double init_scale = 65536, growth_factor = 2, backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // clean steps until the scale grows
  // --- beyond PyTorch, off by default
  double min_scale = 0;
  double max_scale = std::numeric_limits<double>::infinity();  // apex: 2^24
  int hysteresis = 1;  // overflows until the scale backs off; `rule` says when they are forgotten
  HysteresisRule rule = HysteresisRule::apex;
  bool dynamic = true;  // false: the scale stays; overflows still skip the step
  bool operator==(const LossScaleOptions&) const = default;

  /// Throws UsageError, in the name of `where`, if init_scale is not positive and finite or not
  /// between min_scale and max_scale, and if a factor, the interval or hysteresis is out of range.
  void check(std::string_view where) const;
};

struct LossScale {
  LossScaleOptions options{};
  float scale = float(options.init_scale);
  int64_t growth_tracker = 0;               // clean steps since the last overflow or growth
  int overflows_left = options.hysteresis;  // until the scale backs off
};

namespace detail {
/// Returns scale * factor, limited to min_scale and max_scale and rounded once; or `scale` if that
/// would be infinite or too small to divide by.
HT_HD float moved_scale(const LossScaleOptions& options, float scale, double factor) {
  const double free = double(scale) * factor;
  const double wanted = free < options.min_scale
                            ? options.min_scale
                            : (options.max_scale < free ? options.max_scale : free);
  const auto moved = float(wanted);
  const bool usable =
      moved >= std::numeric_limits<float>::min() && moved <= std::numeric_limits<float>::max();
  return usable ? moved : scale;
}
}  // namespace detail

/// Returns the loss scale after a step. The scale never grows to infinity, and 1 / scale is always
/// finite. As PyTorch's _amp_update_scale_, with one difference: after growth_interval was lowered
/// below the tracker the scale grows at the next clean step (PyTorch waits for equality).
HT_HD LossScale next(LossScale now, bool overflowed) {
  const LossScaleOptions& options = now.options;
  if (!options.dynamic) return now;
  const bool by_modulus = options.rule == HysteresisRule::deepspeed && options.hysteresis > 1;
  if (overflowed) {
    now.growth_tracker = 0;
    now.overflows_left = now.overflows_left > 1 ? now.overflows_left - 1 : 0;
    if (now.overflows_left == 0)
      now.scale = detail::moved_scale(options, now.scale, options.backoff_factor);
    return now;
  }
  const bool grows =
      by_modulus ? now.growth_tracker > 0 && now.growth_tracker % options.growth_interval == 0
                 : now.growth_tracker + 1 >= options.growth_interval;
  if (grows) now.scale = detail::moved_scale(options, now.scale, options.growth_factor);
  now.growth_tracker = grows && !by_modulus ? 0 : now.growth_tracker + 1;
  if (grows || options.rule == HysteresisRule::apex) now.overflows_left = options.hysteresis;
  return now;
}

}  // namespace halftone
