// Convolutions and attention by cuDNN, for the calls that it supports. Each function has the
// contract of the Backend function of the same name. It returns false, and does nothing, if cuDNN
// is absent, switched off (HALFTONE_CUDA_LIBRARIES=off) or declines.
#pragma once

#include <cstdint>
#include <functional>
#include <array>
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
bool attention(Context& context, const AttentionCall& call);
bool attention_backward(Context& context, const AttentionBackwardCall& call);

}  // namespace halftone::cuda::cudnn

// Matrix products by cuBLASLt, for the calls that it supports.

namespace halftone::cuda::cublaslt {

/// Returns whether cuBLASLt exists and is not switched off (HALFTONE_CUDA_LIBRARIES=off).
bool is_usable();
/// Returns "cuBLASLt 13.0", or the reason why it is missing.
std::string description();

/// Computes c[.., m, n] = a[.., m, k] b[.., k, n] + bias[n] as Backend::matmul. Returns false, and
/// does nothing, if cuBLASLt is not usable or declines, or if it would round the result before it
/// adds the bias.
/// factors: of f8 matrices, those of a and those of b; a is then row-major, b's columns are
/// contiguous, and all lengths are multiples of 16. Both are f32 scalars, or (on sm_90) f32 [m] and
/// [n], or (on sm_100) bytes of e8m0 for 32 numbers along k, in the order of e8m0_place().
bool matmul(Context& context, const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c,
            const std::array<Tensor, 2>& factors = {});

/// Returns the number of bytes of the factors of [rows, k] numbers with `blocks` blocks in a row.
inline int64_t e8m0_bytes(int64_t rows, int64_t blocks) {
  return (rows + 127) / 128 * ((blocks + 3) / 4) * 512;
}
/// Returns the row and the block whose factor is byte `place`: tiles of 128 rows and 4 blocks, each
/// with the rows 0, 32, 64, 96, 1, 33, ... one after the other (cuBLAS, "1D block scaling").
struct E8m0Place {
  int64_t row, block;
};
HT_HD constexpr E8m0Place e8m0_place(int64_t place, int64_t blocks) {
  const int64_t across = (blocks + 3) / 4, tile = place / 512, in_tile = place % 512;
  return {tile / across * 128 + in_tile % 16 / 4 * 32 + in_tile / 16,
          tile % across * 4 + in_tile % 4};
}

}  // namespace halftone::cuda::cublaslt

// Inputs in the form that cuDNN needs: lengths of attention, orders of weights.

namespace halftone::cuda {

// Chooses the implementation for a call of attention that cuDNN could support. A cuDNN plan is for
// one length, and making it takes a third of a second: text that grows by one token per call would
// need a plan for each length. Whole multiples of a step go to cuDNN. Short calls of other lengths
// use the own kernels. Longer ones are extended to the next multiple if added keys change nothing;
// otherwise they go to cuDNN with their own length.

enum class AttentionRoute { own_kernels, library, lengthened };

inline constexpr int64_t attention_step = 64;

/// For n * heads of l queries and s keys each.
inline AttentionRoute attention_route(int64_t batch_heads, int64_t l, int64_t s, bool causal) {
  constexpr int64_t few_scores = int64_t(1) << 22;  // 12 heads of 590 x 590
  if (l % attention_step == 0 && s % attention_step == 0) return AttentionRoute::library;
  if (batch_heads * l * s < few_scores) return AttentionRoute::own_kernels;
  return causal && l == s ? AttentionRoute::lengthened : AttentionRoute::library;
}

/// q, k, v, y [n, heads, l, e] and log_sum_exp [parts, n, heads, l].
using RunLengthened = std::function<bool(const Tensor& q, const Tensor& k, const Tensor& v,
                                         Tensor& y, Tensor& log_sum_exp)>;
/// Runs causal attention of l queries to l keys with `call` on the next multiple of attention_step,
/// filled with zeros: no query sees an added key. Returns what `call` returns; false leaves y
/// unchanged.
bool attention_lengthened(const Context& context, const Tensor& q, const Tensor& k, const Tensor& v,
                          Tensor& y, Tensor& log_sum_exp, const RunLengthened& call);

// Weights of convolutions have PyTorch's layout, [out, in, kh, kw] row by row; cuDNN's fast engines
// need channels-last. Each version of a weight is permuted once: forward, backward and later
// batches use the same copy, which is released with the weight's memory.

/// Returns w, of rank 4, in channels-last order: w itself if both orders are equal (1x1 kernels),
/// otherwise the cached copy of this version, counted as MemoryUse::workspace. Copies are cached
/// for parameters and for casts in autocast's cache; other tensors get a new copy each time. A
/// thread that records a step gets copies that belong only to the recording, because replays must
/// permute the present weights.
Tensor channels_last_weight(const Context& context, const Tensor& w);

/// Drops the cached copies of the tensor whose memory begins at `data`; call it before that memory
/// is released.
void forget_weight(const void* data) noexcept;
/// Drops the copies of a recording of this device; call it when a recording begins or ends.
void forget_recorded_weights(const Context& context) noexcept;

}  // namespace halftone::cuda
