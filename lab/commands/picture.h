// halftone-lab picture: what a short format does, in one drawing each, of a training that is run
// for it. docs/amp_from_the_inside.md shows them.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/lab/workloads/workload.h>

namespace halftone::lab {

struct PictureOptions {
  std::string name;      // one of picture_names()
  std::string workload;  // which is trained; "loss-scale" has one of its own
  std::filesystem::path output{};
};

/// exponents: sizes of weights, activations and gradients beside the ranges of formats.
/// loss-scale: what each loss scale loses to 0 and to infinity in f16, and the accuracy.
/// bytes: what the memory holds at its peak in each event of a step, under three strategies.
/// updates: sizes of updates beside the spacing of the weights.
/// staircase: one weight over the steps, in f32, in bf16, and in bf16 with a remainder.
std::span<const std::string_view> picture_names();

/// Writes the drawing, an SVG. The exit code. Throws Error for what cannot be written or does not
/// exist.
int run_picture(const PictureOptions& options, const std::vector<NamedWorkload>& own);

}  // namespace halftone::lab
