// Colors, crops, resizing, mixup.
#include <halftone/data/transforms.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>
#include <utility>
#include <vector>

#include <halftone/core/factory.h>
#include <halftone/core/math.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>
#include <halftone/data/data_loader.h>
#include <halftone/data/images.h>

namespace halftone::data {

// Color changes as Pillow's ImageEnhance and its 8-bit HSV make them: blends of the image with a
// degenerate one in f32, truncated to bytes.

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

// Crops, flips, composition, and the last step to floats. Random positions are drawn as torchvision
// draws them, though from another generator.

namespace {
void check_size(std::string_view op, int64_t size) {
  if (size < 1 || size > 65535)
    fail<UsageError>(op, "size is ", size, ". Give a size from 1 to 65535.");
}
}  // namespace

Tensor Compose::operator()(const Tensor& image, Generator& random) const {
  Tensor x = image;
  for (const ImageTransform& step : steps) x = step(x, random);
  return x;
}

Tensor crop_image(const Tensor& image, int64_t top, int64_t left, int64_t height, int64_t width) {
  check_image("crop_image", image);
  check_size("crop_image", height);
  check_size("crop_image", width);
  constexpr int64_t outside = int64_t(1) << 32;  // outside any image, so that sums cannot overflow
  top = std::clamp(top, -outside, outside), left = std::clamp(left, -outside, outside);
  const Tensor x = views::contiguous(image);
  const int64_t channels = x.size(2);
  Tensor y = empty({height, width, channels}, u8);
  std::memset(y.data<uint8_t>(), 0, std::size_t(y.numel()));
  const int64_t first_row = std::max<int64_t>(top, 0), end_row = std::min(top + height, x.size(0)),
                first = std::max<int64_t>(left, 0), end = std::min(left + width, x.size(1));
  if (first >= end) return y;
  for (int64_t row = first_row; row < end_row; ++row)
    std::memcpy(y.data<uint8_t>() + ((row - top) * width + first - left) * channels,
                x.data<uint8_t>() + (row * x.size(1) + first) * channels,
                std::size_t((end - first) * channels));
  return y;
}

Tensor CenterCrop::operator()(const Tensor& image, Generator&) const {
  check_image("CenterCrop", image);
  check_size("CenterCrop", size);
  // Halves round to even if the image is cut, and down if it is padded, as in torchvision.
  const auto start = [this](int64_t length) {
    return length >= size ? int64_t(std::nearbyint(double(length - size) / 2))
                          : -((size - length) / 2);
  };
  return crop_image(image, start(image.size(0)), start(image.size(1)), size, size);
}

Tensor RandomCrop::operator()(const Tensor& image, Generator& random) const {
  check_image("RandomCrop", image);
  check_size("RandomCrop", size);
  if (padding < 0 || padding > 65535)
    fail<UsageError>("RandomCrop", "padding is ", padding, ". Give 0 to 65535 pixels.");
  const int64_t rows = image.size(0) + 2 * padding - size,
                columns = image.size(1) + 2 * padding - size;
  if (rows < 0 || columns < 0)
    fail<ShapeError>("RandomCrop", "the image is smaller than the crop: it is ", described(image),
                     ", the size is ", size, " and the padding ", padding,
                     ". Resize first, or pad more.");
  const auto top = int64_t(random.below(uint64_t(rows) + 1)),
             left = int64_t(random.below(uint64_t(columns) + 1));
  return crop_image(image, top - padding, left - padding, size, size);
}

Tensor RandomResizedCrop::operator()(const Tensor& image, Generator& random) const {
  check_image("RandomResizedCrop", image);
  check_size("RandomResizedCrop", size);
  if (!(min_area > 0) || !(min_area <= max_area) || !std::isfinite(max_area) || !(min_aspect > 0) ||
      !(min_aspect <= max_aspect) || !std::isfinite(max_aspect))
    fail<UsageError>("RandomResizedCrop", "ranges are out of order: area ", min_area, " to ",
                     max_area, ", aspect ", min_aspect, " to ", max_aspect,
                     ". Give positive ranges, the smaller value first.");
  const int64_t rows = image.size(0), columns = image.size(1);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = double(rows * columns) * uniform(random, min_area, max_area);
    const double aspect =
        elementary::exp(uniform(random, elementary::log(min_aspect), elementary::log(max_aspect)));
    const double width = std::nearbyint(std::sqrt(area * aspect)),
                 height = std::nearbyint(std::sqrt(area / aspect));
    if (width < 1 || height < 1 || width > double(columns) || height > double(rows)) continue;
    const auto top = int64_t(random.below(uint64_t(rows - int64_t(height)) + 1)),
               left = int64_t(random.below(uint64_t(columns - int64_t(width)) + 1));
    return resize_image(crop_image(image, top, left, int64_t(height), int64_t(width)), size, size);
  }
  // No try fitted: take the largest middle part with an aspect inside the range.
  int64_t width = columns, height = rows;
  const double aspect = double(columns) / double(rows);
  if (aspect < min_aspect)
    height = std::clamp<int64_t>(std::llround(double(columns) / min_aspect), 1, rows);
  else if (aspect > max_aspect)
    width = std::clamp<int64_t>(std::llround(double(rows) * max_aspect), 1, columns);
  return resize_image(crop_image(image, (rows - height) / 2, (columns - width) / 2, height, width),
                      size, size);
}

Tensor flip_image(const Tensor& image) {
  check_image("flip_image", image);
  const Tensor x = views::contiguous(image);
  Tensor y = empty(image.shape(), u8);
  const int64_t columns = x.size(1), channels = x.size(2);
  const uint8_t* from = x.data<uint8_t>();
  uint8_t* to = y.data<uint8_t>();
  for (int64_t row = 0; row < x.size(0); ++row, from += columns * channels)
    for (int64_t column = columns; column-- > 0; to += channels)
      std::memcpy(to, from + column * channels, std::size_t(channels));
  return y;
}

Tensor RandomHorizontalFlip::operator()(const Tensor& image, Generator& random) const {
  if (!(probability >= 0 && probability <= 1))
    fail<UsageError>("RandomHorizontalFlip", "probability is ", probability,
                     ". Give a number from 0 to 1.");
  return uniform(random) < probability ? flip_image(image) : image;
}

Tensor Normalize::operator()(const Tensor& image, Generator&) const {
  check_image("Normalize", image);
  const Tensor x = views::contiguous(image);
  const int64_t channels = x.size(2), plane = x.size(0) * x.size(1);
  const std::vector<double> means = per_channel("Normalize", "mean", mean, 0, channels);
  const std::vector<double> deviations = per_channel("Normalize", "std", std, 1, channels);
  Tensor y = empty({channels, x.size(0), x.size(1)}, f32);
  float* to = y.data<float>();
  for (int64_t c = 0; c < channels; ++c, to += plane) {
    const double m = means[std::size_t(c)], s = deviations[std::size_t(c)];
    if (!(s > 0) || !std::isfinite(s) || !std::isfinite(m))
      fail<UsageError>("Normalize", "cannot normalize channel ", c, ": mean is ", m, ", std is ", s,
                       ". Give a finite mean and a finite std above 0.");
    std::array<float, 256> value_of{};  // the arithmetic of PyTorch's ToTensor and Normalize
    for (int byte = 0; byte < 256; ++byte)
      value_of[std::size_t(byte)] = (float(byte) / 255.0f - float(m)) / float(s);
    const uint8_t* from = x.data<uint8_t>() + c;
    for (int64_t i = 0; i < plane; ++i) to[i] = value_of[from[i * channels]];
  }
  return y;
}

// Resizes as Pillow does (src/libImaging/Resample.c): two passes, rows first. Each pass is a
// weighted sum with 22-bit fixed-point weights of a triangle as wide as the scale, and rounds to
// bytes in between.

namespace {
constexpr int weight_bits = 22;
constexpr int64_t largest_side = 65535;

/// Output i is the sum of weights[i * most + k] * input[first[i] + k] for k below count[i].
struct Weights {
  int64_t most = 0;
  std::vector<int64_t> first, count;
  std::vector<int32_t> weights;
};

Weights triangle_weights(int64_t inputs, int64_t outputs) {
  const double scale = double(inputs) / double(outputs), width = std::max(scale, 1.0);
  Weights result;
  result.most = int64_t(std::ceil(width)) * 2 + 1;
  result.weights.resize(std::size_t(outputs * result.most));
  std::vector<double> row(std::size_t(result.most));
  for (int64_t i = 0; i < outputs; ++i) {
    const double center = (double(i) + 0.5) * scale;
    const int64_t begin = std::max<int64_t>(int64_t(std::floor(center - width + 0.5)), 0),
                  end = std::min<int64_t>(int64_t(std::floor(center + width + 0.5)), inputs);
    double sum = 0;
    for (int64_t k = 0; k < end - begin; ++k) {
      const double distance = std::abs((double(k + begin) - center + 0.5) * (1.0 / width));
      row[std::size_t(k)] = distance < 1 ? 1 - distance : 0;
      sum += row[std::size_t(k)];
    }
    for (int64_t k = 0; k < end - begin; ++k)
      result.weights[std::size_t(i * result.most + k)] =
          int32_t(std::floor(0.5 + row[std::size_t(k)] / sum * (1 << weight_bits)));
    result.first.push_back(begin);
    result.count.push_back(end - begin);
  }
  return result;
}

/// Runs one pass over x: [outer, inputs, inner] to [outer, outputs, inner].
void resample(const uint8_t* x, uint8_t* y, int64_t outer, int64_t inputs, int64_t inner,
              const Weights& by) {
  const auto outputs = int64_t(by.first.size());
  std::vector<int32_t> sums(static_cast<std::size_t>(inner));
  for (int64_t o = 0; o < outer; ++o, x += inputs * inner) {
    for (int64_t i = 0; i < outputs; ++i, y += inner) {
      std::ranges::fill(sums, 1 << (weight_bits - 1));
      const int32_t* weight = &by.weights[std::size_t(i * by.most)];
      const uint8_t* from = x + by.first[std::size_t(i)] * inner;
      for (int64_t k = 0; k < by.count[std::size_t(i)]; ++k, from += inner)
        for (int64_t c = 0; c < inner; ++c) sums[std::size_t(c)] += from[c] * weight[k];
      for (int64_t c = 0; c < inner; ++c)
        y[c] = uint8_t(std::clamp(sums[std::size_t(c)] >> weight_bits, 0, 255));
    }
  }
}
}  // namespace

Tensor resize_image(const Tensor& image, int64_t height, int64_t width) {
  check_image("Resize", image);
  if (height < 1 || width < 1 || height > largest_side || width > largest_side)
    fail<UsageError>("Resize", "cannot resize to ", height, " x ", width,
                     ". Give sizes from 1 to 65535.");
  Tensor x = views::contiguous(image);
  const int64_t channels = x.size(2);
  if (width != x.size(1)) {
    Tensor y = empty({x.size(0), width, channels}, u8);
    resample(x.data<uint8_t>(), y.data<uint8_t>(), x.size(0), x.size(1), channels,
             triangle_weights(x.size(1), width));
    x = y;
  }
  if (height != x.size(0)) {
    Tensor y = empty({height, width, channels}, u8);
    resample(x.data<uint8_t>(), y.data<uint8_t>(), 1, x.size(0), width * channels,
             triangle_weights(x.size(0), height));
    x = y;
  }
  return x;
}

Tensor Resize::operator()(const Tensor& image, Generator&) const {
  check_image("Resize", image);
  if (height > 0 || width > 0) return resize_image(image, height, width);
  if (shorter_side < 1)
    fail<UsageError>("Resize", "no size: shorter_side is ", shorter_side,
                     ", height and width are 0. Give shorter_side, or height and width.");
  const int64_t shorter = std::min(image.size(0), image.size(1)),
                longer = std::max(image.size(0), image.size(1));
  const auto other = int64_t(double(shorter_side) * double(longer) / double(shorter));
  const bool upright = image.size(0) >= image.size(1);
  return resize_image(image, upright ? other : shorter_side, upright ? shorter_side : other);
}

// Plain loops over a batch: a few megabytes, once per step, in the thread of the training loop.

namespace {
/// Returns a number other than 0, so that it has a logarithm.
double above_zero(Generator& random) { return 1 - uniform(random); }

double gamma_above_one(double alpha, Generator& random) {
  const double d = alpha - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double normal = std::sqrt(-2 * elementary::log(above_zero(random))) *
                          elementary::cos(2 * std::numbers::pi * uniform(random));
    const double v = 1 + c * normal;
    if (v <= 0) continue;
    const double cube = v * v * v;
    if (elementary::log(above_zero(random)) <
        normal * normal / 2 + d - d * cube + d * elementary::log(cube))
      return d * cube;
  }
}
}  // namespace

double symmetric_beta(double alpha, Generator& random) {
  if (!(alpha > 0) || !std::isfinite(alpha))
    fail<UsageError>("mixup", "alpha is ", alpha, ". Give a positive number, such as 0.2.");
  if (alpha >= 1) {
    const double a = gamma_above_one(alpha, random), b = gamma_above_one(alpha, random);
    return a / (a + b);
  }
  for (;;) {  // x / (x + y) with x = u^(1/alpha), y = v^(1/alpha), if x + y <= 1
    const double log_x = elementary::log(above_zero(random)) / alpha,
                 log_y = elementary::log(above_zero(random)) / alpha;
    const double most = std::max(log_x, log_y);
    const double log_sum =
        most + elementary::log(elementary::exp(log_x - most) + elementary::exp(log_y - most));
    if (log_sum <= 0) return elementary::exp(log_x - log_sum);
  }
}

MixedBatch mixup(const Batch& batch, double alpha, Generator& random) {
  if (!batch.inputs.defined() || !batch.targets.defined() || batch.inputs.rank() == 0 ||
      batch.targets.rank() == 0 || batch.inputs.size(0) != batch.targets.size(0))
    fail<ShapeError>("mixup", "inputs and targets are not a batch. Pass [k, ...] and [k, ...].");
  if (batch.inputs.dtype() != f32)
    fail<DTypeError>("mixup", "the inputs must be f32: they are ", described(batch.inputs),
                     ". Mix before converting.");
  if (batch.inputs.device() != Device::cpu() || batch.targets.device() != Device::cpu())
    fail<DeviceError>("mixup", "the batch is on ", batch.inputs.device(),
                      ". Mix before moving it to a device.");
  if (!(alpha >= 0) || !std::isfinite(alpha))
    fail<UsageError>("mixup", "alpha is ", alpha, ". Give a number from 0, such as 0.2.");
  if (alpha == 0 || batch.inputs.size(0) == 0) return {batch.inputs, batch.targets, batch.targets};

  const MemoryScope scope(MemoryUse::input);
  const double share = symmetric_beta(alpha, random);
  std::vector<int64_t> others(static_cast<std::size_t>(batch.inputs.size(0)));
  std::iota(others.begin(), others.end(), int64_t(0));
  shuffle(others, random);
  const Tensor x = views::contiguous(batch.inputs.detach());
  const Tensor mixed = take_rows(x, others);
  const float* own = x.data<float>();
  float* y = mixed.data<float>();
  const auto weight = float(share);
  for (int64_t i = 0; i < x.numel(); ++i) y[i] = weight * own[i] + (1 - weight) * y[i];
  return {mixed, batch.targets, take_rows(views::contiguous(batch.targets.detach()), others),
          share};
}

}  // namespace halftone::data
