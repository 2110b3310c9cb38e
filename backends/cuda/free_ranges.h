// Cuts blocks of any size from slabs: the smallest free range that is large enough gives its
// beginning, and neighboring free ranges are joined again. Ranges of different slabs are never
// joined, even if their addresses are adjacent.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace halftone::cuda {

class FreeRanges {
 public:
  /// Adds a slab that is all free.
  void add(std::byte* slab, std::size_t bytes);
  /// Removes slabs that are all free. Returns where they begin.
  std::vector<std::byte*> remove_unused();

  /// Takes `bytes` from the best range; null if none is large enough.
  std::byte* take(std::size_t bytes);
  /// Gives back a block of take(). Returns its bytes.
  std::size_t put_back(std::byte* block);
  /// Takes over all ranges of the other, free and taken.
  void absorb(FreeRanges&& other);

  std::size_t bytes_of(std::byte* block) const { return ranges_.at(block).bytes; }
  /// Returns addresses and bytes of the free ranges.
  std::vector<std::pair<void*, std::size_t>> free() const;

 private:
  struct Range {
    std::size_t bytes;
    std::byte* slab;
    bool is_free;
  };
  using Ranges = std::map<std::byte*, Range>;

  void mark_free(Ranges::iterator range);
  void mark_taken(Ranges::iterator range);
  /// Returns whether b, which follows a, can be joined with it.
  static bool join(Ranges::iterator a, Ranges::iterator b) {
    return a->second.slab == b->second.slab && a->second.is_free && b->second.is_free;
  }

  Ranges ranges_;  // all of every slab
  std::set<std::pair<std::size_t, std::byte*>> free_;
};

}  // namespace halftone::cuda
