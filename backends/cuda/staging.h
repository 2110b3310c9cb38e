// Copies from the host that do not make the host wait: pageable memory goes through page-locked
// buffers, so the source may be changed as soon as the call returns, and the device copies while
// the host goes on. Copies run in the stream of the computation; large ones of inputs
// (MemoryUse::input, as DataLoader's) in a stream of their own, beside the kernels that were issued
// before them, into memory that is theirs, and from there, in the stream of the computation, to
// where they belong: device memory that was just handed out may still be read by earlier kernels.
// Buffers whose copy is done are taken again; up to a limit there are as many as are in flight.
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

  /// Of one buffer; of all together; of their memory on the device, beyond which inputs are copied
  /// as all else is; from what size on they are not.
  static constexpr std::size_t largest_buffer = std::size_t(32) << 20,
                               most_bytes = std::size_t(512) << 20,
                               most_device_bytes = std::size_t(128) << 20,
                               large_copy = std::size_t(1) << 20;

  /// In order with all other work. Waits only where the device is `most_bytes` behind.
  void copy(const void* host, void* device, std::size_t bytes);

 private:
  struct Buffer {
    void* data;
    std::size_t bytes;
    cudaEvent_t done;               // in the stream of the computation
    cudaEvent_t arrived = nullptr;  // in the copies' own; with `on_device`
    std::optional<Tensor> on_device{};
  };
  Buffer& buffer_for(std::size_t bytes);
  Buffer* idle(std::size_t bytes);
  void give_device_memory(Buffer& buffer);
  void copy_beside(const Buffer& buffer, void* device, std::size_t bytes);

  Context& context_;
  std::mutex mutex_;
  std::vector<Buffer> buffers_;  // the one that was used longest ago first
  std::size_t total_bytes_ = 0, device_bytes_ = 0, device_limit_ = most_device_bytes;
  cudaStream_t stream_ = nullptr;  // of large inputs
};

}  // namespace halftone::cuda
