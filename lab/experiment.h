// Experiments: published results about short numbers, each as a program of a page that prints what
// it found and whether that is what was published. `halftone-lab experiment E3` runs one.
#pragma once

#include <span>
#include <string_view>

#include <halftone/lab/findings.h>

namespace halftone::lab {

struct Experiment {
  std::string_view name;   // "E3"
  std::string_view claim;  // one or two sentences, with their source
  void (*run)(Findings& findings);
};

/// All of them, by number.
std::span<const Experiment> experiments();
/// Throws UsageError for other names, with the nearest.
const Experiment& experiment_named(std::string_view name);

}  // namespace halftone::lab
