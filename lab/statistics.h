// Summaries of numbers from several runs.
#pragma once

#include <vector>

namespace halftone::lab {

/// Returns the middle number; the mean of the two middle ones if the count is even; NaN for none.
double median(std::vector<double> numbers);

/// Mean and half width of a 95 % interval of Student's t; infinite for fewer than two numbers.
struct Interval {
  double mean = 0, half = 0;
};
Interval interval_of(const std::vector<double>& numbers);

}  // namespace halftone::lab
