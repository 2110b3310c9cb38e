// The loss scale as a value, and its transition as a pure function: overflow halves it, a long run
// of clean steps doubles it. (The idea: Micikevicius et al. 2018, section 3.2; the numbers:
// PyTorch.)
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>

namespace halftone::amp {

/// When a scaler that tolerates `hysteresis` - 1 overflows before it backs off forgets those it
/// saw: at any clean step (apex), when the scale grows (Megatron-LM), or likewise but counting the
/// interval from the last overflow on, so that the first growth comes a step later (DeepSpeed).
enum class HysteresisRule : uint8_t { apex, megatron, deepspeed };

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
};

struct LossScale {
  LossScaleOptions options{};
  float scale = float(options.init_scale);
  int64_t growth_tracker = 0;               // clean steps since it last changed
  int overflows_left = options.hysteresis;  // until it backs off
};

/// The scale after a step that overflowed, or did not. It never grows to infinity, nor shrinks so
/// far that 1 / scale is infinite. As PyTorch's _amp_update_scale_, but that a lowered interval
/// still lets it grow (PyTorch waits for equality).
LossScale next(LossScale now, bool overflowed);

}  // namespace halftone::amp
