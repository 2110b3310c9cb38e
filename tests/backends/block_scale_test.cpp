// Scales that blocks choose, round and correct, tables, and rotations with new signs: against plain
// loops, and by their statistics. That backends agree to the bit:
// tests/kernels/quantize_test.cpp.
#include <algorithm>
#include <cmath>
#include <limits>

#include <halftone/halftone.h>

#include "../support.h"
#include "backends/simd_levels.h"
#include "simd_levels.h"

namespace halftone::test::block_scale_test {
namespace {

constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

/// Rounds to e4m3 or e2m1 by their spacing, in f64: 3 or 1 bits of fraction from 2^least on.
double nearest(double x, int fraction, int least, double max) {
  const double size = std::min(std::abs(x), max);
  const int exponent = size == 0 ? least : std::max(least, std::ilogb(size));
  const double unit = std::ldexp(1.0, exponent - fraction);
  return std::copysign(std::min(std::nearbyint(size / unit) * unit, max), x);
}

/// One block by TransformerEngine's reference: both candidates, their errors, and the better one.
struct FourOverSix {
  float amax_tensor, scale_max;
  bool squares;

  /// Computes the block and returns whether 4 won. Real: of the errors.
  template <class Real>
  bool block(const float* x, std::size_t rows, std::size_t step, float* y) const {
    float amax = 0;
    each(rows, step, [&](std::size_t at) { amax = std::max(amax, std::abs(x[at])); });
    const float g = scale_max * 6 / amax_tensor, base = amax / 6 * g;
    const auto scale = [&](float wanted) { return float(nearest(double(wanted), 3, -6, 448)); };
    const float six = scale(base), four = scale(base * 1.5f);
    const bool takes_four =
        error<Real>(x, rows, step, four, g) < error<Real>(x, rows, step, six, g);
    const float b = takes_four ? four : six;
    each(rows, step, [&](std::size_t at) { y[at] = on_grid(x[at], b, g) * b * (1 / g); });
    return takes_four;
  }

 private:
  static float on_grid(float x, float b, float g) {
    return float(nearest(double(x * (1 / (b * (1 / g)))), 1, 0, 6));
  }
  template <class Body> static void each(std::size_t rows, std::size_t step, const Body& body) {
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < 16; ++j) body(i * step + j);
  }
  template <class Real>
  Real error(const float* x, std::size_t rows, std::size_t step, float b, float g) const {
    Real sums[16]{};
    each(rows, step, [&](std::size_t at) {
      const Real value =
          Real(on_grid(x[at], b, g)) * Real(b) * Real(amax_tensor) / Real(6 * scale_max);
      const Real off = value - Real(x[at]);
      volatile Real term = squares ? off * off : std::abs(off);  // never fused into the sum
      sums[at / step] = sums[at / step] + term;
    });
    for (std::size_t half = 8; half > 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
    return sums[0];
  }
};

TEST_CASE("block scales: Four Over Six is what plain loops choose, in f32 and in f64") {
  constexpr std::size_t columns = 1024;
  manual_seed(11);
  for (const std::size_t rows : {std::size_t(1), std::size_t(16)}) {
    const std::size_t height = rows == 1 ? 64 : 1024;  // 4096 blocks
    const Tensor x = randn({int64_t(height), int64_t(columns)});
    const std::vector<float> in = x.to_vector<float>();
    float amax = 0;
    for (const float value : in) amax = std::max(amax, std::abs(value));
    for (const float scale_max : {448.0f, 256.0f})
      for (const ScaleError error : {ScaleError::mae, ScaleError::mse}) {
        INFO("blocks of ", rows, "x16, ", scale_max, ", ", name(error));
        Quantizer quantizer = *quantizer_named("nvfp4");
        quantizer.scaling.rows = int32_t(rows), quantizer.scaling.targets = {6, 4};
        quantizer.scaling.scale_max = scale_max, quantizer.scaling.error = error;
        const std::vector<uint32_t> got = bits_of(quantize(x, quantizer));
        const FourOverSix reference{amax, scale_max, error == ScaleError::mse};
        int64_t fours = 0, different = 0, other_in_f64 = 0;
        std::vector<float> as_f32(in.size()), as_f64(in.size());
        for (std::size_t i = 0; i < height; i += rows)
          for (std::size_t j = 0; j < columns; j += 16) {
            const std::size_t at = i * columns + j;
            fours += reference.block<float>(in.data() + at, rows, columns, as_f32.data() + at);
            reference.block<double>(in.data() + at, rows, columns, as_f64.data() + at);
          }
        const std::vector<uint32_t> wanted = bits_of(as_f32), exact = bits_of(as_f64);
        for (std::size_t i = 0; i < got.size(); ++i)
          different += got[i] != wanted[i], other_in_f64 += got[i] != exact[i];
        CHECK(different == 0);
        // Errors that are equal within the rounding of their sums: at most two blocks of 4,096.
        CHECK(other_in_f64 <= int64_t(2 * 16 * rows));
        CHECK(fours > (rows == 1 ? 400 : 0));  // both are taken
        CHECK(fours < 3700);
      }
  }
}

TEST_CASE("block scales: the first of equal errors, and blocks without an error") {
  Quantizer quantizer{.grid = formats::e2m1, .scaling = Scaling::per_block(1, 4, formats::f32)};
  quantizer.scaling.targets = {4, 6};
  // Both scales hold these: the first is taken, and the results are equal.
  CHECK(quantize(from({0.0, 0, 0, 0}), quantizer).to_vector<float>() ==
        std::vector<float>{0, 0, 0, 0});
  // 5 / 6 of the largest: 4 has 3 and 4 around it, 6 has 4 and 6.
  const std::vector<float> y = quantize(from({12.0, 9, 6, 3}), quantizer).to_vector<float>();
  CHECK(y == std::vector<float>{12, 9, 6, 3});
  quantizer.scaling.targets = {6};
  CHECK(quantize(from({12.0, 9, 6, 3}), quantizer).to_vector<float>() ==
        std::vector<float>{12, 8, 6, 3});
  const std::vector<float> special =
      quantize(from({double(nan), 1, double(infinity), 100}), quantizer).to_vector<float>();
  CHECK(std::isnan(special[0]));
  CHECK(special[1] == 1);
  CHECK(special[2] == 6);
  CHECK(special[3] == 6);
}

TEST_CASE(
    "block scales: rounded up nothing saturates, rounded stochastically they are right on "
    "average") {
  const Tensor x = randn({1000, 16});
  const std::vector<float> in = x.to_vector<float>();
  Quantizer quantizer = *quantizer_named("nvfp4");
  quantizer.scaling.tensor_level = false;
  // The scale alone: a block of one number at the largest of the grid.
  const auto scale_of = [&](const Quantizer& with, double value, int64_t count) {
    Quantizer one = with;
    one.scaling.columns = 1;
    return quantize(full({count}, 6 * value), one);
  };
  for (const double value : {0.3, 1.01, 17.0, 100.0}) {
    quantizer.scaling.scale_rounding = Rounding::up;
    CHECK(scale_of(quantizer, value, 1).item() >= 6 * value * (1 - 1e-6));
    quantizer.scaling.scale_rounding = Rounding::stochastic;
    double sum = 0;
    const int64_t draws = 100000;
    for (const float y : scale_of(quantizer, value, draws).to_vector<float>()) sum += double(y);
    CHECK(std::abs(sum / double(draws) / (6 * value) - 1) < 4 * 0.0625 / std::sqrt(double(draws)));
  }
}

TEST_CASE("block scales: MS-EDEN is unbiased, with half of stochastic rounding's error") {
  Quantizer eden = *quantizer_named("nvfp4"), stochastic = eden;
  eden.scaling.targets = {float(6 / (17.0 / 16 * 0.93))}, eden.scaling.scale_max = 256;
  eden.scaling.scale_rounding = Rounding::stochastic, eden.scaling.corrected = true;
  eden.hadamard = 128, eden.draws_signs = true;
  stochastic.rounding = Rounding::stochastic;
  double sum = 0, squares = 0, noise = 0, other_noise = 0, power = 0;
  int64_t blocks = 0;
  for (int round = 0; round < 32; ++round) {  // 2^20 blocks, each with draws of its own
    const Tensor x = randn({4096, 128});
    const std::vector<float> in = x.to_vector<float>(), out = quantize(x, eden).to_vector<float>(),
                             drawn = quantize(x, stochastic).to_vector<float>();
    for (std::size_t row = 0; row < 4096; ++row) {
      double xx = 0, xy = 0;
      for (std::size_t i = row * 128; i < row * 128 + 128; ++i) {
        const double value = double(in[i]);
        xx += value * value, xy += value * double(out[i]);
        noise += (double(out[i]) - value) * (double(out[i]) - value);
        other_noise += (double(drawn[i]) - value) * (double(drawn[i]) - value);
      }
      sum += xy / xx - 1, squares += (xy / xx - 1) * (xy / xx - 1), power += xx;
    }
    blocks += 4096;
  }
  const double mean = sum / double(blocks), sigma = std::sqrt(squares) / double(blocks);
  MESSAGE("gain - 1: ", mean, " +- ", sigma, ", noise ", noise / power, " against ",
          other_noise / power);
  CHECK(std::abs(mean) < 3 * sigma);
  CHECK(other_noise > 2 * noise);
  // Without the correction the result is too small or too large by much more than that.
  eden.scaling.corrected = false;
  const Tensor x = randn({4096, 128});
  const std::vector<float> in = x.to_vector<float>(), out = quantize(x, eden).to_vector<float>();
  double xx = 0, xy = 0;
  for (std::size_t i = 0; i < in.size(); ++i)
    xx += double(in[i]) * double(in[i]), xy += double(in[i]) * double(out[i]);
  CHECK(std::abs(xy / xx - 1) > 100 * sigma);
}

TEST_CASE("rotations: new signs each call, the same for the same key, and nothing else changes") {
  const Tensor x = randn({4, 128});
  Quantizer exact{.grid = formats::f32, .hadamard = 128, .draws_signs = true};
  Quantizer coarse{.grid = formats::e2m1, .hadamard = 128, .draws_signs = true};
  const auto with = [&](const Quantizer& quantizer, RandomKey key) {
    return quantized(x, {.quantizer = quantizer, .key = key});
  };
  CHECK(bits_of(with(coarse, {3, 4})) == bits_of(with(coarse, {3, 4})));
  CHECK(bits_of(with(coarse, {3, 4})) != bits_of(with(coarse, {3, 5})));
  CHECK(bits_of(with(coarse, {3, 4})) != bits_of(with(coarse, {2, 4})));
  const std::vector<float> in = x.to_vector<float>(), out = with(exact, {1, 2}).to_vector<float>();
  for (std::size_t i = 0; i < in.size(); ++i) CHECK(std::abs(in[i] - out[i]) < 1e-5f);
  for (const RandomKey key : {RandomKey{1, 2}, RandomKey{7, 0}}) {
    const CpuBackendScope reference("reference");
    const std::vector<uint32_t> wanted = bits_of(with(coarse, key));
    const CpuBackendScope cpu("cpu");
    CHECK(bits_of(with(coarse, key)) == wanted);
  }
  manual_seed(5);
  CHECK(bits_of(quantize(x, coarse)) != bits_of(quantize(x, coarse)));
}

TEST_CASE("tables: every rounding, against a search through all numbers") {
  const std::vector<float> table{-1, -0.5f, -0.25f, 0, 0.0625f, 0.5f, 2};
  const std::vector<double> xs{-3,   -1,      -0.76, -0.75, -0.74, -0.375, -0.1, -0.0, 0, 0.03125,
                               0.25, 0.28125, 0.3,   0.5,   1.2,   1.25,   1.3,  2,    5};
  const auto rounded = [&](Rounding rounding) {
    Quantizer quantizer = Quantizer::of_table(table);
    quantizer.rounding = rounding;
    check_quantizer("test", quantizer);
    return quantize(from_vector(std::vector<float>(xs.begin(), xs.end()), {int64_t(xs.size())}),
                    quantizer)
        .to_vector<float>();
  };
  const std::vector<float> even = rounded(Rounding::nearest_even),
                           away = rounded(Rounding::nearest_away), up = rounded(Rounding::up),
                           down = rounded(Rounding::down), zero = rounded(Rounding::toward_zero),
                           random = rounded(Rounding::stochastic);
  for (std::size_t i = 0; i < xs.size(); ++i) {
    INFO(xs[i]);
    float low = table.front(), high = table.back();
    for (const float number : table) {
      if (double(number) <= xs[i]) low = number;
      if (double(number) >= xs[i] && number < high) high = number;
    }
    if (xs[i] < double(low)) high = low;
    if (xs[i] > double(high)) low = high;
    CHECK(up[i] == high);
    CHECK(down[i] == low);
    CHECK(zero[i] == (xs[i] < 0 ? high : low));
    CHECK((random[i] == low || random[i] == high));
    const double below = xs[i] - double(low), above = double(high) - xs[i];
    if (below != above) CHECK(even[i] == (below < above ? low : high));
    if (below != above) CHECK(away[i] == even[i]);
    if (below == above && low != high) CHECK(away[i] == (xs[i] < 0 ? low : high));
  }
  CHECK(even[3] == -1.0f);     // -0.75: the place of -1 is 0
  CHECK(even[11] == 0.0625f);  // 0.28125: the place of 0.0625 is 4
  double sum = 0;
  Quantizer quantizer = Quantizer::of_table(table);
  quantizer.rounding = Rounding::stochastic;
  for (const float y : quantize(full({100000}, 0.2), quantizer).to_vector<float>())
    sum += double(y);
  CHECK(std::abs(sum / 100000 - 0.2) < 0.003);
}

TEST_CASE("tables: NF4 keeps its numbers under the largest magnitude of a block") {
  Quantizer table = Quantizer::of_table({0.7f, -1, -0.5f, 0, 0.125f, 1});
  table.scaling = Scaling::per_block(1, 64, formats::f32), table.scaling.targets = {1, 0.7f};
  CHECK(quantize(from({-2.0, 1.4, 0.25, 0}), table).to_vector<float>() ==
        std::vector<float>{-2, 1.4f, 0.25f, 0});
}

}  // namespace
}  // namespace halftone::test::block_scale_test

// Quantizers that round by an average: the choice of the neighbor by hand, against a search in f64,
// with the reference's bits on the CPU, and in views.

namespace halftone::test::averaged_test {
namespace {

using Values = std::vector<float>;

Tensor tensor_of(const Values& values) { return from_vector(values, {int64_t(values.size())}); }

Values rounded(const Quantizer& quantizer, const Values& x, const Values& average) {
  return quantized(tensor_of(x), {.quantizer = quantizer, .average = tensor_of(average)})
      .to_vector<float>();
}

Quantizer by_average(const char* name) {
  Quantizer quantizer = *quantizer_named(name);
  quantizer.average = 0.9;
  check_quantizer("test", quantizer);
  return quantizer;
}

TEST_CASE("average: of two neighbors on the grid, the one that is nearer to the average") {
  const Quantizer e2m1 = by_average("e2m1");  // 0 0.5 1 1.5 2 3 4 6
  CHECK(rounded(e2m1, {2.4f, 2.4f, 2.4f, 2.4f}, {2.6f, 1, 9, 2.5f}) == Values{3, 2, 3, 3});
  CHECK(rounded(e2m1, {-2.4f, -2.4f, -2.4f, -2.4f}, {-2.6f, -2.4f, 5, -2.5f}) ==
        Values{-3, -2, -2, -3});
  CHECK(rounded(e2m1, {3, -0.5f, 0, 0}, {0, 8, 5, -5}) == Values{3, -0.5f, 0, 0});
  CHECK(rounded(e2m1, {100, -100, 5.9f}, {0, 0, 0}) == Values{6, -6, 4});
  CHECK(std::isnan(rounded(e2m1, {std::numeric_limits<float>::quiet_NaN()}, {1})[0]));
  // Without an average: to the nearest, ties away from zero.
  CHECK(
      quantized(tensor_of({2.4f, 2.5f, -2.5f, 5, 0.25f}), {.quantizer = e2m1}).to_vector<float>() ==
      Values{2, 3, -3, 6, 0.5f});
  CHECK(quantized(scalar(2.4), {.quantizer = e2m1, .average = scalar(2.9)}).item() == 3);
  CHECK(described(e2m1) == "e2m1, by an average (0.9)");
}

TEST_CASE("average: the neighbors are those under the scale of x, on every backend") {
  Numbers numbers(7);
  Values x, average;
  for (int i = 0; i < 4 * 96; ++i) {
    x.push_back(std::ldexp(numbers.uniform(-2, 2), int(numbers.word() % 8) - 4));
    average.push_back(x.back() * numbers.uniform(0.5f, 1.5f));
  }
  const Tensor of_x = from_vector(x, {4, 96}), of_average = from_vector(average, {4, 96});
  for (const char* name : {"e4m3", "mxfp4", "nvfp4", "fp8_tensor", "fp8_block"}) {
    CAPTURE(name);
    const Quantizer quantizer = by_average(name);
    const QuantizeCall call{.quantizer = quantizer, .average = of_average};
    const Values y = quantized(of_x, call).to_vector<float>();
    Quantizer directed = *quantizer_named(name);
    directed.rounding = Rounding::down;
    const Values down = quantized(of_x, {.quantizer = directed}).to_vector<float>();
    directed.rounding = Rounding::up;
    const Values up = quantized(of_x, {.quantizer = directed}).to_vector<float>();
    int moved = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double below = double(average[i]) - double(down[i]);
      const double above = double(up[i]) - double(average[i]);
      CHECK(y[i] == (below > above ? up[i] : down[i]));
      moved += y[i] != quantized(of_x, {.quantizer = *quantizer_named(name)}).data<float>()[i];
    }
    CHECK(moved > 20);
    const CpuBackendScope scope("reference");
    CHECK(bits_of(quantized(of_x, call)) == bits_of(from_vector(y, {4, 96})));
  }
}

TEST_CASE("average: a short dtype and a view get the same numbers") {
  Numbers numbers(8);
  Values x;
  for (int i = 0; i < 64 * 40; ++i) x.push_back(numbers.uniform(-2, 2));
  const Tensor w = cast(from_vector(x, {40, 64}), bf16);
  const Tensor average = cast(w, f32) * scalar(1.1);
  const Quantizer quantizer = by_average("mxfp4");
  const QuantizeCall call{.quantizer = quantizer, .average = average};
  const Tensor y = quantized(w, call);
  CHECK(y.dtype() == bf16);
  CHECK(bits_of(y) == bits_of(quantized(cast(w, f32), call)));
  const auto turned = [](const Tensor& t) { return views::transpose(t, 0, 1); };
  const QuantizeCall turned_call{.quantizer = quantizer, .average = turned(average)};
  for (const Sums sums : {Sums::over_rows, Sums::over_tokens})
    CHECK(bits_of(policy::quantized_along(w, sums, call)) ==
          bits_of(turned(quantized(turned(w), turned_call))));
}

TEST_CASE("average: surveys count the results") {
  const Quantizer e2m1 = by_average("e2m1");
  const Tensor row = new_survey_row(Device::cpu());
  const QuantizeCall call{
      .quantizer = e2m1, .average = tensor_of({0, 2.6f, 9, 0.4f}), .survey = row};
  CHECK(quantized(tensor_of({0.2f, 2.4f, 100, 0.5f}), call).to_vector<float>() ==
        Values{0, 3, 6, 0.5f});
  const SurveySums sums = Survey::from(row).sums;
  CHECK(sums.to_zero == 1);
  CHECK(sums.saturated == 1);
  CHECK(sums.changed == 3);
  const double error = 0.2f * double(0.2f) + (3 - double(2.4f)) * (3 - double(2.4f)) + 94 * 94.0;
  CHECK(sums.sum_e2 == doctest::Approx(error));
}

TEST_CASE("average: other choices of the neighbor are refused") {
  const auto refusal = [](const auto& change) {
    Quantizer quantizer = *quantizer_named("nvfp4");
    quantizer.average = 0.9;
    change(quantizer);
    return message_of<UsageError>([&] { check_quantizer("test", quantizer); });
  };
  CHECK(refusal([](Quantizer& q) { q.average = 1; }) ==
        "[test] an average keeps the share 1 of itself in each step. Choose a number above 0 and "
        "below 1.");
  CHECK_FALSE(refusal([](Quantizer& q) { q.average = -0.5; }).empty());
  CHECK_FALSE(refusal([](Quantizer& q) { q.average = std::nan(""); }).empty());
  CHECK(refusal([](Quantizer& q) { q.rounding = Rounding::stochastic; }) ==
        "[test] an average chooses the neighbor on the grid, and the quantizer has another "
        "rounding than nearest_even as well. Leave one out.");
  CHECK_FALSE(refusal([](Quantizer& q) { q.hadamard = 16; }).empty());
  CHECK_FALSE(refusal([](Quantizer& q) { q.clip.rms = 3; }).empty());
  CHECK_FALSE(refusal([](Quantizer& q) { q.scaling.targets = {6, 4}; }).empty());
  CHECK_FALSE(refusal([](Quantizer& q) { q.scaling.corrected = true; }).empty());
  CHECK_THROWS_AS(quantize(ones({4}), by_average("e2m1")), UsageError);
  CHECK_THROWS_AS(quantize_in_place(ones({4}), {.quantizer = by_average("e2m1")}), UsageError);
}

}  // namespace
}  // namespace halftone::test::averaged_test
