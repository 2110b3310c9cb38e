// Crops, flips, composition, and the last step to floats. Random positions are drawn as torchvision
// draws them, though from another generator.
#include <halftone/data/transforms.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <halftone/core/factory.h>
#include <halftone/core/math.h>
#include <halftone/core/tensor.h>
#include <halftone/data/images/image.h>
#include <halftone/data/images/per_channel.h>
#include <halftone/data/random_uniform.h>

namespace halftone::data {

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
    const double aspect = elementary::exp(uniform(random, elementary::log(min_aspect), elementary::log(max_aspect)));
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

}  // namespace halftone::data
