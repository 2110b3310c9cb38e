// Sizes of numbers for drawings: how many numbers each binade has, and the ranges of formats.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/lab/draw/svg.h>

namespace halftone::lab {

/// The formats whose ranges are drawn above histograms of sizes.
inline constexpr std::string_view shown_formats[] = {"f16", "bf16", "e4m3", "e5m2"};
/// Returns the range of each shown format in log2, from the smallest normal number to the largest;
/// the paler part goes down to the smallest subnormal. `own` names one more format; "": none.
std::vector<svg::Range> ranges_of_formats(std::string_view own = "");

/// Returns a staircase in percent of the sum of `counts`. counts[0] is for [lowest, lowest + 1).
/// The curve starts at the first bin that has at least the share `visible` of the sum, and ends at
/// the last one. It has no points if the sum is 0.
svg::Curve distribution(std::string name, std::span<const double> counts, int lowest, int style,
                        double visible = 0);

}  // namespace halftone::lab
