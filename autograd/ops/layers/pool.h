// Pooling over windows of an image, [n, c, h, w] in NHWC memory.
#pragma once

#include <optional>

#include <halftone/autograd/ops/images.h>

namespace halftone {

struct PoolOptions {
  Pair kernel = 2;
  std::optional<Pair> stride{};  // the kernel's size if absent
  Pair padding = 0;
  bool count_include_pad = true;  // for avg_pool2d
  Pair dilation = 1;              // for max_pool2d
  /// Adds a window for the rest after the last whole window, if it begins inside the image or the
  /// padding before it.
  bool ceil_mode = false;
};

namespace detail {
PoolGeometry pool_geometry(std::string_view op, const PoolOptions& options);
/// Checks x and returns the output's shape.
Shape pooled_shape(std::string_view op, const Tensor& x, const PoolGeometry& g,
                   bool ceil_mode = false);
}  // namespace detail

/// The largest element of each window; saves its position in the window, in one byte if windows are
/// small.
struct MaxPool2d {
  static constexpr OpInfo info{"max_pool2d", CastClass::as_is, cast_reason::chooses};
  PoolGeometry geometry;
  bool ceil_mode = false;
  Tensor argmax{};
  Shape shape{};

  Tensor forward(const Tensor& x) {
    const Shape pooled = detail::pooled_shape("max_pool2d", x, geometry, ceil_mode);
    Tensor y = empty_channels_last(pooled, x.dtype(), x.device());
    const bool small = geometry.kernel[0] * geometry.kernel[1] <= 256;
    argmax = empty_channels_last(y.shape(), small ? u8 : i32, x.device());
    shape = x.shape();
    backend_for(x).max_pool(views::channels_last(x), geometry, y, argmax);
    return y;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    Tensor dx = empty_channels_last(shape, dy.dtype(), dy.device());
    backend_for(dy).max_pool_backward(views::channels_last(dy), argmax, geometry, dx);
    return {dx};
  }
};

/// The mean of each window.
struct AvgPool2d {
  static constexpr OpInfo info{"avg_pool2d", CastClass::as_is, cast_reason::a_mean};
  PoolGeometry geometry;
  bool ceil_mode = false;
  Shape shape{};  // of the image, with its border if that is explicit
  Pair border{};

  Tensor forward(const Tensor& in);
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    Tensor dx = empty_channels_last(shape, dy.dtype(), dy.device());
    backend_for(dy).avg_pool_backward(views::channels_last(dy), geometry, dx);
    const auto inner = [&](const Tensor& x, int d, int64_t cut) {
      return cut == 0 ? x : views::slice(x, d, cut, x.shape()[d] - 2 * cut);
    };
    return {inner(inner(dx, 2, border.height), 3, border.width)};
  }
};

/// The mean of windows chosen so that the output has a given size.
struct AdaptiveAvgPool2d {
  static constexpr OpInfo info{"adaptive_avg_pool2d", CastClass::as_is, cast_reason::a_mean};
  Pair output;
  Shape shape{};

  Tensor forward(const Tensor& x);
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    Tensor dx = empty_channels_last(shape, dy.dtype(), dy.device());
    backend_for(dy).adaptive_avg_pool_backward(views::channels_last(dy), dx);
    return {dx};
  }
};

/// As torch.nn.functional's functions of these names; x may lack the batch dimension. The functions
/// of rows, [n, c, length], read the widths of their options.
Tensor max_pool2d(const Tensor& x, const PoolOptions& options);
Tensor avg_pool2d(const Tensor& x, const PoolOptions& options);
Tensor max_pool1d(const Tensor& x, const PoolOptions& options);
Tensor avg_pool1d(const Tensor& x, const PoolOptions& options);
Tensor adaptive_avg_pool2d(const Tensor& x, Pair output);
/// If several elements of a window are the largest, the first gets the gradient.
Tensor adaptive_max_pool2d(const Tensor& x, Pair output);

}  // namespace halftone
