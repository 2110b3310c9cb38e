// The network: down, and up again, joined with the results from the way down.
#include <halftone/nn/models/unet.h>

#include <halftone/nn/arguments.h>

namespace halftone::nn::models {

DoubleConv::DoubleConv(int64_t in, int64_t out)
    : conv1(in, out, 3, {.padding = 1, .bias = false}),
      bn1(out),
      conv2(out, out, 3, {.padding = 1, .bias = false}),
      bn2(out) {}

Tensor DoubleConv::forward(const Tensor& x) const {
  return conv_norm_relu(conv2, bn2, conv_norm_relu(conv1, bn1, x));
}

void DoubleConv::describe(Fields& field) {
  field("conv1", conv1), field("bn1", bn1);
  field("conv2", conv2), field("bn2", bn2);
}

UNet::UNet(UNetOptions o) : transposed(o.transposed), head(o.width, o.classes, 1) {
  detail::require_positive("UNet", "depth", o.depth);
  down.emplace_back(o.channels, o.width);
  for (int64_t level = 1; level <= o.depth; ++level)
    down.emplace_back(o.width << (level - 1), o.width << level);
  for (int64_t level = o.depth; level > 0; --level) {
    const int64_t in = o.width << level, out = in / 2;
    if (transposed) grow.emplace_back(in, out, 2, ConvTranspose2dOptions{.stride = 2});
    else narrow.emplace_back(in, out, 1);
    up.emplace_back(in, out);
  }
}

Tensor UNet::enlarged(std::size_t level, const Tensor& x) const {
  if (transposed) return grow[level](x);
  // Channels first, so that only a quarter of the pixels is multiplied.
  return interpolate(narrow[level](x),
                     {.scale_factor = Factors(2), .mode = Interpolation::bilinear});
}

Tensor UNet::forward(const Tensor& x) const {
  const int64_t factor = int64_t(1) << up.size();
  if (x.rank() != 4 || x.size(2) % factor != 0 || x.size(3) % factor != 0)
    fail<ShapeError>("UNet", "needs [n, channels, h, w] with h and w divisible by ", factor,
                     ", got ", described(x), ". Pad or resize the images.");
  std::vector<Tensor> seen;
  Tensor y = down[0](x);
  for (std::size_t level = 1; level < down.size(); ++level) {
    seen.push_back(y);
    y = down[level](max_pool2d(y, {.kernel = 2}));
  }
  for (std::size_t level = 0; level < up.size(); ++level) {
    y = up[level](cat({seen.back(), enlarged(level, y)}, 1));
    seen.pop_back();
  }
  return head(y);
}

void UNet::describe(Fields& field) {
  for (std::size_t i = 0; i < down.size(); ++i) field("down." + std::to_string(i), down[i]);
  for (std::size_t i = 0; i < up.size(); ++i) {
    const std::string name = "up." + std::to_string(i);
    if (transposed) field(name + ".grow", grow[i]);
    else field(name + ".narrow", narrow[i]);
    field(name + ".conv", up[i]);
  }
  field("head", head);
}

}  // namespace halftone::nn::models
