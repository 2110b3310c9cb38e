// Normalizations. Statistics are computed and stored in f32 (f64 for f64), for any dtype of the
// data. Weights may be f32 with low-precision data, and their gradients have the weights' dtype.
#pragma once

#include <memory>
#include <utility>

#include <halftone/autograd/ops/reduce.h>

namespace halftone {

namespace detail {
/// Returns x seen as [rows, n], n the product of the normalized trailing dimensions.
inline Tensor as_rows(std::string_view op, const Tensor& x, const Shape& normalized) {
  check::floating(op, x);
  const int extra = x.rank() - normalized.rank();
  bool fits = extra >= 0 && normalized.rank() > 0 && numel_of(normalized) > 0;
  for (int i = 0; fits && i < normalized.rank(); ++i) fits = x.shape()[extra + i] == normalized[i];
  if (!fits)
    fail<ShapeError>(op, described(x), " does not end in the normalized shape ", normalized,
                     ". The last dimensions must equal it.");
  const int64_t n = numel_of(normalized);
  return as_shape(views::contiguous(x), {x.numel() / n, n});
}
inline Tensor like_or_undefined(const Tensor& x, bool wanted) {
  return wanted && x.defined() ? empty(x.shape(), x.dtype(), x.device()) : Tensor{};
}
inline void check_affine(std::string_view op, const Shape& normalized, const Tensor& weight,
                         const Tensor& bias) {
  for (const Tensor* p : {&weight, &bias})
    if (p->defined() && (p->shape() != normalized || !is_floating(p->dtype())))
      fail<ShapeError>(op, "weight or bias is ", described(*p), ", the normalized shape is ",
                       normalized, ". They must agree.");
}
inline Tensor contiguous_or_undefined(const Tensor& x) {
  return x.defined() ? views::contiguous(x) : x;
}
/// Returns dy in row-major order. If x is f32 and dy is a cast of a short gradient, returns the
/// short gradient, which kernels read as well.
inline Tensor readable_gradient(const Tensor& x, const Tensor& dy) {
  return views::contiguous(x.dtype() == f32 && dy.dtype() == f32 ? narrowest(dy) : dy);
}
}  // namespace detail

/// y = (x - mean) / sqrt(variance + eps) * weight + bias over the trailing dimensions (Ba et al.
/// 2016).
struct LayerNorm {
  static constexpr OpInfo info{"layer_norm", CastClass::full_precision, cast_reason::deviations};
  static constexpr bool reads_waiting = true;
  Shape normalized;
  double eps;
  bool f32_result = false;
  Tensor x{}, weight{}, mean{}, rstd{};
  Shape shape{};
  DType bias_dtype{};
  Needs<3> needs{};

  Tensor forward(const Tensor& in, const Tensor& w, const Tensor& b) {
    x = detail::as_rows("layer_norm", in, normalized);
    detail::check_affine("layer_norm", normalized, w, b);
    shape = in.shape(), weight = detail::contiguous_or_undefined(w);
    bias_dtype = b.defined() ? b.dtype() : in.dtype();
    const DType wide = in.dtype() == f64 ? f64 : f32;
    mean = empty({x.shape()[0]}, wide, x.device()), rstd = empty({x.shape()[0]}, wide, x.device());
    Tensor y = empty(shape, f32_result ? f32 : x.dtype(), x.device());
    backend_for(x).layer_norm({.x = x,
                               .weight = weight,
                               .bias = detail::contiguous_or_undefined(b),
                               .eps = eps,
                               .y = y,
                               .mean = mean,
                               .rstd = rstd});
    return y;
  }
  std::array<Tensor, 3> backward(const Tensor& dy) const {
    Tensor dx = detail::like_or_undefined(x, needs[0]);
    Tensor dweight = detail::like_or_undefined(weight, needs[1]);
    Tensor dbias = needs[2] ? empty(normalized, bias_dtype, x.device()) : Tensor{};
    backend_for(x).layer_norm_backward({.x = x,
                                        .weight = weight,
                                        .mean = mean,
                                        .rstd = rstd,
                                        .dy = detail::readable_gradient(x, dy),
                                        .dx = dx,
                                        .dweight = dweight,
                                        .dbias = dbias});
    return {dx.defined() ? detail::as_shape(dx, shape) : dx, dweight, dbias};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// The RMS norm y of a sum, which the addition has computed in the same pass as the sum, for the
/// norm operation after it.
struct NormAhead {
  Tensor sum{}, y{}, rstd{};
  /// Returns whether y is the norm of x, in this dtype.
  bool is_of(const Tensor& x, DType dtype) const {
    return sum.defined() && sum.storage() == x.storage() && y.dtype() == dtype;
  }
};

/// y = x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019).
struct RmsNorm {
  static constexpr OpInfo info{"rms_norm", CastClass::full_precision, cast_reason::deviations};
  static constexpr bool reads_waiting = true;
  Shape normalized;
  double eps;
  bool f32_result = false;
  std::shared_ptr<const NormAhead> ahead{};  // until forward has taken it
  Tensor x{}, weight{}, rstd{};
  Shape shape{};
  Needs<2> needs{};

  Tensor forward(const Tensor& in, const Tensor& w) {
    x = detail::as_rows("rms_norm", in, normalized);
    detail::check_affine("rms_norm", normalized, w, {});
    shape = in.shape(), weight = detail::contiguous_or_undefined(w);
    if (const auto taken = std::exchange(ahead, nullptr);
        taken && taken->is_of(in, f32_result ? f32 : in.dtype())) {
      rstd = taken->rstd;
      return taken->y;
    }
    rstd = empty({x.shape()[0]}, in.dtype() == f64 ? f64 : f32, x.device());
    Tensor y = empty(shape, f32_result ? f32 : x.dtype(), x.device()), no_mean;
    backend_for(x).layer_norm(
        {.x = x, .weight = weight, .bias = {}, .eps = eps, .y = y, .mean = no_mean, .rstd = rstd});
    return y;
  }
  std::array<Tensor, 2> backward(const Tensor& dy) const {
    Tensor dx = detail::like_or_undefined(x, needs[0]),
           dweight = detail::like_or_undefined(weight, needs[1]), none;
    backend_for(x).layer_norm_backward({.x = x,
                                        .weight = weight,
                                        .mean = {},
                                        .rstd = rstd,
                                        .dy = detail::readable_gradient(x, dy),
                                        .dx = dx,
                                        .dweight = dweight,
                                        .dbias = none});
    return {dx.defined() ? detail::as_shape(dx, shape) : dx, dweight};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// a + b, of one shape, and the RMS norm of the sum in the same pass over memory. PyTorch has it as
/// two operations.
struct AddBeforeNorm {
  static constexpr OpInfo info{"add_rms_norm", CastClass::widest_input, cast_reason::two_inputs};
  int64_t width;
  double eps;
  Tensor weight{};  // these two until forward has used them
  std::shared_ptr<NormAhead> ahead{};
  Needs<2> needs{};

  Tensor forward(const Tensor& a, const Tensor& b);
  std::array<Tensor, 2> backward(const Tensor& dy) const {
    return {needs[0] ? dy.to(needs.dtype(0)) : Tensor{},
            needs[1] ? dy.to(needs.dtype(1)) : Tensor{}};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Normalizes groups of channels of each sample (Wu & He 2018). x: [n, c, ...]; weight, bias: [c]
/// or undefined.
struct GroupNorm {
  static constexpr OpInfo info{"group_norm", CastClass::full_precision, cast_reason::deviations};
  int64_t groups;
  double eps;
  bool f32_result = false;
  Tensor x{}, weight{}, mean{}, rstd{};
  Shape shape{};
  DType bias_dtype{};
  Needs<3> needs{};

  Tensor forward(const Tensor& in, const Tensor& w, const Tensor& b);
  std::array<Tensor, 3> backward(const Tensor& dy) const {
    Tensor dx = detail::like_or_undefined(x, needs[0]),
           dweight = detail::like_or_undefined(weight, needs[1]);
    Tensor dbias = needs[2] ? empty({x.shape()[1]}, bias_dtype, x.device()) : Tensor{};
    const Tensor rows = detail::as_shape(views::contiguous(dy), x.shape());
    backend_for(x).group_norm_backward({.x = x,
                                        .weight = weight,
                                        .mean = mean,
                                        .rstd = rstd,
                                        .dy = rows,
                                        .dx = dx,
                                        .dweight = dweight,
                                        .dbias = dbias});
    return {dx.defined() ? detail::as_shape(dx, shape) : dx, dweight, dbias};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// GroupNorm with one group per channel (Ulyanov et al. 2016). It is an operation of its own
/// because PyTorch's lists name only one of them.
struct InstanceNorm {
  static constexpr OpInfo info{"instance_norm", CastClass::as_is, cast_reason::statistics};
  GroupNorm norm;

  Tensor forward(const Tensor& in, const Tensor& w, const Tensor& b) {
    check::floating("instance_norm", in);
    if (in.rank() < 3 || in.shape()[1] == 0)
      fail<ShapeError>("instance_norm", described(in), " has no channels, or nothing to normalize ",
                       "in them. The input must be [n, c, ...] with a dimension after c.");
    norm.groups = in.shape()[1], norm.needs = needs;
    return norm.forward(in, w, b);
  }
  std::array<Tensor, 3> backward(const Tensor& dy) const { return norm.backward(dy); }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
  Needs<3> needs{};
};

struct BatchNormOptions {
  bool training = false;
  double momentum = 0.1, eps = 1e-5;
};

/// The statistics that training updates, [c] each; undefined: none. A pass may write them after
/// others have read them: backward reads only the tensors that its own pass saved.
struct RunningStatistics {
  static constexpr bool written_by_passes = true;
  Tensor mean{}, variance{};
};

/// Normalizes each channel over the batch (Ioffe & Szegedy 2015). x: [n, c] or [n, c, h, w].
/// Training uses the batch's own statistics and moves the running ones towards them (variance
/// unbiased); evaluation uses the running ones.
struct BatchNorm {
  static constexpr OpInfo info{
      "batch_norm", CastClass::as_is, cast_reason::statistics, {.once = true}};
  RunningStatistics running{};
  BatchNormOptions options{};
  Tensor x{}, weight{}, mean{}, variance{};
  bool batch_statistics = true;
  DType bias_dtype{};
  Needs<3> needs{};

  Tensor forward(const Tensor& in, const Tensor& w, const Tensor& b);
  std::array<Tensor, 3> backward(const Tensor& dy) const {
    Tensor none;
    return gradients(dy, needs, {}, none);
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;

  /// Checks the inputs, brings x into its layout, and computes the statistics.
  void prepare(const OpInfo& op, const Tensor& in, const Tensor& w, const Tensor& b);
  /// Returns the gradients of x, weight and bias. relu_output, dresidual: as the kernel's.
  template <int N>
  std::array<Tensor, 3> gradients(const Tensor& dy_in, const Needs<N>& wanted,
                                  const Tensor& relu_output, Tensor& dresidual) const {
    Tensor dx = wanted[0] ? empty_like(x) : Tensor{},
           dweight = detail::like_or_undefined(weight, wanted[1]);
    Tensor dbias = wanted[2] ? empty({x.shape()[1]}, bias_dtype, x.device()) : Tensor{};
    const Tensor dy = x.rank() == 4 ? views::channels_last(dy_in) : views::contiguous(dy_in);
    if (x.numel() == 0) {
      for (Tensor* sums : {&dweight, &dbias})
        if (sums->defined()) backend_for(x).fill(0, *sums);
      return {dx, dweight, dbias};
    }
    backend_for(x).batch_norm_backward({.x = x,
                                        .mean = mean,
                                        .variance = variance,
                                        .eps = options.eps,
                                        .weight = weight,
                                        .relu_output = relu_output,
                                        .dy = dy,
                                        .training = batch_statistics,
                                        .dx = dx,
                                        .dweight = dweight,
                                        .dbias = dbias,
                                        .dresidual = dresidual});
    return {dx, dweight, dbias};
  }
  void update_running_statistics() const;
};

/// relu(batch_norm(x) + residual) in one pass over memory: the block of residual networks. The
/// residual, of x's shape and dtype, may be undefined. Backward finds the positive elements in the
/// result, which the next operation saves anyway.
struct BatchNormRelu {
  static constexpr OpInfo info{
      "batch_norm_relu", CastClass::as_is, cast_reason::statistics, {.once = true}};
  BatchNorm norm;
  Tensor y{};
  Needs<4> needs{};

  Tensor forward(const Tensor& in, const Tensor& w, const Tensor& b, const Tensor& residual);
  std::array<Tensor, 4> backward(const Tensor& dy) const {
    Tensor dresidual = needs[3] ? empty_like(y) : Tensor{};
    auto [dx, dweight, dbias] = norm.gradients(dy, needs, y, dresidual);
    return {dx, dweight, dbias, dresidual};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// As torch.nn.functional.layer_norm; weight and bias may be undefined.
inline Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                         const Tensor& bias = {}, double eps = 1e-5) {
  return apply(LayerNorm{.normalized = normalized_shape, .eps = eps}, x, weight, bias);
}
inline Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                       double eps = 1e-6) {
  return apply(RmsNorm{.normalized = normalized_shape, .eps = eps}, x, weight);
}
struct SumAndNorm {
  Tensor sum, normed;
  std::vector<Tensor> tensors() const { return {sum, normed}; }
};
/// Returns a + b, of one shape, and rms_norm(a + b, {width}, weight, eps) over the last dimension.
/// One pass computes both; if a policy rounds values in between, two operations do.
SumAndNorm add_rms_norm(const Tensor& a, const Tensor& b, const Tensor& weight = {},
                        double eps = 1e-6);
inline Tensor group_norm(const Tensor& x, int64_t groups, const Tensor& weight = {},
                         const Tensor& bias = {}, double eps = 1e-5) {
  return apply(GroupNorm{.groups = groups, .eps = eps}, x, weight, bias);
}
/// As torch.nn.functional.instance_norm without running statistics: each channel of each sample.
inline Tensor instance_norm(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {},
                            double eps = 1e-5) {
  return apply(InstanceNorm{.norm = {.groups = 1, .eps = eps}}, x, weight, bias);
}
struct InstanceNormOptions {
  bool use_input_stats = true;  // else the running statistics
  double momentum = 0.1, eps = 1e-5;
};
/// The same with running statistics, [c] each, which move towards the averages over the samples. As
/// torch.nn.functional.instance_norm.
Tensor instance_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const Tensor& running_mean, const Tensor& running_var,
                     const InstanceNormOptions& options = {});
/// As torch.nn.functional.batch_norm. Updates the running statistics in place when training.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const Tensor& running_mean, const Tensor& running_var,
                  const BatchNormOptions& options = {});
/// Returns relu(batch_norm(x, ...) + residual), in one pass if the residual has x's dtype.
Tensor batch_norm_relu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                       const Tensor& running_mean, const Tensor& running_var,
                       const BatchNormOptions& options = {}, const Tensor& residual = {});

}  // namespace halftone
