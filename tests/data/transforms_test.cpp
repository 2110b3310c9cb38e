// Transforms compared with Pillow, to the bit, and the bounds of the random ones.
#include <algorithm>
#include <cmath>
#include <set>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "../support.h"
#include "image_fixtures.h"

namespace halftone::test::transforms_test {

using namespace halftone::data;

namespace {
/// Byte = 10 * row + column + 100 * channel.
Tensor numbered(int64_t height, int64_t width, int64_t channels = 1) {
  const Tensor image = empty({height, width, channels}, u8);
  uint8_t* to = image.data<uint8_t>();
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (int64_t c = 0; c < channels; ++c) *to++ = uint8_t(10 * y + x + 100 * c);
  return image;
}

std::vector<int64_t> bytes_of(const Tensor& image) { return image.to_vector<int64_t>(); }

template <class Transform>
Tensor run(const Transform& transform, const Tensor& x, uint64_t seed = 1) {
  Generator random(seed);
  return transform(x, random);
}
}  // namespace

TEST_CASE("resize_image is Pillow's antialiased bilinear filter") {
  const nlohmann::json& expected = expected_images();
  for (const char* name : {"", "_grey"}) {
    const bool grey = *name != 0;
    const Tensor image = image_of(expected.at(grey ? "grey" : "image"));
    for (const nlohmann::json& described : expected.at(std::string("resized") + name)) {
      const Tensor y = image_of(described);
      CAPTURE(y.size(0));
      CHECK(largest_difference(resize_image(image, y.size(0), y.size(1)), y) == 0);
    }
  }
  const Tensor part = views::slice(numbered(9, 9, 3), 1, 2, 5);  // not row-major
  CHECK(largest_difference(resize_image(part, 4, 4), resize_image(views::contiguous(part), 4, 4)) ==
        0);
}

TEST_CASE("colors change as Pillow changes them") {
  const nlohmann::json& expected = expected_images();
  const Tensor image = image_of(expected.at("image"));
  const auto factors = expected.at("factors").get<std::vector<double>>();
  using Adjust = Tensor (*)(const Tensor&, double);
  for (const auto& [name, adjust] :
       {std::pair<const char*, Adjust>{"brightness", adjust_brightness},
        {"contrast", adjust_contrast},
        {"saturation", adjust_saturation}})
    for (std::size_t i = 0; i < factors.size(); ++i) {
      CAPTURE(name);
      CAPTURE(factors[i]);
      CHECK(largest_difference(adjust(image, factors[i]),
                               image_of(expected.at("adjusted").at(name).at(i))) == 0);
    }
  const auto turns = expected.at("turns").get<std::vector<double>>();
  for (std::size_t i = 0; i < turns.size(); ++i) {
    CAPTURE(turns[i]);
    CHECK(largest_difference(adjust_hue(image, turns[i]), image_of(expected.at("turned").at(i))) ==
          0);
  }
  const Tensor grey = image_of(expected.at("grey"));
  CHECK(largest_difference(adjust_saturation(grey, 0), grey) == 0);
  CHECK(largest_difference(adjust_hue(grey, 0.3), grey) == 0);
}

TEST_CASE("Resize keeps the aspect ratio or takes two sizes") {
  CHECK(run(Resize{.shorter_side = 6}, numbered(12, 18)).shape() == Shape{6, 9, 1});
  CHECK(run(Resize{.shorter_side = 6}, numbered(19, 12, 3)).shape() == Shape{9, 6, 3});
  CHECK(run(Resize{.height = 5, .width = 7}, numbered(12, 18)).shape() == Shape{5, 7, 1});
}

TEST_CASE("crops and flips move pixels and change none") {
  const Tensor x = numbered(4, 5);
  CHECK(bytes_of(crop_image(x, 1, 2, 2, 3)) == std::vector<int64_t>{12, 13, 14, 22, 23, 24});
  CHECK(bytes_of(crop_image(x, -1, 4, 2, 2)) == std::vector<int64_t>{0, 0, 4, 0});
  CHECK(bytes_of(crop_image(x, 9, 9, 1, 2)) == std::vector<int64_t>{0, 0});
  CHECK(bytes_of(run(CenterCrop{2}, x)) == std::vector<int64_t>{12, 13, 22, 23});
  CHECK(bytes_of(run(CenterCrop{5}, numbered(3, 3))) ==
        std::vector<int64_t>{0,  0, 0, 0,  0,  0,  0, 1, 2, 0, 0, 10, 11,
                             12, 0, 0, 20, 21, 22, 0, 0, 0, 0, 0, 0});
  CHECK(bytes_of(flip_image(numbered(2, 2, 2))) ==
        std::vector<int64_t>{1, 101, 0, 100, 11, 111, 10, 110});
  CHECK(largest_difference(flip_image(flip_image(x)), x) == 0);
}

TEST_CASE("random crops reach every position and only those") {
  std::set<int64_t> corners;
  for (uint64_t seed = 0; seed < 300; ++seed)
    corners.insert(bytes_of(run(RandomCrop{.size = 3}, numbered(4, 5), seed))[0]);
  CHECK(corners == std::set<int64_t>{0, 1, 2, 10, 11, 12});
  std::set<std::vector<int64_t>> padded;
  for (uint64_t seed = 0; seed < 300; ++seed)
    padded.insert(bytes_of(run(RandomCrop{.size = 2, .padding = 1}, numbered(2, 2), seed)));
  CHECK(padded.size() == 9);
}

TEST_CASE("RandomHorizontalFlip flips as often as it says") {
  int flipped = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed)
    flipped += bytes_of(run(RandomHorizontalFlip{0.25}, numbered(1, 2), seed))[0] == 1;
  CHECK(flipped > 200);
  CHECK(flipped < 300);
  CHECK(bytes_of(run(RandomHorizontalFlip{0}, numbered(1, 2)))[0] == 0);
  CHECK(bytes_of(run(RandomHorizontalFlip{1}, numbered(1, 2)))[0] == 1);
}

TEST_CASE("RandomResizedCrop takes parts of the right size, from images of any form") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Tensor y = run(RandomResizedCrop{.size = 8}, numbered(20, 6, 3), seed);
    REQUIRE(y.shape() == Shape{8, 8, 3});
  }
  // Nothing fits into a line: the result is the middle part with the nearest aspect.
  CHECK(run(RandomResizedCrop{.size = 4}, numbered(1, 60)).shape() == Shape{4, 4, 1});
  CHECK(run(RandomResizedCrop{.size = 4}, numbered(25, 1)).shape() == Shape{4, 4, 1});
  // The largest part of a square is the square.
  const Tensor whole = numbered(8, 8);
  CHECK(largest_difference(
            run(
                RandomResizedCrop{
                    .size = 8, .min_area = 1, .max_area = 1, .min_aspect = 1, .max_aspect = 1},
                whole),
            whole) == 0);
}

TEST_CASE("ColorJitter stays in its ranges and does nothing by default") {
  const Tensor x = image_of(expected_images().at("image"));
  CHECK(largest_difference(run(ColorJitter{}, x), x) == 0);
  const ColorJitter jitter{.brightness = 0.4, .contrast = 0.4, .saturation = 0.4, .hue = 0.1};
  CHECK(largest_difference(run(jitter, x, 3), run(jitter, x, 3)) == 0);
  CHECK(largest_difference(run(jitter, x, 3), run(jitter, x, 4)) > 0);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const int64_t y =
        bytes_of(run(ColorJitter{.brightness = 0.5}, full({1, 1, 1}, 100, u8), seed))[0];
    CHECK(y >= 50);
    CHECK(y <= 150);
  }
}

TEST_CASE("Normalize gives planes of floats") {
  const Tensor x = numbered(2, 2, 3);
  const Tensor y = run(Normalize{.mean = {0.5, 0, 0.25}, .std = {0.5, 1, 2}}, x);
  REQUIRE(y.shape() == Shape{3, 2, 2});
  CHECK(y.dtype() == f32);
  for (int64_t c = 0; c < 3; ++c)
    for (int64_t i = 0; i < 4; ++i) {
      const float mean[] = {0.5f, 0, 0.25f}, std[] = {0.5f, 1, 2};
      const float byte = x.data<uint8_t>()[i * 3 + c];
      CHECK(y.data<float>()[c * 4 + i] == (byte / 255.0f - mean[c]) / std[c]);
    }
  CHECK(run(Normalize{}, full({1, 1, 1}, 255, u8)).item() == 1);
}

TEST_CASE("Compose applies steps in order, lambdas included") {
  const Compose steps{{CenterCrop{2}, RandomHorizontalFlip{1},
                       [](const Tensor& x, Generator&) { return crop_image(x, 0, 0, 1, 2); }}};
  CHECK(bytes_of(run(steps, numbered(4, 4))) == std::vector<int64_t>{12, 11});
  CHECK(bytes_of(run(Compose{}, numbered(1, 1))) == std::vector<int64_t>{0});
}

TEST_CASE("transforms explain invalid arguments") {
  const Tensor x = numbered(4, 4, 3);
  CHECK(MESSAGE_OF(ShapeError, run(Resize{.shorter_side = 2}, zeros({4, 4}, u8))) ==
        "[Resize] not an image: it has 2 dimensions and 16 elements. Pass u8 [height, width, "
        "channels].");
  CHECK(contains(MESSAGE_OF(DTypeError, run(CenterCrop{2}, zeros({4, 4, 3}))),
                 "[CenterCrop] not an image of bytes: it is [4, 4, 3] f32"));
  CHECK(MESSAGE_OF(UsageError, run(Resize{}, x)) ==
        "[Resize] no size: shorter_side is 0, height and width are 0. Give shorter_side, or height "
        "and width.");
  CHECK(MESSAGE_OF(UsageError, run(Resize{.height = 4}, x)) ==
        "[Resize] cannot resize to 4 x 0. Give sizes from 1 to 65535.");
  CHECK(MESSAGE_OF(UsageError, run(CenterCrop{}, x)) ==
        "[CenterCrop] size is 0. Give a size from 1 to 65535.");
  CHECK(MESSAGE_OF(ShapeError, run(RandomCrop{.size = 7, .padding = 1}, x)) ==
        "[RandomCrop] the image is smaller than the crop: it is [4, 4, 3] u8, the size is 7 and "
        "the padding 1. Resize first, or pad more.");
  CHECK(contains(MESSAGE_OF(UsageError, run(RandomCrop{.size = 2, .padding = -1}, x)),
                 "padding is -1"));
  CHECK(contains(MESSAGE_OF(UsageError, run(RandomResizedCrop{.size = 2, .min_area = 2}, x)),
                 "ranges are out of order: area 2 to 1"));
  CHECK(contains(MESSAGE_OF(UsageError, run(RandomHorizontalFlip{1.5}, x)), "probability is 1.5"));
  CHECK(contains(MESSAGE_OF(UsageError, run(ColorJitter{.hue = 0.6}, x)), "hue 0.6"));
  CHECK(contains(MESSAGE_OF(UsageError, run(ColorJitter{.contrast = -1}, x)), "contrast -1"));
  CHECK(contains(MESSAGE_OF(UsageError, adjust_brightness(x, -1)), "the factor is -1"));
  CHECK(contains(MESSAGE_OF(UsageError, adjust_hue(x, 0.7)), "the turn is 0.7"));
  CHECK(
      contains(MESSAGE_OF(ShapeError, adjust_hue(numbered(2, 2, 2), 0)), "an image of 2 channels"));
  CHECK(MESSAGE_OF(UsageError, run(Normalize{.mean = {1, 2}}, x)) ==
        "[Normalize] 2 values of mean for images of 3 channels. Give one value per channel.");
  CHECK(contains(MESSAGE_OF(UsageError, run(Normalize{.std = {1, 0, 1}}, x)),
                 "cannot normalize channel 1: mean is 0, std is 0"));
}

}  // namespace halftone::test::transforms_test

// mixup: sums, targets, the distribution of the share, messages.

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
  CHECK(MESSAGE_OF(UsageError, mixup({x, y}, -1, random)) ==
        "[mixup] alpha is -1. Give a number from 0, such as 0.2.");
  CHECK(MESSAGE_OF(DTypeError, mixup({zeros({2, 3}, u8), y}, 1, random)) ==
        "[mixup] the inputs must be f32: they are [2, 3] u8. Mix before converting.");
  CHECK(MESSAGE_OF(ShapeError, mixup({x, zeros({3}, i64)}, 1, random)) ==
        "[mixup] inputs and targets are not a batch. Pass [k, ...] and [k, ...].");
  CHECK(contains(MESSAGE_OF(ShapeError, mixup({Tensor(), y}, 1, random)), "not a batch"));
}

}  // namespace halftone::test::mixup_test
