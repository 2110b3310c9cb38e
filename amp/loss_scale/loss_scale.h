// The loss scale as a value: the options that users choose, and the transition as a pure function.
// Its arithmetic is core/loss_scale.h, which devices run, too.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

#include <halftone/core/loss_scale.h>

namespace halftone::amp {

using halftone::HysteresisRule;

struct LossScaleOptions {
  double init_scale = 65536, growth_factor = 2, backoff_factor = 0.5;
  int64_t growth_interval = 2000;  // clean steps until the scale grows
  // --- beyond PyTorch, off by default
  double min_scale = 0;
  double max_scale = std::numeric_limits<double>::infinity();  // apex: 2^24
  int hysteresis = 1;  // overflows in a row until the scale backs off
  HysteresisRule rule = HysteresisRule::apex;
  bool dynamic = true;  // false: the scale stays; overflows still skip the step

  /// Throws UsageError, in the name of `where`, for scales that are not positive and finite, and
  /// for factors and intervals out of range.
  void check(std::string_view where) const;
  /// All but init_scale, as backends take it.
  LossScaleRule transition() const;
};

struct LossScale {
  LossScaleOptions options{};
  float scale = float(options.init_scale);
  int64_t growth_tracker = 0;               // clean steps since it last changed
  int overflows_left = options.hysteresis;  // until it backs off
};

/// The scale after a step that overflowed, or did not.
LossScale next(LossScale now, bool overflowed);

}  // namespace halftone::amp
