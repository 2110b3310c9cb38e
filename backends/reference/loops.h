// Loops of kernels on the host: in parallel, over strided tensors, and over runs of elements that
// are widened on the way.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <new>
#include <type_traits>
#include <utility>

#include <omp.h>

#include <halftone/backends/team.h>
#include <halftone/core/device.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>

namespace halftone::reference {

// Parallel loops and scratch memory. Work is cut into pieces whose bounds depend only on sizes,
// never on the number of threads, and each output belongs to one piece. So every result is
// reproducible bit by bit.

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

  /// Called before the region is opened, returns whether to open it. If threads lack cores, calls
  /// body(i) for tasks until seconds_alone() have passed, so that a short region does not wait for
  /// a late thread. `body` throws nothing, and has one thread for its own regions.
  template <class Body> bool left_alone(const Body& body) {
    if (!in_turn_ || !crowded() || cpu_threads() == 1) return true;
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const auto begin = std::chrono::steady_clock::now();
    const std::chrono::duration<double> alone(seconds_alone());
    while (next_ < count_ && std::chrono::steady_clock::now() - begin < alone) body(next_++);
    omp_set_num_threads(threads);
    return next_ < count_;
  }
  /// Called by every thread of the region: calls body(i) for its tasks.
  template <class Body> void each(const Body& body) {
    const int64_t threads = omp_get_num_threads(), own = omp_get_thread_num();
    leave_core(core_);
    if (in_turn_) {
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

/// Returns the least work of a region with several threads that does not begin alone, `least` on a
/// quiet machine, where it is about 10 us. Threads that lack cores are late by half a millisecond.
inline int64_t worth_waking(int64_t least) { return crowded() ? 64 * least : least; }

/// Returns into how many shares a region's work is cut: one for each thread, or several if they
/// take them in turn.
inline int64_t shares_of_region() { return cpu_threads() * (crowded() ? 4 : 1); }

/// Calls body(begin, end) for the pieces of 0..count of `grain` each.
template <class Body> void parallel_pieces(int64_t count, int64_t grain, const Body& body) {
  Tasks pieces(pieces_of(count, grain));
  RegionError error;
  const auto run = [&](int64_t piece) {
    error.keep([&] { body(piece * grain, std::min(count, (piece + 1) * grain)); });
  };
  if (pieces.left_alone(run)) {
#pragma omp parallel if (count > grain)
    pieces.each(run);
  }
  error.rethrow();
}

/// Calls body(i) for 0..count, one task each, for tasks that are large.
template <class Body> void parallel_tasks(int64_t count, const Body& body) {
  Tasks tasks(count, true);
  RegionError error;
  const auto run = [&](int64_t i) { error.keep([&] { body(i); }); };
  if (tasks.left_alone(run)) {
#pragma omp parallel if (count > 1)
    tasks.each(run);
  }
  error.rethrow();
}

/// Makes a T of one thread inside a parallel region. It stays empty if memory runs out; then
/// `error` is thrown after the region, and the thread passes through its loops without work.
template <class T> class OfThread {
 public:
  template <class... Args> explicit OfThread(RegionError& error, Args&&... args) {
    error.keep([&] { made_ = new (&object_) T(args...); });
  }
  ~OfThread() {
    if (made_) made_->~T();
  }
  OfThread(const OfThread&) = delete;
  OfThread& operator=(const OfThread&) = delete;
  explicit operator bool() const { return made_; }
  T* operator->() { return made_; }
  T& operator*() { return *made_; }

 private:
  union {
    T object_;
  };
  T* made_ = nullptr;
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

// Strided tensors as few, long loops. A LoopNest walks N tensors of one shape together. Dimensions
// of size 1 are dropped; the others are ordered by stride and merged if all tensors allow it. The
// result is passed on as runs of at most block_length elements, each with one offset and one step
// per tensor.

/// Elements that a kernel holds widened at a time; a buffer of this many doubles is 8 KiB of stack.
inline constexpr int64_t block_length = 1024;
/// Elements that are enough for a separate task.
inline constexpr int64_t grain_length = 16 * block_length;

template <int N> using Offsets = std::array<int64_t, std::size_t(N)>;

/// Returns the strides of an optional tensor; an undefined one has strides of 0.
inline Strides strides_or_zero(const Tensor& x, int rank) {
  return x.defined() ? x.strides() : Dims::filled(rank, 0);
}

template <int N> class LoopNest {
 public:
  /// Takes the strides of the N tensors for one shape, beginning with the tensor that decides the
  /// order.
  LoopNest(const Shape& shape, const std::array<Strides, std::size_t(N)>& strides) {
    for (int d = 0; d < shape.rank(); ++d) {
      turns_ *= shape[d];
      if (shape[d] == 1) continue;
      Loop loop{shape[d], {}};
      for (std::size_t t = 0; t < N; ++t) loop.step[t] = strides[t][d];
      insert(loop);
    }
    if (depth_ == 0) loops_[depth_++] = {1, {}};
    merge();
    lengthen_innermost();
  }
  /// Takes tensors of the first one's shape; the others may be undefined.
  template <class... Rest>
  explicit LoopNest(const Tensor& first, const Rest&... rest)
      : LoopNest(first.shape(), {first.strides(), strides_or_zero(rest, first.rank())...}) {}

  /// Returns the number of elements of the shape: turns are numbered in the order of the loops.
  int64_t turns() const { return turns_; }
  int64_t inner_count() const { return loops_[depth_ - 1].count; }
  int64_t inner_step(int tensor) const { return loops_[depth_ - 1].step[std::size_t(tensor)]; }

  /// Returns each tensor's position at one turn, in elements from its first.
  Offsets<N> at(int64_t turn) const {
    Offsets<N> offsets{};
    for (int d = depth_; d-- > 0; turn /= loops_[d].count)
      for (std::size_t t = 0; t < N; ++t) offsets[t] += turn % loops_[d].count * loops_[d].step[t];
    return offsets;
  }

  /// Calls body(offsets, steps, count) for the runs of the turns begin..end.
  template <class Body> void runs(int64_t begin, int64_t end, const Body& body) const {
    const Loop& inner = loops_[depth_ - 1];
    while (begin < end) {
      const int64_t rest = inner.count - begin % inner.count;
      const int64_t count = std::min({rest, end - begin, block_length});
      body(at(begin), inner.step, count);
      begin += count;
    }
  }
  /// Does the same for all runs, in parallel.
  template <class Body> void parallel_runs(const Body& body) const {
    parallel_pieces(turns_, grain_length,
                    [&](int64_t begin, int64_t end) { runs(begin, end, body); });
  }

 private:
  struct Loop {
    int64_t count;
    Offsets<N> step;
  };

  /// Keeps the loops ordered, with large steps outside.
  void insert(const Loop& loop) {
    int place = depth_++;
    for (; place > 0 && loops_[place - 1].step < loop.step; --place)
      loops_[place] = loops_[place - 1];
    loops_[place] = loop;
  }
  /// Merges two neighboring loops if, for every tensor, the outer step is the whole length of the
  /// inner loop.
  void merge() {
    int kept = 0;
    for (int d = 1; d < depth_; ++d) {
      bool joins = true;
      for (std::size_t t = 0; t < N; ++t)
        joins = joins && loops_[kept].step[t] == loops_[d].step[t] * loops_[d].count;
      if (joins) loops_[kept] = {loops_[kept].count * loops_[d].count, loops_[d].step};
      else loops_[++kept] = loops_[d];
    }
    depth_ = kept + 1;
  }
  /// A short innermost loop (over three channels, for example) costs more in bookkeeping than a
  /// long one costs in cache misses.
  void lengthen_innermost() {
    constexpr int64_t short_loop = 16;
    if (loops_[depth_ - 1].count >= short_loop) return;
    int longest = depth_ - 1;
    for (int d = 0; d < depth_; ++d)
      if (loops_[d].count > loops_[longest].count) longest = d;
    std::swap(loops_[longest], loops_[depth_ - 1]);
  }

  Loop loops_[Dims::max_rank]{};
  int depth_ = 0;
  int64_t turns_ = 1;
};

// Runs of elements between tensors and the buffers that kernels compute in. All conversion of
// dtypes in this backend goes through convert_run(), so kernels are written once, for double (or
// int64_t), and work for every mix of dtypes.

/// Elements at equal distances in memory.
struct Run {
  std::byte* data;
  DType dtype;
  int64_t step;
};
inline Run run_of(const Tensor& x, int64_t offset, int64_t step = 1) {
  return {x.raw_data() + offset * size_of(x.dtype()), x.dtype(), step};
}
template <class T> Run run_of(T* values) {
  using Value = std::remove_const_t<T>;
  return {reinterpret_cast<std::byte*>(const_cast<Value*>(values)), dtype_of<Value>, 1};
}

/// Computes to[i] = convert<>(from[i]), with one rounding.
void convert_run(int64_t count, Run from, Run to);

/// Loads elements offset, offset + step, ... of x, converted to T. An undefined x is read as zeros.
template <class T>
void load(const Tensor& x, int64_t offset, int64_t step, int64_t count, T* values) {
  if (x.defined()) convert_run(count, run_of(x, offset, step), run_of(values));
  else std::fill_n(values, count, T(0));
}
template <class T>
void store(const T* values, int64_t count, const Tensor& y, int64_t offset, int64_t step) {
  convert_run(count, run_of(values), run_of(y, offset, step));
}

/// Loads neighboring elements.
template <class T> void load(const Tensor& x, int64_t offset, int64_t count, T* values) {
  load(x, offset, 1, count, values);
}
template <class T> void store(const T* values, int64_t count, const Tensor& y, int64_t offset) {
  store(values, count, y, offset, 1);
}
/// Loads one element.
inline double load_one(const Tensor& x, int64_t offset) {
  double value = 0;
  load(x, offset, 1, &value);
  return value;
}
inline void store_one(double value, const Tensor& y, int64_t offset) {
  store(&value, 1, y, offset);
}
/// Loads channel weights and similar tensors; if they are absent, fills `values` with `otherwise`.
inline void load_or(double otherwise, const Tensor& x, int64_t offset, int64_t count,
                    double* values) {
  if (x.defined()) load(x, offset, count, values);
  else std::fill_n(values, count, otherwise);
}

/// Converts long runs, in parallel.
void widen(const Tensor& x, int64_t offset, int64_t count, double* values);
void narrow(const double* values, int64_t count, const Tensor& y, int64_t offset);

// map<T>(function, y, x...): y[i] = function(x[i]...) over strided tensors of any dtypes, computed
// in T.
// Equivalent to: for every index i, y[i] = convert<>(function(convert<T>(x[i])...)).

/// Undefined inputs are read as zeros; y may be one of the inputs.
template <class T, class Function, class... Inputs>
void map(const Function& function, const Tensor& y, const Inputs&... inputs) {
  constexpr int input_count = sizeof...(inputs);
  const Tensor* const tensors[] = {&inputs...};
  const LoopNest<input_count + 1> nest(y, inputs...);
  nest.parallel_runs([&](const Offsets<input_count + 1>& offsets,
                         const Offsets<input_count + 1>& steps, int64_t count) {
    T values[input_count][block_length];
    for (std::size_t t = 0; t < input_count; ++t)
      load(*tensors[t], offsets[t + 1], steps[t + 1], count, values[t]);
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      using Result = decltype(function(values[I][0]...));
      Result results[block_length];
      for (int64_t i = 0; i < count; ++i) results[i] = function(values[I][i]...);
      store(results, count, y, offsets[0], steps[0]);
    }
    (std::index_sequence_for<Inputs...>{});
  });
}

// The only inner loop of matmul and convolution: a vector times a matrix, added to a vector, in
// double.

/// Computes c[j] += sum over p of a[p a_step] b[p b_step + j] for j < width. The inner loop runs
/// along contiguous memory.
inline void add_product(int64_t depth, int64_t width, const double* a, int64_t a_step,
                        const double* b, int64_t b_step, double* c) {
  int64_t p = 0;
  for (; p + 4 <= depth; p += 4) {  // four rows of b for one pass over c
    const double a0 = a[p * a_step], a1 = a[(p + 1) * a_step];
    const double a2 = a[(p + 2) * a_step], a3 = a[(p + 3) * a_step];
    const double *b0 = b + p * b_step, *b1 = b0 + b_step, *b2 = b1 + b_step, *b3 = b2 + b_step;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) c[j] += a0 * b0[j] + a1 * b1[j] + (a2 * b2[j] + a3 * b3[j]);
  }
  for (; p < depth; ++p) {
    const double factor = a[p * a_step];
    const double* const row = b + p * b_step;
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) c[j] += factor * row[j];
  }
}

}  // namespace halftone::reference
