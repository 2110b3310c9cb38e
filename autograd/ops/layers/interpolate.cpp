// Shapes and checks of interpolation.
#include <halftone/autograd/ops/layers/interpolate.h>

#include <cmath>

namespace halftone {

namespace {
void check_options(const InterpolateOptions& o) {
  if (o.size.has_value() == o.scale_factor.has_value())
    fail<UsageError>("interpolate", o.size ? "both" : "neither",
                     " of size and scale_factor given. Give one of them.");
  if (o.align_corners && o.mode == Interpolation::nearest)
    fail<UsageError>("interpolate",
                     "align_corners has no meaning for nearest. Leave it, or use bilinear.");
  if (o.scale_factor)
    for (const double factor : o.scale_factor->array())
      if (!(factor > 0))
        fail<UsageError>("interpolate", "scale_factor is ", factor, ". It must be positive.");
}
}  // namespace

Tensor Interpolate::forward(const Tensor& x) {
  check_options(options);
  check::rank("interpolate", "x", x, 4);
  check::floating("interpolate", x);
  shape = x.shape(), from = x.dtype();
  geometry.mode = options.mode, geometry.align_corners = options.align_corners;
  Shape result = shape;
  for (int i : {0, 1}) {
    const auto d = std::size_t(i);
    const auto in = double(shape[2 + i]);
    const double factor = options.scale_factor ? options.scale_factor->array()[d] : 0;
    if (!(in * factor < 0x1p62))
      fail<ShapeError>("interpolate", "scale_factor ", factor, " of ", described(x),
                       " gives sizes beyond 64 bits. Use a smaller one.");
    result[2 + i] = options.size ? options.size->array()[d] : int64_t(std::floor(in * factor));
    if (result[2 + i] > 0)
      geometry.step[d] = options.size ? in / double(result[2 + i]) : 1 / factor;
  }
  if (result[2] < 1 || result[3] < 1 || shape[2] < 1 || shape[3] < 1)
    fail<ShapeError>("interpolate", "the output would be ", result, " for x ", described(x),
                     ". Both must have elements.");
  Tensor y = empty_channels_last(result, f32_result ? f32 : from, x.device());
  backend_for(x).interpolate(views::channels_last(x), geometry, y);
  return y;
}

}  // namespace halftone
