// The ledger: one record per device and one mutex. An allocation costs a lock and three additions,
// which is negligible compared with the kernel that fills the memory.
#include <halftone/core/memory.h>

#include <algorithm>
#include <iomanip>
#include <map>
#include <mutex>
#include <ostream>
#include <utility>

#include <halftone/core/plain_numbers.h>
#include <halftone/core/thread_slot.h>

namespace halftone {

namespace {
thread_local MemoryUse current_use = MemoryUse::activation;
constinit thread_local ScopeOrder<MemoryUse> scopes;

struct Books {
  std::mutex mutex;
  MemoryReport cpu{};
  std::map<int, MemoryReport> cuda{};

  MemoryReport& of(Device device) {
    if (device.kind == DeviceKind::cpu) return cpu;
    MemoryReport& report = cuda[device.index];
    report.device = device;
    return report;
  }
};

Books& books() {
  static Books* instance =
      new Books;  // never destroyed: tensors with static lifetime may outlive it otherwise
  return *instance;
}
}  // namespace

std::string_view name(MemoryUse use) {
  constexpr std::array<std::string_view, memory_use_count> names{
      "parameter",  "master_weight", "gradient", "master_gradient", "optimizer_state", "activation",
      "cast_cache", "compensation",  "input",    "communication",   "workspace"};
  return names[std::size_t(use)];
}

MemoryScope::MemoryScope(MemoryUse use)
    : number_(scopes.begin()), before_(std::exchange(current_use, use)) {}
MemoryScope::~MemoryScope() { scopes.end(number_, before_, current_use); }
MemoryUse MemoryScope::current() { return current_use; }

MemoryReport memory_report(Device device) {
  const std::lock_guard lock(books().mutex);
  return books().of(device);
}

void reset_peak_memory(Device device) {
  const std::lock_guard lock(books().mutex);
  MemoryReport& report = books().of(device);
  report.peak = report.at_peak = report.now;
  report.total_peak = report.total_now;
}

namespace detail {
void ledger_add(Device device, MemoryUse use, int64_t bytes) {
  const std::lock_guard lock(books().mutex);
  MemoryReport& report = books().of(device);
  int64_t& now = report.now[std::size_t(use)];
  now += bytes;
  report.total_now += bytes;
  report.peak[std::size_t(use)] = std::max(report.peak[std::size_t(use)], now);
  if (report.total_now > report.total_peak) {
    report.total_peak = report.total_now;
    report.at_peak = report.now;
  }
}

void ledger_move(Device device, MemoryUse from, MemoryUse to, int64_t bytes) {
  const std::lock_guard lock(books().mutex);
  MemoryReport& report = books().of(device);
  report.now[std::size_t(from)] -= bytes;
  report.now[std::size_t(to)] += bytes;
  report.peak[std::size_t(to)] =
      std::max(report.peak[std::size_t(to)], report.now[std::size_t(to)]);
}
}  // namespace detail

std::ostream& operator<<(std::ostream& out, HumanBytes human) {
  PlainText text;
  if (human.bytes == 0) text << "0";
  else if (human.bytes < 1024) text << human.bytes << " B";
  else if (human.bytes < (int64_t(1) << 20))
    text << std::fixed << std::setprecision(1) << double(human.bytes) / 1024 << " KiB";
  else if (human.bytes < (int64_t(1) << 30))
    text << std::fixed << std::setprecision(1) << double(human.bytes) / 1048576 << " MiB";
  else text << std::fixed << std::setprecision(2) << double(human.bytes) / 1073741824 << " GiB";
  return out << text.str();
}

std::ostream& operator<<(std::ostream& out, const MemoryReport& report) {
  PlainText device;
  device << "memory (" << report.device << ')';
  const auto row = [&](std::string_view label, int64_t now, int64_t peak, int64_t at_peak) {
    out << std::left << std::setw(18) << label << std::right << std::setw(12) << HumanBytes{now}
        << std::setw(12) << HumanBytes{peak} << std::setw(14) << HumanBytes{at_peak} << '\n';
  };
  out << std::left << std::setw(18) << device.str() << std::right << std::setw(12) << "now"
      << std::setw(12) << "peak" << std::setw(14) << "at the peak" << '\n';
  for (int i = 0; i < memory_use_count; ++i) {
    const auto use = MemoryUse(i);
    if (report.peak_of(use) != 0)
      row(name(use), report.now_of(use), report.peak_of(use), report.at_peak_of(use));
  }
  row("total", report.total_now, report.total_peak, report.total_peak);
  return out;
}

}  // namespace halftone
