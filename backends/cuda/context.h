// One GPU: its stream, its memory, faults of kernels, copies from the host.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include <halftone/backends/cuda/block_cache.h>
#include <halftone/core/tensor.h>

namespace halftone::cuda {

// Handles input that only the device can check, such as an index out of range: the kernel neither
// reads nor writes outside, writes a note here, and continues. The host finds the note at its next
// wait and throws. The first note stays.

enum class FaultKind : int { none, embedding_index, cross_entropy_target, gather_index };

struct Fault {
  int kind = 0;  // a FaultKind, as an integer for atomicCAS
  long long value = 0, bound = 0;
};

/// Throws the error in the note, like the CPU backend; does nothing for FaultKind::none.
void raise(const Fault& fault);

// One GPU for the kernels: its stream, its memory, its counters. All work of a device runs in one
// stream, in the order of its issue, so released memory may be reused at once. Only wait() waits
// for the device, and its calls are counted. A thread that records a step uses a separate stream:
// the work of other threads runs as usual and is not part of the step.

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
  /// Moves to another library's stream, which waits for the work issued until now, and makes this
  /// the device of the calling thread, whatever that library chose. Does not own the stream.
  void use_stream(cudaStream_t stream);
  /// Returns the stream of this thread's work.
  cudaStream_t stream() const { return capturing() ? recording_stream_ : stream_; }
  int multiprocessors() const { return multiprocessors_; }
  /// Returns 10 * major + minor: 90 for Hopper.
  int compute_capability() const { return compute_capability_; }
  BlockCache& memory() { return memory_; }

  /// Returns the place where kernels report bad input: see Fault.
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
  cudaStream_t stream_ = nullptr;  // own_stream_, or another library's
  cudaStream_t own_stream_ = nullptr, recording_stream_ = nullptr;
  cudaEvent_t moved_ = nullptr;  // the end of the work before the last change of streams
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

// Copies from the host that do not make the host wait. Pageable memory goes through page-locked
// buffers, so the source may be changed when the call returns, and the device copies while the host
// continues. Copies run in the stream of the computation. Large copies of inputs (MemoryUse::input,
// as DataLoader makes them) run in a separate stream, at the same time as earlier kernels, into
// separate memory. From there, the stream of the computation copies them to their destination,
// because earlier kernels may still read memory that was just allocated. Buffers whose copy is done
// are reused; up to a limit there are as many as are in flight.

class Staging {
 public:
  explicit Staging(Context& context) : context_(context) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Limits: of one buffer; of all together; of their memory on the device, above which inputs are
  /// copied like all other data; and the size from which a copy is large.
  static constexpr std::size_t largest_buffer = std::size_t(32) << 20,
                               most_bytes = std::size_t(512) << 20,
                               most_device_bytes = std::size_t(128) << 20,
                               large_copy = std::size_t(1) << 20;

  /// Copies in order with all other work. Waits only if `most_bytes` of copies are pending.
  void copy(const void* host, void* device, std::size_t bytes);

 private:
  struct Buffer {
    void* data;
    std::size_t bytes;
    cudaEvent_t done;               // in the stream of the computation
    cudaEvent_t arrived = nullptr;  // in the copy stream; with `on_device`
    std::optional<Tensor> on_device{};
  };
  Buffer& buffer_for(std::size_t bytes);
  Buffer* idle(std::size_t bytes);
  void give_device_memory(Buffer& buffer);
  void copy_on_own_stream(const Buffer& buffer, void* device, std::size_t bytes);

  Context& context_;
  std::mutex mutex_;
  std::vector<Buffer> buffers_;  // the one unused longest first
  std::size_t total_bytes_ = 0, device_bytes_ = 0, device_limit_ = most_device_bytes;
  cudaStream_t stream_ = nullptr;  // for large inputs
};

}  // namespace halftone::cuda
