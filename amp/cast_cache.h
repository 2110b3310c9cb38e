// Casts of parameters, kept while a region lasts, so that a weight used ten times is cast once. An
// entry holds its source and knows the storage, its version and the dtype it was cast to: neither a
// recycled address, nor a weight that was updated since, nor a second dtype can hit.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>

#include <halftone/core/tensor.h>

namespace halftone::amp {

struct CacheCounters {
  int64_t hits = 0, misses = 0, bytes = 0;  // bytes: of all casts made
};

class CastCache {
 public:
  /// Whether casts of x are worth keeping: an f32 leaf that requires a gradient and is no view.
  static bool serves(const Tensor& x);
  /// x in `dtype`, as a recorded cast whether or not recording is on: an entry that was made under
  /// NoGrad serves training later. Its bytes are charged to MemoryUse::cast_cache until the last
  /// graph that uses it is gone. channels_last: a cast that is made now has this order in memory.
  Tensor cast(const Tensor& x, DType dtype, bool channels_last = false);
  void clear() { entries_.clear(); }
  std::size_t size() const { return entries_.size(); }
  const CacheCounters& counters() const { return counters_; }

 private:
  struct Key {
    const AutogradMeta* source;  // which leaf: gradients must reach this one
    DType dtype;
    bool operator==(const Key&) const = default;
  };
  struct HashKey {
    std::size_t operator()(const Key& key) const {
      return std::hash<const void*>{}(key.source) ^ std::size_t(key.dtype);
    }
  };
  struct Entry {
    Tensor source;                     // keeps the leaf alive
    std::shared_ptr<Storage> storage;  // and the data it was cast from
    uint64_t version;
    Tensor result;
  };
  std::unordered_map<Key, Entry, HashKey> entries_;
  CacheCounters counters_;
};

}  // namespace halftone::amp
