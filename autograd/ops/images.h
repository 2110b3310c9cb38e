// Convolutions. Data is NHWC in memory under the logical NCHW shape: the first convolution of a
// model converts its input, and later layers keep that order. Weights are laid out as PyTorch's;
// autocast's copies of them on the CPU are channels-last as well.
#pragma once

#include <halftone/autograd/ops/norm.h>

namespace halftone {

/// Height and width; one number sets both.
struct Pair {
  int64_t height = 0, width = 0;
  constexpr Pair() = default;
  constexpr Pair(int64_t both) : height(both), width(both) {}
  constexpr Pair(int64_t h, int64_t w) : height(h), width(w) {}
  std::array<int64_t, 2> array() const { return {height, width}; }
};

/// Amounts on both sides of height and width, or one of PyTorch's words: "same" gives the result
/// the size of the input, at stride 1 only; "valid" is 0.
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
  static constexpr OpInfo info{"conv2d",
                               CastClass::low_precision,
                               cast_reason::products,
                               {.convolves = true, .tf32 = true, .sums = sums, .flops = flops}};
  static constexpr std::array wide_gradients{false, true, true};
  ConvGeometry geometry;
  Tensor x{}, weight{};
  Needs<3> needs{};

  Tensor forward(const Tensor& in, const Tensor& w, const Tensor& bias);
  std::array<Tensor, 3> backward(const Tensor& dy_in) const {
    const Tensor dy = views::channels_last(dy_in);
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
};

/// The gradient of a convolution as an operation of its own. x: [n, in, h, w]; w: [in, out /
/// groups, kh, kw]. Its forward is that convolution's backward-data, and its backward-data is that
/// convolution.
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

}  // namespace halftone
