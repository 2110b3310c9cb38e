// Where a result is computed, and what its bits depend on besides the program.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace halftone {

// The location of a tensor: a kind of device and, for GPUs, an index.

enum class DeviceKind : uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index = 0) { return {DeviceKind::cuda, index}; }
  bool operator==(const Device&) const = default;
};

/// Returns the device of that name: "cpu", "cuda" (the first GPU) or "cuda:1". An absent device
/// fails at its first use. Throws UsageError for other names. As torch.device.
Device device_named(std::string_view name);

inline std::ostream& operator<<(std::ostream& out, Device device) {
  if (device.kind == DeviceKind::cpu) return out << "cpu";
  return out << "cuda:" << device.index;
}

// The facts besides the program that results on a device depend on: for checks that two processes,
// or two runs of one training, compute alike.

/// Returns the kernels, libraries and hardware that compute on a device, without anything that
/// changes during a run: "cpu: avx512 kernels, oneDNN 3.1". Defined in backends/registry.cpp.
std::string kernels_of(Device device);

/// Returns the largest number of threads that a parallel region of the calling thread gets:
/// omp_get_max_threads(), but at most OMP_THREAD_LIMIT, and 1 if OMP_MAX_ACTIVE_LEVELS allows no
/// further region. OpenMP may give fewer (OMP_DYNAMIC, other regions under the same limit), so
/// every kernel must be right for any number of threads. Defined in backends/team.cpp.
int cpu_threads();

// The switch for results that do not depend on the machine (docs/same_bits.md).

/// Chooses between the fastest order of sums and the portable one, for all operations that begin
/// afterwards in this process. With portable bits, results on the CPU are a function of inputs and
/// seed: instruction set, number of threads, oneDNN, compiler and the number of rows in a batch
/// have no effect. Products of bf16 and f16 then cost what those of f32 cost, and convolutions use
/// own kernels. CUDA is not covered. Call it between operations, from one thread.
void set_portable_bits(bool on);
/// Returns whether bits are portable: what set_portable_bits() chose, else what the environment
/// variable HALFTONE_PORTABLE_BITS says (1: on; 0 or empty: off; others throw UsageError).
bool portable_bits();

/// Calls set_portable_bits(on), and restores the choice before it when the scope ends.
class PortableBitsScope {
 public:
  explicit PortableBitsScope(bool on) : before_(portable_bits()) { set_portable_bits(on); }
  ~PortableBitsScope() { set_portable_bits(before_); }
  PortableBitsScope(const PortableBitsScope&) = delete;
  PortableBitsScope& operator=(const PortableBitsScope&) = delete;

 private:
  bool before_;
};

// Whether f32 products and convolutions may round their factors to TF32: the exponent of f32, 11
// significant bits (formats::tf32). Tensor cores multiply TF32 about eight times as fast as f32,
// and sum in f32. The flag covers torch.backends.cuda.matmul.allow_tf32 and
// torch.backends.cudnn.allow_tf32. CPUs ignore it; amp/policies/tf32.json gives the same numbers on
// any device, by rounding. In a policy file, "compute": "tf32" allows TF32 for single
// operations.

/// Returns whether TF32 is allowed in this thread: by the innermost Tf32Scope, else by
/// set_allow_tf32(), else false.
bool allow_tf32();
/// Sets the flag of all threads for later computations. A captured step (core/captured_step.h)
/// keeps the flag with which it was recorded.
void set_allow_tf32(bool allow);

/// Overrides the flag in this thread until the scope ends; without a value, overrides nothing.
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
