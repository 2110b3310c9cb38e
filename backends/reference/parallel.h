// Parallel loops and scratch memory. Work is cut into pieces whose bounds depend only on sizes,
// never on the number of threads, and each output belongs to one piece. So every result is
// reproducible bit by bit.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>

#include <halftone/core/caching_allocator.h>
#include <halftone/core/memory_ledger.h>

namespace halftone::reference {

inline int64_t pieces_of(int64_t count, int64_t grain) { return (count + grain - 1) / grain; }

/// The first exception of a parallel region: one that leaves the region would end the process, and
/// memory for scratch may run out in it.
class RegionError {
 public:
  /// Calls f(), unless a call has thrown.
  template <class F> void keep(const F& f) noexcept {
    if (thrown_.load(std::memory_order_relaxed)) return;
    try {
      f();
    } catch (...) {
      if (!thrown_.exchange(true)) first_ = std::current_exception();
    }
  }
  /// After the region: throws what a call has thrown.
  void rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::atomic<bool> thrown_ = false;
  std::exception_ptr first_{};
};

/// Calls body(begin, end) for the pieces of 0..count of `grain` each.
template <class Body> void parallel_pieces(int64_t count, int64_t grain, const Body& body) {
  const int64_t pieces = pieces_of(count, grain);
  RegionError error;
#pragma omp parallel for schedule(static) if (pieces > 1)
  for (int64_t piece = 0; piece < pieces; ++piece)
    error.keep([&] { body(piece * grain, std::min(count, (piece + 1) * grain)); });
  error.rethrow();
}

/// Calls body(i) for 0..count, one task each, for tasks that are large.
template <class Body> void parallel_tasks(int64_t count, const Body& body) {
  RegionError error;
#pragma omp parallel for schedule(dynamic) if (count > 1)
  for (int64_t i = 0; i < count; ++i) error.keep([&] { body(i); });
  error.rethrow();
}

/// Makes a T of one thread inside a parallel region. It stays empty if memory runs out; then
/// `error` is thrown after the region, and the thread passes through its loops without work.
template <class T> class OfThread {
 public:
  template <class... Args> explicit OfThread(RegionError& error, Args&&... args) {
    error.keep([&] { object_.emplace(args...); });
  }
  explicit operator bool() const { return object_.has_value(); }
  T* operator->() { return &*object_; }
  T& operator*() { return *object_; }

 private:
  std::optional<T> object_{};
};

/// Uninitialized scratch memory until the end of a kernel, counted as MemoryUse::workspace.
template <class T> class Workspace {
 public:
  explicit Workspace(int64_t count)
      : bytes_(count * int64_t(sizeof(T))),
        data_(static_cast<T*>(cached_allocate(std::size_t(bytes_)))) {
    halftone::detail::ledger_add(Device::cpu(), MemoryUse::workspace, bytes_);
  }
  ~Workspace() {
    halftone::detail::ledger_add(Device::cpu(), MemoryUse::workspace, -bytes_);
    cached_release(data_, std::size_t(bytes_));
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  T* data() { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  int64_t size() const { return bytes_ / int64_t(sizeof(T)); }

 private:
  int64_t bytes_;
  T* data_;
};

}  // namespace halftone::reference
