// Convolution as implicit matrix products: windows of the image (conv_windows.h) times the weights.
// Used where oneDNN is not: builds without it, instruction sets for which it has only scalar code,
// and shapes for which its kernels are slower.
#pragma once

#include <halftone/core/backend.h>

namespace halftone::cpu {

/// Returns whether these functions support a convolution: f32, and groups wide enough for a
/// product.
bool products_serve(const Tensor& x, const Tensor& w, const ConvGeometry& g);

enum class ConvPass : uint8_t { forward, backward_data, backward_weights };
/// Returns whether they should be tried before oneDNN: a rule of dtype and shapes for CPUs with
/// AVX2 and no wider vectors, and for CPUs with AMX. `image`: x or its gradient. bench/conv_paths
/// measures the times that the rule is based on.
bool products_win(ConvPass pass, const Tensor& image, const Tensor& w, const ConvGeometry& g);

void conv_by_products(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
                      Tensor& y);
void conv_backward_data_by_products(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                                    Tensor& dx);
/// Does not compute the gradient of the bias, which is a sum over dy.
void conv_backward_weights_by_products(const Tensor& x, const Tensor& dy, const ConvGeometry& g,
                                       Tensor& dw);

/// The same for bf16, with the CPU's bf16 instructions; the gradient of the weights has any dtype.
bool bf16_products_serve(const Tensor& x, const Tensor& w, const ConvGeometry& g);
void conv_by_bf16_products(const Tensor& x, const Tensor& w, const Tensor& bias,
                           const ConvGeometry& g, Tensor& y);
void conv_backward_data_by_bf16_products(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                                         Tensor& dx);
void conv_backward_weights_by_bf16_products(const Tensor& x, const Tensor& dy,
                                            const ConvGeometry& g, Tensor& dw);

// Depthwise convolutions, of f32: each channel has one filter of its own. Used if oneDNN is not:
// builds without it, and portable bits (core/device.h).

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
