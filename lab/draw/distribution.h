// Sizes as drawings show them: how many numbers lie in which binade, beside what formats hold.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/lab/draw/svg.h>

namespace halftone::lab {

/// Whose ranges stand above histograms of sizes.
inline constexpr std::string_view shown_formats[] = {"f16", "bf16", "e4m3", "e5m2"};
/// From the smallest normal number to the largest, in log2; paler down to the smallest subnormal.
std::vector<svg::Range> ranges_of_formats();

/// A staircase in percent of the sum of `counts`, whose first is that of [lowest, lowest + 1): from
/// the first to the last that has at least the share `visible` of it. No points for a sum of 0.
svg::Curve distribution(std::string name, std::span<const double> counts, int lowest, int style,
                        double visible = 0);

}  // namespace halftone::lab
