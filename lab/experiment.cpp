// The list of experiments.
#include <halftone/lab/experiment.h>

#include <array>
#include <vector>

#include <halftone/core/error.h>
#include <halftone/lab/experiments/experiments.h>

namespace halftone::lab {

std::span<const Experiment> experiments() {
  using namespace found;
  static const std::array all{e1,  e2,  e3,  e4,  e5,  e6,  e7,  e8,  e9,  e10, e11, e12, e13,
                              e14, e15, e16, e17, e18, e19, e20, e21, e22, e23, e24, e25, e26};
  return all;
}

const Experiment& experiment_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Experiment& experiment : experiments()) {
    if (experiment.name == name) return experiment;
    names.push_back(experiment.name);
  }
  fail_unknown_name("halftone-lab experiment", "experiment", name, names);
}

}  // namespace halftone::lab
