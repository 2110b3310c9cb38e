// A choice of grids: each block is one of its candidates, the one with the least error.
#include <cmath>

#include <doctest/doctest.h>

#include <halftone/core/factory.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/formats/survey.h>

#include "../support.h"

namespace halftone::test::grid_choice_test {
namespace {

/// Blocks of normal numbers, and of a few sizes: so that each grid is the best of some.
Tensor mixed() {
  manual_seed(4);
  Tensor x = randn({12, 50});
  for (int64_t i = 0; i < x.numel(); ++i)
    if (i / 16 % 3 == 0) x.data<float>()[i] = std::round(4 * x.data<float>()[i]) / 4;
  return x;
}

std::vector<float> numbers_of(const Tensor& x) { return x.to_vector<float>(); }

TEST_CASE("grid choice: every block is that of the grid with the least error") {
  const Tensor x = mixed();
  for (const ScaleError by : {ScaleError::mse, ScaleError::mae, ScaleError::max})
    for (const Scaling& scaling :
         {Scaling::per_block(1, 16, formats::e4m3), Scaling::per_block(3, 8)}) {
      Quantizer quantizer{.grid = formats::e2m1, .scaling = scaling};
      const std::vector<NumberFormat> grids{formats::e2m1, NumberFormat::integer(4),
                                            NumberFormat::ieee_like(3, 0)};
      std::vector<std::vector<float>> each;
      for (const NumberFormat& grid : grids)
        each.push_back(
            numbers_of(quantized(x, {.quantizer = Quantizer{.grid = grid, .scaling = scaling}})));
      quantizer.choice = {.grids = grids, .by = by};
      check_quantizer("test", quantizer);
      const std::vector<float> y = numbers_of(quantized(x, {.quantizer = quantizer})),
                               in = numbers_of(x);
      std::array<int, 3> taken{};
      for (int64_t top = 0; top < 12; top += scaling.rows)
        for (int64_t left = 0; left < 50; left += scaling.columns) {
          std::size_t best = 0;
          double least = HUGE_VAL;
          const auto places = [&](auto use) {
            for (int64_t i = top; i < std::min<int64_t>(12, top + scaling.rows); ++i)
              for (int64_t j = left; j < std::min<int64_t>(50, left + scaling.columns); ++j)
                use(std::size_t(i * 50 + j));
          };
          for (std::size_t g = 0; g < grids.size(); ++g) {
            double error = 0;
            places([&](std::size_t at) {
              const double e = std::abs(double(each[g][at]) - double(in[at]));
              error = by == ScaleError::max ? std::max(error, e)
                                            : error + (by == ScaleError::mse ? e * e : e);
            });
            if (error < least) least = error, best = g;
          }
          ++taken[best];
          places([&](std::size_t at) { CHECK(y[at] == each[best][at]); });
        }
      CHECK(taken[0] > 0);
      CHECK(taken[1] > 0);
    }
}

TEST_CASE("grid choice: stochastic numbers, rotations, surveys, bits and words") {
  const Tensor x = mixed();
  Quantizer quantizer{.grid = formats::e2m1, .scaling = Scaling::per_block(1, 16, formats::e4m3)};
  quantizer.choice = {.grids = {formats::e2m1, NumberFormat::integer(4)}};
  CHECK(described(quantizer) == "e2m1 or int4, blocks of 1x16 with e4m3 scales, the grid by mse");
  CHECK(quantizer.bits_per_element() == 4 + 9.0 / 16);
  CHECK(quantizer.exact_in(f32));
  CHECK_FALSE(quantizer.exact_in(bf16));
  const Tensor row = new_survey_row(x.device());
  const Tensor y = quantized(x, {.quantizer = quantizer, .survey = row});
  CHECK(numbers_of(y) == numbers_of(quantized(x, {.quantizer = quantizer})));
  const Survey survey = Survey::from(row);
  CHECK(survey.sums.count == 600);
  CHECK(survey.sqnr() > 15);
  CHECK(survey.sqnr() > 10 * std::log10(1.0));
  quantizer.rounding = Rounding::stochastic;
  const RandomKey key{5, 0};
  const Tensor drawn = quantized(x, {.quantizer = quantizer, .key = key});
  CHECK(numbers_of(drawn) == numbers_of(quantized(x, {.quantizer = quantizer, .key = key})));
  CHECK(numbers_of(drawn) != numbers_of(y));
  quantizer.rounding = Rounding::nearest_even, quantizer.hadamard = 2;
  CHECK(numbers_of(quantized(x, {.quantizer = quantizer})) != numbers_of(y));
  quantizer.hadamard = 0, quantizer.scaling = {};
  CHECK_THROWS_WITH_AS(check_quantizer("q", quantizer),
                       "[q] grids are chosen for each block, and the quantizer has no blocks. Give "
                       "it a scale per block.",
                       UsageError);
  quantizer.choice.grids = {formats::e2m1, formats::e2m1};
  CHECK_THROWS_AS(check_quantizer("q", quantizer), UsageError);
}

}  // namespace
}  // namespace halftone::test::grid_choice_test
