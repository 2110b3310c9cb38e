// N tensors of one shape as few loops: dimensions of size 1 are dropped, the others ordered by
// stride and merged if all tensors allow it. Turn i of the loops is one element of each tensor;
// with fewer than 2^31 elements the divisions use 32 bits. Host and device share the arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include <halftone/core/language.h>
#include <halftone/core/tensor.h>

namespace halftone::cuda {

template <int N> struct Places { int64_t of[N]; };

template <int N> struct Layout {
  int depth = 0;
  int64_t turns = 1;
  int64_t counts[Dims::max_rank];    // innermost loop first
  int64_t steps[Dims::max_rank][N];  // elements

  Layout(const Shape& shape, const std::array<Strides, std::size_t(N)>& strides) {
    for (int d = shape.rank() - 1; d >= 0; --d) {
      turns *= shape[d];
      if (shape[d] == 1) continue;
      int64_t step[N];
      for (int t = 0; t < N; ++t) step[t] = strides[std::size_t(t)][d];
      insert(shape[d], step);
    }
    merge();
  }
  /// Takes tensors of the first one's shape; undefined ones get strides of 0.
  template <class... Rest>
  explicit Layout(const Tensor& first, const Rest&... rest)
      : Layout(first.shape(), {first.strides(), strides_of(rest, first.rank())...}) {}

  bool is_small() const { return turns <= std::numeric_limits<int32_t>::max(); }
  /// Returns whether there is one loop with step 1 (or no loop): all tensors dense in one order.
  bool is_dense() const {
    if (depth > 1) return false;
    for (int t = 0; t < N; ++t)
      if (depth == 1 && steps[0][t] != 1) return false;
    return true;
  }

  /// Returns each tensor's position at a turn. Index: uint32_t if is_small(), else uint64_t.
  template <class Index> HT_HD Places<N> at(Index turn) const {
    Places<N> places{};
    for (int d = 0; d < depth; ++d) {
      const Index count = Index(counts[d]), rest = turn / count, digit = turn - rest * count;
      for (int t = 0; t < N; ++t) places.of[t] += int64_t(digit) * steps[d][t];
      turn = rest;
    }
    return places;
  }
  HT_HD Places<N> at_turn(int64_t turn, bool small) const {
    return small ? at(uint32_t(turn)) : at(uint64_t(turn));
  }

 private:
  static Strides strides_of(const Tensor& x, int rank) {
    return x.defined() ? x.strides() : Dims::filled(rank, 0);
  }
  static bool before(const int64_t* a, const int64_t* b) {
    for (int t = 0; t < N; ++t)
      if (a[t] != b[t]) return a[t] < b[t];
    return false;
  }
  /// Keeps the loops ordered, with small steps inside; equal steps in the order of the dimensions.
  void insert(int64_t count, const int64_t* step) {
    int place = depth++;
    for (; place > 0 && before(step, steps[place - 1]); --place) {
      counts[place] = counts[place - 1];
      for (int t = 0; t < N; ++t) steps[place][t] = steps[place - 1][t];
    }
    counts[place] = count;
    for (int t = 0; t < N; ++t) steps[place][t] = step[t];
  }
  /// Merges two loops if, for every tensor, the outer step is the whole length of the inner loop.
  void merge() {
    int kept = 0;
    for (int d = 1; d < depth; ++d) {
      bool joins = true;
      for (int t = 0; t < N; ++t) joins = joins && steps[d][t] == steps[kept][t] * counts[kept];
      if (joins) {
        counts[kept] *= counts[d];
        continue;
      }
      counts[++kept] = counts[d];
      for (int t = 0; t < N; ++t) steps[kept][t] = steps[d][t];
    }
    if (depth > 0) depth = kept + 1;
  }
};

}  // namespace halftone::cuda
