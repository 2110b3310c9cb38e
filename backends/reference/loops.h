// Parallel loops and scratch memory. Work is cut into pieces whose bounds depend only on sizes,
// never on the number of threads, and each output belongs to one piece. So every result is
// reproducible bit by bit.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>

#include <omp.h>

#include <halftone/backends/team.h>
#include <halftone/core/device.h>
#include <halftone/core/memory.h>

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

/// The tasks 0..count of a parallel region. Each thread has a fixed share of neighboring tasks. But
/// if threads lack cores (crowded()), each one takes the next task when it is free. Then a thread
/// without a core delays one task, not a whole share.
class Tasks {
 public:
  explicit Tasks(int64_t count, bool in_turn = crowded()) : count_(count), in_turn_(in_turn) {}

  bool in_turn() const { return in_turn_; }

  /// Called by every thread of the region: calls body(i) for its tasks.
  template <class Body> void each(const Body& body) {
    const int64_t threads = omp_get_num_threads(), own = omp_get_thread_num();
    leave_core(core_);
    if (in_turn_ && threads > 1) {
      for (int64_t i = next_++; i < count_; i = next_++) body(i);
    } else {
      const int64_t end = count_ * (own + 1) / threads;
      for (int64_t i = count_ * own / threads; i < end; ++i) body(i);
    }
  }
  /// Calls body(i, start) for the chunks of begin..end of `length` each, in ascending order for a
  /// task: all tasks of a thread for one chunk after the other, or, in turn, one task after the
  /// other.
  template <class Body>
  void each_through(int64_t begin, int64_t end, int64_t length, const Body& body) {
    if (in_turn_)
      each([&](int64_t i) {
        for (int64_t start = begin; start < end; start += length) body(i, start);
      });
    else
      for (int64_t start = begin; start < end; start += length)
        each([&](int64_t i) { body(i, start); });
  }
  /// Called by one thread, between barriers: the tasks can be run again.
  void again() { next_ = 0; }

 private:
  int64_t count_;
  bool in_turn_;
  alignas(64) std::atomic<int64_t> next_{0};  // apart from what threads only read
  int core_ = core_to_leave();
};

/// Returns the least work of a region with several threads, `least` on a quiet machine: threads
/// that sleep are woken up for it.
inline int64_t worth_waking(int64_t least) { return crowded() ? 8 * least : least; }

/// Returns into how many shares a region's work is cut: one for each thread, or several if they
/// take them in turn.
inline int64_t shares_of_region() { return cpu_threads() * (crowded() ? 4 : 1); }

/// Calls body(begin, end) for the pieces of 0..count of `grain` each.
template <class Body> void parallel_pieces(int64_t count, int64_t grain, const Body& body) {
  Tasks pieces(pieces_of(count, grain));
  RegionError error;
#pragma omp parallel if (count > worth_waking(grain))
  pieces.each([&](int64_t piece) {
    error.keep([&] { body(piece * grain, std::min(count, (piece + 1) * grain)); });
  });
  error.rethrow();
}

/// Calls body(i) for 0..count, one task each, for tasks that are large.
template <class Body> void parallel_tasks(int64_t count, const Body& body) {
  Tasks tasks(count, true);
  RegionError error;
#pragma omp parallel if (count > 1)
  tasks.each([&](int64_t i) { error.keep([&] { body(i); }); });
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
