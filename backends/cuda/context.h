// One GPU for the kernels: its stream, its memory, its counters. All work of a device runs in one
// stream, in the order of its issue, so released memory may be reused at once. Only wait() waits
// for the device, and its calls are counted. A thread that records a step uses a separate stream:
// the work of other threads runs as usual and is not part of the step.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include <cuda_runtime.h>

#include <halftone/backends/cuda/block_cache.h>
#include <halftone/backends/cuda/fault.h>
#include <halftone/core/tensor.h>

namespace halftone::cuda {

/// Throws DeviceError unless the call succeeded; `what` describes the attempt.
void check(cudaError_t result, std::string_view what);

class Context {
 public:
  /// Throws DeviceError if the device does not exist, or the driver is too old for this build.
  explicit Context(int index);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Makes this the device of the calling thread.
  void activate() const;

  Device device() const { return Device::cuda(index_); }
  /// Returns the stream of this thread's work.
  cudaStream_t stream() const { return capturing() ? recording_stream_ : stream_; }
  int multiprocessors() const { return multiprocessors_; }
  /// Returns 10 * major + minor: 90 for Hopper.
  int compute_capability() const { return compute_capability_; }
  BlockCache& memory() { return memory_; }

  /// Returns the place where kernels report bad input: see fault.h.
  Fault* fault() const { return fault_; }
  /// Waits for all work issued so far. Throws what a kernel reported.
  void wait();
  /// Returns the number of calls of wait().
  int64_t waits() const { return waits_; }

  /// Kernels add it to random keys. It is not null while a graph is captured, so that each replay
  /// draws its own numbers. It has two numbers: how far the generator is ahead, and the number of
  /// earlier replays.
  const uint64_t* key_shift() const { return capturing() ? key_shift_ : nullptr; }
  uint64_t* key_shift_memory() const { return key_shift_; }

  /// Returns whether this thread records its work.
  bool capturing() const {
    return recorder_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  /// Records this thread's work from now on; returns false if another thread records.
  bool begin_recording();
  void end_recording() { recorder_.store(std::thread::id{}); }
  /// Throws UsageError while a step is recorded, because nothing can be read then.
  void require_not_capturing() const;

 private:
  int index_, multiprocessors_ = 0, compute_capability_ = 0;
  cudaStream_t stream_ = nullptr, recording_stream_ = nullptr;
  BlockCache memory_;
  Fault* fault_ = nullptr;         // on the device
  Fault* reported_ = nullptr;      // page-locked: wait() reads it
  uint64_t* key_shift_ = nullptr;  // on the device
  int64_t waits_ = 0;
  std::atomic<std::thread::id> recorder_{};  // default id: no thread records
};

/// Returns bytes for the duration of a call, like scratch(); nullopt without memory for them.
/// them.
std::optional<Tensor> workspace(const Context& context, int64_t bytes);
/// Returns a tensor for the duration of a call, counted as MemoryUse::workspace.
Tensor scratch(const Context& context, const Shape& shape, DType dtype);

}  // namespace halftone::cuda
