// Scales of sub-blocks: loops in double are the specification; HiFloat4 as its authors' reference.
#include <cmath>

#include <doctest/doctest.h>

#include <halftone/core/factory.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/formats/survey.h>

#include "../support.h"

namespace halftone::test::inner_scale_test {
namespace {

Quantizer hif4() {
  Quantizer q{.grid = NumberFormat::integer(4),
              .scaling = Scaling::per_block(1, 64, NumberFormat::unsigned_float(6, 2))};
  q.scaling.inner = {InnerScale{8, 1}, InnerScale{4, 1}};
  return q;
}

/// Neighbors of many magnitudes, so that sub-blocks differ.
Tensor waves(int64_t rows, int64_t columns) {
  manual_seed(9);
  Tensor x = randn({rows, columns});
  for (int64_t i = 0; i < x.numel(); ++i)
    x.data<float>()[i] *= std::ldexp(1.0f, int(i / 4 % 7) - int(i / 64 % 30));
  return x;
}

double largest(const float* x, int64_t count) {
  double most = 0;
  for (int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(double(x[i])));
  return most;
}

/// Rounds to multiples of `unit` up to `most`, ties to even. int4 is 1/4 to 7/4, int5 1/8 to 15/8.
double on_integers(double x, double unit, double most) {
  return std::copysign(std::min(std::nearbyint(std::abs(x) / unit) * unit, most), x);
}

TEST_CASE("inner scales: HiFloat4 is three levels of loops in double") {
  const Quantizer q = hif4();
  check_quantizer("test", q);
  CHECK(q.bits_per_element() == 4.5);
  CHECK(described(q) ==
        "int4, blocks of 1x64 with ue6m2 scales, sub-blocks of 1x8 with e1m0 scales, sub-blocks of "
        "1x4 with e1m0 scales");
  const Tensor x = waves(5, 150);
  const std::vector<float> y = quantized(x, {.quantizer = q}).to_vector<float>();
  const Quantizer scales{.grid = NumberFormat::unsigned_float(6, 2)};
  std::array<int, 3> taken{};
  for (int64_t row = 0; row < 5; ++row)
    for (int64_t left = 0; left < 150; left += 64) {
      const float* const block = x.data<float>() + row * 150 + left;
      const int64_t width = std::min<int64_t>(64, 150 - left);
      // The largest of the block is put at 7/4 * 2 * 2.
      const double b = quantized(scalar(largest(block, width) / 7), {.quantizer = scales}).item();
      for (int64_t i = 0; i < width; i += 8) {
        const int64_t eight = std::min<int64_t>(8, width - i);
        const double first = largest(block + i, eight) / b >= 4 ? 2 : 1;  // 7/2 is below 4
        for (int64_t j = i; j < i + eight; j += 4) {
          const int64_t four = std::min<int64_t>(4, width - j);
          const double second = largest(block + j, four) / b / first >= 2 ? 2 : 1;
          ++taken[std::size_t(std::log2(first * second))];
          for (int64_t k = j; k < j + four; ++k) {
            const double s = b * first * second;
            CHECK(y[std::size_t(row * 150 + left + k)] ==
                  float(on_integers(double(block[k]) / s, 0.25, 1.75) * s));
          }
        }
      }
    }
  for (const int count : taken) CHECK(count > 3);
}

TEST_CASE("inner scales: MX6 shifts pairs below the block's exponent") {
  // arXiv 2302.08007: 16 numbers share an exponent, pairs a bit that says "one less".
  Quantizer q{.grid = NumberFormat::integer(5), .scaling = Scaling::per_block(1, 16)};
  q.scaling.inner = {InnerScale{2, 1}};
  check_quantizer("test", q);
  CHECK(q.bits_per_element() == 6);
  const Tensor x = waves(4, 64);
  const std::vector<float> y = quantized(x, {.quantizer = q}).to_vector<float>();
  for (int64_t block = 0; block < x.numel(); block += 16) {
    const float* const in = x.data<float>() + block;
    const int shared = std::ilogb(largest(in, 16));
    for (int64_t i = 0; i < 16; i += 2) {
      const double pair = largest(in + i, 2);
      const int shift = pair == 0 || std::ilogb(pair) < shared ? 1 : 0;
      for (int64_t k = i; k < i + 2; ++k) {
        const double power = std::ldexp(1.0, shared - shift);  // 4 bits of magnitude
        CHECK(y[std::size_t(block + k)] ==
              float(on_integers(double(in[k]) / power, 0.125, 1.875) * power));
      }
    }
  }
}

TEST_CASE("inner scales: NaN, infinity, zeros, surveys") {
  Tensor x = waves(1, 128);
  x.data<float>()[3] = std::numeric_limits<float>::infinity();
  for (int64_t i = 64; i < 128; ++i) x.data<float>()[i] = 0;
  const Tensor row = new_survey_row(x.device());
  const Tensor y = quantized(x, {.quantizer = hif4(), .survey = row});
  CHECK(y.data<float>()[3] == 1.75f);  // the scale is 1
  CHECK(y.data<float>()[4] == on_integers(double(x.data<float>()[4]), 0.25, 1.75));
  CHECK(largest(y.data<float>() + 64, 64) == 0);
  x.data<float>()[3] = 1;
  const Tensor own = new_survey_row(x.device());
  quantized(x, {.quantizer = hif4(), .survey = own});
  Quantizer coarse = hif4();
  coarse.scaling.inner = {};
  const Tensor without = new_survey_row(x.device());
  quantized(x, {.quantizer = coarse, .survey = without});
  CHECK(Survey::from(own).sqnr() > Survey::from(without).sqnr());
  CHECK(Survey::from(own).underflow() < Survey::from(without).underflow());
}

TEST_CASE("inner scales: what a quantizer cannot have") {
  const auto refused = [](const auto& change) {
    Quantizer q = hif4();
    change(q);
    CHECK_THROWS_AS(check_quantizer("q", q), UsageError);
  };
  refused([](Quantizer& q) { q.scaling.inner[0].columns = 24; });
  refused([](Quantizer& q) { q.scaling.inner[0].columns = 64; });
  refused([](Quantizer& q) { q.scaling.inner[1].columns = 3; });
  refused([](Quantizer& q) { q.scaling.inner[0].bits = 4; });
  refused([](Quantizer& q) { q.scaling.inner[0] = {}; });
  refused([](Quantizer& q) { q.scaling.targets = {7, 5}; });
  refused([](Quantizer& q) { q.choice.grids = {NumberFormat::integer(4), formats::e2m1}; });
  refused([](Quantizer& q) { q.grid = formats::f32; });
}

}  // namespace
}  // namespace halftone::test::inner_scale_test
