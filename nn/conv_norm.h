// The three sequences that networks of convolutions repeat. Models call these functions instead of
// the layers, so that a fused operation can take their place here, for all models at once. The
// layers keep their own names, hence the paths of their parameters.
#pragma once

#include <halftone/nn/conv.h>
#include <halftone/nn/norm.h>

namespace halftone::nn {

/// norm(conv(x)); x: [n, in, h, w].
inline Tensor conv_norm(const Conv2d& conv, const BatchNorm2d& norm, const Tensor& x) {
  return norm(conv(x));
}
/// relu(norm(conv(x))); x: [n, in, h, w].
inline Tensor conv_norm_relu(const Conv2d& conv, const BatchNorm2d& norm, const Tensor& x) {
  return relu(norm(conv(x)));
}
/// relu(norm(x) + residual), the end of a residual block; both of one shape.
inline Tensor norm_add_relu(const BatchNorm2d& norm, const Tensor& x, const Tensor& residual) {
  return relu(norm(x) + residual);
}

}  // namespace halftone::nn
