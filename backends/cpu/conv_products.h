// Convolution as implicit matrix products: windows of the image (windows.h) times the weights. It
// serves where oneDNN does not: builds without it, instruction sets for which it has scalar code
// only, and shapes for which its kernels are slower.
#pragma once

#include <halftone/core/backend.h>

namespace halftone::cpu {

/// Whether these functions take a convolution: f32, and groups wide enough to make a product of.
bool products_serve(const Tensor& x, const Tensor& w, const ConvGeometry& g);

enum class ConvPass : uint8_t { forward, backward_data, backward_weights };
/// Whether they should be asked before oneDNN: a rule of dtype and shapes, the image x or its
/// gradient, for CPUs with AVX2 and nothing wider, and for those with AMX. bench/conv_paths has the
/// measures behind it.
bool products_win(ConvPass pass, const Tensor& image, const Tensor& w, const ConvGeometry& g);

void conv_by_products(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
                      Tensor& y);
void conv_backward_data_by_products(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                                    Tensor& dx);
/// Without the gradient of the bias, which is a sum over dy.
void conv_backward_weights_by_products(const Tensor& x, const Tensor& dy, const ConvGeometry& g,
                                       Tensor& dw);

/// The same for bf16, on the CPU's instructions for it; the gradient of the weights has any dtype.
bool bf16_products_serve(const Tensor& x, const Tensor& w, const ConvGeometry& g);
void conv_by_bf16_products(const Tensor& x, const Tensor& w, const Tensor& bias,
                           const ConvGeometry& g, Tensor& y);
void conv_backward_data_by_bf16_products(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                                         Tensor& dx);
void conv_backward_weights_by_bf16_products(const Tensor& x, const Tensor& dy,
                                            const ConvGeometry& g, Tensor& dw);

}  // namespace halftone::cpu
