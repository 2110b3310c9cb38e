// Shapes and checks of pooling.
#include <halftone/autograd/ops/pool.h>

#include <limits>

namespace halftone {

namespace detail {
namespace {
/// From the first place of a window through the last.
int64_t span_of(const PoolGeometry& g, std::size_t d) {
  return (g.kernel[d] - 1) * g.dilation[d] + 1;
}
}  // namespace

PoolGeometry pool_geometry(std::string_view op, const PoolOptions& options) {
  const PoolGeometry g{options.kernel.array(), options.stride.value_or(options.kernel).array(),
                       options.padding.array(), options.count_include_pad,
                       options.dilation.array()};
  constexpr int64_t most = std::numeric_limits<int32_t>::max();  // of what libraries take
  for (std::size_t d : {0u, 1u}) {
    bool valid = g.padding[d] >= 0;
    for (const int64_t size : {g.kernel[d], g.stride[d], g.dilation[d]})
      valid = valid && size >= 1 && size <= most;
    if (!valid || g.padding[d] > g.kernel[d] / 2)
      fail<UsageError>(
          op, "kernel ", g.kernel[d], ", stride ", g.stride[d], ", padding ", g.padding[d],
          ", dilation ", g.dilation[d],
          ". All but padding must be at least 1 and below 2^31, padding at most half the "
          "kernel.");
  }
  return g;
}

Shape pooled_shape(std::string_view op, const Tensor& x, const PoolGeometry& g, bool ceil_mode) {
  check::rank(op, "x", x, 4);
  check::floating(op, x);
  Shape shape = x.shape();
  for (int i : {0, 1}) {
    const auto d = std::size_t(i);
    const int64_t in = x.shape()[2 + i], room = in + 2 * g.padding[d] - span_of(g, d);
    int64_t& out = shape[2 + i];
    out = math::floor_quotient(room + (ceil_mode ? g.stride[d] - 1 : 0), g.stride[d]) + 1;
    if (ceil_mode && (out - 1) * g.stride[d] >= in + g.padding[d]) --out;
    out = std::max<int64_t>(out, 0);
  }
  if (shape[2] < 1 || shape[3] < 1)
    fail<ShapeError>(op, "the output would be ", shape, " for x ", described(x),
                     ". Use a smaller kernel.");
  return shape;
}
}  // namespace detail

Tensor AdaptiveAvgPool2d::forward(const Tensor& x) {
  check::rank("adaptive_avg_pool2d", "x", x, 4);
  check::floating("adaptive_avg_pool2d", x);
  const bool an_image = x.size(1) > 0 && x.size(2) > 0 && x.size(3) > 0;
  if (output.height < 1 || output.width < 1 || !an_image)
    fail<ShapeError>("adaptive_avg_pool2d", "output ", output.height, " x ", output.width, " of ",
                     described(x), ". Both must have elements.");
  shape = x.shape();
  Tensor y =
      empty_channels_last({shape[0], shape[1], output.height, output.width}, x.dtype(), x.device());
  backend_for(x).adaptive_avg_pool(views::channels_last(x), y);
  return y;
}

}  // namespace halftone
