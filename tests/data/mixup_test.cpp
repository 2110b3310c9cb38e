// mixup: sums, targets, the distribution of the share, messages.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <halftone/core/factory.h>
#include <halftone/data/transforms.h>

#include "../support.h"

namespace halftone::test::mixup_test {

using data::Batch, data::MixedBatch, data::mixup, data::symmetric_beta;

TEST_CASE("mixup blends every row with another and keeps both targets") {
  const Batch batch{from({{0.0, 10}, {1, 20}, {2, 30}, {3, 40}}), from({0, 1, 2, 3}, i64)};
  Generator random(1), same(1);
  const MixedBatch mixed = mixup(batch, 1, random), again = mixup(batch, 1, same);
  CHECK(mixed.share > 0);
  CHECK(mixed.share < 1);
  CHECK(mixed.inputs.to_vector<float>() == again.inputs.to_vector<float>());
  CHECK(mixed.targets.to_vector<int64_t>() == std::vector<int64_t>{0, 1, 2, 3});
  const std::vector<int64_t> others = mixed.other_targets.to_vector<int64_t>();
  const auto share = float(mixed.share);
  for (int64_t i = 0; i < 4; ++i) {
    const auto other = float(others[std::size_t(i)]);
    CHECK(mixed.inputs.at({i, 0}) == share * float(i) + (1 - share) * other);
    CHECK(mixed.inputs.at({i, 1}) == share * float(10 * (i + 1)) + (1 - share) * 10 * (other + 1));
  }
  std::vector<int64_t> sorted = others;
  std::sort(sorted.begin(), sorted.end());
  CHECK(sorted == std::vector<int64_t>{0, 1, 2, 3});
  CHECK(batch.inputs.at({3, 1}) == 40);  // not in place
}

TEST_CASE("mixup with alpha 0 mixes nothing") {
  const Batch batch{from({{1.0, 2}}), from({0}, i64)};
  Generator random(1);
  const MixedBatch mixed = mixup(batch, 0, random);
  CHECK(mixed.share == 1);
  CHECK(mixed.inputs.to_vector<float>() == batch.inputs.to_vector<float>());
  CHECK(random.state().offset == 0);
}

TEST_CASE("shares follow Beta(alpha, alpha)") {
  // Its mean is 1/2 and its variance 1 / (4 (2 alpha + 1)).
  for (const double alpha : {0.05, 0.2, 1.0, 4.0}) {
    CAPTURE(alpha);
    Generator random(3);
    constexpr int draws = 20000;
    double sum = 0, squares = 0;
    for (int i = 0; i < draws; ++i) {
      const double share = symmetric_beta(alpha, random);
      REQUIRE((share >= 0 && share <= 1));
      sum += share - 0.5, squares += (share - 0.5) * (share - 0.5);
    }
    const double variance = 1 / (4 * (2 * alpha + 1)), four_sigma = 4 / std::sqrt(draws);
    CHECK(std::abs(sum / draws) < four_sigma * std::sqrt(variance));
    CHECK(std::abs(squares / draws / variance - 1) < four_sigma * std::sqrt(2.0));
  }
}

TEST_CASE("mixup explains invalid arguments") {
  Generator random(1);
  const Tensor x = zeros({2, 3}), y = zeros({2}, i64);
  CHECK(message_of<UsageError>([&] {
          mixup({x, y}, -1, random);
        }) == "[mixup] alpha is -1. Give a number from 0, such as 0.2.");
  CHECK(message_of<DTypeError>([&] {
          mixup({zeros({2, 3}, u8), y}, 1, random);
        }) == "[mixup] the inputs must be f32: they are [2, 3] u8. Mix before converting.");
  CHECK(message_of<ShapeError>([&] {
          mixup({x, zeros({3}, i64)}, 1, random);
        }) == "[mixup] inputs and targets are not a batch. Pass [k, ...] and [k, ...].");
  CHECK(contains(message_of<ShapeError>([&] { mixup({Tensor(), y}, 1, random); }), "not a batch"));
}

}  // namespace halftone::test::mixup_test
