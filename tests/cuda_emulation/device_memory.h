// The memory of the emulated GPU: a range of addresses, from which allocations are made.
#pragma once

#include <cstddef>
#include <map>

namespace halftone::emulation {

/// Each address is allocated once only, so that a use after free faults. A page without access
/// follows each allocation. With HALFTONE_EMULATED_CLOSED all pages are without access while no
/// kernel runs, which costs two system calls per kernel.
class DeviceMemory {
 public:
  DeviceMemory();
  /// Returns memory whose end is the end of its last page, rounded down to 256-byte alignment; a
  /// page without access follows. Null if the memory is exhausted.
  void* allocate(std::size_t bytes);
  /// Returns false if `data` was not allocated.
  bool release(void* data);
  void open();
  void close();
  std::size_t allocated() const { return allocated_; }
  struct Allocation {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
  };
  /// Returns the allocation that contains this address, or the nearest before it; empty if none
  /// does.
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
  /// Closes the memory for the host. Then pages between allocations are open while a kernel runs.
  const bool closed_;
  std::map<std::byte*, Pages> blocks_;
};

}  // namespace halftone::emulation
