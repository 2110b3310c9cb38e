// Copies from the host that do not make the host wait. Pageable memory goes through page-locked
// buffers, so the source may be changed when the call returns, and the device copies while the host
// continues. Copies run in the stream of the computation. Large copies of inputs (MemoryUse::input,
// as DataLoader makes them) run in a separate stream, at the same time as earlier kernels, into
// separate memory. From there, the stream of the computation copies them to their destination,
// because earlier kernels may still read memory that was just allocated. Buffers whose copy is done
// are reused; up to a limit there are as many as are in flight.
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

#include <halftone/backends/cuda/context.h>

namespace halftone::cuda {

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
