// Loops over many tensors in one launch. The description of each is passed to the kernel by value,
// as many as fit in the 32,764 bytes of kernel arguments (since CUDA 12.1; for a short list 4 KiB,
// which are copied faster). Blocks take chunks of the list, so a list of small tensors costs as
// much as one large tensor.
#pragma once

#include <cstdint>

#include <halftone/backends/cuda/launch.h>

namespace halftone::cuda {

/// Elements of a chunk: a multiple of all packs, so that chunks of aligned tensors are aligned.
inline constexpr int64_t chunk_length = 4096;

constexpr int64_t chunks_of(int64_t elements) {
  return elements / chunk_length + (elements % chunk_length != 0);
}

/// The bytes of a kernel's arguments that a list may take; the rest is for other arguments.
inline constexpr std::size_t short_arguments = 3900, long_arguments = 32'500;

/// Returns the number of items, with their chunks, that fit into `bytes`.
template <class Item> constexpr int items_in(std::size_t bytes) {
  return int((bytes - 2 * sizeof(int64_t)) / (sizeof(Item) + sizeof(int64_t)));
}

/// Up to `capacity` items and the numbers of their first chunks.
template <class Item, int capacity> struct ItemList {
  static_assert(capacity <= items_in<Item>(long_arguments), "kernel arguments are at most 32 KiB");
  static constexpr int most = capacity;
  int count = 0;
  int64_t first_chunk[capacity + 1] = {0};
  Item items[capacity];

  bool full() const { return count == capacity; }
  void clear() { count = 0; }
  void add(const Item& item, int64_t elements) {
    items[count] = item;
    first_chunk[count + 1] = first_chunk[count] + chunks_of(elements);
    ++count;
  }
  HT_HD int64_t chunks() const { return first_chunk[count]; }
  /// Returns the item of a chunk: the last one that begins at or before it and is not empty.
  HT_HD int item_of(int64_t chunk) const {
    int low = 0, high = count;  // first_chunk[low] <= chunk < first_chunk[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first_chunk[middle] <= chunk) low = middle;
      else high = middle;
    }
    return low;
  }
};

/// Calls visitor.operator()<capacity>() for the shorter of two lists if it holds that many items,
/// otherwise for the longer one.
template <class Item, class Visitor> void visit_capacity(std::size_t items, Visitor&& visitor) {
  constexpr int few = items_in<Item>(short_arguments);
  if (items <= std::size_t(few)) visitor.template operator()<few>();
  else visitor.template operator()<items_in<Item>(long_arguments)>();
}

/// Returns the blocks for the chunks of a list.
template <class List> LaunchShape shape_for_chunks(const Context& context, const List& list) {
  return {blocks_for(list.chunks(), 1, int64_t(context.multiprocessors()) * 16)};
}

}  // namespace halftone::cuda
