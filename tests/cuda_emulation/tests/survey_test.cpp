// Surveys on the GPU: the reference's exact counts, its sums up to the order of addition, and rows
// that accumulate over calls.
#include "../../kernels/against_reference.h"

#include <limits>

#include <halftone/core/formats/quantizer.h>
#include <halftone/core/formats/survey.h>

namespace halftone::test {
namespace {

Survey surveyed(const Tensor& x, const Quantizer* quantizer, Device device) {
  const Tensor row = new_survey_row(device), here = x.to(device);
  for (int twice = 0; twice < 2; ++twice) {
    if (!quantizer) survey(here, here, nullptr, row);
    else quantized(here, {.quantizer = *quantizer, .survey = row});
  }
  return Survey::from(row);
}

void check_equal(const Survey& got, const Survey& wanted) {
  CHECK(got.binade == wanted.binade);
  const SurveySums &a = got.sums, &b = wanted.sums;
  for (const auto& [x, y] : {std::pair(a.count, b.count),
                             {a.zeros, b.zeros},
                             {a.infinite, b.infinite},
                             {a.nan, b.nan},
                             {a.to_zero, b.to_zero},
                             {a.subnormal, b.subnormal},
                             {a.saturated, b.saturated},
                             {a.to_infinity, b.to_infinity},
                             {a.changed, b.changed},
                             {a.largest, b.largest},
                             {a.smallest, b.smallest}})
    CHECK(x == y);
  for (const auto& [x, y] : {std::pair(a.sum_x2, b.sum_x2),
                             {a.sum_e2, b.sum_e2},
                             {a.sum_abs_x, b.sum_abs_x},
                             {a.sum_relative, b.sum_relative},
                             {a.dead_x2, b.dead_x2},
                             {a.saturated_x2, b.saturated_x2},
                             {a.saturated_e2, b.saturated_e2},
                             {a.grid_x2, b.grid_x2},
                             {a.grid_e2, b.grid_e2}})
    CHECK(x == doctest::Approx(y).epsilon(1e-12));
  CHECK(std::abs(a.grid_xe - b.grid_xe) <= 1e-12 * b.grid_x2);
  CHECK(std::abs(a.saturated_xe - b.saturated_xe) <= 1e-12 * b.saturated_x2);
  CHECK(std::abs(a.sum_e - b.sum_e) <= 1e-12 * b.sum_abs_x);
}

TEST_CASE("kernels: surveys count as the reference does") {
  std::vector<std::optional<Quantizer>> all{std::nullopt};
  for (const char* name : {"e4m3", "e5m2", "mxfp8", "mxfp4", "nvfp4", "fp8_tensor", "fp8_block"})
    all.push_back(quantizer_named(name));
  for (const char* name : {"e4m3", "mxfp4", "nvfp4"}) {
    Quantizer clipped = *quantizer_named(name);
    clipped.clip.rms = 1;
    all.push_back(clipped);
    if (clipped.scaling.tensor_level) clipped.scaling.targets = {6, 4}, all.push_back(clipped);
  }
  for (const DType dtype : {f32, bf16})
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 37}, Shape{150, 131}, Shape{2, 3, 40}})
      for (const bool special : {false, true})
        for (const std::optional<Quantizer>& quantizer : all) {
          if (quantizer && !quantizer->exact_in(dtype)) continue;
          INFO(shape, " ", dtype, " ", quantizer ? described(*quantizer) : "as it is");
          Tensor x = randn(shape);
          for (int64_t i = 0; i < x.numel(); ++i)
            x.data<float>()[i] *= std::ldexp(1.0f, int(i * 7 % 31) - 20);
          if (special && x.numel() > 3) {
            x.data<float>()[0] = std::numeric_limits<float>::infinity();
            x.data<float>()[1] = std::numeric_limits<float>::quiet_NaN();
            x.data<float>()[2] = -0.0f;
          }
          x = x.to(dtype);
          const CpuBackendScope reference("reference");
          check_equal(surveyed(x, quantizer ? &*quantizer : nullptr, Device::cuda()),
                      surveyed(x, quantizer ? &*quantizer : nullptr, Device::cpu()));
        }
}

}  // namespace
}  // namespace halftone::test
