// Quantizers as data: names, words, bytes, dtypes of their results, and the arithmetic of scales at
// its limits. Their effect on tensors: tests/backends/quantize_test.cpp.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <halftone/core/error.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/formats/quantizer.h>

namespace halftone::test::quantizer_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float largest = std::numeric_limits<float>::max();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

Quantizer named(std::string_view name) {
  const auto quantizer = quantizer_named(name);
  REQUIRE(quantizer.has_value());
  return *quantizer;
}

TEST_CASE("quantizers: names, words and bits") {
  for (const std::string_view name : ready_made_quantizers()) {
    CHECK(quantizer_named(name).has_value());
    CHECK_NOTHROW(check_quantizer("test", named(name)));
  }
  CHECK(named("e4m3") == Quantizer{.grid = formats::e4m3});
  CHECK(named("e5m6").grid.significand_bits == 7);
  CHECK(quantizer_named("mxfp5") == std::nullopt);
  CHECK(described(named("e4m3")) == "e4m3");
  CHECK(described(named("mxfp6")) == "e2m3, blocks of 1x32 with e8m0 scales (floor)");
  CHECK(described(named("nvfp4")) ==
        "e2m1, blocks of 1x16 with e4m3 scales under one of the tensor");
  CHECK(described(named("fp8_tensor")) == "e4m3, scaled per tensor");
  Quantizer delayed{.grid = formats::e5m2,
                    .rounding = Rounding::stochastic,
                    .random_bits = 8,
                    .scaling = Scaling::delayed(16),
                    .hadamard = 16};
  delayed.scaling.margin = 2, delayed.scaling.power_of_two = true;
  CHECK(described(delayed) ==
        "e5m2, scaled per tensor from the largest of 16 steps, powers of two, margin 2, rotated by "
        "16, "
        "stochastic (8 bits)");
  delayed.scaling.latest = true;
  CHECK(described(delayed).find("from the last of 16 steps") != std::string::npos);

  Quantizer chosen = named("nvfp4");
  chosen.scaling.targets = {6, 4}, chosen.scaling.scale_max = 256;
  chosen.hadamard = 16, chosen.draws_signs = true;
  CHECK(
      described(chosen) ==
      "e2m1, blocks of 1x16 with e4m3 scales under one of the tensor (up to 256), largest at 6 or "
      "4 (mse), rotated by 16 with new signs");
  Quantizer eden = named("nvfp4");
  eden.scaling.scale_format = NumberFormat::unsigned_float(5, 3);
  eden.scaling.scale_rounding = Rounding::stochastic, eden.scaling.corrected = true;
  CHECK(described(eden) ==
        "e2m1, blocks of 1x16 with ue5m3 scales rounded stochastically and corrected under one of "
        "the tensor");
  CHECK(described(Quantizer::of_table({1, -1, 0.5f})) == "a table of 3 numbers");
  CHECK(Quantizer::of_table({1, -1, 0.5f}).bits_per_element() == 2);
  CHECK(named("nvfp4").draws() == false);
  CHECK(eden.draws());
  CHECK(chosen.draws());

  CHECK(named("e4m3").bits_per_element() == 8);
  CHECK(named("fp8_tensor").bits_per_element() == 8);
  CHECK(named("mxfp4").bits_per_element() == 4.25);
  CHECK(named("nvfp4").bits_per_element() == 4.5);
  CHECK(named("fp8_block").bits_per_element() == 8.25);
  for (int rule = 0; rule < 4; ++rule)
    CHECK(scale_rule_named(name(ScaleRule(rule))) == ScaleRule(rule));
  CHECK(scale_rule_named("round") == std::nullopt);
}

TEST_CASE("formats without a sign: all codes but the highest are numbers") {
  const NumberFormat ue5m3 = *number_format_named("ue5m3"), ue4m3 = *number_format_named("ue4m3");
  CHECK(ue5m3.max == 114688);
  CHECK(ue5m3.bits == 8);
  CHECK(count_of_numbers(ue5m3) == 255);
  CHECK(number_at(ue5m3, 1) == 0x1p-17);
  CHECK(ue4m3.max == 448);
  CHECK(ue4m3.bits == 7);
  CHECK(number_format_named("ue8m0") == formats::e8m0);
  CHECK(count_of_numbers(*number_format_named("ue4m0")) == 15);
  CHECK(number_format_named("ue4m0")->max == 128);
  CHECK(count_of_numbers(*number_format_named("ue2m1")) == 7);
  CHECK(number_format_named("ue8m1") == std::nullopt);
  CHECK(number_format_named("ue5m9") == std::nullopt);
  for (const char* name : {"ue5m3", "ue4m3", "ue7m8", "ue2m0"})
    CHECK(described(*number_format_named(name)) == name);
}

TEST_CASE("quantizers: dtypes that hold the results") {
  for (const char* name : {"e4m3", "bf16", "tf32", "mxfp8", "nvfp4", "fp8_tensor", "fp8_block"})
    CHECK(named(name).exact_in(f32));
  for (const char* name : {"e4m3", "e5m2", "bf16", "mxfp8", "mxfp4", "mxint8"})
    CHECK(named(name).exact_in(bf16));
  for (const char* name : {"tf32", "f16", "nvfp4", "fp8_tensor", "fp8_block"})
    CHECK_FALSE(named(name).exact_in(bf16));
  for (const char* name : {"e4m3", "e5m2", "f16", "int8"}) CHECK(named(name).exact_in(f16));
  for (const char* name : {"bf16", "tf32", "mxfp8"}) CHECK_FALSE(named(name).exact_in(f16));
  Quantizer powers = named("fp8_tensor");
  powers.scaling.power_of_two = true;
  CHECK(powers.exact_in(bf16));
  powers.hadamard = 16;
  CHECK_FALSE(powers.exact_in(bf16));
  CHECK(powers.exact_in(f32));
  CHECK_FALSE(named("e4m3").exact_in(i32));
}

TEST_CASE("quantizers: the scale of a tensor") {
  Quantizer quantizer = named("fp8_tensor");
  QuantizeNumbers n = numbers_of(quantizer);
  CHECK(scale_of_tensor(n, 2) == 224);
  CHECK(scale_of_tensor(n, 3) == 448.0f / 3);
  CHECK(scale_of_tensor(n, 0) == 1);
  CHECK(scale_of_tensor(n, infinity) == 1);
  CHECK(scale_of_tensor(n, nan) == 1);
  CHECK(scale_of_tensor(n, 0x1p-149f) == largest);
  CHECK(scale_of_tensor(n, largest) == 448 / largest);
  quantizer.scaling.power_of_two = true;
  CHECK(scale_of_tensor(numbers_of(quantizer), 3) == 128);
  quantizer.scaling.margin = 3;
  CHECK(scale_of_tensor(numbers_of(quantizer), 3) == 16);
  quantizer.scaling.least = 7;
  CHECK(scale_of_tensor(numbers_of(quantizer), 3) == 8);
  CHECK(scale_of_tensor(numbers_of(quantizer), 0) == 8);
  quantizer.scaling.margin = 100, quantizer.scaling.least = 0;
  CHECK(scale_of_tensor(numbers_of(quantizer), largest) == 0x1p-126f);  // 1 / s stays finite
}

TEST_CASE("quantizers: the scales of blocks at the ends of their range") {
  QuantizeNumbers n = numbers_of(named("mxfp8"));
  const auto exponent = [&](ScaleRule rule, float amax) {
    n.rule = rule;
    return scale_exponent(n, amax);
  };
  for (const ScaleRule rule :
       {ScaleRule::floor, ScaleRule::ceil, ScaleRule::rceil, ScaleRule::even}) {
    CHECK(exponent(rule, 0) == -127);
    CHECK(exponent(rule, 0x1p-149f) == -127);
    CHECK(exponent(rule, 448) == (rule == ScaleRule::ceil ? 1 : 0));
    CHECK(exponent(rule, 256) == 0);
  }
  CHECK(exponent(ScaleRule::floor, 511) == 0);  // which saturates
  CHECK(exponent(ScaleRule::ceil, 257) == 1);
  CHECK(exponent(ScaleRule::rceil, 449) == 1);
  CHECK(exponent(ScaleRule::even, 495) == 0);
  CHECK(exponent(ScaleRule::even, 496) == 1);  // 496 rounds to 512 with four bits
  CHECK(exponent(ScaleRule::floor, largest) == 119);
  CHECK(exponent(ScaleRule::rceil, largest) == 120);
  CHECK(exponent(ScaleRule::rceil, 448 * 0x1p-126f) == -126);
  CHECK(exponent(ScaleRule::rceil, 448 * 0x1p-127f) == -127);
  CHECK(exponent(ScaleRule::rceil, 449 * 0x1p-127f) == -126);
  CHECK(power_of_two(-127) == 0x1p-127f);
  CHECK(power_of_two(127) == 0x1p127f);
  CHECK(scale_of_block(n, infinity, 0).in == 1);
  CHECK(scale_of_block(n, nan, 0).out == 1);

  const QuantizeNumbers f32_scales = numbers_of(named("fp8_block"));
  CHECK(scale_of_block(f32_scales, 0, 0).in == 1);
  CHECK(scale_of_block(f32_scales, 896, 0).out == 2);

  const QuantizeNumbers nvfp4 = numbers_of(named("nvfp4"));
  CHECK(tensor_level_of(nvfp4, 0) == 1);
  CHECK(tensor_level_of(nvfp4, nan) == 1);
  CHECK(tensor_level_of(nvfp4, 1) == 2688);
  CHECK(tensor_level_of(nvfp4, 0x1p-149f) == largest);
  CHECK(scale_of_block(nvfp4, 1, 1).out == 448);
  CHECK(scale_of_block(nvfp4, 0, 1).in == largest);
  CHECK(scale_of_block(nvfp4, 0, 1).out == 0);
}

TEST_CASE("quantizers: scales from a history, as a table") {
  Quantizer quantizer = named("fp8_tensor");
  quantizer.scaling = Scaling::delayed(3);
  float amax = 0, history[3] = {0, 0, 0}, scale = 1;
  int64_t position = 0;
  const auto step = [&](float seen) {
    amax = seen;
    next_scale(numbers_of(quantizer), 3, quantizer.scaling.latest, amax, history, position, scale);
    CHECK(amax == 0);
    return scale;
  };
  CHECK(step(0) == 1);  // no value was seen: the scale is unchanged
  CHECK(step(2) == 224);
  CHECK(step(7) == 64);
  CHECK(step(1) == 64);
  CHECK(step(infinity) == 64);  // changes nothing, and does not count as a step
  CHECK(step(nan) == 64);
  CHECK(position == 4);
  CHECK(step(1) == 64);
  CHECK(step(1) == 448);  // the 7 has left the history
  quantizer.scaling.margin = 1;
  CHECK(step(4) == 56);
  quantizer.scaling.latest = true;
  CHECK(step(1) == 224);
  CHECK(step(0) == 224);
}

std::string complaint(const Accumulator& accumulator) {
  try {
    check_accumulator("matmul", accumulator);
  } catch (const UsageError& e) { return e.what(); }
  return "";
}

TEST_CASE("invalid accumulators") {
  CHECK(complaint({.grid = formats::f16}) == "");
  CHECK(complaint({.grid = formats::f16, .rounding = Rounding::stochastic}) ==
        "[matmul] an accumulator rounds stochastically. Choose another rounding: products have no "
        "random numbers.");
  CHECK(complaint({.grid = formats::f16, .chunk = -1}) ==
        "[matmul] an accumulator adds up chunks of -1. Choose 0 for one chunk, or more.");
  CHECK(complaint({.grid = {.significand_bits = 30}}).find("30 significand bits") !=
        std::string::npos);
}

}  // namespace
}  // namespace halftone::test::quantizer_test
