// Loops over many tensors at once: the pieces of all tensors are one list of tasks, so that many
// small tensors and few large ones keep all threads equally busy. Pieces and results do not depend
// on the number of threads.
#pragma once

#include <array>
#include <optional>
#include <span>

#include <omp.h>

#include <halftone/backends/reference/strided.h>

namespace halftone::cpu {

/// Elements of a piece.
inline constexpr int64_t list_piece = reference::grain_length;

/// The most tensors in one list: their sizes are on the stack, because a step must not allocate.
inline constexpr std::size_t list_length = 256;

/// Calls body(some) for one list after the other.
template <class T, class Body> void in_lists(std::span<T> all, const Body& body) {
  for (std::size_t first = 0; first < all.size(); first += list_length)
    body(all.subspan(first, std::min(list_length, all.size() - first)));
}

/// The sizes of the tensors of a list, for parallel_list; 0 for those that other code handles.
class ListSizes {
 public:
  /// size(item): the number of elements, or nullopt.
  template <class T, class Size>
  ListSizes(std::span<T> items, const Size& size) : count_(items.size()) {
    for (std::size_t i = 0; i < count_; ++i) sizes_[i] = size(items[i]).value_or(not_served);
  }
  std::size_t count() const { return count_; }
  bool served(std::size_t i) const { return sizes_[i] != not_served; }
  int64_t operator[](std::size_t i) const { return served(i) ? sizes_[i] : 0; }
  int64_t pieces() const {
    int64_t pieces = 0;
    for (std::size_t i = 0; i < count_; ++i) pieces += reference::pieces_of((*this)[i], list_piece);
    return pieces;
  }
  int64_t total() const {
    int64_t total = 0;
    for (std::size_t i = 0; i < count_; ++i) total += (*this)[i];
    return total;
  }

 private:
  static constexpr int64_t not_served = -1;
  std::array<int64_t, list_length> sizes_;
  std::size_t count_;
};

/// Calls body(tensor, begin, end, number of the piece) for all pieces of a list, in parallel. Each
/// thread takes neighboring pieces with about the same number of elements.
template <class Body> void parallel_list(const ListSizes& sizes, const Body& body) {
  constexpr int64_t worth_threads = 4 * list_piece;
  const int64_t total = sizes.total();
  reference::Tasks tasks(reference::pieces_of(total, list_piece));
  reference::RegionError error;
#pragma omp parallel if (total > reference::worth_waking(worth_threads))
  {
    // A task: the pieces that begin in one stretch of the list. A thread's tasks ascend, so it goes
    // through the list once.
    std::size_t tensor = 0;
    int64_t number = 0, before = 0, begin = 0;
    tasks.each([&](int64_t task) {
      while (tensor < sizes.count()) {
        const int64_t n = sizes[tensor];
        for (; begin < n; begin += list_piece, ++number) {
          const int64_t at = (before + begin) / list_piece;
          if (at > task) return;
          if (at == task)
            error.keep([&] { body(tensor, begin, std::min(n, begin + list_piece), number); });
        }
        before += n, begin = 0, ++tensor;
      }
    });
  }
  error.rethrow();
}

}  // namespace halftone::cpu
