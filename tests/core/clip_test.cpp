// Clips of quantizers: bounds by hand, the order of the steps, surveys whose parts add up, and
// policy files that have them.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <halftone/autograd/ops.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/core/formats/block_scale.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/formats/survey.h>
#include <halftone/policy/policy_file.h>

#include "../support.h"
#include "clip_cases.h"
#include "policy/policy_cases.h"

namespace halftone::test::clip_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

Quantizer with_clip(std::string_view name, const Clip& clip) {
  Quantizer quantizer = *quantizer_named(name);
  quantizer.clip = clip;
  check_quantizer("test", quantizer);
  return quantizer;
}

TEST_CASE("bounds of clips, by hand") {
  const std::vector<float> x{3, -4, nan, 0, infinity, 5, -infinity};
  CHECK(clip_bound({}, x) == infinity);
  CHECK(clip_bound({.rms = 2}, x) == float(2 * std::sqrt(50.0 / 4)));
  // The finite magnitudes are 0 3 4 5.
  CHECK(clip_bound({.quantile = 1}, x) == 5);
  CHECK(clip_bound({.quantile = 0.76}, x) == 5);
  CHECK(clip_bound({.quantile = 0.75}, x) == 4);
  CHECK(clip_bound({.quantile = 0.5}, x) == 3);
  CHECK(clip_bound({.quantile = 1e-9}, x) == 0);
  CHECK(clip_bound({.rms = 2}, std::vector<float>{nan}) == 0);
  CHECK(clip_bound({.quantile = 0.5}, {}) == 0);
  CHECK(clipped(3, 3.5f) == 3);
  CHECK(clipped(-4, 3.5f) == -3.5f);
  CHECK(clipped(-4, infinity) == -4);
  CHECK(std::isnan(clipped(nan, 3.5f)));
  CHECK(clipped(-infinity, 3.5f) == -infinity);
  CHECK(std::signbit(clipped(-5, 0)));
}

TEST_CASE("bounds of clips: sums of squares in 256 lanes") {
  // One number is 1, the square of the others is 2^-54, so 1 + 2^-54 is 1.
  std::vector<float> x(4096, 0x1p-27f);
  x[256] = 1;
  const auto square = [&](int64_t i) { return finite_square(x[std::size_t(i)]); };
  CHECK(summed_by_lanes(4096, square) == 1 + 255 * 0x1p-50);
  CHECK(summed_by_lanes(3, square) == 3 * 0x1p-54);
  CHECK(summed_by_lanes(257, square) == 1 + 63 * 0x1p-52);
  CHECK(summed_by_lanes(0, square) == 0);
  CHECK(finite_square(nan) == 0);
  CHECK(finite_square(-infinity) == 0);
}

TEST_CASE("bounds of clips: the order of the sum of squares, in pieces of 4096") {
  manual_seed(7);
  for (const int64_t n : {300, 4096, 4097, 20'000, 257 * 4096 + 300}) {
    INFO(n, " numbers");
    const std::vector<float> x = randn({n}).to_vector<float>();
    const double sum = ordered_squares(x);
    const auto [above, below] = clips_near_the_middle(sum, n);
    CHECK(clip_bound(above, x) == 1 + 0x1p-23f);
    CHECK(clip_bound(below, x) == 1);
    // The two clips notice sums that are larger or smaller by 4 units in the last place.
    const double more = sum * (1 + 0x1p-50), less = sum * (1 - 0x1p-50);
    CHECK(bound_by_rms(*below.rms, more, n) != 1);
    CHECK(bound_by_rms(*above.rms, less, n) == 1);
  }
}

/// Clamps x by hand.
Tensor clamped(const Tensor& x, const Clip& clip) {
  std::vector<float> values = x.to_vector<float>();
  const float bound = clip_bound(clip, values);
  for (float& v : values) v = std::min(std::max(v, -bound), bound);
  return from_vector(values, x.shape());
}

TEST_CASE("a clip comes after the rotation and before the scale") {
  manual_seed(1);
  const Tensor x = randn({6, 64});
  for (const Clip& clip : {Clip{.rms = 1.5}, Clip{.quantile = 0.9}})
    for (const char* name : {"e4m3", "e2m1", "mxfp4", "nvfp4", "fp8_tensor", "fp8_block"}) {
      CAPTURE(name);
      const Quantizer plain = *quantizer_named(name);
      const std::vector<float> wanted =
          quantized(clamped(x, clip), {.quantizer = plain}).to_vector<float>();
      CHECK(quantized(x, {.quantizer = with_clip(name, clip)}).to_vector<float>() == wanted);
      CHECK(quantized(x, {.quantizer = plain}).to_vector<float>() != wanted);
      Tensor y = x.clone();
      quantize_in_place(y, {.quantizer = with_clip(name, clip)});
      CHECK(y.to_vector<float>() == wanted);
      const Tensor skip = ones({});
      Tensor same = x.clone();
      quantize_in_place(same, {.quantizer = with_clip(name, clip), .skip = skip});
      CHECK(same.to_vector<float>() == x.to_vector<float>());
    }
  Quantizer rotated = with_clip("mxfp4", {.rms = 1});
  rotated.hadamard = 16;
  Quantizer turns = *quantizer_named("mxfp4");
  Tensor turned = empty(x.shape(), f32);
  Rotation rotation{.size = 16};
  backend_for(x).rotate(x, rotation, turned);
  Tensor wanted = quantized(clamped(turned, {.rms = 1}), {.quantizer = turns});
  rotation.back = true;
  backend_for(x).rotate(wanted, rotation, wanted);
  CHECK(quantized(x, {.quantizer = rotated}).to_vector<float>() == wanted.to_vector<float>());
}

TEST_CASE("a skipped quantizer of several steps changes no bit") {
  manual_seed(6);
  const Tensor x = randn({6, 64}), skip = ones({});
  Quantizer rotated = *quantizer_named("mxfp4");
  rotated.hadamard = 16;
  Quantizer both = with_clip("nvfp4", {.rms = 1});
  both.hadamard = 32;
  for (const Quantizer& quantizer : {rotated, both}) {
    Tensor same = x.clone(), changed = x.clone();
    quantize_in_place(same, {.quantizer = quantizer, .skip = skip});
    CHECK(same.to_vector<float>() == x.to_vector<float>());
    quantize_in_place(changed, {.quantizer = quantizer, .skip = zeros({})});
    CHECK(changed.to_vector<float>() == quantized(x, {.quantizer = quantizer}).to_vector<float>());
  }
}

TEST_CASE("a clip of 1 as a quantile changes nothing; layouts and dtypes do not matter") {
  manual_seed(2);
  const Tensor x = randn({8, 32});
  CHECK(quantized(x, {.quantizer = with_clip("mxfp8", {.quantile = 1})}).to_vector<float>() ==
        quantized(x, {.quantizer = *quantizer_named("mxfp8")}).to_vector<float>());
  const Quantizer q = with_clip("e4m3", {.rms = 1});
  CHECK(transpose(quantized(transpose(x, 0, 1), {.quantizer = q}), 0, 1).shape() == x.shape());
  const Tensor narrow = cast(x, bf16), wide = cast(narrow, f32);
  const Quantizer mx = with_clip("mxfp8", {.rms = 1});
  const Tensor y = quantized(narrow, {.quantizer = mx});
  CHECK(y.dtype() == bf16);
  CHECK(y.to_vector<float>() == quantized(wide, {.quantizer = mx}).to_vector<float>());
}

TEST_CASE("a gradient passes a clipped element as any other") {
  manual_seed(3);
  Tensor x = randn({4, 32}).set_requires_grad();
  const Tensor dy = randn({4, 32});
  quantize(x, with_clip("mxfp4", {.rms = 0.5})).backward(dy);
  CHECK(x.grad().to_vector<float>() == dy.to_vector<float>());
}

TEST_CASE("a survey counts clipped numbers as saturated, and its parts add up") {
  manual_seed(4);
  const Tensor x = randn({16, 64});
  const Clip clip{.rms = 1};
  const float bound = clip_bound(clip, x.to_vector<float>());
  for (const char* name : {"e4m3", "mxfp4", "mxfp8", "nvfp4", "fp8_tensor"}) {
    CAPTURE(name);
    const Tensor row = new_survey_row(Device::cpu());
    const Tensor y = quantized(x, {.quantizer = with_clip(name, clip), .survey = row});
    const Survey survey = Survey::from(row);
    double e2 = 0, beyond = 0;
    const std::vector<float> before = x.to_vector<float>(), after = y.to_vector<float>();
    for (std::size_t i = 0; i < before.size(); ++i) {
      const double e = double(after[i]) - double(before[i]);
      e2 += e * e, beyond += std::abs(before[i]) > bound;
    }
    CHECK(beyond > 100);
    CHECK(survey.sums.count == 1024);
    CHECK(survey.sums.saturated >= beyond);
    CHECK(survey.sums.sum_e2 == doctest::Approx(e2).epsilon(1e-12));
    const ErrorParts parts = survey.error_parts();
    CHECK(std::abs(parts.whole() - e2) <= 1e-12 * e2);
    CHECK(parts.saturation > 0.1 * e2);
  }
}

TEST_CASE("clips in policy files") {
  for (const char* clip : {R"({"rms": 4})", R"({"quantile": 0.999})"}) {
    const policy::PolicyFile file =
        file_of(R"("rules": [{"input": {"like": "mxfp4", "clip": )" + std::string(clip) + "}}]");
    const std::string text = policy::write(file);
    const policy::PolicyFile again = policy::read_text(text, "again");
    CHECK(again.rules == file.rules);
    CHECK(policy::write(again) == text);
    CHECK(file.rules.rules[0].roles.begin()->second.quantizer.clip.any());
  }
  CHECK(file_of(R"("quantizers": {"a": {"format": "e2m1", "clip": {"rms": 4}}},
                   "rules": [{"input": {"like": "a", "clip": "none"}}])")
            .rules.rules[0]
            .roles.begin()
            ->second.quantizer == Quantizer{.grid = formats::e2m1});
  const auto refusal = [](const char* clip) {
    return refusal_of_quantizer(R"("format": "e2m1", "clip": )" + std::string(clip));
  };
  CHECK(refusal(R"({"rms": 4, "quantile": 0.5})") ==
        "/quantizers/q/clip: numbers are clipped by rms and by quantile. Leave one out.");
  CHECK(refusal("{}") == "/quantizers/q/clip: \"rms\" or \"quantile\" is missing.");
  CHECK(refusal(R"({"rms": 0})") ==
        "/quantizers/q/clip: numbers are clipped at 0 root mean squares. Choose a positive number, "
        "such as 4.");
  CHECK(refusal(R"({"quantile": 1.5})") ==
        "/quantizers/q/clip: numbers are clipped at the quantile 1.5. Choose a number above 0 and "
        "up to 1, such as 0.999.");
  CHECK(
      refusal(R"({"quantile": 0})").starts_with("/quantizers/q/clip: numbers are clipped at the "));
  CHECK(refusal(R"({"sigma": 4})").starts_with("/quantizers/q/clip/sigma: a clip has no entry"));
  CHECK(contains(refusal(R"({"rms": 4}, "scale": {"per": "tensor", "from": "history"})"),
                 "the scale is from history"));
  CHECK(described(with_clip("e2m1", {.rms = 4})) == "e2m1, clipped at 4 root mean squares");
  CHECK(described(with_clip("e2m1", {.quantile = 0.5})) == "e2m1, clipped at the quantile 0.5");
}

}  // namespace
}  // namespace halftone::test::clip_test
