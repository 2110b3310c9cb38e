// Loops over many tensors at once: the pieces of all of them are one list of tasks, so that many
// small tensors and few large ones keep all threads busy alike. The pieces do not depend on the
// number of threads, nor does what is computed from them.
#pragma once

#include <span>

#include <omp.h>

#include <halftone/backends/reference/strided.h>

namespace halftone::cpu {

/// Elements of a piece.
inline constexpr int64_t list_piece = reference::grain_length;

/// A negative size counts as none.
inline int64_t list_pieces(std::span<const int64_t> sizes) {
  int64_t pieces = 0;
  for (const int64_t n : sizes) pieces += reference::pieces_of(std::max<int64_t>(n, 0), list_piece);
  return pieces;
}

/// Calls body(tensor, begin, end, number of the piece) for all pieces of tensors of some sizes, in
/// parallel: each thread takes neighbours, to about the same number of elements.
template <class Body> void parallel_list(std::span<const int64_t> sizes, const Body& body) {
  constexpr int64_t worth_threads = 4 * list_piece;
  int64_t total = 0;
  for (const int64_t n : sizes) total += std::max<int64_t>(n, 0);
#pragma omp parallel if (total > worth_threads)
  {
    const int64_t threads = omp_get_num_threads(), own = omp_get_thread_num();
    int64_t number = 0, before = 0;
    for (std::size_t tensor = 0; tensor < sizes.size(); ++tensor) {
      const int64_t n = sizes[tensor];
      for (int64_t begin = 0; begin < n; begin += list_piece, ++number)
        if ((before + begin) * threads / total == own)
          body(tensor, begin, std::min(n, begin + list_piece), number);
      before += std::max<int64_t>(n, 0);
    }
  }
}

}  // namespace halftone::cpu
