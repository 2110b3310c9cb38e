// Means and deviations as callers give them: one value per channel, or none for the usual ones.
#pragma once

#include <string_view>
#include <vector>

#include <halftone/core/error.h>

namespace halftone::data {

/// `values`, one per channel; `otherwise` for each channel where they are empty. Throws UsageError
/// in the name of `caller` for another number of them; `what` they are ("mean") is in its text.
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
