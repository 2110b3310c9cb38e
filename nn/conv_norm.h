// The three sequences that networks of convolutions repeat, with batch norm and what follows it in
// one pass over memory. Models call these functions instead of the layers, which keep their own
// names and hence the paths of their parameters.
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
  return norm.then_relu(conv(x));
}
/// relu(norm(x) + residual), the end of a residual block; both of one shape.
inline Tensor norm_add_relu(const BatchNorm2d& norm, const Tensor& x, const Tensor& residual) {
  return norm.then_relu(x, residual);
}

}  // namespace halftone::nn
