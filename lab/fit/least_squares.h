// The constants of a law that fit rows best.
#pragma once

#include <span>
#include <vector>

#include <halftone/lab/fit/law.h>

namespace halftone::lab {

/// Returns log(law / loss) of a row: the relative error of a law.
double relative_error(const Law& law, std::span<const double> constants, const LawRow& row);

/// Returns the positive constants with the least sum of squared relative errors over the rows, by
/// Levenberg and Marquardt's method on their logarithms, from `start` and, with `thorough`, from
/// four more starting points. Throws UsageError in a build without Eigen, and for fewer rows than
/// constants.
std::vector<double> fitted(const Law& law, std::span<const LawRow> rows,
                           std::span<const double> start, bool thorough = false);

}  // namespace halftone::lab
