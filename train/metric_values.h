// The numbers of a training by name: a std::map whose at() throws an error that lists the names.
#pragma once

#include <map>
#include <string>

#include <halftone/core/error.h>

namespace halftone::train {

/// The last number of each name: "train/loss", "val/top1", ...
struct MetricValues : std::map<std::string, double> {
  MetricValues() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): it is a map of numbers
  MetricValues(std::map<std::string, double> values)
      : std::map<std::string, double>(std::move(values)) {}

  /// Returns the number of a name. Throws UsageError that lists the known names.
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
