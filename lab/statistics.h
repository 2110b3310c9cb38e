// Summaries of numbers from several runs.
#pragma once

#include <vector>

namespace halftone::lab {

/// The number in the middle; of an even count the mean of the two there; NaN of none.
double median(std::vector<double> numbers);

/// Mean and half width of a 95 % interval of Student's t; infinite for fewer than two numbers.
struct Interval {
  double mean = 0, half = 0;
};
Interval interval_of(const std::vector<double>& numbers);

}  // namespace halftone::lab
