// The numbers of a training by their names, as std::map has them, with an error that says which
// names there are.
#pragma once

#include <map>
#include <string>

#include <halftone/core/error.h>

namespace halftone::train {

/// "train/loss", "val/top1", ... and the last number of each.
struct MetricValues : std::map<std::string, double> {
  MetricValues() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): it is such a map
  MetricValues(std::map<std::string, double> values)
      : std::map<std::string, double>(std::move(values)) {}

  /// The number of that name. Throws UsageError with the names that there are.
  double at(const std::string& name) const {
    const auto found = find(name);
    if (found != end()) return found->second;
    std::string names;
    bool trained = false, validated = !name.starts_with("val/");
    for (const auto& [known, value] : *this) {
      names += (names.empty() ? "" : ", ") + known;
      trained = trained || known.starts_with("train/");
      validated = validated || known.starts_with("val/");
    }
    fail<UsageError>("metrics", "there is no number \"", name,
                     "\" among: ", names.empty() ? "none" : names,
                     validated || !trained
                         ? ". Ask for one of these."
                         : ". Those of val/ come from validation: pass fit() a second loader.");
  }
};

}  // namespace halftone::train
