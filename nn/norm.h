// Normalization layers, with PyTorch's names, options and first values (weight 1, bias 0). The
// arithmetic is f32 for any input dtype, and batch norm takes low-precision images with f32
// parameters and statistics. Ba et al. 2016 (layer), Zhang & Sennrich 2019 (RMS), Wu & He 2018
// (group), Ioffe & Szegedy 2015 (batch), Ulyanov et al. 2016 (instance).
#pragma once

#include <functional>
#include <optional>

#include <halftone/autograd/ops.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

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
/// The common part of layers with running statistics, which a forward pass in training updates.
struct RunningNorm : Layer {
  double eps;
  std::optional<double> momentum;
  Parameter weight, bias;
  Buffer running_mean, running_var, num_batches_tracked;
  void describe(Fields& field) override;

 protected:
  RunningNorm(std::string_view layer, int64_t channels, const BatchNormOptions& options);
};
/// The common part of BatchNorm1d and BatchNorm2d.
struct BatchNorm : RunningNorm {
  /// Returns relu(layer(x) + residual), as one operation: batch_norm_relu. The residual, of x's
  /// shape, may be undefined.
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

/// Renews the running statistics of a model's batch norms after its weights were averaged or
/// changed otherwise: they become plain averages over the batches with which `passes` calls the
/// model, in training mode and without gradients. If it throws, or calls without a batch, nothing
/// has changed. As torch.optim.swa_utils.update_bn.
void update_batch_norm(Module& model, const std::function<void()>& passes);

struct InstanceNormOptions {
  double eps = 1e-5, momentum = 0.1;
  bool affine = false;
  bool track_running_stats = false;  // true: evaluation uses them
};
/// The common part of InstanceNorm1d and InstanceNorm2d. The batch dimension may be absent. It does
/// not count batches; PyTorch's does not either.
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

}  // namespace halftone::nn
