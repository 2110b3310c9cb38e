// The memory of the emulated GPU: a range of addresses of which parts are given out.
#pragma once

#include <cstddef>
#include <map>

namespace halftone::emulation {

/// Addresses are handed out once and never again, so that what is used after it was freed stops. A
/// page without access follows each allocation; with HALFTONE_EMULATED_CLOSED all of it is without
/// access while no kernel runs, which costs two system calls per kernel.
class DeviceMemory {
 public:
  DeviceMemory();
  /// Ends at the end of its pages, but for what 256-byte alignment takes; a page without access
  /// follows. Null if there is no more.
  void* allocate(std::size_t bytes);
  /// False if that was not allocated.
  bool release(void* data);
  void open();
  void close();
  std::size_t allocated() const { return allocated_; }
  struct Allocation {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  /// The allocation that has this address, or the nearest before it; empty if there is none.
  Allocation allocation_at(const void* address) const;
  std::size_t total = std::size_t(8) << 30;

 private:
  struct Pages {
    std::byte* first;
    std::size_t bytes, asked;
  };
  void protect(int access) const;

  std::byte* base_ = nullptr;
  std::size_t used_ = 0, allocated_ = 0;
  int depth_ = 0;
  /// Without access for the host; then pages between allocations are open while a kernel runs.
  const bool closed_;
  std::map<std::byte*, Pages> blocks_;
};

}  // namespace halftone::emulation
