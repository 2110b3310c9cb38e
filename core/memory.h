// Memory: the ledger that counts it, one allocation, and freed blocks that are kept for reuse.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <new>
#include <string_view>

#include <halftone/core/device.h>
#include <halftone/core/error.h>

namespace halftone {

// The allocated bytes by holder and purpose. Every allocation is charged to a MemoryUse taken from
// the enclosing MemoryScope. The ledger knows, per device and use: the bytes now, the use's own
// peak, and its bytes when the total was at its peak. "No bytes left at the end of the scope" is
// the leak test of the whole framework. Bytes are those asked for (elements x size), not those an
// allocator rounds them to.

enum class MemoryUse : uint8_t {
  parameter,
  master_weight,
  gradient,
  master_gradient,
  optimizer_state,
  activation,
  cast_cache,
  compensation,
  input,
  communication,  // messages from and to other processes
  workspace,
};
inline constexpr int memory_use_count = 11;
std::string_view name(MemoryUse use);

/// Charges allocations of this thread to `use` until the scope ends. Outside any scope: activation.
class MemoryScope {
 public:
  [[nodiscard]] explicit MemoryScope(MemoryUse use);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;
  static MemoryUse current();

 private:
  int number_;
  MemoryUse before_;
};

/// The ledger's counts for one device, in bytes, as they were when memory_report() was called.
struct MemoryReport {
  Device device{};
  std::array<int64_t, memory_use_count> now{}, peak{}, at_peak{};
  int64_t total_now = 0, total_peak = 0;

  int64_t now_of(MemoryUse use) const { return now[std::size_t(use)]; }
  int64_t peak_of(MemoryUse use) const { return peak[std::size_t(use)]; }
  int64_t at_peak_of(MemoryUse use) const { return at_peak[std::size_t(use)]; }
};
std::ostream& operator<<(std::ostream& out, const MemoryReport& report);

/// Returns the present counts of a device. Thread-safe.
MemoryReport memory_report(Device device = Device::cpu());
/// Makes the present state the peak, to measure the code that follows.
void reset_peak_memory(Device device = Device::cpu());

namespace detail {  // called by Storage and by backends with workspaces
void ledger_add(Device device, MemoryUse use, int64_t bytes);
void ledger_move(Device device, MemoryUse from, MemoryUse to, int64_t bytes);
}  // namespace detail

/// Prints "4.2 MiB", "0" and the like.
struct HumanBytes {
  int64_t bytes;
};
std::ostream& operator<<(std::ostream& out, HumanBytes bytes);

// One allocation: bytes on a device, charged to a use, with a version that counts in-place writes.
// A new version invalidates caches built from a parameter (AMP casts, packed weights).

class PendingResult;  // core/pending.h

class Storage {
 public:
  /// Allocates on `device` and charges the current MemoryScope.
  Storage(int64_t bytes, Device device);
  /// Allocates when the data are first read, and computes them then. The ledger charges the
  /// MemoryScope that is current now.
  Storage(int64_t bytes, Device device, std::shared_ptr<const PendingResult> pending);
  /// Wraps memory of `device` that `owner` keeps alive, for programs that have their data elsewhere.
  /// The ledger does not count it.
  Storage(std::byte* data, int64_t bytes, std::shared_ptr<const void> owner,
          Device device = Device::cpu());
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const {
    if (waits_.load(std::memory_order_acquire)) [[unlikely]]
      compute();
    return data_;
  }
  /// Returns what will compute the data; null if they are there.
  std::shared_ptr<const PendingResult> pending() const;
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  MemoryUse use() const { return use_; }
  /// Returns whether the memory is another program's, which may write it without a new version.
  bool wraps() const { return owner_ != nullptr; }
  /// Moves the bytes to this use in the ledger: an activation gradient becomes a parameter's.
  void recharge(MemoryUse use);

  uint64_t version() const { return version_; }
  void bump_version() { ++version_; }

 private:
  void compute() const;

  mutable std::byte* data_;
  int64_t bytes_;
  Device device_;
  MemoryUse use_;
  uint64_t version_ = 0;
  std::shared_ptr<const void> owner_{};  // of memory that was not allocated here
  mutable std::shared_ptr<const PendingResult> pending_{};
  mutable std::atomic<bool> waits_ = false;
};

// Host memory that is kept for reuse. A training step asks for the same sizes again and again.
// After the first step every request is served from the lists of freed blocks, without a system
// call and without page faults. Blocks are 64-byte aligned and come in size classes, four to each
// power of two.

struct CacheStatistics {
  int64_t system_allocations = 0;  // blocks taken from the operating system until now
  int64_t cached_bytes = 0;        // held in the lists, ready for reuse
  int64_t used_bytes = 0;          // handed out, rounded to size classes
};

/// Returns at least `bytes` bytes, aligned to 64; throws DeviceError if the system has no more.
/// Thread-safe.
void* cached_allocate(std::size_t bytes);
/// Gives a block of `bytes` bytes back to its list.
void cached_release(void* data, std::size_t bytes) noexcept;
/// Returns all cached blocks to the system.
void release_cached_memory();
CacheStatistics cache_statistics();

/// Returns f(). If f runs out of memory (std::bad_alloc), throws a DeviceError in the name of `op`;
/// its message says on how many `bytes` of data f worked.
template <class F> decltype(auto) or_no_memory(std::string_view op, int64_t bytes, const F& f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    fail<DeviceError>(op, "there is no memory left for work on ", bytes,
                      " bytes. Use less data, or free other memory first.");
  }
}

namespace detail {
/// For tests: the first `after` calls of cached_allocate() work, and the next one fails as if the
/// system had no more memory. -1: none fails.
void fail_one_allocation(int64_t after);
}  // namespace detail

// The size classes of blocks in allocators: four to each power of two, so that at most a quarter of
// a block is rounding.

struct SizeClass {
  std::size_t index, bytes;
};

/// Returns the smallest class that holds `bytes`; sizes are multiples of `unit`, a power of two.
constexpr SizeClass size_class(std::size_t bytes, std::size_t unit) {
  const std::size_t units = bytes == 0 ? 1 : (bytes + unit - 1) / unit;
  if (units <= 4) return {units - 1, units * unit};
  const auto log = std::size_t(std::bit_width(units - 1) - 1);  // 2^log < units <= 2^(log+1)
  const std::size_t quarter = std::size_t(1) << (log - 2);
  const std::size_t steps = (units + quarter - 1) / quarter;  // 5 to 8
  return {4 * (log - 2) + 4 + (steps - 5), steps * quarter * unit};
}

}  // namespace halftone
