// Interpolation against PyTorch, also in bf16: tests/fixtures/pytorch/function_fixtures.py has the
// same options.
#include "fixture.h"

namespace halftone::test::resize_test {
namespace {

Call interpolate_with(InterpolateOptions options) {
  return [options](const Inputs& in) { return interpolate(in["x"], options); };
}

}  // namespace

TEST_CASE("pytorch: interpolation") {
  const auto cases = load_cases("interpolate");
  const std::pair<std::string, InterpolateOptions> sizes[]{
      {"doubled", {.scale_factor = 2.0}},
      {"to_size", {.size = Pair{7, 9}}},
      {"smaller", {.size = Pair{2, 3}}},
      {"factors", {.scale_factor = Factors{1.5, 2.75}}},
      {"shrunk", {.scale_factor = Factors{0.6, 0.45}}},
      {"to_one", {.size = 1}}};
  Calls table{{"nearest_many", interpolate_with({.size = Pair{31, 50}})}};
  for (const auto& [name, size] : sizes) {
    InterpolateOptions options = size;
    table["nearest_" + name] = interpolate_with(options);
    options.mode = Interpolation::bilinear;
    table["bilinear_" + name] = interpolate_with(options);
    options.align_corners = true;
    table["corners_" + name] = interpolate_with(options);
  }
  CHECK(forgotten(cases, table) == "");
  compare_all(cases, table);
  for (const auto& [name, compute] : table) {
    CAPTURE(name);
    compare_case(cases.at(name), compute, bf16);
  }
}

}  // namespace halftone::test::resize_test
