// Resizing of images, [n, c, h, w] in NHWC memory.
#pragma once

#include <optional>

#include <halftone/autograd/ops/images.h>

namespace halftone {

/// Factors for height and width; one number sets both.
struct Factors {
  double height = 1, width = 1;
  constexpr Factors() = default;
  constexpr Factors(double both) : height(both), width(both) {}
  constexpr Factors(double h, double w) : height(h), width(w) {}
  std::array<double, 2> array() const { return {height, width}; }
};

struct InterpolateOptions {
  // set exactly one of these two
  std::optional<Pair> size{};
  std::optional<Factors> scale_factor{};
  Interpolation mode = Interpolation::nearest;
  bool align_corners = false;  // for bilinear only
};

/// Each output pixel is the input pixel at its position (nearest), or the mean of the four around
/// it, weighted by their distances (bilinear).
struct Interpolate {
  static constexpr OpInfo info{"interpolate", CastClass::full_precision,
                               "weights of neighbors add up to 1 only to the last place"};
  InterpolateOptions options;
  bool f32_result = false;
  InterpolationGeometry geometry{};
  Shape shape{};
  DType from{};

  Tensor forward(const Tensor& x);
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    Tensor dx = empty_channels_last(shape, from, dy.device());
    backend_for(dy).interpolate_backward(views::channels_last(dy), geometry, dx);
    return {dx};
  }
};

/// Resizes images, as torch.nn.functional.interpolate, or rows [n, c, length] (bilinear is then its
/// "linear", and the widths of size and scale_factor count). Coordinates are PyTorch's: with a
/// scale factor they follow the factor, not the rounded size. Throws UsageError unless exactly one
/// of size and scale_factor is given.
inline Tensor interpolate(const Tensor& x, const InterpolateOptions& options) {
  check::defined("interpolate", "x", x);
  if (x.rank() != 3) return apply(Interpolate{.options = options}, x);
  InterpolateOptions flat = options;
  if (flat.size) flat.size->height = 1;
  if (flat.scale_factor) flat.scale_factor->height = 1;
  return squeeze(apply(Interpolate{.options = flat}, unsqueeze(x, 2)), 2);
}

}  // namespace halftone
