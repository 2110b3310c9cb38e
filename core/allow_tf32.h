// Whether f32 products and convolutions may round their factors to TF32: the exponent of f32, 11
// significant bits (formats::tf32), which tensor cores multiply about eight times as fast as f32
// multiplies, and sum in f32. torch.backends.cuda.matmul.allow_tf32 and
// torch.backends.cudnn.allow_tf32 in one. CPUs know nothing of it; policies/tf32.json has the same
// numbers anywhere, by rounding.
#pragma once

namespace halftone {

/// Off until somebody turns it on; for all threads.
bool allow_tf32();
/// For what is computed from here on. A captured step keeps what it was captured with.
void set_allow_tf32(bool allow);

}  // namespace halftone
