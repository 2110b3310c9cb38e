// Copies from the host that do not make the host wait: pageable memory goes through page-locked
// buffers, so the source may be changed as soon as the call returns, and the device copies while
// the host goes on. Buffers whose copy is done are taken again; up to a limit there are as many as
// are in flight.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include <halftone/backends/cuda/context.h>

namespace halftone::cuda {

class Staging {
 public:
  explicit Staging(Context& context) : context_(context) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Of one buffer, and of all together.
  static constexpr std::size_t largest_buffer = std::size_t(32) << 20, most_bytes = std::size_t(512)
                                                                                    << 20;

  /// In order with all other work. Waits only where the device is `most_bytes` behind.
  void copy(const void* host, void* device, std::size_t bytes);

 private:
  struct Buffer {
    void* data;
    std::size_t bytes;
    cudaEvent_t copied;
  };
  Buffer& buffer_for(std::size_t bytes);
  Buffer* idle(std::size_t bytes);

  Context& context_;
  std::mutex mutex_;
  std::vector<Buffer> buffers_;  // the one that was used longest ago first
  std::size_t total_bytes_ = 0;
};

}  // namespace halftone::cuda
