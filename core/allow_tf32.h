// Whether f32 products and convolutions may round their factors to TF32: the exponent of f32, 11
// significant bits (formats::tf32). Tensor cores multiply TF32 about eight times as fast as f32,
// and sum in f32. The flag covers torch.backends.cuda.matmul.allow_tf32 and
// torch.backends.cudnn.allow_tf32. CPUs ignore it; policies/tf32.json gives the same numbers on
// any device, by rounding. In a policy file, "compute": "tf32" allows TF32 for single
// operations.
#pragma once

#include <optional>

namespace halftone {

/// Returns whether TF32 is allowed in this thread: off by default; a Tf32Scope has priority.
bool allow_tf32();
/// Sets the flag of all threads for later computations. A captured step keeps its value at capture.
void set_allow_tf32(bool allow);

/// Overrides the flag in this thread until the scope ends; an absent value: no override.
class Tf32Scope {
 public:
  [[nodiscard]] explicit Tf32Scope(std::optional<bool> allow);
  ~Tf32Scope();
  Tf32Scope(const Tf32Scope&) = delete;
  Tf32Scope& operator=(const Tf32Scope&) = delete;

 private:
  int number_;
  std::optional<bool> before_;
};

}  // namespace halftone
