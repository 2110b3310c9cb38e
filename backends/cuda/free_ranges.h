// Blocks of any size cut from slabs: the smallest free range that is large enough gives its
// beginning, and neighbours that are free become one range again. Ranges of different slabs never
// join, also where their addresses do.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace halftone::cuda {

class FreeRanges {
 public:
  /// A slab, all of it free.
  void add(std::byte* slab, std::size_t bytes);
  /// Takes slabs out of which all is free; where they begin.
  std::vector<std::byte*> remove_unused();

  /// `bytes` of the best range; null if none is large enough.
  std::byte* take(std::size_t bytes);
  /// A block that take() gave; its bytes.
  std::size_t put_back(std::byte* block);
  /// Everything of the other, free and taken.
  void absorb(FreeRanges&& other);

  std::size_t bytes_of(std::byte* block) const { return ranges_.at(block).bytes; }
  /// Addresses and bytes of what is free.
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
  /// Whether b, which follows a, is one range with it.
  static bool join(Ranges::iterator a, Ranges::iterator b) {
    return a->second.slab == b->second.slab && a->second.is_free && b->second.is_free;
  }

  Ranges ranges_;  // all of every slab
  std::set<std::pair<std::size_t, std::byte*>> free_;
};

}  // namespace halftone::cuda
