// Weights of convolutions have PyTorch's layout, [out, in, kh, kw] row by row; cuDNN's fast engines
// need channels-last. Each version of a weight is permuted once: forward, backward and later
// batches use the same copy, which is released with the weight's memory.
#pragma once

#include <halftone/backends/cuda/context.h>

namespace halftone::cuda {

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
