// Resizes as Pillow does (src/libImaging/Resample.c): two passes, rows first. Each pass is a
// weighted sum with 22-bit fixed-point weights of a triangle as wide as the scale, and rounds to
// bytes in between.
#include <algorithm>
#include <cmath>

#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>
#include <halftone/data/images/image.h>
#include <halftone/data/transforms.h>

namespace halftone::data {

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

}  // namespace halftone::data
