// Allocates through the device's backend, and records the allocation in the ledger.
#include <halftone/core/storage.h>

#include <utility>

#include <halftone/core/backend.h>

namespace halftone {

Storage::Storage(int64_t bytes, Device device)
    : data_(static_cast<std::byte*>(backend_for(device).allocate(std::size_t(bytes)))),
      bytes_(bytes),
      device_(device),
      use_(MemoryScope::current()) {
  detail::ledger_add(device_, use_, bytes_);
}

Storage::Storage(std::byte* data, int64_t bytes, std::shared_ptr<const void> owner)
    : data_(data),
      bytes_(bytes),
      device_(Device::cpu()),
      use_(MemoryScope::current()),
      owner_(std::move(owner)) {}

Storage::~Storage() {
  if (owner_) return;
  detail::ledger_add(device_, use_, -bytes_);
  backend_for(device_).release(data_, std::size_t(bytes_));
}

void Storage::recharge(MemoryUse use) {
  if (use == use_) return;
  if (owner_) {
    use_ = use;
    return;
  }
  detail::ledger_move(device_, use_, use, bytes_);
  use_ = use;
}

}  // namespace halftone
