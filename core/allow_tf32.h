// Whether f32 products and convolutions may round their factors to TF32: the exponent of f32, 11
// significant bits (formats::tf32), which tensor cores multiply about eight times as fast as f32
// multiplies, and sum in f32. torch.backends.cuda.matmul.allow_tf32 and
// torch.backends.cudnn.allow_tf32 in one. CPUs know nothing of it; policies/tf32.json has the same
// numbers anywhere, by rounding. In a policy file the word "tf32" of "compute" allows it to single
// operations.
#pragma once

#include <optional>

namespace halftone {

/// Off until somebody turns it on; for all threads, but for what runs inside a Tf32Scope.
bool allow_tf32();
/// For what is computed from here on. A captured step keeps what it was captured with.
void set_allow_tf32(bool allow);

/// Says it for what this thread computes until the scope ends; absent: as it was.
class Tf32Scope {
 public:
  [[nodiscard]] explicit Tf32Scope(std::optional<bool> allow);
  ~Tf32Scope();
  Tf32Scope(const Tf32Scope&) = delete;
  Tf32Scope& operator=(const Tf32Scope&) = delete;

 private:
  std::optional<bool> before_;
};

}  // namespace halftone
