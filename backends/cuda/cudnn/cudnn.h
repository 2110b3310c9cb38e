// Convolutions and attention by cuDNN, for the calls that it supports. Each function has the
// contract of the Backend function of the same name. It returns false, and does nothing, if cuDNN
// is absent, switched off (HALFTONE_CUDA_LIBRARIES=off) or declines.
#pragma once

#include <string>

#include <halftone/backends/cuda/context.h>
#include <halftone/core/backend.h>

namespace halftone::cuda::cudnn {

/// Returns "cuDNN 9.19", or the reason why it is missing.
std::string description();

bool conv(Context& context, const Tensor& x, const Tensor& w, const Tensor& bias,
          const ConvGeometry& g, Tensor& y);
bool conv_backward_data(Context& context, const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                        Tensor& dx);
bool conv_backward_weights(Context& context, const Tensor& x, const Tensor& dy,
                           const ConvGeometry& g, Tensor& dw);
bool attention(Context& context, const Tensor& q, const Tensor& k, const Tensor& v,
               const Tensor& mask, const AttentionSettings& settings, Tensor& y,
               Tensor& log_sum_exp);
bool attention_backward(Context& context, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& mask, const AttentionSettings& settings, const Tensor& y,
                        const Tensor& log_sum_exp, const Tensor& dy, Tensor& dq, Tensor& dk,
                        Tensor& dv);

}  // namespace halftone::cuda::cudnn
