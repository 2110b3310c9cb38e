// Experiments: published results about short numbers. Each is a program of one page that prints its
// results and whether they match the publication. `halftone-lab experiment E3` runs one.
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

/// Returns all experiments, by number.
std::span<const Experiment> experiments();
/// Returns the experiment with this name. Throws UsageError for other names, and suggests the
/// nearest.
const Experiment& experiment_named(std::string_view name);

}  // namespace halftone::lab
