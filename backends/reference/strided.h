// Strided tensors as few, long loops. A LoopNest walks N tensors of one shape together. Dimensions
// of size 1 are dropped; the others are ordered by stride and merged if all tensors allow it. The
// result is passed on as runs of at most block_length elements, each with one offset and one step
// per tensor.
#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include <halftone/backends/reference/loops.h>
#include <halftone/core/tensor.h>

namespace halftone::reference {

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

}  // namespace halftone::reference
