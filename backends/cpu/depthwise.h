// Depthwise convolutions, of f32: each channel has one filter of its own. Used if oneDNN is not:
// builds without it, and portable bits (core/device.h).
#pragma once

#include <halftone/core/backend.h>

namespace halftone::cpu {

/// Returns whether these functions support a convolution: f32, with as many groups as channels in
/// and channels out.
bool depthwise_serves(const Tensor& image, const Tensor& w, const ConvGeometry& g);

void depthwise_conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
                    Tensor& y);
void depthwise_backward_data(const Tensor& dy, const Tensor& w, const ConvGeometry& g, Tensor& dx);
/// Does not compute the gradient of the bias, which is a sum over dy.
void depthwise_backward_weights(const Tensor& x, const Tensor& dy, const ConvGeometry& g,
                                Tensor& dw);

}  // namespace halftone::cpu
