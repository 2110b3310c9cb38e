// Layers on images [n, channels, height, width]: convolutions, pooling, norms; also the norms and
// convolutions of sequences.
#pragma once

#include <concepts>
#include <functional>
#include <optional>

#include <halftone/autograd/ops.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

// Normalization layers, with PyTorch's names, options and first values (weight 1, bias 0). The
// arithmetic is f32 for any input dtype, and batch norm takes low-precision images with f32
// parameters and statistics. Ba et al. 2016 (layer), Zhang & Sennrich 2019 (RMS), Wu & He 2018
// (group), Ioffe & Szegedy 2015 (batch), Ulyanov et al. 2016 (instance).

struct LayerNormOptions {
  double eps = 1e-5;
  bool affine = true;  // PyTorch's elementwise_affine
  bool bias = true;
};
struct LayerNorm final : Layer {
  Shape normalized_shape;  // the last dimensions of the input
  double eps;
  Parameter weight, bias;
  explicit LayerNorm(const Shape& normalized_shape, LayerNormOptions options = {});
  explicit LayerNorm(int64_t width, LayerNormOptions options = {})
      : LayerNorm(Shape{width}, options) {}
  Tensor forward(const Tensor& x) const override {
    return layer_norm(x, normalized_shape, weight, bias, eps);
  }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

struct RmsNormOptions {
  std::optional<double> eps{};  // absent: the spacing of the input's dtype at 1, as PyTorch's
  bool affine = true;
};
struct RmsNorm final : Layer {
  Shape normalized_shape;
  std::optional<double> eps;
  Parameter weight;
  explicit RmsNorm(const Shape& normalized_shape, RmsNormOptions options = {});
  explicit RmsNorm(int64_t width, RmsNormOptions options = {}) : RmsNorm(Shape{width}, options) {}
  Tensor forward(const Tensor& x) const override {
    return rms_norm(x, normalized_shape, weight, eps ? *eps : epsilon(x.dtype()));
  }
  /// Returns a + b and that sum normalized, in one pass; for a norm over one dimension only.
  SumAndNorm of_sum(const Tensor& a, const Tensor& b) const {
    const double added = eps ? *eps : epsilon(promote(a.dtype(), b.dtype()));
    return called([&] { return add_rms_norm(a, b, weight, added); }, a, b);
  }
  void describe(Fields& field) override { field("weight", weight); }
};

struct GroupNormOptions {
  double eps = 1e-5;
  bool affine = true;
};
struct GroupNorm final : Layer {
  int64_t groups;
  double eps;
  Parameter weight, bias;
  GroupNorm(int64_t groups, int64_t channels, GroupNormOptions options = {});
  Tensor forward(const Tensor& x) const override {
    return group_norm(x, groups, weight, bias, eps);
  }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

struct BatchNormOptions {
  double eps = 1e-5;
  std::optional<double> momentum = 0.1;  // absent: running statistics are averages over all batches
  bool affine = true;
  bool track_running_stats = true;  // false: evaluation also uses batch statistics
};
/// The common part of batch and instance norms: running statistics, updated by passes in training.
struct RunningNorm : Layer {
  double eps;
  std::optional<double> momentum;
  Parameter weight, bias;
  Buffer running_mean, running_var, num_batches_tracked;
  void describe(Fields& field) override;

 protected:
  RunningNorm(std::string_view layer, int64_t channels, const BatchNormOptions& options);
};
/// The common part of BatchNorm1d, BatchNorm2d and BatchNorm3d.
struct BatchNorm : RunningNorm {
  /// Returns relu(layer(x) + residual), computed as one operation (batch_norm_relu). `residual` has
  /// x's shape; undefined: nothing is added.
  Tensor then_relu(const Tensor& x, const Tensor& residual = {}) const;

 protected:
  using RunningNorm::RunningNorm;
  virtual void check_rank(const Tensor& x) const = 0;
  Tensor normalized(const Tensor& x) const;

 private:
  halftone::BatchNormOptions count_batch() const;
  void count_replays() const;
};
/// x: [n, channels] or [n, channels, length].
struct BatchNorm1d final : BatchNorm {
  explicit BatchNorm1d(int64_t channels, BatchNormOptions options = {});
  Tensor forward(const Tensor& x) const override { return normalized(x); }

 protected:
  void check_rank(const Tensor& x) const override;
};
/// x: [n, channels, height, width].
struct BatchNorm2d final : BatchNorm {
  explicit BatchNorm2d(int64_t channels, BatchNormOptions options = {});
  Tensor forward(const Tensor& x) const override { return normalized(x); }

 protected:
  void check_rank(const Tensor& x) const override;
};

/// Measures a model's running statistics again after its weights were averaged or changed
/// otherwise. They become plain averages over the batches on which `passes` calls the model, in
/// training mode and without gradients. Throws UsageError if a batch norm saw no batch. After an
/// exception the statistics are the old ones. As torch.optim.swa_utils.update_bn.
void update_batch_norm(Module& model, const std::function<void()>& passes);

struct InstanceNormOptions {
  double eps = 1e-5, momentum = 0.1;
  bool affine = false;
  bool track_running_stats = false;  // true: evaluation uses them
};
/// The common part of InstanceNorm1d and InstanceNorm2d. Inputs may be without the batch dimension.
/// As in PyTorch, num_batches_tracked is not advanced.
struct InstanceNorm : RunningNorm {
  int rank;  // with the batch
  Tensor forward(const Tensor& x) const override;

 protected:
  InstanceNorm(std::string_view layer, int images, int64_t channels, const InstanceNormOptions& o)
      : RunningNorm(layer, channels, {o.eps, o.momentum, o.affine, o.track_running_stats}),
        rank(images) {}
};
/// x: [n, channels, length].
struct InstanceNorm1d final : InstanceNorm {
  explicit InstanceNorm1d(int64_t channels, InstanceNormOptions options = {})
      : InstanceNorm("InstanceNorm1d", 3, channels, options) {}
};
/// x: [n, channels, height, width].
struct InstanceNorm2d final : InstanceNorm {
  explicit InstanceNorm2d(int64_t channels, InstanceNormOptions options = {})
      : InstanceNorm("InstanceNorm2d", 4, channels, options) {}
};

// Layers on images [n, channels, height, width], and on sequences for Conv1d.

// Convolutions, as torch.nn.Conv1d, Conv2d, ConvTranspose1d and ConvTranspose2d with zero padding:
// weight [out, in / groups, kernel...] (transposed: [in, out / groups, kernel...]), the same first
// values. Images are logical NCHW.

struct Conv1dOptions {
  int64_t stride = 1;
  ConvPadding padding = 0;  // or "same", "valid"
  int64_t dilation = 1, groups = 1;
  bool bias = true;
};
struct Conv2dOptions {
  Pair stride = 1;
  ConvPadding padding = 0;  // or "same", "valid"
  Pair dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};
struct ConvTranspose1dOptions {
  int64_t stride = 1, padding = 0, output_padding = 0, dilation = 1, groups = 1;
  bool bias = true;
};
struct ConvTranspose2dOptions {
  Pair stride = 1, padding = 0, output_padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

struct Conv1d final : Layer {
  Parameter weight, bias;
  halftone::Conv1dOptions options;
  Conv1d(int64_t in_channels, int64_t out_channels, int64_t kernel, Conv1dOptions options = {});
  template <std::integral Stride, class... More>
  Conv1d(int64_t, int64_t, int64_t, Stride, More...) : Conv1d(1, 1, 1) {
    static_assert(
        detail::positional<Stride>,
        "name what follows the kernel: Conv1d(in, out, kernel, {.stride = 1, .padding = 1})");
  }
  Tensor forward(const Tensor& x) const override { return with_weight(x, weight); }
  Tensor with_weight(const Tensor& x, const Tensor& w) const { return conv1d(x, w, bias, options); }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

struct Conv2d final : Layer {
  Parameter weight, bias;
  halftone::Conv2dOptions options;
  Conv2d(int64_t in_channels, int64_t out_channels, Pair kernel, Conv2dOptions options = {});
  template <std::integral Stride, class... More>
  Conv2d(int64_t, int64_t, Pair, Stride, More...) : Conv2d(1, 1, 1) {
    static_assert(
        detail::positional<Stride>,
        "name what follows the kernel: Conv2d(in, out, kernel, {.stride = 1, .padding = 1})");
  }
  Tensor forward(const Tensor& x) const override { return with_weight(x, weight); }
  Tensor with_weight(const Tensor& x, const Tensor& w) const { return conv2d(x, w, bias, options); }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

struct ConvTranspose1d final : Layer {
  Parameter weight, bias;
  halftone::ConvTranspose1dOptions options;
  ConvTranspose1d(int64_t in_channels, int64_t out_channels, int64_t kernel,
                  ConvTranspose1dOptions options = {});
  template <std::integral Stride, class... More>
  ConvTranspose1d(int64_t, int64_t, int64_t, Stride, More...) : ConvTranspose1d(1, 1, 1) {
    static_assert(detail::positional<Stride>,
                  "name what follows the kernel: ConvTranspose1d(in, out, kernel, {.stride = 1, "
                  ".padding = 1})");
  }
  Tensor forward(const Tensor& x) const override { return with_weight(x, weight); }
  Tensor with_weight(const Tensor& x, const Tensor& w) const {
    return conv_transpose1d(x, w, bias, options);
  }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

struct ConvTranspose2d final : Layer {
  Parameter weight, bias;
  halftone::ConvTranspose2dOptions options;
  ConvTranspose2d(int64_t in_channels, int64_t out_channels, Pair kernel,
                  ConvTranspose2dOptions options = {});
  template <std::integral Stride, class... More>
  ConvTranspose2d(int64_t, int64_t, Pair, Stride, More...) : ConvTranspose2d(1, 1, 1) {
    static_assert(detail::positional<Stride>,
                  "name what follows the kernel: ConvTranspose2d(in, out, kernel, {.stride = 1, "
                  ".padding = 1})");
  }
  Tensor forward(const Tensor& x) const override { return with_weight(x, weight); }
  Tensor with_weight(const Tensor& x, const Tensor& w) const {
    return conv_transpose2d(x, w, bias, options);
  }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

// Three common sequences of convolutional networks. Batch norm and the operations after it take one
// pass over memory. Models call these functions instead of the layers. The layers remain members
// with their own names, so the paths of their parameters do not change.

/// Returns norm(conv(x)); x: [n, in, h, w].
inline Tensor conv_norm(const Conv2d& conv, const BatchNorm2d& norm, const Tensor& x) {
  return norm(conv(x));
}
/// Returns relu(norm(conv(x))); x: [n, in, h, w].
inline Tensor conv_norm_relu(const Conv2d& conv, const BatchNorm2d& norm, const Tensor& x) {
  return norm.then_relu(conv(x));
}
/// Returns relu(norm(x) + residual), the end of a residual block. Both have one shape.
inline Tensor norm_add_relu(const BatchNorm2d& norm, const Tensor& x, const Tensor& residual) {
  return norm.then_relu(x, residual);
}

// Pooling over windows of images [n, channels, height, width] and of rows [n, channels, length], as
// torch.nn.MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, AdaptiveMaxPool2d, MaxPool1d, AvgPool1d and
// AdaptiveAvgPool1d. An absent stride means the size of the window.

struct MaxPool2dOptions {
  std::optional<Pair> stride{};
  Pair padding = 0, dilation = 1;
  bool ceil_mode = false;
};
struct MaxPool2d final : StatelessLayer {
  PoolOptions options;
  explicit MaxPool2d(Pair kernel, MaxPool2dOptions o = {})
      : options{.kernel = kernel,
                .stride = o.stride,
                .padding = o.padding,
                .dilation = o.dilation,
                .ceil_mode = o.ceil_mode} {}
  explicit MaxPool2d(const int64_t (&kernel)[2], MaxPool2dOptions o = {})
      : MaxPool2d(Pair(kernel[0], kernel[1]), o) {}
  template <std::integral Stride, class... More> MaxPool2d(Pair, Stride, More...) : MaxPool2d(1) {
    static_assert(detail::positional<Stride>,
                  "name what follows the kernel: MaxPool2d(2, {.stride = 2})");
  }
  Tensor forward(const Tensor& x) const override { return max_pool2d(x, options); }
};

struct AvgPool2dOptions {
  std::optional<Pair> stride{};
  Pair padding = 0;
  bool count_include_pad = true, ceil_mode = false;
};
struct AvgPool2d final : StatelessLayer {
  PoolOptions options;
  explicit AvgPool2d(Pair kernel, AvgPool2dOptions o = {})
      : options{.kernel = kernel,
                .stride = o.stride,
                .padding = o.padding,
                .count_include_pad = o.count_include_pad,
                .ceil_mode = o.ceil_mode} {}
  explicit AvgPool2d(const int64_t (&kernel)[2], AvgPool2dOptions o = {})
      : AvgPool2d(Pair(kernel[0], kernel[1]), o) {}
  template <std::integral Stride, class... More> AvgPool2d(Pair, Stride, More...) : AvgPool2d(1) {
    static_assert(detail::positional<Stride>,
                  "name what follows the kernel: AvgPool2d(2, {.stride = 2})");
  }
  Tensor forward(const Tensor& x) const override { return avg_pool2d(x, options); }
};

struct AdaptiveAvgPool2d final : StatelessLayer {
  Pair output;
  explicit AdaptiveAvgPool2d(Pair output_size) : output(output_size) {}
  Tensor forward(const Tensor& x) const override { return adaptive_avg_pool2d(x, output); }
};
struct AdaptiveMaxPool2d final : StatelessLayer {
  Pair output;
  explicit AdaptiveMaxPool2d(Pair output_size) : output(output_size) {}
  Tensor forward(const Tensor& x) const override { return adaptive_max_pool2d(x, output); }
};

struct MaxPool1dOptions {
  std::optional<int64_t> stride{};
  int64_t padding = 0, dilation = 1;
  bool ceil_mode = false;
};
struct MaxPool1d final : StatelessLayer {
  PoolOptions options;
  explicit MaxPool1d(int64_t kernel, MaxPool1dOptions o = {})
      : options{.kernel = kernel,
                .stride = o.stride.value_or(kernel),
                .padding = o.padding,
                .dilation = o.dilation,
                .ceil_mode = o.ceil_mode} {}
  template <std::integral Stride, class... More>
  MaxPool1d(int64_t, Stride, More...) : MaxPool1d(1) {
    static_assert(detail::positional<Stride>,
                  "name what follows the kernel: MaxPool1d(2, {.stride = 2})");
  }
  Tensor forward(const Tensor& x) const override { return max_pool1d(x, options); }
};

struct AvgPool1dOptions {
  std::optional<int64_t> stride{};
  int64_t padding = 0;
  bool count_include_pad = true, ceil_mode = false;
};
struct AvgPool1d final : StatelessLayer {
  PoolOptions options;
  explicit AvgPool1d(int64_t kernel, AvgPool1dOptions o = {})
      : options{.kernel = kernel,
                .stride = o.stride.value_or(kernel),
                .padding = o.padding,
                .count_include_pad = o.count_include_pad,
                .ceil_mode = o.ceil_mode} {}
  template <std::integral Stride, class... More>
  AvgPool1d(int64_t, Stride, More...) : AvgPool1d(1) {
    static_assert(detail::positional<Stride>,
                  "name what follows the kernel: AvgPool1d(2, {.stride = 2})");
  }
  Tensor forward(const Tensor& x) const override { return avg_pool1d(x, options); }
};

struct AdaptiveAvgPool1d final : StatelessLayer {
  int64_t output;
  explicit AdaptiveAvgPool1d(int64_t output_size) : output(output_size) {}
  Tensor forward(const Tensor& x) const override { return adaptive_avg_pool1d(x, output); }
};

// Enlarges (or shrinks) images to a size or by a factor, as torch.nn.Upsample of images. It has no
// parameters; nn::ConvTranspose2d enlarges with trained ones.

struct Upsample final : StatelessLayer {
  InterpolateOptions options;
  explicit Upsample(InterpolateOptions o) : options(o) {}
  Tensor forward(const Tensor& x) const override { return interpolate(x, options); }
};

// Layers on volumes [n, channels, depth, height, width], as torch.nn.Conv3d, BatchNorm3d and the
// pools with these names.

struct Conv3dOptions {
  Triple stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};
struct Conv3d final : Layer {
  Parameter weight, bias;  // [out, in / groups, kd, kh, kw]
  halftone::Conv3dOptions options;
  Conv3d(int64_t in_channels, int64_t out_channels, Triple kernel, Conv3dOptions options = {});
  Tensor forward(const Tensor& x) const override { return conv3d(x, weight, bias, options); }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

struct BatchNorm3d final : BatchNorm {
  explicit BatchNorm3d(int64_t channels, BatchNormOptions options = {});
  Tensor forward(const Tensor& x) const override { return normalized(x); }

 protected:
  void check_rank(const Tensor& x) const override;
};

struct MaxPool3d final : StatelessLayer {
  Pool3dOptions options;
  explicit MaxPool3d(const Pool3dOptions& o) : options(o) {}
  Tensor forward(const Tensor& x) const override { return max_pool3d(x, options); }
};
struct AvgPool3d final : StatelessLayer {
  Pool3dOptions options;
  explicit AvgPool3d(const Pool3dOptions& o) : options(o) {}
  Tensor forward(const Tensor& x) const override { return avg_pool3d(x, options); }
};
struct AdaptiveAvgPool3d final : StatelessLayer {
  Triple output;
  explicit AdaptiveAvgPool3d(Triple output_size) : output(output_size) {}
  Tensor forward(const Tensor& x) const override { return adaptive_avg_pool3d(x, output); }
};

}  // namespace halftone::nn
