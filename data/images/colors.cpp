// Color changes as Pillow's ImageEnhance and its 8-bit HSV make them: blends of the image with a
// degenerate one in f32, truncated to bytes.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>
#include <halftone/data/images/image.h>
#include <halftone/data/random_uniform.h>
#include <halftone/data/transforms.h>

namespace halftone::data {

namespace {
/// Returns degenerate + factor * (value - degenerate).
uint8_t blend(int degenerate, int value, float factor) {
  const float mixed = float(degenerate) + factor * float(value - degenerate);
  return uint8_t(std::clamp(mixed, 0.0f, 255.0f));
}

/// Returns the luma of ITU-R 601 in 16-bit fixed point.
int gray_of(const uint8_t* rgb) {
  return (rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16;
}

Tensor checked(std::string_view op, const Tensor& image, double factor) {
  check_image(op, image);
  if (image.size(2) != 1 && image.size(2) != 3)
    fail<ShapeError>(op, "an image of ", image.size(2), " channels: ", described(image),
                     ". Pass 1 (gray) or 3 (RGB) channels.");
  if (!std::isfinite(factor) || (op != "adjust_hue" && factor < 0))
    fail<UsageError>(op, "the factor is ", factor, ". Give a finite number that is not negative.");
  return views::contiguous(image);
}

/// Replaces every byte by change(pixel, byte); pixel points at the channels of its pixel.
template <class Change> Tensor each_byte(const Tensor& x, Change change) {
  Tensor y = empty(x.shape(), u8);
  const uint8_t* from = x.data<uint8_t>();
  uint8_t* to = y.data<uint8_t>();
  const int64_t channels = x.size(2);
  for (int64_t i = 0; i < x.numel(); i += channels)
    for (int64_t c = 0; c < channels; ++c) to[i + c] = change(from + i, from[i + c]);
  return y;
}

using Pixel = std::array<uint8_t, 3>;

/// Returns hue, saturation and value, each on 0 to 255.
Pixel to_hsv(const uint8_t* rgb) {
  const int red = rgb[0], green = rgb[1], blue = rgb[2];
  const int most = std::max({red, green, blue}), least = std::min({red, green, blue});
  if (most == least) return {0, 0, uint8_t(most)};
  const auto range = float(most - least);
  const float r = float(most - red) / range, g = float(most - green) / range,
              b = float(most - blue) / range;
  float sixth = 0;
  if (red == most) sixth = b - g;
  else if (green == most) sixth = float(2.0 + double(r) - double(b));
  else sixth = float(4.0 + double(g) - double(r));
  const auto hue = float(std::fmod(double(sixth) / 6.0 + 1.0, 1.0));
  return {uint8_t(double(hue) * 255.0), uint8_t(double(range / float(most)) * 255.0),
          uint8_t(most)};
}

Pixel to_rgb(const Pixel& hsv) {
  const uint8_t v = hsv[2];
  if (hsv[1] == 0) return {v, v, v};
  const auto sixth = float(hsv[0] * 6.0 / 255.0), saturation = float(hsv[1] / 255.0);
  const auto sector = int(std::floor(sixth));
  const float f = sixth - float(sector);
  const auto faded = [v](double by) {
    return uint8_t(std::clamp(std::round(v * (1.0 - by)), 0.0, 255.0));
  };
  const uint8_t p = faded(saturation), q = faded(saturation * f), t = faded(saturation * (1.0 - f));
  switch (sector % 6) {
    case 0: return {v, t, p};
    case 1: return {q, v, p};
    case 2: return {p, v, t};
    case 3: return {p, q, v};
    case 4: return {t, p, v};
    default: return {v, p, q};
  }
}

void check_jitter(const ColorJitter& jitter) {
  for (const double amount : {jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue})
    if (!(amount >= 0) || !std::isfinite(amount) || jitter.hue > 0.5)
      fail<UsageError>("ColorJitter", "amounts are out of range: brightness ", jitter.brightness,
                       ", contrast ", jitter.contrast, ", saturation ", jitter.saturation, ", hue ",
                       jitter.hue, ". Give numbers from 0, for hue up to 0.5.");
}
}  // namespace

Tensor adjust_brightness(const Tensor& image, double factor) {
  const Tensor x = checked("adjust_brightness", image, factor);
  return each_byte(x, [factor](const uint8_t*, int byte) { return blend(0, byte, float(factor)); });
}

Tensor adjust_contrast(const Tensor& image, double factor) {
  const Tensor x = checked("adjust_contrast", image, factor);
  const int64_t channels = x.size(2), pixels = x.numel() / channels;
  int64_t sum = 0;
  for (int64_t i = 0; i < pixels; ++i) {
    const uint8_t* pixel = x.data<uint8_t>() + i * channels;
    sum += channels == 3 ? gray_of(pixel) : *pixel;
  }
  const auto mean = int(std::floor(double(sum) / double(pixels) + 0.5));
  return each_byte(
      x, [mean, factor](const uint8_t*, int byte) { return blend(mean, byte, float(factor)); });
}

Tensor adjust_saturation(const Tensor& image, double factor) {
  Tensor x = checked("adjust_saturation", image, factor);
  if (x.size(2) == 1) return x;
  return each_byte(x, [factor](const uint8_t* pixel, int byte) {
    return blend(gray_of(pixel), byte, float(factor));
  });
}

Tensor adjust_hue(const Tensor& image, double turn) {
  Tensor x = checked("adjust_hue", image, turn);
  if (!(turn >= -0.5 && turn <= 0.5))
    fail<UsageError>("adjust_hue", "the turn is ", turn, ". Give a number from -0.5 to 0.5.");
  if (x.size(2) == 1) return x;
  Tensor y = empty(x.shape(), u8);
  for (int64_t i = 0; i < x.numel(); i += 3) {
    Pixel hsv = to_hsv(x.data<uint8_t>() + i);
    hsv[0] = uint8_t(hsv[0] + int(turn * 255));  // modulo 256, as in torchvision
    std::ranges::copy(to_rgb(hsv), y.data<uint8_t>() + i);
  }
  return y;
}

Tensor ColorJitter::operator()(const Tensor& image, Generator& random) const {
  check_jitter(*this);
  std::array<int, 4> order{0, 1, 2, 3};
  shuffle(order, random);
  const auto factor = [&random](double amount) {
    return uniform(random, std::max(0.0, 1 - amount), 1 + amount);
  };
  Tensor x = image;
  for (const int change : order) {
    if (change == 0 && brightness > 0) x = adjust_brightness(x, factor(brightness));
    if (change == 1 && contrast > 0) x = adjust_contrast(x, factor(contrast));
    if (change == 2 && saturation > 0) x = adjust_saturation(x, factor(saturation));
    if (change == 3 && hue > 0) x = adjust_hue(x, uniform(random, -hue, hue));
  }
  return x;
}

}  // namespace halftone::data
