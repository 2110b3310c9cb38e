// Enlarges (or shrinks) images without parameters, as torch.nn.Upsample of images: to a size or by
// a factor. nn::ConvTranspose2d does it with parameters.
#pragma once

#include <halftone/autograd/ops.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

struct Upsample final : StatelessLayer {
  InterpolateOptions options;
  explicit Upsample(InterpolateOptions o) : options(o) {}
  Tensor forward(const Tensor& x) const override { return interpolate(x, options); }
};

}  // namespace halftone::nn
