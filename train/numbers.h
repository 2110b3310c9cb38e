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

/// The entries whose names begin so, without that beginning.
template <class T>
std::map<std::string, T> part_of(const std::map<std::string, T>& all,
                                 const std::string& beginning) {
  std::map<std::string, T> part;
  for (auto at = all.lower_bound(beginning); at != all.end() && at->first.starts_with(beginning);
       ++at)
    part[at->first.substr(beginning.size())] = at->second;
  return part;
}

}  // namespace halftone::train
