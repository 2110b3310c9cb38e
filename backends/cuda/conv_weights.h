// Weights of convolutions are kept as PyTorch's, [out, in, kh, kw] row by row; cuDNN's fast engines
// want them channels-last. They are permuted once for a version of a weight: forward, backward and
// later batches use the same copy, which goes when the weight's memory does.
#pragma once

#include <halftone/backends/cuda/context.h>

namespace halftone::cuda {

/// w, of rank 4, in channels-last order: itself where both orders are one (1x1 kernels), else the
/// copy that is kept of this version, charged to MemoryUse::workspace. Kept of parameters and of
/// casts in autocast's cache; of other tensors it is a new copy each time. A thread that records a
/// step gets copies of the recording alone: its replays must permute what they find.
Tensor channels_last_weight(const Context& context, const Tensor& w);

/// Drops what is kept of the tensor whose memory begins there: before that memory is released.
void forget_weight(const void* data) noexcept;
/// Drops what a recording of this device made: where one begins or ends.
void forget_recorded_weights(const Context& context) noexcept;

}  // namespace halftone::cuda
