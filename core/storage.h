// One allocation: bytes on a device, charged to a use, with a version that counts in-place writes.
// A new version invalidates caches built from a parameter (AMP casts, packed weights).
#pragma once

#include <cstdint>
#include <memory>

#include <halftone/core/device.h>
#include <halftone/core/memory.h>

namespace halftone {

class Storage {
 public:
  /// Allocates on `device` and charges the current MemoryScope.
  Storage(int64_t bytes, Device device);
  /// Wraps memory of the host that `owner` keeps alive, for programs that have their data
  /// elsewhere. The ledger does not count it.
  Storage(std::byte* data, int64_t bytes, std::shared_ptr<const void> owner);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  MemoryUse use() const { return use_; }
  /// Moves the charge in the ledger, e.g. when an activation gradient becomes a parameter's
  /// gradient.
  void recharge(MemoryUse use);

  uint64_t version() const { return version_; }
  void bump_version() { ++version_; }

 private:
  std::byte* data_;
  int64_t bytes_;
  Device device_;
  MemoryUse use_;
  uint64_t version_ = 0;
  std::shared_ptr<const void> owner_{};  // of memory that was not allocated here
};

}  // namespace halftone
