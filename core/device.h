// The location of a tensor: a kind of device and, for GPUs, an index.
#pragma once

#include <cstdint>
#include <ostream>
#include <string_view>

namespace halftone {

enum class DeviceKind : uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index = 0) { return {DeviceKind::cuda, index}; }
  bool operator==(const Device&) const = default;
};

/// Returns the device of that name: "cpu", "cuda" (the first GPU) or "cuda:1". An absent device
/// fails at its first use. Throws UsageError for other names. As torch.device.
Device device_named(std::string_view name);

inline std::ostream& operator<<(std::ostream& out, Device device) {
  if (device.kind == DeviceKind::cpu) return out << "cpu";
  return out << "cuda:" << device.index;
}

}  // namespace halftone
