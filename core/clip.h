// The clip of a quantizer: large magnitudes are limited by a bound that follows from the tensor.
#pragma once

#include <span>
#include <string_view>

#include <halftone/core/quantizer.h>

namespace halftone {

/// Returns the bound for the numbers of a tensor; infinity without a clip. NaN and infinite numbers
/// do not count. With n finite numbers x:
///   rms r       f32(r sqrt(sum x^2 / n)), the sum in f64 in the order of `values`
///   quantile q  the magnitude number max(1, ceil(q n)) in ascending order, counted from 1
float clip_bound(const Clip& clip, std::span<const float> values);

/// Limits finite numbers beyond the bound, in place. Others stay.
void clip_values(std::span<float> values, float bound);

/// Throws UsageError in the name of `op` for a multiple that is not positive, a quantile that is
/// not in (0, 1], and for both.
void check_clip(std::string_view op, const Clip& clip);

}  // namespace halftone
