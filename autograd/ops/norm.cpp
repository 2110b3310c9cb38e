// Checks and layouts of group and batch normalisation.
#include <halftone/autograd/ops/norm.h>

namespace halftone {

Tensor GroupNorm::forward(const Tensor& in, const Tensor& w, const Tensor& b) {
  check::floating("group_norm", in);
  const int64_t channels = in.rank() >= 2 ? in.shape()[1] : 0;
  if (in.rank() < 2 || groups < 1 || channels % groups != 0 || channels == 0)
    fail<ShapeError>(
        "group_norm", described(in), " with ", groups,
        " groups. The input must be [n, c, ...] with c divisible by the number of groups.");
  check::vector_of("group_norm", "weight", w, channels);
  check::vector_of("group_norm", "bias", b, channels);
  shape = in.shape(), weight = detail::contiguous_or_undefined(w);
  bias_dtype = b.defined() ? b.dtype() : in.dtype();
  const int64_t n = in.shape()[0], spatial = n > 0 ? in.numel() / (n * channels) : 1;
  x = detail::as_shape(views::contiguous(in), {n, channels, spatial});
  const DType wide = in.dtype() == f64 ? f64 : f32;
  mean = empty({n, groups}, wide, in.device()), rstd = empty({n, groups}, wide, in.device());
  Tensor y = empty(x.shape(), f32_result ? f32 : x.dtype(), x.device());
  backend_for(x).group_norm(x, weight, detail::contiguous_or_undefined(b), eps, y, mean, rstd);
  return detail::as_shape(y, shape);
}

Tensor BatchNorm::forward(const Tensor& in, const Tensor& w, const Tensor& b) {
  check::floating("batch_norm", in);
  if (in.rank() != 2 && in.rank() != 4)
    fail<ShapeError>("batch_norm", "the input is ", described(in),
                     ". It must be [n, c], [n, c, l] or [n, c, h, w].");
  const int64_t channels = in.shape()[1];
  check::vector_of("batch_norm", "weight", w, channels);
  check::vector_of("batch_norm", "bias", b, channels);
  check::vector_of("batch_norm", "running_mean", running_mean, channels);
  check::vector_of("batch_norm", "running_var", running_var, channels);
  batch_statistics = options.training || !running_mean.defined();
  if (batch_statistics && in.numel() <= channels)
    fail<ShapeError>("batch_norm", "training needs more than one value per channel, got ",
                     described(in), ". Use a larger batch, or eval().");
  x = in.rank() == 4 ? views::channels_last(in) : views::contiguous(in);
  weight = detail::contiguous_or_undefined(w);
  bias_dtype = b.defined() ? b.dtype() : in.dtype();
  const DType wide = in.dtype() == f64 ? f64 : f32;
  if (batch_statistics) {
    mean = empty({channels}, wide, in.device()), variance = empty({channels}, wide, in.device());
    backend_for(x).batch_norm_statistics(x, mean, variance);
    if (running_mean.defined()) update_running_statistics();
  } else {
    mean = views::contiguous(cast(running_mean, wide)),
    variance = views::contiguous(cast(running_var, wide));
  }
  Tensor y = empty_like(x);
  backend_for(x).batch_norm(x, mean, variance, options.eps, weight,
                            detail::contiguous_or_undefined(b), y);
  return y;
}

void BatchNorm::update_running_statistics() const {
  const double count = double(x.numel()) / double(x.shape()[1]);
  Tensor target_mean = running_mean, target_var = running_var;
  backend_for(x).lerp(cast(mean, target_mean.dtype()), options.momentum, target_mean);
  backend_for(x).lerp(cast(variance * (count / (count - 1)), target_var.dtype()), options.momentum,
                      target_var);
}

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const Tensor& running_mean, const Tensor& running_var,
                  const BatchNormOptions& options) {
  check::defined("batch_norm", "the input", x);
  if (running_mean.defined() != running_var.defined())
    fail<UsageError>("batch_norm",
                     "one of running_mean and running_var is undefined. Pass both or neither.");
  const BatchNorm op{.running_mean = running_mean.defined() ? running_mean.detach() : running_mean,
                     .running_var = running_var.defined() ? running_var.detach() : running_var,
                     .options = options};
  if (x.rank() != 3) return apply(op, x, weight, bias);
  return squeeze(apply(op, unsqueeze(x, 2), weight, bias), 2);
}

}  // namespace halftone
