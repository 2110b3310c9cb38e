// Reading numbers back from a checkpoint: whatever is in it, they are numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>

namespace halftone::train {

/// The number of that name, or 0.
inline double number_in(const std::map<std::string, double>& numbers, const std::string& name) {
  const auto found = numbers.find(name);
  return found == numbers.end() ? 0 : found->second;
}

/// A count that was kept as a number, up to 2^53, from where on doubles have gaps; 0 for NaN and
/// below.
inline int64_t count_in(const std::map<std::string, double>& numbers, const std::string& name) {
  const double value = number_in(numbers, name);
  return std::isnan(value) ? 0 : int64_t(std::clamp(value, 0.0, 0x1p53));
}

}  // namespace halftone::train
