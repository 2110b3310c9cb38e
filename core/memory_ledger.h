// Who holds how many bytes, and for what. Every allocation is charged to a MemoryUse taken from the
// enclosing MemoryScope, and the ledger knows, per device and use: now, the use's own peak, and
// what it held when the total was at its peak. "No bytes left at the end of the scope" is the leak
// test of the whole framework. Bytes are those asked for (elements x size), not what an allocator
// rounds them to.
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
  communication,  // what other processes send, and what is sent to them
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
  MemoryUse before_;
};

/// The books of one device, a value: read it, compare it, print it.
struct MemoryReport {
  Device device{};
  std::array<int64_t, memory_use_count> now{}, peak{}, at_peak{};
  int64_t total_now = 0, total_peak = 0;

  int64_t now_of(MemoryUse use) const { return now[std::size_t(use)]; }
  int64_t peak_of(MemoryUse use) const { return peak[std::size_t(use)]; }
  int64_t at_peak_of(MemoryUse use) const { return at_peak[std::size_t(use)]; }
};
std::ostream& operator<<(std::ostream& out, const MemoryReport& report);

/// The books of a device as they stand. Thread-safe.
MemoryReport memory_report(Device device = Device::cpu());
/// Makes the present state the peak, to measure what follows.
void reset_peak_memory(Device device = Device::cpu());

namespace detail {  // called by Storage and by backends that keep workspaces
void ledger_add(Device device, MemoryUse use, int64_t bytes);
void ledger_move(Device device, MemoryUse from, MemoryUse to, int64_t bytes);
}  // namespace detail

/// "4.2 MiB", "0" and the like.
struct HumanBytes {
  int64_t bytes;
};
std::ostream& operator<<(std::ostream& out, HumanBytes bytes);

}  // namespace halftone
