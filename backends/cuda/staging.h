// Copies from the host that do not make the host wait: pageable memory goes through a ring of
// page-locked buffers, so the source may be changed as soon as the call returns, and the device
// copies while the host goes on.
#pragma once

#include <array>
#include <cstddef>

#include <halftone/backends/cuda/context.h>

namespace halftone::cuda {

class Staging {
 public:
  explicit Staging(Context& context) : context_(context) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  static constexpr std::size_t buffer_bytes = std::size_t(4) << 20;
  static constexpr std::size_t buffer_count = 4;

  /// In order with all other work. Waits only where the device is more than the ring behind.
  void copy(const void* host, void* device, std::size_t bytes);

 private:
  struct Buffer {
    void* data = nullptr;
    cudaEvent_t copied = nullptr;
    bool in_flight = false;
  };
  Buffer& next();

  Context& context_;
  std::array<Buffer, buffer_count> buffers_{};
  std::size_t turn_ = 0;
};

}  // namespace halftone::cuda
