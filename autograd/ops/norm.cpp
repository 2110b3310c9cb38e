// Checks and layouts of group and batch normalization.
#include <halftone/autograd/ops/norm.h>

#include <halftone/autograd/ops/elementwise.h>
#include <halftone/autograd/slots.h>

namespace halftone {

Tensor AddBeforeNorm::forward(const Tensor& a, const Tensor& b) {
  const Tensor x = views::contiguous(a), z = views::contiguous(b);
  const DType dtype = promote(x.dtype(), z.dtype());
  const int64_t rows = x.numel() / width;
  const auto as_rows = [&](const Tensor& t) { return detail::as_shape(t, {rows, width}); };
  Tensor sum = empty(x.shape(), dtype, x.device()), y = empty(x.shape(), dtype, x.device()),
         rstd = empty({rows}, dtype == f64 ? f64 : f32, x.device());
  Tensor sum_rows = as_rows(sum), y_rows = as_rows(y);
  backend_for(x).add_rms_norm({.a = as_rows(x),
                               .b = as_rows(z),
                               .weight = detail::contiguous_or_undefined(weight),
                               .eps = eps,
                               .sum = sum_rows,
                               .y = y_rows,
                               .rstd = rstd});
  *std::exchange(ahead, nullptr) = {.sum = sum, .y = y, .rstd = rstd};
  weight = {};
  return sum;
}

SumAndNorm add_rms_norm(const Tensor& a, const Tensor& b, const Tensor& weight, double eps) {
  constexpr std::string_view op = AddBeforeNorm::info.name;
  check::floating(op, a);
  check::floating(op, b);
  if (a.rank() == 0 || a.shape() != b.shape() || a.size(-1) == 0)
    fail<ShapeError>(op, "a is ", described(a), ", b is ", described(b),
                     ". They must have one shape, with a last dimension.");
  const Shape normalized{a.size(-1)};
  detail::check_affine(op, normalized, weight, {});
  const InputCaster* const caster = active_caster();
  if (caster && caster->treats()) {
    const Tensor sum = add(a, b);
    return {sum, rms_norm(sum, normalized, weight, eps)};
  }
  const auto ahead = std::make_shared<NormAhead>();
  AddBeforeNorm adding{.width = a.size(-1),
                       .eps = eps,
                       .weight = weight.defined() ? weight.detach() : weight,
                       .ahead = ahead};
  const Tensor sum = detail::mixes<formula::Add>(a, b)
                         ? apply(std::move(adding), a, b)
                         : detail::apply_promoted(std::move(adding), a, b);
  return {sum, apply(RmsNorm{.normalized = normalized, .eps = eps, .ahead = ahead}, sum, weight)};
}

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
  backend_for(x).group_norm({.x = x,
                             .weight = weight,
                             .bias = detail::contiguous_or_undefined(b),
                             .eps = eps,
                             .y = y,
                             .mean = mean,
                             .rstd = rstd});
  return detail::as_shape(y, shape);
}

void BatchNorm::prepare(const OpInfo& op, const Tensor& in, const Tensor& w, const Tensor& b) {
  const std::string_view name = op.name;
  check::floating(name, in);
  if (in.rank() != 2 && in.rank() != 4)
    fail<ShapeError>(name, "the input is ", described(in),
                     ". It must be [n, c], [n, c, l], [n, c, h, w] or [n, c, d, h, w].");
  const int64_t channels = in.shape()[1];
  check::vector_of(name, "weight", w, channels);
  check::vector_of(name, "bias", b, channels);
  check::vector_of(name, "running_mean", running.mean, channels);
  check::vector_of(name, "running_var", running.variance, channels);
  check::on_device_of(name, in, "running_mean", running.mean);
  check::on_device_of(name, in, "running_var", running.variance);
  batch_statistics = options.training || !running.mean.defined();
  const bool empty_batch = in.numel() == 0;
  if (batch_statistics && in.numel() <= channels && !empty_batch)
    fail<ShapeError>(name, "training needs more than one value per channel, got ", described(in),
                     ". Use a larger batch, or eval().");
  x = in.rank() == 4 ? views::channels_last(in) : views::contiguous(in);
  weight = detail::contiguous_or_undefined(w);
  bias_dtype = b.defined() ? b.dtype() : in.dtype();
  const DType wide = in.dtype() == f64 ? f64 : f32;
  if (batch_statistics && empty_batch) {  // an empty batch changes nothing
    mean = zeros({channels}, wide, in.device()), variance = ones({channels}, wide, in.device());
  } else if (batch_statistics) {
    mean = empty({channels}, wide, in.device()), variance = empty({channels}, wide, in.device());
    backend_for(x).batch_norm_statistics(x, mean, variance);
    if (running.mean.defined()) update_running_statistics();
  } else {
    mean = views::contiguous(cast(running.mean, wide)),
    variance = views::contiguous(cast(running.variance, wide));
  }
}

Tensor BatchNorm::forward(const Tensor& in, const Tensor& w, const Tensor& b) {
  prepare(info, in, w, b);
  Tensor y = empty_like(x);
  backend_for(x).batch_norm({.x = x,
                             .mean = mean,
                             .variance = variance,
                             .eps = options.eps,
                             .weight = weight,
                             .bias = detail::contiguous_or_undefined(b),
                             .residual = {},
                             .relu = false,
                             .y = y});
  return y;
}

Tensor BatchNormRelu::forward(const Tensor& in, const Tensor& w, const Tensor& b,
                              const Tensor& residual) {
  if (residual.defined() && (residual.shape() != in.shape() || residual.dtype() != in.dtype()))
    fail<ShapeError>(info.name, "the input is ", described(in), ", the residual ",
                     described(residual), ". They must agree.");
  norm.prepare(info, in, w, b);
  const Tensor& x = norm.x;
  Tensor added;
  if (residual.defined())
    added = x.rank() == 4 ? views::channels_last(residual) : views::contiguous(residual);
  y = empty_like(x);
  backend_for(x).batch_norm({.x = x,
                             .mean = norm.mean,
                             .variance = norm.variance,
                             .eps = norm.options.eps,
                             .weight = norm.weight,
                             .bias = detail::contiguous_or_undefined(b),
                             .residual = added,
                             .relu = true,
                             .y = y});
  return y;
}

void BatchNorm::update_running_statistics() const {
  const double count = double(x.numel()) / double(x.shape()[1]);
  const BatchStatistics batch{
      .running_mean = running.mean,
      .running_var = running.variance,
      .mean = cast(mean, statistics_dtype(running.mean)),
      .variance = cast(variance * (count / (count - 1)), statistics_dtype(running.variance)),
      .momentum = options.momentum};
  if (StatisticsSink* sink = active_statistics_sink()) sink->measured(batch);
  else move_running_statistics(batch);
}

namespace {
/// Updates the running statistics with each channel's mean and variance, averaged over the samples.
void see_instances(const Tensor& x, const RunningStatistics& running, double momentum) {
  const NoGrad no_grad;
  const CasterScope no_casts(nullptr);
  Dims spatial;
  for (int d = 2; d < x.rank(); ++d) spatial.push_back(d);
  const DType wide = statistics_dtype(running.mean);
  const Tensor values = cast(x.detach(), wide);
  const BatchStatistics seen{.running_mean = running.mean,
                             .running_var = running.variance,
                             .mean = mean(mean(values, spatial), {0}),
                             .variance = mean(var(values, spatial), {0}),
                             .momentum = momentum};
  if (StatisticsSink* sink = active_statistics_sink()) sink->measured(seen);
  else move_running_statistics(seen);
}
}  // namespace

Tensor instance_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const Tensor& running_mean, const Tensor& running_var,
                     const InstanceNormOptions& options) {
  const std::string_view op = "instance_norm";
  check::floating(op, x);
  if (running_mean.defined() != running_var.defined() ||
      (!options.use_input_stats && !running_mean.defined()))
    fail<UsageError>(
        op,
        "running_mean or running_var is undefined. Pass both, or neither with use_input_stats.");
  if (x.rank() < 3 || x.numel() == 0 || !running_mean.defined())
    return instance_norm(x, weight, bias, options.eps);
  const int64_t channels = x.shape()[1];
  check::vector_of(op, "running_mean", running_mean, channels);
  check::vector_of(op, "running_var", running_var, channels);
  if (options.use_input_stats) {
    if (x.numel() == x.shape()[0] * channels)
      fail<ShapeError>(op, described(x),
                       " has one value per channel. Its variance needs more than one.");
    const Tensor y = instance_norm(x, weight, bias, options.eps);
    see_instances(x, {running_mean.detach(), running_var.detach()}, options.momentum);
    return y;
  }
  Shape images{x.shape()[0], channels, 1, x.numel() / (x.shape()[0] * channels)};
  return reshape(
      batch_norm(reshape(x, images), weight, bias, running_mean, running_var, {.eps = options.eps}),
      x.shape());
}

void move_running_statistics(const BatchStatistics& batch) {
  Backend& backend = backend_for(batch.mean);
  const auto move = [&](const Tensor& seen, Tensor running) {
    if (seen.dtype() == running.dtype()) return backend.lerp(seen, batch.momentum, running);
    Tensor wide = empty_like(running, seen.dtype());
    backend.copy(running, wide);
    backend.lerp(seen, batch.momentum, wide);
    backend.copy(wide, running);
  };
  move(batch.mean, batch.running_mean);
  move(batch.variance, batch.running_var);
}

namespace {
BatchNorm batch_norm_op(std::string_view name, const Tensor& x, const Tensor& running_mean,
                        const Tensor& running_var, const BatchNormOptions& options) {
  check::floating(name, x);
  if (running_mean.defined() != running_var.defined())
    fail<UsageError>(name,
                     "one of running_mean and running_var is undefined. Pass both or neither.");
  const auto bare = [](const Tensor& buffer) {
    return buffer.defined() ? buffer.detach() : buffer;
  };
  return {.running = {.mean = bare(running_mean), .variance = bare(running_var)},
          .options = options};
}
}  // namespace

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const Tensor& running_mean, const Tensor& running_var,
                  const BatchNormOptions& options) {
  const BatchNorm op = batch_norm_op("batch_norm", x, running_mean, running_var, options);
  if (x.rank() == 3) return squeeze(apply(op, unsqueeze(x, 2), weight, bias), 2);
  if (x.rank() != 5) return apply(op, x, weight, bias);
  // Volumes in NDHWC memory are images whose rows are those of all depths.
  const Tensor at_end = permute(x, {0, 2, 3, 4, 1});
  const Shape shape = at_end.shape();
  const Tensor images =
      permute(reshape(at_end, {shape[0], shape[1] * shape[2], shape[3], shape[4]}), {0, 3, 1, 2});
  const Tensor y = permute(apply(op, images, weight, bias), {0, 2, 3, 1});
  return permute(reshape(y, shape), {0, 4, 1, 2, 3});
}

Tensor batch_norm_relu(const Tensor& x, const Tensor& weight, const Tensor& bias,
                       const Tensor& running_mean, const Tensor& running_var,
                       const BatchNormOptions& options, const Tensor& residual) {
  const BatchNorm op = batch_norm_op("batch_norm_relu", x, running_mean, running_var, options);
  if (x.rank() == 3 || x.rank() == 5 || (residual.defined() && residual.dtype() != x.dtype())) {
    const Tensor y = batch_norm(x, weight, bias, running_mean, running_var, options);
    return relu(residual.defined() ? y + residual : y);
  }
  return apply(BatchNormRelu{.norm = op}, x, weight, bias, residual);
}

}  // namespace halftone
