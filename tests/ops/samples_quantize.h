// Samples of quantize. Unscaled grids, which every dtype holds; blocks, scales and rotations are in
// tests/backends/quantize_test.cpp, to the bit.
#pragma once

#include "ops/samples_case.h"

namespace halftone::test {

template <> struct Samples<Quantize> {
  /// The nearest of all numbers of the grid; of two, the one with the even place, which is the even
  /// significand.
  static double nearest(const NumberFormat& format, double x) {
    const double magnitude = std::abs(x);
    const int64_t count = count_of_numbers(format);
    int64_t best = 0;
    for (int64_t i = 1; i < count; ++i) {
      const double now = std::abs(number_at(format, i) - magnitude),
                   before = std::abs(number_at(format, best) - magnitude);
      if (now < before || (now == before && i % 2 == 0)) best = i;
    }
    return std::copysign(number_at(format, best), x);
  }
  static Case with(std::string name, const Shape& shape, const char* format) {
    const NumberFormat grid = *number_format_named(format);
    return {.name = std::move(name),
            .inputs = {distinct(shape)},
            .call = [format](const Tensors& in) { return quantize(in[0], format); },
            .oracle =
                [grid](const Arrays& in) {
                  Array y = in[0];
                  for (double& value : y.values) value = nearest(grid, value);
                  return y;
                },
            .smooth = false};
  }
  static Quantizer blocks() { return *quantizer_named("mxfp4"); }
  static OpSamples make() {
    Quantizer history{.grid = formats::e4m3, .scaling = Scaling::delayed()};
    Quantizer rotated{.grid = formats::e2m1, .hadamard = 16};
    Quantizer odd{.grid = formats::e2m1, .hadamard = 12};
    Quantizer few{.grid = formats::e2m1, .random_bits = 33};
    Quantizer tall{.grid = formats::e2m1, .scaling = Scaling::per_block(0, 32)};
    Quantizer two_levels = blocks();
    two_levels.scaling.tensor_level = true;
    Quantizer no_history = history;
    no_history.scaling.history = 0;
    Quantizer margin = history;
    margin.scaling.margin = -1;
    Quantizer least = history;
    least.scaling.least = -1;
    return {
        .cases = {with("e4m3", {5, 7}, "e4m3"), with("e2m1, which saturates", {16, 15}, "e2m1"),
                  with("e3m2", {3, 4, 5}, "e3m2"), with("int8", {40}, "int8"),
                  with("int4, images", {2, 3, 4, 5}, "int4"), with("one number", {}, "e5m2"),
                  with("empty", {0, 3}, "e4m3")},
        .errors = {
            error<UsageError>(
                "[quantize] there is no number format or quantizer named \"mxfp5\". Did "
                "you mean \"mxfp",
                [] { quantize(ones({2}), "mxfp5"); }),
            error<UsageError>(
                "[quantize] bf16 does not hold every number of e2m1, blocks of 1x16 with "
                "e4m3 scales under one of the tensor. Cast the input to f32.",
                [] { quantize(ones({2}, bf16), "nvfp4"); }),
            error<UsageError>(
                "[quantize] f16 does not hold every number of e2m1, blocks of 1x32 with "
                "e8m0 scales (floor).",
                [] { quantize(ones({2}, f16), "mxfp4"); }),
            error<UsageError>(
                "[quantize] scaling is from history, and a single call has no history.",
                [=] { quantize(ones({2}), history); }),
            error<ShapeError>(
                "[quantize] rotations of 16 do not divide the last dimension of [2, 24] "
                "f32.",
                [=] {
                  quantize(ones({2, 24}), rotated);
                }),
            error<UsageError>(
                "[quantize] rotations are of 12 numbers. Choose 2, 4, 8, 16, 32, 64 or 128, "
                "or 0 for none.",
                [=] { quantize(ones({24}), odd); }),
            error<UsageError>("[quantize] stochastic rounding has 33 random bits. Choose 1 to 32.",
                              [=] { quantize(ones({2}), few); }),
            error<UsageError>("[quantize] blocks are of 0 x 32 numbers. Both must be at least 1.",
                              [=] { quantize(ones({2}), tall); }),
            error<UsageError>(
                "[quantize] scales of blocks are e8m0 under a scale of the tensor. Only "
                "short ones, such as e4m3, need that.",
                [=] { quantize(ones({2}), two_levels); }),
            error<UsageError>("[quantize] a history has 0 steps. It must have at least 1.",
                              [=] { quantize(ones({2}), no_history); }),
            error<UsageError>("[quantize] a margin is -1. It must be from 0 to 100.",
                              [=] { quantize(ones({2}), margin); }),
            error<UsageError>(
                "[quantize] the least largest magnitude is -1. It must be finite and not "
                "negative.",
                [=] { quantize(ones({2}), least); }),
            error<UsageError>("[quantize] a grid has 0 significand bits. Choose 1 to 24.", [] {
              quantize(ones({2}), Quantizer{.grid = {.significand_bits = 0}});
            })}};
  }
};

}  // namespace halftone::test
