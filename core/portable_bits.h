// The switch for results that do not depend on the machine (docs/same_bits.md).
#pragma once

namespace halftone {

/// Chooses between the fastest order of sums and the portable one, for all operations that begin
/// afterwards in this process. With portable bits, results on the CPU are a function of inputs and
/// seed: instruction set, number of threads, oneDNN, compiler and the number of rows in a batch have
/// no effect. Products of bf16 and f16 then cost what those of f32 cost, and convolutions use own
/// kernels. CUDA is not covered. Call it between operations, from one thread.
void set_portable_bits(bool on);
/// Returns the choice: that of set_portable_bits(), else the environment variable
/// HALFTONE_PORTABLE_BITS (1: on; 0 or empty: off; others throw UsageError).
bool portable_bits();

/// Makes a choice for its scope.
class PortableBitsScope {
 public:
  explicit PortableBitsScope(bool on) : before_(portable_bits()) { set_portable_bits(on); }
  ~PortableBitsScope() { set_portable_bits(before_); }
  PortableBitsScope(const PortableBitsScope&) = delete;
  PortableBitsScope& operator=(const PortableBitsScope&) = delete;

 private:
  bool before_;
};

}  // namespace halftone
