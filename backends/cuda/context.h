// One GPU as the kernels see it: its stream, its memory, its counters. All work of a device runs in
// one stream, in the order in which it was issued, so memory that is released may be handed out
// again at once. Nothing waits for the device but wait(), and who calls that is counted. A thread
// that records a step does so in a stream of its own: what other threads do meanwhile runs as
// always, and is no part of the step.
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

/// Throws DeviceError unless the call succeeded; `what` says what was tried.
void check(cudaError_t result, std::string_view what);

class Context {
 public:
  /// Throws DeviceError if there is no such device, or the driver is too old for this build.
  explicit Context(int index);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Makes this the device of the calling thread.
  void activate() const;

  Device device() const { return Device::cuda(index_); }
  /// Where this thread's work goes.
  cudaStream_t stream() const { return capturing() ? recording_stream_ : stream_; }
  int multiprocessors() const { return multiprocessors_; }
  /// 10 * major + minor: 90 for Hopper.
  int compute_capability() const { return compute_capability_; }
  BlockCache& memory() { return memory_; }

  /// Where kernels say what they could not: see fault.h.
  Fault* fault() const { return fault_; }
  /// Waits for all work issued so far; throws what a kernel reported.
  void wait();
  /// How often wait() was called.
  int64_t waits() const { return waits_; }

  /// Added to random keys by kernels; not null while a graph is captured, so that each replay draws
  /// its own numbers. Two numbers: what the generator is ahead, and the replays before.
  const uint64_t* key_shift() const { return capturing() ? key_shift_ : nullptr; }
  uint64_t* key_shift_memory() const { return key_shift_; }

  /// Whether this thread records its work.
  bool capturing() const {
    return recorder_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  /// This thread's work is recorded from here on; false if that of another thread is.
  bool begin_recording();
  void end_recording() { recorder_.store(std::thread::id{}); }
  /// Throws UsageError while a step is recorded: nothing can be read then.
  void require_not_capturing() const;

 private:
  int index_, multiprocessors_ = 0, compute_capability_ = 0;
  cudaStream_t stream_ = nullptr, recording_stream_ = nullptr;
  BlockCache memory_;
  Fault* fault_ = nullptr;         // on the device
  Fault* reported_ = nullptr;      // page-locked: where wait() reads it
  uint64_t* key_shift_ = nullptr;  // on the device
  int64_t waits_ = 0;
  std::atomic<std::thread::id> recorder_{};  // none: nobody records
};

/// Bytes for the time of a call, as scratch(); none if there is no memory for them.
std::optional<Tensor> workspace(const Context& context, int64_t bytes);
/// A tensor for the time of a call, charged to MemoryUse::workspace.
Tensor scratch(const Context& context, const Shape& shape, DType dtype);

}  // namespace halftone::cuda
