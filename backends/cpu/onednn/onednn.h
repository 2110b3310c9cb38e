// oneDNN's functions for the CPU backend. Each function returns whether it did the work: false
// means a dtype, shape or instruction set that it does not support, and the caller uses another
// path. Without oneDNN all of them return false (the second half of onednn.cpp).
#pragma once

#include <string>

#include <halftone/core/backend.h>

namespace halftone::onednn {

bool matmul(const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c);
bool conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g, Tensor& y);
bool conv_backward_data(const Tensor& dy, const Tensor& w, const ConvGeometry& g, Tensor& dx);
/// Does not compute the gradient of the bias, which is a sum over dy.
bool conv_backward_weights(const Tensor& x, const Tensor& dy, const ConvGeometry& g, Tensor& dw);

/// Returns "oneDNN 2.6.3", or how to get it.
std::string description();
/// Returns the implementation that the last call on this thread used, e.g. "brgconv:avx512_core";
/// empty before the first call.
std::string last_implementation();

}  // namespace halftone::onednn
