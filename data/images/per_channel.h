// Means and deviations given by callers: one value per channel, or none for the default.
#pragma once

#include <string_view>
#include <vector>

#include <halftone/core/error.h>

namespace halftone::data {

/// Returns `values`, one per channel; if empty, `otherwise` for each channel. Throws UsageError in
/// the name of `caller` for another number of values; its text has `what` they are ("mean").
inline std::vector<double> per_channel(std::string_view caller, std::string_view what,
                                       std::vector<double> values, double otherwise,
                                       int64_t channels) {
  if (values.empty()) values.assign(std::size_t(channels), otherwise);
  if (int64_t(values.size()) != channels)
    fail<UsageError>(caller, values.size(), " values of ", what, " for images of ", channels,
                     " channels. Give one value per channel.");
  return values;
}

}  // namespace halftone::data
