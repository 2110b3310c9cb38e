// The allocated bytes by holder and purpose. Every allocation is charged to a MemoryUse taken from
// the enclosing MemoryScope. The ledger knows, per device and use: the bytes now, the use's own
// peak, and its bytes when the total was at its peak. "No bytes left at the end of the scope" is
// the leak test of the whole framework. Bytes are those asked for (elements x size), not those an
// allocator rounds them to.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <string_view>

#include <halftone/core/device.h>

namespace halftone {

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

/// The counts of one device, a value: read it, compare it, print it.
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

}  // namespace halftone
