// The ledger, storage, results that wait, and the cache of freed blocks.
#include <halftone/core/memory.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iomanip>
#include <map>
#include <mutex>
#include <new>
#include <ostream>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/files.h>
#include <halftone/core/formulas.h>
#include <halftone/core/language.h>
#include <halftone/core/pending.h>

namespace halftone {

// The ledger: one record per device and one mutex. An allocation costs a lock and three additions,
// which is negligible compared with the kernel that fills the memory.

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

// Allocates through the device's backend, and records the allocation in the ledger.

Storage::Storage(int64_t bytes, Device device)
    : data_(static_cast<std::byte*>(backend_for(device).allocate(std::size_t(bytes)))),
      bytes_(bytes),
      device_(device),
      use_(MemoryScope::current()) {
  detail::ledger_add(device_, use_, bytes_);
}

Storage::Storage(std::byte* data, int64_t bytes, std::shared_ptr<const void> owner, Device device)
    : data_(data),
      bytes_(bytes),
      device_(device),
      use_(MemoryScope::current()),
      owner_(std::move(owner)) {}

Storage::Storage(int64_t bytes, Device device, std::shared_ptr<const PendingResult> pending)
    : data_(nullptr),
      bytes_(bytes),
      device_(device),
      use_(MemoryScope::current()),
      pending_(std::move(pending)),
      waits_(true) {}

namespace {
/// Guards the computation of all results that wait. One may need another.
std::recursive_mutex& pending_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}
}  // namespace

std::shared_ptr<const PendingResult> Storage::pending() const {
  if (!waits_.load(std::memory_order_acquire)) return nullptr;
  const std::lock_guard lock(pending_mutex());
  return pending_;
}

/// Takes over the memory of the computed tensor, with its charge in the ledger.
void Storage::compute() const {
  const std::lock_guard lock(pending_mutex());
  if (!pending_) return;
  const MemoryScope scope(use_);
  pending_->check_inputs();
  const Tensor computed = pending_->make(pending_->dtype());
  Storage& other = *computed.storage();
  data_ = std::exchange(other.data_, nullptr);
  other.waits_ = true;  // nothing to release
  pending_.reset();
  waits_.store(false, std::memory_order_release);
}

Storage::~Storage() {
  if (owner_ || waits_) return;
  detail::ledger_add(device_, use_, -bytes_);
  backend_for(device_).release(data_, std::size_t(bytes_));
}

void Storage::recharge(MemoryUse use) {
  if (use == use_) return;
  if (owner_ || waits_) {
    use_ = use;
    return;
  }
  detail::ledger_move(device_, use_, use, bytes_);
  use_ = use;
}

// Results that wait (core/pending.h).

namespace {

uint64_t versions_of(const std::vector<Tensor>& inputs) {
  uint64_t sum = 0;
  for (const Tensor& x : inputs)
    if (x.defined()) sum += x.storage()->version();
  return sum;
}

std::shared_ptr<const PendingResult> pending_of(const Tensor& x) {
  return x.defined() ? x.storage()->pending() : nullptr;
}

Tensor copied(const Tensor& x, DType dtype) {
  Tensor y = empty_like(x, dtype);
  backend_for(x).copy(x, y);
  return y;
}

/// A cast to a wider dtype.
class Widened final : public PendingResult {
 public:
  Widened(const Tensor& x, DType dtype) : PendingResult(dtype, {x}), x_(x) {}
  Tensor make(DType dtype) const override { return dtype == x_.dtype() ? x_ : copied(x_, dtype); }
  bool gives(DType dtype) const override { return is_floating(dtype); }
  Tensor narrower() const override { return x_; }

 private:
  Tensor x_;
};

/// An operand of a product that reads its numbers and its scales.
class Scaled final : public PendingResult {
 public:
  Scaled(const F8Operand& operand, DType dtype) : PendingResult(dtype, {}), operand_(operand) {}
  Tensor make(DType dtype) const override {
    const Tensor numbers = copied(operand_.numbers, f32);
    Tensor values = empty_like(numbers);
    const auto multiply = [&](const Tensor& x, const Tensor& by) {
      backend_for(numbers).binary(call_of<BinaryFormulas>(formula::Mul{}), x, by, values);
    };
    multiply(numbers, factors());
    if (operand_.whole.defined()) multiply(values, views::expand(operand_.whole, values.shape()));
    return dtype == f32 ? values : copied(values, dtype);
  }
  bool gives(DType /*dtype*/) const override { return false; }
  const F8Operand& operand() const { return operand_; }

 private:
  /// Returns the factor of each number.
  Tensor factors() const {
    const Tensor &numbers = operand_.numbers, &factor = operand_.factor;
    if (factor.rank() == 0) return views::expand(factor, numbers.shape());
    const int64_t rows = factor.size(0), blocks = factor.rank() == 1 ? 1 : factor.size(1),
                  columns = numbers.size(-1), width = factor.rank() == 1 ? columns : operand_.block;
    const Tensor each =
        views::expand(views::reshaped(factor, {rows, blocks, 1}), {rows, blocks, width});
    return views::reshaped(
        views::slice(views::reshaped(each, {rows, blocks * width}), 1, 0, columns),
        numbers.shape());
  }

  F8Operand operand_;
};

}  // namespace

PendingResult::PendingResult(DType dtype, std::vector<Tensor> inputs)
    : dtype_(dtype), inputs_(std::move(inputs)), versions_(versions_of(inputs_)) {}

void PendingResult::check_inputs() const {
  if (versions_of(inputs_) == versions_) return;
  fail<UsageError>("tensor",
                   "a tensor was written in place before a result that depends on it was read. "
                   "Write a clone(), or set HALFTONE_PENDING=off.");
}

bool may_wait(int64_t bytes) {
  static const bool off = [] {
    const char* const set = environment_variable("HALFTONE_PENDING");
    return set && std::string_view(set) == "off";
  }();
  return bytes >= least_pending_bytes && !off;
}

Tensor pending_tensor(const Shape& shape, const Strides& strides, Device device,
                      std::shared_ptr<const PendingResult> result) {
  const DType dtype = result->dtype();
  auto storage =
      std::make_shared<Storage>(numel_of(shape) * size_of(dtype), device, std::move(result));
  return Tensor(
      std::make_shared<TensorBody>(TensorBody{std::move(storage), 0, shape, strides, dtype}));
}

Tensor widened_later(const Tensor& x, DType dtype) {
  const bool wider =
      is_floating(x.dtype()) && is_floating(dtype) && size_of(dtype) > size_of(x.dtype());
  if (!wider || !x.is_dense() || pending_of(x) || !may_wait(x.numel() * size_of(dtype)))
    return converted(x, dtype);
  return pending_tensor(x.shape(), x.strides(), x.device(),
                        std::make_shared<Widened>(x.detach(), dtype));
}

/// The whole storage in another dtype, seen as x sees it.
static Tensor seen_as(const Tensor& x, const Tensor& whole) {
  return whole.view_as(x.shape(), x.strides(), whole.offset() + x.offset());
}

Tensor converted(const Tensor& x, DType dtype) {
  const auto pending = pending_of(x);
  if (!pending || !pending->gives(dtype) || x.bytes() != x.storage()->bytes())
    return copied(x, dtype);
  pending->check_inputs();
  return seen_as(x, pending->make(dtype));
}

Tensor narrowest(const Tensor& x) {
  const auto pending = pending_of(x);
  if (!pending) return x;
  const Tensor other = pending->narrower();
  if (!other.defined()) return x;
  pending->check_inputs();
  return seen_as(x, other);
}

Tensor waiting_operand(const F8Operand& operand, DType dtype) {
  const Tensor& numbers = operand.numbers;
  return pending_tensor(numbers.shape(), numbers.strides(), numbers.device(),
                        std::make_shared<Scaled>(operand, dtype));
}

std::optional<F8Operand> f8_operand(const Tensor& x) {
  const auto waiting = std::dynamic_pointer_cast<const Scaled>(pending_of(x));
  if (!waiting) return {};
  F8Operand operand = waiting->operand();
  operand.numbers = seen_as(x, operand.numbers);
  return operand;
}

// The cache: one list of free blocks for each size class. Large blocks are aligned to 2 MiB and
// offered to transparent huge pages, which avoids most TLB misses of a training step.

namespace {
constexpr std::size_t smallest = 64, huge_page = std::size_t(1) << 21;

struct Cache {
  std::mutex mutex;
  std::array<std::vector<void*>, 4 * 64> free_blocks;
  CacheStatistics statistics;
  int64_t before_failure = -1;  // of fail_one_allocation()

  /// Returns all unused blocks to the system.
  void clear() {
    for (auto& blocks : free_blocks) {
      for (void* data : blocks) std::free(data);
      blocks.clear();
    }
    statistics.cached_bytes = 0;
  }
};

Cache& cache() {
  static Cache* instance =
      new Cache;  // never destroyed: tensors with static lifetime release into it
  return *instance;
}

void* system_allocate(std::size_t bytes) {
  const bool large = bytes >= huge_page;
  const std::size_t alignment = large ? huge_page : smallest;
  void* data = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (data && large) madvise(data, bytes, MADV_HUGEPAGE);  // advice: failure changes nothing
  return data;
}
}  // namespace

void* cached_allocate(std::size_t bytes) {
  if (uint64_t(bytes) > (uint64_t(1) << 46))
    fail<DeviceError>("allocate", "cannot allocate ", bytes,
                      " bytes on the CPU. Use a smaller shape.");
  const SizeClass wanted = size_class(bytes, smallest);
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  const bool fails = c.before_failure >= 0 && c.before_failure-- == 0;
  c.statistics.used_bytes += int64_t(wanted.bytes);
  if (auto& blocks = c.free_blocks[wanted.index]; !blocks.empty() && !fails) {
    void* data = blocks.back();
    blocks.pop_back();
    c.statistics.cached_bytes -= int64_t(wanted.bytes);
    return data;
  }
  void* data = fails ? nullptr : system_allocate(wanted.bytes);
  if (!data && !fails) {  // unused blocks of other sizes may make room
    c.clear();
    data = system_allocate(wanted.bytes);
  }
  if (!data) {
    c.statistics.used_bytes -= int64_t(wanted.bytes);
    fail<DeviceError>("allocate", "cannot allocate ", HumanBytes{int64_t(bytes)},
                      " on the CPU: the system has no more. Use a smaller batch or model.\n",
                      memory_report());
  }
  ++c.statistics.system_allocations;
  return data;
}

void cached_release(void* data, std::size_t bytes) noexcept {
  const SizeClass given = size_class(bytes, smallest);
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  c.statistics.used_bytes -= int64_t(given.bytes);
  try {
    c.free_blocks[given.index].push_back(data);
    c.statistics.cached_bytes += int64_t(given.bytes);
  } catch (const std::bad_alloc&) { std::free(data); }  // not even the list can grow
}

void detail::fail_one_allocation(int64_t after) {
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  c.before_failure = after;
}

void release_cached_memory() {
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  c.clear();
}

CacheStatistics cache_statistics() {
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  return c.statistics;
}

}  // namespace halftone
