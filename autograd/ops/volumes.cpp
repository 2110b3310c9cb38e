// Volumes are cut into frames, and frames are joined again. In NDHWC memory no step but the join of
// a convolution's frames copies elements.
#include <halftone/autograd/ops/volumes.h>

#include <vector>

#include <halftone/autograd/ops/shape.h>
#include <halftone/autograd/slots.h>

namespace halftone {

namespace {

/// [n, c, d, h, w] as [n, d, h, w, c].
Tensor channels_at_end(const Tensor& x) { return permute(x, {0, 2, 3, 4, 1}); }
/// [n, d, h, w, c] as [n, c, d, h, w].
Tensor volumes_of(const Tensor& x) { return permute(x, {0, 4, 1, 2, 3}); }
/// [n, h, w, c] as images [n, c, h, w].
Tensor images_of(const Tensor& x) { return permute(x, {0, 3, 1, 2}); }

/// Applies an operation on images to the frames of volumes, and another to columns: images of the
/// depths of each pixel.
template <class OfFrames, class OfColumns>
Tensor in_two_passes(const Tensor& x, const OfFrames& of_frames, const OfColumns& of_columns) {
  const int64_t n = x.size(0), c = x.size(1), d = x.size(2);
  const Tensor frames =
      of_frames(images_of(reshape(channels_at_end(x), {n * d, x.size(3), x.size(4), c})));
  const int64_t h = frames.size(2), w = frames.size(3);
  const Tensor columns =
      of_columns(images_of(reshape(permute(frames, {0, 2, 3, 1}), {n, d, h * w, c})));
  return volumes_of(reshape(permute(columns, {0, 2, 3, 1}), {n, columns.size(2), h, w, c}));
}

/// conv2d in casting policies, without its layout of weights.
constexpr OpInfo cast_as_conv2d{Conv2d::info.name, Conv2d::info.cast_class, Conv2d::info.reason};

void require_volumes(std::string_view op, const Tensor& x) {
  check::rank(op, "x", x, 5);
  if (x.numel() == 0)
    fail<ShapeError>(op, described(x), " is empty. Every dimension must have elements.");
}

PoolOptions of_frames(const Pool3dOptions& o) {
  PoolOptions options{.kernel = o.kernel.image(),
                      .padding = o.padding.image(),
                      .count_include_pad = o.count_include_pad,
                      .dilation = o.dilation.image(),
                      .ceil_mode = o.ceil_mode};
  if (o.stride) options.stride = o.stride->image();
  return options;
}
PoolOptions of_columns(const Pool3dOptions& o) {
  PoolOptions options{.kernel = {o.kernel.depth, 1},
                      .padding = {o.padding.depth, 0},
                      .count_include_pad = o.count_include_pad,
                      .dilation = {o.dilation.depth, 1},
                      .ceil_mode = o.ceil_mode};
  options.stride = Pair(o.stride ? o.stride->depth : o.kernel.depth, 1);
  return options;
}
/// Runs f in f32 or wider: a mean of means is then rounded once.
template <class F> Tensor rounded_once(const Tensor& x, const F& f) {
  return x.dtype() == f32 || x.dtype() == f64 ? f(x) : cast(f(cast(x, f32)), x.dtype());
}
}  // namespace

Tensor conv3d(const Tensor& in, const Tensor& weight, const Tensor& bias,
              const Conv3dOptions& options) {
  check::rank("conv3d", "weight", weight, 5);
  return detail::batched("conv3d", in, 5, [&](const Tensor& volumes) {
    require_volumes("conv3d", volumes);
    // Cast as conv2d casts, but first: fewer bytes are joined.
    std::array<Tensor, 3> inputs{volumes, weight, bias};
    if (InputCaster* caster = active_caster()) caster->cast_inputs(cast_as_conv2d, inputs);
    const auto& [x, w, b] = inputs;
    const int64_t n = x.size(0), c = x.size(1), groups = options.groups, kd = w.size(2);
    const int64_t stride = options.stride.depth, dilation = options.dilation.depth;
    if (groups < 1 || c != w.size(1) * groups)
      fail<ShapeError>("conv3d", "x is ", described(in), ", the weight ", described(weight), ", ",
                       groups, " groups. The weight must be [out, in / groups, kd, kh, kw].");
    if (stride < 1 || dilation < 1 || options.padding.depth < 0)
      fail<UsageError>("conv3d", "along the depth the stride is ", stride, ", the dilation ",
                       dilation, ", the padding ", options.padding.depth,
                       ". Stride and dilation must be 1 or more, the padding 0 or more.");
    const int64_t padded = x.size(2) + 2 * options.padding.depth, window = dilation * (kd - 1) + 1;
    if (kd < 1 || padded < window)
      fail<ShapeError>("conv3d", "x is ", described(in), " and the weight ", described(weight),
                       ": with padding the depth is ", padded, ", and the window needs ", window,
                       ". Use a larger input or padding, or a smaller kernel.");
    const int64_t depths = (padded - window) / stride + 1, per_group = c / groups;
    Tensor frames = channels_at_end(x);
    if (options.padding.depth > 0)
      frames = pad(frames, {0, 0, 0, 0, 0, 0, options.padding.depth, options.padding.depth});
    frames = reshape(frames, {n, padded, x.size(3), x.size(4), groups, per_group});
    std::vector<Tensor> under_window;
    for (int64_t k = 0; k < kd; ++k)
      under_window.push_back(
          slice(frames, 1, k * dilation, k * dilation + (depths - 1) * stride + 1, stride));
    const Tensor joined = kd == 1 ? under_window[0] : cat(under_window, 5);
    const Tensor images = images_of(reshape(joined, {n * depths, x.size(3), x.size(4), kd * c}));
    const Tensor flat =
        reshape(permute(w, {0, 2, 1, 3, 4}), {w.size(0), kd * per_group, w.size(3), w.size(4)});
    const Tensor y = conv2d(images, flat, b,
                            {.stride = options.stride.image(),
                             .padding = options.padding.image(),
                             .dilation = options.dilation.image(),
                             .groups = groups});
    return volumes_of(
        reshape(permute(y, {0, 2, 3, 1}), {n, depths, y.size(2), y.size(3), y.size(1)}));
  });
}

Tensor max_pool3d(const Tensor& in, const Pool3dOptions& options) {
  return detail::batched("max_pool3d", in, 5, [&](const Tensor& x) {
    require_volumes("max_pool3d", x);
    return in_two_passes(
        x, [&](const Tensor& frames) { return max_pool2d(frames, of_frames(options)); },
        [&](const Tensor& columns) { return max_pool2d(columns, of_columns(options)); });
  });
}

Tensor avg_pool3d(const Tensor& in, const Pool3dOptions& options) {
  return detail::batched("avg_pool3d", in, 5, [&](const Tensor& volumes) {
    require_volumes("avg_pool3d", volumes);
    return rounded_once(volumes, [&](const Tensor& x) {
      return in_two_passes(
          x, [&](const Tensor& frames) { return avg_pool2d(frames, of_frames(options)); },
          [&](const Tensor& columns) { return avg_pool2d(columns, of_columns(options)); });
    });
  });
}

Tensor adaptive_avg_pool3d(const Tensor& in, Triple output) {
  return detail::batched("adaptive_avg_pool3d", in, 5, [&](const Tensor& volumes) {
    require_volumes("adaptive_avg_pool3d", volumes);
    return rounded_once(volumes, [&](const Tensor& x) {
      return in_two_passes(
          x, [&](const Tensor& frames) { return adaptive_avg_pool2d(frames, output.image()); },
          [&](const Tensor& columns) {
            return adaptive_avg_pool2d(columns, {output.depth, columns.size(3)});
          });
    });
  });
}

Tensor adaptive_max_pool3d(const Tensor& in, Triple output) {
  return detail::batched("adaptive_max_pool3d", in, 5, [&](const Tensor& x) {
    require_volumes("adaptive_max_pool3d", x);
    return in_two_passes(
        x, [&](const Tensor& frames) { return adaptive_max_pool2d(frames, output.image()); },
        [&](const Tensor& columns) {
          return adaptive_max_pool2d(columns, {output.depth, columns.size(3)});
        });
  });
}

}  // namespace halftone
