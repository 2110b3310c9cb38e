// halftone-lab picture: trains a small model and draws one effect of a short format.
// docs/amp_from_the_inside.md shows the drawings.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/lab/workload.h>

namespace halftone::lab {

struct PictureOptions {
  std::string name;      // one of picture_names()
  std::string workload;  // the workload to train; "loss-scale" has its own
  std::filesystem::path output{};
};

/// exponents: sizes of weights, activations and gradients, with the ranges of formats.
/// loss-scale: the shares that become 0 and infinity in f16 at each loss scale, and the accuracy.
/// bytes: what fills the memory at the peak of each event of a step, under four strategies.
/// updates: sizes of updates relative to the spacing of the weights.
/// staircase: one weight over the steps, in f32, in bf16, and in bf16 with a remainder.
std::span<const std::string_view> picture_names();

/// Writes the drawing as SVG. Returns the exit code. Throws Error if the file cannot be written or
/// a name is unknown.
int run_picture(const PictureOptions& options, const std::vector<NamedWorkload>& own);

}  // namespace halftone::lab
