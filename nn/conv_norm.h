// Three common sequences of convolutional networks, with batch norm and its successor in one pass
// over memory. Models call these functions instead of the layers. The layers keep their own names,
// so the paths of their parameters do not change.
#pragma once

#include <halftone/nn/conv.h>
#include <halftone/nn/norm.h>

namespace halftone::nn {

/// Returns norm(conv(x)); x: [n, in, h, w].
inline Tensor conv_norm(const Conv2d& conv, const BatchNorm2d& norm, const Tensor& x) {
  return norm(conv(x));
}
/// Returns relu(norm(conv(x))); x: [n, in, h, w].
inline Tensor conv_norm_relu(const Conv2d& conv, const BatchNorm2d& norm, const Tensor& x) {
  return norm.then_relu(conv(x));
}
/// Returns relu(norm(x) + residual), the end of a residual block; both of one shape.
inline Tensor norm_add_relu(const BatchNorm2d& norm, const Tensor& x, const Tensor& residual) {
  return norm.then_relu(x, residual);
}

}  // namespace halftone::nn
