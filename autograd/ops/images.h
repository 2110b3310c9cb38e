// Operations on images, [n, c, h, w] in NHWC memory: convolutions, pooling, resizing.
#pragma once

#include <optional>

#include <halftone/autograd/ops/norm.h>

namespace halftone {

// Convolutions. Data is NHWC in memory under the logical NCHW shape: the first convolution of a
// model converts its input, and later layers keep that order. Weights are laid out as PyTorch's;
// autocast's copies of them on the CPU are channels-last as well.

/// Height and width; one number sets both.
struct Pair {
  int64_t height = 0, width = 0;
  constexpr Pair() = default;
  constexpr Pair(int64_t both) : height(both), width(both) {}
  constexpr Pair(int64_t h, int64_t w) : height(h), width(w) {}
  std::array<int64_t, 2> array() const { return {height, width}; }
};

/// Amounts on both sides of height and width, or one of PyTorch's words. "same" gives the result
/// the size of the input; it needs stride 1. "valid" is 0.
struct ConvPadding : Pair {
  bool same = false;
  using Pair::Pair;
  constexpr ConvPadding() = default;
  constexpr ConvPadding(Pair amounts) : Pair(amounts) {}
  template <std::size_t N> ConvPadding(const char (&word)[N]) { set(word); }

 private:
  void set(std::string_view word);
};

struct Conv2dOptions {
  Pair stride = 1;
  ConvPadding padding = 0;
  Pair dilation = 1;
  int64_t groups = 1;
};
struct Conv1dOptions {
  int64_t stride = 1;
  ConvPadding padding = 0;  // only its width is used
  int64_t dilation = 1, groups = 1;
};
struct ConvTranspose2dOptions {
  Pair stride = 1, padding = 0, output_padding = 0, dilation = 1;
  int64_t groups = 1;
};

struct ConvTranspose1dOptions {
  int64_t stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1;
};

namespace detail {
/// Returns the weight of a convolution in a layout that backends take.
Tensor weight_layout(const Tensor& w);
/// Returns f(x) for a function of batches of rank `rank`; x may also be one unbatched sample.
template <class F> Tensor batched(std::string_view op, const Tensor& x, int rank, F f) {
  check::defined(op, "x", x);
  return x.rank() == rank - 1 ? squeeze(f(unsqueeze(x, 0)), 0) : f(x);
}
}  // namespace detail

/// Cross-correlation. x: [n, in, h, w]; w: [out, in / groups, kh, kw]; bias: [out] or undefined.
struct Conv2d {
  static constexpr Contraction sums{.forward = {Sums::over_channels, Sums::over_channels},
                                    .backward = {Sums::over_channels, Sums::over_first},
                                    .gradient = {Sums::over_channels, Sums::over_channels}};
  static double flops(std::span<const Tensor> inputs);
  static constexpr OpInfo info{
      "conv2d",
      CastClass::low_precision,
      cast_reason::products,
      {.convolves = true, .accumulator = true, .tf32 = true, .sums = sums, .flops = flops}};
  static constexpr std::array wide_gradients{false, true, true};
  ConvGeometry geometry;
  Tensor x{}, weight{};
  Needs<3> needs{};
  /// If given, forward and both gradients are products with the windows of x, summed over channels,
  /// then over the kernel's rows and columns; the windows' gradients are added in f32.
  std::optional<Accumulator> accumulate{};

  Tensor forward(const Tensor& in, const Tensor& w, const Tensor& bias);
  void save(const Tensor& in, const Tensor& w, const Tensor& /*bias*/) {
    x = views::channels_last(in), weight = detail::weight_layout(w);
  }
  std::array<Tensor, 3> backward(const Tensor& dy_in) const {
    const Tensor dy = views::channels_last(dy_in);
    if (accumulate && x.dtype() != f64) return backward_accumulating(dy);
    Tensor dx, dweight, dbias;
    if (needs[0]) {
      dx = empty_like(x);
      backend_for(x).conv_backward_data(dy, weight, geometry, dx);
    }
    if (needs[2]) dbias = empty({weight.shape()[0]}, needs.dtype(2), x.device());
    if (needs[1] || needs[2]) {
      const DType dtype = needs[1] ? needs.dtype(1) : weight.dtype();
      dweight = empty(weight.shape(), dtype, x.device());
      backend_for(x).conv_backward_weights(x, dy, geometry, dweight, dbias);
    }
    return {dx, dweight, dbias};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;

 private:
  Tensor forward_accumulating(const Tensor& bias, const Shape& shape) const;
  std::array<Tensor, 3> backward_accumulating(const Tensor& dy) const;
};

/// The transposed convolution: the gradient of a Conv2d for its input, as an operation of its own.
/// x: [n, in, h, w]; w: [in, out / groups, kh, kw]; bias: [out] or undefined. Its forward runs the
/// Conv2d's backward-data, and its backward for x runs the Conv2d.
struct ConvTranspose2d {
  static constexpr Contraction sums{.forward = {Sums::over_channels, Sums::over_first},
                                    .backward = {Sums::over_channels, Sums::over_channels},
                                    .gradient = {Sums::over_channels, Sums::over_channels}};
  static constexpr OpInfo info{"conv_transpose2d",
                               CastClass::low_precision,
                               cast_reason::products,
                               {.convolves = true, .tf32 = true, .sums = sums}};
  ConvGeometry geometry;
  Pair output_padding;
  Tensor x{}, weight{};
  Needs<3> needs{};

  Tensor forward(const Tensor& in, const Tensor& w, const Tensor& bias);
  std::array<Tensor, 3> backward(const Tensor& dy_in) const {
    const Tensor dy = views::channels_last(dy_in);
    Tensor dx, dweight, dbias, none;
    if (needs[0]) {
      dx = empty_like(x);
      backend_for(x).conv(dy, weight, none, geometry, dx);
    }
    if (needs[1]) {
      dweight = empty(weight.shape(), weight.dtype(), x.device());
      backend_for(x).conv_backward_weights(dy, x, geometry, dweight, none);
    }
    if (needs[2])
      dbias = detail::as_shape(reduce_to(dy, {1, dy.shape()[1], 1, 1}), {dy.shape()[1]});
    return {dx, dweight, dbias};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// As torch.nn.functional.conv2d, conv1d, conv_transpose2d and conv_transpose1d; x may lack the
/// batch dimension.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv2dOptions& options = {});
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv1dOptions& options = {});
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose2dOptions& options = {});
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose1dOptions& options = {});

// Pooling over windows of an image, [n, c, h, w] in NHWC memory.

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
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
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
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
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
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// As torch.nn.functional's functions of these names; x may lack the batch dimension. The 1d
/// functions take rows [n, c, length], and read only the widths in their options.
Tensor max_pool2d(const Tensor& x, const PoolOptions& options);
Tensor avg_pool2d(const Tensor& x, const PoolOptions& options);
Tensor max_pool1d(const Tensor& x, const PoolOptions& options);
Tensor avg_pool1d(const Tensor& x, const PoolOptions& options);
Tensor adaptive_avg_pool2d(const Tensor& x, Pair output);
Tensor adaptive_avg_pool1d(const Tensor& x, int64_t output);
/// If several elements of a window are the largest, the first gets the gradient.
Tensor adaptive_max_pool2d(const Tensor& x, Pair output);

// Resizing of images, [n, c, h, w] in NHWC memory.

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
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Resizes images, as torch.nn.functional.interpolate. Rows [n, c, length] are resized by the
/// widths of size and scale_factor, and bilinear is then PyTorch's "linear". Coordinates are
/// PyTorch's: with a scale factor they follow the factor, not the rounded size. Throws UsageError
/// unless exactly one of size and scale_factor is given.
inline Tensor interpolate(const Tensor& x, const InterpolateOptions& options) {
  check::defined("interpolate", "x", x);
  if (x.rank() != 3) return apply(Interpolate{.options = options}, x);
  InterpolateOptions flat = options;
  if (flat.size) flat.size->height = 1;
  if (flat.scale_factor) flat.scale_factor->height = 1;
  return squeeze(apply(Interpolate{.options = flat}, unsqueeze(x, 2)), 2);
}

// Windows of images and rows, and images sampled at any positions.

/// Returns the windows of `size` elements along a dimension, `step` apart: [.., count, .., size].
/// As torch.Tensor.unfold, but a copy.
Tensor unfold(const Tensor& x, int dim, int64_t size, int64_t step);

struct UnfoldOptions {
  Pair kernel;
  Pair dilation = 1, padding = 0, stride = 1;
};
/// Returns the windows of images [n, c, h, w] as columns [n, c kh kw, windows]; n may be missing.
/// As torch.nn.functional.unfold.
Tensor unfold(const Tensor& x, const UnfoldOptions& options);
/// Returns images of the given size: adds each column of [n, c kh kw, windows] to its window. The
/// adjoint of unfold(). As torch.nn.functional.fold.
Tensor fold(const Tensor& x, Pair size, const UnfoldOptions& options);

enum class GridPadding : uint8_t { zeros, border, reflection };
struct GridSampleOptions {
  Interpolation mode = Interpolation::bilinear;
  GridPadding padding = GridPadding::zeros;
  bool align_corners = false;
};
/// Returns images [n, c, h, w] at the positions of a grid [n, oh, ow, 2], whose (x, y) are from -1
/// to 1: [n, c, oh, ow]. Both have one dtype; short floats are computed in f32. As
/// torch.nn.functional.grid_sample.
Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options = {});

// Volumes, [n, c, d, h, w] in NDHWC memory, composed of operations on images: a convolution is one
// of images whose channels are the frames under its window, and a pool is one over frames and one
// over depths. Policies see the operations on images.

/// Depth, height and width; one number sets all.
struct Triple {
  int64_t depth = 0, height = 0, width = 0;
  constexpr Triple() = default;
  constexpr Triple(int64_t all) : depth(all), height(all), width(all) {}
  constexpr Triple(int64_t d, int64_t h, int64_t w) : depth(d), height(h), width(w) {}
  Pair image() const { return {height, width}; }
};

struct Conv3dOptions {
  Triple stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
};

/// x: [n, in, d, h, w], also without n; weight: [out, in / groups, kd, kh, kw]; bias: [out] or
/// undefined. As torch.nn.functional.conv3d. Backward keeps kd / (stride in depth) times x's bytes.
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv3dOptions& options = {});

struct Pool3dOptions {
  Triple kernel = 2;
  std::optional<Triple> stride{};  // the kernel's size if absent
  Triple padding = 0;
  bool count_include_pad = true;  // for avg_pool3d
  Triple dilation = 1;            // for max_pool3d
  bool ceil_mode = false;         // as in PoolOptions
};

/// As torch.nn.functional's functions of these names; x may lack the batch dimension.
Tensor max_pool3d(const Tensor& x, const Pool3dOptions& options);
Tensor avg_pool3d(const Tensor& x, const Pool3dOptions& options);
Tensor adaptive_avg_pool3d(const Tensor& x, Triple output);
Tensor adaptive_max_pool3d(const Tensor& x, Triple output);

}  // namespace halftone
